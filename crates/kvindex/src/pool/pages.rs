//! The pages themselves: 256 small tables, so that a reader waits for one object's change at most.

use std::hash::Hasher;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use indexmap::IndexMap;

use crate::spread::Spread;

use super::PageHash;

/// Most pages visited under one lock by [`super::PoolIndex::step`].
pub const SWEEP_LOCK_MAX: usize = 256;

/// How many tables.
pub(super) const PARTS: usize = 256;

/// One plane (up to 64 objects) of one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Page {
    /// Objects that are there.
    pub(super) present: u64,
    /// Objects of which the listing of generation `seen_in`, or an event since it began, has spoken.
    pub(super) spoken: u64,
    pub(super) plane: u32,
    /// The tenant's generation when this was last touched.
    pub(super) seen_in: u32,
}

pub(super) type Part = IndexMap<PageKey, Page, Spread>;

/// A page and its plane in 16 bytes: the plane is mixed into the hash, and checked in [`Page`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageKey([u64; 2]);

impl std::hash::Hash for PageKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0[0]);
        state.write_u64(self.0[1]);
    }
}

impl PageKey {
    pub(super) fn new(page: PageHash, plane: u32) -> Self {
        let [high, low] = page.words();
        Self([high, low ^ u64::from(plane).wrapping_mul(0xd6e8_feb8_6659_fd93)])
    }
}

/// All pages, in parts.
#[derive(Debug)]
pub(super) struct Pages {
    parts: Vec<RwLock<Part>>,
}

impl Pages {
    pub(super) fn new() -> Self {
        Self { parts: (0..PARTS).map(|_| RwLock::new(Part::default())).collect() }
    }

    fn part_of(page: PageHash) -> usize {
        let [high, low] = page.words();
        ((high ^ low.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize
    }

    /// The table of a page, to read. All planes of a page are in one table.
    pub(super) fn read(&self, page: PageHash) -> Option<RwLockReadGuard<'_, Part>> {
        let part = self.parts.get(Self::part_of(page))?;
        Some(part.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The table of a page, to write.
    pub(super) fn write(&self, page: PageHash) -> Option<RwLockWriteGuard<'_, Part>> {
        self.write_part(Self::part_of(page))
    }

    /// A table by number; `None` past the last.
    pub(super) fn write_part(&self, at: usize) -> Option<RwLockWriteGuard<'_, Part>> {
        let part = self.parts.get(at)?;
        Some(part.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Bytes held by the tables, from their capacities.
    pub(super) fn bytes(&self) -> usize {
        let entry = size_of::<PageKey>() + size_of::<Page>() + size_of::<u64>() + 2 * size_of::<usize>();
        self.parts
            .iter()
            .map(|part| part.read().unwrap_or_else(PoisonError::into_inner).capacity() * entry)
            .sum()
    }
}

/// Takes an entry out and gives memory back when three quarters of the table are idle.
pub(super) fn remove_at(part: &mut Part, at: usize) {
    part.swap_remove_index(at);
    if part.capacity() > 16 && part.len() < part.capacity() / 4 {
        part.shrink_to(part.len() * 2);
    }
}
