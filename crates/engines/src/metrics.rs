//! Load and capacity out of the Prometheus text of an engine.
//!
//! - Inputs: the text of `/metrics`. Outputs: one [`WorkerStatus`] per data-parallel rank.
//! - Invariants:
//!   - I-EMT-1 names match exactly. vLLM writes `X_total` and `X_created` beside each counter, SGLang has gauges
//!     whose names continue another's.
//!   - I-EMT-2 lines that do not parse, and values that are no finite number, are skipped, never an error.
//!   - I-EMT-3 at most [`RANKS_MAX`] ranks.
//! - Sources: vLLM 0.32 (labels `engine`, `model_name`), SGLang 0.5.23 (labels `dp_rank`, `tp_rank`, ...),
//!   llama.cpp's server. The rank of vLLM is its `engine` label; SGLang writes one series per tensor-parallel
//!   rank of a data-parallel rank when asked to, all with the same numbers, so the largest counts.

use std::collections::BTreeMap;

use tandem_types::LoadReport;

use crate::config::RANKS_MAX;
use crate::state::WorkerStatus;

/// One line.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Sample<'a> {
    name: &'a str,
    labels: &'a str,
    value: f64,
}

impl<'a> Sample<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let name_end = line.find(['{', ' ', '\t'])?;
        let (name, rest) = line.split_at(name_end);
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(rest) => {
                let end = labels_end(rest)?;
                (rest.get(..end)?, rest.get(end + 1..)?)
            }
            None => ("", rest),
        };
        // A time stamp may follow the value.
        let value: f64 = rest.split_ascii_whitespace().next()?.parse().ok()?;
        value.is_finite().then_some(Self { name, labels, value })
    }

    /// The raw text of a label; escapes stay as they are, for the labels read here are plain words and numbers.
    fn label(&self, wanted: &str) -> Option<&'a str> {
        let mut rest = self.labels;
        loop {
            let (key, after) = rest.split_once("=\"")?;
            let end = quoted_end(after)?;
            if key.trim_matches([',', ' ']) == wanted {
                return after.get(..end);
            }
            rest = after.get(end + 1..)?;
        }
    }

    fn rank(&self, label: &str) -> u32 {
        self.label(label).and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// A count as the engines write it (`3.0`).
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "finite, clamped at zero; as saturates above"
    )]
    const fn count(&self) -> u64 {
        self.value.max(0.0) as u64
    }
}

/// Index of the quote that ends a label value.
fn quoted_end(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|b| match b {
        _ if escaped => {
            escaped = false;
            false
        }
        b'\\' => {
            escaped = true;
            false
        }
        b => b == b'"',
    })
}

/// Index of the brace that ends the labels.
fn labels_end(text: &str) -> Option<usize> {
    let mut at = 0;
    loop {
        let rest = text.get(at..)?;
        let stop = rest.find(['"', '}'])?;
        if rest.as_bytes().get(stop) == Some(&b'}') {
            return Some(at + stop);
        }
        at += stop + 1;
        at += quoted_end(text.get(at..)?)? + 1;
    }
}

fn samples<'a>(text: &'a str, prefix: &'a str) -> impl Iterator<Item = Sample<'a>> {
    text.lines().filter(move |line| line.starts_with(prefix)).filter_map(Sample::parse)
}

/// What one rank said, before it is known whether it said enough.
#[derive(Default)]
struct Gathered {
    running: Option<u64>,
    waiting: Option<u64>,
    usage: Option<f64>,
    capacity: Option<u64>,
}

impl Gathered {
    fn status(&self) -> WorkerStatus {
        let load = self.running.map(|running| LoadReport {
            running,
            waiting: self.waiting.unwrap_or(0),
            kv_usage: self.usage.map(|u| u.clamp(0.0, 1.0)),
            kv_capacity_tokens: self.capacity,
        });
        WorkerStatus { kv_capacity_tokens: self.capacity, load }
    }
}

#[derive(Default)]
struct Ranks(BTreeMap<u32, Gathered>);

impl Ranks {
    fn get(&mut self, rank: u32) -> Option<&mut Gathered> {
        if self.0.len() >= RANKS_MAX && !self.0.contains_key(&rank) {
            return None;
        }
        Some(self.0.entry(rank).or_default())
    }

    fn statuses(&self) -> BTreeMap<u32, WorkerStatus> {
        self.0.iter().map(|(rank, g)| (*rank, g.status())).collect()
    }
}

