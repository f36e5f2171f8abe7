//! Fields of single events, whatever the layout they came in.

use std::sync::Arc;

use tandem_types::limits::ID_BYTES_MAX;
use tandem_types::{BlockRemoved, BlockStored, ExtraKey, GroupKind, KvEvent, Tier};

use crate::decode::Skip;
use crate::keys::{Key, extra_keys};
use crate::reader::{DecodeError, Reader, Value};

/// Fields of all event types, as far as they are of use.
#[derive(Default)]
pub(crate) struct Fields<'a> {
    hashes: Option<Vec<u64>>,
    parent: Option<u64>,
    tokens: Tokens,
    block_size: u32,
    medium: Option<&'a str>,
    lora: Option<&'a str>,
    keys: Vec<Vec<Key<'a>>>,
    salt: Option<&'a str>,
    group: Option<u32>,
    kind: Option<&'a str>,
    window: Option<u32>,
    remote: bool,
    session: Option<&'a str>,
    owner: Option<&'a str>,
    lookahead: Vec<Vec<u32>>,
    remaining: Vec<u32>,
}

/// Token ids, or the overlapping pairs that SGLang writes when a drafter looks one token ahead.
#[derive(Default)]
struct Tokens {
    ids: Vec<u32>,
    /// The second elements of pairs; as long as `ids`, or empty.
    next: Vec<u32>,
}

impl<'a> Fields<'a> {
    /// Reads one field. Fields that an identity depends on must be right; others, when odd, are taken for
    /// absent.
    pub(crate) fn read(&mut self, name: &str, reader: &mut Reader<'a>) -> Result<(), DecodeError> {
        match name {
            "block_hashes" => self.hashes = Some(list(reader, hash)?),
            "parent_block_hash" => self.parent = optional_hash(reader)?,
            "token_ids" => self.tokens = tokens(reader)?,
            "block_size" => self.block_size = reader.uint()?.unwrap_or_default(),
            "medium" => self.medium = reader.text()?,
            "lora_name" => self.name_or_metadata(reader)?,
            "extra_keys" => self.keys = extra_keys(reader)?,
            "cache_salt" => self.salt = reader.text()?,
            "group_idx" => self.group = reader.uint()?,
            "kv_cache_spec_kind" => self.kind = reader.text()?,
            "lookahead_token_ids" => self.lookahead = lookahead(reader)?,
            "remaining_copy_counts" => self.remaining = lenient(reader, counts)?.unwrap_or_default(),
            "kv_cache_spec_sliding_window" => self.window = lenient(reader, Reader::uint)?.flatten(),
            "locality" => {
                let locality = lenient(reader, Reader::text)?.flatten();
                self.remote = locality.is_some_and(|l| l.eq_ignore_ascii_case("remote"));
            }
            "session_id" => self.session = lenient(reader, Reader::text)?.flatten(),
            "ownership" => self.owner = lenient(reader, Reader::text)?.flatten(),
            _ => reader.skip()?,
        }
        Ok(())
    }

    /// The adapter's name, in whose place SGLang 0.5.18 and 0.5.19 put a map with the salt.
    fn name_or_metadata(&mut self, reader: &mut Reader<'a>) -> Result<(), DecodeError> {
        let at = reader.position();
        let Value::Map(len) = reader.value()? else {
            reader.rewind(at);
            self.lora = reader.text()?;
            return Ok(());
        };
        for _ in 0..len {
            match reader.key()? {
                Some("cache_salt") => self.salt = reader.text()?,
                _ => reader.skip()?,
            }
        }
        Ok(())
    }

    pub(crate) const fn has_group(&self) -> bool {
        self.group.is_some()
    }

    pub(crate) const fn set_group(&mut self, group: u32) {
        self.group = Some(group);
    }

    pub(crate) const fn set_window(&mut self, window: u32) {
        self.window = Some(window);
    }

    pub(crate) fn finish(self, tag: &str) -> Result<KvEvent, Skip> {
        match tag {
            "AllBlocksCleared" => Ok(KvEvent::Cleared),
            "BlockRemoved" => self.removed().map(KvEvent::Removed),
            "BlockStored" => self.stored().map(KvEvent::Stored),
            _ => Err(Skip::UnknownType),
        }
    }

    fn removed(self) -> Result<BlockRemoved, Skip> {
        let tier = self.tier()?;
        let block_hashes = self.hashes.ok_or(Skip::Malformed)?;
        // Counts that do not belong to the hashes one by one say nothing.
        let remaining = if self.remaining.len() == block_hashes.len() { self.remaining } else { Vec::new() };
        Ok(BlockRemoved {
            block_hashes,
            tier,
            group: self.group.unwrap_or_default(),
            remaining,
            owner: self.owner.and_then(bounded),
        })
    }

