//! One worker's events.

use std::collections::BTreeMap;

use super::orphans::{Orphan, Orphans};
use super::runs::{Cursor, Dropped, Forest, Piece, Place, RunNo, Unplaced};
use super::table::{Slot, Table};
use super::{Applied, Copies, HeldBlock, Stored, WorkerIndexConfig};
use crate::chain;

/// What all workers share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) forest: Forest,
    pub(super) config: WorkerIndexConfig,
}

/// An id that the table cannot keep.
#[derive(Debug, Clone, Copy)]
struct Odd {
    place: Place,
    /// The block has another id too.
    twin: bool,
}

/// One worker's own bookkeeping.
#[derive(Debug)]
pub(super) struct State {
    number: u32,
    /// Half of the mixed id of each block that the worker holds, to its place.
    ids: Table,
    /// Copies beyond the first, by place and tier.
    extra: BTreeMap<(Place, u8), u32>,
    /// Ids whose half is another block's too, and second ids of a block.
    odd: BTreeMap<u64, Odd>,
    /// How many of those are second ids of a block.
    twins: usize,
    /// A bit for each of those, by six bits of the tag: most ids are not looked up there. Cleared when none is left.
    odd_bits: u64,
    orphans: Orphans,
    contents: Vec<u64>,
    pieces: Vec<Piece>,
    found: Vec<Found>,
    going: Vec<Found>,
    positions: Vec<u32>,
}

/// What an id of a removal names.
#[derive(Debug, Clone, Copy)]
struct Found {
    id: u64,
    tag: u32,
    /// Where the table has it.
    slot: Slot,
    place: Option<Place>,
}

