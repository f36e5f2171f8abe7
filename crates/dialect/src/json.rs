//! A forward-only reader of JSON text that builds nothing.
//!
//! - Purpose: pick a few facts out of bodies of up to tens of megabytes at memory-bandwidth speed, with the byte
//!   positions of values (for edits) and, on request, a digest of the whole text in canonical form.
//! - Inputs: bytes. Outputs: borrowed scalars, positions, digest.
//! - Invariants: I-DIA-JSON-1 whatever `serde_json` accepts up to [`JSON_DEPTH_MAX`] levels is accepted.
//!   I-DIA-JSON-2 memory is bounded by depth, not by length: at most [`DIGEST_UNORDERED_MEMBERS_MAX`] entries per
//!   open object, plus one unescaped text. I-DIA-JSON-3 equal digests for texts that differ only in white
//!   space, escapes, the order of an object's members (the first [`DIGEST_UNORDERED_MEMBERS_MAX`] of them) or
//!   members that a later one of the same name replaces.
//! - Wider than the standard, because engines in Python are and refusing is their business: `NaN`, `Infinity`,
//!   `-Infinity`, raw control characters in texts, and lone surrogates (`"\ud83d"`, which JavaScript harnesses
//!   write when they cut a text inside an emoji; `serde_json` refuses them).
//! - Numbers in the digest: an integer literal counts by its digits, any other literal by the double that it
//!   denotes. `1.0`, `1.00` and `10e-1` are equal; `1` and `1.0` are not, since a chat template prints them
//!   differently and so makes other prompts of them.
//! - Not a cryptographic hash: who makes two bodies collide confuses only calls of their own program.

use std::borrow::Cow;

use memchr::memchr2;
use xxhash_rust::xxh3::{xxh3_128, xxh3_128_with_seed};

use crate::limits::{DIGEST_UNORDERED_MEMBERS_MAX, JSON_DEPTH_MAX};

/// Why reading stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScanError {
    /// Not JSON, at this offset.
    Syntax(usize),
    /// More than [`JSON_DEPTH_MAX`] levels.
    TooDeep,
}

pub(crate) type Scan<T = ()> = Result<T, ScanError>;

/// What kind of value comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Null,
    Bool,
    Number,
    Text,
    Array,
    Object,
}

/// Seeds that keep equal bytes of different kinds apart.
mod seed {
    pub(super) const TEXT: u64 = 1;
    pub(super) const INTEGER: u64 = 2;
    pub(super) const FLOAT: u64 = 3;
    pub(super) const WORD: u64 = 4;
    pub(super) const ITEM: u64 = 5;
    pub(super) const ARRAY: u64 = 6;
    pub(super) const MEMBER: u64 = 7;
    pub(super) const OBJECT: u64 = 8;
    pub(super) const ORDERED_MEMBER: u64 = 9;
}

/// How far a text is searched byte by byte before the vectorised search starts: escapes come in dense runs.
const NEAR: usize = 16;

/// The reader. Each method that reads a value reads exactly one and leaves its digest in [`Self::digest`].
#[derive(Debug)]
pub(crate) struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: usize,
    hashing: bool,
    last: u128,
    keys: Vec<u64>,
    parts: Vec<u128>,
    scratch: Vec<u8>,
}

