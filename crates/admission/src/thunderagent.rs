//! The published scheduler: pause above one threshold, smallest first, resume below another.
//!
//! - Utilisation U of a worker: context tokens of its ACTIVE programs, plus a buffer for each, over its capacity.
//! - A turn of an ACTIVE program goes to the program's worker without a test. A new program is let in where it fits whole,
//!   on the worker used least, unless others wait; else it is PAUSED and waits.
//! - Every [`ThunderAgentConfig::tick`]: in the band from 0.80 to 0.95 turns of the worker's programs are demoted for a
//!   tick and a half; PAUSED programs are resumed, smallest first, up to 0.85; above 0.95 the smallest ACTING programs are
//!   paused until 0.80 is reached, and when they do not suffice the smallest REASONING ones are marked, to be paused when
//!   their turn ends. A program held for 30 min is let in by force where the decayed load is least.
//! - Resuming precedes pausing, so that nothing is paused and resumed in one tick. What is resumed is chosen smallest
//!   first as long as it fits all room together, then placed largest first where the room is largest.
//! - Nothing is published of dispatches that fail. An ACTIVE program keeps its place, so its turn is sent again without a
//!   test; if its worker is gone, as any turn of a program whose worker is.
//! - Switches tell the article's behaviour from the published package's where they differ: [`ThunderAgentConfig::package`].
//! - I-THA-1 a program is resumed only below the resume ceiling, or by force, or because it is new and fits whole.
//! - I-THA-2 marks stop as soon as what the marked will release reaches the target (article).
//! - Sources: the article and its algorithm as described in its papers; written anew.

use std::cmp::Reverse;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tandem_types::{Time, TurnId, WorkerId};

use crate::contract::{Action, Arrival, Capacity, Event, Grant, HoldReason, Placement, Stats};
use crate::table::{Rules, Slot, Table, Worker};
use crate::{AdmissionConfig, AdmissionError, AdmissionPolicy};

/// Settings of the published scheduler.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ThunderAgentConfig {
    /// Above this part of its capacity a worker's programs are paused.
    pub pause_threshold: f64,
    /// Down to this part.
    pub pause_target: f64,
    /// From this part on turns are demoted.
    pub soft_demote_threshold: f64,
    /// Programs are resumed up to `pause_threshold` less this.
    pub resume_hysteresis: f64,
    /// Priority of a demoted turn.
    pub soft_demote_priority: i32,
    /// Priority added to a turn that was held.
    pub resume_boost: i32,
    /// A turn held this long is let in by force.
    pub resume_timeout: Duration,
    /// Between two looks at everything.
    pub tick: Duration,
    /// What an ACTING program's tokens weigh.
    pub acting_weight: f64,
    /// An ACTING program's tokens count half after this long, where a forced turn's worker is chosen.
    pub acting_decay: Duration,
    /// They count so everywhere (the article's evaluation, and a switch of its package that is off).
    pub decayed: bool,
    /// A program that is resumed waits for the worker that it was paused at, as a port of the package does, instead of
    /// going where most room is.
    pub origin_only: bool,
    /// Tokens added for each program.
    pub buffer: u64,
    /// REASONING programs count. The article's formula names ACTING ones alone, its text and all code count both.
    pub count_reasoning: bool,
    /// A head that several programs share at a worker counts once. The article adds up whole contexts; the package
    /// documents that it subtracts what is shared, and never does.
    pub shared_once: bool,
    /// Memory below the device counts as capacity (package; the plugin of the article's authors counts the device alone).
    pub count_tiers: bool,
    /// Mark every REASONING program rather than the smallest that suffice (package).
    pub mark_all: bool,
    /// Marks stay when the pressure is gone (package); the article is silent, and withdrawing them is what follows from
    /// marking for need.
    pub keep_marks: bool,
    /// A known program that fits nowhere, since its worker is gone, goes anywhere (package); the article holds it.
    pub pass_unplaceable: bool,
    /// Boost and demotion reach the engine (article). In the package a negative priority is cut off at 0, and neither
    /// acts unless its router's own queue is switched on.
    pub priorities: bool,
    /// Also resume whenever something ends, not only on ticks. Neither does; to see what the tick costs.
    pub event_driven: bool,
}

