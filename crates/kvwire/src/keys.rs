//! The extra keys of blocks, as vLLM publishes them.
//!
//! Versions differ: media as `(id, offset)` or as an id alone; texts bare, or tagged as they go into the hash
//! from 0.31 on (`("lora", name, path)`, `("mm", id, offset)`, `("cache_salt", text)`,
//! `("prompt_embeds", digest)`). What has none of these forms is kept as its bytes: it still tells blocks apart.

use crate::fields::optional_list;
use crate::reader::{DecodeError, Reader, Value};

/// One extra key.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Key<'a> {
    Text(&'a str),
    Media(&'a str, i64),
    Bytes(&'a [u8]),
    /// The msgpack of something else.
    Opaque(&'a [u8]),
    Lora(&'a str),
    Salt(&'a str),
}

/// One list per block, empty where the engine wrote nil.
pub(crate) fn extra_keys<'a>(reader: &mut Reader<'a>) -> Result<Vec<Vec<Key<'a>>>, DecodeError> {
    optional_list(reader, |r| optional_list(r, key))
}

fn key<'a>(reader: &mut Reader<'a>) -> Result<Key<'a>, DecodeError> {
    let at = reader.position();
    match reader.value()? {
        Value::Str(text) => return text_of(text, at).map(Key::Text),
        Value::Bin(bytes) => return Ok(Key::Bytes(bytes)),
        Value::Array(len @ 2..=3) => {
            if let Some(key) = tuple(reader, len)? {
                return Ok(key);
            }
        }
        _ => {}
    }
    reader.rewind(at);
    reader.skip()?;
    Ok(Key::Opaque(reader.since(at)))
}

/// `None` = of no form that we know; the reader then stands anywhere.
fn tuple<'a>(reader: &mut Reader<'a>, len: usize) -> Result<Option<Key<'a>>, DecodeError> {
    let at = reader.position();
    let Value::Str(head) = reader.value()? else { return Ok(None) };
    let head = text_of(head, at)?;
    let second = reader.value()?;
    let third = if len == 3 { Some(reader.value()?) } else { None };
    let offset = |n: i128| i64::try_from(n).ok();
    Ok(match (head, second, third) {
        (id, Value::Int(n), None) => offset(n).map(|n| Key::Media(id, n)),
        ("mm", Value::Str(id), Some(Value::Int(n))) => match offset(n) {
            Some(n) => Some(Key::Media(text_of(id, at)?, n)),
            None => None,
        },
        ("lora", Value::Str(name), Some(Value::Str(_) | Value::Nil)) => Some(Key::Lora(text_of(name, at)?)),
        ("cache_salt", Value::Str(salt), None) => Some(Key::Salt(text_of(salt, at)?)),
        ("prompt_embeds", Value::Bin(digest), None) => Some(Key::Bytes(digest)),
        _ => None,
    })
}

fn text_of(text: &[u8], at: usize) -> Result<&str, DecodeError> {
    std::str::from_utf8(text).map_err(|_| DecodeError::Type(at))
}
