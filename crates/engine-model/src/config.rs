//! How a modelled engine is set up, and what makes a set-up unusable.

use serde::{Deserialize, Serialize};

use crate::tiers::TiersConfig;
use crate::timing::{TimingError, TimingModel};

/// Whose batching and cache rules the engine follows. The crate's documentation lists the differences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Flavor {
    /// vLLM: prefill chunks and decodes mixed in one pass, blocks cached as they are filled.
    #[default]
    Vllm,
    /// SGLang: prefill passes go before decode passes, generated pages cached when the request ends.
    Sglang,
}

/// In which order waiting requests are admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SchedulingPolicy {
    /// By arrival; priorities are ignored.
    #[default]
    Fcfs,
    /// By [`Request::priority`](crate::Request::priority) (lower first), then arrival.
    Priority,
}

/// Which running request gives up its blocks when the pool is short. Under
/// [`SchedulingPolicy::Priority`] the least urgent goes first and this decides among equals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PreemptionOrder {
    /// The one admitted last.
    #[default]
    Lifo,
    /// The one admitted first.
    Fifo,
}

/// Set-up of one modelled engine rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EngineConfig {
    /// Batching and cache rules.
    pub flavor: Flavor,
    /// Tokens in a KV block (SGLang: page), at least 1.
    pub block_size: u32,
    /// KV blocks in the pool, all usable, at least 1.
    pub pool_blocks: u32,
    /// Most requests in the running batch, at least 1.
    pub max_num_seqs: u32,
    /// Most tokens computed in one pass, at least 1. vLLM: prefill and decode together
    /// (`max_num_batched_tokens`). SGLang: prefill only (the smaller of `chunked_prefill_size` and
    /// `max_prefill_tokens`).
    pub max_num_batched_tokens: u32,
    /// Most tokens of prompt and answer together; `None` = only the pool bounds them.
    pub max_model_len: Option<u32>,
    /// Whether full blocks are kept for reuse by later requests.
    pub prefix_caching: bool,
    /// vLLM only: whether a prompt may be computed over several passes. Without it a request whose prompt
    /// and answer exceed `max_num_batched_tokens` (it might have to be recomputed whole) is refused.
    pub chunked_prefill: bool,
    /// Order of admission.
    pub policy: SchedulingPolicy,
    /// Order of preemption.
    pub preemption: PreemptionOrder,
    /// vLLM only: admit a request only when its whole prompt fits in the free blocks, not just its
    /// first chunk (`scheduler_reserve_full_isl`).
    pub reserve_full_prompt: bool,
    /// How long a pass takes.
    pub timing: TimingModel,
    /// Pass times are divided by this; finite and above 0.
    pub speedup: f64,
    /// Whether passes carry KV events.
    pub emit_events: bool,
    /// Cache tiers below the device.
    pub tiers: TiersConfig,
}

impl Default for EngineConfig {
    /// vLLM's scheduling defaults with a pool of 16,384 blocks of 64 tokens and the polynomial timing.
    fn default() -> Self {
        Self {
            flavor: Flavor::Vllm,
            block_size: 64,
            pool_blocks: 16_384,
            max_num_seqs: 256,
            max_num_batched_tokens: 8_192,
            max_model_len: None,
            prefix_caching: true,
            chunked_prefill: true,
            policy: SchedulingPolicy::Fcfs,
            preemption: PreemptionOrder::Lifo,
            reserve_full_prompt: true,
            timing: TimingModel::Polynomial,
            speedup: 1.0,
            emit_events: false,
            tiers: TiersConfig::default(),
        }
    }
}

/// Why a set-up is unusable.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// A size that must be at least 1 is 0.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// The speed-up is not a finite number above 0.
    #[error("speedup must be finite and above 0, not {0}")]
    Speedup(f64),
    /// Pool size in tokens above 2^32 - 1.
    #[error("pool of {pool_blocks} blocks of {block_size} tokens exceeds 4294967295 tokens")]
    PoolTooLarge {
        /// Blocks asked for.
        pool_blocks: u32,
        /// Tokens in each.
        block_size: u32,
    },
    /// A tier's bandwidth is not above 0.
    #[error("bandwidth must be above 0 GB/s, not {0}")]
    Bandwidth(f64),
    /// The timing model is unusable.
    #[error(transparent)]
    Timing(#[from] TimingError),
}

impl EngineConfig {
    /// Checks the set-up.
    ///
    /// # Errors
    /// [`ConfigError`] names the first setting that is out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        for (name, value) in [
            ("block_size", self.block_size),
            ("pool_blocks", self.pool_blocks),
            ("max_num_seqs", self.max_num_seqs),
            ("max_num_batched_tokens", self.max_num_batched_tokens),
            ("max_model_len", self.max_model_len.unwrap_or(1)),
        ] {
            if value == 0 {
                return Err(ConfigError::Zero(name));
            }
        }
        if !(self.speedup.is_finite() && self.speedup > 0.0) {
            return Err(ConfigError::Speedup(self.speedup));
        }
        if self.pool_blocks.checked_mul(self.block_size).is_none() {
            return Err(ConfigError::PoolTooLarge {
                pool_blocks: self.pool_blocks,
                block_size: self.block_size,
            });
        }
        self.tiers.validate()?;
        Ok(self.timing.validate()?)
    }

    /// The pool in tokens.
    #[must_use]
    pub const fn pool_tokens(&self) -> u32 {
        self.pool_blocks.saturating_mul(self.block_size)
    }
}
