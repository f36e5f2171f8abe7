//! How long an engine may take.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::time::{Sleep, sleep_until};

/// How long an engine may be silent, and the whole call may take. One timer for both, moved only when it
/// fires, so that a chunk costs no timer operation.
pub(crate) struct Patience {
    idle: Duration,
    last: Instant,
    deadline: Instant,
    timer: Pin<Box<Sleep>>,
}

/// Whose patience ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expired {
    /// Silence lasted too long.
    Idle,
    /// The whole lasted too long.
    Deadline,
}

impl Patience {
    /// Silence is bounded by `idle`, the whole by `deadline`.
    pub(crate) fn new(idle: Duration, deadline: Instant) -> Self {
        let last = Instant::now();
        let timer = Box::pin(sleep_until(deadline.min(last + idle).into()));
        Self { idle, last, deadline, timer }
    }

    /// The engine said something.
    pub(crate) fn heard(&mut self) {
        self.last = Instant::now();
    }

    /// Ready when the patience is at its end.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Expired> {
        loop {
            if self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            let now = Instant::now();
            if now >= self.deadline {
                return Poll::Ready(Expired::Deadline);
            }
            let silent_until = self.last + self.idle;
            if now >= silent_until {
                return Poll::Ready(Expired::Idle);
            }
            self.timer.as_mut().reset(self.deadline.min(silent_until).into());
        }
    }
}
