//! A session keeps its place for a lease after each turn; whoever idles longest gives way on demand. For comparison.
//!
//! - A turn of a program that has a place goes to its worker; where that overflows, idle programs lose their places,
//!   longest idle first, until it fits.
//! - A new or paused program waits in order of arrival until it fits; programs that have been idle for the lease give
//!   way to it. A paused program goes back to its worker alone.
//! - A turn whose dispatch failed keeps its place.
//! - Undecayed: an idle program counts in full. After [`IdleLeaseConfig::timeout`] a turn goes in by force.

use std::cmp::Reverse;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tandem_types::{Time, TurnId, WorkerId};

use crate::contract::{Action, Event, Grant, HoldReason, Placement, Stats};
use crate::table::{Rules, Slot, Table, Worker};
use crate::{AdmissionConfig, AdmissionPolicy};

/// Settings of the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IdleLeaseConfig {
    /// How long an idle program keeps its place against newcomers.
    pub lease: Duration,
    /// A turn held this long is let in by force.
    pub timeout: Duration,
}

impl Default for IdleLeaseConfig {
    fn default() -> Self {
        Self { lease: Duration::from_secs(30), timeout: Duration::from_secs(30 * 60) }
    }
}

/// Between two looks at leases while turns wait.
const LOOK: Duration = Duration::from_secs(1);

/// The policy `idle_lease`.
#[derive(Debug)]
pub(crate) struct IdleLease {
    config: IdleLeaseConfig,
    table: Table,
    next_look: Option<Time>,
}

impl IdleLease {
    pub(crate) fn new(config: &AdmissionConfig) -> Self {
        let table = Table::new(config.programs_max, config.program_idle_ttl, Rules::default());
        Self { config: config.idle_lease, table, next_look: None }
    }

    const fn used(worker: &Worker) -> u64 {
        worker.running_tokens + worker.idle_tokens
    }

    /// Tokens missing at a worker for a turn; `None` = it has no known bound.
    fn lacks(&self, id: TurnId, at: WorkerId) -> Option<u64> {
        let worker = self.table.worker(at)?;
        let capacity = worker.capacity?.resident;
        let need = self.table.turn(id)?.prompt;
        // Alone it may exceed the whole.
        let alone = worker.running == 0 && worker.idle.is_empty();
        Some(if alone { 0 } else { (Self::used(worker) + need).saturating_sub(capacity) })
    }

    /// Those who may give way at a worker, longest idle first, until enough is free; `None` = they do not suffice.
    fn victims(&self, now: Time, at: WorkerId, lacks: u64, idle_for: Duration) -> Option<Vec<Slot>> {
        let worker = self.table.worker(at)?;
        let mut idle: Vec<(Time, Slot)> = worker.idle.iter().map(|idler| (idler.since, idler.slot)).collect();
        idle.retain(|(since, _)| now.since(*since) >= idle_for);
        idle.sort_unstable();
        let mut freed = 0;
        let enough = idle.iter().position(|(_, slot)| {
            freed += self.table.idle_charge(*slot);
            freed >= lacks
        });
        Some(idle.into_iter().take(enough? + 1).map(|(_, slot)| slot).collect())
    }

    fn place(&mut self, now: Time, id: TurnId, out: &mut Vec<Action>) -> Result<Placement, HoldReason> {
        let Some(turn) = self.table.turn(id) else { return Err(HoldReason::NoRoom) };
        let Some(program) = self.table.program(turn.slot) else { return Err(HoldReason::NoRoom) };
        let (active, ran) = (program.active, program.ran);
        let home = program.home.filter(|home| self.table.is_ready(*home));
        let roomiest = || {
            let room = |worker: &Worker| match worker.capacity {
                Some(capacity) => capacity.resident.saturating_sub(Self::used(worker)),
                None => u64::MAX,
            };
            let ready = self.table.workers.iter().filter(|(_, worker)| worker.ready);
            ready.min_by_key(|(id, worker)| (Reverse(room(worker)), **id)).map(|(id, _)| *id)
        };
        let Some(at) = home.or_else(roomiest) else { return Ok(Placement::Any) };
        let Some(lacks) = self.lacks(id, at).filter(|lacks| *lacks > 0) else {
            return Ok(Placement::Pin(at));
        };
        let idle_for = if active { Duration::ZERO } else { self.config.lease };
        match self.victims(now, at, lacks, idle_for) {
            Some(victims) => {
                victims.into_iter().for_each(|slot| self.pause(slot, out));
                Ok(Placement::Pin(at))
            }
            // What it has computed lies there anyway.
            None if active => Ok(Placement::Pin(at)),
            None => Err(if ran { HoldReason::Paused } else { HoldReason::NoRoom }),
        }
    }

