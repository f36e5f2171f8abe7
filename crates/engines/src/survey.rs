//! Finding out what an engine is and how it does, through its own endpoints.
//!
//! - Make: the user's word; else `owned_by` of `/v1/models`; else whose `/server_info` or `/version` answers.
//! - Health: vLLM `/health`; SGLang `/model_info`, because its `/health` generates a token, takes seconds on a
//!   busy engine and makes KV events of its own; others `/health`. A route that is not there is passed over for
//!   the next, at last `/v1/models`.
//! - Load: vLLM `/metrics`; SGLang `/v1/loads`, else `/metrics`, else capacity from `/server_info`; llama.cpp
//!   `/metrics`; others nothing.
//! - Invariants: I-SUR-1 an engine without any of these but with `/v1/models` is usable; I-SUR-2 an engine is
//!   ready only after a health route or `/v1/models` answered with success.
//! - Sources: vLLM 0.32, SGLang 0.5.23, llama.cpp's server, as measured.

use std::collections::BTreeMap;

use http::StatusCode;
use tandem_types::EngineKind;

use crate::control::{Answer, Control};
use crate::engine::SplitInfo;
use crate::spec::EngineKindHint;
use crate::state::{LoadSource, ModelInfo, WorkerStatus};
use crate::{metrics, wire};

/// What an engine is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Survey {
    pub(crate) kind: EngineKind,
    /// llama.cpp, which tells its load in `/metrics`.
    pub(crate) llamacpp: bool,
    pub(crate) version: Option<String>,
    pub(crate) models: Vec<ModelInfo>,
    pub(crate) load_source: LoadSource,
    /// At least one worker.
    pub(crate) workers: BTreeMap<u32, WorkerStatus>,
    pub(crate) split: SplitInfo,
    /// Index into [`health_paths`].
    pub(crate) health_path: usize,
}

/// Load reports of one poll.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Loads {
    pub(crate) source: LoadSource,
    pub(crate) workers: BTreeMap<u32, WorkerStatus>,
    pub(crate) version: Option<String>,
    /// vLLM's sleep mode.
    pub(crate) asleep: bool,
}

impl Loads {
    const fn nothing() -> Self {
        Self { source: LoadSource::Nothing, workers: BTreeMap::new(), version: None, asleep: false }
    }
}

/// Why a sleeping engine is not ready.
pub(crate) const ASLEEP: &str = "the engine sleeps: wake it up with POST /wake_up";

const fn health_paths(kind: EngineKind) -> &'static [&'static str] {
    match kind {
        EngineKind::Vllm | EngineKind::OpenAi => &["/health", "/v1/models"],
        EngineKind::Sglang => &["/model_info", "/get_model_info", "/v1/models"],
    }
}

/// Asks whether the engine is well. `path` is where to begin, and is moved past routes that are not there.
pub(crate) async fn health(control: &Control, kind: EngineKind, path: &mut usize) -> Result<(), String> {
    let paths = health_paths(kind);
    loop {
        let Some(at) = paths.get(*path) else {
            return Err(
                "neither /v1/models nor a health route is there: is this an inference engine?".to_owned()
            );
        };
        let answer = control.get(at).await.map_err(|e| e.to_string())?;
        if answer.ok() {
            return Ok(());
        }
        if !answer.no_such_route() {
            return Err(status_error(at, answer.status));
        }
        *path += 1;
    }
}

fn status_error(path: &str, status: StatusCode) -> String {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            format!("{path}: status {}: set the engine's api_key", status.as_u16())
        }
        status => format!("{path}: status {}", status.as_u16()),
    }
}

/// `/v1/models`; an empty list with `None` when the engine has no such route.
async fn models(control: &Control) -> Result<Option<wire::Models>, String> {
    let answer = control.get("/v1/models").await.map_err(|e| e.to_string())?;
    if answer.no_such_route() {
        return Ok(None);
    }
    if !answer.ok() {
        return Err(status_error("/v1/models", answer.status));
    }
    wire::models(&answer.body).map(Some).ok_or_else(|| "/v1/models: not a list of models".to_owned())
}

/// A body, if the route answers with success.
async fn body_of(control: &Control, path: &str) -> Option<Answer> {
    control.get(path).await.ok().filter(Answer::ok)
}

/// SGLang's description of itself, under its present or its former name.
pub(crate) async fn sglang_info(control: &Control) -> Option<wire::SglangInfo> {
    let answer = match body_of(control, "/server_info").await {
        Some(answer) => answer,
        None => body_of(control, "/get_server_info").await?,
    };
    wire::sglang_info(&answer.body)
}

