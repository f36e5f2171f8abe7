//! What goes into the scheduler and what comes out: the whole of its contract with its drivers.
//!
//! Invariants that drivers and scheduler keep together:
//! - I-SCH-1 every `TurnArrived` ends in exactly one of: `TurnEnded` or `ClientGone` handed in by the driver,
//!   or `Reject` or `Supersede` coming out. After that the turn id is forgotten and never reused.
//! - I-SCH-2 a turn has at most one outstanding `Dispatch`. A second one follows only a `TurnFailed`, so
//!   nothing is executed twice by our doing after its first byte.
//! - I-SCH-3 effects are a function of (config, seed, inputs with their times) and nothing else.
//! - I-SCH-4 every `TurnArrived` and every `TurnFailed` of a turn without a first byte is answered in the same
//!   call by one `Dispatch`, `Hold` or `Reject` of that turn. A `Hold` is followed, in the same or a further call, by a
//!   `Dispatch`, a `Reject` or a `Supersede`, or ended by `ClientGone`.
//! - I-SCH-5 each `Dispatch` comes right after the `Record` that explains it.
//! - I-SCH-12 a `Dispatch` to a pair is one dispatch: both legs begin with it and both end with the turn, or with a
//!   failure of either. `PrefillDone` ends the prefill leg alone.
//!
//! Deadlines that have passed are dealt with before the input: a call may bring effects for any turn, and a `Reject`
//! for the very turn whose client is reported gone. An input that names a turn that is over is late, not wrong: it
//! is counted and has no effect.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tandem_admission::Placement;
use tandem_routing::CostTerms;
use tandem_types::{
    GroupId, LoadReport, PrefixMatch, ProgramKey, RequestClass, RetryKey, RouteWishes, Time, TurnId, Usage,
    WorkerId, WorkerInfo,
};

/// Something that happened outside.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(
    clippy::large_enum_variant,
    reason = "inputs are handed in one at a time and never stored by the scheduler"
)]
pub enum Input {
    /// An engine is configured but was never ready, so its models are unknown: until it reports (or for the
    /// configured grace), a turn for a model that nobody else serves waits instead of being refused. Name its
    /// rank 0; `WorkerUp` or `WorkerRemoved` of that worker ends the expectation.
    WorkerExpected {
        /// Which.
        worker: WorkerId,
    },
    /// A worker is ready to take turns, or what is known of a ready worker changed. It ends draining: for a
    /// draining worker that comes back from being down, send `WorkerDraining` instead.
    WorkerUp {
        /// Which.
        worker: WorkerId,
        /// What is known of it.
        info: WorkerInfo,
    },
    /// A worker takes no new turns but finishes those that it has.
    WorkerDraining {
        /// Which.
        worker: WorkerId,
    },
    /// A worker is not reachable or not ready. Its running turns report their own fate.
    WorkerDown {
        /// Which.
        worker: WorkerId,
    },
    /// A worker left for good.
    WorkerRemoved {
        /// Which.
        worker: WorkerId,
    },
    /// A worker's report of its own load.
    WorkerLoad {
        /// Which.
        worker: WorkerId,
        /// The report.
        load: LoadReport,
    },
    /// A request asks to be served.
    TurnArrived(TurnArrival),
    /// A turn's match was looked up again, or for the first time: admission hears of it at once, and it counts when the
    /// turn, which waits, is placed.
    /// A turn that runs is not moved, and a retry of it uses the new match.
    PrefixFound {
        /// Which.
        turn: TurnId,
        /// Where its prompt's KV lies.
        prefix: PrefixMatch,
    },
    /// The prefill worker of a pair has computed the prompt. May be left out: the first byte of the answer says the
    /// same.
    PrefillDone {
        /// Which.
        turn: TurnId,
    },
    /// The engine accepted the turn: its response head is there.
    TurnStarted {
        /// Which.
        turn: TurnId,
    },
    /// The first byte of the answer went to the client: from here on no retry.
    FirstToken {
        /// Which.
        turn: TurnId,
    },
    /// A dispatch failed before the first byte of its answer. The driver has given up on it, on both legs of a pair;
    /// the fault lies with the worker that answers.
    /// A refusal of the request itself (4xx but 429) is no failure: it is `TurnEnded` with `Refused`.
    TurnFailed {
        /// Which.
        turn: TurnId,
        /// How.
        failure: DispatchFailure,
    },
    /// The same, but the fault lies with the prefill worker of the pair.
    PrefillFailed {
        /// Which.
        turn: TurnId,
        /// How.
        failure: DispatchFailure,
    },
    /// So many tokens of the answer are there. May be left out, or come as seldom as the driver likes.
    Progress {
        /// Which.
        turn: TurnId,
        /// All generated so far.
        generated: u64,
    },
    /// The answer is over, well or not.
    TurnEnded {
        /// Which.
        turn: TurnId,
        /// How.
        outcome: TurnOutcome,
    },
    /// The client hung up: while held, or before or during the answer. Where the turn was dispatched, a
    /// `Cancel` comes back.
    ClientGone {
        /// Which.
        turn: TurnId,
    },
    /// A session's client or an operator says that the program will not come back.
    SessionEnd {
        /// Which.
        program: ProgramKey,
    },
    /// An operator pauses a program: its turns are held until it is resumed, but for those that were dispatched.
    ProgramPause {
        /// Which.
        program: ProgramKey,
    },
    /// An operator's pause of a program is over.
    ProgramResume {
        /// Which.
        program: ProgramKey,
    },
    /// What an earlier run of the gateway knew of a program. Given again, with a home, for one that has none yet.
    ProgramRemembered(Remembered),
    /// The engines' weights are being exchanged: no turn is dispatched until `SyncEnd`. Given again, it takes longer.
    SyncBegin {
        /// From now on at most; then it counts as over.
        at_most: Duration,
    },
    /// The exchange of weights is over.
    SyncEnd,
}