impl<'a> Scanner<'a> {
    /// A reader of `bytes`, computing digests if `hashing`.
    pub(crate) const fn new(bytes: &'a [u8], hashing: bool) -> Self {
        Self {
            bytes,
            at: 0,
            depth: 0,
            hashing,
            last: 0,
            keys: Vec::new(),
            parts: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// Offset of the next byte.
    pub(crate) const fn position(&self) -> usize {
        self.at
    }

    /// Digest of the value read last.
    pub(crate) const fn digest(&self) -> u128 {
        self.last
    }

    /// Skips a byte order mark, which Python's reader takes.
    pub(crate) fn byte_order_mark(&mut self) {
        if self.bytes[self.at..].starts_with(b"\xEF\xBB\xBF") {
            self.at += 3;
        }
    }

    /// Checks that nothing but white space follows.
    pub(crate) fn end(&mut self) -> Scan {
        self.space();
        if self.at == self.bytes.len() { Ok(()) } else { Err(self.syntax()) }
    }

    /// Moves to the next value and tells its kind.
    pub(crate) fn peek(&mut self) -> Scan<Kind> {
        self.space();
        Ok(match self.bytes.get(self.at) {
            Some(b'"') => Kind::Text,
            Some(b'{') => Kind::Object,
            Some(b'[') => Kind::Array,
            Some(b't' | b'f') => Kind::Bool,
            Some(b'n') => Kind::Null,
            Some(b'-' | b'0'..=b'9' | b'N' | b'I') => Kind::Number,
            _ => return Err(self.syntax()),
        })
    }

    /// Reads any value.
    pub(crate) fn skip(&mut self) -> Scan {
        match self.peek()? {
            Kind::Text => self.text_unwanted(),
            Kind::Object => self.object(|scan, _| scan.skip()),
            Kind::Array => self.array(|scan, _| scan.skip()),
            Kind::Number => self.number().map(drop),
            Kind::Bool | Kind::Null => self.word().map(drop),
        }
    }

    /// Reads an object; `member` must read exactly one value.
    pub(crate) fn object(&mut self, mut member: impl FnMut(&mut Self, &[u8]) -> Scan) -> Scan {
        self.open(b'{')?;
        let base = self.keys.len();
        let mut sum = 0_u128;
        let mut count = 0_u64;
        self.space();
        let mut more = !self.take(b'}');
        while more {
            self.space();
            let key = self.text()?;
            self.space();
            if !self.take(b':') {
                return Err(self.syntax());
            }
            member(self, &key)?;
            if self.hashing {
                self.add_member(base, &key, &mut sum, &mut count);
            }
            more = self.another(b'}')?;
        }
        self.keys.truncate(base);
        self.parts.truncate(base);
        self.depth -= 1;
        if self.hashing {
            self.last = pair(seed::OBJECT, sum, u128::from(count));
        }
        Ok(())
    }

    /// Reads an array; `item` gets the index and must read exactly one value.
    pub(crate) fn array(&mut self, mut item: impl FnMut(&mut Self, usize) -> Scan) -> Scan {
        self.open(b'[')?;
        let mut chain = 0_u128;
        let mut index = 0;
        self.space();
        let mut more = !self.take(b']');
        while more {
            item(self, index)?;
            index += 1;
            if self.hashing {
                chain = pair(seed::ITEM, chain, self.last);
            }
            more = self.another(b']')?;
        }
        self.depth -= 1;
        if self.hashing {
            self.last = pair(seed::ARRAY, chain, u128::try_from(index).unwrap_or_default());
        }
        Ok(())
    }

    /// Reads a text, unescaped. Lone surrogates come as their three-byte generalised UTF-8 form.
    pub(crate) fn text(&mut self) -> Scan<Cow<'a, [u8]>> {
        if !self.take(b'"') {
            return Err(self.syntax());
        }
        let start = self.at;
        let text = if self.plain_run()? {
            Cow::Borrowed(&self.bytes[start..self.at - 1])
        } else {
            let mut out = self.bytes[start..self.at - 1].to_vec();
            self.rest_unescaped(&mut out)?;
            Cow::Owned(out)
        };
        if self.hashing {
            self.last = xxh3_128_with_seed(&text, seed::TEXT);
        }
        Ok(text)
    }

    /// Reads a text that nobody wants to see.
    fn text_unwanted(&mut self) -> Scan {
        self.at += 1;
        let start = self.at;
        if self.plain_run()? {
            if self.hashing {
                self.last = xxh3_128_with_seed(&self.bytes[start..self.at - 1], seed::TEXT);
            }
            return Ok(());
        }
        if !self.hashing {
            return self.rest_ignored();
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        scratch.extend_from_slice(&self.bytes[start..self.at - 1]);
        let read = self.rest_unescaped(&mut scratch);
        self.last = xxh3_128_with_seed(&scratch, seed::TEXT);
        self.scratch = scratch;
        read
    }

    /// Moves behind the next quote (`true`) or backslash (`false`) of a text.
    fn plain_run(&mut self) -> Scan<bool> {
        let rest = &self.bytes[self.at..];
        let near = rest.iter().take(NEAR).position(|byte| matches!(byte, b'"' | b'\\'));
        let found = near.or_else(|| {
            let far = rest.get(NEAR..)?;
            memchr2(b'"', b'\\', far).map(|at| at + NEAR)
        });
        match found {
            Some(at) => {
                self.at += at + 1;
                Ok(rest[at] == b'"')
            }
            None => Err(ScanError::Syntax(self.bytes.len())),
        }
    }

    /// Reads on behind a backslash to the end of the text and appends it to `out`, unescaped.
    fn rest_unescaped(&mut self, out: &mut Vec<u8>) -> Scan {
        loop {
            self.escape(out)?;
            let start = self.at;
            let over = self.plain_run()?;
            out.extend_from_slice(&self.bytes[start..self.at - 1]);
            if over {
                return Ok(());
            }
        }
    }

    /// Reads on behind a backslash to the end of the text.
    fn rest_ignored(&mut self) -> Scan {
        let mut ignored = Vec::new();
        loop {
            self.escape(&mut ignored)?;
            ignored.clear();
            if self.plain_run()? {
                return Ok(());
            }
        }
    }

    /// Reads an escape behind its backslash.
    fn escape(&mut self, out: &mut Vec<u8>) -> Scan {
        let plain = match self.bytes.get(self.at) {
            Some(byte @ (b'"' | b'\\' | b'/')) => *byte,
            Some(b'b') => 0x08,
            Some(b'f') => 0x0C,
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b't') => b'\t',
            Some(b'u') => {
                self.at += 1;
                return self.unicode_escape(out);
            }
            _ => return Err(self.syntax()),
        };
        self.at += 1;
        out.push(plain);
        Ok(())
    }

    fn unicode_escape(&mut self, out: &mut Vec<u8>) -> Scan {
        let mut code = self.hex4()?;
        if (0xD800..0xDC00).contains(&code) && self.bytes[self.at..].starts_with(b"\\u") {
            let back = self.at;
            self.at += 2;
            let low = self.hex4()?;
            if (0xDC00..0xE000).contains(&low) {
                code = 0x1_0000 + ((code - 0xD800) << 10) + (low - 0xDC00);
            } else {
                self.at = back;
            }
        }
        push_code_point(out, code);
        Ok(())
    }

    fn hex4(&mut self) -> Scan<u32> {
        let mut code = 0;
        for _ in 0..4 {
            let digit = self.bytes.get(self.at).and_then(|byte| char::from(*byte).to_digit(16));
            let Some(digit) = digit else { return Err(self.syntax()) };
            code = code * 16 + digit;
            self.at += 1;
        }
        Ok(code)
    }

    /// Reads a number and hands out its literal.
    pub(crate) fn number(&mut self) -> Scan<&'a [u8]> {
        let start = self.at;
        let negative = self.take(b'-');
        match self.bytes.get(self.at) {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits()?,
            Some(b'I') => return self.not_finite(start, b"Infinity", negative),
            Some(b'N') if !negative => return self.not_finite(start, b"NaN", false),
            _ => return Err(self.syntax()),
        }
        let mut integer = true;
        if self.take(b'.') {
            integer = false;
            self.digits()?;
        }
        if self.take(b'e') || self.take(b'E') {
            integer = false;
            if !self.take(b'+') {
                self.take(b'-');
            }
            self.digits()?;
        }
        let literal = &self.bytes[start..self.at];
        if self.hashing {
            self.last = match literal {
                b"-0" => xxh3_128_with_seed(b"0", seed::INTEGER),
                _ if integer => xxh3_128_with_seed(literal, seed::INTEGER),
                _ => float_digest(parse_f64(literal)),
            };
        }
        Ok(literal)
    }

