//! JSON answers of control endpoints.
//!
//! Unknown fields are ignored and missing ones are `None`: releases add and drop fields, and an engine must not
//! be taken for broken because of one. Sources: vLLM 0.32, SGLang 0.5.23, llama.cpp's server.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use tandem_types::{EngineKind, LoadReport, WorkerRole};

use crate::config::{MODELS_MAX, RANKS_MAX};
use crate::engine::SplitInfo;
use crate::state::{ModelInfo, WorkerStatus};

/// `/v1/models`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Models {
    /// Sorted by id, each id once.
    pub(crate) models: Vec<ModelInfo>,
    /// The make that `owned_by` names, if it names one.
    pub(crate) kind: Option<EngineKind>,
    /// llama.cpp, whose `/metrics` tells its load.
    pub(crate) llamacpp: bool,
}

#[derive(Deserialize)]
struct ModelsWire {
    data: Vec<Box<RawValue>>,
}

#[derive(Deserialize)]
struct ModelWire {
    id: String,
    #[serde(default)]
    owned_by: Option<String>,
    #[serde(default)]
    parent: Option<String>,
    #[serde(default)]
    max_model_len: Option<u64>,
    /// llama.cpp.
    #[serde(default)]
    aliases: Option<Vec<String>>,
    #[serde(default)]
    meta: Option<LlamaMeta>,
}

#[derive(Deserialize)]
struct LlamaMeta {
    #[serde(default)]
    n_ctx: Option<u64>,
}

/// `None`: not a list of models.
pub(crate) fn models(body: &[u8]) -> Option<Models> {
    let wire: ModelsWire = serde_json::from_slice(body).ok()?;
    let mut out = Models::default();
    let mut by_id = BTreeMap::new();
    for entry in wire.data.into_iter().take(MODELS_MAX) {
        let model: ModelWire = serde_json::from_str(entry.get()).ok()?;
        let mut entry = Some(Arc::from(entry));
        match model.owned_by.as_deref() {
            Some("vllm") => out.kind = Some(EngineKind::Vllm),
            Some("sglang") => out.kind = Some(EngineKind::Sglang),
            Some("llamacpp") => {
                out.kind = Some(EngineKind::OpenAi);
                out.llamacpp = true;
            }
            _ => {}
        }
        let max_model_len = model.max_model_len.or_else(|| model.meta.and_then(|m| m.n_ctx));
        for id in std::iter::once(model.id).chain(model.aliases.unwrap_or_default()) {
            let parent = model.parent.clone();
            by_id.entry(id.clone()).or_insert(ModelInfo { id, parent, max_model_len, entry: entry.take() });
        }
    }
    out.models = by_id.into_values().take(MODELS_MAX).collect();
    Some(out)
}

/// vLLM's `/version`.
pub(crate) fn version(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Version {
        version: String,
    }
    serde_json::from_slice::<Version>(body).ok().map(|v| v.version).filter(|v| v.len() <= 128)
}

/// Per rank, and the engine's version where the answer has it.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct SglangLoads {
    pub(crate) ranks: BTreeMap<u32, WorkerStatus>,
    pub(crate) version: Option<String>,
}

/// SGLang's `/v1/loads`. `None`: not such an answer.
pub(crate) fn sglang_loads(body: &[u8]) -> Option<SglangLoads> {
    #[derive(Deserialize)]
    struct Loads {
        #[serde(default)]
        version: Option<String>,
        loads: Vec<Load>,
    }
    #[derive(Deserialize)]
    struct Load {
        #[serde(default)]
        dp_rank: Option<u32>,
        num_running_reqs: u64,
        #[serde(default)]
        num_waiting_reqs: u64,
        #[serde(default)]
        token_usage: Option<f64>,
        #[serde(default)]
        max_total_num_tokens: Option<u64>,
    }
    let wire: Loads = serde_json::from_slice(body).ok()?;
    let ranks = wire.loads.into_iter().take(RANKS_MAX).map(|l| {
        let kv_capacity_tokens = l.max_total_num_tokens.filter(|n| *n > 0);
        let load = LoadReport {
            running: l.num_running_reqs,
            waiting: l.num_waiting_reqs,
            kv_usage: l.token_usage.filter(|u| u.is_finite()).map(|u| u.clamp(0.0, 1.0)),
            kv_capacity_tokens,
        };
        (l.dp_rank.unwrap_or(0), WorkerStatus { kv_capacity_tokens, load: Some(load) })
    });
    Some(SglangLoads { ranks: ranks.collect(), version: wire.version })
}

