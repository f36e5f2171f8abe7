//! What became of each request.

use serde::Serialize;

/// One request, as its client saw it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Record {
    /// The session's number in the workload.
    pub session: u32,
    /// 0 where the session runs for the first time.
    pub round: u32,
    /// Which of its turns it is, from 0.
    pub turn: u32,
    /// When it was sent, seconds after the start.
    pub sent: f64,
    /// Seconds until the first token, retries included; `None` = none came.
    pub first: Option<f64>,
    /// Seconds until its end.
    pub whole: f64,
    /// Tries.
    pub tries: u32,
    /// Prompt tokens sent.
    pub prompt: u32,
    /// Prompt tokens that the engine took from its cache, as its usage says.
    pub cached: u32,
    /// Prompt tokens that an unlimited cache would have had.
    pub ideal: u32,
    /// Tokens of the answer, as its usage says.
    pub output: u32,
    /// Who served it, where a response header tells.
    pub worker: Option<String>,
    /// Seconds until an engine got it: those of earlier tries, and those that a response header tells.
    pub held: f64,
    /// What went wrong.
    pub error: Option<String>,
}

/// What became of a run.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Requests that came to an end, in the order in which they did.
    pub records: Vec<Record>,
    /// Requests under way when the time was over.
    pub abandoned: u64,
    /// Sessions that came to their end.
    pub sessions: u64,
}
