//! Sessions are admitted while their working sets fit; idle ones count by how likely they return in time.
//!
//! - Input: events with their times ([`crate::contract`]). Output: admissions with a worker, holds, pauses.
//! - Working set of a worker: tokens of running turns and what they are expected to grow by, tokens of idle programs times
//!   the probability that they return within the horizon, and heads that several programs share, once.
//! - Horizon: keeping a context for that long takes as much of the worker as computing it again. With a prefill rate r
//!   and a pool of C tokens that is C / r, r being that of the context's length, times a price that follows how much is
//!   computed again (`price`): memory is worth less than time, the more so the more time there is. Rates are learned.
//! - A turn of a program that has a place goes home unless running turns alone fill the pool; idle programs then lose their
//!   places until all fits again with something to spare, the smallest first: they have most of their growth before them,
//!   so that the same room stays free for longer. Word that its cache does not lie at home any more is believed once the
//!   engine's count of its last turn has said the same, for events of caches can be lost; and of no program while engines
//!   keep finding what they were said not to have.
//! - Any other turn waits for room below [`TandemConfig::admit`]; idle programs that are less likely to return than not give
//!   way to it.
//! - Placement: home while its cache lies there and it fits; else where most room is left, a prompt's missing tokens
//!   counting as room taken. A program whose cache lies at a home that is full waits for it as long as computing everything
//!   elsewhere would take, then moves: never more than twice the cost of knowing the future. While there is room to spare
//!   routing decides ([`Placement::Free`]).
//! - Order ([`crate::kin`]): of arrival, by groups and families, tenants in proportion to their shares; but a turn that
//!   fits passes one that does not. A turn that is overdue keeps room for itself at the worker that has most, and takes it
//!   from idle programs that have had some turns, as long as the re-prefills that this costs stay within a budget:
//!   [`TandemConfig::reprefill_share`] of workers' time. The turn of a tenant below its share is overdue at once.
//! - A turn whose dispatch failed gives its room up and asks for it anew, before others are let into it, and goes to a worker
//!   that failed it only where no other is ready. Where there is none for it, it waits in its old place, and its program
//!   gives its place up like one that comes back to a full worker.
//! - What lies where of a prompt that waits may be told anew ([`Event::Found`]): the turn is tried again at once if it
//!   could fit by that.
//! - Everything happens on events; a look every second lets the passing of time count.
//! - I-TAN-1 no admission is forced: at each one the running turns of its worker fit the pool, but for a turn that runs
//!   there alone.
//! - I-TAN-2 while nothing is short of room, every turn is admitted at once.
//! - I-TAN-3 no program of a group is let in for the first time while one of a group that began before it waits for that.
//! - I-TAN-4 a program whose subagent's turn is held counts nothing: it cannot return before it.
//! - Caches of programs that were paused, went elsewhere or are over are named ([`Action::Demote`]), so that an engine that
//!   can evicts them before those of programs with a place, which its own order would take first.
//! - Where tiers below the device hold KV there are two budgets: what stays counts against all tiers, what runs against
//!   the device.
//! - Deliberately absent: what is at each worker block by block; matches come with turns. Names of tools: policies are
//!   not told them.
//! - Sources: the break-even rule is the ski-rental one; published gates and what they lack are in the documentation of
//!   the policies.

mod config;
mod fits;
mod learned;
mod price;
mod queue;

use std::time::Duration;

use tandem_types::{Time, TurnId, WorkerId};

use crate::contract::{Action, Arrival, Capacity, End, Event, Grant, HoldReason, Placement, Stats};
use crate::gauges::Gauge;
use crate::rooms::{Rooms, Weighed, float};
use crate::table::{Left, Program, Rules, Slot, Table, Turn};
use crate::{AdmissionConfig, AdmissionPolicy};

pub use config::TandemConfig;

use fits::{Fit, Work, smallest};
use learned::{Kind, Learned};

/// Between two looks while turns wait.
const LOOK: Duration = Duration::from_secs(1);
/// Probabilities of return are this old at most.
const FRESH: Duration = Duration::from_millis(250);
/// Seconds of a worker that a second of computing again is taken to cost: it delays the turns that are answered beside
/// it, and who lost a place takes another's later. Simulated on Claude Code sessions at 1.5 times the pool, a share of
/// 5 % counted singly took 9 % of output.
const COST: f64 = 2.0;

