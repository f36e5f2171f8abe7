//! Event types of ours: schema `tandem.trace.v1`, in the companion file.

use serde::{Deserialize, Serialize};
use tandem_types::WorkerId;

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
}

/// What admission can do with a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdmissionAction {
    /// Keeps it waiting.
    Held,
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
