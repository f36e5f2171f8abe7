//! A store that several engines share.
//!
//! The model knows it by [`SharedStore`] alone: a simulator hands the same [`MemoryStore`] to the steps of all
//! its engines, a driver of one engine an object that speaks for a store elsewhere.

use tandem_types::Time;

use crate::tiers::link::Link;
use crate::tiers::lru::Lru;

/// What engines ask of a shared store. Keys are block keys; whoever mixes engines of different models or
/// block sizes keeps their keys apart.
pub trait SharedStore {
    /// How many of `keys`, from the first on and without a hole, are there. Found blocks count as used.
    fn find(&mut self, keys: &[u64], now: Time) -> usize;

    /// Takes blocks in, unless they are there; tells which were news (one for each key).
    fn put(&mut self, keys: &[u64], now: Time) -> Vec<bool>;

    /// When `bytes` that an engine begins to read now have left the store; the engine's own link may take
    /// longer.
    fn read(&mut self, bytes: u64, now: Time) -> Time;
}

/// No store: nothing is found, nothing is kept.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoStore;

impl SharedStore for NoStore {
    fn find(&mut self, _: &[u64], _: Time) -> usize {
        0
    }

    fn put(&mut self, keys: &[u64], _: Time) -> Vec<bool> {
        vec![false; keys.len()]
    }

    fn read(&mut self, _: u64, now: Time) -> Time {
        now
    }
}

/// A store in memory: so many blocks, the least recently used makes room. Its readers queue for one link.
#[derive(Debug, Clone)]
pub struct MemoryStore {
    blocks: Lru,
    link: Link,
    read_gb_s: f64,
}

impl MemoryStore {
    /// A store of `blocks` blocks that all engines together read with `read_gb_s` GB/s (above 0; infinite =
    /// no limit).
    #[must_use]
    pub fn new(blocks: u32, read_gb_s: f64) -> Self {
        Self { blocks: Lru::new(blocks), link: Link::default(), read_gb_s }
    }

    /// Blocks held.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.blocks.len()
    }

    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.len() == 0
    }

    /// How many of `keys`, from the first on and without a hole, are there; they do not count as used.
    #[must_use]
    pub fn leading(&self, keys: &[u64]) -> usize {
        keys.iter().take_while(|key| self.blocks.contains(**key)).count()
    }

    /// Keys held, the least recently used first.
    pub fn keys(&self) -> impl Iterator<Item = u64> + '_ {
        self.blocks.keys()
    }
}

impl SharedStore for MemoryStore {
    fn find(&mut self, keys: &[u64], _: Time) -> usize {
        let found = self.leading(keys);
        // Last block first, so that of a prefix the head goes last.
        keys.iter().take(found).rev().for_each(|key| {
            self.blocks.touch(*key);
        });
        found
    }

    fn put(&mut self, keys: &[u64], _: Time) -> Vec<bool> {
        keys.iter()
            .map(|key| {
                let news = !self.blocks.contains(*key);
                self.blocks.insert(*key);
                news && self.blocks.contains(*key)
            })
            .collect()
    }

    fn read(&mut self, bytes: u64, now: Time) -> Time {
        self.link.transfer(now, bytes, self.read_gb_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_prefix_that_was_found_the_head_goes_last() {
        let mut store = MemoryStore::new(3, 1.0);
        assert_eq!(store.put(&[1, 2, 3], Time::ZERO), [true; 3]);
        assert_eq!(store.find(&[1, 2, 3, 4], Time::ZERO), 3);
        store.put(&[9], Time::ZERO);
        assert_eq!(store.leading(&[1, 2, 3]), 2);
    }
}
