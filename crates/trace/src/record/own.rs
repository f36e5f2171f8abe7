//! Event types of ours: schema `tandem.trace.v1`, in the companion file.

use serde::{Deserialize, Serialize};
use tandem_types::{MatchSource, PrefixMatch, WorkerId};

/// One row of our own schema.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OwnEvent {
    schema: OwnSchema,
    /// When, milliseconds since the epoch.
    pub event_time_unix_ms: u64,
    /// What.
    #[serde(flatten)]
    pub kind: OwnKind,
    /// Rows lost before this one; set by the writer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tandem_loss: Option<Loss>,
}

impl OwnEvent {
    /// A row of ours.
    #[must_use]
    pub const fn new(event_time_unix_ms: u64, kind: OwnKind) -> Self {
        Self { schema: OwnSchema::V1, event_time_unix_ms, kind, tandem_loss: None }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum OwnSchema {
    #[serde(rename = "tandem.trace.v1")]
    V1,
}

/// What happened, tagged by `event_type`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event_type", rename_all = "snake_case")]
pub enum OwnKind {
    /// A trace begins. First row of a companion file.
    TraceStart(TraceStart),
    /// A trace ends orderly. A companion without it was cut.
    TraceEnd(TraceEnd),
    /// Rows were lost and no row came after them.
    TraceLoss(LossEvent),
    /// A turn was held, let go or refused.
    Admission(AdmissionEvent),
    /// A worker was chosen for a turn.
    Routing(RoutingEvent),
    /// A turn is over: what of its prompt was expected to be cached, what was, and why the rest was not.
    Prefix(PrefixEvent),
}

/// Who writes a trace, and how.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TraceStart {
    /// Version of the writing program.
    pub version: String,
    /// Routing policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Which request rows are in the main file.
    pub rows: super::Rows,
    /// Tokens in a hashed block, where known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_block_size: Option<u32>,
}

/// Totals of a trace.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TraceEnd {
    /// Request rows written, in both files.
    pub request_end: u64,
    /// Tool rows written.
    pub tool: u64,
    /// Rows of our own.
    pub own: u64,
    /// Rows lost, all reasons and all sinks taken together.
    pub lost: Loss,
}

/// Rows that did not get into a file, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Loss {
    /// The queue between the request path and the writer was full.
    #[serde(skip_serializing_if = "is_zero")]
    pub queue_full: u64,
    /// The sink could not be written for longer than its buffer lasts.
    #[serde(skip_serializing_if = "is_zero")]
    pub io: u64,
    /// The row was larger than a row may be, or could not be encoded.
    #[serde(skip_serializing_if = "is_zero")]
    pub unfit: u64,
}

impl Loss {
    /// Rows lost in all.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.queue_full.saturating_add(self.io).saturating_add(self.unfit)
    }

    /// Adds another count.
    pub const fn add(&mut self, other: Self) {
        self.queue_full = self.queue_full.saturating_add(other.queue_full);
        self.io = self.io.saturating_add(other.io);
        self.unfit = self.unfit.saturating_add(other.unfit);
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// Rows were lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LossEvent {
    /// How many.
    pub lost: Loss,
}

/// What admission did with a turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdmissionEvent {
    /// As in the request row.
    pub request_id: String,
    /// As in the request row's agent context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// What.
    pub action: AdmissionAction,
    /// Why, in the scheduler's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Place in the queue, from 1, when held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u32>,
    /// Seconds after which the client may try again, when refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u64>,
    /// The request that goes on in its place, when superseded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub superseded_by: Option<String>,
    /// The policy that let it in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Where that kept room for it, if anywhere; the routing row says where it went.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerRef>,
    /// It was let in although there was no room, because it had waited too long.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forced: bool,
    /// Urgency that it was given, where that is not 0: higher is sooner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Time held before it was let in, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_ms: Option<u64>,
}

