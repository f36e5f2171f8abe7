//! A fast seeded hasher for tables whose keys are hashes already or short texts. Never iterated.

use std::hash::{BuildHasher, Hasher};

/// Builds hashers from a seed; two seeds put the same keys in unrelated places.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Spread(u64);

impl Spread {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }
}

/// Folds 8 bytes at a time by a 128-bit product.
#[derive(Debug)]
pub(crate) struct SpreadHasher(u64);

impl BuildHasher for Spread {
    type Hasher = SpreadHasher;

    fn build_hasher(&self) -> SpreadHasher {
        SpreadHasher(self.0 ^ 0x2545_f491_4f6c_dd1d)
    }
}

impl Hasher for SpreadHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0u8; 8];
            for (to, from) in word.iter_mut().zip(chunk) {
                *to = *from;
            }
            self.write_u64(u64::from_le_bytes(word));
        }
        self.write_u64(bytes.len() as u64);
    }

    fn write_u8(&mut self, byte: u8) {
        self.write_u64(u64::from(byte));
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * u128::from(0x9e37_79b9_7f4a_7c15_u64);
        let [low, high] = [product as u64, (product >> 64) as u64];
        self.0 = (low ^ high).wrapping_add(word.rotate_left(29));
    }
}
