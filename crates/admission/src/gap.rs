//! How long programs stay away between turns, learned as they come back.
//!
//! - One histogram of pauses per kind (tool or person behind it, root or subagent), in half octaves from 1/8 s, with a
//!   log-normal prior that a few dozen observations outweigh.
//! - A program that never came back counts as a pause longer than any, so that sessions whose end nobody announces make
//!   idle ones less likely to return the longer they idle.
//! - Deliberately absent: tool names. They are not told to policies.
//! - I-GAP-1 probabilities lie in 0..=1 and do not fall with a longer horizon.

use std::time::Duration;

/// Buckets: the last but one ends at 1/8 s * 2^(34/2) = 4.5 h; the last one holds those that never return.
const BUCKETS: usize = 36;
const FIRST_S: f64 = 0.125;
/// What the prior weighs, in observations.
const PRIOR: f64 = 8.0;
/// Counts are halved at this many, so that the model follows its time.
const MOST: f64 = 2_048.0;

/// The pauses of one kind of program.
#[derive(Debug, Clone, PartialEq)]
pub struct GapModel {
    counts: [f64; BUCKETS],
    total: f64,
    /// Of each bucket, the sum of those behind it.
    behind: [f64; BUCKETS],
    /// Where buckets begin, and where the last one ends.
    edges: [f64; BUCKETS + 1],
}

/// Where a bucket begins, in seconds; bucket 0 begins at 0.
fn begins(bucket: usize) -> f64 {
    let half_octaves = u32::try_from(bucket).map_or(0.0, f64::from) - 1.0;
    if bucket == 0 { 0.0 } else { FIRST_S * (half_octaves / 2.0).exp2() }
}

fn bucket_of(seconds: f64) -> usize {
    // The first bucket's length is a power of two, so that octaves are told by the exponent.
    let bits = (seconds / FIRST_S).to_bits();
    let Some(octave) = (bits >> 52).checked_sub(1_023).filter(|_| seconds > 0.0) else { return 0 };
    let half = u64::from(bits << 12 >> 12 >= std::f64::consts::SQRT_2.to_bits() << 12 >> 12);
    usize::try_from(2 * octave + half).map_or(BUCKETS - 2, |halves| halves.min(BUCKETS - 3)) + 1
}

impl GapModel {
    /// A model that believes in a log-normal with this median and spread until it has seen pauses.
    #[must_use]
    pub fn new(median_s: f64, sigma: f64) -> Self {
        // The logistic function is close enough to the normal distribution for a prior.
        let below = |s: f64| {
            if s <= 0.0 { 0.0 } else { 1.0 / (1.0 + (-1.702 * (s / median_s).ln() / sigma).exp()) }
        };
        let mut counts = [0.0; BUCKETS];
        for (bucket, count) in counts.iter_mut().enumerate().take(BUCKETS - 1) {
            *count = PRIOR * (below(begins(bucket + 1)) - below(begins(bucket)));
        }
        let total = counts.iter().sum();
        let mut edges = [0.0; BUCKETS + 1];
        edges.iter_mut().enumerate().for_each(|(bucket, edge)| *edge = begins(bucket));
        let mut model = Self { counts, total, behind: [0.0; BUCKETS], edges };
        model.add_up();
        model
    }

    fn add_up(&mut self) {
        let mut sum = 0.0;
        for (behind, count) in self.behind.iter_mut().zip(&self.counts).rev() {
            *behind = sum;
            sum += count;
        }
    }

    /// A program came back after this long.
    pub fn returned(&mut self, after: Duration) {
        self.count(bucket_of(after.as_secs_f64()));
    }

    /// A program never came back.
    pub fn never(&mut self) {
        self.count(BUCKETS - 1);
    }

