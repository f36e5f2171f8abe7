//! Faults that a mock engine commits on request.
//!
//! - Purpose: show a client every way in which an engine can fail, at a chosen moment and a chosen number of
//!   times.
//! - Inputs: [`FaultRule`]s (configured or set while running) and, where allowed, the request header
//!   `x-mock-fault`; output: at most one [`Fault`] per request. The header wins over the rules, the first
//!   matching rule over later ones.
//! - Invariants: I-FLT-1 a rule with `times: n` fires exactly n times, after letting `skip` matching requests
//!   pass; I-FLT-2 a request that a fault keeps from generating never reaches the modelled engine.
//! - Deliberately absent: random faults; a test that wants them draws its own rules.

use serde::{Deserialize, Serialize};

/// One way to fail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The connection is closed before the first byte of an answer.
    Close,
    /// The connection is cut after this many events (chunks) of the answer's body; 0 = after the head.
    CutAfter(u32),
    /// An error event in the engine's own form follows this many events, then the stream ends properly.
    ErrorAfter(u32),
    /// No answer ever; the connection stays open.
    Hang,
    /// Head of a 200 answer, then silence.
    Stall,
    /// This many events of the answer, then silence.
    StallAfter(u32),
    /// Bytes that are not HTTP, then the connection is closed.
    Garbage,
    /// An error answer in the engine's own form.
    Status {
        /// HTTP status.
        status: u16,
        /// Value of `Retry-After`.
        #[serde(default)]
        retry_after: Option<String>,
    },
    /// This many real milliseconds before each event of the answer's body.
    Slow {
        /// Pause before each event.
        millis: u64,
    },
}

/// When a fault is committed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultRule {
    /// What happens.
    pub fault: Fault,
    /// Only for paths that begin so; `None` = the routes that generate.
    #[serde(default)]
    pub path: Option<String>,
    /// Only for requests with this engine session id (header or body).
    #[serde(default)]
    pub session: Option<String>,
    /// Matching requests that pass unharmed first.
    #[serde(default)]
    pub skip: u32,
    /// How often it fires; `None` = always.
    #[serde(default)]
    pub times: Option<u32>,
}

impl FaultRule {
    /// Every generating request fails so.
    #[must_use]
    pub const fn always(fault: Fault) -> Self {
        Self { fault, path: None, session: None, skip: 0, times: None }
    }

    /// The next `times` generating requests fail so.
    #[must_use]
    pub const fn next(fault: Fault, times: u32) -> Self {
        Self { fault, path: None, session: None, skip: 0, times: Some(times) }
    }
}
