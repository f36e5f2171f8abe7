//! What a store holds, and what it says of that.
//!
//! - Purpose: objects of segments under one capacity, and the events that Mooncake 0.3.14 publishes of them.
//! - Inputs: puts, reads, removals, clients that die. Outputs: [`ObjectChange`]s to publish.
//! - Invariants: I-MSO-1 the bytes held never exceed the capacity; I-MSO-2 evictions at the watermark and lost
//!   segments are published by nobody; I-MSO-3 a second put of a key changes nothing and says nothing.
//! - Source: captures of Mooncake 0.3.14.

use std::collections::BTreeMap;
use std::sync::Arc;

use tandem_kvwire::mooncake::ObjectChange;

/// One object.
#[derive(Debug, Clone)]
pub(crate) struct Object {
    pub(crate) size: u64,
    pub(crate) segment: Arc<str>,
    pub(crate) group: Option<Arc<str>>,
    /// When it was used last, in uses.
    used: u64,
}

/// Limits of a store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) capacity: u64,
    /// Part of the capacity beyond which objects are evicted, and the part of the objects that then goes.
    pub(crate) watermark: f64,
    pub(crate) ratio: f64,
}

#[derive(Debug)]
pub(crate) struct Objects {
    limits: Limits,
    objects: BTreeMap<Arc<str>, Object>,
    by_use: BTreeMap<u64, Arc<str>>,
    clock: u64,
    pub(crate) bytes: u64,
    pub(crate) evicted: u64,
}

impl Objects {
    pub(crate) const fn new(limits: Limits) -> Self {
        Self { limits, objects: BTreeMap::new(), by_use: BTreeMap::new(), clock: 0, bytes: 0, evicted: 0 }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Object> {
        self.objects.get(key)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Object)> {
        self.objects.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(crate) const fn capacity(&self) -> u64 {
        self.limits.capacity
    }

    /// Names of the segments that hold something, with the bytes in each.
    pub(crate) fn segments(&self) -> BTreeMap<Arc<str>, u64> {
        let mut segments = BTreeMap::new();
        for object in self.objects.values() {
            *segments.entry(Arc::clone(&object.segment)).or_default() += object.size;
        }
        segments
    }

    /// Marks an object as used; tells whether it is there.
    pub(crate) fn touch(&mut self, key: &str) -> bool {
        let Some((name, object)) = self.objects.get_key_value(key) else { return false };
        let (name, before) = (Arc::clone(name), object.used);
        self.clock += 1;
        self.by_use.remove(&before);
        self.by_use.insert(self.clock, name);
        if let Some(object) = self.objects.get_mut(key) {
            object.used = self.clock;
        }
        true
    }

    /// Puts an object; `None` = it was there, or is too large.
    pub(crate) fn put(
        &mut self,
        key: &Arc<str>,
        size: u64,
        segment: &Arc<str>,
        group: Option<Arc<str>>,
    ) -> Option<ObjectChange> {
        if self.touch(key) || size > self.limits.capacity {
            return None;
        }
        #[expect(clippy::cast_precision_loss, reason = "a share of the capacity")]
        let full = (self.bytes + size) as f64 > self.limits.capacity as f64 * self.limits.watermark;
        if full && !self.objects.is_empty() {
            #[expect(
                clippy::cast_precision_loss,
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a share of a count"
            )]
            let share = (self.objects.len() as f64 * self.limits.ratio).ceil() as usize;
            self.evict(share.max(1));
        }
        while self.bytes + size > self.limits.capacity && self.evict(1) > 0 {}
        self.clock += 1;
        self.by_use.insert(self.clock, Arc::clone(key));
        let object = Object { size, segment: Arc::clone(segment), group, used: self.clock };
        self.objects.insert(Arc::clone(key), object);
        self.bytes += size;
        Some(ObjectChange::Stored(Arc::clone(key)))
    }

    /// Drops the least recently used objects without a word; returns how many there were.
    pub(crate) fn evict(&mut self, count: usize) -> usize {
        let mut gone = 0;
        while gone < count
            && let Some((_, key)) = self.by_use.pop_first()
        {
            self.drop_object(&key);
            gone += 1;
        }
        self.evicted += gone as u64;
        gone
    }

    pub(crate) fn remove(&mut self, key: &str) -> Option<ObjectChange> {
        let used = self.objects.get(key)?.used;
        let key = self.by_use.remove(&used)?;
        self.drop_object(&key);
        Some(ObjectChange::Removed(key))
    }

    /// Removes everything: one event for each object and one for all.
    pub(crate) fn remove_all(&mut self) -> Vec<ObjectChange> {
        let keys = std::mem::take(&mut self.objects).into_keys();
        let mut changes: Vec<ObjectChange> = keys.map(ObjectChange::Removed).collect();
        self.by_use.clear();
        self.bytes = 0;
        changes.push(ObjectChange::Cleared);
        changes
    }

    /// A client is gone and its segment with it, without a word.
    pub(crate) fn unmount(&mut self, segment: &str) -> usize {
        let lost = self.objects.iter().filter(|(_, object)| &*object.segment == segment);
        let lost: Vec<(Arc<str>, u64)> = lost.map(|(key, object)| (Arc::clone(key), object.used)).collect();
        for (key, used) in &lost {
            self.by_use.remove(used);
            self.drop_object(key);
        }
        lost.len()
    }

    fn drop_object(&mut self, key: &str) {
        if let Some(object) = self.objects.remove(key) {
            self.bytes -= object.size;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(objects: &mut Objects, key: &str, segment: &str) -> Option<ObjectChange> {
        objects.put(&Arc::from(key), 10, &Arc::from(segment), None)
    }

    fn keys(objects: &Objects) -> Vec<&str> {
        objects.iter().map(|(key, _)| &**key).collect()
    }

    /// I-MSO-1, I-MSO-2, I-MSO-3.
    #[test]
    fn what_is_said_and_what_is_not() {
        let limits = Limits { capacity: 40, watermark: 0.95, ratio: 0.25 };
        let mut objects = Objects::new(limits);
        for key in ["a", "b", "c"] {
            assert_eq!(put(&mut objects, key, "one"), Some(ObjectChange::Stored(key.into())));
        }
        assert_eq!(put(&mut objects, "a", "one"), None, "a second put");
        // 40 bytes are above 95 % of 40: the object not used for longest goes first, unsaid.
        assert_eq!(put(&mut objects, "d", "two"), Some(ObjectChange::Stored("d".into())));
        assert_eq!((keys(&objects), objects.bytes, objects.evicted), (vec!["a", "c", "d"], 30, 1));
        assert_eq!(objects.unmount("one"), 2);
        assert_eq!((keys(&objects), objects.bytes), (vec!["d"], 10));
        assert_eq!(objects.remove("a"), None);
        assert_eq!(objects.remove("d"), Some(ObjectChange::Removed("d".into())));
        put(&mut objects, "e", "one");
        assert_eq!(objects.remove_all(), [ObjectChange::Removed("e".into()), ObjectChange::Cleared]);
        assert_eq!((objects.len(), objects.bytes), (0, 0));
        assert_eq!(objects.put(&Arc::from("big"), 41, &Arc::from("one"), None), None);
    }
}