/// What an earlier run knew of a program that was idle, or is taken to be. Nothing of it counts as resident anywhere
/// before its next turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remembered {
    /// Which.
    pub program: ProgramKey,
    /// The program that spawned it.
    pub parent: Option<ProgramKey>,
    /// Sessions that share a fate.
    pub group: Option<GroupId>,
    /// Where it ran last, where that worker is known to this run.
    pub last_worker: Option<WorkerId>,
    /// Where a prompt of it was computed last for another worker.
    pub last_prefill: Option<WorkerId>,
    /// Dispatches of its turns.
    pub turns_dispatched: u64,
    /// Turns that ended well.
    pub turns_finished: u64,
    /// Prompt and answer of its last finished turn, in tokens; 0 when unknown.
    pub known_tokens: u64,
    /// Its last finished turn asked for tools.
    pub ended_with_tools: bool,
    /// When a turn last arrived or ended, in the time of this run.
    pub last_active: Time,
    /// An operator paused it.
    pub stopped: bool,
}

/// A request that asks to be served.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnArrival {
    /// Fresh id.
    pub turn: TurnId,
    /// The program that it continues, if it has an identity.
    pub program: Option<ProgramKey>,
    /// The program that spawned that one.
    pub parent: Option<ProgramKey>,
    /// Sessions that share a fate.
    pub group: Option<GroupId>,
    /// The client says that the program ends with this turn.
    pub session_final: bool,
    /// What the call is for. Anything but a turn is never held: it is dispatched at once, beside the workers'
    /// `max_running`, or refused.
    pub class: RequestClass,
    /// Equal for a call and its repetition; `None` where repetitions cannot be told (no identity).
    pub retry_key: Option<RetryKey>,
    /// The model asked for.
    pub model: Option<String>,
    /// Expected prompt length in tokens, from the size of the body or better.
    pub input_tokens_estimate: u64,
    /// Where the prompt's KV lies; unknown without prompt blocks or an index.
    #[serde(default, skip_serializing_if = "PrefixMatch::is_unknown")]
    pub prefix: PrefixMatch,
    /// What the request asks of routing.
    #[serde(default)]
    pub wishes: RouteWishes,
    /// The client's bound on generated tokens.
    pub max_output_tokens: Option<u64>,
    /// How long this client can be kept waiting for a worker.
    pub hold_max: Duration,
}

