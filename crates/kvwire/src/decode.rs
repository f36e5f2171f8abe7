//! Decoding of event batches: the map layout (vLLM from 0.24, SGLang from 0.5.20) and the tagged arrays of
//! older releases, mixed as they come.

use std::sync::Arc;

use tandem_types::{BlockRemoved, BlockStored, KvBatch, KvEvent, Tier};

use crate::reader::{DecodeError, Reader, Value};

/// A decoded batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    /// The events that are of use.
    pub batch: KvBatch,
    /// Per event of `batch`: the engine's cache group, where it says one. The same hash may lie in several
    /// groups of a hybrid model; one removed from one group may remain in another.
    pub groups: Vec<Option<u32>>,
    /// What was left out.
    pub skipped: Skipped,
}

/// Events left out of a batch, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Skipped {
    /// Types that we do not know.
    pub unknown_type: u32,
    /// Known types with values of the wrong type or a medium that we do not know.
    pub malformed: u32,
    /// Stores without content (`block_size` 0 or no tokens), as offloading tiers announce them.
    pub placeholder: u32,
    /// Stores of cache groups that do not hold the whole prefix (sliding window, mamba, ...).
    pub partial_group: u32,
}

impl Skipped {
    /// All of them.
    #[must_use]
    pub const fn total(self) -> u32 {
        self.unknown_type
            .saturating_add(self.malformed)
            .saturating_add(self.placeholder)
            .saturating_add(self.partial_group)
    }
}

/// Decodes the payload of one message.
///
/// # Errors
/// [`DecodeError`] when it is not msgpack or not a batch at all; single events never are a reason.
pub fn decode(payload: &[u8]) -> Result<Decoded, DecodeError> {
    let mut reader = Reader::new(payload);
    let len = reader.array()?;
    if len < 2 {
        return Err(DecodeError::Type(0));
    }
    let timestamp = timestamp(&mut reader)?;
    let count = reader.array()?;
    let mut events = Vec::with_capacity(count.min(reader.remaining()).min(1024));
    let mut groups = Vec::with_capacity(events.capacity());
    let mut skipped = Skipped::default();
    for _ in 0..count {
        let start = reader.position();
        match event(&mut reader) {
            Ok(Parsed::Event(event, group)) => {
                events.push(event);
                groups.push(group);
            }
            Ok(Parsed::Unknown) => skipped.unknown_type += 1,
            Ok(Parsed::Placeholder) => skipped.placeholder += 1,
            Ok(Parsed::PartialGroup) => skipped.partial_group += 1,
            Err(DecodeError::Type(_)) => {
                skipped.malformed += 1;
                reader.rewind(start);
                reader.skip()?;
            }
            Err(error) => return Err(error),
        }
    }
    let rank = if len > 2 { reader.uint()? } else { None };
    Ok(Decoded { batch: KvBatch { timestamp, events, rank }, groups, skipped })
}

fn timestamp(reader: &mut Reader<'_>) -> Result<f64, DecodeError> {
    let at = reader.position();
    match reader.value()? {
        Value::Float(seconds) => Ok(seconds),
        #[expect(clippy::cast_precision_loss, reason = "seconds since the epoch are far below 2^53")]
        Value::Int(seconds) => Ok(seconds as f64),
        _ => Err(DecodeError::Type(at)),
    }
}

enum Parsed {
    Event(KvEvent, Option<u32>),
    Unknown,
    Placeholder,
    PartialGroup,
}

/// Fields of all event types and layouts, as far as they are of use.
#[derive(Default)]
struct Fields<'a> {
    hashes: Option<Vec<u64>>,
    parent: Option<u64>,
    tokens: Option<Vec<u32>>,
    block_size: Option<u32>,
    medium: Option<&'a str>,
    lora: Option<&'a str>,
    extra_keys: Vec<Option<Vec<String>>>,
    salt: Option<&'a str>,
    group: Option<u32>,
    spec_kind: Option<&'a str>,
    remote: bool,
    session: Option<&'a str>,
}

/// Names of array elements after the tag, in order. An array of any length is a prefix of these.
const STORED: [&str; 11] = [
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
];
const REMOVED: [&str; 3] = ["block_hashes", "medium", "group_idx"];

fn event(reader: &mut Reader<'_>) -> Result<Parsed, DecodeError> {
    let start = reader.position();
    match reader.value()? {
        Value::Array(len) if len > 0 => tagged_array(reader, len - 1),
        Value::Map(len) => map(reader, len),
        _ => Err(DecodeError::Type(start)),
    }
}

fn tagged_array(reader: &mut Reader<'_>, len: usize) -> Result<Parsed, DecodeError> {
    let at = reader.position();
    let tag = reader.text()?.ok_or(DecodeError::Type(at))?;
    let names: &[&str] = match tag {
        "BlockStored" => &STORED,
        "BlockRemoved" => &REMOVED,
        _ => &[],
    };
    let mut fields = Fields::default();
    for index in 0..len {
        match names.get(index) {
            // SGLang 0.5.18 and 0.5.19 put a map with the salt where vLLM has the adapter's name.
            Some(&"lora_name") => fields.name_or_metadata(reader)?,
            Some(name) => fields.read(name, reader)?,
            None => reader.skip()?,
        }
    }
    finish(tag, fields, at)
}