    fn count(&mut self, bucket: usize) {
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1.0;
            self.total += 1.0;
        }
        if self.total > MOST {
            self.counts.iter_mut().for_each(|count| *count /= 2.0);
            self.total /= 2.0;
        }
        self.add_up();
    }

    /// Pauses longer than this, in observations.
    fn longer(&self, seconds: f64) -> f64 {
        let bucket = bucket_of(seconds);
        let at = |list: &[f64], index: usize| list.get(index).copied().unwrap_or_default();
        let (from, to) = (at(&self.edges, bucket), at(&self.edges, bucket + 1));
        let left = ((to - seconds) / (to - from)).clamp(0.0, 1.0);
        at(&self.behind, bucket) + at(&self.counts, bucket) * left
    }

    /// How likely a program that has been away for `idle` comes back within `horizon` from now.
    #[must_use]
    pub fn returns_within(&self, idle: Duration, horizon: Duration) -> f64 {
        self.returns_within_s(idle.as_secs_f64(), horizon.as_secs_f64())
    }

    /// The same in seconds.
    #[must_use]
    pub fn returns_within_s(&self, idle: f64, horizon: f64) -> f64 {
        let alive = self.longer(idle);
        if alive <= 1e-9 {
            return 0.0;
        }
        ((alive - self.longer(idle + horizon)) / alive).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// As the logarithm says, also a nanosecond before and behind where buckets begin.
    #[test]
    fn a_pause_is_in_the_bucket_of_its_half_octave() {
        let by_logarithm = |seconds: f64| {
            if seconds < FIRST_S {
                0.0
            } else {
                ((seconds / FIRST_S).log2() * 2.0).floor().clamp(0.0, 33.0) + 1.0
            }
        };
        let same = |nanos: u64| {
            let seconds = Duration::from_nanos(nanos).as_secs_f64();
            let bucket = u32::try_from(bucket_of(seconds)).map_or(f64::NAN, f64::from);
            assert_eq!(bucket, by_logarithm(seconds), "{nanos}");
        };
        for bucket in 1..BUCKETS {
            let edge = Duration::from_secs_f64(begins(bucket)).as_nanos() as u64;
            (edge - 3..=edge + 3).for_each(same);
        }
        (0..100_000_u64).for_each(|i| same(i * i * 1_234_567 % 40_000_000_000_000));
        same(u64::MAX);
    }

    #[test]
    fn the_prior_has_the_median_that_it_was_given() {
        let model = GapModel::new(9.0, 1.3);
        let half = model.returns_within(Duration::ZERO, s(9));
        assert!((half - 0.5).abs() < 0.03, "{half}");
    }

    /// Half of pauses take 1 s, half 100 s: after 10 s only the long ones are left, and none of these ends by 50 s.
    #[test]
    fn what_was_seen_outweighs_the_prior() {
        let mut model = GapModel::new(9.0, 1.3);
        for _ in 0..500 {
            model.returned(s(1));
            model.returned(s(100));
        }
        assert!((model.returns_within(Duration::ZERO, s(10)) - 0.5).abs() < 0.02);
        assert!(model.returns_within(s(10), s(40)) < 0.03);
        assert!(model.returns_within(s(10), s(190)) > 0.97);
    }

    #[test]
    fn those_that_never_return_are_less_expected_the_longer_they_are_away() {
        let mut model = GapModel::new(9.0, 1.3);
        for _ in 0..900 {
            model.returned(s(5));
        }
        for _ in 0..100 {
            model.never();
        }
        let within = |idle| model.returns_within(s(idle), s(60));
        assert!(within(0) > 0.85 && within(30) < 0.1, "{} {}", within(0), within(30));
    }

    /// I-GAP-1.
    #[test]
    fn probabilities_are_probabilities_and_grow_with_the_horizon() {
        let mut model = GapModel::new(120.0, 1.6);
        (0..300).for_each(|i| model.returned(Duration::from_millis(i * i * 37)));
        for idle in [0, 1, 7, 60, 3_600, 100_000] {
            let mut last = 0.0;
            for horizon in 0..200 {
                let p = model.returns_within(s(idle), s(horizon * 5));
                assert!((0.0..=1.0).contains(&p) && p >= last - 1e-12, "{idle} {horizon} {p}");
                last = p;
            }
        }
    }
}