/// Why a dispatch failed before the first byte.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DispatchFailure {
    /// What happened.
    pub kind: FailureKind,
    /// Whether another worker may try. False once the engine may have acted on a call that is unsafe to
    /// repeat, or when the body cannot be sent again.
    pub retryable: bool,
}

/// What happened to a dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// No connection.
    Connect,
    /// The connection was lost before the first byte.
    Disconnected,
    /// The engine did not answer in time.
    Timeout,
    /// The engine answered with a 5xx status.
    ServerError,
    /// The engine said that it is overloaded (429 or 503).
    Overloaded,
    /// The engine's answer was not HTTP.
    Garbage,
}

/// How an answer ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnOutcome {
    /// How.
    pub result: TurnResult,
    /// Token counts, where known.
    pub usage: Option<Usage>,
    /// The turn ended with tool calls: the agent is away until they return.
    pub tool_calls: u32,
}

/// The end of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnResult {
    /// Whole and good.
    Finished,
    /// The engine refused the request itself (4xx): says nothing about the engine.
    Refused,
    /// The engine reported an error inside the stream, or cut it.
    Failed,
}

/// What the driver has to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Effect {
    /// Send the turn to a worker.
    Dispatch {
        /// Which turn.
        turn: TurnId,
        /// The worker that answers.
        worker: WorkerId,
        /// The worker that computes the prompt for it, where the work is split.
        prefill: Option<WorkerId>,
        /// 1 for the first try.
        attempt: u32,
        /// Wait before sending (retry backoff); zero for a first try.
        delay: Duration,
        /// Urgency among what the engine has queued: higher is sooner, 0 is usual.
        #[serde(default, skip_serializing_if = "is_usual")]
        priority: i32,
    },
    /// Keep the turn waiting.
    Hold {
        /// Which turn.
        turn: TurnId,
        /// Why.
        reason: HoldReason,
        /// Its place in the queue, from 1.
        position: u32,
    },
    /// Answer the turn with a refusal.
    Reject {
        /// Which turn.
        turn: TurnId,
        /// Why.
        reason: RejectReason,
        /// When the client may try again: whole seconds, 5 to 60.
        retry_after: Duration,
    },
    /// Stop the engine's work on a turn; its accounting is already undone.
    Cancel {
        /// Which turn.
        turn: TurnId,
        /// The worker that answers, or was to.
        worker: WorkerId,
        /// The worker that computes its prompt, where the work is split and that is not done.
        prefill: Option<WorkerId>,
    },
    /// The same call came again on a new connection: `old` is over, `by` takes its place. A `Cancel` for
    /// `old` comes first if it was running.
    Supersede {
        /// The turn whose client is taken for gone.
        old: TurnId,
        /// The turn that goes on.
        by: TurnId,
    },
    /// A decision for trace and explanation.
    Record(Decision),
    /// Admission took a program's place: what it has cached at the worker may go before all else. Its next turn waits
    /// for room like a newcomer's.
    Paused {
        /// Which program.
        program: ProgramKey,
        /// Where its cache lies.
        worker: WorkerId,
        /// How much that is, in tokens.
        tokens: u64,
    },
    /// What a program has cached at a worker is not worth keeping: it was paused, went elsewhere, or is over. An engine
    /// that can evicts it before all else.
    Demote {
        /// Which program.
        program: ProgramKey,
        /// Where the cache lies.
        worker: WorkerId,
        /// How long its context is, in tokens.
        tokens: u64,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
const fn is_usual(priority: &i32) -> bool {
    *priority == 0
}

/// Why a turn waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldReason {
    /// No worker is ready for this model.
    NoWorker,
    /// Every worker runs as many turns as it may.
    WorkersFull,
    /// The model is served by pairs, and no worker that computes prompts is ready.
    NoPrefillWorker,
    /// The model is served by pairs, and no worker that writes answers is ready.
    NoDecodeWorker,
    /// Admission: no worker has KV memory left for it.
    MemoryFull,
    /// Admission: its program lost its place to others and waits for another one.
    Paused,
    /// Admission: others wait that come first.
    Behind,
    /// An operator paused its program.
    PausedByOperator,
    /// The engines' weights are being exchanged.
    WeightSync,
}

