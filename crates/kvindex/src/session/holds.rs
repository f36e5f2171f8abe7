//! Workers, and what each run counts for them.

use std::collections::BTreeMap;

use tandem_types::{Tier, WorkerId};

/// Tiers of a worker's own; the shared pool has its own index.
pub(super) const TIERS: usize = 3;

pub(super) const fn tier_index(tier: Tier) -> Option<usize> {
    match tier {
        Tier::Device => Some(0),
        Tier::Host => Some(1),
        Tier::Disk => Some(2),
        Tier::Shared => None,
    }
}

/// What a run is to one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hold {
    pub(super) worker: u32,
    /// When this was last brought up to date, in [`Workers::clock`].
    pub(super) stamp: u32,
    /// Branch ends at this run, and runs below it, that the worker must keep.
    pub(super) covers: u32,
    /// Which blocks of the run lie there, per tier.
    pub(super) bits: [u64; TIERS],
}

impl Hold {
    pub(super) fn is_empty(&self) -> bool {
        self.covers == 0 && self.bits == [0; TIERS]
    }
}

#[derive(Debug, Clone)]
pub(super) struct Worker {
    pub(super) id: WorkerId,
    /// Holds from before this are another worker's.
    pub(super) born: u32,
    /// Bits from before this are gone, per tier.
    cleared: [u32; TIERS],
    pub(super) working_set: u64,
    pub(super) resident: [u64; TIERS],
    touched: bool,
    /// The drain for which a change of this was noted last.
    noted: u64,
}

/// A worker as branches remember their home: the slot may be someone else's by now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Home {
    pub(super) slot: u32,
    pub(super) born: u32,
}

/// All workers that anything is known of.
#[derive(Debug, Default)]
pub(super) struct Workers {
    slots: Vec<Option<Worker>>,
    free: Vec<u32>,
    names: BTreeMap<WorkerId, u32>,
    /// Counts births and clears.
    clock: u32,
    /// Slots whose numbers changed since they were last published.
    touched: Vec<u32>,
}

impl Workers {
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    pub(super) fn slot(&self, id: WorkerId) -> Option<u32> {
        self.names.get(&id).copied()
    }

    pub(super) fn get(&self, slot: u32) -> Option<&Worker> {
        self.slots.get(slot as usize)?.as_ref()
    }

    fn get_mut(&mut self, slot: u32) -> Option<&mut Worker> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    pub(super) fn home(&self, slot: u32) -> Option<Home> {
        self.get(slot).map(|worker| Home { slot, born: worker.born })
    }

    /// The worker's slot while it is still the same worker.
    pub(super) fn alive(&self, home: Home) -> Option<u32> {
        self.get(home.slot).filter(|worker| worker.born == home.born).map(|_| home.slot)
    }

    /// The slot of a worker, made if there is room below `limit`.
    pub(super) fn slot_or_new(&mut self, id: WorkerId, limit: usize) -> Option<u32> {
        if let Some(slot) = self.slot(id) {
            return Some(slot);
        }
        if self.names.len() >= limit {
            return None;
        }
        self.clock = self.clock.saturating_add(1);
        let worker = Worker {
            id,
            born: self.clock,
            cleared: [self.clock; TIERS],
            working_set: 0,
            resident: [0; TIERS],
            touched: false,
            noted: 0,
        };
        let slot = self.free.pop().unwrap_or_else(|| u32::try_from(self.slots.len()).unwrap_or(u32::MAX));
        if slot as usize == self.slots.len() {
            self.slots.push(Some(worker));
        } else if let Some(place) = self.slots.get_mut(slot as usize) {
            *place = Some(worker);
        }
        self.names.insert(id, slot);
        Some(slot)
    }

    pub(super) fn remove(&mut self, id: WorkerId) -> bool {
        let Some(slot) = self.names.remove(&id) else { return false };
        if let Some(place) = self.slots.get_mut(slot as usize) {
            *place = None;
        }
        self.free.push(slot);
        true
    }

    /// Forgets what lies in one tier, or in all.
    pub(super) fn clear(&mut self, slot: u32, tier: Option<usize>) {
        self.clock = self.clock.saturating_add(1);
        let clock = self.clock;
        let Some(worker) = self.get_mut(slot) else { return };
        for at in (0..TIERS).filter(|at| tier.is_none_or(|tier| tier == *at)) {
            worker.cleared[at] = clock;
            worker.resident[at] = 0;
        }
        self.note(slot);
    }

    pub(super) fn note(&mut self, slot: u32) {
        if let Some(worker) = self.get_mut(slot)
            && !std::mem::replace(&mut worker.touched, true)
        {
            self.touched.push(slot);
        }
    }

    /// Takes one worker whose numbers changed, and whether the change is yet to be noted for this drain.
    pub(super) fn take_touched(&mut self, drain: u64) -> Option<(u32, bool)> {
        loop {
            let slot = self.touched.pop()?;
            let Some(worker) = self.slots.get_mut(slot as usize)?.as_mut() else { continue };
            if !std::mem::take(&mut worker.touched) {
                continue;
            }
            let fresh = std::mem::replace(&mut worker.noted, drain) != drain;
            return Some((slot, fresh));
        }
    }

    pub(super) fn add_working_set(&mut self, slot: u32, blocks: usize) {
        if let Some(worker) = self.get_mut(slot) {
            worker.working_set += blocks as u64;
        }
        self.note(slot);
    }

    pub(super) fn sub_working_set(&mut self, slot: u32, blocks: usize) {
        if let Some(worker) = self.get_mut(slot) {
            worker.working_set = worker.working_set.saturating_sub(blocks as u64);
        }
        self.note(slot);
    }

    pub(super) fn count_resident(&mut self, slot: u32, tier: usize, more: u32, less: u32) {
        if more == less {
            return;
        }
        if let Some(count) = self.get_mut(slot).and_then(|worker| worker.resident.get_mut(tier)) {
            *count = (*count + u64::from(more)).saturating_sub(u64::from(less));
        }
        self.note(slot);
    }

    /// A hold as it is today: without what was cleared, empty for a worker that is gone.
    pub(super) fn today(&self, mut hold: Hold) -> Hold {
        match self.get(hold.worker) {
            Some(worker) if worker.born <= hold.stamp => {
                for (bits, cleared) in hold.bits.iter_mut().zip(worker.cleared) {
                    if hold.stamp < cleared {
                        *bits = 0;
                    }
                }
            }
            _ => {
                hold.covers = 0;
                hold.bits = [0; TIERS];
            }
        }
        hold.stamp = self.clock;
        hold
    }

    /// An empty hold of a worker.
    pub(super) fn fresh(&self, worker: u32) -> Hold {
        Hold { worker, stamp: self.clock, covers: 0, bits: [0; TIERS] }
    }
}