impl AdmissionEvent {
    /// What was done with a request, and nothing else.
    #[must_use]
    pub const fn new(request_id: String, action: AdmissionAction) -> Self {
        Self {
            request_id,
            session_id: None,
            action,
            reason: None,
            position: None,
            retry_after_s: None,
            superseded_by: None,
            policy: None,
            worker: None,
            forced: false,
            priority: None,
            held_ms: None,
        }
    }
}

/// What admission can do with a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdmissionAction {
    /// Keeps it waiting.
    Held,
    /// Lets it in.
    Admitted,
    /// Refuses it.
    Rejected,
    /// Its repetition takes over.
    Superseded,
    /// Tries another worker after a failure.
    Retried,
}

/// Why a worker was chosen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoutingEvent {
    /// As in the request row.
    pub request_id: String,
    /// As in the request row's agent context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// Policy that decided.
    pub policy: String,
    /// The choice.
    pub worker: WorkerRef,
    /// In the policy's words.
    pub reason: String,
    /// Which try.
    pub attempt: u32,
    /// Time held before, milliseconds.
    pub held_ms: f64,
    /// Everybody in the choice, with scores (lower is better).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<CandidateScore>,
    /// What makes up each of these scores, in the same order; empty for policies whose score is the load.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub terms: Vec<ScoreTerms>,
    /// Where the prompt was computed; absent where the worker does all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill: Option<PrefillRecord>,
    /// Where the prompt's KV lay, as the index saw it; absent where the prompt's blocks were not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<PrefixSeen>,
}

/// What makes up a worker's score, in tokens, and the blocks behind its credits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ScoreTerms {
    /// Leading blocks in the worker's device memory.
    pub device_blocks: u32,
    /// Blocks behind these in its host memory.
    pub host_blocks: u32,
    /// Blocks behind these on its disk.
    pub disk_blocks: u32,
    /// Blocks behind these that it could load from the shared store.
    pub shared_blocks: u32,
    /// Tokens taken to be cached because the program ran here, where the index cannot tell.
    pub assumed_tokens: u64,
    /// Prefill still to do.
    pub prefill: u64,
    /// Prefill queued before it.
    pub queued: u64,
    /// Running requests.
    pub decode: u64,
    /// KV left behind at home.
    pub left_behind: u64,
    /// More than its share of the fleet's programs.
    pub crowding: u64,
    /// Not home, or not the parent's worker.
    pub affinity: u64,
    /// Preferred labels missing.
    pub labels: u64,
    /// KV of the prompt still to fetch from where it is computed.
    pub transfer: u64,
    /// An adapter to load.
    pub adapter: u64,
}

/// Where the prompt of a turn was computed whose worker is there for answers alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PrefillRecord {
    /// At whose place.
    pub place: PrefillPlace,
    /// The worker for prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerRef>,
    /// Why that one, in the policy's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Tokens of the prompt that the worker that answers was expected to compute itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Workers for prompts in the choice, with scores (lower is better).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<CandidateScore>,
    /// What makes up each of these scores, in the same order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub terms: Vec<ScoreTerms>,
}

impl PrefillRecord {
    /// A record of which nothing but the place is known.
    #[must_use]
    pub const fn at(place: PrefillPlace) -> Self {
        Self { place, worker: None, reason: None, tokens: None, candidates: Vec::new(), terms: Vec::new() }
    }
}

/// Who computed a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PrefillPlace {
    /// A worker for prompts.
    Remote,
    /// The worker that answers, since it lacks little of the prompt.
    Local,
    /// The worker that answers, since no worker for prompts was ready.
    Alone,
}

/// Most workers of a [`PrefixSeen`]: a row must not grow with the fleet.
pub const SEEN_WORKERS_MAX: usize = 16;

/// Most runs of shared blocks of a [`PrefixSeen`].
pub const SEEN_RUNS_MAX: usize = 16;

