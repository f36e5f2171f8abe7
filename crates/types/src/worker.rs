//! Workers as the scheduler sees them.

use serde::{Deserialize, Serialize};

/// The engine's make: decides endpoints, priority polarity, metric names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineKind {
    /// vLLM (`priority`: lower is earlier).
    Vllm,
    /// SGLang (`priority`: higher is earlier).
    Sglang,
    /// Anything else that speaks the OpenAI API.
    OpenAi,
}

/// The part of a turn's work that a worker is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerRole {
    /// Prompt and answer.
    #[default]
    Both,
    /// Computes prompts, whose KV another worker fetches.
    Prefill,
    /// Writes answers to prompts whose KV it fetches.
    Decode,
}

impl WorkerRole {
    /// Whether nothing is split here: the role of most workers, which records leave out.
    #[must_use]
    pub const fn is_both(&self) -> bool {
        matches!(self, Self::Both)
    }
}

/// A LoRA adapter that a worker has loaded.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Adapter {
    /// The name to ask for.
    pub name: String,
    /// The model that it adapts.
    pub base: String,
}

/// What is known of a worker when it is ready to take turns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerInfo {
    /// Make of its engine.
    pub kind: EngineKind,
    /// The part of the work that it does.
    #[serde(default, skip_serializing_if = "WorkerRole::is_both")]
    pub role: WorkerRole,
    /// Names under which its models may be asked for, adapters included, sorted; empty = takes any name.
    pub models: Vec<String>,
    /// Those of `models` that are adapters, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adapters: Vec<Adapter>,
    /// It loads adapters that it does not have yet when a turn asks for them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub loads_adapters: bool,
    /// KV pool in tokens, where the engine tells.
    pub kv_capacity_tokens: Option<u64>,
    /// The same together with the tiers below that are this worker's own, where that is known; no less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_resident_tokens: Option<u64>,
    /// It evicts first what it is told is not worth keeping. No released engine does.
    #[serde(default)]
    pub demotes: bool,
    /// Most turns that may run here at once; `None` = no bound of ours.
    pub max_running: Option<u32>,
    /// What its operator says of it; requests may ask for labels or prefer them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// What keeps requests away that do not say that they put up with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<String>,
}

impl WorkerInfo {
    /// A worker of which only the make is known: it does everything and takes any name.
    #[must_use]
    pub const fn new(kind: EngineKind) -> Self {
        Self {
            kind,
            role: WorkerRole::Both,
            models: Vec::new(),
            adapters: Vec::new(),
            loads_adapters: false,
            kv_capacity_tokens: None,
            kv_resident_tokens: None,
            demotes: false,
            max_running: None,
            labels: Vec::new(),
            taints: Vec::new(),
        }
    }
}

/// A worker's own report of its load.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct LoadReport {
    /// Requests in the running batch.
    pub running: u64,
    /// Requests waiting in the engine's queue.
    pub waiting: u64,
    /// Part of the KV pool in use, 0 to 1; `None` when the engine does not tell.
    pub kv_usage: Option<f64>,
    /// KV pool in tokens, where the engine tells.
    pub kv_capacity_tokens: Option<u64>,
}
