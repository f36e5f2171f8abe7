//! The one place where the gateway reads clocks.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tandem_types::Time;

/// A monotonic clock that the scheduler's times count from, and the wall clock for stamps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    start: Instant,
    /// What it showed at the start.
    from: Time,
}

impl Clock {
    /// Starts at [`Time::ZERO`] now.
    pub(crate) fn start() -> Self {
        Self::start_at(Time::ZERO)
    }

    /// Starts at this time now: times before the start can then be told, too.
    pub(crate) fn start_at(from: Time) -> Self {
        Self { start: Instant::now(), from }
    }

    /// Time since the start, and what was shown then.
    pub(crate) fn now(self) -> Time {
        self.from + self.start.elapsed()
    }

    /// How long ago an instant was; zero for those to come.
    pub(crate) fn age(self, of: Instant) -> Duration {
        Instant::now().saturating_duration_since(of)
    }

    /// The instant at which this clock shows `time`.
    pub(crate) fn instant(self, time: Time) -> Instant {
        self.start + time.since(self.from)
    }
}

/// Milliseconds since the Unix epoch.
pub(crate) fn unix_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
