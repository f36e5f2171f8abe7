//! What the engine's `/metrics` report beyond the model's own counters: histograms and outcomes per rank.

use std::time::Duration;

use tandem_engine_model::{Admission, Pass};
use tandem_types::Time;

use crate::config::MockKind;

/// Prometheus histogram with fixed buckets; counts per bucket are not cumulative.
#[derive(Debug, Clone)]
pub(crate) struct Histogram {
    pub(crate) bounds: &'static [f64],
    pub(crate) counts: Vec<u64>,
    pub(crate) sum: f64,
    pub(crate) count: u64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len()], sum: 0.0, count: 0 }
    }

    fn observe(&mut self, value: f64) {
        if let Some(count) = self.bounds.iter().position(|b| value <= *b).and_then(|i| self.counts.get_mut(i))
        {
            *count += 1;
        }
        self.sum += value;
        self.count += 1;
    }
}

/// Bucket bounds of vLLM 0.32.
const TTFT: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
const ITL: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
const LATENCY: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
];
const TOKENS: &[f64] = &[
    1.0,
    2.0,
    5.0,
    10.0,
    20.0,
    50.0,
    100.0,
    200.0,
    500.0,
    1000.0,
    2000.0,
    5000.0,
    10000.0,
    20000.0,
    50000.0,
    100_000.0,
    200_000.0,
    500_000.0,
    1_000_000.0,
    2_000_000.0,
    5_000_000.0,
];
const ITERATION: &[f64] =
    &[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];
const CHOICES: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];
const PREEMPTIONS: &[f64] = &[1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0];

/// Bucket bounds of SGLang 0.5.23.
const SGLANG_TTFT: &[f64] =
    &[0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0];
const SGLANG_E2E: &[f64] = &[
    0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0,
    600.0, 1200.0, 1800.0, 2400.0,
];
const SGLANG_PER_TOKEN: &[f64] = &[
    0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6,
    0.8, 1.0, 2.0, 4.0, 6.0, 8.0,
];
const SGLANG_QUEUE: &[f64] = &[
    0.0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0,
    50.0, 60.0, 70.0, 80.0, 90.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0, 800.0, 900.0, 1000.0,
    1200.0, 1400.0, 1600.0, 1800.0, 2000.0, 2500.0, 3000.0,
];
const SGLANG_TOKENS: &[f64] = &[
    100.0,
    300.0,
    500.0,
    700.0,
    1000.0,
    1500.0,
    2000.0,
    3000.0,
    4000.0,
    5000.0,
    6000.0,
    7000.0,
    8000.0,
    9000.0,
    10000.0,
    12500.0,
    15000.0,
    17500.0,
    20000.0,
    22500.0,
    25000.0,
    27500.0,
    30000.0,
    35000.0,
    40000.0,
    60000.0,
    80000.0,
    100_000.0,
    200_000.0,
    300_000.0,
    400_000.0,
    600_000.0,
    800_000.0,
    1_000_000.0,
    1_100_000.0,
];

/// The life of one sequence so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Life {
    arrived: Time,
    admitted: Option<Time>,
    first_token: Option<Time>,
    last_token: Option<Time>,
    tokens: u32,
    prompt: u32,
    cached: u32,
    max_tokens: u32,
    n: u32,
    pub(crate) preemptions: u32,
}

impl Life {
    pub(crate) const fn new(arrived: Time, prompt: u32, max_tokens: u32, n: u32) -> Self {
        Self {
            arrived,
            admitted: None,
            first_token: None,
            last_token: None,
            tokens: 0,
            prompt,
            cached: 0,
            max_tokens,
            n,
            preemptions: 0,
        }
    }
}

/// One rank's observations.
#[derive(Debug, Clone)]
pub(crate) struct RankObserved {
    pub(crate) ttft: Histogram,
    pub(crate) itl: Histogram,
    pub(crate) per_token: Histogram,
    pub(crate) e2e: Histogram,
    pub(crate) queue: Histogram,
    pub(crate) inference: Histogram,
    pub(crate) prefill: Histogram,
    pub(crate) decode: Histogram,
    pub(crate) prompt: Histogram,
    pub(crate) generation: Histogram,
    pub(crate) iteration: Histogram,
    pub(crate) choices: Histogram,
    pub(crate) max_tokens: Histogram,
    pub(crate) preemptions: Histogram,
    pub(crate) computed: Histogram,
    pub(crate) stop: u64,
    pub(crate) length: u64,
    pub(crate) abort: u64,
    /// Prefill work, for SGLang's load report.
    pub(crate) prefill_busy: Duration,
    /// Generated tokens a second in the latest decoding pass.
    pub(crate) throughput: f64,
}

