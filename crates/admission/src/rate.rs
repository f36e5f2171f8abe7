//! How fast prompts are computed, learned from turns: tokens that were missing over the time to the first token.
//!
//! Queueing in the engine makes a turn look slower and never faster, so the fastest recent turns tell the truth: the
//! estimate jumps up to a faster sample and sinks slowly.

use std::time::Duration;

/// Samples with fewer missing tokens say more of fixed costs than of the rate.
const TOKENS_MIN: u64 = 2_048;
const SLOWEST: f64 = 500.0;
const FASTEST: f64 = 1_000_000.0;

#[derive(Debug, Clone, Copy)]
pub(crate) struct PrefillRate {
    tokens_per_s: f64,
    seen: bool,
}

impl PrefillRate {
    pub(crate) const fn new(tokens_per_s: f64) -> Self {
        Self { tokens_per_s, seen: false }
    }

    #[expect(clippy::cast_precision_loss, reason = "token counts are far below 2^52")]
    pub(crate) fn sample(&mut self, tokens: u64, took: Duration) {
        let seconds = took.as_secs_f64();
        if tokens < TOKENS_MIN || seconds <= 0.0 {
            return;
        }
        let rate = (tokens as f64 / seconds).clamp(SLOWEST, FASTEST);
        self.tokens_per_s =
            if self.seen && rate < self.tokens_per_s { self.tokens_per_s * 0.99 + rate * 0.01 } else { rate };
        self.seen = true;
    }

    /// Seconds to compute so many tokens.
    #[expect(clippy::cast_precision_loss, reason = "token counts are far below 2^52")]
    pub(crate) fn seconds(&self, tokens: u64) -> f64 {
        tokens as f64 / self.tokens_per_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_turns_count_and_small_ones_do_not() {
        let mut rate = PrefillRate::new(10_000.0);
        rate.sample(20_000, Duration::from_secs(1));
        assert!((rate.seconds(20_000) - 1.0).abs() < 1e-9);
        rate.sample(20_000, Duration::from_secs(10));
        assert!(rate.seconds(20_000) < 1.02, "one queued turn moves it by a hundredth");
        rate.sample(100, Duration::from_secs(10));
        assert!(rate.seconds(20_000) < 1.02);
    }
}