    fn stored(self) -> Result<BlockStored, Skip> {
        let tier = self.tier()?;
        let kind = kind(self.kind, self.group);
        let block_hashes = self.hashes.ok_or(Skip::Malformed)?;
        let blocks = block_hashes.len();
        let placeholder = self.block_size == 0 || self.tokens.ids.is_empty();
        // Kinds that skip blocks have tokens without hashes; where every block counts there must be none.
        if kind == GroupKind::Full
            && !placeholder
            && Some(self.tokens.ids.len()) != blocks.checked_mul(self.block_size as usize)
        {
            return Err(Skip::Misaligned);
        }
        let mut lora = self.lora;
        let mut salt = self.salt;
        let at_start = self.parent.is_none();
        let mut extra: Vec<Vec<ExtraKey>> = Vec::with_capacity(self.keys.len().min(blocks));
        for (block, keys) in self.keys.into_iter().take(blocks).enumerate() {
            extra.push(neutral(keys, at_start && block == 0, &mut lora, &mut salt));
        }
        if extra.iter().all(Vec::is_empty) {
            extra.clear();
        } else {
            extra.resize(blocks, Vec::new());
        }
        let lookahead = match self.tokens.next.chunks(self.block_size.max(1) as usize) {
            pages if pages.len() > 0 => {
                pages.map(|page| page.last().copied().into_iter().collect()).collect()
            }
            _ => self.lookahead,
        };
        // One list per block, or nobody can tell whose it is.
        if !lookahead.is_empty() && lookahead.len() != blocks {
            return Err(Skip::Malformed);
        }
        Ok(BlockStored {
            block_hashes,
            parent: self.parent,
            tokens: self.tokens.ids,
            block_size: self.block_size,
            tier,
            lora: lora.filter(|name| !name.is_empty()).map(Arc::from),
            salt: salt.filter(|salt| !salt.is_empty()).map(Arc::from),
            extra_keys: extra,
            lookahead: if lookahead.iter().all(Vec::is_empty) { Vec::new() } else { lookahead },
            group: self.group.unwrap_or_default(),
            kind,
            window: self.window,
            session: self.session.and_then(bounded),
            owner: self.owner.and_then(bounded),
            // vLLM writes media of its own caches in capitals; its store connector does not.
            echo: self.medium == Some("cpu"),
        })
    }

    fn tier(&self) -> Result<Tier, Skip> {
        let Some(medium) = self.medium else { return Ok(Tier::Device) };
        let known = [
            ("gpu", Tier::Device),
            ("device", Tier::Device),
            ("cpu", Tier::Host),
            ("cpu_pinned", Tier::Host),
            ("cpu_tier1", Tier::Host),
            ("host", Tier::Host),
            ("cpu_tier2", Tier::Disk),
            ("disk", Tier::Disk),
            ("nvme", Tier::Disk),
            ("fs", Tier::Disk),
            ("storage", Tier::Disk),
            ("obj", Tier::Shared),
            ("external", Tier::Shared),
            ("network", Tier::Shared),
            ("remote", Tier::Shared),
            ("shared", Tier::Shared),
        ];
        let tier = known
            .iter()
            .find_map(|(name, tier)| medium.eq_ignore_ascii_case(name).then_some(*tier))
            .ok_or(Skip::UnknownMedium)?;
        Ok(if self.remote { Tier::Shared } else { tier })
    }
}

/// Takes adapter and salt out of a block's keys; the rest is what the block itself depends on.
fn neutral<'a>(
    mut keys: Vec<Key<'a>>,
    first: bool,
    lora: &mut Option<&'a str>,
    salt: &mut Option<&'a str>,
) -> Vec<ExtraKey> {
    // The adapter comes first, under the name that the event has beside the keys.
    if let Some(name) = *lora
        && keys.first() == Some(&Key::Text(name))
    {
        keys.remove(0);
    }
    // The salt is a prompt's last text and in its first block only. A lone text there could be a media id as
    // versions before 0.21 wrote them; taken for a salt it makes a block unknown, never a wrong one known.
    if first
        && salt.is_none()
        && let Some(at) = keys.iter().rposition(|key| matches!(key, Key::Text(_)))
        && let Key::Text(text) = keys.remove(at)
    {
        *salt = Some(text);
    }
    keys.into_iter()
        .filter_map(|key| match key {
            Key::Text(text) => Some(ExtraKey::Text(Arc::from(text))),
            Key::Media(id, offset) => Some(ExtraKey::Media { id: Arc::from(id), offset }),
            Key::Bytes(bytes) | Key::Opaque(bytes) => Some(ExtraKey::Bytes(Arc::from(bytes))),
            Key::Lora(name) => {
                *lora = Some(name);
                None
            }
            Key::Salt(text) => {
                *salt = Some(text);
                None
            }
        })
        .collect()
}

