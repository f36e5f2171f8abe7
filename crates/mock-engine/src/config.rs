//! What a mock engine is to be: everything that a test or `demo` may choose.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tandem_engine_model::TiersConfig;

use crate::fault::FaultRule;
use crate::pd::MockSplit;
use crate::script::Script;

/// Whose wire the mock speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MockKind {
    /// vLLM 0.32.
    #[default]
    Vllm,
    /// SGLang 0.5.23.
    Sglang,
}

/// How fast the modelled time runs.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Speed {
    /// Modelled time over real time; 1.0 is as the profile says. Must be positive and finite.
    Times(f64),
    /// No waiting at all: each modelled step ends as soon as it is begun.
    #[default]
    Instant,
}

/// One name under which the mock serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MockModel {
    /// The name that requests carry.
    pub id: String,
    /// `Some(base)`: a LoRA adapter on top of `base`, with a cache of its own; `None`: the base model or
    /// another name for it.
    #[serde(default)]
    pub parent: Option<String>,
}

impl MockModel {
    /// The base model, or another name for it.
    #[must_use]
    pub fn base(id: &str) -> Self {
        Self { id: id.to_owned(), parent: None }
    }

    /// An adapter on top of `parent`.
    #[must_use]
    pub fn lora(id: &str, parent: &str) -> Self {
        Self { id: id.to_owned(), parent: Some(parent.to_owned()) }
    }
}

/// The event publisher. Rank `r` of `dp_ranks` has ports of its own (base + r when the base is given).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KvEventsConfig {
    /// First frame of each message.
    pub topic: String,
    /// Port of rank 0's PUB socket; 0 = a free one for each rank.
    pub port: u16,
    /// Port of rank 0's replay ROUTER socket; 0 = a free one for each rank.
    pub replay_port: u16,
    /// Whether there is a replay socket.
    pub replay: bool,
    /// Batches kept for replay.
    pub buffer_steps: usize,
}

impl Default for KvEventsConfig {
    fn default() -> Self {
        Self { topic: String::new(), port: 0, replay_port: 0, replay: true, buffer_steps: 10_000 }
    }
}

/// Command-line flags of the real engines that change what a client sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(clippy::struct_excessive_bools, reason = "each is one command-line switch of the real engine")]
pub struct EngineFlags {
    /// vLLM `--enable-prompt-tokens-details`, SGLang `--enable-cache-report`.
    pub prompt_tokens_details: bool,
    /// vLLM `--enable-force-include-usage`, SGLang `--stream-response-default-include-usage`.
    pub force_include_usage: bool,
    /// vLLM `--enable-request-id-headers`: echo `x-request-id`.
    pub request_id_headers: bool,
    /// vLLM `--scheduling-policy priority`, SGLang `--enable-priority-scheduling`.
    pub priority_scheduling: bool,
    /// vLLM `--enable-auto-tool-choice --tool-call-parser ...`.
    pub auto_tool_choice: bool,
    /// vLLM `--enable-server-load-tracking`.
    pub server_load_tracking: bool,
    /// vLLM `--enable-scale-out`: `*/render` and `/inference/v1/generate`.
    pub scale_out: bool,
    /// vLLM `VLLM_SERVER_DEV_MODE=1`: `/reset_prefix_cache`, `/server_info`.
    pub dev_mode: bool,
    /// SGLang `--enable-metrics` (vLLM always has them).
    pub metrics: bool,
}

impl Default for EngineFlags {
    fn default() -> Self {
        Self {
            prompt_tokens_details: true,
            force_include_usage: false,
            request_id_headers: false,
            priority_scheduling: false,
            auto_tool_choice: true,
            server_load_tracking: true,
            scale_out: true,
            dev_mode: true,
            metrics: true,
        }
    }
}

/// Length of answers that nothing else decides (no script, no `ignore_eos`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AnswerLength {
    /// Fewest tokens.
    pub min_tokens: u32,
    /// Most tokens.
    pub max_tokens: u32,
}

