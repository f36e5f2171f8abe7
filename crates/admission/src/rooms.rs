//! How full workers are, by id, and beside it what a comparison of the whole fleet asks ([`Gauges`]).
//!
//! - I-ROM-1 a gauge says what its room says, and a room what the table and the last weighing of its idle programs say, once
//!   it was brought up to date.
//! - Deliberately absent: what a program weighs, and where turns go (the policy's).

use tandem_types::{Time, WorkerId};

use crate::contract::Capacity;
use crate::gauges::{Gauge, Gauges};
use crate::table::{Slot, TOKENS_MAX, Table, Worker};

/// No program counts for so many tokens ([`TOKENS_MAX`]).
const TOKENS_BITS: u32 = TOKENS_MAX.ilog2() + 1;

/// An idle program of a worker as it was weighed last.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Weighed {
    /// Probability of return.
    pub(crate) weight: f64,
    pub(crate) tokens: u64,
    pub(crate) slot: Slot,
    /// It has had turns enough to lose its place to one that is overdue.
    pub(crate) served: bool,
}

impl Weighed {
    /// What it counts for, in tokens.
    pub(crate) fn counts(&self) -> f64 {
        self.weight * float(self.tokens)
    }

    /// Least likely to return first, then smallest. Equal tenths are not compared further: probabilities are not known
    /// better than that.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 10")]
    fn order(&self) -> u64 {
        ((self.weight * 10.0) as u64) << TOKENS_BITS | self.tokens.min((1 << TOKENS_BITS) - 1)
    }
}

/// A worker.
#[derive(Debug, Clone)]
pub(crate) struct Room {
    pub(crate) id: WorkerId,
    pub(crate) ready: bool,
    pub(crate) capacity: Option<Capacity>,
    /// Tokens of running turns and of heads.
    pub(crate) tokens: f64,
    pub(crate) running: u32,
    /// When its idle programs were weighed; `None` = they changed since.
    pub(crate) weighed: Option<Time>,
    /// It is listed to be weighed.
    listed: bool,
    /// What they count for.
    pub(crate) weighted: f64,
    /// Of that, what those count for who may give way.
    pub(crate) giving: f64,
    /// And those who have had turns enough.
    pub(crate) served: f64,
    /// Least likely to return first, in tenths, then smallest.
    pub(crate) list: Vec<Weighed>,
}

/// Up to what parts workers are filled.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Limits {
    pub(crate) admit: f64,
    /// Where caches that are not worth keeping are evicted first.
    pub(crate) admit_demoting: f64,
    /// By running turns, without tiers below the device and with.
    pub(crate) running: f64,
    pub(crate) running_above_tiers: f64,
}

impl Limits {
    /// Up to how many tokens a worker is filled.
    pub(crate) fn admits(&self, capacity: Capacity) -> f64 {
        float(capacity.resident) * if capacity.demotes { self.admit_demoting } else { self.admit }
    }

    /// What running turns may take of a worker.
    pub(crate) fn running_max(&self, capacity: Capacity) -> f64 {
        let below = capacity.resident > capacity.device;
        float(capacity.device) * if below { self.running_above_tiers } else { self.running }
    }
}

#[expect(clippy::cast_precision_loss, reason = "token counts are far below 2^52")]
pub(crate) const fn float(tokens: u64) -> f64 {
    tokens as f64
}

/// All workers, by id.
#[derive(Debug, Default)]
pub(crate) struct Rooms {
    pub(crate) limits: Limits,
    all: Vec<Room>,
    /// Their ids alone, to search in.
    ids: Vec<WorkerId>,
    gauges: Gauges,
    /// How many are ready.
    pub(crate) ready: usize,
    /// Up to which old weighings were looked for.
    next: usize,
}

impl Rooms {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Every worker's id.
    pub(crate) fn ids(&self) -> &[WorkerId] {
        &self.ids
    }

    /// How many workers are ready, at least 1.
    pub(crate) fn workers(&self) -> f64 {
        u32::try_from(self.ready.max(1)).map_or(f64::MAX, f64::from)
    }

    pub(crate) fn gauge(&self, id: WorkerId) -> Option<Gauge> {
        self.gauges.get(self.find(id)?)
    }

    /// Of every worker what a comparison asks, by id.
    pub(crate) const fn gauges(&self) -> &Gauges {
        &self.gauges
    }

    /// Where a worker is, or would be.
    fn place(&self, id: WorkerId) -> Result<usize, usize> {
        self.ids.binary_search(&id)
    }

    pub(crate) fn find(&self, id: WorkerId) -> Option<usize> {
        self.place(id).ok()
    }

    pub(crate) fn get(&self, id: WorkerId) -> Option<&Room> {
        self.all.get(self.find(id)?)
    }