fn bounded(id: &str) -> Option<Arc<str>> {
    (!id.is_empty() && id.len() <= ID_BYTES_MAX).then(|| Arc::from(id))
}

/// Only full groups bound the depth to which a prefix can be reused. Versions before 0.22 do not tell the
/// kind: there the first group is taken for full, and of others nothing is assumed.
fn kind(name: Option<&str>, group: Option<u32>) -> GroupKind {
    match name {
        None if group.unwrap_or_default() == 0 => GroupKind::Full,
        Some("full_attention" | "mla_attention" | "sink_full_attention") => GroupKind::Full,
        Some("sliding_window" | "sliding_window_mla" | "chunked_local_attention") => GroupKind::Window,
        Some("mamba") => GroupKind::State,
        _ => GroupKind::Other,
    }
}

/// Reads a value that is taken for absent when it is of another type.
pub(crate) fn lenient<'a, T>(
    reader: &mut Reader<'a>,
    read: impl FnOnce(&mut Reader<'a>) -> Result<T, DecodeError>,
) -> Result<Option<T>, DecodeError> {
    let at = reader.position();
    match read(reader) {
        Ok(value) => Ok(Some(value)),
        Err(DecodeError::Type(_)) => {
            reader.rewind(at);
            reader.skip().map(|()| None)
        }
        Err(other) => Err(other),
    }
}

pub(crate) fn list<'a, T>(
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

/// A list, or nil for an empty one.
pub(crate) fn optional_list<'a, T>(
    reader: &mut Reader<'a>,
    item: impl FnMut(&mut Reader<'a>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let at = reader.position();
    if reader.value()? == Value::Nil {
        return Ok(Vec::new());
    }
    reader.rewind(at);
    list(reader, item)
}

fn counts(reader: &mut Reader<'_>) -> Result<Vec<u32>, DecodeError> {
    optional_list(reader, |r| {
        let at = r.position();
        r.uint()?.ok_or(DecodeError::Type(at))
    })
}

fn lookahead(reader: &mut Reader<'_>) -> Result<Vec<Vec<u32>>, DecodeError> {
    optional_list(reader, |r| optional_list(r, token))
}

pub(crate) fn hash(reader: &mut Reader<'_>) -> Result<u64, DecodeError> {
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

fn tokens(reader: &mut Reader<'_>) -> Result<Tokens, DecodeError> {
    let start = reader.position();
    if reader.value()? == Value::Nil {
        return Ok(Tokens::default());
    }
    reader.rewind(start);
    let len = reader.array()?;
    let mut tokens = Tokens { ids: Vec::with_capacity(len.min(reader.remaining())), next: Vec::new() };
    for _ in 0..len {
        let at = reader.position();
        match reader.value()? {
            Value::Int(id) => tokens.ids.push(token_id(id, at)?),
            Value::Array(2) => {
                tokens.ids.push(token(reader)?);
                tokens.next.push(token(reader)?);
            }
            _ => return Err(DecodeError::Type(at)),
        }
    }
    if tokens.next.is_empty() || tokens.next.len() == tokens.ids.len() {
        Ok(tokens)
    } else {
        Err(DecodeError::Type(start))
    }
}

fn token(reader: &mut Reader<'_>) -> Result<u32, DecodeError> {
    let at = reader.position();
    match reader.value()? {
        Value::Int(id) => token_id(id, at),
        _ => Err(DecodeError::Type(at)),
    }
}

/// Stand-ins for media may exceed 32 bits and are folded: they only need to differ.
fn token_id(id: i128, at: usize) -> Result<u32, DecodeError> {
    u32::try_from(id)
        .or_else(|_| i64::try_from(id).map(|wide| fold(wide.cast_unsigned())))
        .or_else(|_| u64::try_from(id).map(fold))
        .map_err(|_| DecodeError::Type(at))
}

const fn fold(wide: u64) -> u32 {
    ((wide >> 32) ^ (wide & 0xffff_ffff)) as u32
}