    fn pause(&mut self, slot: Slot, out: &mut Vec<Action>) {
        if let Some((program, worker, tokens)) = self.table.pause(slot) {
            out.push(Action::Paused { program, worker, tokens });
        }
    }

    fn admit(&mut self, id: TurnId, placement: Placement, forced: bool, out: &mut Vec<Action>) {
        self.table.admit(id, placement.worker());
        self.table.stats.forced += u64::from(forced);
        out.push(Action::Admit { turn: id, grant: Grant { placement, priority: 0, forced } });
    }

    /// Answers a turn that asks.
    fn answer(&mut self, now: Time, id: TurnId, out: &mut Vec<Action>) {
        match self.place(now, id, out) {
            Ok(placement) => self.admit(id, placement, false, out),
            Err(reason) => {
                out.push(Action::Hold { turn: id, reason });
                self.next_look.get_or_insert(now + LOOK);
            }
        }
    }

    /// Lets waiting turns in, in their order.
    fn pump(&mut self, now: Time, out: &mut Vec<Action>) {
        let waiting: Vec<TurnId> = self.table.waiting.iter().map(|(_, id)| *id).take(64).collect();
        for id in waiting {
            let late = self.table.turn(id).is_some_and(|turn| turn.arrived + self.config.timeout <= now);
            match self.place(now, id, out) {
                Ok(placement) => self.admit(id, placement, false, out),
                Err(_) if late => {
                    let home = self.table.turn(id).and_then(|turn| self.table.program(turn.slot)?.home);
                    self.admit(id, home.map_or(Placement::Any, Placement::Pin), true, out);
                }
                Err(_) => {}
            }
        }
        self.next_look = (!self.table.waiting.is_empty()).then(|| now + LOOK);
    }
}

impl AdmissionPolicy for IdleLease {
    fn name(&self) -> &'static str {
        "idle_lease"
    }

    fn on(&mut self, now: Time, event: &Event<'_>, out: &mut Vec<Action>) {
        self.on_time(now, out);
        match event {
            Event::WorkerReady { worker, capacity } => self.table.worker_ready(*worker, *capacity),
            Event::WorkerLost { worker } => self.table.worker_lost(*worker),
            Event::Arrived(arrival) => {
                if self.table.arrive(now, arrival) {
                    self.answer(now, arrival.turn, out);
                }
                return;
            }
            Event::Dispatched { turn, worker } => return self.table.dispatched(now, *turn, *worker),
            Event::Undispatched { turn, again } => {
                if self.table.undispatched(*turn, *again) {
                    self.answer(now, *turn, out);
                }
                return;
            }
            Event::Found { .. } | Event::FirstToken { .. } => return,
            Event::Progress { turn, generated } => return self.table.progress(*turn, *generated),
            Event::Ended { turn, end } => {
                self.table.end(now, *turn, end);
            }
            Event::Aborted { turn } => {
                self.table.abort(now, *turn);
            }
            Event::SessionEnd { program } => self.table.session_end(program),
        }
        self.pump(now, out);
    }

    fn next_deadline(&self) -> Option<Time> {
        [self.next_look, self.table.next_expiry()].into_iter().flatten().min()
    }

    fn on_time(&mut self, now: Time, out: &mut Vec<Action>) {
        if self.table.next_expiry().is_some_and(|at| at <= now) {
            self.table.expire(now, |_, _| {});
        }
        if self.next_look.is_some_and(|at| at <= now) {
            self.pump(now, out);
        }
    }

    fn stats(&self) -> Stats {
        self.table.stats()
    }

    fn charged(&self, worker: WorkerId) -> (u64, u64) {
        self.table.charged(worker)
    }

    fn check(&self) -> Result<(), String> {
        self.table.check()
    }
}
