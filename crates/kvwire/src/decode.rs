//! Decoding of event batches: the map layout (vLLM from 0.24, SGLang from 0.5.20) and the tagged arrays of
//! older releases, mixed as they come.

use tandem_types::{KvBatch, KvEvent};

use crate::fields::Fields;
use crate::reader::{DecodeError, Reader, Value};

/// A decoded batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    /// The events, in order.
    pub batch: KvBatch,
    /// What was left out.
    pub skipped: Skipped,
}

/// Events left out of a batch, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Skipped {
    /// Types that we do not know.
    pub unknown_type: u32,
    /// Known types with a missing field or a value of the wrong type.
    pub malformed: u32,
    /// A medium that we do not know.
    pub unknown_medium: u32,
    /// Stores of a full-attention group whose tokens do not fill their blocks: nobody can tell which tokens
    /// belong to which block.
    pub misaligned: u32,
}

impl Skipped {
    /// All of them.
    #[must_use]
    pub const fn total(self) -> u32 {
        self.unknown_type
            .saturating_add(self.malformed)
            .saturating_add(self.unknown_medium)
            .saturating_add(self.misaligned)
    }
}

/// Why a single event is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Skip {
    UnknownType,
    Malformed,
    UnknownMedium,
    Misaligned,
    /// The rest of the batch cannot be found any more.
    Batch(DecodeError),
}

impl From<DecodeError> for Skip {
    fn from(error: DecodeError) -> Self {
        match error {
            DecodeError::Type(_) => Self::Malformed,
            other => Self::Batch(other),
        }
    }
}

/// Decodes the payload of one message of vLLM or SGLang.
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
    let mut skipped = Skipped::default();
    for _ in 0..count {
        let start = reader.position();
        match event(&mut reader) {
            Ok(event) => {
                events.push(event);
                continue;
            }
            Err(Skip::UnknownType) => skipped.unknown_type += 1,
            Err(Skip::Malformed) => skipped.malformed += 1,
            Err(Skip::UnknownMedium) => skipped.unknown_medium += 1,
            Err(Skip::Misaligned) => skipped.misaligned += 1,
            Err(Skip::Batch(error)) => return Err(error),
        }
        reader.rewind(start);
        reader.skip()?;
    }
    let rank = if len > 2 { rank(&mut reader)? } else { None };
    Ok(Decoded { batch: KvBatch { timestamp, events, rank }, skipped })
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

/// The rank tells nothing that the socket does not tell, so an odd one costs nothing but itself.
fn rank(reader: &mut Reader<'_>) -> Result<Option<u32>, DecodeError> {
    let at = reader.position();
    match reader.uint() {
        Err(DecodeError::Type(_)) => {
            reader.rewind(at);
            reader.skip().map(|()| None)
        }
        other => other,
    }
}

fn event(reader: &mut Reader<'_>) -> Result<KvEvent, Skip> {
    match reader.value()? {
        Value::Array(len) if len > 0 => tagged_array(reader, len - 1),
        Value::Map(len) => map(reader, len),
        _ => Err(Skip::Malformed),
    }
}

/// Names of array elements after the tag, in order. An array of any length is a prefix of these.
const STORED: [&str; 8] = [
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
];
const REMOVED: [&str; 2] = ["block_hashes", "medium"];

fn tagged_array(reader: &mut Reader<'_>, len: usize) -> Result<KvEvent, Skip> {
    let tag = reader.text()?.ok_or(Skip::Malformed)?;
    let names: &[&str] = match tag {
        "BlockStored" => &STORED,
        "BlockRemoved" => &REMOVED,
        "AllBlocksCleared" => &[],
        _ => return Err(Skip::UnknownType),
    };
    let mut fields = Fields::default();
    let mut tail = Tail::Group;
    for index in 0..len {
        match names.get(index) {
            Some(name) => fields.read(name, reader)?,
            None => tail.read(&mut fields, reader)?,
        }
    }
    fields.finish(tag)
}

/// What comes behind the fixed fields of an array: group, kind and window of vLLM 0.20 to 0.23, before which
/// some publishers put a list of media.
enum Tail {
    Group,
    Kind,
    Window,
}

impl Tail {
    fn read<'a>(&mut self, fields: &mut Fields<'a>, reader: &mut Reader<'a>) -> Result<(), DecodeError> {
        let at = reader.position();
        match reader.value()? {
            Value::Array(_) | Value::Map(_) => {
                reader.rewind(at);
                return reader.skip();
            }
            Value::Int(number) => {
                let number = u32::try_from(number).map_err(|_| DecodeError::Type(at))?;
                if matches!(self, Self::Window) || fields.has_group() {
                    fields.set_window(number);
                } else {
                    fields.set_group(number);
                }
            }
            Value::Str(_) => {
                reader.rewind(at);
                fields.read("kv_cache_spec_kind", reader)?;
                *self = Self::Kind;
            }
            _ => {}
        }
        *self = match self {
            Self::Group => Self::Kind,
            Self::Kind | Self::Window => Self::Window,
        };
        Ok(())
    }
}

fn map(reader: &mut Reader<'_>, len: usize) -> Result<KvEvent, Skip> {
    let mut tag = None;
    let mut fields = Fields::default();
    for _ in 0..len {
        match reader.key()? {
            Some("type") => tag = reader.text()?,
            Some(name) => fields.read(name, reader)?,
            None => reader.skip()?,
        }
    }
    fields.finish(tag.ok_or(Skip::Malformed)?)
}