/// Fleets of up to so many workers have all old weighings renewed when they are compared; in larger ones a few are
/// renewed each time, so that no single comparison pays for all.
const RENEWED_AT_ONCE: usize = 32;
/// So many of them.
const RENEWED_EACH: usize = 2;

/// The policy `tandem`.
#[derive(Debug)]
pub(crate) struct Tandem {
    config: TandemConfig,
    table: Table,
    learned: Learned,
    rooms: Rooms,
    work: Work,
    /// Workers whose idle programs are to be weighed before they are compared.
    unweighed: Vec<WorkerId>,
    /// When old weighings were looked for last.
    renewed: Option<Time>,
    /// The overdue turn for which others were to lose most lately: when, and what that would have cost.
    dear: Option<(TurnId, Time, f64)>,
    /// Seconds of re-prefill that overdue turns may cause.
    credit: f64,
    credit_at: Time,
    next_look: Option<Time>,
}

impl Tandem {
    pub(crate) fn new(config: &AdmissionConfig) -> Self {
        Self {
            table: Table::new(
                config.programs_max,
                config.program_idle_ttl,
                Rules { heads_count_once: true, kin_ranks: true, lists: true },
            ),
            learned: Learned::new(&config.tandem),
            rooms: Rooms::new(config.tandem.limits()),
            work: Work::default(),
            unweighed: Vec::new(),
            renewed: None,
            dear: None,
            credit: 0.0,
            credit_at: Time::ZERO,
            next_look: None,
            config: config.tandem.clone(),
        }
    }

    /// Takes over what changed at workers.
    fn follow(&mut self) {
        for id in self.table.take_changed() {
            self.rooms.set(id, self.table.worker(id));
            if self.table.take_idle_changed(id) {
                self.touched(Some(id));
            }
        }
    }

    /// Weighs a worker's idle programs again if that was long ago or they have changed.
    fn weigh(&mut self, now: Time, index: usize) {
        let Some(mut room) = self.rooms.take(index) else { return };
        if room.weighed.is_none_or(|at| now.since(at) >= FRESH)
            && let Some(worker) = self.table.worker(room.id)
        {
            let horizons = self.learned.horizons(room.capacity.map_or(0, |capacity| capacity.resident));
            let programs = worker.idle.iter().map(|idler| Weighed {
                weight: self.learned.weight(now, idler, &horizons),
                tokens: idler.charge,
                slot: idler.slot,
                served: u64::from(idler.served) >= self.config.turns_at_least,
            });
            room.weigh(now, self.config.give_way, programs);
        }
        self.rooms.put(index, room);
    }

    /// Brings all rooms up to date, for a comparison of the whole fleet. What is only old is looked for once at a time.
    fn renew(&mut self, now: Time) {
        self.follow();
        for id in std::mem::take(&mut self.unweighed) {
            if let Some(index) = self.rooms.taken_up(id) {
                self.weigh(now, index);
            }
        }
        if self.renewed.replace(now) == Some(now) {
            return;
        }
        let all = self.rooms.all().len();
        let (look, most) = if all <= RENEWED_AT_ONCE { (all, all) } else { (RENEWED_AT_ONCE, RENEWED_EACH) };
        let mut renewed = 0;
        for _ in 0..look {
            let index = self.rooms.next_index();
            let old = |at: Option<Time>| at.is_none_or(|at| now.since(at) >= FRESH);
            if self.rooms.all().get(index).is_some_and(|room| old(room.weighed)) {
                self.weigh(now, index);
                renewed += 1;
                if renewed >= most {
                    return;
                }
            }
        }
    }

    /// A worker's idle programs changed, or what one of them waits for.
    fn touched(&mut self, worker: Option<WorkerId>) {
        if let Some(worker) = worker.filter(|worker| self.rooms.touch(*worker)) {
            self.unweighed.push(worker);
        }
    }