fn map(reader: &mut Reader<'_>, len: usize) -> Result<Parsed, DecodeError> {
    let at = reader.position();
    let mut tag = None;
    let mut fields = Fields::default();
    for _ in 0..len {
        match reader.text()? {
            Some("type") => tag = reader.text()?,
            Some(name) => fields.read(name, reader)?,
            None => reader.skip()?,
        }
    }
    finish(tag.ok_or(DecodeError::Type(at))?, fields, at)
}

impl<'a> Fields<'a> {
    fn read(&mut self, name: &str, reader: &mut Reader<'a>) -> Result<(), DecodeError> {
        match name {
            "block_hashes" => self.hashes = Some(list(reader, hash)?),
            "parent_block_hash" => self.parent = optional_hash(reader)?,
            "token_ids" => self.tokens = Some(list(reader, token)?),
            "block_size" => self.block_size = reader.uint()?,
            "medium" => self.medium = reader.text()?,
            "lora_name" => self.lora = reader.text()?,
            "extra_keys" => self.extra_keys = extra_keys(reader)?,
            "cache_salt" => self.salt = reader.text()?,
            "group_idx" => self.group = reader.uint()?,
            "kv_cache_spec_kind" => self.spec_kind = reader.text()?,
            "locality" => self.remote = reader.text()?.is_some_and(|l| l.eq_ignore_ascii_case("remote")),
            "session_id" => self.session = reader.text()?,
            _ => reader.skip()?,
        }
        Ok(())
    }

    fn name_or_metadata(&mut self, reader: &mut Reader<'a>) -> Result<(), DecodeError> {
        let at = reader.position();
        let Value::Map(len) = reader.value()? else {
            reader.rewind(at);
            return self.read("lora_name", reader);
        };
        for _ in 0..len {
            match reader.text()? {
                Some("cache_salt") => self.salt = reader.text()?,
                _ => reader.skip()?,
            }
        }
        Ok(())
    }

    fn tier(&self, at: usize) -> Result<Tier, DecodeError> {
        let Some(medium) = self.medium else { return Ok(Tier::Device) };
        let known = [
            ("gpu", Tier::Device),
            ("cpu", Tier::Host),
            ("cpu_pinned", Tier::Host),
            ("disk", Tier::Disk),
            ("fs", Tier::Disk),
            ("storage", Tier::Disk),
            ("obj", Tier::Shared),
            ("external", Tier::Shared),
        ];
        let tier = known
            .iter()
            .find_map(|(name, tier)| medium.eq_ignore_ascii_case(name).then_some(*tier))
            .ok_or(DecodeError::Type(at))?;
        Ok(if self.remote { Tier::Shared } else { tier })
    }
}

fn finish(tag: &str, mut fields: Fields<'_>, at: usize) -> Result<Parsed, DecodeError> {
    let missing = DecodeError::Type(at);
    let group = fields.group;
    match tag {
        "AllBlocksCleared" => Ok(Parsed::Event(KvEvent::Cleared, None)),
        "BlockRemoved" => {
            let tier = fields.tier(at)?;
            let block_hashes = fields.hashes.ok_or(missing)?;
            Ok(Parsed::Event(KvEvent::Removed(BlockRemoved { block_hashes, tier }), group))
        }
        "BlockStored" => {
            let tier = fields.tier(at)?;
            let block_hashes = fields.hashes.take().ok_or(missing)?;
            let tokens = fields.tokens.take().ok_or(missing)?;
            let block_size = fields.block_size.ok_or(missing)?;
            if block_size == 0 || tokens.is_empty() {
                return Ok(Parsed::Placeholder);
            }
            if !holds_whole_prefix(fields.spec_kind) {
                return Ok(Parsed::PartialGroup);
            }
            if (block_hashes.len() as u64).checked_mul(block_size.into()) != Some(tokens.len() as u64) {
                return Err(missing);
            }
            let extra_keys = with_salt(fields.extra_keys, fields.salt, block_hashes.len());
            let stored = BlockStored {
                block_hashes,
                parent: fields.parent,
                tokens,
                block_size,
                tier,
                lora: fields.lora.map(Arc::from),
                extra_keys,
                session: fields.session.map(Arc::from),
            };
            Ok(Parsed::Event(KvEvent::Stored(stored), group))
        }
        _ => Ok(Parsed::Unknown),
    }
}

/// Only these groups bound the depth to which a prefix can be reused; the rest need its tail only.
fn holds_whole_prefix(kind: Option<&str>) -> bool {
    matches!(kind, None | Some("full_attention" | "mla_attention" | "sink_full_attention"))
}

