//! The circuit breaker of one worker.
//!
//! - Purpose: a worker that fails every call is left alone instead of taxing each turn with a failed try.
//! - States: closed (counts failures in a row) -> open (for a time) -> half-open (one probe turn) -> closed, or
//!   open again for twice the time.
//! - A failure is: no connection, connection lost, time-out, 5xx, an answer that is not HTTP, an answer that
//!   breaks off or reports an error inside the stream. Neither failure nor success, in any state: a 4xx (it says
//!   something of the request), an overloaded engine's 429 or 503 (it works, it is full), a client that left.
//! - I-BRK-1 opens at `failures_to_open` failures in a row; a finished answer sets the count to zero.
//! - I-BRK-2 half-open has at most one probe; a probe that ends without a verdict makes room for the next.
//! - I-BRK-3 only turns dispatched after the breaker opened may close it, and only the probe may open it again:
//!   what was under way before proves nothing.
//! - I-BRK-4 the probe's first byte closes it (an answer may take minutes), but one failure short of opening,
//!   until an answer finishes.
//! - Who asks for last resort: when every ready worker of a model is open, the scheduler uses them all the same.
//!   Never "no workers" while some may work.
//! - Deliberately absent: error rates over windows. Turns of agents are few and long; a row of failures is the
//!   signal that arrives first.
//! - Source of the defaults: 5 failures as in vllm-router's documentation; times are shorter than its 30 s, since
//!   health polling takes dead engines out anyway and a breaker only has to bridge the time until then.

use std::time::Duration;

use serde::Serialize;
use tandem_types::{Time, TurnId};

use crate::config::BreakerConfig;

/// The state, as views show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BreakerState {
    /// The worker is used; so many failures in a row were seen.
    Closed {
        /// Failures in a row.
        failures: u32,
    },
    /// The worker is used only when no other is there.
    Open {
        /// Since when.
        since: Time,
        /// Until when.
        until: Time,
    },
    /// One turn tries whether the worker is well again.
    HalfOpen {
        /// Since when the breaker has not been closed.
        since: Time,
        /// The turn that tries.
        probe: Option<TurnId>,
    },
}

/// What a dispatch told about its worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// A whole answer.
    Success,
    /// The first byte of one.
    FirstByte,
    /// The worker's fault.
    Failure,
    /// Nothing.
    Neutral,
}

/// One worker's breaker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Breaker {
    state: BreakerState,
    /// How long the next opening lasts.
    open_for: Duration,
}

impl Breaker {
    pub(crate) const fn new(config: &BreakerConfig) -> Self {
        Self { state: BreakerState::Closed { failures: 0 }, open_for: config.open_first }
    }

    pub(crate) const fn state(&self) -> BreakerState {
        self.state
    }

    /// Whether turns may come here as to any other worker.
    pub(crate) const fn admits(&self) -> bool {
        matches!(self.state, BreakerState::Closed { .. } | BreakerState::HalfOpen { probe: None, .. })
    }

    /// When the open time ends, while open.
    pub(crate) const fn open_until(&self) -> Option<Time> {
        match self.state {
            BreakerState::Open { until, .. } => Some(until),
            BreakerState::Closed { .. } | BreakerState::HalfOpen { .. } => None,
        }
    }

    /// Time passed.
    pub(crate) fn advance(&mut self, now: Time) {
        if let BreakerState::Open { since, until } = self.state
            && until <= now
        {
            self.state = BreakerState::HalfOpen { since, probe: None };
        }
    }

    /// `turn` goes to the worker.
    pub(crate) const fn dispatched(&mut self, turn: TurnId) {
        if let BreakerState::HalfOpen { since, probe: None } = self.state {
            self.state = BreakerState::HalfOpen { since, probe: Some(turn) };
        }
    }

    /// The worker was away and is ready again: worth a probe at once; old failures in a row are forgotten.
    pub(crate) const fn worker_returned(&mut self) {
        self.state = match self.state {
            BreakerState::Closed { .. } => BreakerState::Closed { failures: 0 },
            BreakerState::Open { since, .. } => BreakerState::HalfOpen { since, probe: None },
            half_open @ BreakerState::HalfOpen { .. } => half_open,
        };
    }

    /// Takes in what `turn`, sent at `sent`, told. Returns whether the breaker opened.
    pub(crate) fn signal(
        &mut self,
        signal: Signal,
        turn: TurnId,
        sent: Time,
        now: Time,
        config: &BreakerConfig,
    ) -> bool {
        match (signal, self.state) {
            (Signal::Success, BreakerState::Closed { .. }) => {
                self.open_for = config.open_first;
                self.state = BreakerState::Closed { failures: 0 };
            }
            (Signal::Success, BreakerState::Open { since, .. } | BreakerState::HalfOpen { since, .. })
                if sent >= since =>
            {
                self.open_for = config.open_first;
                self.state = BreakerState::Closed { failures: 0 };
            }
            (Signal::FirstByte, BreakerState::Open { since, .. } | BreakerState::HalfOpen { since, .. })
                if sent >= since =>
            {
                self.state = BreakerState::Closed { failures: config.failures_to_open.saturating_sub(1) };
            }
            (Signal::Failure, BreakerState::Closed { failures }) => {
                let failures = failures.saturating_add(1);
                if config.failures_to_open > 0 && failures >= config.failures_to_open {
                    self.open(now, config);
                    return true;
                }
                self.state = BreakerState::Closed { failures };
            }
            (Signal::Failure, BreakerState::HalfOpen { probe, .. }) if probe == Some(turn) => {
                self.open(now, config);
                return true;
            }
            (Signal::Neutral | Signal::Success, BreakerState::HalfOpen { since, probe })
                if probe == Some(turn) =>
            {
                self.state = BreakerState::HalfOpen { since, probe: None };
            }
            (Signal::Success | Signal::FirstByte | Signal::Failure | Signal::Neutral, _) => {}
        }
        false
    }

