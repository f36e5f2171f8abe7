//! How fast turns go through, for telling refused clients when to come back.
//!
//! - `Retry-After` is an estimate of when the refused call would get its turn: turns ahead of it, times the mean
//!   time that a turn occupies a worker, divided by the turns that run side by side.
//! - I-PACE-1 whole seconds, never below 5 nor above 60. Measured harnesses ignore small values, and Claude Code
//!   2.1 gives up at once on values above 60.

use std::time::Duration;

/// Shortest time that a refused client is told to wait.
pub(crate) const RETRY_AFTER_MIN: Duration = Duration::from_secs(5);
/// Longest such time.
pub(crate) const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// What a client is told when no worker is there: about two rounds of health polling.
pub(crate) const RETRY_AFTER_NO_WORKER: Duration = Duration::from_secs(10);

/// Weight of the newest turn in the running mean: about the last 16 turns count.
const NEWEST_PER_MILLE: u32 = 60;
/// Mean before the first turn ended, a guess for an agent's turn.
const MEAN_AT_START: Duration = Duration::from_secs(10);

/// A running mean of the time that turns occupy a worker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    mean: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { mean: MEAN_AT_START }
    }
}

impl Pace {
    /// A turn occupied a worker for `took`.
    pub(crate) fn finished(&mut self, took: Duration) {
        let took = took.min(Duration::from_secs(24 * 60 * 60));
        self.mean = (self.mean * (1000 - NEWEST_PER_MILLE) + took * NEWEST_PER_MILLE) / 1000;
    }

    /// When the call behind `ahead` others may expect its turn, `running` going on side by side.
    pub(crate) fn retry_after(&self, ahead: usize, running: usize) -> Duration {
        let ahead = u32::try_from(ahead).unwrap_or(u32::MAX).saturating_add(1);
        let running = u32::try_from(running).unwrap_or(u32::MAX).max(1);
        whole_seconds(self.mean.saturating_mul(ahead) / running)
    }
}

/// Rounds up to whole seconds within the bounds.
pub(crate) fn whole_seconds(wait: Duration) -> Duration {
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    Duration::from_secs(seconds).clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// I-PACE-1.
    #[test]
    fn the_estimate_follows_queue_length_and_parallelism_within_its_bounds() {
        let pace = Pace::default();
        // 10 s a turn: 15 others before it and 8 at once make 160 s / 8.
        assert_eq!(pace.retry_after(15, 8), Duration::from_secs(20));
        assert_eq!(pace.retry_after(16, 8), Duration::from_secs(22));
        assert_eq!(pace.retry_after(0, 100), RETRY_AFTER_MIN);
        assert_eq!(pace.retry_after(1000, 0), RETRY_AFTER_MAX);
    }

    #[test]
    fn the_mean_moves_towards_what_turns_take() {
        let mut pace = Pace::default();
        for _ in 0..200 {
            pace.finished(Duration::from_secs(2));
        }
        assert_eq!(pace.retry_after(9, 1), Duration::from_secs(21));
    }
}