/// A list of nothing but nils says nothing, and is empty in the neutral form.
fn with_salt(
    mut keys: Vec<Option<Vec<String>>>,
    salt: Option<&str>,
    blocks: usize,
) -> Vec<Option<Vec<String>>> {
    if keys.iter().all(Option::is_none) {
        keys.clear();
    }
    if let Some(salt) = salt
        && blocks > 0
    {
        keys.resize(blocks, None);
        if let Some(first) = keys.first_mut() {
            first.get_or_insert_default().push(salt.to_owned());
        }
    }
    keys
}

fn list<'a, T>(
    reader: &mut Reader<'a>,
    mut item: impl FnMut(&mut Reader<'a>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let len = reader.array()?;
    // Every element takes a byte at least, so a lying length cannot make us reserve more than the payload.
    let mut items = Vec::with_capacity(len.min(reader.remaining()));
    for _ in 0..len {
        items.push(item(reader)?);
    }
    Ok(items)
}

fn hash(reader: &mut Reader<'_>) -> Result<u64, DecodeError> {
    let at = reader.position();
    optional_hash(reader)?.ok_or(DecodeError::Type(at))
}

fn optional_hash(reader: &mut Reader<'_>) -> Result<Option<u64>, DecodeError> {
    let at = reader.position();
    match reader.value()? {
        Value::Nil => Ok(None),
        Value::Int(n) => u64::try_from(n)
            .or_else(|_| i64::try_from(n).map(i64::cast_unsigned))
            .map(Some)
            .map_err(|_| DecodeError::Type(at)),
        Value::Bin(digest) if !digest.is_empty() => {
            Ok(Some(digest.iter().fold(0, |n, &b| (n << 8) | u64::from(b))))
        }
        _ => Err(DecodeError::Type(at)),
    }
}

/// A token id. Under speculative decoding SGLang writes (token, next token) pairs, of which the first is the
/// token. Multimodal stand-ins may exceed 32 bits and are folded: they only need to differ.
fn token(reader: &mut Reader<'_>) -> Result<u32, DecodeError> {
    let at = reader.position();
    match reader.value()? {
        Value::Int(n) => u32::try_from(n)
            .or_else(|_| i64::try_from(n).map(|wide| fold(wide.cast_unsigned())))
            .or_else(|_| u64::try_from(n).map(fold))
            .map_err(|_| DecodeError::Type(at)),
        Value::Array(2) => {
            let first = reader.position();
            let Value::Int(n) = reader.value()? else { return Err(DecodeError::Type(first)) };
            reader.skip()?;
            u32::try_from(n).map_err(|_| DecodeError::Type(first))
        }
        _ => Err(DecodeError::Type(at)),
    }
}

const fn fold(wide: u64) -> u32 {
    ((wide >> 32) ^ (wide & 0xffff_ffff)) as u32
}

fn extra_keys(reader: &mut Reader<'_>) -> Result<Vec<Option<Vec<String>>>, DecodeError> {
    let at = reader.position();
    match reader.value()? {
        Value::Nil => Ok(Vec::new()),
        Value::Array(_) => {
            reader.rewind(at);
            list(reader, block_keys)
        }
        _ => Err(DecodeError::Type(at)),
    }
}

fn block_keys(reader: &mut Reader<'_>) -> Result<Option<Vec<String>>, DecodeError> {
    let at = reader.position();
    match reader.value()? {
        Value::Nil => Ok(None),
        Value::Array(_) => {
            reader.rewind(at);
            list(reader, key_text).map(Some)
        }
        _ => Err(DecodeError::Type(at)),
    }
}

/// One extra key as text: a salt or adapter name as it is, a multimodal (id, offset) as `id@offset`, bytes
/// as hex.
fn key_text(reader: &mut Reader<'_>) -> Result<String, DecodeError> {
    let at = reader.position();
    match reader.value()? {
        Value::Str(text) => Ok(String::from_utf8_lossy(text).into_owned()),
        Value::Int(n) => Ok(n.to_string()),
        Value::Bin(bytes) => Ok(bytes.iter().fold(String::new(), |mut hex, byte| {
            hex.push(char::from_digit(u32::from(byte >> 4), 16).unwrap_or('0'));
            hex.push(char::from_digit(u32::from(byte & 15), 16).unwrap_or('0'));
            hex
        })),
        Value::Array(2) => {
            let id = key_scalar(reader)?;
            let offset = key_scalar(reader)?;
            Ok(format!("{id}@{offset}"))
        }
        _ => Err(DecodeError::Type(at)),
    }
}

fn key_scalar(reader: &mut Reader<'_>) -> Result<String, DecodeError> {
    let at = reader.position();
    match reader.value()? {
        Value::Str(text) => Ok(String::from_utf8_lossy(text).into_owned()),
        Value::Int(n) => Ok(n.to_string()),
        _ => Err(DecodeError::Type(at)),
    }
}
