//! What came out. Names are those of aisimulate and AIPerf where they have one.

use serde::Serialize;

/// Distribution of a quantity.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Stats {
    /// How many values.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest.
    pub max: f64,
}

impl Stats {
    /// Of these values (percentiles by nearest rank).
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let count = values.len();
        if count == 0 {
            return Self::default();
        }
        let rank = |percent: usize| {
            let at = (count * percent).div_ceil(100).clamp(1, count) - 1;
            values.get(at).copied().unwrap_or_default()
        };
        Self {
            count: count as u64,
            mean: values.iter().sum::<f64>() / count as f64,
            p50: rank(50),
            p90: rank(90),
            p99: rank(99),
            max: rank(100),
        }
    }
}

/// What a run came to, within its measured time.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Report {
    /// Measured time in seconds of the fleet's clock.
    pub duration_s: f64,
    /// Requests answered.
    pub completed_requests: u64,
    /// Requests sent and not answered when the run ended.
    pub unserved_requests: u64,
    /// Refusals that clients got and came back from.
    pub refusals: u64,
    /// Plays that ended.
    pub completed_plays: u64,
    /// Prompt tokens of answered requests.
    pub total_input_tokens: u64,
    /// Generated tokens.
    pub total_output_tokens: u64,
    /// Generated tokens a second.
    pub output_throughput_tok_s: f64,
    /// Requests a second.
    pub request_throughput: f64,
    /// Part of prompt tokens that came from a cache.
    pub prefix_cache_reused_ratio: f64,
    /// Part that an unlimited cache on every worker would have given.
    pub ideal_reused_ratio: f64,
    /// Tokens computed in prefill, over what they are with an unlimited cache.
    pub amplification: f64,
    /// Time from sending to the first token, held time included, in seconds.
    pub ttft_s: Stats,
    /// Time per token after the first, in seconds.
    pub tpot_s: Stats,
    /// Time from sending to the last token, in seconds.
    pub e2e_s: Stats,
    /// Time that held requests were held, in seconds.
    pub held_s: Stats,
    /// Each session's longest time to a first token, in seconds.
    pub worst_turn_s: Stats,
    /// Part of sessions with no time to a first token above 30 s.
    pub sessions_within_30s: f64,
    /// Mean time to a first token of the tenth of sessions where it is longest, in seconds.
    pub slowest_tenth_ttft_s: f64,
    /// Jain's index over sessions of how much of their time was not waiting: 1 = all fare alike.
    pub jain_index: f64,
    /// Part of workers' time in which one stood still while a turn was held.
    pub idle_while_held: f64,
    /// Turns that admission let in by force, warm-up included, as are the next three.
    pub forced_admissions: u64,
    /// Sessions that lost their place.
    pub pauses: u64,
    /// Sessions that got one again.
    pub resumes: u64,
    /// Turns that admission sent to another worker than their session's last, although that one was there.
    pub moves: u64,
    /// Preemptions in engines.
    pub preemptions: u64,
    /// Turns sent to each worker.
    pub worker_turns: Vec<u64>,
    /// Simulated requests, warm-up included.
    pub simulated_requests: u64,
}

/// Jain's fairness index.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
pub(crate) fn jain(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|value| value * value).sum();
    if squares > 0.0 { sum * sum / (values.len() as f64 * squares) } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let stats = Stats::of((1..=200).map(f64::from).collect());
        assert_eq!((stats.p50, stats.p90, stats.p99, stats.max), (100.0, 180.0, 198.0, 200.0));
        assert!((stats.mean - 100.5).abs() < 1e-9);
        assert_eq!(Stats::of(vec![7.0]).p99, 7.0);
        assert_eq!(Stats::of(Vec::new()).count, 0);
    }

    #[test]
    fn jains_index_is_one_for_equals_and_one_nth_for_one_who_has_all() {
        assert!((jain(&[3.0, 3.0, 3.0]) - 1.0).abs() < 1e-12);
        assert!((jain(&[5.0, 0.0, 0.0, 0.0]) - 0.25).abs() < 1e-12);
    }
}
