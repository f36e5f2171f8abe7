//! One worker's events.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::ids::{Ids, mix};
use super::orphans::{Orphan, Orphans};
use super::runs::{Cursor, Dropped, Forest, Piece, Place, RunNo, Unplaced};
use super::table::Table;
use super::{Applied, Copies, Stored, WorkerIndexConfig};
use crate::chain;

/// What all workers share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) forest: Forest,
    pub(super) ids: Ids,
    /// Entries of blocks that nobody holds, about.
    pub(super) stale: AtomicUsize,
    /// So many of them are swept, unless there have come to be many more ids.
    pub(super) sweep_at: AtomicUsize,
    pub(super) config: WorkerIndexConfig,
}

/// One worker's own bookkeeping.
#[derive(Debug)]
pub(super) struct State {
    number: u32,
    pub(super) gone: bool,
    /// Runs of which the worker holds something.
    runs: Table,
    /// Copies beyond the first, by place and tier.
    extra: BTreeMap<(Place, u8), u32>,
    /// Ids whose entry in the common table is another block's.
    odd: BTreeMap<u64, Place>,
    orphans: Orphans,
    contents: Vec<u64>,
    pieces: Vec<Piece>,
}

/// What an id's entry was worth when a block was stored under it.
#[derive(Debug, PartialEq, Eq)]
enum Named {
    Before,
    Now,
}

#[expect(clippy::cast_possible_truncation, reason = "a tag is half of a hash")]
const fn run_tag(run: RunNo) -> u32 {
    mix(run as u64) as u32
}

impl State {
    pub(super) fn new(number: u32) -> Self {
        Self {
            number,
            gone: false,
            runs: Table::default(),
            extra: BTreeMap::new(),
            odd: BTreeMap::new(),
            orphans: Orphans::default(),
            contents: Vec::new(),
            pieces: Vec::new(),
        }
    }

    pub(super) fn orphans(&self) -> usize {
        self.orphans.len()
    }

    pub(super) fn stored(&mut self, shared: &Shared, event: &Stored<'_>, tier: u8) -> Applied {
        let mut applied = Applied::default();
        if event.locals.is_empty() {
            for id in event.ids {
                self.attach(shared, *id, tier, event.copies, &mut applied);
            }
            return applied;
        }
        let cursor = match event.parent {
            None => None,
            Some(parent) => match self.resolve(shared, parent) {
                Some(cursor) => Some(cursor),
                None => {
                    self.park(shared, parent, event.ids, event.locals, tier, &mut applied);
                    return applied;
                }
            },
        };
        self.link(shared, cursor, event, tier, &mut applied);
        if !self.orphans.is_empty() {
            for id in event.ids {
                self.orphans.remove(*id, tier);
            }
            self.adopt(shared, event.ids, &mut applied);
        }
        applied
    }

    /// The block that an id names. An id that another worker uses, or that was removed not long ago, will do:
    /// engines that hash alike give equal blocks equal ids.
    fn resolve(&self, shared: &Shared, id: u64) -> Option<Cursor> {
        if let Some(place) = self.odd.get(&id) {
            return Some(Cursor { place: *place, content: shared.forest.content(*place)? });
        }
        // The entry is locked while the content is read: its place cannot be given away meanwhile.
        let entry = shared.ids.entry(id)?;
        let place = entry.place()?;
        Some(Cursor { place, content: shared.forest.content(place)? })
    }

    /// Stores blocks after a known parent.
    fn link(
        &mut self,
        shared: &Shared,
        cursor: Option<Cursor>,
        event: &Stored<'_>,
        tier: u8,
        applied: &mut Applied,
    ) {
        let mut contents = std::mem::take(&mut self.contents);
        let mut pieces = std::mem::take(&mut self.pieces);
        contents.clear();
        pieces.clear();
        let mut last = cursor.map(|c| c.content);
        for local in event.locals {
            let content = chain::next(last, *local);
            contents.push(content);
            last = Some(content);
        }
        let outcome = shared.forest.store(cursor, &contents, self.number, tier, &mut pieces);
        let mut done = 0;
        for piece in pieces.drain(..) {
            let count = (piece.end - piece.start) as usize;
            let ids = event.ids.get(done..done + count).unwrap_or(&[]);
            self.take_piece(shared, &piece, ids, tier, event.copies, applied);
            done += count;
        }
        if let Err(why) = outcome {
            let ids = event.ids.get(done..).unwrap_or(&[]);
            let locals = event.locals.get(done..).unwrap_or(&[]);
            let before = done.checked_sub(1).and_then(|d| event.ids.get(d)).copied().or(event.parent);
            match (why, before) {
                (Unplaced::NoParent, Some(parent)) => self.park(shared, parent, ids, locals, tier, applied),
                (Unplaced::NoParent | Unplaced::Full, _) => applied.refused += ids.len(),
            }
        }
        self.contents = contents;
        self.pieces = pieces;
    }

