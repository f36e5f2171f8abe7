//! A borrowed tree of a JSON text, and digests of its values in canonical form.
//!
//! - I-LIN-JSON-1 equal digests for values that differ only in white space, escapes, order of members, or members
//!   that a later one of the same name replaces. I-LIN-JSON-2 at most [`VALUES_MAX`] values and 127 levels: memory
//!   is bounded by that and by the length of the text.
//! - Lone surrogates (`"\ud83d"`, which JavaScript harnesses write when they cut a text inside an emoji) are read
//!   as U+FFFD: `serde_json` refuses them, engines do not.
//! - `1` and `1.0` differ, since templates print them differently.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::limits::VALUES_MAX;
use crate::mask::mask;
use crate::outline::OutlineError;

/// A JSON value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Node<'a> {
    Null,
    Bool(bool),
    /// Digest of a number, and about how many bytes it is written in.
    Number(u64, u8),
    Text(Cow<'a, str>),
    List(Vec<Node<'a>>),
    Object(Vec<(Cow<'a, str>, Node<'a>)>),
}

/// What is kept of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Digest {
    pub(crate) exact: u64,
    /// With numbers, times, dates and ids taken out.
    pub(crate) masked: u64,
    /// Bytes of texts, names and numbers.
    pub(crate) bytes: u64,
}

mod seed {
    pub(super) const TEXT: u64 = 1;
    pub(super) const INTEGER: u64 = 2;
    pub(super) const FLOAT: u64 = 3;
    pub(super) const WORD: u64 = 4;
    pub(super) const LIST: u64 = 5;
    pub(super) const OBJECT: u64 = 6;
    pub(super) const MASKED: u64 = 7;
}

/// Reads a text.
pub(crate) fn parse(text: &str) -> Result<Node<'_>, OutlineError> {
    let left = Cell::new(VALUES_MAX);
    let mut reader = serde_json::Deserializer::from_str(text.trim_start_matches('\u{feff}'));
    let read = Reader { left: &left }.deserialize(&mut reader);
    match read.and_then(|node| reader.end().map(|()| node)) {
        Ok(node) => Ok(node),
        Err(_) if left.get() == 0 => Err(OutlineError::TooManyValues),
        Err(error) => Err(OutlineError::NotJson { line: error.line(), column: error.column() }),
    }
}

/// The text with each escape of a lone surrogate replaced; `None` = it has none.
pub(crate) fn without_lone_surrogates(text: &str) -> Option<String> {
    let mut out = String::new();
    let mut copied = 0;
    let mut at = 0;
    while let Some(found) = memchr::memchr(b'\\', text.as_bytes().get(at..).unwrap_or_default()) {
        let escape = at + found;
        at = escape + 2;
        match surrogate(text, escape) {
            Some(0xd800..=0xdbff) if matches!(surrogate(text, escape + 6), Some(0xdc00..=0xdfff)) => {
                at = escape + 12;
            }
            Some(_) => {
                out.push_str(text.get(copied..escape)?);
                out.push_str("\\ufffd");
                at = escape + 6;
                copied = at;
            }
            None => {}
        }
    }
    if copied == 0 {
        return None;
    }
    out.push_str(text.get(copied..)?);
    Some(out)
}

/// The surrogate that is escaped at `at`.
fn surrogate(text: &str, at: usize) -> Option<u32> {
    let digits = text.get(at..at + 6)?.strip_prefix("\\u")?;
    u32::from_str_radix(digits, 16).ok().filter(|code| (0xd800..=0xdfff).contains(code))
}

impl<'a> Node<'a> {
    /// The member of this name: the last one, as the engines read it. `null` counts as absent.
    pub(crate) fn get(&self, name: &str) -> Option<&Self> {
        let Self::Object(members) = self else { return None };
        let (_, value) = members.iter().rev().find(|(key, _)| key == name)?;
        (*value != Self::Null).then_some(value)
    }

    /// The text of this member.
    pub(crate) fn text_of(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(Self::as_text)
    }

    pub(crate) fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    pub(crate) fn items(&self) -> &[Self] {
        if let Self::List(items) = self { items } else { &[] }
    }

    /// Digest of the value without the members named in `leave_out`, where it is an object.
    pub(crate) fn digest(&self, leave_out: &[&str], scratch: &mut Vec<u8>) -> Digest {
        match self {
            Self::Null => word(b"null"),
            Self::Bool(true) => word(b"true"),
            Self::Bool(false) => word(b"false"),
            Self::Number(exact, bytes) => Digest { exact: *exact, masked: 0, bytes: u64::from(*bytes) },
            Self::Text(text) => text_digest(text, scratch),
            Self::List(items) => combine(
                seed::LIST,
                items.iter().map(|item| item.digest(&[], scratch)),
                scratch_len(items.len()),
            ),
            Self::Object(members) => {
                let mut parts: Vec<(u64, usize, Digest)> = Vec::with_capacity(members.len());
                for (index, (key, value)) in members.iter().enumerate() {
                    if leave_out.contains(&&**key) {
                        continue;
                    }
                    let name = xxh3_64_with_seed(key.as_bytes(), seed::TEXT);
                    let mut digest = value.digest(&[], scratch);
                    digest.bytes += key.len() as u64;
                    parts.push((name, index, digest));
                }
                // Of several members with one name the last one stays.
                parts.sort_unstable_by_key(|(name, index, _)| (*name, std::cmp::Reverse(*index)));
                parts.dedup_by_key(|(name, ..)| *name);
                let named = |name: &u64| Digest { exact: *name, masked: *name, bytes: 0 };
                let count = scratch_len(parts.len() * 2);
                combine(
                    seed::OBJECT,
                    parts.iter().flat_map(|(name, _, digest)| [named(name), *digest]),
                    count,
                )
            }
        }
    }
}