    /// Where a turn can go; `reserved` = a worker whose room is kept for another.
    fn place(&mut self, now: Time, id: TurnId, reserved: Option<WorkerId>) -> Result<Fit, HoldReason> {
        self.follow();
        let Some(turn) = self.table.turn(id) else { return Err(HoldReason::NoRoom) };
        let Some(program) = self.table.program(turn.slot) else { return Err(HoldReason::NoRoom) };
        if self.rooms.ready == 0 {
            return Ok(Fit::free(Placement::Any));
        }
        let avoided = self.avoided(turn).to_vec();
        let (active, ran, context) = (program.active, program.ran, program.tokens.min(turn.prompt));
        let trusted = active && !program.cold || !self.learned.believes();
        let home = program.home.filter(|home| self.table.is_ready(*home) && !avoided.contains(home));
        let at_home =
            home.filter(|home| trusted || turn.lies.at(*home).is_none_or(|tokens| tokens * 2 >= context));
        let ask = self.ask(turn);
        if let Some(home) = at_home.filter(|_| active) {
            let need = self.need(ask, home, turn.lies.at(home));
            if let Some(index) = self.rooms.find(home) {
                self.weigh(now, index);
            }
            let Some(gauge) = self.rooms.gauge(home) else { return Err(HoldReason::NoRoom) };
            let answer = self.learned.answer;
            if !gauge.may_run(answer, need) {
                return Err(HoldReason::NoRoom);
            }
            let roomy = gauge.is_roomy(gauge.used(answer) + need);
            return Ok(Fit::free(if roomy { Placement::Free(home) } else { Placement::Pin(home) }));
        }
        self.renew(now);
        let held = if ran { HoldReason::Paused } else { HoldReason::NoRoom };
        let Some(turn) = self.table.turn(id) else { return Err(held) };
        if let Some(home) = at_home.filter(|home| Some(*home) != reserved)
            && let Some(fit) = self.fit(ask, home, turn.lies.at(home))
        {
            return Ok(fit);
        }
        let mut work = std::mem::take(&mut self.work);
        let (best, roomy) = self.best(turn, ask, reserved, &mut work);
        self.work = work;
        let at = best.ok_or(held)?;
        let lies = turn.lies.at(at);
        let fit = self.fit(ask, at, lies).ok_or(held)?;
        if let Some(charged) = fit.placement.worker().filter(|_| roomy && at_home.is_none()) {
            return Ok(Fit::free(Placement::Free(charged)));
        }
        // Waiting for home pays no longer than computing everything elsewhere takes.
        let missing = turn.prompt.saturating_sub(lies.unwrap_or(0));
        let spared = at_home.map_or(0, |home| turn.lies.at(home).unwrap_or(context).min(missing));
        if spared > 0 && now.since(turn.arrived).as_secs_f64() < self.learned.rate.seconds(spared) {
            return Err(held);
        }
        Ok(fit)
    }

    fn admit(&mut self, now: Time, id: TurnId, fit: Fit, out: &mut Vec<Action>) {
        for slot in fit.victims {
            self.pause(slot, out);
        }
        let slot = self.table.turn(id).map(|turn| turn.slot);
        self.table.admit(id, fit.placement.worker());
        self.touched(self.parents_home(slot));
        out.push(Action::Admit { turn: id, grant: Grant::to(fit.placement) });
        if let Some(worker) = fit.placement.worker() {
            self.relieve(now, worker, out);
        }
    }

    fn pause(&mut self, slot: Slot, out: &mut Vec<Action>) {
        let home = self.table.program(slot).and_then(|program| program.home);
        if let Some((program, worker, tokens)) = self.table.pause(slot) {
            out.push(Action::Paused { program, worker, tokens });
        }
        self.touched(home);
    }