    fn take_piece(
        &mut self,
        shared: &Shared,
        piece: &Piece,
        ids: &[u64],
        tier: u8,
        copies: Copies,
        applied: &mut Applied,
    ) {
        if piece.first {
            self.runs.insert(run_tag(piece.run), piece.run);
        }
        let mut again = 0;
        for &(from, to) in &piece.had {
            again += (to - from) as usize;
            if copies == Copies::Each {
                for position in from..to {
                    *self.extra.entry((Place::new(piece.run, position as usize), tier)).or_default() += 1;
                }
            }
        }
        applied.changed += ids.len() - again.min(ids.len());
        applied.copies += again;
        let mut before = 0;
        for (position, id) in (piece.start..).zip(ids) {
            let place = Place::new(piece.run, position as usize);
            before += u32::from(self.name(shared, *id, place) == Named::Before);
        }
        let named = u32::try_from(ids.len()).unwrap_or(u32::MAX) - before;
        if named > 0 && piece.shared {
            shared.forest.mark_sticky(piece.run);
        }
        let surplus = (piece.end - piece.start) - named;
        if surplus > 0 {
            shared.forest.forget_entries(piece.run, surplus);
        }
    }

    /// Makes an id name a place.
    fn name(&mut self, shared: &Shared, id: u64, place: Place) -> Named {
        if let Some(old) = self.odd.get(&id).copied() {
            if old == place {
                return Named::Before;
            }
            self.odd.insert(id, place);
            shared.forest.forget_entries(old.run(), 1);
            return Named::Now;
        }
        let Some(mut entry) = shared.ids.entry(id) else { return Named::Before };
        match entry.place() {
            None => {
                entry.insert(place);
                Named::Now
            }
            Some(there) if there == place => Named::Before,
            Some(there) if shared.forest.held(there, None) => {
                self.odd.insert(id, place);
                Named::Now
            }
            Some(there) => {
                entry.remove(there);
                entry.insert(place);
                shared.forest.forget_entries(there.run(), 1);
                Named::Now
            }
        }
    }

    /// A block of which only the id is told is in one more tier.
    fn attach(&mut self, shared: &Shared, id: u64, tier: u8, copies: Copies, applied: &mut Applied) {
        let odd = self.odd.get(&id).copied();
        let entry = shared.ids.entry(id);
        let place = odd.or_else(|| entry.as_ref().and_then(super::ids::Entry::place));
        match place.filter(|p| shared.forest.held(*p, Some(self.number))) {
            None => applied.unknown += 1,
            Some(place) if shared.forest.attach(place, self.number, tier) => {
                applied.copies += 1;
                if copies == Copies::Each {
                    *self.extra.entry((place, tier)).or_default() += 1;
                }
            }
            Some(_) => applied.changed += 1,
        }
    }

    fn park(
        &mut self,
        shared: &Shared,
        parent: u64,
        ids: &[u64],
        locals: &[u64],
        tier: u8,
        applied: &mut Applied,
    ) {
        let mut parent = parent;
        for (id, local) in ids.iter().zip(locals) {
            let orphan = Orphan { id: *id, local: *local, tier };
            applied.refused += self.orphans.park(parent, orphan, shared.config.orphans_max);
            parent = *id;
        }
        applied.parked += ids.len();
    }