impl Default for AnswerLength {
    fn default() -> Self {
        Self { min_tokens: 16, max_tokens: 96 }
    }
}

/// What is written down of each request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RecordConfig {
    /// JSONL file, appended to; `None` = memory only ([`crate::MockEngine::records`]).
    pub file: Option<PathBuf>,
    /// Whether bodies are kept too.
    pub bodies: bool,
}

/// Cache tiers of each rank below its device.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MockTiers {
    /// Host memory, disk, bandwidths; the link to the store counts with a store only.
    pub model: TiersConfig,
    /// The shared store; vLLM only.
    pub store: Option<StoreUse>,
}

/// A store shared with other engines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreUse {
    /// `http://host:port` of a [`MockStore`](crate::MockStore).
    pub url: String,
    /// What object keys begin with; `None` = the base model's name behind its last slash.
    #[serde(default)]
    pub head: Option<String>,
}

/// Everything that a mock engine is to be. `Default` is a small, instant vLLM with events on free ports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MockConfig {
    /// Whose wire it speaks.
    pub kind: MockKind,
    /// Address to listen on, for HTTP and for the event sockets.
    pub host: IpAddr,
    /// HTTP port; 0 = a free one.
    pub port: u16,
    /// Names served; the first is the base model. Must not be empty.
    pub models: Vec<MockModel>,
    /// Timing profile, by its name in the engine model.
    pub profile: String,
    /// How fast the modelled time runs.
    pub speed: Speed,
    /// Tokens in a KV block.
    pub block_size: u32,
    /// KV pool of each rank, in tokens; `None` = as the profile says.
    pub pool_tokens: Option<u64>,
    /// Cache tiers below the device.
    pub tiers: MockTiers,
    /// Whether blocks are named as the real engine hashes them (it takes time: a digest for each block), rather
    /// than by hashes of our own. With a store it is always so.
    pub engine_hashes: bool,
    /// Most sequences in a rank's batch.
    pub max_num_seqs: u32,
    /// Most tokens computed in one step of a rank.
    pub max_num_batched_tokens: u32,
    /// Longest prompt plus answer, in tokens.
    pub max_model_len: u32,
    /// Data-parallel ranks behind the one URL.
    pub dp_ranks: u32,
    /// The event publisher; `None` = off.
    pub kv_events: Option<KvEventsConfig>,
    /// The key that clients must present as a bearer token (or `x-api-key`); `None` = none.
    pub api_key: Option<String>,
    /// Its part in turns whose prompt and answer are split; `None` = such calls are served as all others.
    pub split: Option<MockSplit>,
    /// What is answered.
    pub script: Script,
    /// Length of unscripted answers.
    pub answer: AnswerLength,
    /// What is written down of each request.
    pub record: RecordConfig,
    /// Faults from the start; [`crate::MockEngine::set_faults`] changes them.
    pub faults: Vec<FaultRule>,
    /// Whether the header `x-mock-fault` is obeyed.
    pub fault_header: bool,
    /// Seed of all that is drawn: answers, ids.
    pub seed: u64,
    /// Flags of the real engine.
    pub flags: EngineFlags,
}

impl Default for MockConfig {
    fn default() -> Self {
        Self {
            kind: MockKind::Vllm,
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 0,
            models: vec![MockModel::base("tandem-mock")],
            profile: "qwen3-30b-a3b-h200-tp4".to_owned(),
            speed: Speed::Instant,
            block_size: 16,
            pool_tokens: Some(262_144),
            tiers: MockTiers::default(),
            engine_hashes: false,
            max_num_seqs: 256,
            max_num_batched_tokens: 8_192,
            max_model_len: 262_144,
            dp_ranks: 1,
            kv_events: Some(KvEventsConfig::default()),
            api_key: None,
            split: None,
            script: Script::default(),
            answer: AnswerLength::default(),
            record: RecordConfig::default(),
            faults: Vec::new(),
            fault_header: true,
            seed: 0,
            flags: EngineFlags::default(),
        }
    }
}