async fn detect(control: &Control, hint: EngineKindHint, listed: Option<EngineKind>) -> EngineKind {
    match (hint, listed) {
        (EngineKindHint::Vllm, _) => return EngineKind::Vllm,
        (EngineKindHint::Sglang, _) => return EngineKind::Sglang,
        (EngineKindHint::OpenAi, _) => return EngineKind::OpenAi,
        (EngineKindHint::Auto, Some(kind)) => return kind,
        (EngineKindHint::Auto, None) => {}
    }
    let (info, version) = tokio::join!(sglang_info(control), body_of(control, "/version"));
    if info.is_some() {
        EngineKind::Sglang
    } else if version.is_some_and(|a| wire::version(&a.body).is_some()) {
        EngineKind::Vllm
    } else {
        EngineKind::OpenAi
    }
}

/// Finds out everything. Health is part of it: an engine that is not well gives an error.
pub(crate) async fn survey(control: &Control, hint: EngineKindHint) -> Result<Survey, String> {
    let listed = models(control).await?;
    let llamacpp = listed.as_ref().is_some_and(|l| l.llamacpp);
    let kind = detect(control, hint, listed.as_ref().and_then(|l| l.kind)).await;
    let mut health_path = 0;
    let version = async {
        match kind {
            EngineKind::Vllm => {
                body_of(control, "/version").await.and_then(|answer| wire::version(&answer.body))
            }
            EngineKind::Sglang | EngineKind::OpenAi => None,
        }
    };
    let split = async {
        match kind {
            EngineKind::Sglang => sglang_info(control).await.map(|info| info.split()).unwrap_or_default(),
            EngineKind::Vllm | EngineKind::OpenAi => SplitInfo::default(),
        }
    };
    let (well, version, split, loads) = tokio::join!(
        health(control, kind, &mut health_path),
        version,
        split,
        loads(control, kind, LoadSource::Unknown, llamacpp)
    );
    well?;
    // Failing to tell its load does not make an engine unusable.
    let loads = loads.unwrap_or_else(|_| Loads { source: LoadSource::Unknown, ..Loads::nothing() });
    if loads.asleep {
        return Err(ASLEEP.to_owned());
    }
    let mut workers = loads.workers;
    normalise(&mut workers);
    Ok(Survey {
        kind,
        llamacpp,
        version: version.or(loads.version),
        models: listed.map(|l| l.models).unwrap_or_default(),
        load_source: loads.source,
        workers,
        split,
        health_path,
    })
}

/// A lone worker has rank 0 whatever the engine calls it (one server of an externally balanced deployment
/// reports its own rank, but is not to be pinned), and there is always one.
pub(crate) fn normalise(workers: &mut BTreeMap<u32, WorkerStatus>) {
    if workers.len() <= 1 {
        let only = workers.pop_first().map(|(_, status)| status).unwrap_or_default();
        workers.insert(0, only);
    }
}

/// Asks for the load. `source` is where it came from the last time.
pub(crate) async fn loads(
    control: &Control,
    kind: EngineKind,
    source: LoadSource,
    llamacpp: bool,
) -> Result<Loads, String> {
    match kind {
        EngineKind::Vllm => from_metrics(control, metrics::vllm).await,
        EngineKind::OpenAi if llamacpp => from_metrics(control, metrics::llamacpp).await,
        EngineKind::OpenAi => Ok(Loads::nothing()),
        EngineKind::Sglang => sglang_loads(control, source).await,
    }
}

async fn from_metrics(
    control: &Control,
    parse: fn(&str) -> BTreeMap<u32, WorkerStatus>,
) -> Result<Loads, String> {
    let answer = control.get("/metrics").await.map_err(|e| e.to_string())?;
    if answer.no_such_route() {
        return Ok(Loads::nothing());
    }
    if !answer.ok() {
        return Err(status_error("/metrics", answer.status));
    }
    let text = String::from_utf8_lossy(&answer.body);
    let workers = parse(&text);
    if workers.is_empty() {
        return Ok(Loads::nothing());
    }
    Ok(Loads { source: LoadSource::Metrics, workers, version: None, asleep: metrics::vllm_sleeps(&text) })
}

async fn sglang_loads(control: &Control, source: LoadSource) -> Result<Loads, String> {
    if matches!(source, LoadSource::Unknown | LoadSource::Loads) {
        let answer = control.get("/v1/loads").await.map_err(|e| e.to_string())?;
        if let Some(got) = answer.ok().then(|| wire::sglang_loads(&answer.body)).flatten() {
            return Ok(Loads {
                source: LoadSource::Loads,
                workers: got.ranks,
                version: got.version,
                asleep: false,
            });
        }
        if source == LoadSource::Loads && !answer.no_such_route() {
            return Err(status_error("/v1/loads", answer.status));
        }
    }
    if source != LoadSource::ServerInfo {
        let got = from_metrics(control, metrics::sglang).await;
        match got {
            Ok(got) if got.source == LoadSource::Metrics => return Ok(got),
            Err(error) if source == LoadSource::Metrics => return Err(error),
            _ => {}
        }
    }
    let info = sglang_info(control).await;
    Ok(info.map_or_else(Loads::nothing, |info| Loads {
        source: LoadSource::ServerInfo,
        workers: info.ranks(),
        version: info.version,
        asleep: false,
    }))
}
