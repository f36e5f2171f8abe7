//! A modelled inference engine: batching step, paged KV pool, timing; a pure step function.
//!
//! - Purpose: stand in for a vLLM or SGLang engine rank where no GPU is at hand, behind an HTTP face or in
//!   virtual time. It decides which tokens are computed when, what is cached and evicted, how long each
//!   pass takes and which KV events an engine would publish.
//! - Inputs: an [`EngineConfig`] (write it, or take a [`Profile`]'s), [`Request`]s, the caller's time.
//!   Outputs: [`Pass`]es and [`Load`]s.
//! - Use: [`EngineModel::submit`] requests as they arrive; whenever the engine is idle or a pass has ended,
//!   call [`EngineModel::step`] and deliver what it wrote at [`Pass::ends_at`].
//! - Invariants: stated in the modules; the ones that users build on are that equal calls give equal passes,
//!   that every request ends exactly once, and that blocks held and free add up to the pool.
//! - Cost: submission is linear in the prompt's tokens (token form) or constant (block form); a pass is linear
//!   in its batch and in the blocks it takes, frees or reuses; a request that waits for room costs a pass
//!   O(log blocks).
//! - Tiers below the device ([`TiersConfig`]) and a store that several engines share ([`SharedStore`]) are
//!   switched on by configuration; an idle engine then has to be stepped at [`EngineModel::wakes_at`].
//! - Deliberately absent: text and tokenizers, sampling, several ranks in one model, prefill/decode disaggregation, speculative decoding, multimodal inputs.
//! - Flavours: [`Flavor::Vllm`] mixes prefill chunks and decodes, caches blocks as they are scheduled and
//!   preempts; [`Flavor::Sglang`] lets prefill passes go first, reserves room for answers at admission,
//!   caches generated pages when a request ends, keeps one copy per page and retracts.
//! - Sources: vLLM 0.32 and SGLang 0.5.23 as observed, and the pass model of aisimulate-core 0.13.

mod admission;
mod chain;
mod config;
mod engine;
mod events;
mod grid;
mod pass;
mod pool;
mod profile;
mod request;
mod seq;
mod sglang;
mod tiers;
mod timing;
mod vllm;

pub use config::{ConfigError, EngineConfig, Flavor, PreemptionOrder, SchedulingPolicy};
pub use engine::EngineModel;
pub use grid::GridModel;
pub use pass::{Admission, Finish, Load, Loaded, Pass, TokenOutput};
pub use profile::{Profile, UnknownProfile};
pub use request::{Namespace, Output, Prompt, Refusal, Request, RequestKey, SEEDED_VOCABULARY};
pub use tiers::{LinkConfig, MemoryStore, NoStore, SharedStore, TierConfig, TiersConfig, WritePolicy};
pub use timing::{CompactModel, PassShape, TimingError, TimingModel};
