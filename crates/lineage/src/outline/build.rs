//! Takes the parts of a prompt in order and makes segments, or one run of bytes, of them.

use std::collections::VecDeque;
use std::sync::Arc;

use tandem_types::Dialect;
use xxhash_rust::xxh3::xxh3_64;

use super::{Outline, Segment, SegmentKind};
use crate::json::{Digest, Node, exact_digest, text_digest};
use crate::limits::SAID_MAX;
use crate::said::Said;

/// Members that mark where a cache may be cut, and reach no prompt.
pub(super) const MARKS: &[&str] = &["cache_control"];

/// What is made of the parts.
enum Output {
    Segments { list: Vec<Segment>, max: usize, folded: bool },
    Text(Vec<u8>),
}

/// Which of a request's tools are in its prompt.
pub(super) enum Shown {
    All,
    None,
    /// That of this name.
    Only(String),
}

/// Takes parts.
pub(crate) struct Builder {
    output: Output,
    /// Hash of the message's role and names; with and without its ids.
    message: (u64, u64),
    /// The next part is the message's first.
    first: bool,
    calls: Vec<(u32, u64)>,
    said: VecDeque<(u32, Said)>,
    shown: Shown,
    /// Hash of the parameters that templates read.
    style: u64,
    scratch: Vec<u8>,
}

impl Builder {
    /// Makes at most `max` segments.
    pub(crate) const fn segments(max: usize) -> Self {
        Self::new(Output::Segments { list: Vec::new(), max, folded: false })
    }

    /// Makes one run of bytes.
    pub(crate) const fn text() -> Self {
        Self::new(Output::Text(Vec::new()))
    }

    const fn new(output: Output) -> Self {
        Self {
            output,
            message: (0, 0),
            first: true,
            calls: Vec::new(),
            said: VecDeque::new(),
            shown: Shown::All,
            style: 0,
            scratch: Vec::new(),
        }
    }

    pub(crate) fn into_outline(self, dialect: Dialect, model: u64) -> Outline {
        let (list, folded) = match self.output {
            Output::Segments { list, folded, .. } => (list, folded),
            Output::Text(_) => (Vec::new(), false),
        };
        let style = pair(pair(model, dialect as u64), self.style);
        let said = self.said.into();
        Outline { dialect, model, style, segments: Arc::from(list), calls: self.calls, said, folded }
    }

    pub(crate) fn into_text(self) -> Vec<u8> {
        match self.output {
            Output::Text(text) => text,
            Output::Segments { .. } => Vec::new(),
        }
    }

    /// A message begins: its role, name and the like, and the id of the call that it answers.
    pub(super) fn begin(&mut self, names: &[&str], id: &str) {
        self.scratch.clear();
        for name in names {
            self.scratch.extend_from_slice(&(name.len() as u64).to_le_bytes());
            self.scratch.extend_from_slice(name.as_bytes());
        }
        let names = xxh3_64(&self.scratch);
        self.scratch.extend_from_slice(id.as_bytes());
        self.message = (xxh3_64(&self.scratch), names);
        self.first = true;
    }

    /// A message ends. One without parts is a part itself: its role is rendered.
    pub(super) fn end(&mut self, kind: SegmentKind) {
        if self.first {
            self.text_part(kind, "");
        }
    }

    /// Only these tools are in the prompt.
    pub(super) fn show(&mut self, shown: Shown) {
        self.shown = shown;
    }

    /// Whether a tool of this name is in the prompt.
    pub(super) fn shows(&self, name: Option<&str>) -> bool {
        match &self.shown {
            Shown::All => true,
            Shown::None => false,
            Shown::Only(shown) => name == Some(shown.as_str()),
        }
    }

    /// A parameter; `styles` = templates read it.
    pub(super) fn parameter(&mut self, name: &str, value: &Node<'_>, styles: bool) {
        self.begin(&[name], "");
        if styles {
            let digest = value.digest(&[], &mut self.scratch).exact;
            self.style = pair(pair(self.style, self.message.0), digest);
        }
        self.value_part(SegmentKind::Parameter, value, &[]);
    }

