//! What is simulated.

use std::time::Duration;

use tandem_engine_model::EngineConfig;
use tandem_scheduler::SchedulerConfig;

/// When sessions begin.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrivals {
    /// As recorded, so many times faster.
    Recorded {
        /// 1 = as recorded.
        speedup: f64,
    },
    /// That many lanes, each of which runs one play after the other, without a pause between them. When the
    /// workload has no more, its plays come again, under other names and with blocks of their own.
    Lanes {
        /// How many.
        lanes: u32,
    },
}

/// In which order lanes take plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PlayOrder {
    /// By the seed, anew for each round.
    #[default]
    Shuffled,
    /// That of the workload.
    Recorded,
}

/// One point of a simulation.
#[derive(Debug, Clone, PartialEq)]
pub struct SimConfig {
    /// Each worker's engine.
    pub engine: EngineConfig,
    /// How many workers, at least 1.
    pub workers: u32,
    /// So many of them only compute prompts, and the others only answer; 0 = each does both.
    pub prefill_workers: u32,
    /// How fast a prompt's KV goes from the one to the other, GB/s for the bytes that
    /// [`TiersConfig::token_bytes`](tandem_engine_model::TiersConfig) counts; above 0, infinite = at once.
    pub handover_gb_s: f64,
    /// A store that all workers share, in tokens; 0 = none. Each worker's link to it is
    /// [`TiersConfig::shared`](tandem_engine_model::TiersConfig).
    pub shared_tokens: u64,
    /// How fast all workers together read from it, GB/s; above 0, infinite = no bound.
    pub shared_gb_s: f64,
    /// The scheduler, with its policy.
    pub scheduler: SchedulerConfig,
    /// When sessions begin.
    pub arrivals: Arrivals,
    /// In which order lanes take plays.
    pub order: PlayOrder,
    /// Seed of the scheduler's ties and of the order of plays.
    pub seed: u64,
    /// Time before measuring begins.
    pub warmup: Duration,
    /// How long is measured; `None` = until every play has ended once.
    pub duration: Option<Duration>,
    /// Most time that passes while nothing runs, is held or may run: the rest of such a pause is skipped, for all
    /// alike.
    pub idle_cap: Option<Duration>,
    /// How long a client can be kept waiting.
    pub hold_max: Duration,
    /// How long it takes until the scheduler knows of what a pass changed in an engine's cache; 0 = it knows at once.
    pub event_delay: Duration,
    /// Probability that it never gets to know of that; from 0 to 1.
    pub event_loss: f64,
    /// How long a prompt that was sent to a worker counts as cached there at most, until it is computed; 0 = it does not.
    pub predict: Duration,
    /// How often it is looked up anew what is cached of a prompt that waits for a worker; 0 = never.
    pub relook: Duration,
    /// Whether clients say that a session has ended.
    pub announce_end: bool,
    /// Whether what a model wrote comes back as other tokens, so that its KV is never found again: a chat template may
    /// leave out what a model thought, or put it in other words.
    pub fresh_answers: bool,
    /// Whether engines evict first what the scheduler calls not worth keeping. Released ones cannot.
    pub demote: bool,
    /// A session fares well if no time to a first token of its is above this.
    pub slo_ttft: Duration,
    /// Whether to work out what a cache that knows the future would have found
    /// ([`Report::belady_reused_ratio`](crate::Report)); it takes time and memory in proportion to the blocks of all
    /// prompts.
    pub belady: bool,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            engine: EngineConfig::default(),
            workers: 1,
            prefill_workers: 0,
            handover_gb_s: f64::INFINITY,
            shared_tokens: 0,
            shared_gb_s: f64::INFINITY,
            scheduler: SchedulerConfig::default(),
            arrivals: Arrivals::Recorded { speedup: 1.0 },
            order: PlayOrder::Shuffled,
            seed: 1,
            warmup: Duration::ZERO,
            duration: None,
            idle_cap: None,
            // Longer than any policy's own time-out (1,800 s), or turns would be refused just before it acts.
            hold_max: Duration::from_secs(1_900),
            event_delay: Duration::ZERO,
            event_loss: 0.0,
            predict: Duration::from_secs(10),
            relook: Duration::from_millis(250),
            announce_end: true,
            fresh_answers: false,
            demote: false,
            slo_ttft: Duration::from_secs(30),
            belady: false,
        }
    }
}

/// Why nothing can be simulated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// No workers or no lanes.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// The speed-up of arrivals makes no sense.
    #[error("the speed-up of arrivals must be finite and above 0")]
    Speedup,
    /// No probability.
    #[error("the part of events that is lost must be from 0 to 1")]
    Loss,
    /// A link carries nothing.
    #[error("{0} must be above 0 GB/s")]
    Link(&'static str),
    /// Prompts have workers of their own and answers have none.
    #[error("of {workers} workers {prefill} only compute prompts: at least one must be left to answer")]
    NobodyAnswers {
        /// Workers in all.
        workers: u32,
        /// Of these, those that compute prompts.
        prefill: u32,
    },
    /// The workload has no requests.
    #[error("the workload is empty")]
    Empty,
    /// The engines' settings.
    #[error("{0}")]
    Engine(#[from] tandem_engine_model::ConfigError),
    /// The scheduler's settings.
    #[error(transparent)]
    Scheduler(#[from] tandem_scheduler::ConfigError),
}

impl SimConfig {
    pub(crate) fn check(&self) -> Result<(), SimError> {
        if self.workers == 0 {
            return Err(SimError::Zero("workers"));
        }
        if self.prefill_workers >= self.workers {
            return Err(SimError::NobodyAnswers { workers: self.workers, prefill: self.prefill_workers });
        }
        for (name, gb_s) in [
            ("the link between prefill and decode", self.handover_gb_s),
            ("the shared store", self.shared_gb_s),
        ] {
            if gb_s.is_nan() || gb_s <= 0.0 {
                return Err(SimError::Link(name));
            }
        }
        if !(0.0..=1.0).contains(&self.event_loss) {
            return Err(SimError::Loss);
        }
        match self.arrivals {
            Arrivals::Lanes { lanes: 0 } => Err(SimError::Zero("lanes")),
            Arrivals::Recorded { speedup } if !(speedup.is_finite() && speedup > 0.0) => {
                Err(SimError::Speedup)
            }
            _ => Ok(()),
        }
    }
}
