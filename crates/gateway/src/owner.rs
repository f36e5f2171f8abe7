//! The task that owns the scheduler.
//!
//! - Inputs: messages of turns over one bounded channel, engine events over another, and time. Outputs:
//!   effects, each to the one turn that it concerns, and decisions to whoever listens.
//! - Invariants: I-OWN-1 only this task touches the scheduler, so its decisions follow from the order in which
//!   messages arrive and from nothing else; I-OWN-2 a turn reserves room for its last message before its first
//!   one is sent, so an ending is never lost and never waits; I-OWN-3 messages are taken in batches and each
//!   batch has one time, which the recording of inputs keeps.
//! - Deliberately absent: I/O. The task never waits for anything but its channels.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tandem_engines::EngineEvent;
use tandem_scheduler::{
    Decision, DispatchFailure, Effect, HoldReason, Input, RejectReason, Remembered, Scheduler, TurnArrival,
    TurnOutcome,
};
use tandem_types::{ProgramKey, TurnId, WorkerId};
use tokio::sync::mpsc;

use crate::clock::Clock;
use crate::explain::Decisions;
use crate::kv::Kv;
use crate::metrics::{Family, Metrics};
use crate::state::Notes;
use crate::tee::Tee;

/// Messages taken at once. Large enough to amortise waking up, small enough to keep effects flowing.
const BATCH: usize = 256;

/// What a turn is told to do.
#[derive(Debug)]
pub(crate) enum TurnEffect {
    /// Go to a worker.
    Dispatch {
        worker: WorkerId,
        /// The worker that computes the prompt for it, where the work is split.
        prefill: Option<WorkerId>,
        attempt: u32,
        delay: Duration,
        /// Urgency among what the engine has queued: higher is sooner, 0 is usual.
        priority: i32,
    },
    /// Wait.
    Hold { reason: HoldReason, position: u32 },
    /// Answer with a refusal.
    Reject { reason: RejectReason, retry_after: Duration },
    /// The same call came again: this one is over.
    Superseded { by: TurnId },
    /// Why the coming dispatch goes where it goes.
    Decided(Arc<Decision>),
}

/// What the owner is told.
pub(crate) enum Message {
    /// A turn and the way to reach it.
    Arrived(Box<TurnArrival>, mpsc::UnboundedSender<TurnEffect>),
    /// Anything else that happens to a turn or a program.
    Input(Box<Input>),
    /// A look at the scheduler's state.
    Look(Box<dyn FnOnce(&Scheduler) + Send>),
    /// The end.
    Close,
}

/// A way to reach the owner. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Owner {
    messages: mpsc::Sender<Message>,
    metrics: Metrics,
    notes: Notes,
}

/// Room for a turn's last message.
pub(crate) struct LastWord(mpsc::OwnedPermit<Message>);

impl LastWord {
    fn say(self, input: Input) {
        drop(self.0.send(Message::Input(Box::new(input))));
    }

    /// The answer is over.
    pub(crate) fn ended(self, turn: TurnId, outcome: TurnOutcome) {
        self.say(Input::TurnEnded { turn, outcome });
    }

    /// The client hung up.
    pub(crate) fn client_gone(self, turn: TurnId) {
        self.say(Input::ClientGone { turn });
    }
}

/// The scheduler's task is gone: the gateway is shutting down.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Closed;

impl Owner {
    /// Hands in a turn. Its effects come over the channel; its end must be told with the [`LastWord`].
    pub(crate) async fn arrive(
        &self,
        arrival: TurnArrival,
    ) -> Result<(mpsc::UnboundedReceiver<TurnEffect>, LastWord), Closed> {
        let last = self.messages.clone().reserve_owned().await.map_err(|_| Closed)?;
        let room = self.messages.reserve().await.map_err(|_| Closed)?;
        // From here to the end nothing waits: either both are there or the turn never was.
        let (effects, receiver) = mpsc::unbounded_channel();
        room.send(Message::Arrived(Box::new(arrival), effects));
        Ok((receiver, LastWord(last)))
    }

    /// A turn's prompt is computed, by the worker that is there for that.
    pub(crate) fn prefill_done(&self, turn: TurnId) {
        self.tell(Input::PrefillDone { turn });
    }

    /// The engine accepted a turn.
    pub(crate) fn started(&self, turn: TurnId) {
        self.tell(Input::TurnStarted { turn });
    }

    /// The first byte of a turn's answer went out.
    pub(crate) fn first_token(&self, turn: TurnId) {
        self.tell(Input::FirstToken { turn });
    }

