//! The scheduler's state, to look at: for the admin API, metrics, the dashboard and tests.
//!
//! - Looking copies nothing but what is asked for: the table may hold 100,000 programs.
//! - Deliberately absent: prompts and bodies (the scheduler has none).

use std::time::Duration;

use serde::Serialize;
use tandem_types::{GroupId, LoadReport, ProgramKey, RequestClass, Time, TurnId, WorkerId, WorkerInfo};

use crate::Scheduler;
use crate::breaker::BreakerState;
use crate::contract::HoldReason;
use crate::programs::{Program, ProgramState};
use crate::turns::{Phase, Turn};
use crate::workers::{Worker, WorkerState};

/// What has happened since the start. `arrived` = the six ways to end + turns live now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Counters {
    /// Turns and side calls that arrived.
    pub arrived: u64,
    /// Dispatches, further tries included.
    pub dispatched: u64,
    /// Dispatches that were further tries.
    pub retried: u64,
    /// Times that a turn had to wait.
    pub held: u64,
    /// Ended well.
    pub finished: u64,
    /// Refused by the engine.
    pub refused: u64,
    /// Broken off or failed by the engine during the answer.
    pub failed: u64,
    /// Left by their client.
    pub cancelled: u64,
    /// Refused by us.
    pub rejected: u64,
    /// Replaced by a repetition of the same call.
    pub superseded: u64,
    /// Programs that left because the table was full.
    pub programs_evicted: u64,
    /// Programs that were idle too long.
    pub programs_expired: u64,
    /// Turns served without remembering their program: the table was full of busy ones.
    pub programs_untracked: u64,
    /// Programs taken over from an earlier run.
    pub programs_remembered: u64,
    /// Session ends for programs that are not known (expired, or never ran).
    pub unknown_session_ends: u64,
    /// Times that a circuit breaker opened.
    pub breakers_opened: u64,
    /// Times that operators stopped dispatching to exchange weights.
    pub syncs: u64,
    /// Of these, how many ended because they took longer than was said.
    pub syncs_expired: u64,
    /// Inputs about turns that were over: races between client, engine and us, harmless.
    pub late_inputs: u64,
    /// Inputs that a correct driver never sends.
    pub anomalies: Anomalies,
}

/// Inputs that a correct driver never sends; ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Anomalies {
    /// An arrival with the id of a live turn.
    pub duplicate_turns: u64,
    /// Something about a turn that never arrived.
    pub unknown_turns: u64,
    /// Something that cannot happen to a turn where it is, such as the end of a held one.
    pub wrong_phase: u64,
    /// Something about a worker that was never up.
    pub unknown_workers: u64,
    /// Time ran backwards; the latest time seen was used.
    pub time_backwards: u64,
}

impl Anomalies {
    /// All of them.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.duplicate_turns
            + self.unknown_turns
            + self.wrong_phase
            + self.unknown_workers
            + self.time_backwards
    }
}

/// A worker.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorkerView {
    /// Which.
    pub worker: WorkerId,
    /// What it is good for. A draining worker with `calls_running` 0 has nothing left to do.
    pub state: WorkerState,
    /// What is known of it, once it was ready.
    pub info: Option<WorkerInfo>,
    /// Turns dispatched there and not over: what `max_running` bounds.
    pub turns_running: u32,
    /// The same with side calls.
    pub calls_running: u64,
    /// Requests there that are not ours, by the last report.
    pub foreign: u64,
    /// `calls_running + foreign`: what routing compares.
    pub load: u64,
    /// Prompt tokens that running turns without a first token were expected to compute here.
    pub queued_prefill: u64,
    /// Context tokens of the programs that ran here last.
    pub home_tokens: u64,
    /// KV tokens that admission charges it with, where there is a policy.
    pub charged: Option<ChargedView>,
    /// The last report.
    pub report: Option<LoadReport>,
    /// Its circuit breaker.
    pub breaker: BreakerState,
}

