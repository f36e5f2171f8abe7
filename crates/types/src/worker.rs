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

/// What is known of a worker when it is ready to take turns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerInfo {
    /// Make of its engine.
    pub kind: EngineKind,
    /// Names under which its models may be asked for, sorted; empty = takes any name.
    pub models: Vec<String>,
    /// KV pool in tokens, where the engine tells.
    pub kv_capacity_tokens: Option<u64>,
    /// Most turns that may run here at once; `None` = no bound of ours.
    pub max_running: Option<u32>,
    /// What its operator says of it; requests may ask for labels or prefer them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// What keeps requests away that do not say that they put up with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<String>,
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