impl Default for ThunderAgentConfig {
    fn default() -> Self {
        Self {
            pause_threshold: 0.95,
            pause_target: 0.80,
            soft_demote_threshold: 0.80,
            resume_hysteresis: 0.10,
            soft_demote_priority: -2,
            resume_boost: 1,
            resume_timeout: Duration::from_secs(30 * 60),
            tick: Duration::from_secs(5),
            acting_weight: 1.0,
            acting_decay: Duration::from_secs(1),
            decayed: false,
            origin_only: false,
            buffer: 100,
            count_reasoning: true,
            shared_once: false,
            count_tiers: false,
            mark_all: false,
            keep_marks: false,
            pass_unplaceable: false,
            priorities: true,
            event_driven: false,
        }
    }
}

impl ThunderAgentConfig {
    /// As the published package behaves where it differs from the article.
    #[must_use]
    pub fn package() -> Self {
        Self {
            count_tiers: true,
            mark_all: true,
            keep_marks: true,
            pass_unplaceable: true,
            priorities: false,
            ..Self::default()
        }
    }

    pub(crate) fn check(&self) -> Result<(), AdmissionError> {
        let part = |value: f64| value.is_finite() && value > 0.0;
        let nonsense = |holds: bool, text| if holds { Ok(()) } else { Err(AdmissionError::Nonsense(text)) };
        nonsense(part(self.pause_threshold), "thunderagent.pause_threshold must be above 0")?;
        nonsense(
            part(self.pause_target) && self.pause_target <= self.pause_threshold,
            "thunderagent.pause_target must be above 0 and not above pause_threshold",
        )?;
        nonsense(
            self.resume_hysteresis.is_finite()
                && (0.0..=self.pause_threshold).contains(&self.resume_hysteresis),
            "thunderagent.resume_hysteresis must be from 0 to pause_threshold",
        )?;
        nonsense(!self.tick.is_zero(), "thunderagent.tick must be above 0")?;
        nonsense(
            self.acting_weight.is_finite() && self.acting_weight >= 0.0,
            "thunderagent.acting_weight must not be negative",
        )
    }
}

/// The policy `thunderagent`.
#[derive(Debug)]
pub(crate) struct ThunderAgent {
    config: ThunderAgentConfig,
    table: Table,
    /// Of the event that is dealt with.
    now: Time,
    next_tick: Option<Time>,
}

/// A program that could be resumed: what it needs, and the turn that waits, if one does.
#[derive(Debug, Clone, Copy)]
struct Paused {
    group: u8,
    need: u64,
    slot: Slot,
    turn: Option<TurnId>,
}

#[expect(clippy::cast_precision_loss, reason = "token counts are far below 2^52")]
const fn float(tokens: u64) -> f64 {
    tokens as f64
}

impl ThunderAgent {
    pub(crate) fn new(config: &AdmissionConfig) -> Self {
        Self {
            config: config.thunderagent.clone(),
            table: Table::new(
                config.programs_max,
                config.program_idle_ttl,
                Rules { heads_count_once: config.thunderagent.shared_once, kin_ranks: false, lists: false },
            ),
            now: Time::ZERO,
            next_tick: None,
        }
    }

    fn used(&self, worker: &Worker) -> f64 {
        let reasoning = if self.config.count_reasoning { worker.running_tokens } else { 0 };
        let programs = u64::from(worker.running) + worker.idle.len() as u64;
        let acting =
            if self.config.decayed { self.acting(worker, self.now) } else { float(worker.idle_tokens) };
        float(reasoning + worker.shared)
            + acting * self.config.acting_weight
            + float(programs * self.config.buffer)
    }

    /// Tokens of ACTING programs, which count less the longer they are away.
    fn acting(&self, worker: &Worker, now: Time) -> f64 {
        let counts = worker.idle.iter().map(|idler| {
            let lives =
                now.since(idler.since).as_secs_f64() / self.config.acting_decay.as_secs_f64().max(1e-9);
            float(idler.charge) * (-lives).exp2()
        });
        counts.sum()
    }

    fn capacity(&self, worker: &Worker) -> Option<f64> {
        let tokens =
            |capacity: Capacity| if self.config.count_tiers { capacity.resident } else { capacity.device };
        worker.capacity.filter(|_| worker.ready).map(|capacity| float(tokens(capacity)))
    }

    /// Workers that tell their capacity.
    fn sized(&self) -> impl Iterator<Item = (WorkerId, &Worker, f64)> {
        self.table.workers.iter().filter_map(|(id, w)| Some((*id, w, self.capacity(w)?)))
    }