impl WorkerView {
    fn new(core: &Scheduler, id: WorkerId, worker: &Worker) -> Self {
        Self {
            worker: id,
            state: worker.state,
            info: worker.info.clone(),
            turns_running: worker.turns_running,
            calls_running: worker.meter.ours(),
            foreign: worker.meter.foreign(),
            load: worker.meter.load(),
            queued_prefill: worker.queued_prefill,
            home_tokens: core.programs.at_home().at(id),
            charged: core.gate.charged(id).map(|(running, idle, capacity)| ChargedView {
                running,
                idle,
                device: capacity.map(|capacity| capacity.device),
                resident: capacity.map(|capacity| capacity.resident),
                patience: core.gate.patience(id),
            }),
            report: worker.report,
            breaker: worker.breaker.state(),
        }
    }
}

/// What admission charges a worker with, in tokens of KV.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ChargedView {
    /// For turns that run there or are to run there.
    pub running: u64,
    /// For programs that idle and have a place there, at full weight.
    pub idle: u64,
    /// What its device holds; `None` = it does not tell, and nothing is held for want of room there.
    pub device: Option<u64>,
    /// The same with its own tiers below.
    pub resident: Option<u64>,
    /// For how many times as long as computing them again takes idle programs are kept there now; `None` = the policy
    /// does not reckon so.
    pub patience: Option<f64>,
}

/// Admission, over all workers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AdmissionView {
    /// The policy's name.
    pub policy: String,
    /// Its counts.
    pub stats: tandem_admission::Stats,
    /// Until when at most weights are being exchanged and no turn is dispatched.
    pub sync_until: Option<Time>,
}

/// A program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProgramView {
    /// Which.
    pub program: ProgramKey,
    /// Where it is in its loop.
    pub state: ProgramState,
    /// The program that spawned it.
    pub parent: Option<ProgramKey>,
    /// Sessions that share a fate.
    pub group: Option<GroupId>,
    /// Where it ran last.
    pub last_worker: Option<WorkerId>,
    /// Where a prompt of it was computed last for another worker.
    pub last_prefill: Option<WorkerId>,
    /// Turns held or running.
    pub live_turns: u32,
    /// Dispatches of its turns.
    pub turns_dispatched: u64,
    /// Turns that ended well.
    pub turns_finished: u64,
    /// Prompt and answer of its last finished turn, in tokens; 0 when unknown.
    pub known_tokens: u64,
    /// Its last finished turn asked for tools.
    pub ended_with_tools: bool,
    /// When a turn last arrived or ended.
    pub last_active: Time,
    /// An operator paused it.
    pub paused_by_operator: bool,
}

impl ProgramView {
    fn new(key: &ProgramKey, program: &Program) -> Self {
        Self {
            program: key.clone(),
            state: program.state(),
            parent: program.parent.clone(),
            group: program.group.clone(),
            last_worker: program.last_worker,
            last_prefill: program.last_prefill,
            live_turns: program.live_turns,
            turns_dispatched: program.turns_dispatched,
            turns_finished: program.turns_finished,
            known_tokens: program.known_tokens,
            ended_with_tools: program.ended_with_tools,
            last_active: program.last_active,
            paused_by_operator: program.stopped,
        }
    }
}

/// A turn that is not over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TurnView {
    /// Which.
    pub turn: TurnId,
    /// Its program.
    pub program: Option<ProgramKey>,
    /// What the call is for.
    pub class: RequestClass,
    /// The model asked for.
    pub model: Option<String>,
    /// Where it runs, the worker that answers; `None` while held.
    pub worker: Option<WorkerId>,
    /// The worker that computes its prompt for that one, until that is done.
    pub prefill: Option<WorkerId>,
    /// Since when it is held or runs there.
    pub since: Time,
    /// The client has bytes of the answer.
    pub answering: bool,
    /// Dispatches so far.
    pub attempts: u32,
    /// Time spent in the queue before.
    pub waited: Duration,
}

