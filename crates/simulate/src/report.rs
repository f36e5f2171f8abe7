//! What came out.
//!
//! Names are those of aisimulate 0.13 (`mean_ttft_ms`, `prefix_cache_reused_ratio`, ...) where it has one for the
//! figure, so that reports lie side by side; AIPerf calls `tpot` `inter_token_latency` and `e2e_latency`
//! `request_latency`. Percentiles are by nearest rank.

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

/// Distribution of a quantity.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Stats {
    /// How many values.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Standard deviation (of the values, not of a sample).
    pub std: f64,
    /// Smallest.
    pub min: f64,
    /// Median.
    pub p50: f64,
    /// 75th percentile.
    pub p75: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest.
    pub max: f64,
}

impl Stats {
    /// Of these values.
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
        let mean = values.iter().sum::<f64>() / count as f64;
        let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
        Self {
            count: count as u64,
            mean,
            std: (squares / count as f64).sqrt(),
            min: rank(0),
            p50: rank(50),
            p75: rank(75),
            p90: rank(90),
            p95: rank(95),
            p99: rank(99),
            max: rank(100),
        }
    }

    const fn named(&self) -> [(&'static str, f64); 9] {
        [
            ("mean", self.mean),
            ("min", self.min),
            ("max", self.max),
            ("median", self.p50),
            ("p75", self.p75),
            ("p90", self.p90),
            ("p95", self.p95),
            ("p99", self.p99),
            ("std", self.std),
        ]
    }
}

/// What a run came to, within its measured time.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Report {
    /// Measured time, ms of the fleet's clock.
    pub duration_ms: f64,
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
    /// Tokens computed in prefill over the whole run, warm-up and recomputation included.
    pub committed_prefill_tokens: u64,
    /// Requests a second.
    pub request_throughput_rps: f64,
    /// Requests a second with a time to the first token within [`SimConfig::slo_ttft`](crate::SimConfig::slo_ttft).
    pub goodput_rps: f64,
    /// Prompt tokens a second.
    pub input_throughput_tok_s: f64,
    /// Generated tokens a second.
    pub output_throughput_tok_s: f64,
    /// Part of prompt tokens that came from a cache, those included that a request found when it came back from a
    /// preemption.
    pub prefix_cache_reused_ratio: f64,
    /// The same without those: what the request found when its turn came first.
    pub first_admission_prefix_cache_reused_ratio: f64,
    /// Part that an unlimited cache on every worker would have given.
    pub ideal_reused_ratio: f64,
    /// Part that no cache of the fleet's size can exceed on the requests in the order of this run, where asked for.
    pub belady_reused_ratio: Option<f64>,
    /// Tokens computed in prefill, over what they are with an unlimited cache.
    pub amplification: f64,
    /// Time from sending to the first token, held time included, ms.
    pub ttft_ms: Stats,
    /// Time from the first token to the second, ms.
    pub ttst_ms: Stats,
    /// Time per token after the first, ms.
    pub tpot_ms: Stats,
    /// Time from sending to the last token, ms.
    pub e2e_latency_ms: Stats,
    /// Tokens a second that one request sees after its first.
    pub output_token_throughput_per_user: Stats,
    /// Time that held requests were held, ms.
    pub held_ms: Stats,
    /// Each session's longest time to a first token, ms.
    pub worst_turn_ms: Stats,
    /// Part of sessions with no time to a first token above [`SimConfig::slo_ttft`](crate::SimConfig::slo_ttft).
    pub session_slo_attainment: f64,
    /// Mean time to a first token of the tenth of sessions where it is longest, ms.
    pub slowest_tenth_ttft_ms: f64,
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
    /// For how many times as long as computing them again takes `tandem` kept idle sessions when the run ended.
    pub admission_patience: Option<f64>,
    /// Preemptions in engines.
    pub preemptions: u64,
    /// Requests sent to each worker; of a pair, to each of the two.
    pub worker_turns: Vec<u64>,
    /// Simulated requests, warm-up included.
    pub simulated_requests: u64,
}