/// Where a prompt's KV lay, as the index saw it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PrefixSeen {
    /// Tokens in a block.
    pub block_size: u32,
    /// Whole blocks of the prompt.
    pub blocks: u32,
    /// State of the index.
    pub version: u64,
    /// Workers that held the beginning of the prompt, the longest first, at most [`SEEN_WORKERS_MAX`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<WorkerSeen>,
    /// Number of workers of which the index knew nothing.
    pub blind: u32,
    /// Runs of blocks in the shared store, `[from, to)`, at most [`SEEN_RUNS_MAX`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shared: Vec<[u32; 2]>,
}

impl PrefixSeen {
    /// The row's form of a match; `None` where the prompt's blocks are not known.
    #[must_use]
    pub fn of(found: &PrefixMatch) -> Option<Self> {
        if found.is_unknown() {
            return None;
        }
        let mut workers: Vec<WorkerSeen> = found
            .workers
            .iter()
            .map(|held| WorkerSeen {
                worker: held.worker.into(),
                device: held.device,
                host: held.host,
                disk: held.disk,
                source: held.source,
            })
            .collect();
        workers.sort_by_key(|seen| std::cmp::Reverse((seen.disk, seen.device)));
        workers.truncate(SEEN_WORKERS_MAX);
        Some(Self {
            block_size: found.block_size,
            blocks: found.blocks,
            version: found.version,
            workers,
            blind: u32::try_from(found.blind.len()).unwrap_or(u32::MAX),
            shared: found.shared.iter().take(SEEN_RUNS_MAX).map(|run| [run.start, run.end]).collect(),
        })
    }
}

/// How much of a prompt a worker held, in leading blocks, each figure including the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerSeen {
    /// Which.
    #[serde(flatten)]
    pub worker: WorkerRef,
    /// In device memory.
    pub device: u32,
    /// In device or host memory.
    pub host: u32,
    /// In device memory, host memory or on disk.
    pub disk: u32,
    /// From the engine's own events, or from what was routed there.
    #[serde(default)]
    pub source: MatchSource,
}

/// What of a prompt was expected to be cached, what was, and why the rest was not.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PrefixEvent {
    /// As in the request row.
    pub request_id: String,
    /// As in the request row's agent context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// Where the prompt's blocks came from: `client`, `local`, `lineage`, `engine`, `text`, `none`.
    pub source: String,
    /// The prompt's length by that source, where it counts tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u64>,
    /// Tokens that the chosen worker was expected to reuse; absent where nothing was known of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_tokens: Option<u64>,
    /// How sure that was: `exact`, `approximate` (one block more or less) or `estimated`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prediction: Option<String>,
    /// Prompt length as the engine reported it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    /// Tokens that the engine said it reused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
    /// How the prompt relates to the session's last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relation: Option<String>,
    /// Where and why it stopped repeating what went before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub divergence: Option<DivergenceRecord>,
    /// The prompt tokens that were computed, by cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub split: Option<SplitRecord>,
}

/// Where a prompt stopped repeating the one before it, and why.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DivergenceRecord {
    /// Why.
    pub cause: String,
    /// The first differing part of the prompt, from 0.
    pub segment: u64,
    /// Tokens of the prompt before it, where known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// Counted from the token ids of both prompts; else estimated from bytes.
    pub exact: bool,
}

/// Prompt tokens that were computed, by cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SplitRecord {
    /// Never computed before in this session.
    pub new: u64,
    /// Computed before, behind the point where the prompt changed.
    pub diverged: u64,
    /// Computed before, on another worker.
    pub moved: u64,
    /// Computed before on this worker and lost there.
    pub evicted: u64,
    /// Cannot be told.
    pub unknown: u64,
}

/// A worker, by the numbers that the request rows use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerRef {
    /// Engine.
    pub worker_id: u64,
    /// Rank.
    pub dp_rank: u32,
}

impl From<WorkerId> for WorkerRef {
    fn from(worker: WorkerId) -> Self {
        Self { worker_id: u64::from(worker.engine.0), dp_rank: worker.rank }
    }
}

/// A worker in a choice.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CandidateScore {
    /// Which.
    #[serde(flatten)]
    pub worker: WorkerRef,
    /// Its score; absent when not a finite number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
}