impl TurnView {
    fn new(id: TurnId, turn: &Turn, now: Time) -> Self {
        let (worker, prefill, since, answering) = match turn.phase {
            Phase::Placing => (None, None, now, false),
            Phase::Held { since } => (None, None, since, false),
            Phase::Running { worker, prefill, since, answering, .. } => {
                (Some(worker), prefill, since, answering)
            }
        };
        Self {
            turn: id,
            program: turn.arrival.program.clone(),
            class: turn.arrival.class,
            model: turn.arrival.model.clone(),
            worker,
            prefill,
            since,
            answering,
            attempts: turn.attempts,
            waited: turn.waited,
        }
    }
}

/// A held turn's place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HeldView {
    /// The turn.
    pub turn: TurnView,
    /// Why it waits.
    pub reason: HoldReason,
    /// Its place, from 1: among those that wait for a worker of the same model, or in the line of those that wait for
    /// admission or an operator.
    pub position: u32,
    /// When it is refused if it is still held.
    pub deadline: Time,
}

/// A look at the scheduler.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    core: &'a Scheduler,
}

impl<'a> View<'a> {
    pub(crate) const fn new(core: &'a Scheduler) -> Self {
        Self { core }
    }

    /// The latest time that the scheduler was told.
    #[must_use]
    pub const fn now(&self) -> Time {
        self.core.now
    }

    /// The routing policy's name.
    #[must_use]
    pub fn policy(&self) -> &'static str {
        self.core.policy.name()
    }

    /// What has happened so far.
    #[must_use]
    pub const fn counters(&self) -> &'a Counters {
        &self.core.counters
    }

    /// Every worker, by id.
    pub fn workers(&self) -> impl Iterator<Item = WorkerView> + use<'a> {
        let core = self.core;
        core.workers.iter().map(move |(id, worker)| WorkerView::new(core, id, worker))
    }

    /// One worker.
    #[must_use]
    pub fn worker(&self, id: WorkerId) -> Option<WorkerView> {
        self.core.workers.get(id).map(|worker| WorkerView::new(self.core, id, worker))
    }

    /// Number of programs remembered.
    #[must_use]
    pub fn program_count(&self) -> usize {
        self.core.programs.len()
    }

    /// Every program, in no useful order.
    pub fn programs(&self) -> impl Iterator<Item = ProgramView> + use<'a> {
        self.core.programs.iter().map(|(key, program)| ProgramView::new(key, program))
    }

    /// One program.
    #[must_use]
    pub fn program(&self, key: &ProgramKey) -> Option<ProgramView> {
        self.core.programs.get(key).map(|program| ProgramView::new(key, program))
    }

    /// Number of turns that are not over.
    #[must_use]
    pub fn turn_count(&self) -> usize {
        self.core.turns.len()
    }

    /// Every turn that is not over, by id.
    pub fn turns(&self) -> impl Iterator<Item = TurnView> + use<'a> {
        let now = self.core.now;
        self.core.turns.iter().map(move |(id, turn)| TurnView::new(id, turn, now))
    }

    /// One turn, if it is not over.
    #[must_use]
    pub fn turn(&self, id: TurnId) -> Option<TurnView> {
        self.core.turns.get(id).map(|turn| TurnView::new(id, turn, self.core.now))
    }

    /// Number of held turns.
    #[must_use]
    pub fn held_count(&self) -> usize {
        self.core.queue.len()
    }

    /// Every held turn: those that wait for workers by model and place, then the line before them.
    pub fn held(&self) -> impl Iterator<Item = HeldView> + use<'a> {
        let core = self.core;
        let queued = core.queue.iter().map(|(_, position, id)| (position, id));
        queued.chain((1..).zip(core.queue.line())).filter_map(move |(position, id)| {
            let turn = core.turns.get(id)?;
            Some(HeldView {
                turn: TurnView::new(id, turn, core.now),
                reason: core.hold_reason(turn),
                position,
                deadline: turn.deadline,
            })
        })
    }

    /// Admission.
    #[must_use]
    pub fn admission(&self) -> AdmissionView {
        AdmissionView {
            policy: self.core.gate.policy().to_owned(),
            stats: self.core.gate.stats(),
            sync_until: self.core.sync_until,
        }
    }
}
