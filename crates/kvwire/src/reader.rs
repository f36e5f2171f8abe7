//! A msgpack reader over a byte slice that can skip what it does not know.
//!
//! It exists because the decoders of `rmp` work on one fixed shape, while events change shape from one
//! engine release to the next: every value must be skippable, with bounded recursion.

use rmp::Marker;

/// Deepest nesting that is followed. Real events nest five deep.
const DEPTH_MAX: u32 = 32;

/// Why a payload is not an event batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The payload ends inside a value.
    #[error("payload is truncated at byte {0}")]
    Truncated(usize),
    /// A byte that msgpack does not use, or nesting beyond any event.
    #[error("payload is not msgpack at byte {0}")]
    NotMsgpack(usize),
    /// A value of another type than the layout has there.
    #[error("unexpected type at byte {0}")]
    Type(usize),
}

/// A scalar or the head of a container.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Value<'a> {
    Nil,
    /// Integers, negative ones as two's complement (see [`Value::as_u64`]).
    Int(i128),
    Float(f64),
    Bool,
    Str(&'a [u8]),
    Bin(&'a [u8]),
    /// Number of elements that follow.
    Array(usize),
    /// Number of key/value pairs that follow.
    Map(usize),
    Ext,
}

#[derive(Debug, Clone)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(crate) const fn position(&self) -> usize {
        self.at
    }

    pub(crate) const fn rewind(&mut self, position: usize) {
        self.at = position;
    }

    /// Bytes left: an upper bound of the number of values left.
    pub(crate) const fn remaining(&self) -> usize {
        self.bytes.len().saturating_sub(self.at)
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let end = self.at.checked_add(len).ok_or(DecodeError::Truncated(self.at))?;
        let taken = self.bytes.get(self.at..end).ok_or(DecodeError::Truncated(self.at))?;
        self.at = end;
        Ok(taken)
    }

    fn big_endian(&mut self, len: usize) -> Result<u64, DecodeError> {
        Ok(self.take(len)?.iter().fold(0, |n, &b| (n << 8) | u64::from(b)))
    }

    fn length(&mut self, len: usize) -> Result<usize, DecodeError> {
        let at = self.at;
        usize::try_from(self.big_endian(len)?).map_err(|_| DecodeError::Truncated(at))
    }

    fn signed(&mut self, len: usize) -> Result<Value<'a>, DecodeError> {
        let raw = self.big_endian(len)?;
        let shift = 64 - 8 * u32::try_from(len).unwrap_or(8);
        // Shifting up and arithmetically down again extends the sign.
        Ok(Value::Int(i128::from((raw << shift).cast_signed() >> shift)))
    }

    /// The next scalar whole, or the head of the next container.
    pub(crate) fn value(&mut self) -> Result<Value<'a>, DecodeError> {
        let start = self.at;
        let first = self.take(1)?.first().copied().unwrap_or_default();
        Ok(match Marker::from_u8(first) {
            Marker::Null => Value::Nil,
            Marker::True | Marker::False => Value::Bool,
            Marker::FixPos(n) => Value::Int(n.into()),
            Marker::FixNeg(n) => Value::Int(n.into()),
            Marker::U8 => Value::Int(self.big_endian(1)?.into()),
            Marker::U16 => Value::Int(self.big_endian(2)?.into()),
            Marker::U32 => Value::Int(self.big_endian(4)?.into()),
            Marker::U64 => Value::Int(self.big_endian(8)?.into()),
            Marker::I8 => self.signed(1)?,
            Marker::I16 => self.signed(2)?,
            Marker::I32 => self.signed(4)?,
            Marker::I64 => self.signed(8)?,
            Marker::F32 => {
                let bits = u32::try_from(self.big_endian(4)?).unwrap_or_default();
                Value::Float(f64::from(f32::from_bits(bits)))
            }
            Marker::F64 => Value::Float(f64::from_bits(self.big_endian(8)?)),
            Marker::FixStr(n) => Value::Str(self.take(n.into())?),
            Marker::Str8 => self.sized(1).map(Value::Str)?,
            Marker::Str16 => self.sized(2).map(Value::Str)?,
            Marker::Str32 => self.sized(4).map(Value::Str)?,
            Marker::Bin8 => self.sized(1).map(Value::Bin)?,
            Marker::Bin16 => self.sized(2).map(Value::Bin)?,
            Marker::Bin32 => self.sized(4).map(Value::Bin)?,
            Marker::FixArray(n) => Value::Array(n.into()),
            Marker::Array16 => Value::Array(self.length(2)?),
            Marker::Array32 => Value::Array(self.length(4)?),
            Marker::FixMap(n) => Value::Map(n.into()),
            Marker::Map16 => Value::Map(self.length(2)?),
            Marker::Map32 => Value::Map(self.length(4)?),
            Marker::FixExt1 => self.ext(1)?,
            Marker::FixExt2 => self.ext(2)?,
            Marker::FixExt4 => self.ext(4)?,
            Marker::FixExt8 => self.ext(8)?,
            Marker::FixExt16 => self.ext(16)?,
            Marker::Ext8 => self.sized_ext(1)?,
            Marker::Ext16 => self.sized_ext(2)?,
            Marker::Ext32 => self.sized_ext(4)?,
            Marker::Reserved => return Err(DecodeError::NotMsgpack(start)),
        })
    }

    fn sized(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let size = self.length(len)?;
        self.take(size)
    }

    fn ext(&mut self, len: usize) -> Result<Value<'a>, DecodeError> {
        // One more byte: the extension's type.
        self.take(len.saturating_add(1)).map(|_| Value::Ext)
    }

    fn sized_ext(&mut self, len: usize) -> Result<Value<'a>, DecodeError> {
        let size = self.length(len)?;
        self.ext(size)
    }

    /// Skips one whole value.
    pub(crate) fn skip(&mut self) -> Result<(), DecodeError> {
        self.skip_nested(0)
    }

    fn skip_nested(&mut self, depth: u32) -> Result<(), DecodeError> {
        let start = self.at;
        let children = match self.value()? {
            Value::Array(n) => n,
            Value::Map(n) => n.saturating_mul(2),
            _ => 0,
        };
        if depth >= DEPTH_MAX {
            return Err(DecodeError::NotMsgpack(start));
        }
        for _ in 0..children {
            self.skip_nested(depth + 1)?;
        }
        Ok(())
    }

    /// What was read from `start` on.
    pub(crate) fn since(&self, start: usize) -> &'a [u8] {
        self.bytes.get(start..self.at).unwrap_or_default()
    }

    /// The key of a map's entry: its text, or `None` when it is something else, which is then skipped.
    pub(crate) fn key(&mut self) -> Result<Option<&'a str>, DecodeError> {
        let at = self.at;
        match self.value()? {
            Value::Str(text) => Ok(std::str::from_utf8(text).ok()),
            _ => {
                self.rewind(at);
                self.skip().map(|()| None)
            }
        }
    }

    /// The head of an array.
    pub(crate) fn array(&mut self) -> Result<usize, DecodeError> {
        let at = self.at;
        match self.value()? {
            Value::Array(n) => Ok(n),
            _ => Err(DecodeError::Type(at)),
        }
    }

    /// A text, or nil.
    pub(crate) fn text(&mut self) -> Result<Option<&'a str>, DecodeError> {
        let at = self.at;
        match self.value()? {
            Value::Nil => Ok(None),
            Value::Str(text) => std::str::from_utf8(text).map(Some).map_err(|_| DecodeError::Type(at)),
            _ => Err(DecodeError::Type(at)),
        }
    }

    /// A non-negative integer, or nil.
    pub(crate) fn uint(&mut self) -> Result<Option<u32>, DecodeError> {
        let at = self.at;
        match self.value()? {
            Value::Nil => Ok(None),
            Value::Int(n) => u32::try_from(n).map(Some).map_err(|_| DecodeError::Type(at)),
            _ => Err(DecodeError::Type(at)),
        }
    }
}