/// SGLang's `/server_info` (before 0.5: `/get_server_info`), as far as it is read.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct SglangInfo {
    #[serde(default)]
    pub(crate) version: Option<String>,
    #[serde(default)]
    dp_size: Option<u32>,
    #[serde(default)]
    max_total_num_tokens: Option<u64>,
    #[serde(default)]
    internal_states: Option<Vec<InternalState>>,
    #[serde(default)]
    pub(crate) enable_cache_report: Option<bool>,
    #[serde(default)]
    pub(crate) enable_metrics: Option<bool>,
    #[serde(default)]
    pub(crate) enable_priority_scheduling: Option<bool>,
    #[serde(default)]
    pub(crate) kv_events_config: Option<String>,
    #[serde(default)]
    pub(crate) disable_radix_cache: Option<bool>,
    #[serde(default)]
    disaggregation_mode: Option<String>,
    #[serde(default)]
    disaggregation_bootstrap_port: Option<u16>,
}

#[derive(Debug, Clone, Deserialize)]
struct InternalState {
    #[serde(default)]
    memory_usage: Option<MemoryUsage>,
}

#[derive(Debug, Clone, Deserialize)]
struct MemoryUsage {
    #[serde(default)]
    token_capacity: Option<u64>,
}

/// `None`: not SGLang's (vLLM has a route of the same name in its development mode).
pub(crate) fn sglang_info(body: &[u8]) -> Option<SglangInfo> {
    let info: SglangInfo = serde_json::from_slice(body).ok()?;
    (info.internal_states.is_some() || info.max_total_num_tokens.is_some()).then_some(info)
}

impl SglangInfo {
    /// The part of the work that it does.
    pub(crate) fn split(&self) -> SplitInfo {
        let role = match self.disaggregation_mode.as_deref() {
            Some("prefill") => Some(WorkerRole::Prefill),
            Some("decode") => Some(WorkerRole::Decode),
            Some(_) | None => None,
        };
        SplitInfo { role, bootstrap_port: self.disaggregation_bootstrap_port.filter(|port| *port > 0) }
    }

    /// Ranks with their capacity; load is not told here.
    pub(crate) fn ranks(&self) -> BTreeMap<u32, WorkerStatus> {
        let states = self.internal_states.as_deref().unwrap_or_default();
        let ranks = self.dp_size.unwrap_or(1).clamp(1, u32::try_from(RANKS_MAX).unwrap_or(u32::MAX));
        (0..ranks)
            .map(|rank| {
                let own = states
                    .get(rank as usize)
                    .and_then(|s| s.memory_usage.as_ref())
                    .and_then(|m| m.token_capacity);
                let kv_capacity_tokens = own.or(self.max_total_num_tokens).filter(|n| *n > 0);
                (rank, WorkerStatus { kv_capacity_tokens, load: None })
            })
            .collect()
    }
}

/// vLLM's `/kv_event_sources`: per rank, whether events are published.
pub(crate) fn vllm_kv_event_sources(body: &[u8]) -> Option<BTreeMap<String, KvEventSource>> {
    serde_json::from_slice(body).ok()
}

