//! Named set-ups of known deployments.
//!
//! - Purpose: let users say `minimax-m2.5-h100-tp4` instead of five coefficients, a pool and limits.
//! - Input: a name. Output: an [`EngineConfig`].
//! - Invariants: I-PRO-1 every listed profile passes [`EngineConfig::validate`]; I-PRO-2 where a table of
//!   its deployment is published, the profile's times stay within 9 % of it.
//! - Deliberately absent: model weights, tokenizers, anything that is not batching, pool or time.
//! - Sources: times are fitted to the operator tables of aisimulate 0.13 (vLLM 0.24 data), pools are what
//!   its `estimate_kv_cache` gives under vLLM's memory rules. `k` of the decode formula is
//!   `KV bytes per token and GPU / (eta * HBM bandwidth)`, eta 0.86 to 0.93. Four profiles are derived:
//!   - `qwen3-30b-a3b-fp8-h100-tp2`: the deployment of zetxqx/thunderagent-original-verification (vLLM 0.28, fp8
//!     weights and KV, 0.88 of memory, Triton instead of DeepGEMM kernels), whose pool it is. `b` and `c` are those of the
//!     H200 TP4 fit times 2, half the GPUs with the same dense peak: that fp8 saves time in prefill is not assumed, and
//!     the published ceiling of 22 to 23.5 K prefilled tokens a second and pod leaves no room for it. f(B) is that of the
//!     H200 TP4 fit with its weight-streaming term exchanged: 1.5 GB + 29 GB * (1 - (1 - 8/128)^B) read by two GPUs at 0.8
//!     of 3.35 TB/s. k is fitted, not roofline: medians of 10, 15.5, 21 and 30 ms per token are published at 4, 8, 12 and
//!     16 sessions a pod, whose running requests fill 13, 24, 33 and 41 % of the pool; without the 12 to 23 % of the time
//!     that the published prefill takes by `b` and `c`, and without f, that is 1.1e-5 to 1.8e-5, in the mean 1.4e-5 (eta
//!     0.52: two KV heads a GPU).
//!   - `qwen3-30b-a3b-h100-tp1`: prefill fitted here to the published cold-prefill column; decode by
//!     roofline, f(B) = f of the H200 TP4 fit with its weight-streaming term exchanged: 3 GB + 58 GB *
//!     (1 - (1 - 8/128)^B) read per step at 0.8 of 3.35 TB/s by one GPU instead of at 0.8 of 4.8 TB/s by
//!     four; k = 98,304 B / (0.88 * 3.35 TB/s).
//!   - `qwen3-30b-a3b-h20-tp4`: the H200 fit with `b` and `c` times 6.7, the ratio of the dense peaks (989
//!     against 148 bf16 TFLOPS); memory is the same, so decode is too. Batch limits are those of the
//!     published RL set-up (32,768 tokens per pass).
//!   - `glm-4.6-h100-tp8`: from the MiniMax-M2.5 fit, which exceeds its own weight roofline by 0.097 ms per
//!     layer. f(B) = 92 layers * 0.097 + (19 GB + 336 GB * (1 - (1 - 8/160)^B)) / 8 / (0.8 * 3.35 TB/s);
//!     a = 25.3 * 92/62; b = 0.01673 * (32/8) / (10/4), active parameters per GPU; c = 6.30e-7 *
//!     (12 * 92) / (12 * 62), query heads per GPU times layers; k = 23,552 B / (0.86 * 3.35 TB/s) with fp8 KV.

use crate::config::{EngineConfig, Flavor};
use crate::tiers::TiersConfig;
use crate::timing::{CompactModel, TimingModel};

/// A named deployment: model, GPU, parallelism.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    name: &'static str,
    summary: &'static str,
    /// KV pool in tokens.
    pool_tokens: u32,
    /// KV of a token on one GPU, in bytes: 2 * layers * max(1, KV heads / TP) * head size * bytes of a value.
    token_bytes: u64,
    /// Tokens per pass.
    budget: u32,
    max_model_len: u32,
    /// a, b, c of the compact model.
    prefill: [f64; 3],
    decode_base: &'static [(f64, f64)],
    /// k of the compact model.
    decode_context: f64,
}