/// The half of an id that its entry keeps, spread: engines may count instead of hashing.
const fn tag(id: u64) -> u32 {
    let x = (id ^ (id >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32) as u32
}

impl From<u32> for State {
    fn from(number: u32) -> Self {
        Self {
            number,
            ids: Table::default(),
            extra: BTreeMap::new(),
            odd: BTreeMap::new(),
            twins: 0,
            odd_bits: 0,
            orphans: Orphans::default(),
            contents: Vec::new(),
            pieces: Vec::new(),
            found: Vec::new(),
            going: Vec::new(),
            positions: Vec::new(),
        }
    }
}

impl State {
    pub(super) fn orphans(&self) -> usize {
        self.orphans.len()
    }

    /// Blocks held in whatever tier.
    pub(super) fn held(&self) -> usize {
        self.ids.len() + self.odd.len()
    }

    pub(super) fn stored(&mut self, shared: &Shared, event: &Stored<'_>, tier: u8) -> Applied {
        let mut applied = Applied::default();
        self.warm(event.ids);
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
                    let blocks = (event.ids, event.locals);
                    self.park(shared, parent, blocks, tier, event.copies, &mut applied);
                    return applied;
                }
            },
        };
        self.link(shared, cursor, event, tier, &mut applied);
        if !self.orphans.is_empty() {
            for id in event.ids {
                // A copy that waited is a copy like any other.
                let waited = self.orphans.get_mut(*id, tier).map(|o| o.extra);
                self.orphans.remove(*id, tier);
                if let (Some(extra), Some(place)) = (waited, self.place(*id)) {
                    let more = extra + u32::from(event.copies == Copies::Each);
                    if more > 0 {
                        *self.extra.entry((place, tier)).or_default() += more;
                    }
                }
            }
            self.adopt(shared, event.ids, &mut applied);
        }
        applied
    }

    /// Brings the buckets of ids into the cache, all at once instead of one after the other.
    fn warm(&self, ids: &[u64]) {
        if ids.len() > 1 {
            std::hint::black_box(ids.iter().fold(0, |seen, id| seen ^ self.ids.touch(tag(*id))));
        }
    }

    /// The place that an id names.
    fn place(&self, id: u64) -> Option<Place> {
        self.locate(id).place
    }

    /// The block that an id names, as the parent of a store.
    fn resolve(&self, shared: &Shared, id: u64) -> Option<Cursor> {
        let place = self.place(id)?;
        Some(Cursor { place, content: shared.forest.content(place)? })
    }

    /// The block that an id names, if the worker holds it.
    pub(super) fn block(&self, shared: &Shared, id: u64) -> Option<HeldBlock> {
        shared.forest.block(self.place(id)?, self.number)
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
            self.take_piece(&piece, ids, tier, event.copies, applied);
            done += count;
        }
        if let Err(why) = outcome {
            let ids = event.ids.get(done..).unwrap_or(&[]);
            let locals = event.locals.get(done..).unwrap_or(&[]);
            let before = done.checked_sub(1).and_then(|d| event.ids.get(d)).copied().or(event.parent);
            match (why, before) {
                (Unplaced::NoParent, Some(parent)) => {
                    self.park(shared, parent, (ids, locals), tier, event.copies, applied);
                }
                (Unplaced::NoParent | Unplaced::Full, _) => applied.refused += ids.len(),
            }
        }
        self.contents = contents;
        self.pieces = pieces;
    }

    fn take_piece(&mut self, piece: &Piece, ids: &[u64], tier: u8, copies: Copies, applied: &mut Applied) {
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
        for (position, id) in (piece.start..).zip(ids) {
            let known = piece.known.iter().any(|(a, b)| (*a..*b).contains(&position));
            self.name(*id, Place::new(piece.run, position as usize), known);
        }
    }

    /// Makes an id name a place. `known` = the worker held the block before.
    fn name(&mut self, id: u64, place: Place, known: bool) {
        let tag = tag(id);
        if self.maybe_odd(tag) && self.odd.contains_key(&id) {
            let same = self.odd.get(&id).is_some_and(|o| o.place == place);
            if !same {
                self.set_odd(id, Odd { place, twin: known });
            }
            return;
        }
        let there = if known { self.ids.find(tag, |_| true) } else { self.ids.claim(tag, place.0) };
        let taken = there.is_some_and(|there| there != place.0);
        if taken || (known && there.is_none()) {
            self.set_odd(id, Odd { place, twin: known });
        }
    }

    const fn maybe_odd(&self, tag: u32) -> bool {
        self.odd_bits >> (tag % 64) & 1 != 0
    }

    fn set_odd(&mut self, id: u64, odd: Odd) {
        self.odd_bits |= 1 << (tag(id) % 64);
        self.twins += usize::from(odd.twin);
        if let Some(old) = self.odd.insert(id, odd) {
            self.twins -= usize::from(old.twin);
        }
    }

    /// The worker holds a block no longer; it was removed by this id.
    fn forget(&mut self, Found { id, tag, slot, .. }: Found, place: Place) {
        let odd = if self.maybe_odd(tag) { self.odd.remove(&id) } else { None };
        if self.twins > 0 {
            self.twins -= usize::from(odd.is_some_and(|o| o.twin));
            let twins = &mut self.twins;
            self.odd.retain(|_, o| {
                let other = o.place != place;
                *twins -= usize::from(!other && o.twin);
                other
            });
            if odd.is_some() {
                self.ids.remove_place(place.0);
            }
        }
        if odd.is_none() {
            self.ids.remove_at(slot, tag, place.0);
        }
        if self.odd.is_empty() {
            self.odd_bits = 0;
        }
    }

    /// A block of which only the id is told is in one more tier.
    fn attach(&mut self, shared: &Shared, id: u64, tier: u8, copies: Copies, applied: &mut Applied) {
        match self.place(id).filter(|p| shared.forest.held(*p, self.number)) {
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
        (ids, locals): (&[u64], &[u64]),
        tier: u8,
        copies: Copies,
        applied: &mut Applied,
    ) {
        let mut parent = parent;
        for (id, local) in ids.iter().zip(locals) {
            let before = self.orphans.get_mut(*id, tier).map(|o| o.extra);
            let extra = before.map_or(0, |e| e + u32::from(copies == Copies::Each));
            let orphan = Orphan { id: *id, local: *local, tier, extra };
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
                if orphan.extra > 0
                    && let Some(place) = self.place(orphan.id)
                {
                    *self.extra.entry((place, orphan.tier)).or_default() += orphan.extra;
                }
                todo.push(orphan.id);
            }
        }
    }

    pub(super) fn removed(&mut self, shared: &Shared, ids: &[u64], tier: u8) -> Applied {
        let mut applied = Applied::default();
        let mut found = std::mem::take(&mut self.found);
        found.clear();
        self.warm(ids);
        found.extend(ids.iter().map(|id| self.locate(*id)));
        let mut rest = found.as_slice();
        while let Some(first) = rest.first() {
            let mut count = 1;
            if !self.orphans.is_empty() && self.orphans.remove_copy(first.id, tier) {
                applied.changed += 1;
            } else if let Some(run) = first.place.map(Place::run) {
                // Neighbours are mostly removed together: one lock for all of a run.
                if self.orphans.is_empty() {
                    count = rest.iter().take_while(|f| f.place.is_some_and(|p| p.run() == run)).count();
                }
                let these = rest.get(..count).unwrap_or(&[]);
                self.remove_in_run(shared, run, these, tier, &mut applied);
            } else {
                applied.unknown += 1;
            }
            rest = rest.get(count..).unwrap_or(&[]);
        }
        self.found = found;
        applied
    }

    fn locate(&self, id: u64) -> Found {
        let tag = tag(id);
        if self.maybe_odd(tag)
            && let Some(odd) = self.odd.get(&id)
        {
            return Found { id, tag, slot: Slot::NONE, place: Some(odd.place) };
        }
        match self.ids.locate(tag) {
            None => Found { id, tag, slot: Slot::NONE, place: None },
            Some((slot, place)) => Found { id, tag, slot, place: Some(Place(place)) },
        }
    }

    fn remove_in_run(
        &mut self,
        shared: &Shared,
        run: RunNo,
        found: &[Found],
        tier: u8,
        applied: &mut Applied,
    ) {
        let mut going = std::mem::take(&mut self.going);
        let mut positions = std::mem::take(&mut self.positions);
        going.clear();
        positions.clear();
        for found in found {
            let Some(place) = found.place else { continue };
            if !self.extra.is_empty()
                && let Some(extra) = self.extra.get_mut(&(place, tier))
            {
                *extra -= 1;
                if *extra == 0 {
                    self.extra.remove(&(place, tier));
                }
                applied.copies += 1;
            } else {
                going.push(*found);
                positions.push(place.position());
            }
        }
        shared.forest.drop_blocks(run, self.number, tier, &positions, |nth, dropped| match dropped {
            Dropped::NotHeld => applied.unknown += 1,
            Dropped::Left => applied.changed += 1,
            Dropped::Lost => {
                applied.changed += 1;
                if let Some(gone) = going.get(nth)
                    && let Some(place) = gone.place
                {
                    self.forget(*gone, place);
                }
            }
        });
        self.going = going;
        self.positions = positions;
    }

    pub(super) fn remaining(&mut self, shared: &Shared, id: u64, tier: u8, copies: u32) -> Applied {
        let mut applied = Applied::default();
        if let Some(orphan) = self.orphans.get_mut(id, tier) {
            match copies.checked_sub(1) {
                Some(extra) => orphan.extra = extra,
                None => drop(self.orphans.remove(id, tier)),
            }
            applied.copies += 1;
            return applied;
        }
        let place = self.place(id).filter(|p| shared.forest.held(*p, self.number));
        let Some(place) = place else {
            return self.removed(shared, &[id], tier);
        };
        match copies.checked_sub(1) {
            None => {
                self.extra.remove(&(place, tier));
                applied = self.removed(shared, &[id], tier);
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
        let mut runs: Vec<RunNo> = self.ids.entries().map(|(_, p)| Place(p).run()).collect();
        runs.extend(self.odd.values().map(|o| o.place.run()));
        runs.sort_unstable();
        runs.dedup();
        for run in runs {
            shared.forest.drop_run(run, self.number, tier);
        }
        let ids = std::mem::take(&mut self.ids);
        let odd = std::mem::take(&mut self.odd);
        (self.twins, self.odd_bits) = (0, 0);
        if tier.is_some() {
            for (tag, place) in ids.entries() {
                if shared.forest.held(Place(place), self.number) {
                    self.ids.insert(tag, place);
                }
            }
            let number = self.number;
            for (id, odd) in odd.into_iter().filter(|(_, o)| shared.forest.held(o.place, number)) {
                self.set_odd(id, odd);
            }
        }
    }
}

const fn tier_of(number: u8) -> tandem_types::Tier {
    match number {
        0 => tandem_types::Tier::Device,
        1 => tandem_types::Tier::Host,
        _ => tandem_types::Tier::Disk,
    }
}