/// One rank's publisher.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct KvEventSource {
    #[serde(default)]
    pub(crate) enable_kv_cache_events: bool,
    #[serde(default)]
    pub(crate) endpoint: Option<String>,
    #[serde(default)]
    pub(crate) replay_endpoint: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(models: &Models) -> Vec<&str> {
        models.models.iter().map(|m| m.id.as_str()).collect()
    }

    #[test]
    fn model_lists_of_three_engines() {
        let vllm = models(include_bytes!("../tests/fixtures/vllm-0.32.0-models.json")).expect("a list");
        assert_eq!((ids(&vllm), vllm.kind), (vec!["tiny"], Some(EngineKind::Vllm)));
        assert_eq!(vllm.models.first().and_then(|m| m.max_model_len), Some(8192));
        let sglang = models(include_bytes!("../tests/fixtures/sglang-0.5.23-models.json")).expect("a list");
        assert_eq!((ids(&sglang), sglang.kind), (vec!["tiny"], Some(EngineKind::Sglang)));
        let llama = models(include_bytes!("../tests/fixtures/llamacpp-models.json")).expect("a list");
        assert_eq!((ids(&llama), llama.kind), (vec!["gemma"], Some(EngineKind::OpenAi)));
        assert_eq!(llama.models.first().and_then(|m| m.max_model_len), Some(4096));
        assert!(llama.llamacpp);
    }

    #[test]
    fn adapters_name_their_parent_and_lists_are_sorted() {
        let body = br#"{"data":[{"id":"z"},{"id":"lora","parent":"z","owned_by":"vllm"},{"id":"z"}]}"#;
        let got = models(body).expect("a list");
        assert_eq!(ids(&got), ["lora", "z"]);
        assert_eq!(got.models.first().and_then(|m| m.parent.as_deref()), Some("z"));
        assert_eq!(models(b"{\"data\":[]}"), Some(Models::default()));
        for nonsense in [&b"<html>"[..], b"{}", b"{\"data\":{}}", b"[]", b""] {
            assert_eq!(models(nonsense), None);
        }
    }

    #[test]
    fn loads_as_sglang_0_5_23_writes_them() {
        let got = sglang_loads(include_bytes!("../tests/fixtures/sglang-0.5.23-loads.json")).expect("loads");
        let load =
            LoadReport { kv_usage: Some(0.0), kv_capacity_tokens: Some(8192), ..LoadReport::default() };
        let worker = WorkerStatus { kv_capacity_tokens: Some(8192), load: Some(load) };
        assert_eq!(got.ranks, BTreeMap::from([(0, worker)]));
        assert_eq!(got.version.as_deref(), Some("0.5.23"));
        assert_eq!(sglang_loads(b"{\"detail\":\"Not Found\"}"), None);
    }

    #[test]
    fn server_info_gives_ranks_and_flags() {
        let info = sglang_info(include_bytes!("../tests/fixtures/sglang-0.5.23-server-info.json"))
            .expect("server info");
        assert_eq!(info.ranks().get(&0).and_then(|w| w.kv_capacity_tokens), Some(8192));
        assert_eq!((info.enable_cache_report, info.enable_priority_scheduling), (Some(true), Some(false)));
        let two = sglang_info(br#"{"dp_size":2,"max_total_num_tokens":100,"internal_states":[]}"#);
        assert_eq!(two.map(|i| i.ranks().len()), Some(2));
        let split = |text: &[u8]| sglang_info(text).expect("server info").split();
        let prefill = split(
            br#"{"max_total_num_tokens":9,"disaggregation_mode":"prefill","disaggregation_bootstrap_port":8999}"#,
        );
        assert_eq!((prefill.role, prefill.bootstrap_port), (Some(WorkerRole::Prefill), Some(8999)));
        assert_eq!(split(br#"{"max_total_num_tokens":9,"disaggregation_mode":"null"}"#).role, None);
        assert!(sglang_info(br#"{"vllm_config":{}}"#).is_none(), "vLLM's route of the same name");
    }

    #[test]
    fn event_sources_as_vllm_0_32_lists_them() {
        let got =
            vllm_kv_event_sources(include_bytes!("../tests/fixtures/vllm-0.32.0-kv-event-sources.json"));
        let got = got.expect("sources");
        let source = got.get("0").expect("rank 0");
        assert!(source.enable_kv_cache_events);
        assert_eq!(source.endpoint.as_deref(), Some("tcp://*:5557"));
        assert_eq!(source.replay_endpoint.as_deref(), Some("tcp://127.0.0.1:5558"));
    }
}
