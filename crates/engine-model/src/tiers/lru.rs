//! A bounded set of block keys in order of use.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use crate::pool::KeyHasher;

const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Entry {
    key: u64,
    older: u32,
    newer: u32,
}

/// Keys, the least recently used of which makes room.
#[derive(Debug, Clone)]
pub(crate) struct Lru {
    index: HashMap<u64, u32, BuildHasherDefault<KeyHasher>>,
    entries: Vec<Entry>,
    oldest: u32,
    newest: u32,
    capacity: u32,
}

impl Lru {
    pub(crate) fn new(capacity: u32) -> Self {
        Self { index: HashMap::default(), entries: Vec::new(), oldest: NONE, newest: NONE, capacity }
    }

    pub(crate) fn len(&self) -> u32 {
        // Never more than the capacity.
        self.index.len() as u32
    }

    pub(crate) const fn capacity(&self) -> u32 {
        self.capacity
    }

    pub(crate) fn contains(&self, key: u64) -> bool {
        self.index.contains_key(&key)
    }

    /// Makes a key the most recently used one; `false` when it is not there.
    pub(crate) fn touch(&mut self, key: u64) -> bool {
        let Some(&at) = self.index.get(&key) else { return false };
        if at != self.newest {
            self.unlink(at);
            self.link(at);
        }
        true
    }

    /// Takes a key in as the most recently used one; gives the key that had to go.
    pub(crate) fn insert(&mut self, key: u64) -> Option<u64> {
        if self.capacity == 0 {
            return Some(key);
        }
        if self.touch(key) {
            return None;
        }
        let (at, gone) = if self.len() < self.capacity {
            self.entries.push(Entry { key, older: NONE, newer: NONE });
            (self.entries.len() as u32 - 1, None)
        } else {
            let at = self.oldest;
            self.unlink(at);
            let gone = self.entries[at as usize].key;
            self.entries[at as usize].key = key;
            self.index.remove(&gone);
            (at, Some(gone))
        };
        self.index.insert(key, at);
        self.link(at);
        gone
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.capacity);
    }

    /// All keys, the least recently used first.
    pub(crate) fn keys(&self) -> impl Iterator<Item = u64> + '_ {
        let mut at = self.oldest;
        std::iter::from_fn(move || {
            let entry = self.entries.get(at as usize)?;
            at = entry.newer;
            Some(entry.key)
        })
    }

    fn unlink(&mut self, at: u32) {
        let Entry { older, newer, .. } = self.entries[at as usize];
        match self.entries.get_mut(older as usize) {
            Some(entry) => entry.newer = newer,
            None => self.oldest = newer,
        }
        match self.entries.get_mut(newer as usize) {
            Some(entry) => entry.older = older,
            None => self.newest = older,
        }
    }

    fn link(&mut self, at: u32) {
        let newest = self.newest;
        let entry = &mut self.entries[at as usize];
        (entry.older, entry.newer) = (newest, NONE);
        match self.entries.get_mut(newest as usize) {
            Some(entry) => entry.newer = at,
            None => self.oldest = at,
        }
        self.newest = at;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The same as a list searched from end to end.
        #[test]
        fn as_a_list(capacity in 0_u32..6, acts in prop::collection::vec((0_u64..9, any::<bool>()), 0..60)) {
            let mut lru = Lru::new(capacity);
            let mut list: Vec<u64> = Vec::new();
            for (key, insert) in acts {
                let found = list.iter().position(|k| *k == key).map(|at| list.remove(at));
                if found.is_some() {
                    list.push(key);
                }
                if insert {
                    let mut expected = None;
                    if found.is_none() {
                        list.push(key);
                        if list.len() > capacity as usize {
                            expected = Some(list.remove(0));
                        }
                    }
                    prop_assert_eq!(lru.insert(key), expected);
                } else {
                    prop_assert_eq!(lru.touch(key), found.is_some());
                }
                prop_assert_eq!(lru.keys().collect::<Vec<_>>(), list.clone());
            }
        }
    }
}
