//! A look at one engine for `tandem doctor`: what it is, what it offers, and which flag would add what it lacks.
//!
//! Passive by default: only control routes and prompt rendering, which generates nothing. What cannot be told
//! that way (cached tokens and priorities of vLLM) is `Unknown` unless [`ProbeOptions::active`] allows tiny
//! requests. Sources of the flags: vLLM 0.32 and 0.33, SGLang 0.5.23, llama.cpp's server.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Value, json};
use tandem_types::EngineKind;

use crate::client::HttpClient;
use crate::control::Control;
use crate::spec::{BaseUrl, EngineAddress, EngineKindHint, EngineSpec};
use crate::state::{Bootstrap, LoadSource, ModelInfo, Target};
use crate::survey::{self, Survey};
use crate::wire;

const VLLM_KV_EVENTS: &str = "--kv-events-config '{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\
    \"endpoint\":\"tcp://*:5557\",\"replay_endpoint\":\"tcp://*:5558\"}'";
const SGLANG_KV_EVENTS: &str = "--kv-events-config '{\"publisher\":\"zmq\",\"topic\":\"kv-events\",\
    \"endpoint\":\"tcp://*:5557\",\"replay_endpoint\":\"tcp://*:5558\"}'";

/// First release with session ids in requests: major, minor, patch.
const VLLM_SESSIONS: (u32, u32, u32) = (0, 32, 0);
const SGLANG_SESSIONS: (u32, u32, u32) = (0, 5, 15);

/// How to look.
#[derive(Debug, Clone, Copy)]
pub struct ProbeOptions {
    /// Longest wait for each question.
    pub timeout: Duration,
    /// Also send a tiny request (twice, one token each): the only proof that cached tokens are reported.
    pub active: bool,
}

impl Default for ProbeOptions {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(10), active: false }
    }
}

/// Something an engine can offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CapabilityKind {
    /// Events of what enters and leaves the KV cache.
    KvEvents,
    /// Cached prompt tokens in the usage of each answer.
    CachedTokens,
    /// Prometheus metrics.
    Metrics,
    /// Load per worker, for routing.
    Load,
    /// KV pool size, for admission.
    Capacity,
    /// Priorities of requests are obeyed.
    Priority,
    /// Exact prompt tokens without generating.
    Render,
    /// Session ids travel through the engine.
    SessionIds,
}

/// Whether it is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Presence {
    /// Seen working.
    Present,
    /// Seen missing.
    Missing,
    /// Cannot be told from outside.
    Unknown,
}

/// One thing that an engine offers or lacks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Capability {
    /// What.
    pub kind: CapabilityKind,
    /// Whether it is there.
    pub presence: Presence,
    /// What was seen.
    pub detail: String,
    /// What to add to the engine's command line, where that would bring it.
    pub fix: Option<String>,
}

/// What a look at an engine found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProbeReport {
    /// Where.
    pub url: String,
    /// Why nothing was found out; the rest is empty then.
    pub error: Option<String>,
    /// Make.
    pub kind: Option<EngineKind>,
    /// Version.
    pub version: Option<String>,
    /// Models.
    pub models: Vec<ModelInfo>,
    /// Data-parallel ranks.
    pub ranks: Vec<u32>,
    /// KV pool of the first rank in tokens.
    pub kv_capacity_tokens: Option<u64>,
    /// What it offers and lacks, in the order of [`CapabilityKind`].
    pub capabilities: Vec<Capability>,
}

