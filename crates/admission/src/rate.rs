//! How fast prompts are computed, learned from turns: tokens that were missing over the time to the first token.
//!
//! - Long prompts are computed more slowly per token than short ones (attention is quadratic), so each octave of lengths
//!   has a rate of its own; a length that was never seen takes that of the nearest that was.
//! - Queueing in the engine makes a turn look slower and never faster, so the fastest recent turns tell the truth: an
//!   estimate jumps up to a faster sample and sinks slowly.

use std::time::Duration;

/// Samples with fewer missing tokens say more of fixed costs than of the rate. Also where the first octave begins.
const TOKENS_MIN: u64 = 2_048;
/// The last octave begins at a million tokens.
const OCTAVES: usize = 10;
const SLOWEST: f64 = 500.0;
const FASTEST: f64 = 1_000_000.0;

#[derive(Debug, Clone, Copy)]
pub(crate) struct PrefillRate {
    /// Tokens a second that are believed until turns have told.
    prior: f64,
    seen: [Option<f64>; OCTAVES],
    /// What is believed of each octave.
    believed: [f64; OCTAVES],
}

/// Something for each octave of lengths.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ByLength([f64; OCTAVES]);

impl ByLength {
    /// At the length of so many tokens.
    pub(crate) fn at(&self, tokens: u64) -> f64 {
        self.0.get(octave(tokens)).copied().unwrap_or_default()
    }
}

fn octave(tokens: u64) -> usize {
    let above = (tokens / TOKENS_MIN).max(1).ilog2();
    usize::try_from(above).map_or(OCTAVES - 1, |octave| octave.min(OCTAVES - 1))
}

impl PrefillRate {
    pub(crate) const fn new(tokens_per_s: f64) -> Self {
        Self { prior: tokens_per_s, seen: [None; OCTAVES], believed: [tokens_per_s; OCTAVES] }
    }

    /// So many tokens of a prompt of which little was there took so long.
    #[expect(clippy::cast_precision_loss, reason = "token counts are far below 2^52")]
    pub(crate) fn sample(&mut self, tokens: u64, took: Duration) {
        let seconds = took.as_secs_f64();
        if tokens < TOKENS_MIN || seconds <= 0.0 {
            return;
        }
        let rate = (tokens as f64 / seconds).clamp(SLOWEST, FASTEST);
        if let Some(seen) = self.seen.get_mut(octave(tokens)) {
            *seen = Some(seen.map_or(rate, |old| if rate < old { old * 0.99 + rate * 0.01 } else { rate }));
        }
        self.believed = std::array::from_fn(|at| self.nearest(at));
    }

    /// Tokens a second in a prompt of so many.
    pub(crate) fn tokens_per_s(&self, tokens: u64) -> f64 {
        ByLength(self.believed).at(tokens)
    }

    /// Something that follows from the rate of each length.
    pub(crate) fn each(&self, of: impl FnMut(f64) -> f64) -> ByLength {
        ByLength(self.believed.map(of))
    }

    fn nearest(&self, at: usize) -> f64 {
        let nearest = |distance: usize| {
            let either = [at.checked_sub(distance), at.checked_add(distance)];
            either.into_iter().flatten().find_map(|octave| self.seen.get(octave).copied().flatten())
        };
        (0..OCTAVES).find_map(nearest).unwrap_or(self.prior)
    }

    /// Tokens a second at the length where that is most.
    pub(crate) fn fastest(&self) -> f64 {
        self.seen.iter().flatten().copied().reduce(f64::max).unwrap_or(self.prior)
    }

    /// Seconds to compute a prompt of so many tokens.
    #[expect(clippy::cast_precision_loss, reason = "token counts are far below 2^52")]
    pub(crate) fn seconds(&self, tokens: u64) -> f64 {
        tokens as f64 / self.tokens_per_s(tokens)
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

    /// 20,000 lie in the octave from 16,384 on, 100,000 in that from 65,536 on.
    #[test]
    fn each_length_has_its_rate_and_unseen_ones_that_of_the_nearest() {
        let mut rate = PrefillRate::new(10_000.0);
        assert!((rate.seconds(5_000) - 0.5).abs() < 1e-9, "nothing was seen");
        rate.sample(20_000, Duration::from_secs(1));
        rate.sample(100_000, Duration::from_secs(10));
        assert!((rate.seconds(20_000) - 1.0).abs() < 1e-9);
        assert!((rate.seconds(120_000) - 12.0).abs() < 1e-9);
        assert!((rate.seconds(1_000_000) - 100.0).abs() < 1e-9, "as the longest seen");
        assert!((rate.seconds(4_000) - 0.2).abs() < 1e-9, "as the shortest seen");
    }
}