/// No profile of that name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no profile named '{name}'; known: {}", Profile::names().join(", "))]
pub struct UnknownProfile {
    /// The name asked for.
    pub name: String,
}

/// Tokens in a block, vLLM's default.
const BLOCK_SIZE: u32 = 16;
/// Most running requests.
const MAX_NUM_SEQS: u32 = 256;

// The published single-request decode column spans 7.5 ms (1 K) to 9.0 ms (64 K), Qwen3's 4.7 to 5.6;
// their first points are set so that both ends stay within 9 %.
const MINIMAX_DECODE: &[(f64, f64)] = &[
    (1.0, 7.5),
    (2.0, 8.4),
    (4.0, 9.7),
    (8.0, 11.9),
    (16.0, 14.8),
    (32.0, 17.3),
    (64.0, 23.6),
    (128.0, 26.3),
    (256.0, 30.0),
];
const QWEN3_H200_DECODE: &[(f64, f64)] =
    &[(1.0, 4.8), (8.0, 5.9), (16.0, 6.5), (32.0, 7.9), (64.0, 8.1), (128.0, 9.8), (256.0, 10.9)];
const QWEN3_H100_DECODE: &[(f64, f64)] =
    &[(1.0, 6.8), (8.0, 14.0), (16.0, 18.9), (32.0, 24.4), (64.0, 26.6), (128.0, 28.6), (256.0, 29.7)];
const QWEN3_FP8_H100_DECODE: &[(f64, f64)] =
    &[(1.0, 5.0), (8.0, 6.6), (16.0, 7.6), (32.0, 9.4), (64.0, 9.8), (128.0, 11.5), (256.0, 12.6)];
const LLAMA_70B_DECODE: &[(f64, f64)] = &[(1.0, 15.0), (32.0, 15.0), (64.0, 17.0), (128.0, 20.0)];
const GLM_DECODE: &[(f64, f64)] = &[
    (1.0, 10.6),
    (2.0, 11.3),
    (4.0, 12.7),
    (8.0, 15.1),
    (16.0, 18.6),
    (32.0, 22.4),
    (64.0, 24.9),
    (128.0, 25.5),
    (256.0, 25.5),
];

/// Sorted by name.
const PROFILES: &[Profile] = &[
    Profile {
        name: "glm-4.6-h100-tp8",
        summary: "GLM-4.6 (355B-A32B, fp8), fp8 KV, 8x H100-80; derived, not measured",
        pool_tokens: 1_180_000,
        token_bytes: 23_552,
        budget: 8_192,
        max_model_len: 202_752,
        prefill: [37.5, 0.026_77, 9.35e-7],
        decode_base: GLM_DECODE,
        decode_context: 8.17e-6,
    },
    Profile {
        name: "llama-70b-h100-tp4",
        summary: "Llama-3.1-70B (bf16), bf16 KV, 4x H100-80",
        pool_tokens: 454_016,
        token_bytes: 81_920,
        budget: 8_192,
        max_model_len: 131_072,
        prefill: [7.28, 0.0605, 9.99e-7],
        decode_base: LLAMA_70B_DECODE,
        decode_context: 2.65e-5,
    },
    Profile {
        name: "minimax-m2.5-h100-tp4",
        summary: "MiniMax-M2.5 (230B-A10B, fp8), fp8 KV, 4x H100-80",
        pool_tokens: 468_626,
        token_bytes: 31_744,
        budget: 8_192,
        max_model_len: 196_608,
        prefill: [25.3, 0.016_73, 6.30e-7],
        decode_base: MINIMAX_DECODE,
        decode_context: 1.10e-5,
    },
    Profile {
        name: "minimax-m2.5-h100-tp4-bf16kv",
        summary: "MiniMax-M2.5 (230B-A10B, fp8), bf16 KV, 4x H100-80",
        pool_tokens: 234_313,
        token_bytes: 63_488,
        budget: 8_192,
        max_model_len: 196_608,
        prefill: [25.3, 0.016_73, 6.30e-7],
        decode_base: MINIMAX_DECODE,
        decode_context: 2.03e-5,
    },
    Profile {
        name: "qwen3-30b-a3b-fp8-h100-tp2",
        summary: "Qwen3-Coder-30B-A3B (fp8), fp8 KV, 2x H100-80, 88 % of memory; derived from published runs",
        pool_tokens: 2_237_040,
        token_bytes: 24_576,
        budget: 8_192,
        max_model_len: 262_144,
        prefill: [9.36, 0.006_33 * 2.0, 3.00e-7 * 2.0],
        decode_base: QWEN3_FP8_H100_DECODE,
        decode_context: 1.4e-5,
    },
    Profile {
        name: "qwen3-30b-a3b-h100-tp1",
        summary: "Qwen3-30B-A3B (bf16), bf16 KV, one H100-80; decode derived, not measured",
        pool_tokens: 118_341,
        token_bytes: 98_304,
        budget: 8_192,
        max_model_len: 262_144,
        prefill: [23.6, 0.009_989, 1.333e-6],
        decode_base: QWEN3_H100_DECODE,
        decode_context: 3.33e-5,
    },
    Profile {
        name: "qwen3-30b-a3b-h20-tp4",
        summary: "Qwen3-30B-A3B (bf16), bf16 KV, 4x H20-3e, 75 % of memory; prefill derived from peak FLOPS",
        pool_tokens: 3_807_728,
        token_bytes: 24_576,
        budget: 32_768,
        max_model_len: 32_768,
        prefill: [9.36, 0.006_33 * 6.7, 3.00e-7 * 6.7],
        decode_base: QWEN3_H200_DECODE,
        decode_context: 5.8e-6,
    },
    Profile {
        name: "qwen3-30b-a3b-h200-tp4",
        summary: "Qwen3-30B-A3B (bf16), bf16 KV, 4x H200, 75 % of memory",
        pool_tokens: 3_807_728,
        token_bytes: 24_576,
        budget: 8_192,
        max_model_len: 262_144,
        prefill: [9.36, 0.006_33, 3.00e-7],
        decode_base: QWEN3_H200_DECODE,
        decode_context: 5.8e-6,
    },
];