/// Looks at one engine. A `dns://` address is looked at through its name, which reaches one of its engines.
pub async fn probe(client: &HttpClient, spec: &EngineSpec, options: ProbeOptions) -> ProbeReport {
    let mut report = ProbeReport {
        url: spec.to_string(),
        error: None,
        kind: None,
        version: None,
        models: Vec::new(),
        ranks: Vec::new(),
        kv_capacity_tokens: None,
        capabilities: Vec::new(),
    };
    let base = match &spec.address {
        EngineAddress::Url(base) => Ok(base.clone()),
        EngineAddress::Dns { https, name, port } => {
            BaseUrl::parse(&format!("{}://{name}:{port}", if *https { "https" } else { "http" }))
        }
    };
    let base = match base {
        Ok(base) => Arc::new(base),
        Err(error) => {
            report.error = Some(error.to_string());
            return report;
        }
    };
    let target = Target {
        base,
        kind: EngineKind::OpenAi,
        api_key: spec.api_key.clone(),
        rank: None,
        host: None,
        bootstrap: Bootstrap::default(),
        priority: false,
    };
    let control = Control { client: client.clone(), target, timeout: options.timeout };
    let survey = match survey::survey(&control, spec.kind).await {
        Ok(survey) => survey,
        Err(error) => {
            report.error = Some(error);
            return report;
        }
    };
    let look = Look { control: &control, survey: &survey, active: options.active };
    report.capabilities = match survey.kind {
        EngineKind::Vllm => look.vllm().await,
        EngineKind::Sglang => look.sglang(&mut report.version).await,
        EngineKind::OpenAi => look.other(spec.kind).await,
    };
    report.capabilities.sort_by_key(|c| c.kind);
    report.kind = Some(survey.kind);
    report.version = survey.version.clone().or(report.version);
    report.ranks = survey.workers.keys().copied().collect();
    report.kv_capacity_tokens = survey.workers.values().next().and_then(|w| w.kv_capacity_tokens);
    report.models = survey.models;
    report
}

struct Look<'a> {
    control: &'a Control,
    survey: &'a Survey,
    active: bool,
}

fn present(kind: CapabilityKind, detail: impl Into<String>) -> Capability {
    Capability { kind, presence: Presence::Present, detail: detail.into(), fix: None }
}

fn missing(kind: CapabilityKind, detail: impl Into<String>, fix: Option<&str>) -> Capability {
    Capability { kind, presence: Presence::Missing, detail: detail.into(), fix: fix.map(str::to_owned) }
}

fn unknown(kind: CapabilityKind, detail: impl Into<String>, fix: Option<&str>) -> Capability {
    Capability { kind, presence: Presence::Unknown, detail: detail.into(), fix: fix.map(str::to_owned) }
}

fn flag(kind: CapabilityKind, on: Option<bool>, name: &str) -> Capability {
    match on {
        Some(true) => present(kind, format!("{name} is set")),
        Some(false) => missing(kind, format!("{name} is not set"), Some(name)),
        None => unknown(kind, "/server_info does not tell", Some(name)),
    }
}

/// The first numbers of a version: `0.32.1.dev3+g1a2b` is (0, 32, 1).
fn version_numbers(text: &str) -> Option<(u32, u32, u32)> {
    let mut parts = text.trim_start_matches('v').split('.').map(|part| {
        let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        part.get(..digits).and_then(|d| d.parse::<u32>().ok())
    });
    let major = parts.next()??;
    let minor = parts.next()??;
    Some((major, minor, parts.next().flatten().unwrap_or(0)))
}

fn sessions(version: Option<&str>, since: (u32, u32, u32), name: &str) -> Capability {
    let kind = CapabilityKind::SessionIds;
    let since_text = format!("{}.{}.{}", since.0, since.1, since.2);
    match version.and_then(version_numbers) {
        Some(numbers) if numbers >= since => {
            present(kind, format!("{name} {since_text} and newer take session ids"))
        }
        Some(_) => missing(
            kind,
            format!("{name} before {since_text} ignores session ids"),
            Some(&format!("upgrade {name} to {since_text} or newer")),
        ),
        None => unknown(kind, "the version is not known", None),
    }
}

