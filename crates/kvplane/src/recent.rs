//! A map that keeps what was used last, up to a bound: two generations, of which the older one goes at once when
//! the younger is full. Between half of the bound and all of it is kept; nothing is moved or scanned one by one.

use std::collections::BTreeMap;

#[derive(Debug)]
pub(crate) struct Recent<K, V> {
    young: BTreeMap<K, V>,
    old: BTreeMap<K, V>,
    half: usize,
    forgotten: u64,
}

impl<K: Ord, V> Recent<K, V> {
    /// A map of at most `most` entries (2 at least).
    pub(crate) fn new(most: usize) -> Self {
        Self { young: BTreeMap::new(), old: BTreeMap::new(), half: (most / 2).max(1), forgotten: 0 }
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        if self.young.len() >= self.half && !self.young.contains_key(&key) {
            let old = std::mem::replace(&mut self.old, std::mem::take(&mut self.young));
            self.forgotten += old.len() as u64;
        }
        self.old.remove(&key);
        self.young.insert(key, value);
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    pub(crate) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// Entries that went to make room.
    pub(crate) const fn forgotten(&self) -> u64 {
        self.forgotten
    }
}

impl<K: Ord + Clone, V: Clone> Recent<K, V> {
    /// The value, which counts as used now.
    pub(crate) fn touch(&mut self, key: &K) -> Option<V> {
        if let Some(value) = self.young.get(key) {
            return Some(value.clone());
        }
        let value = self.old.get(key).cloned()?;
        self.insert(key.clone(), value.clone());
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_last_stays_and_the_bound_holds() {
        let mut map = Recent::new(8);
        for n in 0..100u32 {
            map.insert(n, n);
            assert_eq!(map.touch(&0), Some(0), "in use all along");
            assert!(map.len() <= 8);
        }
        assert_eq!(map.get(&99), Some(&99));
        assert_eq!(map.get(&50), None);
        assert!(map.forgotten() > 80);
    }
}
