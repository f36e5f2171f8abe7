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

/// One point of a simulation.
#[derive(Debug, Clone, PartialEq)]
pub struct SimConfig {
    /// Each worker's engine.
    pub engine: EngineConfig,
    /// How many workers, at least 1.
    pub workers: u32,
    /// The scheduler, with its policy.
    pub scheduler: SchedulerConfig,
    /// When sessions begin.
    pub arrivals: Arrivals,
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
    /// Whether clients say that a session has ended.
    pub announce_end: bool,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            engine: EngineConfig::default(),
            workers: 1,
            scheduler: SchedulerConfig::default(),
            arrivals: Arrivals::Recorded { speedup: 1.0 },
            seed: 1,
            warmup: Duration::ZERO,
            duration: None,
            idle_cap: None,
            hold_max: Duration::from_secs(1_800),
            announce_end: true,
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
    /// The workload has no requests.
    #[error("the workload is empty")]
    Empty,
    /// Lanes without a duration would run for ever on a workload that comes again.
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
        match self.arrivals {
            Arrivals::Lanes { lanes: 0 } => Err(SimError::Zero("lanes")),
            Arrivals::Recorded { speedup } if !(speedup.is_finite() && speedup > 0.0) => {
                Err(SimError::Speedup)
            }
            _ => Ok(()),
        }
    }
}
