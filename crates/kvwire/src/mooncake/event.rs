//! Events of the Mooncake master.
//!
//! - Purpose: tell which objects a shared store gained and lost.
//! - Inputs: payloads of the master's PUB socket (three frames as from engines; sequence numbers from 1, no
//!   replay socket). Outputs: [`StoreBatch`], and a count of what was skipped.
//! - Invariants: I-MKE-1 a batch whose msgpack is well formed always decodes, odd events are skipped one by
//!   one and counted; I-MKE-2 what is encoded here decodes to the same batch, and a capture of Mooncake 0.3.14
//!   is encoded to the same bytes.
//! - Deliberately absent: trust. Evictions at the watermark, unmounted segments and dead clients are not
//!   published by 0.3.14 at all: an index needs the REST interface beside the events.
//! - Sources: Mooncake (`mooncake-store/src/kv_event/kv_event_publisher.cpp`), captures of 0.3.14.

use std::sync::Arc;

use rmp::encode as mp;

use crate::decode::{Skip, Skipped};
use crate::fields::{hash, lenient, optional_list};
use crate::reader::{DecodeError, Reader, Value};

/// One message of the master.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreBatch {
    /// The master's wall clock, milliseconds since the epoch.
    pub timestamp_ms: i64,
    /// Changes in order.
    pub events: Vec<StoreEvent>,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreEvent {
    /// Counts the master's events from 1, over all batches; 0 = not told.
    pub event_id: u64,
    /// The event's own time, milliseconds since the epoch; 0 = not told.
    pub timestamp_ms: i64,
    /// What changed.
    pub change: ObjectChange,
    /// Whose object it is; the master's default tenant is `default`, also written as an empty text.
    pub tenant: Option<Arc<str>>,
    /// The master's `--kv_events_backend_id`.
    pub backend: Option<Arc<str>>,
    /// The group under which the object is evicted.
    pub group: Option<Arc<str>>,
    /// `cpu` or `disk`: where the replica lies that gave rise to the event. Others may lie elsewhere.
    pub medium: Option<Arc<str>>,
}

/// What became of objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectChange {
    /// The object of this key has a replica more. A second replica and a second put say so again.
    Stored(Arc<str>),
    /// The object of this key is gone, with all replicas.
    Removed(Arc<str>),
    /// All objects are gone.
    Cleared,
}

/// A decoded batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreDecoded {
    /// The events, in order.
    pub batch: StoreBatch,
    /// What was left out. An event without an object's key (the master can be told to leave it out) is
    /// `malformed`: it names nothing.
    pub skipped: Skipped,
}

/// Decodes the payload of one message of the master.
///
/// # Errors
/// [`DecodeError`] when it is not msgpack or not a batch at all; single events never are a reason.
pub fn decode(payload: &[u8]) -> Result<StoreDecoded, DecodeError> {
    let mut reader = Reader::new(payload);
    if reader.array()? < 2 {
        return Err(DecodeError::Type(0));
    }
    let at = reader.position();
    let timestamp_ms = match reader.value()? {
        Value::Int(ms) => i64::try_from(ms).map_err(|_| DecodeError::Type(at))?,
        // Seconds, as engines write them.
        #[expect(clippy::cast_possible_truncation, reason = "saturates; times are far below 2^63 ms")]
        Value::Float(seconds) => (seconds * 1000.0) as i64,
        _ => return Err(DecodeError::Type(at)),
    };
    let count = reader.array()?;
    let mut events = Vec::with_capacity(count.min(reader.remaining()).min(1024));
    let mut skipped = Skipped::default();
    for _ in 0..count {
        let start = reader.position();
        match event(&mut reader) {
            Ok(event) => {
                events.push(event);
                continue;
            }
            Err(Skip::UnknownType) => skipped.unknown_type += 1,
            Err(Skip::Batch(error)) => return Err(error),
            Err(_) => skipped.malformed += 1,
        }
        reader.rewind(start);
        reader.skip()?;
    }
    Ok(StoreDecoded { batch: StoreBatch { timestamp_ms, events }, skipped })
}

