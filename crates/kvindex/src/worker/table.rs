//! A hash table of 64-bit entries that stays nearly full.
//!
//! An entry is a tag and a place of 32 bits each, in buckets of eight, one cache line's worth. The home bucket
//! follows from the tag alone, so that growing needs nothing but the entries; what finds its bucket full goes to
//! the next one. Each bucket counts the entries that passed it by, so that a search knows where to stop and
//! deleting leaves no tombstones behind: churn does not fill the table.
//!
//! - I-TBL-1 in a bucket, entries come before unused slots;
//! - I-TBL-2 a bucket's count is that of the entries whose home is that bucket or one before it and that lie
//!   behind it (255 = perhaps more: such a bucket is always passed).

/// Slots of a bucket.
const WIDTH: usize = 8;
const FULL: u8 = 8;

/// The first of its slots are in use. Tags lie in halves, so that two words tell about the lower ones of all slots.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
struct Bucket {
    lower: [u64; 2],
    upper: [u16; WIDTH],
    places: [u32; WIDTH],
}

impl Bucket {
    fn tag(&self, slot: usize) -> u32 {
        let slot = slot % WIDTH;
        u32::from(self.upper[slot]) << 16 | (self.lower[slot / 4] >> (slot % 4 * 16)) as u32 & 0xffff
    }

    fn set(&mut self, slot: usize, tag: u32, place: u32) {
        let slot = slot % WIDTH;
        let (word, at) = (&mut self.lower[slot / 4], slot % 4 * 16);
        *word = *word & !(0xffff << at) | u64::from(tag & 0xffff) << at;
        self.upper[slot] = (tag >> 16) as u16;
        self.places[slot] = place;
    }

    /// The slots, of the first `used`, that have this tag.
    #[inline]
    fn hits(&self, tag: u32, used: u8) -> impl Iterator<Item = usize> + '_ {
        const ONES: u64 = 0x0001_0001_0001_0001;
        let wanted = u64::from(tag & 0xffff) * ONES;
        // The top bit of each 16 that are equal; now and then of others, which the whole tag tells apart.
        let equal = |word: u64| {
            let differ = word ^ wanted;
            differ.wrapping_sub(ONES) & !differ & (ONES << 15)
        };
        let mut bits = equal(self.lower[0]) >> 15 | equal(self.lower[1]) >> 14;
        std::iter::from_fn(move || {
            while bits != 0 {
                let bit = bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let slot = bit / 16 + bit % 16 * 4;
                if slot < usize::from(used) && self.tag(slot) == tag {
                    return Some(slot % WIDTH);
                }
            }
            None
        })
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    /// Slots in use.
    used: u8,
    /// Entries that passed by.
    passed: u8,
}

/// Tags to places. Several entries may have one tag.
#[derive(Debug, Default)]
pub(super) struct Table {
    buckets: Vec<Bucket>,
    /// Of each bucket; apart, because what was just written a word at a time is slow to read whole.
    counts: Vec<Counts>,
    len: usize,
}

impl Table {
    fn home(&self, tag: u32) -> usize {
        ((u64::from(tag) * self.buckets.len() as u64) >> 32) as usize
    }

    fn after(&self, bucket: usize) -> usize {
        if bucket + 1 == self.buckets.len() { 0 } else { bucket + 1 }
    }

    fn counts(&self, bucket: usize) -> Counts {
        self.counts.get(bucket).copied().unwrap_or_default()
    }

    #[inline]
    fn seek(&self, tag: u32, mut wanted: impl FnMut(u32) -> bool) -> Option<(usize, usize)> {
        let mut at = self.home(tag);
        for _ in 0..self.buckets.len() {
            let bucket = self.buckets.get(at)?;
            let Counts { used, passed } = self.counts(at);
            if let Some(slot) = bucket.hits(tag, used).find(|slot| wanted(bucket.places[*slot])) {
                return Some((at, slot));
            }
            if passed == 0 {
                return None;
            }
            at = self.after(at);
        }
        None
    }

    /// The place of the first entry with this tag that `wanted` takes.
    #[inline]
    pub(super) fn find(&self, tag: u32, wanted: impl FnMut(u32) -> bool) -> Option<u32> {
        let (at, slot) = self.seek(tag, wanted)?;
        self.buckets.get(at).and_then(|b| b.places.get(slot)).copied()
    }