    /// A try failed before the first byte.
    pub(crate) async fn failed(&self, turn: TurnId, failure: DispatchFailure) {
        let _ = self.messages.send(Message::Input(Box::new(Input::TurnFailed { turn, failure }))).await;
    }

    /// The same, through the fault of its prefill worker.
    pub(crate) async fn prefill_failed(&self, turn: TurnId, failure: DispatchFailure) {
        let _ = self.messages.send(Message::Input(Box::new(Input::PrefillFailed { turn, failure }))).await;
    }

    /// A program will not come back.
    pub(crate) async fn session_end(&self, program: ProgramKey) {
        self.operator(Input::SessionEnd { program }).await;
    }

    /// What an operator asks for: never lost, so it waits for room.
    pub(crate) async fn operator(&self, input: Input) {
        let program = match &input {
            Input::SessionEnd { program }
            | Input::ProgramPause { program }
            | Input::ProgramResume { program } => Some(program.clone()),
            _ => None,
        };
        let _ = self.messages.send(Message::Input(Box::new(input))).await;
        program.iter().for_each(|program| self.notes.over(program));
    }

    /// So many tokens of a turn's answer are there.
    pub(crate) fn progress(&self, turn: TurnId, generated: u64) {
        self.tell(Input::Progress { turn, generated });
    }

    /// Looks at the scheduler.
    pub(crate) async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Scheduler) -> T + Send + 'static,
    ) -> Result<T, Closed> {
        let (answer, receiver) = tokio::sync::oneshot::channel();
        let look = Box::new(move |scheduler: &Scheduler| drop(answer.send(look(scheduler))));
        self.messages.send(Message::Look(look)).await.map_err(|_| Closed)?;
        receiver.await.map_err(|_| Closed)
    }

    /// Ends the task once it has seen everything that was sent before.
    pub(crate) async fn close(&self) {
        let _ = self.messages.send(Message::Close).await;
    }

    /// News that only refine the scheduler's picture. The channel has room for several per turn, so it is
    /// full only when the owner is stuck; then the picture stays coarse and the loss is counted.
    pub(crate) fn tell(&self, input: Input) {
        if self.messages.try_send(Message::Input(Box::new(input))).is_err() {
            self.metrics.inc(Family::LimitHits, &[("limit", "scheduler_queue")]);
        }
    }
}

/// What the owner's task works with.
pub(crate) struct Parts {
    pub(crate) scheduler: Scheduler,
    pub(crate) engine_events: mpsc::Receiver<EngineEvent>,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
    pub(crate) decisions: Decisions,
    pub(crate) tee: Option<Tee>,
    /// Who else wants to know of workers.
    pub(crate) kv: Option<Arc<Kv>>,
    /// Programs of an earlier run.
    pub(crate) remembered: Vec<Remembered>,
    /// Where programs that changed are named.
    pub(crate) notes: Notes,
    /// Most turns at once; bounds the channel.
    pub(crate) turns_max: usize,
}

/// Makes the channel and the task's future.
pub(crate) fn new(parts: Parts) -> (Owner, impl Future<Output = ()> + Send) {
    // Per turn: arrival, end, and up to three pieces of news that may wait at once.
    let (messages, receiver) = mpsc::channel(parts.turns_max.saturating_mul(5).saturating_add(1024));
    let owner = Owner { messages, metrics: parts.metrics.clone(), notes: parts.notes.clone() };
    let task = Task { parts, turns: HashMap::new(), effects: Vec::new() };
    (owner, task.run(receiver))
}

struct Task {
    parts: Parts,
    turns: HashMap<TurnId, mpsc::UnboundedSender<TurnEffect>>,
    effects: Vec<Effect>,
}

impl Task {
    async fn run(mut self, mut messages: mpsc::Receiver<Message>) {
        let mut batch = Vec::with_capacity(BATCH);
        let mut engines_open = true;
        for program in std::mem::take(&mut self.parts.remembered) {
            self.input(Input::ProgramRemembered(program));
        }
        loop {
            let deadline = self.parts.scheduler.next_deadline().map(|at| self.parts.clock.instant(at));
            tokio::select! {
                biased;
                event = self.parts.engine_events.recv(), if engines_open => match event {
                    Some(event) => {
                        if let Some(kv) = &self.parts.kv {
                            kv.worker(&event);
                        }
                        self.input(engine_input(event));
                    }
                    None => engines_open = false,
                },
                count = messages.recv_many(&mut batch, BATCH) => {
                    if count == 0 {
                        break;
                    }
                    let began = Instant::now();
                    let closing = batch.iter().any(|message| matches!(message, Message::Close));
                    for message in batch.drain(..) {
                        self.message(message);
                    }
                    if closing {
                        break;
                    }
                    self.parts.metrics.lasted(Family::OwnerBatchSeconds, &[], began.elapsed());
                    self.parts.metrics.set(Family::OwnerQueue, &[], messages.len());
                }
                () = until(deadline) => self.timeout(),
            }
        }
        if let Some(tee) = self.parts.tee.take() {
            tee.finish();
        }
    }