    /// Idle programs lose their places until a worker's working set fits again; running ones are marked to lose theirs
    /// when that does not suffice, what they will release counted.
    fn relieve(&mut self, now: Time, id: WorkerId, out: &mut Vec<Action>) {
        self.follow();
        let Some(index) = self.rooms.find(id) else { return };
        self.weigh(now, index);
        let gauge = self.rooms.gauge(id).filter(Gauge::is_told);
        let (Some(room), Some(gauge)) = (self.rooms.get(id), gauge) else { return };
        let (used, resident) = (gauge.used(self.learned.answer), gauge.resident);
        if used <= resident * self.config.pause {
            return;
        }
        let mut lacks = used - resident * self.config.pause_to;
        let victims = smallest(room.list.iter().filter(|idle| idle.weight > 0.05), &mut lacks);
        victims.into_iter().for_each(|slot| self.pause(slot, out));
        if lacks <= 0.0 {
            return;
        }
        let mut running: Vec<(u64, Slot)> = Vec::new();
        let residents = self.table.worker(id).map(|worker| &worker.residents);
        let programs =
            residents.into_iter().flatten().filter_map(|slot| Some((*slot, self.table.program(*slot)?)));
        for (slot, program) in programs.filter(|(_, program)| program.running > 0) {
            let turns = program.live.iter().filter_map(|turn| self.table.turn(*turn));
            let tokens = turns.filter(|turn| !turn.waiting).map(|turn| turn.prompt + turn.generated).sum();
            if program.marked {
                lacks -= float(tokens);
            } else {
                running.push((tokens, slot));
            }
        }
        running.sort_unstable();
        // The last one stays: somebody has to get on.
        running.pop();
        for (tokens, slot) in running {
            if lacks <= 0.0 {
                return;
            }
            lacks -= float(tokens);
            if let Some(program) = self.table.program_mut(slot) {
                program.marked = true;
                self.table.stats.marked += 1;
            }
        }
    }

    fn arrived(&mut self, now: Time, arrival: &Arrival<'_>, out: &mut Vec<Action>) {
        let id = arrival.turn;
        if !self.table.arrive(now, arrival) {
            return;
        }
        let slot = self.table.turn(id).map(|turn| turn.slot);
        let home = slot.and_then(|slot| self.table.program(slot)?.home);
        self.touched(home);
        self.touched(self.parents_home(slot));
        self.back(now, id);
        self.answer(now, id, out);
    }

    /// Lets a turn in that asks, or holds it.
    fn answer(&mut self, now: Time, id: TurnId, out: &mut Vec<Action>) {
        let reserved = self.reserved(now, id);
        let placed = if self.is_early(id) { Err(HoldReason::Behind) } else { self.place(now, id, reserved) };
        match placed {
            Ok(fit) => self.admit(now, id, fit, out),
            Err(reason) => {
                // What waits for the device while its cache lies in a lower tier keeps its place there.
                let tiers = |capacity: Capacity| capacity.resident > capacity.device;
                let below = |at| self.rooms.get(at).and_then(|room| room.capacity).is_some_and(tiers);
                let alone = |p: &Program| p.active && p.running == 0 && !p.home.is_some_and(below);
                let slot = self.table.turn(id).map(|turn| turn.slot);
                let program = slot.and_then(|slot| self.table.program(slot)).filter(|program| alone(program));
                // It lost its cache or there is no room to run: it queues like others.
                match slot.zip(program.map(|program| program.ran)) {
                    Some((slot, true)) => self.pause(slot, out),
                    Some((slot, false)) => self.table.displace(slot),
                    None => {}
                }
                out.push(Action::Hold { turn: id, reason });
                self.next_look.get_or_insert(now + LOOK);
            }
        }
    }

    /// A turn's dispatch failed. What it took is its own again before it is anybody's.
    fn undispatched(&mut self, now: Time, id: TurnId, again: Option<&[WorkerId]>, out: &mut Vec<Action>) {
        if !self.table.undispatched(id, again) {
            return;
        }
        let slot = self.table.turn(id).map(|turn| turn.slot);
        self.touched(self.parents_home(slot));
        self.answer(now, id, out);
        self.pump(now, out);
    }

    /// Where the program lies that waits for this one.
    fn parents_home(&self, slot: Option<Slot>) -> Option<WorkerId> {
        self.table.parent(slot?).and_then(|parent| parent.home)
    }

    /// A program is back with a turn.
    fn back(&mut self, now: Time, id: TurnId) {
        let Some(turn) = self.table.turn(id) else { return };
        if let (Some(since), Some(program)) = (turn.away_since(), self.table.program(turn.slot)) {
            self.learned.returned(Kind::of(program), now.since(since));
        }
    }

    fn ended(&mut self, now: Time, id: TurnId, end: &End, out: &mut Vec<Action>) {
        if let Some(turn) = self.table.turn(id) {
            self.learned.ended(now, turn, end, self.rooms.workers());
        }
        let home = self.table.turn(id).and_then(|turn| self.table.program(turn.slot)?.home);
        let idle = self.table.end(now, id, end);
        self.left(idle, home, out);
    }

