//! How long each harness can be kept waiting.

use std::time::Duration;

use tandem_types::Harness;

/// How to keep an accepted stream alive after an early 200.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepAlive {
    /// Longest time between two events of the dialect (`ping`, empty delta, `response.in_progress`).
    pub every: Duration,
    /// Longest time for which this was seen to work. Not a limit that was met.
    pub proven: Duration,
}

/// How one request may be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldTolerance {
    /// Longest safe wait from accepting the request to the first byte of the answer.
    pub silent: Duration,
    /// An early 200 with events of the protocol prolongs the wait; `None` = hold silently only.
    pub early_200: Option<KeepAlive>,
    /// When to send the early 200: at most [`Self::silent`].
    pub early_200_after: Duration,
}

impl HoldTolerance {
    /// The longest wait, in whichever way, that is known to be survived.
    #[must_use]
    pub fn longest(&self) -> Duration {
        self.early_200.map_or(self.silent, |k| self.silent.max(k.proven))
    }
}

/// How a request of `harness` may be held. `declared` is the read time-out that the client's SDK states
/// ([`crate::Identity::client_timeout_ms`]): it can only shorten the wait.
#[must_use]
pub fn hold_tolerance(harness: Harness, stream: bool, declared: Option<Duration>) -> HoldTolerance {
    let _ = (harness, stream, declared);
    HoldTolerance {
        silent: Duration::from_secs(55),
        early_200: None,
        early_200_after: Duration::from_secs(55),
    }
}

/// The event that makes a harness repeat a turn after an early 200.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InStreamRefusal {
    /// Messages: `event: error` with `overloaded_error`.
    Overloaded,
    /// Responses: `response.failed` with code `rate_limit_exceeded` and `try again in Ns` in the message.
    RateLimitFailed,
    /// Chat: a `{"error": {...}}` chunk.
    ChatError,
    /// None is known: the turn is lost when refused after an early 200.
    None,
}

/// What a harness makes of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// Whether it waits as long as `Retry-After` says (within the bounds of [`retry_after_secs`]).
    pub honours_retry_after: bool,
    /// Requests that it sends in all before it gives up; `None` = more than were counted.
    pub attempts: Option<u32>,
    /// The in-stream error after which it tries again.
    pub in_stream: InStreamRefusal,
}

/// What `harness` makes of a 429 or 503.
#[must_use]
pub fn refusal(harness: Harness) -> Refusal {
    let _ = harness;
    Refusal { honours_retry_after: true, attempts: None, in_stream: InStreamRefusal::None }
}

/// The whole-second `Retry-After` to send for a wished wait: 5 to 60, always present.
#[must_use]
pub fn retry_after_secs(wished: Duration) -> u64 {
    wished.as_secs().clamp(5, 60)
}