impl HoldReason {
    /// The reason as views, metrics and traces write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoWorker => "no_worker",
            Self::WorkersFull => "workers_full",
            Self::NoPrefillWorker => "no_prefill_worker",
            Self::NoDecodeWorker => "no_decode_worker",
            Self::MemoryFull => "memory_full",
            Self::Paused => "paused",
            Self::Behind => "behind",
            Self::PausedByOperator => "paused_by_operator",
            Self::WeightSync => "weight_sync",
        }
    }
}

impl From<tandem_admission::HoldReason> for HoldReason {
    fn from(reason: tandem_admission::HoldReason) -> Self {
        match reason {
            tandem_admission::HoldReason::Paused => Self::Paused,
            tandem_admission::HoldReason::NoRoom => Self::MemoryFull,
            tandem_admission::HoldReason::Behind => Self::Behind,
        }
    }
}

/// Why a turn is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RejectReason {
    /// The queue of held turns is full.
    QueueFull,
    /// The turn was held as long as its client can wait (or cannot be held at all: `hold_max` zero).
    HoldExpired,
    /// No worker can take this call now, and calls of its class are not held.
    NoWorker,
    /// No worker that is known serves the model and carries the labels that the request asks for and no taint that it
    /// does not put up with: waiting would not help.
    NoneSuits,
    /// Every permitted try failed; the last one like this. Where the engine gave an answer (`ServerError`,
    /// `Overloaded`), that answer is the best one to pass on.
    AttemptsExhausted(FailureKind),
}

/// A routing decision with its reasons.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// Which turn.
    pub turn: TurnId,
    /// The policy that decided.
    pub policy: String,
    /// The worker chosen.
    pub worker: WorkerId,
    /// In the policy's words: `affinity`, `parent_affinity`, `least_load`, ...
    pub reason: String,
    /// Workers that the policy compared, with their scores: lower is better; policies without scores give 0.
    /// The chosen one is first; at most [`tandem_routing::SCORES_MAX`] are kept.
    pub candidates: Vec<(WorkerId, f64)>,
    /// What makes up each of these scores, in the same order; empty for policies whose score is the load.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub terms: Vec<CostTerms>,
    /// How many workers the policy compared.
    pub candidate_count: u32,
    /// Which try this is, from 1.
    pub attempt: u32,
    /// How long the call was held before, its earlier connections included.
    pub held: Duration,
    /// Who computes the prompt, where the chosen worker is there for answers alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill: Option<PrefillDecision>,
    /// How admission let the turn in, where there is a policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<Box<Admission>>,
}

/// How admission let a turn in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admission {
    /// The policy that decided.
    pub policy: String,
    /// Where to. The worker chosen is another one where this one could not take the turn.
    pub placement: Placement,
    /// Urgency given: higher is sooner, 0 is usual.
    pub priority: i32,
    /// It went in although there was no room, because it had waited too long.
    pub forced: bool,
    /// Why it was held before, if it was.
    pub held: Option<HoldReason>,
}

/// Where the prompt of a turn is computed that goes to a worker for answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PrefillDecision {
    /// At a worker for prompts.
    Remote(LegDecision),
    /// At the worker that answers, since this many tokens are all that it lacks.
    Local {
        /// Tokens of the prompt that it is expected to compute.
        tokens: u64,
    },
    /// At the worker that answers, since no worker for prompts is ready.
    Alone,
}

/// The choice of a prefill worker, in the words of [`Decision`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LegDecision {
    /// The worker chosen.
    pub worker: WorkerId,
    /// In the policy's words.
    pub reason: String,
    /// Workers that the policy compared, with their scores, the chosen one first.
    pub candidates: Vec<(WorkerId, f64)>,
    /// What makes up each of these scores, in the same order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub terms: Vec<CostTerms>,
    /// How many workers the policy compared.
    pub candidate_count: u32,
}
