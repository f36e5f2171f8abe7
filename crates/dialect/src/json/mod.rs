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

mod fields;
mod text;

use xxhash_rust::xxh3::{xxh3_128, xxh3_128_with_seed};

use fields::parse_f64;
pub(crate) use text::write_text;

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
            Kind::Text => self.text_span().map(drop),
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