    /// Takes a room out for a while.
    pub(crate) fn take(&mut self, index: usize) -> Option<Room> {
        let room = self.all.get_mut(index)?;
        let vacant = Room::new(room.id);
        Some(std::mem::replace(room, vacant))
    }

    /// Puts it back.
    pub(crate) fn put(&mut self, index: usize, room: Room) {
        if let Some(place) = self.all.get_mut(index) {
            self.gauges.set(index, Gauge::of(&room, &self.limits));
            *place = room;
        }
    }

    /// Each room in its turn.
    pub(crate) fn next_index(&mut self) -> usize {
        self.next = if self.next + 1 < self.all.len() { self.next + 1 } else { 0 };
        self.next
    }

    pub(crate) fn all(&self) -> &[Room] {
        &self.all
    }

    /// A worker is as told, or gone.
    pub(crate) fn set(&mut self, id: WorkerId, worker: Option<&Worker>) {
        let place = self.place(id);
        let Some(worker) = worker else {
            if let Ok(at) = place {
                self.ids.remove(at);
                self.gauges.remove(at);
                self.ready -= usize::from(self.all.remove(at).ready);
            }
            return;
        };
        if let Err(at) = place {
            let room = Room::new(id);
            self.ids.insert(at, id);
            self.gauges.insert(at, Gauge::of(&room, &self.limits));
            self.all.insert(at, room);
        }
        let (Ok(at) | Err(at)) = place;
        if let Some(room) = self.all.get_mut(at) {
            self.ready = self.ready - usize::from(room.ready) + usize::from(worker.ready);
            (room.ready, room.capacity, room.running) = (worker.ready, worker.capacity, worker.running);
            room.tokens = float(worker.running_tokens + worker.shared);
            self.gauges.set(at, Gauge::of(room, &self.limits));
        }
    }

    /// Compares with a table, but for what it has listed as changed.
    pub(crate) fn check(&self, table: &Table) -> Result<(), String> {
        let ids: Vec<WorkerId> = self.all.iter().map(|room| room.id).collect();
        if ids != self.ids || self.ready != self.all.iter().filter(|room| room.ready).count() {
            return Err("rooms are not listed as they are".to_owned());
        }
        if !self.gauges.rows().eq(self.all.iter().map(|room| Gauge::of(room, &self.limits))) {
            return Err("a gauge does not say what its room says".to_owned());
        }
        for (id, worker) in table.workers.iter().filter(|(id, _)| !table.has_changed(**id)) {
            let room = self.get(*id).ok_or(format!("{id} has no room"))?;
            let told = (worker.ready, worker.capacity, worker.running, worker.running_tokens + worker.shared);
            let known = (room.ready, room.capacity, room.running);
            if known != (told.0, told.1, told.2) || room.tokens.total_cmp(&float(told.3)).is_ne() {
                return Err(format!("{id} is {told:?}, and {known:?} with {} tokens is kept", room.tokens));
            }
            let mut weighed: Vec<Slot> = room.list.iter().map(|idle| idle.slot).collect();
            weighed.sort_unstable();
            if room.weighed.is_some() && !worker.idle.iter().map(|idler| idler.slot).eq(weighed) {
                return Err(format!("others than the idle programs of {id} were weighed"));
            }
        }
        Ok(())
    }

    /// A worker's idle programs are to be weighed again. Whether that is news.
    pub(crate) fn touch(&mut self, id: WorkerId) -> bool {
        let Some(room) = self.find(id).and_then(|at| self.all.get_mut(at)) else { return false };
        room.weighed = None;
        !std::mem::replace(&mut room.listed, true)
    }

    /// Where a worker is whose idle programs are being weighed because they were touched.
    pub(crate) fn taken_up(&mut self, id: WorkerId) -> Option<usize> {
        let index = self.find(id)?;
        self.all.get_mut(index)?.listed = false;
        Some(index)
    }
}

impl Room {
    const fn new(id: WorkerId) -> Self {
        Self {
            id,
            ready: false,
            capacity: None,
            tokens: 0.0,
            running: 0,
            weighed: None,
            listed: false,
            weighted: 0.0,
            giving: 0.0,
            served: 0.0,
            list: Vec::new(),
        }
    }

    /// Its idle programs by slot, weighed; `give_way` = the weight below which one may give way.
    pub(crate) fn weigh(&mut self, now: Time, give_way: f64, programs: impl Iterator<Item = Weighed>) {
        self.list.clear();
        self.list.extend(programs);
        self.list.sort_by_cached_key(Weighed::order);
        let (mut weighted, mut giving, mut served) = (0.0, 0.0, 0.0);
        for weighed in &self.list {
            let counts = weighed.counts();
            weighted += counts;
            giving += if weighed.weight < give_way { counts } else { 0.0 };
            served += if weighed.served { counts } else { 0.0 };
        }
        (self.weighted, self.giving, self.served) = (weighted, giving, served);
        self.weighed = Some(now);
    }
}
