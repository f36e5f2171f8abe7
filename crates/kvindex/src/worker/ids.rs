//! Engine ids to places, for all workers together.
//!
//! Engines that hash alike give a block the same id on every worker, so one entry of eight bytes serves them
//! all. An entry keeps 44 bits of the mixed id (12 of them as the number of its table); what an id means is
//! checked where it matters: a store compares contents, and a block can only be removed by a worker that holds
//! it. An id whose entry is taken by another block goes to the worker's own exact map.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::runs::Place;
use super::table::Table;

const TABLE_BITS: u32 = 12;

#[derive(Debug)]
pub(super) struct Ids {
    tables: Vec<Mutex<Table>>,
}

/// Spreads an id's bits; engines may count instead of hashing.
pub(super) const fn mix(id: u64) -> u64 {
    let x = (id ^ (id >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 32)
}

/// The table of one id, locked.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    table: MutexGuard<'a, Table>,
    tag: u32,
}

impl Ids {
    pub(super) fn new() -> Self {
        Self { tables: (0..1usize << TABLE_BITS).map(|_| Mutex::default()).collect() }
    }

    #[expect(clippy::cast_possible_truncation, reason = "a tag is half of a hash")]
    pub(super) fn entry(&self, id: u64) -> Option<Entry<'_>> {
        let mixed = mix(id);
        let table = self.tables.get((mixed >> (64 - TABLE_BITS)) as usize)?;
        Some(Entry { table: table.lock().unwrap_or_else(PoisonError::into_inner), tag: mixed as u32 })
    }

    pub(super) fn len(&self) -> usize {
        self.tables.iter().map(|t| t.lock().unwrap_or_else(PoisonError::into_inner).len()).sum()
    }

    /// Deletes the entries of places that are not `wanted`; tells of each.
    pub(super) fn sweep(&self, wanted: impl Fn(Place) -> bool, gone: impl Fn(Place)) {
        for table in &self.tables {
            let mut table = table.lock().unwrap_or_else(PoisonError::into_inner);
            let out: Vec<(u32, u32)> = table.entries().filter(|(_, p)| !wanted(Place(*p))).collect();
            for (tag, place) in out {
                table.remove(tag, place);
                gone(Place(place));
            }
        }
    }
}

impl Entry<'_> {
    pub(super) fn place(&self) -> Option<Place> {
        self.table.find(self.tag, |_| true).map(Place)
    }

    pub(super) fn insert(&mut self, place: Place) {
        self.table.insert(self.tag, place.0);
    }

    pub(super) fn remove(&mut self, place: Place) {
        self.table.remove(self.tag, place.0);
    }
}
