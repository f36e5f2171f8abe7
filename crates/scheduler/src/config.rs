//! What can be set, with the reasons for the defaults.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tandem_admission::{AdmissionConfig, AdmissionError};
use tandem_routing::{KvConfig, KvConfigError, UnknownPolicy};

/// Settings of the scheduler. `Default` is what a fresh installation runs with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SchedulerConfig {
    /// Routing policy by name ([`tandem_routing::POLICIES`]).
    pub policy: String,
    /// Weights of the policy `kv`.
    pub kv: KvConfig,
    /// Which turns may run, so that their working sets fit.
    pub admission: AdmissionConfig,
    /// Most turns held at once, over all models. A held turn costs its request body, up to some hundred KiB, so
    /// 4096 bounds that memory to about 2 GiB in the worst case.
    pub queue_max: usize,
    /// Most programs remembered. At about 1 KiB each, 200,000 stay within 200 MiB.
    pub programs_max: usize,
    /// A program without a live turn is forgotten after this long. No harness sends an end, and 2 h covers a
    /// person's lunch.
    pub program_idle_ttl: Duration,
    /// Most dispatches of one turn, the first included; at least 1.
    pub attempts_max: u32,
    /// Backoff before the second dispatch; doubles each time. The real wait is drawn from its upper half.
    pub backoff_first: Duration,
    /// Bound of the backoff.
    pub backoff_max: Duration,
    /// How long turns for models that nobody serves wait for engines that never reported yet. Loading a large
    /// model takes minutes.
    pub startup_grace: Duration,
    /// A worker's report of its load is believed for this long: a worker whose reports stop while it is ready would
    /// else be shunned for ever because of requests that are long over. Reports come every few seconds.
    pub load_report_ttl: Duration,
    /// Circuit breaker.
    pub breaker: BreakerConfig,
    /// Models whose prompts and answers have workers of their own.
    pub pd: PdConfig,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            policy: tandem_routing::DEFAULT_POLICY.to_owned(),
            kv: KvConfig::default(),
            admission: AdmissionConfig::default(),
            queue_max: 4096,
            programs_max: 200_000,
            program_idle_ttl: Duration::from_secs(2 * 60 * 60),
            attempts_max: 3,
            backoff_first: Duration::from_millis(50),
            backoff_max: Duration::from_secs(2),
            startup_grace: Duration::from_secs(10 * 60),
            load_report_ttl: Duration::from_secs(30),
            breaker: BreakerConfig::default(),
            pd: PdConfig::default(),
        }
    }
}

/// Settings for models whose prompts and answers have workers of their own ([`crate::pair`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PdConfig {
    /// When a worker for answers computes a prompt itself.
    pub local_prefill: LocalPrefill,
    /// What serves a turn when no pair can.
    pub fallback: PdFallback,
}

/// When a worker for answers computes a prompt itself: when this many tokens at most are missing there, those that
/// are queued there already counted in. Only for engines that can (vLLM).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LocalPrefill {
    /// Never.
    Off,
    /// At [`LocalPrefill::AUTO_TOKENS`].
    #[default]
    Auto,
    /// At this many tokens.
    Tokens(u64),
}

impl LocalPrefill {
    /// About what an engine computes in one step beside the answers that it writes, so that they hardly slow down; a
    /// trip to another worker takes at least such a step there and the transfer.
    pub const AUTO_TOKENS: u64 = 1024;

    /// The number of tokens.
    #[must_use]
    pub const fn tokens(self) -> u64 {
        match self {
            Self::Off => 0,
            Self::Auto => Self::AUTO_TOKENS,
            Self::Tokens(tokens) => tokens,
        }
    }
}

/// What serves a turn when no pair can.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PdFallback {
    /// Nothing: it waits.
    Hold,
    /// A worker that does both, where there is one.
    #[default]
    Aggregated,
    /// The same; and, while no worker for prompts is ready, a worker for answers, where its engine can (vLLM).
    Alone,
}

/// Settings of the circuit breaker ([`crate::breaker`]).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BreakerConfig {
    /// Failures in a row that open it; 0 switches breakers off.
    pub failures_to_open: u32,
    /// How long it stays open at first; doubles each time that the probe fails.
    pub open_first: Duration,
    /// Bound of that time.
    pub open_max: Duration,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self { failures_to_open: 5, open_first: Duration::from_secs(5), open_max: Duration::from_secs(60) }
    }
}

/// Why a configuration is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The policy does not exist.
    #[error(transparent)]
    Policy(#[from] UnknownPolicy),
    /// A weight of the policy `kv` makes no sense.
    #[error("kv: {0}")]
    Kv(#[from] KvConfigError),
    /// Admission's settings make no sense, or its policy does not exist.
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    /// A number that must not be zero is.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
}

impl SchedulerConfig {
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if self.attempts_max == 0 {
            return Err(ConfigError::Zero("attempts_max"));
        }
        if self.programs_max == 0 {
            return Err(ConfigError::Zero("programs_max"));
        }
        Ok(self.kv.check()?)
    }
}