/// vLLM. Empty when the text is not vLLM's.
pub(crate) fn vllm(text: &str) -> BTreeMap<u32, WorkerStatus> {
    let mut ranks = Ranks::default();
    for sample in samples(text, "vllm:") {
        let Some(g) = ranks_of(&mut ranks, &sample) else { continue };
        match sample.name {
            "vllm:num_requests_running" => g.running = Some(g.running.unwrap_or(0) + sample.count()),
            "vllm:num_requests_waiting" => g.waiting = Some(g.waiting.unwrap_or(0) + sample.count()),
            // The second is the name in releases before 0.10.
            "vllm:kv_cache_usage_perc" | "vllm:gpu_cache_usage_perc" => {
                g.usage = Some(g.usage.unwrap_or(0.0).max(sample.value));
            }
            "vllm:cache_config_info" => g.capacity = vllm_capacity(&sample).or(g.capacity),
            _ => {}
        }
    }
    ranks.statuses()
}

/// Only samples that are read make a rank: an odd label of another metric must not invent one.
fn ranks_of<'r>(ranks: &'r mut Ranks, sample: &Sample<'_>) -> Option<&'r mut Gathered> {
    matches!(
        sample.name,
        "vllm:num_requests_running"
            | "vllm:num_requests_waiting"
            | "vllm:kv_cache_usage_perc"
            | "vllm:gpu_cache_usage_perc"
            | "vllm:cache_config_info"
    )
    .then(|| ranks.get(sample.rank("engine")))
    .flatten()
}

/// `kv_cache_size_tokens` knows about models with several kinds of attention; blocks times block size does not.
fn vllm_capacity(info: &Sample<'_>) -> Option<u64> {
    let number = |label| info.label(label).and_then(|text| text.parse::<u64>().ok()).filter(|n| *n > 0);
    number("kv_cache_size_tokens").or_else(|| number("num_gpu_blocks")?.checked_mul(number("block_size")?))
}

/// Whether vLLM says that some engine of this server sleeps. Only an explicit word counts: not awake, and at one
/// of the two levels of sleep.
pub(crate) fn vllm_sleeps(text: &str) -> bool {
    let mut awake = true;
    let mut level = false;
    for sample in samples(text, "vllm:engine_sleep_state{") {
        match sample.label("sleep_state") {
            Some("awake") => awake &= sample.value > 0.0,
            Some("weights_offloaded" | "discard_all") => level |= sample.value > 0.0,
            _ => {}
        }
    }
    !awake && level
}

/// SGLang. Empty when the text is not SGLang's.
pub(crate) fn sglang(text: &str) -> BTreeMap<u32, WorkerStatus> {
    let mut ranks = Ranks::default();
    for sample in samples(text, "sglang:") {
        let known = matches!(
            sample.name,
            "sglang:num_running_reqs"
                | "sglang:num_queue_reqs"
                | "sglang:token_usage"
                | "sglang:max_total_num_tokens"
        );
        let Some(g) = known.then(|| ranks.get(sample.rank("dp_rank"))).flatten() else { continue };
        let most = |old: Option<u64>| Some(old.unwrap_or(0).max(sample.count()));
        match sample.name {
            "sglang:num_running_reqs" => g.running = most(g.running),
            "sglang:num_queue_reqs" => g.waiting = most(g.waiting),
            "sglang:token_usage" => g.usage = Some(g.usage.unwrap_or(0.0).max(sample.value)),
            _ => g.capacity = most(g.capacity).filter(|n| *n > 0),
        }
    }
    ranks.statuses()
}

