//! Settings of the plane, and what it is told of workers.

use std::time::Duration;

use tandem_kvindex::pool::{PoolLimits, Trailing};
use tandem_kvindex::session::SessionLimits;
use tandem_kvindex::worker::{Copies, Keep};
use tandem_kvwire::hash::vllm::{VllmAlgorithm, VllmKeyForm};
use tandem_kvwire::mooncake::sglang::SglangLayout;
use tandem_kvwire::mooncake::vllm::VllmLayout;
use tandem_types::EngineKind;

/// Most workers, by default.
pub const WORKERS_MAX: usize = 4_096;
/// Most ways of cutting prompts into blocks in use at once: each costs every prompt a pass of hashing.
pub const SHAPES_MAX: usize = 8;
/// Most full-attention cache groups of one worker.
pub const GROUPS_MAX: usize = 16;
/// Most dispatches whose prediction waits for its event, by default.
pub const PREDICTIONS_MAX: usize = 65_536;
/// Most namespaces of salted blocks remembered, by default.
pub const SALTED_MAX: usize = 1_000_000;
/// Most ids of blocks remembered to name a store's objects, by default.
pub const NAMES_MAX: usize = 2_000_000;
/// Most session texts remembered, by default.
pub const TEXTS_MAX: usize = 262_144;
/// Most transitions kept between two drains; the oldest go first.
pub const TRANSITIONS_MAX: usize = 1_024;

/// Settings of a plane.
#[derive(Debug, Clone)]
pub struct PlaneConfig {
    /// How long a dispatched prompt is believed to be in a worker of which no events tell; `None` = such workers
    /// are blind spots.
    pub approximate: Option<Keep>,
    /// Tokens in a block where no engine has told its own size yet.
    pub block_size: u32,
    /// How long a dispatch is believed to put its prompt into the cache before events confirm it.
    pub predict: Duration,
    /// How long what a silent worker said is believed, and how long a new one may be silent before it counts as
    /// one without events.
    pub stale_after: Duration,
    /// How long an event may wait to be taken in before what is known of workers counts as old.
    pub lag_max: Duration,
    /// A store that was not listed for so long is not counted on: it evicts without telling.
    pub store_trust: Duration,
    /// Most blocks of one worker's cache group that wait for their parent.
    pub orphans_max: usize,
    /// Most workers.
    pub workers_max: usize,
    /// Most dispatches whose prediction waits for its event.
    pub predictions_max: usize,
    /// Most namespaces of salted blocks remembered.
    pub salted_max: usize,
    /// Most ids of blocks remembered to name a store's objects.
    pub names_max: usize,
    /// Most session texts remembered.
    pub texts_max: usize,
    /// Bounds of the session forest.
    pub session: SessionLimits,
    /// Bounds of the shared-pool index.
    pub pool: PoolLimits,
    /// Spreads tables; changes no answer.
    pub seed: u64,
}

impl Default for PlaneConfig {
    fn default() -> Self {
        Self {
            approximate: Some(Keep::default()),
            block_size: 16,
            predict: Duration::from_secs(10),
            stale_after: Duration::from_secs(60),
            lag_max: Duration::from_secs(1),
            store_trust: Duration::from_secs(600),
            orphans_max: 4_096,
            workers_max: WORKERS_MAX,
            predictions_max: PREDICTIONS_MAX,
            salted_max: SALTED_MAX,
            names_max: NAMES_MAX,
            texts_max: TEXTS_MAX,
            session: SessionLimits::default(),
            pool: PoolLimits::default(),
            seed: 0,
        }
    }
}

/// What is told of a worker when it comes up or changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerSpec {
    /// Its make: decides how much of a prompt it reuses and what its clears mean.
    pub kind: EngineKind,
    /// A publisher of its events is followed.
    pub events: bool,
    /// What it means when it announces a block that it holds already.
    pub copies: Copies,
    /// Tokens in a block, where the engine tells. Its events overrule this.
    pub block_size: Option<u32>,
    /// KV pool in tokens, where the engine tells: bounds what is believed of a worker without events.
    pub kv_capacity_tokens: Option<u64>,
    /// How it uses a shared store, if it does.
    pub store: Option<StoreUse>,
}

impl WorkerSpec {
    /// A worker with or without events, of which nothing else is known.
    #[must_use]
    pub const fn new(kind: EngineKind, events: bool) -> Self {
        Self { kind, events, copies: Copies::Each, block_size: None, kv_capacity_tokens: None, store: None }
    }
}

/// How a worker uses the shared store: enough to name its objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreUse {
    /// vLLM's store connector.
    Vllm {
        /// The store's tenant; empty = its default one.
        tenant: String,
        /// Which objects hold a block.
        layout: VllmLayout,
        /// How it hashes; `None` = not reproducible outside the engine, so that names are learned from its events.
        hash: Option<VllmHashing>,
    },
    /// SGLang's HiCache.
    Sglang {
        /// The store's tenant; empty = its default one.
        tenant: String,
        /// Which objects hold a page.
        layout: SglangLayout,
        /// Pages are hashed over pairs of tokens (a drafter that looks one token ahead).
        bigram: bool,
        /// Objects of side pools that only the end of a run needs.
        trailing: Vec<Trailing>,
    },
}

/// How a vLLM hashes its blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VllmHashing {
    /// `--prefix-caching-hash-algo`.
    pub algorithm: VllmAlgorithm,
    /// `PYTHONHASHSEED`; `None` = not set, which from 0.29 on means a fixed seed for the `sha256` kinds.
    pub seed: Option<String>,
    /// How adapters, media and salts go in; depends on the version.
    pub form: VllmKeyForm,
}