impl Look<'_> {
    fn model(&self) -> Option<&str> {
        let models = &self.survey.models;
        models.iter().find(|m| m.parent.is_none()).or_else(|| models.first()).map(|m| m.id.as_str())
    }

    fn chat(&self, prompt: &str, more: &[(&str, Value)]) -> Bytes {
        let mut body = json!({
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": 1,
        });
        if let (Some(map), Some(model)) = (body.as_object_mut(), self.model()) {
            map.insert("model".to_owned(), Value::from(model));
        }
        for (key, value) in more {
            if let Some(map) = body.as_object_mut() {
                map.insert((*key).to_owned(), value.clone());
            }
        }
        Bytes::from(body.to_string())
    }

    fn capacity(&self, fix: Option<&str>) -> Capability {
        let kind = CapabilityKind::Capacity;
        match self.survey.workers.values().next().and_then(|w| w.kv_capacity_tokens) {
            Some(tokens) => present(kind, format!("{tokens} tokens per worker")),
            None => missing(kind, "the engine does not tell its kv pool", fix),
        }
    }

    async fn vllm(&self) -> Vec<Capability> {
        let metrics = self.survey.load_source == LoadSource::Metrics;
        let stats = Some("remove --disable-log-stats");
        let (kv_events, render, cached, priority) = tokio::join!(
            self.vllm_kv_events(),
            self.vllm_render(),
            self.cached_tokens(),
            self.vllm_priority()
        );
        let seen = |kind, detail: &str| {
            if metrics { present(kind, detail) } else { missing(kind, "/metrics has no vllm gauges", stats) }
        };
        vec![
            kv_events,
            cached,
            seen(CapabilityKind::Metrics, "/metrics has vllm gauges"),
            seen(CapabilityKind::Load, "running and waiting requests per rank from /metrics"),
            self.capacity(stats),
            priority,
            render,
            sessions(self.survey.version.as_deref(), VLLM_SESSIONS, "vllm"),
        ]
    }

    async fn vllm_kv_events(&self) -> Capability {
        let kind = CapabilityKind::KvEvents;
        let answer = match self.control.get("/kv_event_sources").await {
            Ok(answer) if answer.ok() => answer,
            Ok(answer) => {
                let detail = format!("/kv_event_sources: status {}", answer.status.as_u16());
                return unknown(kind, detail, Some(VLLM_KV_EVENTS));
            }
            Err(error) => return unknown(kind, error.to_string(), Some(VLLM_KV_EVENTS)),
        };
        let sources = wire::vllm_kv_event_sources(&answer.body).unwrap_or_default();
        let Some(source) = sources.values().find(|s| s.enable_kv_cache_events) else {
            return missing(kind, "no rank publishes kv events", Some(VLLM_KV_EVENTS));
        };
        let endpoint = source.endpoint.as_deref().unwrap_or("an endpoint that is not told");
        match &source.replay_endpoint {
            Some(replay) => present(kind, format!("published at {endpoint}, replayed at {replay}")),
            None => Capability {
                fix: Some(VLLM_KV_EVENTS.to_owned()),
                ..present(kind, format!("published at {endpoint}, but lost events cannot be replayed"))
            },
        }
    }

    async fn vllm_render(&self) -> Capability {
        let kind = CapabilityKind::Render;
        let path = "/v1/chat/completions/render";
        match self.control.post(path, self.chat("hi", &[])).await {
            Ok(answer) if answer.ok() => present(kind, format!("{path} answers")),
            Ok(answer) => missing(
                kind,
                format!("{path}: status {}", answer.status.as_u16()),
                Some("--enable-scale-out"),
            ),
            Err(error) => unknown(kind, error.to_string(), Some("--enable-scale-out")),
        }
    }

    async fn vllm_priority(&self) -> Capability {
        let kind = CapabilityKind::Priority;
        let fix = Some("--scheduling-policy priority");
        if !self.active {
            return unknown(kind, "told only by a request", fix);
        }
        let body = self.chat("hi", &[("priority", Value::from(1))]);
        match self.control.post("/v1/chat/completions", body).await {
            Ok(answer) if answer.ok() => present(kind, "a request with a priority is accepted"),
            Ok(answer) if answer.status.as_u16() == 400 => {
                missing(kind, "a request with a priority is refused", fix)
            }
            Ok(answer) => unknown(kind, format!("a request got status {}", answer.status.as_u16()), fix),
            Err(error) => unknown(kind, error.to_string(), fix),
        }
    }

    /// Sends the same prompt, longer than any usual block, twice: vLLM reports cached tokens only when there
    /// are some.
    async fn cached_tokens(&self) -> Capability {
        let kind = CapabilityKind::CachedTokens;
        let fix = match self.survey.kind {
            EngineKind::Vllm => Some("--enable-prompt-tokens-details"),
            EngineKind::Sglang => Some("--enable-cache-report"),
            EngineKind::OpenAi => None,
        };
        if !self.active {
            return unknown(kind, "told only by a request", fix);
        }
        let body = self.chat(&"The quick brown fox jumps over the lazy dog. ".repeat(64), &[]);
        let mut last = Value::Null;
        for _ in 0..2 {
            match self.control.post("/v1/chat/completions", body.clone()).await {
                Ok(answer) if answer.ok() => {
                    last = serde_json::from_slice(&answer.body).unwrap_or_default();
                }
                Ok(answer) => {
                    return unknown(kind, format!("a request got status {}", answer.status.as_u16()), fix);
                }
                Err(error) => return unknown(kind, error.to_string(), fix),
            }
        }
        match last.pointer("/usage/prompt_tokens_details/cached_tokens").and_then(Value::as_u64) {
            Some(0) => present(kind, "reported, but a repeated prompt was not cached: is prefix caching on?"),
            Some(tokens) => present(kind, format!("{tokens} tokens of a repeated prompt reported as cached")),
            None => missing(kind, "the usage of a repeated prompt names no cached tokens", fix),
        }
    }

    async fn sglang(&self, version: &mut Option<String>) -> Vec<Capability> {
        let (info, tokenize) = tokio::join!(
            survey::sglang_info(self.control),
            self.control.post("/tokenize", self.chat("hi", &[]))
        );
        let info = info.unwrap_or_default();
        let cached = if self.active {
            self.cached_tokens().await
        } else {
            flag(CapabilityKind::CachedTokens, info.enable_cache_report, "--enable-cache-report")
        };
        let kv_events = match (&info.kv_events_config, info.disable_radix_cache) {
            (_, Some(true)) => missing(
                CapabilityKind::KvEvents,
                "the prefix cache is off",
                Some("remove --disable-radix-cache"),
            ),
            (Some(config), _) => present(CapabilityKind::KvEvents, format!("published as {config}")),
            (None, _) => {
                missing(CapabilityKind::KvEvents, "no kv events are published", Some(SGLANG_KV_EVENTS))
            }
        };
        let load = match self.survey.load_source {
            LoadSource::Loads => present(CapabilityKind::Load, "per rank from /v1/loads"),
            LoadSource::Metrics => present(CapabilityKind::Load, "per rank from /metrics"),
            LoadSource::Unknown | LoadSource::ServerInfo | LoadSource::Nothing => {
                missing(CapabilityKind::Load, "neither /v1/loads nor /metrics", Some("--enable-metrics"))
            }
        };
        let render = match tokenize {
            Ok(answer) if answer.ok() => present(CapabilityKind::Render, "/tokenize takes messages"),
            Ok(answer) => missing(
                CapabilityKind::Render,
                format!("/tokenize with messages: status {}", answer.status.as_u16()),
                Some("upgrade sglang to 0.5.23 or newer"),
            ),
            Err(error) => unknown(CapabilityKind::Render, error.to_string(), None),
        };
        let seen = self.survey.version.clone().or_else(|| info.version.clone());
        let sessions = sessions(seen.as_deref(), SGLANG_SESSIONS, "sglang");
        *version = seen;
        vec![
            kv_events,
            cached,
            flag(CapabilityKind::Metrics, info.enable_metrics, "--enable-metrics"),
            load,
            self.capacity(None),
            flag(CapabilityKind::Priority, info.enable_priority_scheduling, "--enable-priority-scheduling"),
            render,
            sessions,
        ]
    }

    async fn other(&self, hint: EngineKindHint) -> Vec<Capability> {
        let llamacpp = self.survey.llamacpp;
        let metrics = self.survey.load_source == LoadSource::Metrics;
        let fix = llamacpp.then_some("--metrics");
        let none = "this engine does not offer it";
        let seen = |kind| {
            if metrics {
                present(kind, "from /metrics")
            } else {
                missing(kind, if llamacpp { "/metrics is off" } else { none }, fix)
            }
        };
        let mut list = vec![
            missing(CapabilityKind::KvEvents, none, None),
            self.cached_tokens().await,
            seen(CapabilityKind::Metrics),
            seen(CapabilityKind::Load),
            self.capacity(None),
            missing(CapabilityKind::Priority, none, None),
            missing(CapabilityKind::Render, none, None),
            missing(CapabilityKind::SessionIds, none, None),
        ];
        if hint == EngineKindHint::Auto && !llamacpp {
            for capability in list.iter_mut().filter(|c| c.presence == Presence::Missing) {
                "not recognised as vllm or sglang; if it is one, say kind=vllm or kind=sglang"
                    .clone_into(&mut capability.detail);
            }
        }
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        assert_eq!(version_numbers("0.32.0"), Some((0, 32, 0)));
        assert_eq!(version_numbers("v0.9.1.dev3+g1a2b"), Some((0, 9, 1)));
        assert_eq!(version_numbers("0.5.15.post1"), Some((0, 5, 15)));
        assert_eq!(version_numbers("0.33rc1"), Some((0, 33, 0)));
        assert_eq!(version_numbers("main"), None);
        assert!(version_numbers("0.9.2") < Some(VLLM_SESSIONS), "9 is less than 32");
    }
}
