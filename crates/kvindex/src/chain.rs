//! Content hashes of blocks and of chains of blocks.
//!
//! - Purpose: one 64-bit name for "this block after exactly these blocks", equal for all engines, so that
//!   their own ids stay opaque.
//! - Inputs: token ids, and what else goes into a block (adapter, salt, media). Outputs: a *local* hash of one
//!   block by itself, and a *content* hash of a block with all that goes before it.
//! - Invariants:
//!   - local hash = XXH3-64 over the token ids as little-endian `u32`, then over each extra key's
//!     length and bytes, seeded by the namespace;
//!   - a content hash of a first block is its local hash; of any other XXH3-64, seed 1337, over the
//!     16 bytes `[content hash of the block before, local hash]`, little-endian;
//!   - the namespace without adapter and salt has seed 1337: its hashes are those of a request
//!     trace's `input_sequence_hashes`, but for a partial last block;
//!   - chains of two namespaces share no content hash, but for collisions of 64 bits.
//! - Deliberately absent: partial blocks, the engines' own hashes.
//! - Sources: dynamo-kv-router 1.6.1 for content hashes, the seed 1337 and the seeds of adapters and salts.

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

/// Seed of chains, and of local hashes of the plain namespace.
pub const SEED: u64 = 1337;

/// What separates blocks of equal tokens: the adapter that computed them and the salt of their tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Namespace(u64);

impl Default for Namespace {
    fn default() -> Self {
        Self(SEED)
    }
}

impl Namespace {
    /// The namespace of an adapter and a salt; empty texts count as absent.
    #[must_use]
    pub fn new(lora: Option<&str>, salt: Option<&str>) -> Self {
        let part = |text: Option<&str>, seed: u64| match text {
            Some(text) if !text.is_empty() => xxh3_64_with_seed(text.as_bytes(), seed),
            _ => 0,
        };
        Self(SEED.wrapping_add(part(lora, 0)).wrapping_add(part(salt, 1)))
    }

    /// Local hash of one whole block.
    #[must_use]
    pub fn local(self, tokens: &[u32]) -> u64 {
        self.local_with(tokens, &[])
    }

    /// Local hash of one whole block into which other texts go (media ids, say), in order.
    #[must_use]
    pub fn local_with(self, tokens: &[u32], extra: &[&str]) -> u64 {
        let mut hasher = Xxh3::with_seed(self.0);
        for chunk in tokens.chunks(64) {
            let mut bytes = [0u8; 256];
            for (slot, token) in bytes.chunks_exact_mut(4).zip(chunk) {
                slot.copy_from_slice(&token.to_le_bytes());
            }
            hasher.update(bytes.get(..chunk.len() * 4).unwrap_or(&[]));
        }
        for text in extra {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        hasher.digest()
    }
}

/// Content hash of a block that follows the one with content hash `previous`; `None` = it is the first.
#[must_use]
pub fn next(previous: Option<u64>, local: u64) -> u64 {
    let Some(previous) = previous else { return local };
    let mut bytes = [0u8; 16];
    let (left, right) = bytes.split_at_mut(8);
    left.copy_from_slice(&previous.to_le_bytes());
    right.copy_from_slice(&local.to_le_bytes());
    xxh3_64_with_seed(&bytes, SEED)
}

/// Content hashes of a whole prompt, from the local hashes of its blocks.
#[must_use]
pub fn chain(locals: &[u64]) -> Vec<u64> {
    let mut last = None;
    let mut out = Vec::with_capacity(locals.len());
    for &local in locals {
        let content = next(last, local);
        out.push(content);
        last = Some(content);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hashes that dynamo-kv-router 1.6.1 computes for tokens 1 to 64 in blocks of 16.
    #[test]
    fn hashes_are_those_of_dynamo() {
        let tokens: Vec<u32> = (1..=64).collect();
        let locals = |namespace: Namespace| -> Vec<u64> {
            tokens.chunks(16).map(|block| namespace.local(block)).collect()
        };
        let plain = locals(Namespace::default());
        assert_eq!(
            plain,
            [
                16_863_443_419_780_771_464,
                2_287_610_619_914_608_821,
                12_129_935_312_930_971_799,
                5_453_111_288_643_762_282
            ]
        );
        assert_eq!(
            chain(&plain),
            [
                16_863_443_419_780_771_464,
                12_466_389_667_045_779_788,
                960_926_348_267_535_642,
                4_923_844_688_253_642_376
            ]
        );
        let last = |lora, salt| chain(&locals(Namespace::new(lora, salt))).pop();
        assert_eq!(last(Some("adapter"), None), Some(14_648_686_668_587_988_245));
        assert_eq!(last(None, Some("tenant")), Some(12_880_755_396_098_575_351));
        assert_eq!(last(Some("a"), Some("b")), Some(18_365_064_596_595_813_830));
    }

    #[test]
    fn an_empty_salt_is_no_salt_and_names_do_not_mix() {
        assert_eq!(Namespace::new(Some(""), Some("")), Namespace::default());
        assert_ne!(Namespace::new(Some("x"), None), Namespace::new(None, Some("x")));
    }

    #[test]
    fn extra_keys_are_told_apart_by_length() {
        let namespace = Namespace::default();
        assert_ne!(namespace.local_with(&[1], &["ab", "c"]), namespace.local_with(&[1], &["a", "bc"]));
        assert_eq!(namespace.local_with(&[1], &[]), namespace.local(&[1]));
    }
}