    fn left(&mut self, idle: Option<Slot>, home: Option<WorkerId>, out: &mut Vec<Action>) {
        self.touched(home);
        if let Some(slot) = idle.filter(|slot| self.table.program(*slot).is_some_and(|p| p.marked)) {
            self.pause(slot, out);
        }
    }

    fn expire(&mut self, now: Time) {
        let mut gone = Vec::new();
        self.table.expire(now, |table, program| {
            let parent = program.parent.as_ref().and_then(|key| table.by_key(key));
            gone.push((Kind::of(program), parent.and_then(|parent| parent.home)));
        });
        for (kind, parents_home) in gone {
            self.learned.never(kind);
            self.touched(parents_home);
        }
    }

    fn take_in(&mut self, now: Time, event: &Event<'_>, out: &mut Vec<Action>) {
        match event {
            Event::WorkerReady { worker, capacity } => self.table.worker_ready(*worker, *capacity),
            Event::WorkerLost { worker } => {
                self.table.worker_lost(*worker);
                self.touched(Some(*worker));
            }
            Event::Arrived(arrival) => return self.arrived(now, arrival, out),
            Event::Found { turn, prefix } => {
                if !self.table.found(*turn, prefix) || !self.may_fit(now, *turn) {
                    return;
                }
            }
            Event::Dispatched { turn, worker } => {
                let before = self.table.turn(*turn).and_then(Turn::at);
                self.table.dispatched(now, *turn, *worker);
                if before != Some(*worker) {
                    self.touched(before);
                    self.touched(Some(*worker));
                    self.relieve(now, *worker, out);
                }
                return;
            }
            Event::Undispatched { turn, again } => return self.undispatched(now, *turn, *again, out),
            Event::FirstToken { turn } => return self.table.computed(now, *turn),
            Event::Progress { turn, generated } => {
                self.table.progress(*turn, *generated);
                if let Some(worker) = self.table.turn(*turn).and_then(Turn::at) {
                    self.relieve(now, worker, out);
                }
                return;
            }
            Event::Ended { turn, end } => self.ended(now, *turn, end, out),
            Event::Aborted { turn } => {
                let home = self.table.turn(*turn).and_then(|turn| self.table.program(turn.slot)?.home);
                let idle = self.table.abort(now, *turn);
                let back = idle.and_then(|slot| self.table.program(slot)?.home);
                self.touched(back);
                self.left(idle, home, out);
            }
            Event::SessionEnd { program } => {
                let parent = self.table.by_key(program).and_then(|known| known.parent.as_ref());
                let parents_home = parent.and_then(|key| self.table.by_key(key)?.home);
                self.table.session_end(program);
                self.touched(parents_home);
            }
        }
        self.pump(now, out);
    }

    /// Passes on which caches are not worth keeping.
    fn tell_left(&mut self, out: &mut Vec<Action>) {
        let left = self.table.left.drain(..);
        out.extend(left.map(|Left { program, worker, tokens }| Action::Demote { program, worker, tokens }));
    }
}

impl AdmissionPolicy for Tandem {
    fn name(&self) -> &'static str {
        "tandem"
    }

    fn on(&mut self, now: Time, event: &Event<'_>, out: &mut Vec<Action>) {
        self.learned.follow(now);
        self.on_time(now, out);
        self.take_in(now, event, out);
        self.tell_left(out);
    }

    fn next_deadline(&self) -> Option<Time> {
        [self.next_look, self.table.next_expiry()].into_iter().flatten().min()
    }

    fn on_time(&mut self, now: Time, out: &mut Vec<Action>) {
        if self.table.next_expiry().is_some_and(|at| at <= now) {
            self.expire(now);
        }
        if self.next_look.is_some_and(|at| at <= now) {
            self.pump(now, out);
        }
        self.tell_left(out);
    }

    fn stats(&self) -> Stats {
        self.table.stats()
    }

    fn charged(&self, worker: WorkerId) -> (u64, u64) {
        self.table.charged(worker)
    }

    fn patience(&self) -> Option<f64> {
        Some(self.learned.patience())
    }

    fn check(&self) -> Result<(), String> {
        self.table.check()?;
        self.rooms.check(&self.table)
    }
}