    fn arrived(&mut self, now: Time, arrival: &Arrival<'_>, out: &mut Vec<Action>) {
        if !self.table.arrive(now, arrival) {
            return;
        }
        self.next_tick.get_or_insert(now + self.config.tick);
        let id = arrival.turn;
        match self.decide(now, id, arrival.program.is_some()) {
            Ok(placement) => self.admit(now, id, placement, false, out),
            Err(reason) => {
                out.push(Action::Hold { turn: id, reason });
            }
        }
    }

    /// A turn that was let in is to be sent again, as urgently as before.
    fn again(&mut self, now: Time, id: TurnId, out: &mut Vec<Action>) {
        let known =
            self.table.turn(id).and_then(|turn| self.table.program(turn.slot)?.key.as_ref()).is_some();
        match self.decide(now, id, known) {
            Ok(placement) => {
                self.table.admit(id, placement.worker());
                let priority = self.table.turn(id).map_or(0, |turn| turn.priority);
                out.push(Action::Admit { turn: id, grant: Grant { priority, ..Grant::to(placement) } });
            }
            Err(reason) => out.push(Action::Hold { turn: id, reason }),
        }
    }

    fn decide(&self, _now: Time, id: TurnId, known: bool) -> Result<Placement, HoldReason> {
        let Some(turn) = self.table.turn(id) else { return Err(HoldReason::NoRoom) };
        let Some(program) = self.table.program(turn.slot) else { return Err(HoldReason::NoRoom) };
        let home = program.home.filter(|home| self.table.is_ready(*home));
        // Requests without identity pass.
        if !known {
            return Ok(Placement::Any);
        }
        if !program.active && (program.ran || program.steps > 1) {
            return Err(HoldReason::Paused);
        }
        if self.sized().next().is_none() {
            return Ok(home.map_or(Placement::Any, Placement::Prefer));
        }
        if let Some(home) = home.filter(|_| program.active) {
            return Ok(Placement::Pin(home));
        }
        if program.steps <= 1 && (self.table.waiting.len() > 1 || !self.table.paused.is_empty()) {
            return Err(HoldReason::Behind);
        }
        let need = |at| float(self.table.need(turn, at) + self.config.buffer);
        let fits = self.sized().filter(|(at, worker, capacity)| capacity - self.used(worker) >= need(*at));
        let least = fits.min_by(|a, b| self.used(a.1).total_cmp(&self.used(b.1)));
        match least {
            Some((worker, _, _)) => Ok(Placement::Pin(worker)),
            None if program.active && self.config.pass_unplaceable => Ok(Placement::Any),
            None => Err(HoldReason::NoRoom),
        }
    }

    fn admit(&mut self, now: Time, id: TurnId, placement: Placement, forced: bool, out: &mut Vec<Action>) {
        let Some(turn) = self.table.turn(id) else { return };
        let (slot, held) = (turn.slot, turn.arrived < now || forced);
        let mut priority = 0;
        if let Some(program) = self.table.program_mut(slot) {
            if held {
                priority += self.config.resume_boost;
            }
            if program.demoted_until.is_some_and(|until| until > now) {
                priority += self.config.soft_demote_priority;
            }
        }
        if !self.config.priorities {
            priority = 0;
        }
        if let Some(turn) = self.table.turn_mut(id) {
            turn.priority = priority;
        }
        self.table.admit(id, placement.worker());
        self.table.stats.forced += u64::from(forced);
        out.push(Action::Admit { turn: id, grant: Grant { placement, priority, forced } });
    }

    fn tick(&mut self, now: Time, out: &mut Vec<Action>) {
        self.table.expire(now, |_, _| {});
        self.demote(now);
        self.resume(now, out);
        self.force(now, out);
        let workers: Vec<WorkerId> = self.table.workers.keys().copied().collect();
        for worker in workers {
            self.relieve(worker, out);
        }
    }

    fn demote(&mut self, now: Time) {
        let band = self.config.soft_demote_threshold..self.config.pause_threshold;
        let workers: Vec<WorkerId> = self
            .sized()
            .filter(|(_, worker, capacity)| band.contains(&(self.used(worker) / capacity)))
            .map(|(id, _, _)| id)
            .collect();
        let until = now + self.config.tick * 3 / 2;
        for slot in self.slots(|program| program.active && !program.marked) {
            if let Some(program) = self.table.program_mut(slot)
                && program.home.is_some_and(|home| workers.contains(&home))
            {
                program.demoted_until = Some(until);
            }
        }
    }

