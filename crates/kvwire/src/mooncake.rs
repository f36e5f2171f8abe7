//! Mooncake Store: what the master says of its objects, and how engines name them.
//!
//! - [`event`]: event batches;
//! - [`sglang`] and [`vllm`]: object keys of the two engines' pages and blocks.

pub mod event;
pub mod sglang;
pub mod vllm;

pub use event::{ObjectChange, StoreBatch, StoreDecoded, StoreEvent};

/// What a store's object is, as far as its key tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectKey {
    /// Written by vLLM's store connector.
    Vllm(vllm::VllmKey),
    /// Written by SGLang's HiCache.
    Sglang(sglang::SglangKey),
}

impl ObjectKey {
    /// Reads a key; `None` = written by somebody else, or in a form of tomorrow.
    #[must_use]
    pub fn parse(key: &str) -> Option<Self> {
        // vLLM's are the stricter form.
        vllm::VllmKey::parse(key).map(Self::Vllm).or_else(|| sglang::SglangKey::parse(key).map(Self::Sglang))
    }
}

/// 64 lower-case hex digits as 32 bytes.
pub(crate) fn digest(hex: &str) -> Option<[u8; 32]> {
    let mut out = [0; 32];
    let bytes = hex.as_bytes();
    if bytes.len() != 64 {
        return None;
    }
    for (slot, pair) in out.iter_mut().zip(bytes.chunks_exact(2)) {
        let [high, low] = *pair else { return None };
        *slot = nibble(high)? << 4 | nibble(low)?;
    }
    Some(out)
}

const fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

pub(crate) fn push_hex(out: &mut String, bytes: &[u8]) {
    for byte in bytes {
        for nibble in [byte >> 4, byte & 15] {
            out.push(char::from_digit(nibble.into(), 16).unwrap_or('0'));
        }
    }
}
