//! A hash table of 64-bit entries that stays nearly full.
//!
//! An entry is a tag and a place of 32 bits each, in buckets of eight, one cache line's worth. The home bucket
//! follows from the tag alone, so that growing needs nothing but the entries; what finds its bucket full goes to
//! the next one. Deleting pulls such entries back instead of leaving tombstones, so churn does not fill the table.
//!
//! - I-TBL-1 in a bucket, entries come before unused slots;
//! - I-TBL-2 all buckets from an entry's home to the one before its own are full.

/// Slots of a bucket.
const WIDTH: usize = 8;
const FULL: u8 = 8;

/// The first of its slots are in use.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
struct Bucket {
    tags: [u32; WIDTH],
    places: [u32; WIDTH],
}

/// Tags to places. Several entries may have one tag.
#[derive(Debug, Default)]
pub(super) struct Table {
    buckets: Vec<Bucket>,
    /// Slots in use of each bucket; apart, because what was just written a word at a time is slow to read whole.
    used: Vec<u8>,
    len: usize,
}

/// Bit for each of the first `used` tags that equals `tag`.
fn hits(bucket: &Bucket, tag: u32, used: u8) -> u32 {
    let mut bits = 0;
    for (slot, t) in bucket.tags.iter().enumerate() {
        bits |= u32::from(*t == tag) << slot;
    }
    bits & ((1 << used) - 1)
}

impl Table {
    fn home(&self, tag: u32) -> usize {
        ((u64::from(tag) * self.buckets.len() as u64) >> 32) as usize
    }

    fn after(&self, bucket: usize) -> usize {
        if bucket + 1 == self.buckets.len() { 0 } else { bucket + 1 }
    }

    /// Buckets from `from` on to `to`.
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.buckets.len() - from }
    }

    fn used(&self, bucket: usize) -> u8 {
        self.used.get(bucket).copied().unwrap_or(0)
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// A look at the bucket of a tag. Looks that do not wait for each other bring many buckets into the cache in
    /// the time of one.
    pub(super) fn touch(&self, tag: u32) -> u32 {
        self.buckets.get(self.home(tag)).map_or(0, |b| b.tags[0])
    }

    #[inline]
    fn seek(&self, tag: u32, mut wanted: impl FnMut(u32) -> bool) -> Option<(usize, usize)> {
        let mut at = self.home(tag);
        for _ in 0..self.buckets.len() {
            let bucket = self.buckets.get(at)?;
            let used = self.used(at);
            let mut hits = hits(bucket, tag, used);
            while hits != 0 {
                let slot = hits.trailing_zeros() as usize % WIDTH;
                if wanted(bucket.places[slot]) {
                    return Some((at, slot));
                }
                hits &= hits - 1;
            }
            if used < FULL {
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
        if (self.len + 1) * 6 > self.buckets.len() * WIDTH * 5 {
            self.resize(self.buckets.len() + self.buckets.len() / 4 + 1);
        }
        self.put(tag, place);
        self.len += 1;
    }

    fn put(&mut self, tag: u32, place: u32) {
        let mut at = self.home(tag);
        while self.used(at) == FULL {
            at = self.after(at);
        }
        self.push(at, tag, place);
    }

    fn push(&mut self, at: usize, tag: u32, place: u32) {
        let (Some(bucket), Some(used)) = (self.buckets.get_mut(at), self.used.get_mut(at)) else { return };
        let slot = usize::from(*used) % WIDTH;
        bucket.tags[slot] = tag;
        bucket.places[slot] = place;
        *used += 1;
    }

    /// Takes an entry out and closes the gap; says whether the bucket was full.
    fn cut(&mut self, at: usize, slot: usize) -> bool {
        let (Some(bucket), Some(used)) = (self.buckets.get_mut(at), self.used.get_mut(at)) else { return false };
        let full = *used == FULL;
        *used = used.saturating_sub(1);
        let (slot, last) = (slot % WIDTH, usize::from(*used) % WIDTH);
        bucket.tags[slot] = bucket.tags[last];
        bucket.places[slot] = bucket.places[last];
        full
    }

    /// Takes out the entry with this tag and place; says whether it was there.
    pub(super) fn remove(&mut self, tag: u32, place: u32) -> bool {
        let Some((at, slot)) = self.seek(tag, |p| p == place) else { return false };
        if self.cut(at, slot) {
            self.pull(at);
        }
        self.len -= 1;
        if self.len * 2 < self.buckets.len() * WIDTH && self.buckets.len() > 2 {
            self.resize((self.len * 3 / 2).div_ceil(WIDTH) + 1);
        }
        true
    }

    /// A bucket that was full is no longer: entries that had passed it by come back.
    fn pull(&mut self, mut hole: usize) {
        let mut at = self.after(hole);
        while at != hole {
            let Some(bucket) = self.buckets.get(at) else { return };
            let used = self.used(at);
            let far = self.distance(hole, at);
            let passed = |tag: &u32| self.distance(self.home(*tag), at) >= far;
            if let Some(slot) = bucket.tags.iter().take(usize::from(used)).position(passed) {
                let (tag, place) = (bucket.tags[slot % WIDTH], bucket.places[slot % WIDTH]);
                self.push(hole, tag, place);
                self.cut(at, slot);
                hole = at;
            }
            if used < FULL {
                return;
            }
            at = self.after(at);
        }
    }

    /// Takes out the entries with this place, whatever their tags: a look at every entry.
    pub(super) fn remove_place(&mut self, place: u32) {
        let tags: Vec<u32> = self.entries().filter(|(_, p)| *p == place).map(|(t, _)| t).collect();
        for tag in tags {
            self.remove(tag, place);
        }
    }

    fn resize(&mut self, buckets: usize) {
        let old = std::mem::replace(&mut self.buckets, vec![Bucket::default(); buckets]);
        let used = std::mem::replace(&mut self.used, vec![0; buckets]);
        for (bucket, used) in old.iter().zip(used) {
            for (tag, place) in bucket.tags.iter().zip(bucket.places).take(usize::from(used)) {
                self.put(*tag, place);
            }
        }
    }

    /// All entries as (tag, place), in no meaningful order.
    pub(super) fn entries(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let entries = |(b, used): (&Bucket, &u8)| b.tags.into_iter().zip(b.places).take(usize::from(*used));
        self.buckets.iter().zip(&self.used).flat_map(entries)
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
        assert!(table.buckets.len() * WIDTH < 142_000, "{}", table.buckets.len());
        for n in 0..99_000u32 {
            assert!(table.remove(n.wrapping_mul(0x9e37_79b9), n));
        }
        assert!(table.buckets.len() * WIDTH < 3_000, "{}", table.buckets.len());
        assert_eq!(table.find(99_500u32.wrapping_mul(0x9e37_79b9), |_| true), Some(99_500));
    }
}
