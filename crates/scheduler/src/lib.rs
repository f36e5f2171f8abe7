//! The sans-io core: owns programs, turns and workers; takes inputs, emits effects.
//!
//! - Purpose: every decision of the gateway in one place that reads no clock, opens no socket and draws no
//!   unseeded number, so that the same code runs live, in tests and offline.
//! - Use: one owner calls [`Scheduler::handle`] for each [`Input`] and carries out the [`Effect`]s in order;
//!   between inputs it calls [`Scheduler::handle_timeout`] at [`Scheduler::next_deadline`].
//! - Inputs, effects and their promises: [`contract`]. Checks of the inner state: [`invariants`]. Recorded inputs
//!   and their replay: [`replay`]. A text form of both for people: [`script`].
//! - I-SCH-6 work is conserved: no turn is held while a worker could take it, but for those that admission or an operator
//!   holds ([`gate`], [`on_gate`]).
//! - I-SCH-7 a turn is not sent to a worker that runs `max_running` turns already. Side calls go beside that.
//! - I-SCH-8 a held turn is over at its deadline, whatever the driver calls at or after that time.
//! - I-SCH-9 nothing is left of a turn that is over, nor of a program of which nothing was ever dispatched.
//! - I-SCH-10 inputs that make no sense (unknown ids, second arrivals, time running backwards) are counted in
//!   [`view::Anomalies`] and otherwise ignored.
//! - I-SCH-11 a worker's queued prefill is the sum over its running turns without a first token of what each was
//!   expected to compute there; a worker's home tokens are the sum over the programs that ran there last.
//! - Deliberately absent: prompts and their hashes (a match comes with the turn, the index that made it lives
//!   outside).

pub mod breaker;
pub mod config;
pub mod contract;
mod eligible;
mod gate;
mod homes;
pub mod invariants;
mod on_gate;
mod on_tick;
mod on_turn;
mod on_worker;
mod pace;
mod pair;
mod place;
mod programs;
mod queue;
pub mod replay;
mod roster;
pub mod script;
mod turns;
pub mod view;
mod workers;

use tandem_routing::{Rng, RoutePolicy};
use tandem_types::Time;

pub use breaker::BreakerState;
pub use config::{BreakerConfig, ConfigError, LocalPrefill, PdConfig, PdFallback, SchedulerConfig};
pub use contract::{
    Admission, Decision, DispatchFailure, Effect, FailureKind, HoldReason, Input, LegDecision,
    PrefillDecision, RejectReason, Remembered, TurnArrival, TurnOutcome, TurnResult,
};
pub use programs::ProgramState;
pub use tandem_admission::{self as admission, AdmissionConfig, Placement};
pub use view::View;
pub use workers::WorkerState;

use gate::Gate;
use pace::Pace;
use programs::Programs;
use queue::HoldQueue;
use turns::Turns;
use view::Counters;
use workers::Workers;

/// The scheduler. Not `Clone`: it has one owner.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    policy: Box<dyn RoutePolicy>,
    /// Chooses workers for prompts; what it learns of them says nothing of the others.
    prefill_policy: Box<dyn RoutePolicy>,
    now: Time,
    route_rng: Rng,
    backoff_rng: Rng,
    programs: Programs,
    turns: Turns,
    workers: Workers,
    queue: HoldQueue,
    pace: Pace,
    counters: Counters,
    /// Something happened that may let a held turn go.
    room_changed: bool,
    gate: Gate,
    /// Until when weights are being exchanged at most.
    sync_until: Option<Time>,
    /// What admission has to say to others; goes out before turns are dispatched into the room that it made.
    notices: Vec<Effect>,
}

impl Scheduler {
    /// A scheduler without workers and programs.
    ///
    /// # Errors
    /// [`ConfigError`] when the policy does not exist or a bound is zero that must not be.
    pub fn new(config: SchedulerConfig, seed: u64) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self {
            policy: tandem_routing::by_name(&config.policy, &config.kv)?,
            prefill_policy: tandem_routing::by_name(&config.policy, &config.kv)?,
            now: Time::ZERO,
            route_rng: Rng::child(seed, "route"),
            backoff_rng: Rng::child(seed, "backoff"),
            programs: Programs::new(config.programs_max),
            turns: Turns::default(),
            workers: Workers::default(),
            queue: HoldQueue::default(),
            pace: Pace::default(),
            counters: Counters::default(),
            room_changed: false,
            gate: Gate::new(&config.admission)?,
            sync_until: None,
            notices: Vec::new(),
            config,
        })
    }

    /// Takes in one input and appends what has to be done about it, in order. Deadlines that have passed at
    /// `now` are dealt with first.
    pub fn handle(&mut self, now: Time, input: Input, out: &mut Vec<Effect>) {
        self.advance(now, out);
        match input {
            Input::WorkerExpected { worker } => self.on_worker_expected(worker),
            Input::WorkerUp { worker, info } => self.on_worker_up(worker, info),
            Input::WorkerDraining { worker } => self.on_worker_draining(worker),
            Input::WorkerDown { worker } => self.on_worker_down(worker),
            Input::WorkerRemoved { worker } => self.on_worker_removed(worker),
            Input::WorkerLoad { worker, load } => self.on_worker_load(worker, load),
            Input::TurnArrived(arrival) => self.on_turn_arrived(arrival, out),
            Input::PrefixFound { turn, prefix } => self.on_prefix_found(turn, prefix),
            Input::PrefillDone { turn } => self.on_prefill_done(turn),
            Input::TurnStarted { turn } => self.on_turn_started(turn),
            Input::FirstToken { turn } => self.on_first_token(turn),
            Input::TurnFailed { turn, failure } => self.on_turn_failed(turn, &failure, out),
            Input::PrefillFailed { turn, failure } => self.on_prefill_failed(turn, &failure, out),
            Input::Progress { turn, generated } => self.on_progress(turn, generated),
            Input::TurnEnded { turn, outcome } => self.on_turn_ended(turn, &outcome),
            Input::ClientGone { turn } => self.on_client_gone(turn, out),
            Input::SessionEnd { program } => self.on_session_end(&program),
            Input::ProgramPause { program } => self.on_program_pause(&program),
            Input::ProgramResume { program } => self.on_program_resume(&program),
            Input::ProgramRemembered(remembered) => self.on_program_remembered(&remembered),
            Input::SyncBegin { at_most } => self.on_sync_begin(at_most),
            Input::SyncEnd => self.on_sync_end(),
        }
        self.pump(out);
    }

    /// When [`Scheduler::handle_timeout`] wants to be called next; may be in the past.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let held = self.queue.next_deadline().map(|(at, _)| at);
        let idle = self.programs.idle_since().map(|since| since + self.config.program_idle_ttl);
        // An open breaker matters to nobody until a turn waits or arrives, an old load report until one arrives.
        let half_open = self.workers.next_half_open().filter(|_| self.queue.wants_worker()).map(|(at, _)| at);
        let gate = self.gate.next_deadline();
        [held, idle, half_open, gate, self.sync_until].into_iter().flatten().min()
    }

    /// Deals with the deadlines that have passed at `now`. Harmless when there are none.
    pub fn handle_timeout(&mut self, now: Time, out: &mut Vec<Effect>) {
        self.advance(now, out);
        self.pump(out);
    }

    /// The state, to look at.
    #[must_use]
    pub const fn view(&self) -> View<'_> {
        View::new(self)
    }
}