    fn message(&mut self, message: Message) {
        match message {
            Message::Arrived(arrival, effects) => {
                self.turns.insert(arrival.turn, effects);
                self.input(Input::TurnArrived(*arrival));
            }
            Message::Input(input) => self.input(*input),
            Message::Look(look) => look(&self.parts.scheduler),
            Message::Close => {}
        }
    }

    fn input(&mut self, input: Input) {
        let now = self.parts.clock.now();
        if let Some(tee) = &mut self.parts.tee {
            tee.input(now, &input);
        }
        match &input {
            Input::TurnEnded { turn, .. } | Input::ClientGone { turn } => {
                self.turns.remove(turn);
            }
            _ => {}
        }
        self.parts.scheduler.handle(now, input, &mut self.effects);
        self.deliver();
    }

    fn timeout(&mut self) {
        let now = self.parts.clock.now();
        if let Some(tee) = &mut self.parts.tee {
            tee.timeout(now);
        }
        self.parts.scheduler.handle_timeout(now, &mut self.effects);
        self.deliver();
    }

    fn deliver(&mut self) {
        let mut effects = std::mem::take(&mut self.effects);
        for effect in effects.drain(..) {
            self.effect(effect);
        }
        self.effects = effects;
    }

    fn effect(&mut self, effect: Effect) {
        match effect {
            Effect::Dispatch { turn, worker, prefill, attempt, delay, priority } => {
                self.to_turn(turn, TurnEffect::Dispatch { worker, prefill, attempt, delay, priority });
            }
            Effect::Hold { turn, reason, position } => {
                self.to_turn(turn, TurnEffect::Hold { reason, position });
            }
            Effect::Reject { turn, reason, retry_after } => {
                self.to_turn(turn, TurnEffect::Reject { reason, retry_after });
                self.turns.remove(&turn);
            }
            // The superseded turn drops its upstream call when it learns of its end, so there is nothing
            // more to cancel.
            Effect::Cancel { .. } => {}
            Effect::Supersede { old, by } => {
                self.to_turn(old, TurnEffect::Superseded { by });
                self.turns.remove(&old);
            }
            Effect::Paused { program, worker, tokens } => {
                tracing::debug!(session = %program.session, %worker, tokens, "program paused by admission");
            }
            Effect::Demote { program, worker, tokens } => {
                tracing::debug!(session = %program.session, %worker, tokens, "cache not worth keeping");
            }
            Effect::Record(decision) => {
                let decision = Arc::new(decision);
                self.parts.metrics.inc(Family::Routing, &[("reason", &decision.reason)]);
                self.to_turn(decision.turn, TurnEffect::Decided(Arc::clone(&decision)));
                self.parts.decisions.push(decision);
            }
        }
    }

    /// A turn that does not listen any more has sent, or is about to send, its last word.
    fn to_turn(&self, turn: TurnId, effect: TurnEffect) {
        if let Some(effects) = self.turns.get(&turn) {
            let _ = effects.send(effect);
        }
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

fn engine_input(event: EngineEvent) -> Input {
    match event {
        EngineEvent::Up { worker, info } => {
            tracing::info!(%worker, kind = ?info.kind, models = ?info.models, "worker ready");
            Input::WorkerUp { worker, info }
        }
        EngineEvent::Draining { worker } => {
            tracing::info!(%worker, "worker draining");
            Input::WorkerDraining { worker }
        }
        EngineEvent::Down { worker, reason } => {
            tracing::warn!(%worker, reason, "worker down");
            Input::WorkerDown { worker }
        }
        EngineEvent::Removed { worker } => {
            tracing::info!(%worker, "worker removed");
            Input::WorkerRemoved { worker }
        }
        EngineEvent::Load { worker, load } => Input::WorkerLoad { worker, load },
    }
}