    /// Adds an entry; equal ones are not looked for.
    pub(super) fn insert(&mut self, tag: u32, place: u32) {
        if self.crowded() {
            self.resize(self.buckets.len() + self.buckets.len() / 3 + 1);
        }
        self.put(tag, place);
        self.len += 1;
    }

    const fn crowded(&self) -> bool {
        (self.len + 1) * 5 > self.buckets.len() * WIDTH * 4
    }

    fn put(&mut self, tag: u32, place: u32) {
        let mut at = self.home(tag);
        while let Some(counts) = self.counts.get_mut(at) {
            if counts.used < FULL {
                if let Some(bucket) = self.buckets.get_mut(at) {
                    bucket.set(usize::from(counts.used), tag, place);
                }
                counts.used += 1;
                return;
            }
            counts.passed = counts.passed.saturating_add(1);
            at = self.after(at);
        }
    }

    /// Takes out the entry with this tag and place; says whether it was there.
    pub(super) fn remove(&mut self, tag: u32, place: u32) -> bool {
        let Some((at, slot)) = self.seek(tag, |p| p == place) else { return false };
        self.take(at, slot, tag);
        true
    }

    #[inline]
    fn take(&mut self, at: usize, slot: usize, tag: u32) {
        if let (Some(bucket), Some(counts)) = (self.buckets.get_mut(at), self.counts.get_mut(at)) {
            counts.used = counts.used.saturating_sub(1);
            let last = usize::from(counts.used) % WIDTH;
            bucket.set(slot, bucket.tag(last), bucket.places[last]);
        }
        let mut passed = self.home(tag);
        while passed != at {
            if let Some(counts) = self.counts.get_mut(passed).filter(|c| c.passed < u8::MAX) {
                counts.passed = counts.passed.saturating_sub(1);
            }
            passed = self.after(passed);
        }
        self.len -= 1;
        if self.len * 2 < self.buckets.len() * WIDTH && self.buckets.len() > 2 {
            self.resize((self.len * 3 / 2).div_ceil(WIDTH) + 1);
        }
    }

    fn resize(&mut self, buckets: usize) {
        let old = std::mem::replace(&mut self.buckets, vec![Bucket::default(); buckets]);
        let counts = std::mem::replace(&mut self.counts, vec![Counts::default(); buckets]);
        for (bucket, counts) in old.iter().zip(counts) {
            for (slot, place) in bucket.places.iter().enumerate().take(usize::from(counts.used)) {
                self.put(bucket.tag(slot), *place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn entries(table: &Table) -> BTreeSet<(u32, u32)> {
        let buckets = table.buckets.iter().zip(&table.counts);
        buckets
            .flat_map(|(bucket, counts)| {
                (0..usize::from(counts.used)).map(|slot| (bucket.tag(slot), bucket.places[slot]))
            })
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// I-TBL-1, I-TBL-2.
        #[test]
        fn behaves_as_a_set_of_pairs(steps in prop::collection::vec((any::<bool>(), 0u32..40, 0u32..6), 1..600)) {
            let mut table = Table::default();
            let mut oracle = BTreeSet::new();
            for (add, tag, place) in steps {
                // Tags lie close, so that buckets overflow and wrap around.
                let tag = u32::MAX - tag.wrapping_mul(0x0065_4321);
                if add {
                    if oracle.insert((tag, place)) {
                        table.insert(tag, place);
                    }
                } else {
                    prop_assert_eq!(table.remove(tag, place), oracle.remove(&(tag, place)));
                }
                prop_assert_eq!(table.find(tag, |p| p == place).is_some(), oracle.contains(&(tag, place)));
                prop_assert_eq!(table.len, oracle.len());
            }
            prop_assert_eq!(entries(&table), oracle);
        }
    }

    /// I-WIX-7.
    #[test]
    fn most_slots_are_in_use_and_freed_ones_come_back() {
        let mut table = Table::default();
        for n in 0..100_000u32 {
            table.insert(n.wrapping_mul(0x9e37_79b9), n);
        }
        assert!(table.buckets.len() * WIDTH < 169_000, "{}", table.buckets.len());
        for n in 0..99_000u32 {
            assert!(table.remove(n.wrapping_mul(0x9e37_79b9), n));
        }
        assert!(table.buckets.len() * WIDTH < 3_000, "{}", table.buckets.len());
        assert_eq!(table.find(99_500u32.wrapping_mul(0x9e37_79b9), |_| true), Some(99_500));
    }
}
