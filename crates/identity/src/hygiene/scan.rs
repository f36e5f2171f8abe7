//! Just enough JSON to find one member of a body without parsing the rest.
//!
//! - Purpose: byte ranges of values, as the client wrote them. Strings are skipped by a vectorised search
//!   for their end, everything between strings is a few bytes: 400 KiB cost a fraction of a millisecond.
//! - Invariants: I-SCN-1 ranges lie inside the body and strings are ranges without their quotes; I-SCN-2
//!   broken JSON ends the scan with `None`; nested values use no stack.
//! - Deliberately absent: validation. The dialect's parser judges the body; a scan only must not misread a
//!   valid one.

use std::ops::Range;

use memchr::memchr;

/// A place in a body.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor<'a> {
    body: &'a [u8],
    at: usize,
}

/// A value's kind and where it lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Node {
    /// The inside of a string.
    Text(Range<usize>),
    /// An object, braces included.
    Object(Range<usize>),
    /// An array, brackets included.
    Array(Range<usize>),
    /// A number, `true`, `false` or `null`.
    Other,
}

impl<'a> Cursor<'a> {
    pub(super) const fn new(body: &'a [u8], at: usize) -> Self {
        Self { body, at }
    }

    fn space(&mut self) {
        while self.peek().is_some_and(|b| b.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.body.get(self.at).copied()
    }

    /// Skips white space, then `byte` if it is next.
    fn take(&mut self, byte: u8) -> bool {
        self.space();
        let is = self.peek() == Some(byte);
        self.at += usize::from(is);
        is
    }

    /// Reads a string and gives its inside.
    fn text(&mut self) -> Option<Range<usize>> {
        if !self.take(b'"') {
            return None;
        }
        let start = self.at;
        loop {
            let quote = self.at + memchr(b'"', self.body.get(self.at..)?)?;
            self.at = quote + 1;
            // Behind an even number of backslashes (none, mostly) it ends the string.
            let slashes = self.body[start..quote].iter().rev().take_while(|b| **b == b'\\').count();
            if slashes % 2 == 0 {
                return Some(start..quote);
            }
        }
    }

    /// Reads any value.
    pub(super) fn value(&mut self) -> Option<Node> {
        self.space();
        let start = self.at;
        match self.peek()? {
            b'"' => return self.text().map(Node::Text),
            b'{' | b'[' => {}
            _ => {
                while self
                    .peek()
                    .is_some_and(|b| !matches!(b, b',' | b']' | b'}') && !b.is_ascii_whitespace())
                {
                    self.at += 1;
                }
                return (self.at > start).then_some(Node::Other);
            }
        }
        let mut depth = 0_usize;
        loop {
            match self.peek()? {
                b'"' => {
                    self.text()?;
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth -= 1,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                let range = start..self.at;
                return Some(if self.body[start] == b'{' { Node::Object(range) } else { Node::Array(range) });
            }
        }
    }

    /// Calls `each` with the key and the value of every member of the object here. `None` when this is no
    /// object or it is broken.
    pub(super) fn members(&mut self, mut each: impl FnMut(&Range<usize>, Node)) -> Option<()> {
        if !self.take(b'{') {
            return None;
        }
        if self.take(b'}') {
            return Some(());
        }
        loop {
            let key = self.text()?;
            if !self.take(b':') {
                return None;
            }
            let value = self.value()?;
            each(&key, value);
            if self.take(b'}') {
                return Some(());
            }
            if !self.take(b',') {
                return None;
            }
        }
    }

    /// Calls `each` with every element of the array here and the range that it and its comma fill, until it
    /// says stop.
    pub(super) fn elements(&mut self, mut each: impl FnMut(Node, Range<usize>) -> bool) -> Option<()> {
        if !self.take(b'[') {
            return None;
        }
        if self.take(b']') {
            return Some(());
        }
        loop {
            self.space();
            let start = self.at;
            let value = self.value()?;
            let end = self.at;
            if self.take(b']') {
                each(value, start..end);
                return Some(());
            }
            if !self.take(b',') {
                return None;
            }
            self.space();
            if !each(value, start..self.at) {
                return Some(());
            }
        }
    }
}

/// One character of a JSON string: its code unit, and where it is written. Bytes beyond ASCII are units of
/// their own; that serves all who look for ASCII only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unit {
    pub(super) code: u32,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// The units of the inside of a string. Ends early at a broken escape.
pub(super) fn units(body: &[u8], text: Range<usize>) -> impl Iterator<Item = Unit> + Clone + '_ {
    let mut at = text.start;
    std::iter::from_fn(move || {
        let start = at;
        let raw = body.get(..text.end)?;
        let first = *raw.get(start)?;
        let (code, len) = if first == b'\\' { escape(raw.get(start + 1..)?)? } else { (u32::from(first), 1) };
        at = start + len;
        Some(Unit { code, start, end: at })
    })
}

/// The code and the full length of the escape whose text after the backslash is `rest`.
fn escape(rest: &[u8]) -> Option<(u32, usize)> {
    let code = match rest.first()? {
        b'n' => 0x0a,
        b'r' => 0x0d,
        b't' => 0x09,
        b'b' => 0x08,
        b'f' => 0x0c,
        b'u' => {
            let hex = std::str::from_utf8(rest.get(1..5)?).ok()?;
            return Some((u32::from_str_radix(hex, 16).ok()?, 6));
        }
        other => u32::from(*other),
    };
    Some((code, 2))
}

/// Whether the inside of a string spells `word`, escapes resolved. `word` is ASCII.
pub(super) fn spells(body: &[u8], text: &Range<usize>, word: &str) -> bool {
    units(body, text.clone()).map(|u| u.code).eq(word.bytes().map(u32::from))
}