impl Report {
    /// Counts, by name.
    #[must_use]
    pub const fn counts(&self) -> [(&'static str, u64); 15] {
        [
            ("num_requests", self.completed_requests + self.unserved_requests),
            ("completed_requests", self.completed_requests),
            ("unserved_requests", self.unserved_requests),
            ("refusals", self.refusals),
            ("completed_plays", self.completed_plays),
            ("total_input_tokens", self.total_input_tokens),
            ("total_output_tokens", self.total_output_tokens),
            ("committed_prefill_tokens", self.committed_prefill_tokens),
            ("forced_admissions", self.forced_admissions),
            ("pauses", self.pauses),
            ("resumes", self.resumes),
            ("moves", self.moves),
            ("preemptions", self.preemptions),
            ("num_ttft_samples", self.ttft_ms.count),
            ("simulated_requests", self.simulated_requests),
        ]
    }

    /// Single figures, by name; those that were not asked for are left out.
    #[must_use]
    pub fn figures(&self) -> Vec<(&'static str, f64)> {
        let mut figures = vec![
            ("duration_ms", self.duration_ms),
            ("request_throughput_rps", self.request_throughput_rps),
            ("goodput_rps", self.goodput_rps),
            ("input_throughput_tok_s", self.input_throughput_tok_s),
            ("output_throughput_tok_s", self.output_throughput_tok_s),
            ("total_throughput_tok_s", self.input_throughput_tok_s + self.output_throughput_tok_s),
            ("prefix_cache_reused_ratio", self.prefix_cache_reused_ratio),
            ("first_admission_prefix_cache_reused_ratio", self.first_admission_prefix_cache_reused_ratio),
            ("ideal_reused_ratio", self.ideal_reused_ratio),
            ("amplification", self.amplification),
            ("session_slo_attainment", self.session_slo_attainment),
            ("slowest_tenth_ttft_ms", self.slowest_tenth_ttft_ms),
            ("jain_index", self.jain_index),
            ("idle_while_held", self.idle_while_held),
        ];
        figures.extend(self.belady_reused_ratio.map(|ratio| ("belady_reused_ratio", ratio)));
        figures.extend(self.admission_patience.map(|factor| ("admission_patience", factor)));
        figures
    }

    /// Distributions, by the name that follows that of the statistic (`mean_ttft_ms`).
    #[must_use]
    pub const fn distributions(&self) -> [(&'static str, &Stats); 7] {
        [
            ("ttft_ms", &self.ttft_ms),
            ("ttst_ms", &self.ttst_ms),
            ("tpot_ms", &self.tpot_ms),
            ("e2e_latency_ms", &self.e2e_latency_ms),
            ("output_token_throughput_per_user", &self.output_token_throughput_per_user),
            ("held_ms", &self.held_ms),
            ("worst_turn_ms", &self.worst_turn_ms),
        ]
    }
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, count) in self.counts() {
            map.serialize_entry(name, &count)?;
        }
        for (name, value) in self.figures() {
            map.serialize_entry(name, &value)?;
        }
        for (name, stats) in self.distributions() {
            for (statistic, value) in stats.named() {
                map.serialize_entry(&format!("{statistic}_{name}"), &value)?;
            }
        }
        map.serialize_entry("worker_turns", &self.worker_turns)?;
        map.end()
    }
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
    fn figures_bear_the_names_of_the_field() {
        let report = Report {
            ttft_ms: Stats::of(vec![1.0, 3.0]),
            worker_turns: vec![2, 5],
            belady_reused_ratio: None,
            ..Report::default()
        };
        let json: serde_json::Value = serde_json::to_value(&report).unwrap_or_default();
        assert_eq!(json["mean_ttft_ms"], 2.0);
        assert_eq!(
            (&json["median_ttft_ms"], &json["p99_ttft_ms"], &json["std_ttft_ms"]),
            (&1.0.into(), &3.0.into(), &1.0.into())
        );
        assert_eq!(json["worker_turns"], serde_json::json!([2, 5]));
        assert_eq!(json["num_ttft_samples"], 2);
        assert!(json.get("belady_reused_ratio").is_none(), "not asked for");
    }

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let stats = Stats::of((1..=200).map(f64::from).collect());
        assert_eq!((stats.p50, stats.p90, stats.p99), (100.0, 180.0, 198.0));
        assert_eq!((stats.min, stats.max), (1.0, 200.0));
        assert!((stats.mean - 100.5).abs() < 1e-9);
        // (n^2 - 1) / 12 for 1..=n.
        assert!((stats.std - (39_999.0f64 / 12.0).sqrt()).abs() < 1e-9);
        assert_eq!(Stats::of(vec![7.0]).p99, 7.0);
        assert_eq!(Stats::of(Vec::new()).count, 0);
    }

    #[test]
    fn jains_index_is_one_for_equals_and_one_nth_for_one_who_has_all() {
        assert!((jain(&[3.0, 3.0, 3.0]) - 1.0).abs() < 1e-12);
        assert!((jain(&[5.0, 0.0, 0.0, 0.0]) - 0.25).abs() < 1e-12);
    }
}