    pub(super) fn text_part(&mut self, kind: SegmentKind, text: &str) {
        let digest = if self.is_text() {
            Digest { bytes: text.len() as u64, ..Digest::default() }
        } else if kind.is_models() || kind == SegmentKind::ToolResult {
            // Said once and sent again, never made again: nothing in it changes by itself.
            exact_digest(text.as_bytes())
        } else {
            text_digest(text, &mut self.scratch)
        };
        let begins = kind == SegmentKind::Assistant && self.first;
        self.push(kind, digest, Some(text.as_bytes()));
        if let (true, Output::Segments { list, folded: false, .. }) = (begins, &self.output) {
            if self.said.len() == SAID_MAX {
                self.said.pop_front();
            }
            let index = u32::try_from(list.len().saturating_sub(1)).unwrap_or(u32::MAX);
            self.said.push_back((index, Said::new(text.as_bytes())));
        }
    }

    /// Bytes that stand for nothing but themselves (token ids).
    pub(super) fn bytes_part(&mut self, kind: SegmentKind, bytes: &[u8]) {
        self.push(kind, exact_digest(bytes), Some(bytes));
    }

    pub(super) fn value_part(&mut self, kind: SegmentKind, value: &Node<'_>, leave_out: &[&str]) {
        let digest = value.digest(leave_out, &mut self.scratch);
        self.push(kind, digest, None);
    }

    /// A tool call and its id.
    pub(super) fn call_part(&mut self, value: &Node<'_>, id: Option<&str>, leave_out: &[&str]) {
        self.value_part(SegmentKind::ToolCall, value, leave_out);
        if let (Some(id), Output::Segments { list, folded: false, .. }) = (id, &self.output) {
            let index = u32::try_from(list.len().saturating_sub(1)).unwrap_or(u32::MAX);
            self.calls.push((index, call_id(id)));
        }
    }

    const fn is_text(&self) -> bool {
        matches!(self.output, Output::Text(_))
    }

    fn push(&mut self, kind: SegmentKind, digest: Digest, raw: Option<&[u8]>) {
        let (message, names) = self.message;
        let exact = hash_of(kind, message, self.first, digest.exact);
        let masked = hash_of(kind, names, false, digest.masked);
        self.first = false;
        match &mut self.output {
            Output::Text(text) => {
                // About the length of a template's own words around a part.
                text.extend_from_slice(&hash_of(kind, message, self.first, 0).to_le_bytes());
                match raw {
                    Some(raw) => text.extend_from_slice(raw),
                    None => {
                        let length = usize::try_from(digest.bytes).unwrap_or_default();
                        text.extend(digest.exact.to_le_bytes().iter().cycle().take(length));
                    }
                }
            }
            Output::Segments { list, max, folded } => {
                let bytes = u32::try_from(digest.bytes).unwrap_or(u32::MAX);
                if list.len() < *max {
                    list.push(Segment { hash: exact, masked, bytes, kind });
                } else if let Some(last) = list.last_mut() {
                    *folded = true;
                    last.hash = pair(last.hash, exact);
                    last.masked = pair(last.masked, masked);
                    last.bytes = last.bytes.saturating_add(bytes);
                    last.kind = SegmentKind::Other;
                }
            }
        }
    }
}

/// Hash of a tool call's id. Some harnesses drop what is neither letter nor digit.
pub(crate) fn call_id(id: &str) -> u64 {
    let plain: Vec<u8> = id.bytes().filter(u8::is_ascii_alphanumeric).collect();
    xxh3_64(&plain)
}

fn hash_of(kind: SegmentKind, message: u64, first: bool, content: u64) -> u64 {
    let mut bytes = [0; 18];
    let (head, rest) = bytes.split_at_mut(2);
    head.copy_from_slice(&[kind as u8, u8::from(first)]);
    let (left, right) = rest.split_at_mut(8);
    left.copy_from_slice(&message.to_le_bytes());
    right.copy_from_slice(&content.to_le_bytes());
    xxh3_64(&bytes)
}

/// Hash of two hashes.
pub(crate) fn pair(one: u64, two: u64) -> u64 {
    let mut bytes = [0; 16];
    let (left, right) = bytes.split_at_mut(8);
    left.copy_from_slice(&one.to_le_bytes());
    right.copy_from_slice(&two.to_le_bytes());
    xxh3_64(&bytes)
}
