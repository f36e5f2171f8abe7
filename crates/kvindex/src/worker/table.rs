//! A hash table of 64-bit entries that stays nearly full.
//!
//! Robin Hood probing over one array of `tag << 32 | place`. The home slot follows from the tag alone, so that
//! growing needs nothing but the entries themselves; growing by an eighth keeps four fifths and more of the
//! slots in use, and deleting shifts back instead of leaving tombstones, so churn does not fill it.

/// An unused slot. No place is `u32::MAX`.
const EMPTY: u64 = u64::MAX;
/// Slots of the smallest table.
const SLOTS_MIN: usize = 4;

/// Tags to places. Several entries may have one tag.
#[derive(Debug, Default)]
pub(super) struct Table {
    slots: Vec<u64>,
    len: usize,
}

#[expect(clippy::cast_possible_truncation, reason = "the halves of an entry")]
const fn parts(entry: u64) -> (u32, u32) {
    ((entry >> 32) as u32, entry as u32)
}

impl Table {
    #[expect(clippy::cast_possible_truncation, reason = "the product's upper half is below the length")]
    const fn home(&self, tag: u32) -> usize {
        ((tag as u64 * self.slots.len() as u64) >> 32) as usize
    }

    const fn after(&self, slot: usize) -> usize {
        if slot + 1 == self.slots.len() { 0 } else { slot + 1 }
    }

    /// How far the entry in `slot` is from its home.
    const fn distance(&self, slot: usize, tag: u32) -> usize {
        let home = self.home(tag);
        if slot >= home { slot - home } else { slot + self.slots.len() - home }
    }

    fn at(&self, slot: usize) -> u64 {
        self.slots.get(slot).copied().unwrap_or(EMPTY)
    }

    fn put(&mut self, slot: usize, entry: u64) {
        if let Some(s) = self.slots.get_mut(slot) {
            *s = entry;
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// The slot of the first entry with this tag that `wanted` takes.
    fn slot(&self, tag: u32, mut wanted: impl FnMut(u32) -> bool) -> Option<usize> {
        if self.len == 0 {
            return None;
        }
        let mut slot = self.home(tag);
        for far in 0..self.slots.len() {
            let entry = self.at(slot);
            if entry == EMPTY {
                return None;
            }
            let (t, place) = parts(entry);
            if t == tag && wanted(place) {
                return Some(slot);
            }
            if self.distance(slot, t) < far {
                return None;
            }
            slot = self.after(slot);
        }
        None
    }

    /// The place of the first entry with this tag that `wanted` takes.
    pub(super) fn find(&self, tag: u32, wanted: impl FnMut(u32) -> bool) -> Option<u32> {
        self.slot(tag, wanted).map(|s| parts(self.at(s)).1)
    }

    /// Adds an entry; equal ones are not looked for.
    pub(super) fn insert(&mut self, tag: u32, place: u32) {
        if (self.len + 1) * 10 > self.slots.len() * 9 {
            let more = (self.slots.len() / 8).max(SLOTS_MIN);
            self.resize(self.slots.len() + more);
        }
        self.place(u64::from(tag) << 32 | u64::from(place));
        self.len += 1;
    }

    fn place(&mut self, mut entry: u64) {
        let mut slot = self.home(parts(entry).0);
        let mut far = 0;
        loop {
            let there = self.at(slot);
            if there == EMPTY {
                self.put(slot, entry);
                return;
            }
            let theirs = self.distance(slot, parts(there).0);
            if theirs < far {
                self.put(slot, entry);
                entry = there;
                far = theirs;
            }
            slot = self.after(slot);
            far += 1;
        }
    }

    /// Takes out the entry with this tag and place; says whether it was there.
    pub(super) fn remove(&mut self, tag: u32, place: u32) -> bool {
        let Some(mut slot) = self.slot(tag, |p| p == place) else { return false };
        loop {
            let next = self.after(slot);
            let entry = self.at(next);
            if entry == EMPTY || self.distance(next, parts(entry).0) == 0 {
                break;
            }
            self.put(slot, entry);
            slot = next;
        }
        self.put(slot, EMPTY);
        self.len -= 1;
        if self.len * 2 < self.slots.len() && self.slots.len() > 4 * SLOTS_MIN {
            self.resize(self.len * 5 / 4 + SLOTS_MIN);
        }
        true
    }

    fn resize(&mut self, slots: usize) {
        let old = std::mem::replace(&mut self.slots, vec![EMPTY; slots]);
        for entry in old.into_iter().filter(|e| *e != EMPTY) {
            self.place(entry);
        }
    }

    /// All entries as (tag, place), in no meaningful order.
    pub(super) fn entries(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.slots.iter().filter(|e| **e != EMPTY).map(|e| parts(*e))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn behaves_as_a_set_of_pairs(steps in prop::collection::vec((any::<bool>(), 0u32..40, 0u32..6), 1..600)) {
            let mut table = Table::default();
            let mut oracle = BTreeSet::new();
            for (add, tag, place) in steps {
                let tag = tag.wrapping_mul(0x0765_4321);
                if add {
                    if oracle.insert((tag, place)) {
                        table.insert(tag, place);
                    }
                } else {
                    prop_assert_eq!(table.remove(tag, place), oracle.remove(&(tag, place)));
                }
                prop_assert_eq!(table.find(tag, |p| p == place).is_some(), oracle.contains(&(tag, place)));
                prop_assert_eq!(table.len(), oracle.len());
            }
            prop_assert_eq!(table.entries().collect::<BTreeSet<_>>(), oracle);
        }
    }

    #[test]
    fn most_slots_are_in_use_and_freed_ones_come_back() {
        let mut table = Table::default();
        for n in 0..100_000u32 {
            table.insert(n.wrapping_mul(0x9e37_79b9), n);
        }
        assert!(table.slots.len() < 127_000, "{}", table.slots.len());
        for n in 0..99_000u32 {
            assert!(table.remove(n.wrapping_mul(0x9e37_79b9), n));
        }
        assert!(table.slots.len() < 3_000, "{}", table.slots.len());
        assert_eq!(table.find(99_500u32.wrapping_mul(0x9e37_79b9), |_| true), Some(99_500));
    }
}