    /// Links blocks that waited for one of these, and those that waited for them.
    fn adopt(&mut self, shared: &Shared, ids: &[u64], applied: &mut Applied) {
        let mut todo: Vec<u64> = ids.to_vec();
        while let Some(parent) = todo.pop() {
            let waiting = self.orphans.take(parent);
            if waiting.is_empty() {
                continue;
            }
            let Some(cursor) = self.resolve(shared, parent) else { continue };
            for orphan in waiting {
                let event = Stored {
                    parent: Some(parent),
                    ids: &[orphan.id],
                    locals: &[orphan.local],
                    tier: tier_of(orphan.tier),
                    copies: Copies::Repeated,
                };
                self.link(shared, Some(cursor), &event, orphan.tier, applied);
                todo.push(orphan.id);
            }
        }
    }

    pub(super) fn removed(&mut self, shared: &Shared, ids: &[u64], tier: u8) -> Applied {
        let mut applied = Applied::default();
        for id in ids {
            self.remove_one(shared, *id, tier, &mut applied);
        }
        applied
    }

    fn remove_one(&mut self, shared: &Shared, id: u64, tier: u8, applied: &mut Applied) {
        if !self.orphans.is_empty() && self.orphans.remove(id, tier) {
            applied.changed += 1;
            return;
        }
        let odd = self.odd.get(&id).copied();
        let mut entry = shared.ids.entry(id);
        let Some(place) = odd.or_else(|| entry.as_ref().and_then(super::ids::Entry::place)) else {
            applied.unknown += 1;
            return;
        };
        if !self.extra.is_empty()
            && let Some(extra) = self.extra.get_mut(&(place, tier))
        {
            *extra -= 1;
            if *extra == 0 {
                self.extra.remove(&(place, tier));
            }
            applied.copies += 1;
            return;
        }
        match shared.forest.drop_block(place, self.number, tier, odd.is_none()) {
            Dropped::NotHeld => applied.unknown += 1,
            Dropped::Gone { dead, lost, last, stale } => {
                applied.changed += 1;
                if stale {
                    shared.stale.fetch_add(1, Ordering::Relaxed);
                }
                if dead
                    && odd.is_none()
                    && let Some(entry) = &mut entry
                {
                    entry.remove(place);
                }
                drop(entry);
                if lost && odd.is_some() {
                    self.odd.remove(&id);
                    shared.forest.forget_entries(place.run(), 1);
                }
                if last {
                    self.runs.remove(run_tag(place.run()), place.run());
                }
            }
        }
    }

    pub(super) fn remaining(&mut self, shared: &Shared, id: u64, tier: u8, copies: u32) -> Applied {
        let mut applied = Applied::default();
        let odd = self.odd.get(&id).copied();
        let place = odd.or_else(|| shared.ids.entry(id).and_then(|e| e.place()));
        let place = place.filter(|p| shared.forest.held(*p, Some(self.number)));
        let Some(place) = place else {
            self.remove_one(shared, id, tier, &mut applied);
            return applied;
        };
        match copies.checked_sub(1) {
            None => {
                self.extra.remove(&(place, tier));
                self.remove_one(shared, id, tier, &mut applied);
            }
            Some(extra) => {
                shared.forest.attach(place, self.number, tier);
                if extra == 0 {
                    self.extra.remove(&(place, tier));
                } else {
                    self.extra.insert((place, tier), extra);
                }
                applied.copies += 1;
            }
        }
        applied
    }

    /// Forgets all that the worker holds, or all of one tier.
    pub(super) fn clear(&mut self, shared: &Shared, tier: Option<u8>) {
        self.orphans.clear(tier);
        self.extra.retain(|(_, t), _| tier.is_some_and(|tier| tier != *t));
        let mut stale = 0;
        let runs: Vec<RunNo> = self.runs.entries().map(|(_, run)| run).collect();
        let mut kept = Table::default();
        for run in runs {
            let (dead, holds) = shared.forest.drop_run(run, self.number, tier);
            stale += dead;
            if holds {
                kept.insert(run_tag(run), run);
            }
        }
        self.runs = kept;
        let number = self.number;
        let odd = std::mem::take(&mut self.odd);
        for (id, place) in odd {
            if tier.is_some() && shared.forest.held(place, Some(number)) {
                self.odd.insert(id, place);
            } else {
                shared.forest.forget_entries(place.run(), 1);
            }
        }
        shared.stale.fetch_add(stale, Ordering::Relaxed);
    }
}

const fn tier_of(number: u8) -> tandem_types::Tier {
    match number {
        0 => tandem_types::Tier::Device,
        1 => tandem_types::Tier::Host,
        _ => tandem_types::Tier::Disk,
    }
}
