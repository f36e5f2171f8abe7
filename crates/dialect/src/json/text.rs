//! Texts: finding their end, their digest, their content, and writing them.
//!
//! The digest of a text is that of its canonical escaped form (the short escapes where JSON demands them, `\u00xx`
//! for other control characters, everything else plain): what most clients write is in that form already and
//! is hashed where it stands, without unescaping prompts that are full of `\n` and `\"`.

use std::borrow::Cow;
use std::ops::Range;

use memchr::memchr2;
use xxhash_rust::xxh3::xxh3_128_with_seed;

use super::{Scan, ScanError, Scanner, seed};

/// Words of eight bytes that are searched one by one before the vectorised search, whose start costs more than
/// the usual distance between two escapes.
const NEAR_WORDS: usize = 4;

impl<'a> Scanner<'a> {
    /// Reads a text, unescaped. Lone surrogates come as their three-byte generalised UTF-8 form.
    pub(crate) fn text(&mut self) -> Scan<Cow<'a, [u8]>> {
        let (range, escaped) = self.text_span()?;
        let raw = self.bytes.get(range).unwrap_or_default();
        Ok(if escaped { Cow::Owned(unescaped(raw)) } else { Cow::Borrowed(raw) })
    }

    /// Reads a text and tells where it stands and whether it has escapes.
    pub(super) fn text_span(&mut self) -> Scan<(Range<usize>, bool)> {
        if !self.take(b'"') {
            return Err(self.syntax());
        }
        let start = self.at;
        let mut escaped = false;
        let mut canonical = true;
        while !self.plain_run()? {
            escaped = true;
            match self.bytes.get(self.at) {
                Some(b'"' | b'\\' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
                Some(b'/') => {
                    canonical = false;
                    self.at += 1;
                }
                Some(b'u') => {
                    canonical = false;
                    self.at += 1;
                    self.hex4()?;
                }
                _ => return Err(self.syntax()),
            }
        }
        let range = start..self.at - 1;
        if self.hashing {
            let raw = self.bytes.get(range.clone()).unwrap_or_default();
            self.last = if canonical {
                xxh3_128_with_seed(raw, seed::TEXT)
            } else {
                self.scratch.clear();
                unescape(raw, &mut self.scratch, push_canonical);
                xxh3_128_with_seed(&self.scratch, seed::TEXT)
            };
        }
        Ok((range, escaped))
    }

    /// Moves behind the next quote (`true`) or backslash (`false`) of a text.
    fn plain_run(&mut self) -> Scan<bool> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some(found) = quote_or_backslash(rest) else {
            return Err(ScanError::Syntax(self.bytes.len()));
        };
        self.at += found + 1;
        Ok(rest.get(found) == Some(&b'"'))
    }

    fn hex4(&mut self) -> Scan {
        for _ in 0..4 {
            if !self.bytes.get(self.at).is_some_and(u8::is_ascii_hexdigit) {
                return Err(self.syntax());
            }
            self.at += 1;
        }
        Ok(())
    }
}

fn quote_or_backslash(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    for _ in 0..NEAR_WORDS {
        let Some(word) = bytes.get(at..).and_then(<[u8]>::first_chunk) else { break };
        let word = u64::from_le_bytes(*word);
        let hits = zero_bytes(word ^ repeated(b'"')) | zero_bytes(word ^ repeated(b'\\'));
        if hits != 0 {
            return Some(at + usize::try_from(hits.trailing_zeros() / 8).unwrap_or_default());
        }
        at += 8;
    }
    memchr2(b'"', b'\\', bytes.get(at..)?).map(|found| at + found)
}

const fn repeated(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

/// A word whose lowest set bit lies in the first byte of `word` that is zero; 0 if none is.
const fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(repeated(0x01)) & !word & repeated(0x80)
}

fn unescaped(raw: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(raw.len());
    unescape(raw, &mut out, push_code_point);
    out
}

/// Appends `raw`, whose escapes are known to be well formed, to `out`, each escape by way of `push`.
fn unescape(raw: &[u8], out: &mut Vec<u8>, push: impl Fn(&mut Vec<u8>, u32)) {
    let mut rest = raw;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        out.extend_from_slice(rest.get(..at).unwrap_or_default());
        rest = rest.get(at + 1..).unwrap_or_default();
        let (code, length) = escape(rest);
        push(out, code);
        rest = rest.get(length..).unwrap_or_default();
    }
    out.extend_from_slice(rest);
}

/// The code point of the escape at the start of `rest` (behind its backslash), and its length.
fn escape(rest: &[u8]) -> (u32, usize) {
    let plain = match rest.first() {
        Some(b'b') => 0x08,
        Some(b'f') => 0x0C,
        Some(b'n') => 0x0A,
        Some(b'r') => 0x0D,
        Some(b't') => 0x09,
        Some(b'u') => {
            let high = hex(rest.get(1..5));
            if let (0xD800..0xDC00, Some(b"\\u")) = (high, rest.get(5..7)) {
                let low = hex(rest.get(7..11));
                if (0xDC00..0xE000).contains(&low) {
                    return (0x1_0000 + ((high - 0xD800) << 10) + (low - 0xDC00), 11);
                }
            }
            return (high, 5);
        }
        Some(byte) => u32::from(*byte),
        None => return (0, 0),
    };
    (plain, 1)
}

fn hex(digits: Option<&[u8]>) -> u32 {
    let digits = digits.unwrap_or_default().iter();
    digits.fold(0, |code, digit| code * 16 + char::from(*digit).to_digit(16).unwrap_or_default())
}

fn push_code_point(out: &mut Vec<u8>, code: u32) {
    if let Some(scalar) = char::from_u32(code) {
        out.extend_from_slice(scalar.encode_utf8(&mut [0; 4]).as_bytes());
    } else {
        let six = |shift: u32| 0x80 | u8::try_from((code >> shift) & 0x3F).unwrap_or_default();
        out.extend_from_slice(&[0xE0 | u8::try_from(code >> 12).unwrap_or_default(), six(6), six(0)]);
    }
}

/// Appends a code point in canonical escaped form.
fn push_canonical(out: &mut Vec<u8>, code: u32) {
    match char::from_u32(code).and_then(|scalar| u8::try_from(scalar).ok()) {
        Some(byte) if must_escape(byte) => push_escaped(out, byte),
        _ => push_code_point(out, code),
    }
}

const fn must_escape(byte: u8) -> bool {
    matches!(byte, b'"' | b'\\' | 0..0x20)
}

fn push_escaped(out: &mut Vec<u8>, byte: u8) {
    let short = match byte {
        b'"' | b'\\' => byte,
        0x08 => b'b',
        0x0C => b'f',
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        _ => {
            out.extend_from_slice(format!("\\u{byte:04x}").as_bytes());
            return;
        }
    };
    out.extend_from_slice(&[b'\\', short]);
}

/// Appends `text` as a JSON string.
pub(crate) fn write_text(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    for byte in text.bytes() {
        if must_escape(byte) {
            push_escaped(out, byte);
        } else {
            out.push(byte);
        }
    }
    out.push(b'"');
}