fn event(reader: &mut Reader<'_>) -> Result<StoreEvent, Skip> {
    let Value::Map(len) = reader.value()? else { return Err(Skip::Malformed) };
    let mut kind = None;
    // The second name of the type, for readers of engine events; used when the first is missing.
    let mut legacy = None;
    let mut key = None;
    let mut out = StoreEvent {
        event_id: 0,
        timestamp_ms: 0,
        change: ObjectChange::Cleared,
        tenant: None,
        backend: None,
        group: None,
        medium: None,
    };
    let text = |reader: &mut Reader<'_>| -> Result<Option<Arc<str>>, DecodeError> {
        Ok(lenient(reader, |r| Ok(r.text()?.map(Arc::from)))?.flatten())
    };
    for _ in 0..len {
        match reader.key()? {
            Some("event_type") => kind = reader.text()?,
            Some("type") => legacy = reader.text()?,
            Some("object_key") => key = reader.text()?.filter(|key| !key.is_empty()),
            // Whose object it is must be right, or one tenant's object counts as another's.
            Some("tenant_id") => out.tenant = reader.text()?.map(Arc::from),
            Some("group_id") => out.group = text(reader)?,
            Some("backend_id") => out.backend = text(reader)?,
            Some("medium") => out.medium = text(reader)?,
            Some("event_id") => out.event_id = lenient(reader, hash)?.unwrap_or_default(),
            Some("timestamp") => out.timestamp_ms = lenient(reader, hash)?.unwrap_or_default().cast_signed(),
            // Filled only where a key is itself a number, and then that number.
            Some("seq_hashes" | "block_hashes") => {
                lenient(reader, |r| optional_list(r, |r| r.skip()))?;
            }
            _ => reader.skip()?,
        }
    }
    let key = key.map(Arc::from).ok_or(Skip::Malformed);
    out.change = match kind.or(legacy).ok_or(Skip::Malformed)? {
        "stored" | "BlockStored" => ObjectChange::Stored(key?),
        "removed" | "BlockRemoved" => ObjectChange::Removed(key?),
        "cleared" | "AllBlocksCleared" => ObjectChange::Cleared,
        _ => return Err(Skip::UnknownType),
    };
    Ok(out)
}

/// What the master's flags put into each event besides what happened.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreLabels {
    /// `--kv_events_model_name`.
    pub model: Option<String>,
    /// `--kv_events_block_size`, tokens.
    pub block_size: Option<u32>,
}

/// Encodes a batch as Mooncake 0.3.14 does.
#[must_use]
pub fn encode(batch: &StoreBatch, labels: &StoreLabels) -> Vec<u8> {
    let mut out = Out(Vec::with_capacity(64 + 512 * batch.events.len()));
    out.array(3);
    out.time(batch.timestamp_ms);
    out.array(batch.events.len());
    for event in &batch.events {
        out.event(event, labels);
    }
    out.uint(0);
    out.0
}

/// Writing to a vector cannot fail, so the results of `rmp` carry no news.
struct Out(Vec<u8>);

impl Out {
    fn array(&mut self, len: usize) {
        let _ = mp::write_array_len(&mut self.0, u32::try_from(len).unwrap_or(u32::MAX));
    }

    fn uint(&mut self, value: u64) {
        let _ = mp::write_uint(&mut self.0, value);
    }

    fn time(&mut self, ms: i64) {
        let _ = mp::write_sint(&mut self.0, ms);
    }

    fn text(&mut self, text: &str) {
        let _ = mp::write_str(&mut self.0, text);
    }

    fn key_text(&mut self, key: &str, text: Option<&str>) {
        self.text(key);
        match text {
            Some(text) => self.text(text),
            None => {
                let _ = mp::write_nil(&mut self.0);
            }
        }
    }

    fn key_list(&mut self, key: &str) {
        self.text(key);
        self.array(0);
    }

    fn event(&mut self, event: &StoreEvent, labels: &StoreLabels) {
        let (kind, legacy, key, fields) = match &event.change {
            ObjectChange::Stored(key) => ("stored", "BlockStored", Some(key), 21),
            ObjectChange::Removed(key) => ("removed", "BlockRemoved", Some(key), 17),
            ObjectChange::Cleared => ("cleared", "AllBlocksCleared", None, 12),
        };
        let _ = mp::write_map_len(&mut self.0, fields);
        self.text("event_id");
        self.uint(event.event_id);
        self.text("timestamp");
        self.time(event.timestamp_ms);
        self.key_text("event_type", Some(kind));
        self.key_text("type", Some(legacy));
        self.key_text("model_name", labels.model.as_deref());
        self.text("block_size");
        match labels.block_size {
            Some(size) => self.uint(size.into()),
            None => {
                let _ = mp::write_nil(&mut self.0);
            }
        }
        self.key_text("additional_salt", None);
        self.key_text("lora_name", None);
        self.key_text("tenant_id", event.tenant.as_deref());
        self.key_text("backend_id", event.backend.as_deref());
        self.key_text("medium", event.medium.as_deref());
        self.text("dp_rank");
        self.uint(0);
        let Some(key) = key else { return };
        self.key_text("group_id", event.group.as_deref());
        self.key_text("object_key", Some(key));
        self.key_list("seq_hashes");
        self.key_list("block_hashes");
        if kind == "stored" {
            self.key_text("session_id", None);
        }
        self.key_text("base_block_idx", None);
        if kind == "stored" {
            self.key_text("parent_hash", None);
            self.key_text("token_ids", None);
            self.key_text("parent_block_hash", None);
        }
    }
}
