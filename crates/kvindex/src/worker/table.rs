//! A hash table of 64-bit entries that stays nearly full.
//!
//! Entries are `tag << 32 | place` in one array, sorted, with gaps: the home of an entry follows from its tag in
//! order of tags, and an entry lies at its home or, without a gap between, after it. Sorted entries make growing
//! one pass without probing, so that growing by an eighth is cheap and seven tenths and more of the slots are in
//! use; deleting shifts back instead of leaving tombstones, so churn does not fill the table.

/// An unused slot. No place is `u32::MAX`.
const EMPTY: u64 = u64::MAX;
/// Slots of the smallest table.
const SLOTS_MIN: usize = 4;

/// Tags to places. Several entries may have one tag.
#[derive(Debug, Default)]
pub(super) struct Table {
    slots: Vec<u64>,
    len: u32,
    /// Homes lie below this; the slots after it take what overflows.
    homes: u32,
}

const fn parts(entry: u64) -> (u32, u32) {
    ((entry >> 32) as u32, entry as u32)
}

const fn entry(tag: u32, place: u32) -> u64 {
    (tag as u64) << 32 | place as u64
}

impl Table {
    const fn home(&self, tag: u32) -> usize {
        ((tag as u64 * self.homes as u64) >> 32) as usize
    }

    fn at(&self, slot: usize) -> u64 {
        self.slots.get(slot).copied().unwrap_or(EMPTY)
    }

    pub(super) const fn len(&self) -> usize {
        self.len as usize
    }

    /// The first slot, from the tag's home on, whose entry is not below `least`.
    fn seek(&self, tag: u32, least: u64) -> usize {
        let home = self.home(tag);
        let rest = self.slots.get(home..).unwrap_or(&[]);
        home + rest.iter().position(|e| *e >= least).unwrap_or(rest.len())
    }

    /// The place of the first entry with this tag that `wanted` takes.
    pub(super) fn find(&self, tag: u32, mut wanted: impl FnMut(u32) -> bool) -> Option<u32> {
        let from = self.seek(tag, entry(tag, 0));
        let rest = self.slots.get(from..).unwrap_or(&[]);
        let same = rest.iter().map(|e| parts(*e)).take_while(|(t, p)| *t == tag && *p != u32::MAX);
        same.map(|(_, place)| place).find(|p| wanted(*p))
    }

    /// Adds an entry; equal ones are not looked for.
    pub(super) fn insert(&mut self, tag: u32, place: u32) {
        if (u64::from(self.len) + 1) * 5 > u64::from(self.homes) * 4 {
            self.resize(self.homes as usize + (self.homes as usize / 8).max(SLOTS_MIN));
        }
        let new = entry(tag, place);
        loop {
            let slot = self.seek(tag, new);
            let rest = self.slots.get(slot..).unwrap_or(&[]);
            if let Some(gap) = rest.iter().position(|e| *e == EMPTY) {
                self.slots.copy_within(slot..slot + gap, slot + 1);
                if let Some(s) = self.slots.get_mut(slot) {
                    *s = new;
                }
                self.len += 1;
                return;
            }
            self.resize(self.homes as usize + (self.homes as usize / 8).max(SLOTS_MIN));
        }
    }

    /// Takes out the entry with this tag and place; says whether it was there.
    pub(super) fn remove(&mut self, tag: u32, place: u32) -> bool {
        let slot = self.seek(tag, entry(tag, place));
        if self.at(slot) != entry(tag, place) {
            return false;
        }
        let mut end = slot + 1;
        loop {
            let next = self.at(end);
            if next == EMPTY || self.home(parts(next).0) == end {
                break;
            }
            end += 1;
        }
        self.slots.copy_within(slot + 1..end, slot);
        if let Some(s) = self.slots.get_mut(end - 1) {
            *s = EMPTY;
        }
        self.len -= 1;
        if self.len * 2 < self.homes && self.slots.len() > 8 * SLOTS_MIN {
            self.resize(self.len() * 3 / 2 + SLOTS_MIN);
        }
        true
    }

    /// Takes out the entries with this place, whatever their tags: a look at every entry.
    pub(super) fn remove_place(&mut self, place: u32) {
        let tags: Vec<u32> = self.entries().filter(|(_, p)| *p == place).map(|(t, _)| t).collect();
        for tag in tags {
            self.remove(tag, place);
        }
    }

    fn resize(&mut self, homes: usize) {
        let old = std::mem::take(&mut self.slots);
        self.homes = u32::try_from(homes).unwrap_or(u32::MAX);
        let mut slots = Vec::with_capacity(homes + SLOTS_MIN + homes / 64);
        for e in old.into_iter().filter(|e| *e != EMPTY) {
            let home = self.home(parts(e).0);
            if slots.len() < home {
                slots.resize(home, EMPTY);
            }
            slots.push(e);
        }
        let least = homes + SLOTS_MIN + homes / 64;
        if slots.len() < least {
            slots.resize(least, EMPTY);
        }
        self.slots = slots;
    }

    /// All entries as (tag, place), by tag.
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
        assert!(table.slots.len() < 143_000, "{}", table.slots.len());
        for n in 0..99_000u32 {
            assert!(table.remove(n.wrapping_mul(0x9e37_79b9), n));
        }
        assert!(table.slots.len() < 3_000, "{}", table.slots.len());
        assert_eq!(table.find(99_500u32.wrapping_mul(0x9e37_79b9), |_| true), Some(99_500));
    }
}