impl Profile {
    /// All profiles, sorted by name.
    #[must_use]
    pub const fn all() -> &'static [Self] {
        PROFILES
    }

    /// All names, sorted.
    #[must_use]
    pub fn names() -> Vec<&'static str> {
        PROFILES.iter().map(|profile| profile.name).collect()
    }

    /// The profile of that name.
    ///
    /// # Errors
    /// [`UnknownProfile`] lists the known names.
    pub fn by_name(name: &str) -> Result<&'static Self, UnknownProfile> {
        PROFILES
            .iter()
            .find(|profile| profile.name == name)
            .ok_or_else(|| UnknownProfile { name: name.to_owned() })
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// One line for people: model, KV type, GPUs, and whether figures are derived.
    #[must_use]
    pub const fn summary(&self) -> &'static str {
        self.summary
    }

    /// KV pool of the deployment in tokens; [`Profile::config`] cuts it to whole blocks.
    #[must_use]
    pub const fn pool_tokens(&self) -> u32 {
        self.pool_tokens
    }

    /// How long the deployment's passes take.
    #[must_use]
    pub fn timing(&self) -> TimingModel {
        let [prefill_base_ms, prefill_token_ms, prefill_attention_ms] = self.prefill;
        TimingModel::Compact(CompactModel {
            prefill_base_ms,
            prefill_token_ms,
            prefill_attention_ms,
            decode_base_ms: self.decode_base.to_vec(),
            decode_context_ms: self.decode_context,
        })
    }

    /// The set-up: pool, block size, batch limits and timing of the deployment. Change single fields with
    /// struct update syntax; when changing `block_size`, change `pool_blocks` with it.
    #[must_use]
    pub fn config(&self, flavor: Flavor) -> EngineConfig {
        EngineConfig {
            flavor,
            block_size: BLOCK_SIZE,
            pool_blocks: self.pool_tokens / BLOCK_SIZE,
            max_num_seqs: MAX_NUM_SEQS,
            max_num_batched_tokens: self.budget,
            max_model_len: Some(self.max_model_len),
            timing: self.timing(),
            tiers: TiersConfig { token_bytes: self.token_bytes, ..TiersConfig::default() },
            ..EngineConfig::default()
        }
    }
}