    fn open(&mut self, now: Time, config: &BreakerConfig) {
        self.state = BreakerState::Open { since: now, until: now + self.open_for };
        self.open_for = self.open_for.saturating_mul(2).min(config.open_max.max(config.open_first));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: BreakerConfig = BreakerConfig {
        failures_to_open: 3,
        open_first: Duration::from_secs(5),
        open_max: Duration::from_secs(15),
    };

    fn at(seconds: u64) -> Time {
        Time::from_millis(seconds * 1000)
    }

    fn opened(now: Time) -> Breaker {
        let mut breaker = Breaker::new(&CONFIG);
        for n in 0..3 {
            assert!(breaker.admits());
            assert_eq!(breaker.signal(Signal::Failure, TurnId(n), now, now, &CONFIG), n == 2);
        }
        assert!(!breaker.admits());
        breaker
    }

    /// I-BRK-1.
    #[test]
    fn only_failures_in_a_row_open_it() {
        let mut breaker = Breaker::new(&CONFIG);
        for signal in [Signal::Failure, Signal::Failure, Signal::Success, Signal::Failure, Signal::Failure] {
            breaker.signal(signal, TurnId(0), at(0), at(0), &CONFIG);
        }
        // Refused requests neither count nor break the row.
        for _ in 0..100 {
            breaker.signal(Signal::Neutral, TurnId(0), at(0), at(0), &CONFIG);
        }
        assert_eq!(breaker.state(), BreakerState::Closed { failures: 2 });
        assert!(breaker.signal(Signal::Failure, TurnId(0), at(0), at(1), &CONFIG));
        assert_eq!(breaker.open_until(), Some(at(6)));
    }

    /// I-BRK-2, I-BRK-3.
    #[test]
    fn one_probe_at_a_time_and_a_verdict_from_it_alone() {
        let mut breaker = opened(at(0));
        breaker.advance(at(4));
        assert!(!breaker.admits());
        breaker.advance(at(5));
        assert!(breaker.admits());
        breaker.dispatched(TurnId(10));
        assert!(!breaker.admits());
        // A turn from before the trouble fails, another one finishes: neither decides.
        breaker.signal(Signal::Failure, TurnId(1), Time::ZERO, at(6), &CONFIG);
        assert_eq!(breaker.state(), BreakerState::HalfOpen { since: at(0), probe: Some(TurnId(10)) });
        // The probe is refused for its own fault: the next may try.
        breaker.signal(Signal::Neutral, TurnId(10), at(5), at(6), &CONFIG);
        assert!(breaker.admits());
        breaker.dispatched(TurnId(11));
        breaker.signal(Signal::Success, TurnId(11), at(6), at(7), &CONFIG);
        assert_eq!(breaker.state(), BreakerState::Closed { failures: 0 });
    }

    /// I-BRK-3.
    #[test]
    fn a_success_from_before_it_opened_does_not_close_it() {
        let mut breaker = opened(at(10));
        breaker.signal(Signal::Success, TurnId(0), at(9), at(11), &CONFIG);
        assert_eq!(breaker.open_until(), Some(at(15)));
        // One sent as a last resort while open does.
        breaker.signal(Signal::Success, TurnId(9), at(11), at(12), &CONFIG);
        assert!(breaker.admits());
    }

    #[test]
    fn the_open_time_doubles_to_its_bound_and_starts_over_after_a_success() {
        let mut breaker = opened(at(0));
        let mut now = at(0);
        for expected in [10, 15, 15] {
            now = breaker.open_until().expect("open");
            breaker.advance(now);
            breaker.dispatched(TurnId(50));
            assert!(breaker.signal(Signal::Failure, TurnId(50), now, now, &CONFIG));
            assert_eq!(breaker.open_until(), Some(now + Duration::from_secs(expected)));
        }
        breaker.signal(Signal::Success, TurnId(51), now, now, &CONFIG);
        for n in 0..3 {
            breaker.signal(Signal::Failure, TurnId(n), now, now, &CONFIG);
        }
        assert_eq!(breaker.open_until(), Some(now + Duration::from_secs(5)));
    }

    /// I-BRK-4.
    #[test]
    fn a_first_byte_closes_it_one_failure_short_of_opening() {
        let mut breaker = opened(at(0));
        breaker.advance(at(5));
        breaker.dispatched(TurnId(10));
        breaker.signal(Signal::FirstByte, TurnId(10), at(5), at(6), &CONFIG);
        assert_eq!(breaker.state(), BreakerState::Closed { failures: 2 });
        assert!(breaker.signal(Signal::Failure, TurnId(10), at(5), at(7), &CONFIG));
        assert_eq!(breaker.open_until(), Some(at(17)));
    }
}
