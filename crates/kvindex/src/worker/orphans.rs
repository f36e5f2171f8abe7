//! Stored blocks whose parent is not known yet.
//!
//! They are kept by the parent's id, up to a bound, the oldest going first, and linked when the parent comes.
//! Until then no match sees them.

use std::collections::{BTreeMap, VecDeque};

/// A block that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Orphan {
    pub(super) id: u64,
    pub(super) local: u64,
    pub(super) tier: u8,
    /// Copies beyond the first.
    pub(super) extra: u32,
}

#[derive(Debug, Default)]
pub(super) struct Orphans {
    by_parent: BTreeMap<u64, Vec<Orphan>>,
    /// Id of each one that waits to the ids of its parents (several only when ids are used twice).
    parents: BTreeMap<(u64, u8), u64>,
    /// Oldest first; may name some that are gone.
    order: VecDeque<(u64, u8)>,
}

impl Orphans {
    pub(super) fn is_empty(&self) -> bool {
        self.parents.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.parents.len()
    }

    /// A block that waits.
    pub(super) fn get_mut(&mut self, id: u64, tier: u8) -> Option<&mut Orphan> {
        let parent = self.parents.get(&(id, tier))?;
        self.by_parent.get_mut(parent)?.iter_mut().find(|o| (o.id, o.tier) == (id, tier))
    }

    /// One copy of a block left its tier; says whether one waited.
    pub(super) fn remove_copy(&mut self, id: u64, tier: u8) -> bool {
        match self.get_mut(id, tier) {
            None => false,
            Some(Orphan { extra: 0, .. }) => self.remove(id, tier),
            Some(orphan) => {
                orphan.extra -= 1;
                true
            }
        }
    }

    /// Keeps a block; returns how many old ones had to go.
    pub(super) fn park(&mut self, parent: u64, orphan: Orphan, most: usize) -> usize {
        self.remove(orphan.id, orphan.tier);
        if most == 0 {
            return 1;
        }
        let mut dropped = 0;
        while self.parents.len() >= most {
            let Some((id, tier)) = self.order.pop_front() else { break };
            dropped += usize::from(self.remove(id, tier));
        }
        self.by_parent.entry(parent).or_default().push(orphan);
        self.parents.insert((orphan.id, orphan.tier), parent);
        self.order.push_back((orphan.id, orphan.tier));
        if self.order.len() > 2 * most {
            let Self { order, parents, .. } = self;
            order.retain(|key| parents.contains_key(key));
        }
        dropped
    }

    /// Forgets a block that left its tier.
    pub(super) fn remove(&mut self, id: u64, tier: u8) -> bool {
        let Some(parent) = self.parents.remove(&(id, tier)) else { return false };
        if let Some(list) = self.by_parent.get_mut(&parent) {
            list.retain(|o| (o.id, o.tier) != (id, tier));
            if list.is_empty() {
                self.by_parent.remove(&parent);
            }
        }
        true
    }

    /// The blocks that waited for this one, in the order in which they came.
    pub(super) fn take(&mut self, parent: u64) -> Vec<Orphan> {
        let list = self.by_parent.remove(&parent).unwrap_or_default();
        for orphan in &list {
            self.parents.remove(&(orphan.id, orphan.tier));
        }
        list
    }

    /// Forgets all, or all of one tier.
    pub(super) fn clear(&mut self, tier: Option<u8>) {
        let Some(tier) = tier else {
            *self = Self::default();
            return;
        };
        let keys: Vec<(u64, u8)> = self.parents.keys().filter(|(_, t)| *t == tier).copied().collect();
        for (id, tier) in keys {
            self.remove(id, tier);
        }
    }
}