    fn not_finite(&mut self, start: usize, name: &[u8], negative: bool) -> Scan<&'a [u8]> {
        if !self.bytes[self.at..].starts_with(name) {
            return Err(self.syntax());
        }
        self.at += name.len();
        self.last = float_digest(match (name, negative) {
            (b"NaN", _) => f64::NAN,
            (_, true) => f64::NEG_INFINITY,
            (_, false) => f64::INFINITY,
        });
        Ok(&self.bytes[start..self.at])
    }

    fn digits(&mut self) -> Scan {
        let count = self.bytes[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if count == 0 {
            self.at = self.at.min(self.bytes.len());
            return Err(self.syntax());
        }
        self.at += count;
        Ok(())
    }

    /// Reads `true`, `false` or `null` (`None`).
    pub(crate) fn word(&mut self) -> Scan<Option<bool>> {
        let (word, value): (&[u8], _) = match self.bytes.get(self.at) {
            Some(b't') => (b"true", Some(true)),
            Some(b'f') => (b"false", Some(false)),
            _ => (b"null", None),
        };
        if !self.bytes[self.at..].starts_with(word) {
            return Err(self.syntax());
        }
        self.at += word.len();
        if self.hashing {
            self.last = xxh3_128_with_seed(word, seed::WORD);
        }
        Ok(value)
    }

    fn add_member(&mut self, base: usize, key: &[u8], sum: &mut u128, count: &mut u64) {
        let key = xxh3_128(key);
        let part = pair(seed::MEMBER, key, self.last);
        let [short, ..] = halves(key);
        if let Some(at) = self.keys[base..].iter().position(|known| *known == short) {
            // The last of several members with one name is the one that counts, as in Python and JavaScript.
            let replaced = std::mem::replace(&mut self.parts[base + at], part);
            *sum = sum.wrapping_sub(replaced).wrapping_add(part);
            return;
        }
        *count += 1;
        if self.keys.len() - base < DIGEST_UNORDERED_MEMBERS_MAX {
            self.keys.push(short);
            self.parts.push(part);
            *sum = sum.wrapping_add(part);
        } else {
            *sum = pair(seed::ORDERED_MEMBER, *sum, part);
        }
    }

    fn open(&mut self, bracket: u8) -> Scan {
        self.space();
        if !self.take(bracket) {
            return Err(self.syntax());
        }
        self.depth += 1;
        if self.depth > JSON_DEPTH_MAX { Err(ScanError::TooDeep) } else { Ok(()) }
    }

    /// After a member or item: is there another one (`true`), or does `bracket` close?
    fn another(&mut self, bracket: u8) -> Scan<bool> {
        self.space();
        if self.take(b',') {
            Ok(true)
        } else if self.take(bracket) {
            Ok(false)
        } else {
            Err(self.syntax())
        }
    }

    fn space(&mut self) {
        while matches!(self.bytes.get(self.at), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> bool {
        let there = self.bytes.get(self.at) == Some(&byte);
        self.at += usize::from(there);
        there
    }

    const fn syntax(&self) -> ScanError {
        ScanError::Syntax(self.at)
    }
}

/// Lenient readers of single fields: a value of another type is read over and gives `None`.
impl<'a> Scanner<'a> {
    /// A text.
    pub(crate) fn text_or_skip(&mut self) -> Scan<Option<Cow<'a, [u8]>>> {
        if self.peek()? == Kind::Text { self.text().map(Some) } else { self.skip().map(|()| None) }
    }

    /// A text of valid UTF-8.
    pub(crate) fn string(&mut self) -> Scan<Option<String>> {
        Ok(self.text_or_skip()?.and_then(|text| String::from_utf8(text.into_owned()).ok()))
    }

    /// A whole number that is not negative; `16.0` and `"16"` count, as they do for the engines' validators.
    pub(crate) fn unsigned(&mut self) -> Scan<Option<u64>> {
        match self.peek()? {
            Kind::Number => self.number().map(parse_unsigned),
            Kind::Text => self.text().map(|text| parse_unsigned(text.trim_ascii())),
            _ => self.skip().map(|()| None),
        }
    }

    /// A truth value as the engines' validators (pydantic) read it: also 0, 1 and words such as "yes".
    pub(crate) fn truth(&mut self) -> Scan<Option<bool>> {
        match self.peek()? {
            Kind::Bool | Kind::Null => self.word(),
            Kind::Number => Ok(match parse_f64(self.number()?) {
                0.0 => Some(false),
                1.0 => Some(true),
                _ => None,
            }),
            Kind::Text => Ok(match &*self.text()?.to_ascii_lowercase() {
                b"0" | b"off" | b"f" | b"false" | b"n" | b"no" => Some(false),
                b"1" | b"on" | b"t" | b"true" | b"y" | b"yes" => Some(true),
                _ => None,
            }),
            _ => self.skip().map(|()| None),
        }
    }

    /// The text at `path` inside objects.
    pub(crate) fn text_at(&mut self, path: &[&[u8]]) -> Scan<Option<Cow<'a, [u8]>>> {
        let [name, rest @ ..] = path else { return self.text_or_skip() };
        let mut found = None;
        self.members(|scan, key| {
            if key != *name {
                return scan.skip();
            }
            found = scan.text_at(rest)?;
            Ok(())
        })?;
        Ok(found)
    }

    /// The members of an object; any other value is read over.
    pub(crate) fn members(&mut self, member: impl FnMut(&mut Self, &[u8]) -> Scan) -> Scan {
        if self.peek()? == Kind::Object { self.object(member) } else { self.skip() }
    }

    /// The items of an array; any other value is read over.
    pub(crate) fn items(&mut self, item: impl FnMut(&mut Self, usize) -> Scan) -> Scan {
        if self.peek()? == Kind::Array { self.array(item) } else { self.skip() }
    }

    /// A list of token ids, at most `max`; `None` when it is anything else.
    pub(crate) fn token_ids(&mut self, max: usize) -> Scan<Option<Vec<u32>>> {
        if self.peek()? != Kind::Array {
            return self.skip().map(|()| None);
        }
        let mut tokens = Some(Vec::new());
        self.array(|scan, _| scan.token_id(&mut tokens, max))?;
        Ok(tokens)
    }

    /// One item of a list of token ids; spoils the list when it is none.
    pub(crate) fn token_id(&mut self, tokens: &mut Option<Vec<u32>>, max: usize) -> Scan {
        let token = match self.peek()? {
            Kind::Number => self.number().map(parse_unsigned)?,
            _ => self.skip().map(|()| None)?,
        };
        match (tokens.as_mut(), token.and_then(|token| u32::try_from(token).ok())) {
            (Some(list), Some(token)) if list.len() < max => list.push(token),
            _ => *tokens = None,
        }
        Ok(())
    }
}