impl RankObserved {
    fn new(kind: MockKind, max_model_len: u32) -> Self {
        let vllm = Self::vllm(max_model_len);
        match kind {
            MockKind::Vllm => vllm,
            MockKind::Sglang => Self {
                ttft: Histogram::new(SGLANG_TTFT),
                per_token: Histogram::new(SGLANG_PER_TOKEN),
                e2e: Histogram::new(SGLANG_E2E),
                queue: Histogram::new(SGLANG_QUEUE),
                prompt: Histogram::new(SGLANG_TOKENS),
                generation: Histogram::new(SGLANG_TOKENS),
                computed: Histogram::new(SGLANG_TOKENS),
                ..vllm
            },
        }
    }

    /// vLLM's token buckets end where the context does.
    fn vllm(max_model_len: u32) -> Self {
        let within = TOKENS.iter().take_while(|bound| **bound <= f64::from(max_model_len)).count();
        let tokens = TOKENS.get(..within).unwrap_or(TOKENS);
        Self {
            ttft: Histogram::new(TTFT),
            itl: Histogram::new(ITL),
            per_token: Histogram::new(ITL),
            e2e: Histogram::new(LATENCY),
            queue: Histogram::new(LATENCY),
            inference: Histogram::new(LATENCY),
            prefill: Histogram::new(LATENCY),
            decode: Histogram::new(LATENCY),
            prompt: Histogram::new(tokens),
            generation: Histogram::new(tokens),
            iteration: Histogram::new(ITERATION),
            choices: Histogram::new(CHOICES),
            max_tokens: Histogram::new(tokens),
            preemptions: Histogram::new(PREEMPTIONS),
            computed: Histogram::new(tokens),
            stop: 0,
            length: 0,
            abort: 0,
            prefill_busy: Duration::ZERO,
            throughput: 0.0,
        }
    }
}

/// All ranks' observations.
#[derive(Debug)]
pub(crate) struct Observed {
    pub(crate) ranks: Vec<RankObserved>,
}

impl Observed {
    pub(crate) fn new(ranks: usize, kind: MockKind, max_model_len: u32) -> Self {
        Self { ranks: (0..ranks).map(|_| RankObserved::new(kind, max_model_len)).collect() }
    }

    pub(crate) fn pass(&mut self, rank: usize, pass: &Pass) {
        let Some(o) = self.ranks.get_mut(rank) else { return };
        let took = pass.ends_at.since(pass.starts_at);
        o.iteration.observe(f64::from(pass.prefill_tokens) + f64::from(pass.decode_requests));
        if pass.prefill_tokens > 0 {
            o.prefill_busy += took;
        }
        if took > Duration::ZERO {
            o.throughput = f64::from(pass.decode_requests) / took.as_secs_f64();
        }
    }

    pub(crate) fn admitted(&mut self, rank: usize, life: &mut Life, admission: &Admission, at: Time) {
        let Some(o) = self.ranks.get_mut(rank) else { return };
        if life.admitted.is_none() {
            life.admitted = Some(at);
            life.cached = admission.cached_tokens;
            o.queue.observe(at.since(life.arrived).as_secs_f64());
        }
    }

    pub(crate) fn token(&mut self, rank: usize, life: &mut Life, at: Time) {
        let Some(o) = self.ranks.get_mut(rank) else { return };
        match life.last_token {
            None => {
                life.first_token = Some(at);
                o.ttft.observe(at.since(life.arrived).as_secs_f64());
            }
            Some(last) => o.itl.observe(at.since(last).as_secs_f64()),
        }
        life.last_token = Some(at);
        life.tokens = life.tokens.saturating_add(1);
    }

    pub(crate) fn finished(&mut self, rank: usize, life: &Life, by_length: bool, at: Time) {
        let Some(o) = self.ranks.get_mut(rank) else { return };
        let admitted = life.admitted.unwrap_or(life.arrived);
        let first = life.first_token.unwrap_or(at);
        let decode = at.since(first).as_secs_f64();
        o.e2e.observe(at.since(life.arrived).as_secs_f64());
        o.inference.observe(at.since(admitted).as_secs_f64());
        o.prefill.observe(first.since(admitted).as_secs_f64());
        o.decode.observe(decode);
        o.per_token.observe(if life.tokens > 1 { decode / f64::from(life.tokens - 1) } else { 0.0 });
        o.prompt.observe(life.prompt.into());
        o.generation.observe(life.tokens.into());
        o.choices.observe(life.n.into());
        o.max_tokens.observe(life.max_tokens.into());
        o.preemptions.observe(life.preemptions.into());
        o.computed.observe(life.prompt.saturating_sub(life.cached).into());
        if by_length {
            o.length += 1;
        } else {
            o.stop += 1;
        }
    }

    pub(crate) fn aborted(&mut self, rank: usize) {
        if let Some(o) = self.ranks.get_mut(rank) {
            o.abort += 1;
        }
    }
}