    fn slots(&self, keep: impl Fn(&crate::table::Program) -> bool) -> Vec<Slot> {
        self.table.programs().filter(|(_, program)| keep(program)).map(|(slot, _)| slot).collect()
    }

    /// Programs that could be resumed, in the order in which they are.
    fn candidates(&self) -> Vec<Paused> {
        let mut paused: Vec<Paused> = Vec::new();
        for turn in
            self.table.waiting.iter().filter_map(|(_, id)| self.table.turn(*id).map(|turn| (*id, turn)))
        {
            let (id, turn) = turn;
            let steps = self.table.program(turn.slot).map_or(0, |program| program.steps);
            let need = turn.prompt + self.config.buffer;
            paused.push(Paused { group: u8::from(steps <= 1), need, slot: turn.slot, turn: Some(id) });
        }
        for slot in &self.table.paused {
            let need = self.table.program(*slot).map_or(0, |program| program.tokens) + self.config.buffer;
            paused.push(Paused { group: 2, need, slot: *slot, turn: None });
        }
        paused.sort_by_key(|p| (p.group, p.need, p.slot));
        paused
    }

    fn resume(&mut self, now: Time, out: &mut Vec<Action>) {
        let ceiling = (self.config.pause_threshold - self.config.resume_hysteresis).max(0.0);
        let buffer = float(self.config.buffer);
        let mut room: Vec<(f64, WorkerId)> = self
            .sized()
            .map(|(id, worker, capacity)| ((capacity * ceiling).floor() - self.used(worker), id))
            .filter(|(left, _)| *left > buffer)
            .collect();
        if self.sized().next().is_none() && self.table.workers.values().any(|worker| worker.ready) {
            // Nobody tells what fits, so nobody is kept.
            let all: Vec<TurnId> = self.table.waiting.iter().map(|(_, id)| *id).collect();
            return all.into_iter().for_each(|id| self.admit(now, id, Placement::Any, false, out));
        }
        if room.is_empty() {
            return;
        }
        let all: f64 = room.iter().map(|(left, _)| left).sum();
        let mut taken = 0.0;
        let mut chosen = self.candidates();
        // Who waits for one worker is not packed with others: smallest first.
        if !self.config.origin_only {
            chosen.retain(|paused| {
                let fits = taken + float(paused.need) <= all;
                taken += if fits { float(paused.need) } else { 0.0 };
                fits
            });
            chosen.sort_by_key(|p| (Reverse(p.need), p.slot));
        }
        for paused in chosen {
            let need = float(paused.need);
            let origin = self.origin(paused.slot);
            let may = room.iter_mut().filter(|(_, id)| origin.is_none_or(|origin| origin == *id));
            let Some(best) = may.max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1))) else {
                continue;
            };
            if best.0 < need {
                continue;
            }
            best.0 -= need;
            let worker = best.1;
            room.retain(|(left, _)| *left > buffer);
            match paused.turn {
                Some(id) => self.admit(now, id, Placement::Pin(worker), false, out),
                None => self.table.resume_idle(paused.slot, worker),
            }
        }
    }

    /// The only worker that a program may be resumed at, if there is such a rule.
    fn origin(&self, slot: Slot) -> Option<WorkerId> {
        let home = self.table.program(slot).and_then(|program| program.home);
        home.filter(|home| self.config.origin_only && self.table.is_ready(*home))
    }

    fn force(&mut self, now: Time, out: &mut Vec<Action>) {
        let late: Vec<TurnId> = self
            .table
            .waiting
            .iter()
            .filter_map(|(_, id)| self.table.turn(*id).map(|turn| (*id, turn.arrived)))
            .take_while(|(_, arrived)| *arrived + self.config.resume_timeout <= now)
            .map(|(id, _)| id)
            .collect();
        for id in late {
            let load = |(id, worker, capacity): (WorkerId, &Worker, f64)| {
                (capacity - float(worker.running_tokens) - self.acting(worker, now), id)
            };
            let best = self.sized().map(load).max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
            if let Some((_, worker)) = best {
                self.admit(now, id, Placement::Pin(worker), true, out);
            }
        }
    }

    /// Pauses and marks programs of a worker above the threshold.
    fn relieve(&mut self, id: WorkerId, out: &mut Vec<Action>) {
        let Some((worker, capacity)) = self.table.worker(id).and_then(|w| Some((w, self.capacity(w)?)))
        else {
            return;
        };
        let target = capacity * self.config.pause_target;
        if self.used(worker) <= capacity * self.config.pause_threshold {
            if !self.config.keep_marks && self.used(worker) <= target {
                self.unmark(id);
            }
            return;
        }
        let mut acting: Vec<(u64, Slot)> =
            worker.idle.iter().map(|idler| (idler.charge, idler.slot)).collect();
        acting.sort_unstable();
        for (_, slot) in acting {
            if self.table.worker(id).is_none_or(|worker| self.used(worker) <= target) {
                return;
            }
            self.pause(slot, out);
        }
        self.mark(id, target);
    }

    fn mark(&mut self, id: WorkerId, target: f64) {
        let Some(worker) = self.table.worker(id) else { return };
        let mut left = self.used(worker);
        let mut running: Vec<(u64, bool, Slot)> = Vec::new();
        for slot in self.slots(|p| p.active && !p.is_idle() && p.home == Some(id)) {
            let Some(program) = self.table.program(slot) else { continue };
            let turns = program.live.iter().filter_map(|turn| self.table.turn(*turn));
            let tokens = turns.map(|turn| turn.prompt + turn.generated).sum();
            running.push((tokens, program.marked, slot));
        }
        running.sort_unstable();
        let release = |tokens: u64| float(tokens + self.config.buffer);
        left -= running
            .iter()
            .filter(|(_, marked, _)| *marked)
            .map(|(tokens, _, _)| release(*tokens))
            .sum::<f64>();
        for (tokens, marked, slot) in running {
            if marked {
                continue;
            }
            if left <= target && !self.config.mark_all {
                return;
            }
            left -= release(tokens);
            if let Some(program) = self.table.program_mut(slot) {
                program.marked = true;
            }
            self.table.stats.marked += 1;
        }
    }

    fn unmark(&mut self, id: WorkerId) {
        for slot in self.slots(|p| p.marked && p.home == Some(id)) {
            if let Some(program) = self.table.program_mut(slot) {
                program.marked = false;
            }
        }
    }

    fn pause(&mut self, slot: Slot, out: &mut Vec<Action>) {
        if let Some((program, worker, tokens)) = self.table.pause(slot) {
            out.push(Action::Paused { program, worker, tokens });
        }
    }

    fn left_idle(&mut self, slot: Option<Slot>, out: &mut Vec<Action>) {
        if let Some(slot) = slot
            && self.table.program(slot).is_some_and(|program| program.marked)
        {
            self.pause(slot, out);
        }
    }
}

