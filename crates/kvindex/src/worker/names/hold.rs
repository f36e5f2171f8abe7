//! The ids of one run's blocks, in their order.

use crate::worker::runs::{RUN_BLOCKS, RunNo};

/// In the place of the id of a block that is not held. A block that has this very id is known by `others`.
pub(super) const GONE: u64 = 0x6b3f_92d1_0c5a_e847;

/// The ids of one run's blocks.
#[derive(Debug, Default)]
pub(super) struct Hold {
    pub(super) run: RunNo,
    /// Position of the first id.
    pub(super) base: u16,
    /// Blocks of the run that the worker holds; 0 = the hold is free.
    pub(super) held: u16,
    pub(super) ids: Vec<u64>,
}

impl Hold {
    pub(super) fn id(&self, position: u32) -> Option<u64> {
        self.ids.get((position as usize).checked_sub(usize::from(self.base))?).copied()
    }

    /// The position of an id, where that is one of `from..to`.
    pub(super) fn find(&self, id: u64, from: u32, to: u32) -> Option<u32> {
        let [start, end] = [from, to].map(|p| (p as usize).saturating_sub(usize::from(self.base)));
        let ids = self.ids.get(start..end.min(self.ids.len()))?;
        let nth = ids.iter().position(|i| *i == id)?;
        Some((usize::from(self.base) + start + nth) as u32)
    }

    /// Puts ids at `start` and after it.
    pub(super) fn put(&mut self, start: u32, ids: &[u64]) {
        let (start, base) = (start as usize, usize::from(self.base));
        if self.ids.is_empty() {
            self.base = start as u16;
            self.ids.reserve_exact(ids.len());
        } else if start < base {
            self.ids.splice(0..0, std::iter::repeat_n(GONE, base - start));
            self.base = start as u16;
        }
        let from = start - usize::from(self.base);
        if self.ids.len() < from {
            self.ids.resize(from, GONE);
        }
        let over = ids.len().min(self.ids.len() - from);
        let (old, new) = ids.split_at(over);
        if let Some(there) = self.ids.get_mut(from..from + over) {
            there.copy_from_slice(old);
        }
        if self.ids.capacity() < self.ids.len() + new.len() {
            let room = RUN_BLOCKS.saturating_sub(usize::from(self.base) + self.ids.len());
            self.ids.reserve_exact(new.len().max((self.ids.len() / 8).min(room)));
        }
        self.ids.extend_from_slice(new);
    }

    /// Takes out the ids of `start..end`.
    pub(super) fn drop(&mut self, start: u32, end: u32) {
        let [from, to] = [start, end].map(|p| (p as usize).saturating_sub(usize::from(self.base)));
        if to < self.ids.len() {
            self.ids.get_mut(from..to).unwrap_or_default().fill(GONE);
            return;
        }
        self.ids.truncate(from);
        while self.ids.last() == Some(&GONE) {
            self.ids.pop();
        }
        if self.ids.len() * 2 < self.ids.capacity() {
            self.ids.shrink_to(self.ids.len() * 9 / 8);
        }
    }
}