/// llama.cpp, which has no ranks and does not tell its pool. Empty when the text is not llama.cpp's.
pub(crate) fn llamacpp(text: &str) -> BTreeMap<u32, WorkerStatus> {
    let mut g = Gathered::default();
    for sample in samples(text, "llamacpp:") {
        match sample.name {
            "llamacpp:requests_processing" => g.running = Some(sample.count()),
            "llamacpp:requests_deferred" => g.waiting = Some(sample.count()),
            _ => {}
        }
    }
    if g.running.is_some() { BTreeMap::from([(0, g.status())]) } else { BTreeMap::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(running: u64, waiting: u64, kv_usage: Option<f64>, capacity: Option<u64>) -> WorkerStatus {
        let load = LoadReport { running, waiting, kv_usage, kv_capacity_tokens: capacity };
        WorkerStatus { kv_capacity_tokens: capacity, load: Some(load) }
    }

    #[test]
    fn vllm_as_0_32_writes_it() {
        let text = include_str!("../tests/fixtures/vllm-0.32.0-metrics.txt");
        assert_eq!(vllm(text), BTreeMap::from([(0, load(0, 0, Some(0.0), Some(2_097_152)))]));
    }

    #[test]
    fn sglang_as_0_5_23_writes_it() {
        let text = include_str!("../tests/fixtures/sglang-0.5.23-metrics.txt");
        assert_eq!(sglang(text), BTreeMap::from([(0, load(0, 0, Some(0.0), Some(8192)))]));
    }

    #[test]
    fn llamacpp_as_its_server_writes_it() {
        let text = include_str!("../tests/fixtures/llamacpp-metrics.txt");
        assert_eq!(llamacpp(text), BTreeMap::from([(0, load(0, 0, None, None))]));
    }

    // I-EMT-1.
    #[test]
    fn each_vllm_engine_is_a_rank() {
        let text = "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3.0\n\
            vllm:num_requests_running{engine=\"1\",model_name=\"m\"} 5.0\n\
            vllm:num_requests_running_created{engine=\"7\",model_name=\"m\"} 1.7e9\n\
            vllm:num_requests_waiting{engine=\"1\",model_name=\"m\"} 2.0 1700000000000\n\
            vllm:kv_cache_usage_perc{engine=\"1\",model_name=\"m\"} 0.25\n\
            vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m\"} NaN\n\
            vllm:cache_config_info{block_size=\"16\",engine=\"1\",note=\"a } \\\" b\",num_gpu_blocks=\"100\"} 1.0\n";
        assert_eq!(
            vllm(text),
            BTreeMap::from([(0, load(3, 0, None, None)), (1, load(5, 2, Some(0.25), Some(1600)))])
        );
    }

    #[test]
    fn vllm_capacity_prefers_what_the_engine_counted() {
        let capacity = |labels: &str| {
            let line = format!("vllm:cache_config_info{{{labels}}} 1.0");
            vllm(&line).get(&0).and_then(|w| w.kv_capacity_tokens)
        };
        assert_eq!(
            capacity("block_size=\"16\",kv_cache_size_tokens=\"999\",num_gpu_blocks=\"100\""),
            Some(999)
        );
        assert_eq!(
            capacity("block_size=\"16\",kv_cache_size_tokens=\"None\",num_gpu_blocks=\"100\""),
            Some(1600)
        );
        assert_eq!(capacity("block_size=\"16\",num_gpu_blocks=\"None\""), None);
        assert_eq!(capacity(&format!("block_size=\"16\",num_gpu_blocks=\"{}\"", u64::MAX)), None);
    }

    #[test]
    fn sglang_ranks_are_not_counted_once_per_tensor_rank() {
        let text = "sglang:num_running_reqs{dp_rank=\"0\",tp_rank=\"0\"} 4\n\
            sglang:num_running_reqs{dp_rank=\"0\",tp_rank=\"1\"} 4\n\
            sglang:num_running_reqs{dp_rank=\"1\",tp_rank=\"2\"} 6\n\
            sglang:token_usage{dp_rank=\"1\",tp_rank=\"2\"} 1.5\n";
        assert_eq!(
            sglang(text),
            BTreeMap::from([(0, load(4, 0, None, None)), (1, load(6, 0, Some(1.0), None))])
        );
    }

    // I-EMT-2.
    #[test]
    fn nonsense_is_skipped() {
        for text in [
            "",
            "vllm:num_requests_running",
            "vllm:num_requests_running{engine=\"0\" 3",
            "vllm:num_requests_running{engine=\"0} 3",
            "vllm:num_requests_running{engine=\"0\"}",
            "vllm:num_requests_running{engine=\"0\"} many",
            "<html>vllm:num_requests_running 3</html>",
        ] {
            assert_eq!(vllm(text), BTreeMap::new(), "{text:?}");
        }
        // A negative gauge is a bug of the engine's, not a huge load.
        assert_eq!(vllm("vllm:num_requests_running -1"), BTreeMap::from([(0, load(0, 0, None, None))]));
    }

    // I-EMT-3.
    #[test]
    fn ranks_are_bounded() {
        let text: String =
            (0..2 * RANKS_MAX).map(|n| format!("vllm:num_requests_running{{engine=\"{n}\"}} 1\n")).collect();
        assert_eq!(vllm(&text).len(), RANKS_MAX);
    }
}
