//! One worker's events.

use std::collections::BTreeMap;

use super::names::{At, Names, Stretch};
use super::orphans::{Orphan, Orphans};
use super::runs::{Cursor, Dropped, Forest, Piece, Place, RUN_BLOCKS, Unplaced};
use super::{Applied, Copies, HeldBlock, Stored, WorkerIndexConfig};
use crate::chain;

/// What all workers share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) forest: Forest,
    pub(super) config: WorkerIndexConfig,
}

/// One worker's own bookkeeping.
#[derive(Debug)]
pub(super) struct State {
    number: u32,
    names: Names,
    /// Copies beyond the first, by place and tier.
    extra: BTreeMap<(Place, u8), u32>,
    orphans: Orphans,
    lost: Vec<(u32, u32)>,
}

impl From<u32> for State {
    fn from(number: u32) -> Self {
        Self {
            number,
            names: Names::default(),
            extra: BTreeMap::new(),
            orphans: Orphans::default(),
            lost: Vec::new(),
        }
    }
}

impl State {
    pub(super) fn orphans(&self) -> usize {
        self.orphans.len()
    }

    /// Blocks held in whatever tier.
    pub(super) fn held(&self) -> usize {
        self.names.len()
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

    /// The place that an id names.
    fn place(&self, id: u64) -> Option<Place> {
        self.names.place(id)
    }

    /// The block that an id names, as the parent of a store.
    fn resolve(&mut self, shared: &Shared, id: u64) -> Option<Cursor> {
        let place = self.names.parent(id)?;
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
        // On the stack, where it is warm: events of engines are rarely longer.
        let (mut few, mut many) = ([0; RUN_BLOCKS], Vec::new());
        let contents = match few.get_mut(..event.locals.len()) {
            Some(few) => few,
            None => {
                many.resize(event.locals.len(), 0);
                many.as_mut_slice()
            }
        };
        let mut last = cursor.map(|c| c.content);
        for (slot, local) in contents.iter_mut().zip(event.locals) {
            *slot = chain::next(last, *local);
            last = Some(*slot);
        }
        let mut done = 0;
        let outcome = shared.forest.store(cursor, contents, self.number, tier, |piece| {
            let count = (piece.end - piece.start) as usize;
            let ids = event.ids.get(done..done + count).unwrap_or(&[]);
            self.take_piece(&piece, ids, tier, event.copies, applied);
            done += count;
        });
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
        self.names.give(piece.run, piece.start, ids, &piece.known);
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
        let mut rest = ids;
        while let Some(first) = rest.first() {
            let mut count = 1;
            if !self.orphans.is_empty() && self.orphans.remove_copy(*first, tier) {
                applied.changed += 1;
            } else if let Some(at) = self.names.locate(*first) {
                // An id that waits for its parent may name a block too.
                let these = if self.orphans.is_empty() { rest } else { &rest[..1] };
                count = self.remove_at(shared, at, these, tier, &mut applied);
            } else {
                applied.unknown += 1;
            }
            rest = rest.get(count..).unwrap_or(&[]);
        }
        applied
    }

    /// Removes the block at `at` and those of the next ids that lie beside it; tells how many.
    fn remove_at(&mut self, shared: &Shared, at: At, ids: &[u64], tier: u8, applied: &mut Applied) -> usize {
        let Some(run) = self.names.run(at) else { return 1 };
        let Stretch { mut count, mut start, mut end } = self.names.stretch(at, ids);
        if !self.extra.is_empty() {
            let place = |position: u32| Place::new(run, position as usize);
            if self.extra.range((place(start), 0)..=(place(end - 1), u8::MAX)).next().is_some() {
                (count, start, end) = (1, at.position(), at.position() + 1);
            }
            if let Some(extra) = self.extra.get_mut(&(place(start), tier)) {
                *extra -= 1;
                if *extra == 0 {
                    self.extra.remove(&(place(start), tier));
                }
                applied.copies += 1;
                return 1;
            }
        }
        let lost = &mut self.lost;
        shared.forest.drop_blocks(run, self.number, tier, (start, end), |from, to, dropped| {
            let blocks = (to - from) as usize;
            match dropped {
                Dropped::NotHeld => applied.unknown += blocks,
                Dropped::Left => applied.changed += blocks,
                Dropped::Lost => {
                    applied.changed += blocks;
                    lost.push((from, to));
                }
            }
        });
        for (from, to) in self.lost.drain(..) {
            self.names.lose(at, from, to);
        }
        count
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
        for run in self.names.runs() {
            shared.forest.drop_run(run, self.number, tier);
        }
        match tier {
            None => self.names = Names::default(),
            Some(_) => self.names.retain(|place| shared.forest.held(place, self.number)),
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
