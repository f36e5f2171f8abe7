//! How full workers are: of each what a comparison of the whole fleet asks, in one piece of memory, by id.
//!
//! - I-ROM-1 a room says what the table and the last weighing of its idle programs say, once it was brought up to date.
//! - Deliberately absent: what a program weighs, and where turns go (the policy's).

use tandem_types::{Time, WorkerId};

use crate::contract::Capacity;
use crate::table::{Slot, Table, Worker};

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

#[expect(clippy::cast_precision_loss, reason = "token counts are far below 2^52")]
pub(crate) const fn float(tokens: u64) -> f64 {
    tokens as f64
}

/// All workers, by id.
#[derive(Debug, Default)]
pub(crate) struct Rooms {
    all: Vec<Room>,
    /// Their ids alone, to search in.
    ids: Vec<WorkerId>,
    /// How many are ready.
    pub(crate) ready: usize,
    /// Up to which old weighings were looked for.
    next: usize,
}

impl Rooms {
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

    /// Workers that take turns.
    pub(crate) fn ready(&self) -> impl Iterator<Item = &Room> {
        self.all.iter().filter(|room| room.ready)
    }

    /// A worker is as told, or gone.
    pub(crate) fn set(&mut self, id: WorkerId, worker: Option<&Worker>) {
        let place = self.place(id);
        let Some(worker) = worker else {
            if let Ok(at) = place {
                self.ids.remove(at);
                self.ready -= usize::from(self.all.remove(at).ready);
            }
            return;
        };
        if let Err(at) = place {
            self.ids.insert(at, id);
            self.all.insert(at, Room::new(id));
        }
        let (Ok(at) | Err(at)) = place;
        if let Some(room) = self.all.get_mut(at) {
            self.ready = self.ready - usize::from(room.ready) + usize::from(worker.ready);
            (room.ready, room.capacity, room.running) = (worker.ready, worker.capacity, worker.running);
            room.tokens = float(worker.running_tokens + worker.shared);
        }
    }

    /// Compares with a table, but for what it has listed as changed.
    pub(crate) fn check(&self, table: &Table) -> Result<(), String> {
        let ids: Vec<WorkerId> = self.all.iter().map(|room| room.id).collect();
        if ids != self.ids || self.ready != self.all.iter().filter(|room| room.ready).count() {
            return Err("rooms are not listed as they are".to_owned());
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
            if room.weighed.is_some() && !worker.idle.iter().copied().eq(weighed) {
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

    /// Its idle programs, weighed; `give_way` = the weight below which one may give way.
    pub(crate) fn weigh(&mut self, now: Time, give_way: f64, programs: impl Iterator<Item = Weighed>) {
        self.list.clear();
        self.list.extend(programs);
        // Equal tenths are not compared further: probabilities are not known better than that.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 10")]
        let tenths = |weight: f64| (weight * 10.0) as u8;
        self.list.sort_unstable_by_key(|w| (tenths(w.weight), w.tokens, w.slot));
        let sum = |keep: &dyn Fn(&&Weighed) -> bool| self.list.iter().filter(keep).map(Weighed::counts).sum();
        let weighted = sum(&|_| true);
        let giving = sum(&|w| w.weight < give_way);
        let served = sum(&|w| w.served);
        (self.weighted, self.giving, self.served) = (weighted, giving, served);
        self.weighed = Some(now);
    }
}