fn parse_f64(literal: &[u8]) -> f64 {
    std::str::from_utf8(literal).ok().and_then(|text| text.parse().ok()).unwrap_or(f64::NAN)
}

fn parse_unsigned(literal: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(literal).ok()?;
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    let (whole, zeros) = text.split_once('.')?;
    (!zeros.is_empty() && zeros.bytes().all(|byte| byte == b'0')).then(|| whole.parse().ok()).flatten()
}

fn float_digest(value: f64) -> u128 {
    xxh3_128_with_seed(&value.to_bits().to_le_bytes(), seed::FLOAT)
}

/// Digest of two digests.
fn pair(seed: u64, first: u128, second: u128) -> u128 {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&first.to_le_bytes());
    bytes[16..].copy_from_slice(&second.to_le_bytes());
    xxh3_128_with_seed(&bytes, seed)
}

/// The low and the high half.
fn halves(digest: u128) -> [u64; 2] {
    let bytes = digest.to_le_bytes();
    let half = |from: usize| {
        let mut half = [0; 8];
        half.copy_from_slice(&bytes[from..from + 8]);
        u64::from_le_bytes(half)
    };
    [half(0), half(8)]
}

fn push_code_point(out: &mut Vec<u8>, code: u32) {
    if let Some(scalar) = char::from_u32(code) {
        out.extend_from_slice(scalar.encode_utf8(&mut [0; 4]).as_bytes());
    } else {
        let six = |shift: u32| 0x80 | u8::try_from((code >> shift) & 0x3F).unwrap_or_default();
        out.extend_from_slice(&[0xE0 | u8::try_from(code >> 12).unwrap_or_default(), six(6), six(0)]);
    }
}

/// Appends `text` as a JSON string.
pub(crate) fn write_text(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let mut from = 0;
    for (at, byte) in text.bytes().enumerate() {
        let short = match byte {
            b'"' => b"\\\"".as_slice(),
            b'\\' => b"\\\\",
            b'\n' => b"\\n",
            b'\r' => b"\\r",
            b'\t' => b"\\t",
            0..0x20 => b"",
            _ => continue,
        };
        out.extend_from_slice(&text.as_bytes()[from..at]);
        if short.is_empty() {
            out.extend_from_slice(format!("\\u{byte:04x}").as_bytes());
        } else {
            out.extend_from_slice(short);
        }
        from = at + 1;
    }
    out.extend_from_slice(&text.as_bytes()[from..]);
    out.push(b'"');
}