const fn scratch_len(values: usize) -> usize {
    values.saturating_mul(8)
}

fn combine(seed: u64, parts: impl Iterator<Item = Digest>, length: usize) -> Digest {
    let (mut exact, mut masked) = (Vec::with_capacity(length), Vec::with_capacity(length));
    let mut bytes = 0_u64;
    for part in parts {
        exact.extend_from_slice(&part.exact.to_le_bytes());
        masked.extend_from_slice(&part.masked.to_le_bytes());
        bytes = bytes.saturating_add(part.bytes);
    }
    Digest { exact: xxh3_64_with_seed(&exact, seed), masked: xxh3_64_with_seed(&masked, seed), bytes }
}

fn word(word: &[u8]) -> Digest {
    let hash = xxh3_64_with_seed(word, seed::WORD);
    Digest { exact: hash, masked: hash, bytes: word.len() as u64 }
}

/// Digest of a text.
pub(crate) fn text_digest(text: &str, scratch: &mut Vec<u8>) -> Digest {
    let exact = xxh3_64_with_seed(text.as_bytes(), seed::TEXT);
    let masked =
        if mask(text.as_bytes(), scratch) { xxh3_64_with_seed(scratch, seed::MASKED) } else { exact };
    Digest { exact, masked, bytes: text.len() as u64 }
}

/// Digest of bytes in which nothing is masked.
pub(crate) fn exact_digest(bytes: &[u8]) -> Digest {
    let exact = xxh3_64_with_seed(bytes, seed::TEXT);
    Digest { exact, masked: exact, bytes: bytes.len() as u64 }
}

#[derive(Clone, Copy)]
struct Reader<'b> {
    left: &'b Cell<usize>,
}

impl Reader<'_> {
    fn count<E: Error>(self) -> Result<(), E> {
        match self.left.get().checked_sub(1) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => Err(E::custom("too many values")),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Node<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node<'de>, D::Error> {
        self.count()?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Node<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a json value")
    }

    fn visit_unit<E>(self) -> Result<Node<'de>, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node<'de>, E> {
        Ok(Node::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node<'de>, E> {
        Ok(integer(i128::from(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node<'de>, E> {
        Ok(integer(i128::from(value)))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node<'de>, E> {
        Ok(Node::Number(xxh3_64_with_seed(&value.to_bits().to_le_bytes(), seed::FLOAT), 8))
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Node<'de>, E> {
        Ok(Node::Text(Cow::Borrowed(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node<'de>, E> {
        Ok(Node::Text(Cow::Owned(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node<'de>, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Node<'de>, A::Error> {
        let mut object = Vec::new();
        while let Some(key) = members.next_key_seed(Name)? {
            object.push((key, members.next_value_seed(self)?));
        }
        Ok(Node::Object(object))
    }
}

fn integer(value: i128) -> Node<'static> {
    let digits = value.unsigned_abs().checked_ilog10().unwrap_or_default() + 1;
    let hash = xxh3_64_with_seed(&value.to_le_bytes(), seed::INTEGER);
    Node::Number(hash, u8::try_from(digits).unwrap_or(u8::MAX))
}

/// The name of a member.
struct Name;

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Cow<'de, str>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Name {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Borrowed(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(value.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(text: &str) -> Digest {
        parse(text).expect("json").digest(&[], &mut Vec::new())
    }

    /// I-LIN-JSON-1.
    #[test]
    fn the_form_of_a_value_does_not_count_its_content_does() {
        let one = digest(r#"{"a":1,"b":["x",null,true],"c":"\u00e9\n"}"#);
        assert_eq!(one, digest("{ \"c\":\"é\\n\", \"b\" : [\"x\", null ,true],\n\"a\":1}"));
        assert_eq!(one, digest(r#"{"a":7,"b":["x",null,true],"c":"\u00e9\n","a":1}"#));
        for other in [
            r#"{"a":1.0,"b":["x",null,true],"c":"\u00e9\n"}"#,
            r#"{"a":1,"b":[null,"x",true],"c":"\u00e9\n"}"#,
            r#"{"a":1,"b":["x",null,true],"c":"\u00e9 \n"}"#,
            r#"{"a":1,"b":["x",null,true]}"#,
            r#"{"a":1,"b":["x",null,true],"c":"\u00e9\n","d":{}}"#,
        ] {
            assert_ne!(one.exact, digest(other).exact, "{other}");
        }
    }

    #[test]
    fn only_the_masked_digest_ignores_numbers() {
        let (one, two) = (digest(r#"{"at":"12:30","n":5}"#), digest(r#"{"at":"23:59","n":6}"#));
        assert_eq!(one.masked, two.masked);
        assert_ne!(one.exact, two.exact);
        assert_ne!(one.masked, digest(r#"{"on":"12:30","n":5}"#).masked);
    }

    #[test]
    fn lone_surrogates_are_replaced_and_pairs_kept() {
        assert_eq!(without_lone_surrogates(r#"["\ud83d\ude00","\\ud83d"]"#), None);
        assert_eq!(
            without_lone_surrogates(r#"["\ud83d","\ude00\ud83d\ude00","\ud83dx"]"#).as_deref(),
            Some(r#"["\ufffd","\ufffd\ud83d\ude00","\ufffdx"]"#)
        );
    }

    /// I-LIN-JSON-2.
    #[test]
    fn too_many_values_and_too_many_levels_are_refused() {
        let many = format!("[{}0]", "0,".repeat(VALUES_MAX));
        assert_eq!(parse(&many), Err(OutlineError::TooManyValues));
        let deep = "[".repeat(100_000);
        assert!(matches!(parse(&deep), Err(OutlineError::NotJson { .. })));
    }
}