impl AdmissionPolicy for ThunderAgent {
    fn name(&self) -> &'static str {
        "thunderagent"
    }

    fn on(&mut self, now: Time, event: &Event<'_>, out: &mut Vec<Action>) {
        self.now = now;
        self.on_time(now, out);
        match event {
            Event::WorkerReady { worker, capacity } => self.table.worker_ready(*worker, *capacity),
            Event::WorkerLost { worker } => self.table.worker_lost(*worker),
            Event::Arrived(arrival) => return self.arrived(now, arrival, out),
            Event::Dispatched { turn, worker } => return self.table.dispatched(now, *turn, *worker),
            Event::Undispatched { turn, again } => {
                if self.table.undispatched(*turn, *again) {
                    self.again(now, *turn, out);
                }
                return;
            }
            // The article's scheduler looks at sizes alone.
            Event::Found { .. } | Event::FirstToken { .. } => return,
            Event::Progress { turn, generated } => return self.table.progress(*turn, *generated),
            Event::Ended { turn, end } => {
                let idle = self.table.end(now, *turn, end);
                self.left_idle(idle, out);
            }
            Event::Aborted { turn } => {
                let idle = self.table.abort(now, *turn);
                self.left_idle(idle, out);
            }
            Event::SessionEnd { program } => self.table.session_end(program),
        }
        if self.config.event_driven {
            self.resume(now, out);
        }
        if self.table.is_empty() {
            self.next_tick = None;
        }
    }

    fn next_deadline(&self) -> Option<Time> {
        self.next_tick
    }

    fn on_time(&mut self, now: Time, out: &mut Vec<Action>) {
        self.now = now;
        let Some(at) = self.next_tick.filter(|at| *at <= now) else { return };
        self.tick(now, out);
        // A clock that jumped ahead makes one tick, not many.
        let next = at + self.config.tick;
        self.next_tick =
            (!self.table.is_empty()).then(|| if next > now { next } else { now + self.config.tick });
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
