//! What the registry tells: events for the scheduler, targets for the proxy, status for people.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::header::{self, HeaderMap, HeaderValue};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use tandem_types::{EngineId, EngineKind, LoadReport, WorkerId, WorkerInfo, WorkerRole};

use crate::headers::DATA_PARALLEL_RANK;
use crate::spec::{ApiKey, BaseUrl};

/// A change of a worker. Events of one engine come in order; a worker's first is `Up`.
#[derive(Debug, Clone, PartialEq)]
pub enum EngineEvent {
    /// Ready to take turns, or what is known of it changed. Also ends a `Draining`.
    Up {
        /// Which.
        worker: WorkerId,
        /// What is known of it.
        info: WorkerInfo,
    },
    /// Takes no new turns.
    Draining {
        /// Which.
        worker: WorkerId,
    },
    /// Not reachable or not ready.
    Down {
        /// Which.
        worker: WorkerId,
        /// Why, for people.
        reason: String,
    },
    /// Left for good.
    Removed {
        /// Which.
        worker: WorkerId,
    },
    /// Its own report of its load. The only event that may be left out when the receiver is slow.
    Load {
        /// Which.
        worker: WorkerId,
        /// The report.
        load: LoadReport,
    },
}

/// Everything needed to send a call to a worker. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Target {
    /// The engine's URL.
    pub base: Arc<BaseUrl>,
    /// Make of the engine.
    pub kind: EngineKind,
    /// The engine's own key.
    pub api_key: Option<ApiKey>,
    /// The rank to pin, where the engine has several.
    pub rank: Option<u32>,
    /// The `host` to show, where it differs from the URL's (engines found by DNS).
    pub host: Option<HeaderValue>,
    /// Where the workers of a split turn meet, for an engine that computes prompts (SGLang).
    pub bootstrap: Bootstrap,
    /// It schedules by the priority of calls.
    pub priority: bool,
}

/// Where the workers of a split turn meet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bootstrap {
    /// Host, an IPv6 address without its brackets.
    pub host: String,
    /// Port; `None` = SGLang's usual one.
    pub port: Option<u16>,
}

impl Bootstrap {
    /// SGLang's `--disaggregation-bootstrap-port` where nothing is said.
    pub const PORT: u16 = 8998;
}

impl Target {
    /// The engine's own `authorization` value, for [`request_headers`](crate::request_headers).
    #[must_use]
    pub fn authorization(&self) -> Option<&HeaderValue> {
        self.api_key.as_ref().map(ApiKey::header)
    }

    /// Sets the headers that choose this worker (`host`, the data-parallel rank) and show its key.
    pub fn apply(&self, headers: &mut HeaderMap) {
        if let Some(key) = self.authorization() {
            headers.insert(header::AUTHORIZATION, key.clone());
        }
        if let Some(host) = &self.host {
            headers.insert(header::HOST, host.clone());
        }
        if let Some(rank) = self.rank {
            headers.insert(DATA_PARALLEL_RANK, HeaderValue::from(rank));
        }
    }
}

/// Where an engine stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineState {
    /// Not ready yet since it was added.
    Starting,
    /// Takes turns.
    Ready,
    /// Finishes what it has.
    Draining,
    /// Was ready and is not any more.
    Down,
}

/// A model as the engine lists it. Two are equal when what routing needs of them is: engines draw some members
/// of an entry anew for each listing.
#[derive(Debug, Clone, Serialize)]
pub struct ModelInfo {
    /// The name to ask for.
    pub id: String,
    /// The base model of a LoRA adapter.
    pub parent: Option<String>,
    /// Longest context in tokens, where the engine tells.
    pub max_model_len: Option<u64>,
    /// The engine's own entry, as it wrote it; `None` for another name of a model whose entry is under the
    /// first.
    #[serde(skip)]
    pub entry: Option<Arc<RawValue>>,
}

impl PartialEq for ModelInfo {
    fn eq(&self, other: &Self) -> bool {
        (&self.id, &self.parent, self.max_model_len) == (&other.id, &other.parent, other.max_model_len)
    }
}

impl Eq for ModelInfo {}

/// Where an engine's load reports come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadSource {
    /// Not known yet.
    Unknown,
    /// `/metrics`.
    Metrics,
    /// SGLang's `/v1/loads`.
    Loads,
    /// SGLang's `/server_info`: capacity only.
    ServerInfo,
    /// The engine tells nothing.
    Nothing,
}

/// One worker of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct WorkerStatus {
    /// KV pool in tokens, where the engine tells.
    pub kv_capacity_tokens: Option<u64>,
    /// Its last load report.
    pub load: Option<LoadReport>,
}

/// Something that went wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LastError {
    /// What.
    pub text: String,
    /// How long ago.
    #[serde(rename = "ago_seconds", serialize_with = "as_seconds")]
    pub ago: Duration,
}

fn as_seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

/// An engine for people: admin API, log, `doctor`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EngineStatus {
    /// Its number.
    pub id: EngineId,
    /// Its URL.
    pub url: String,
    /// The name that it was found under, if it was found by DNS.
    pub found_by: Option<String>,
    /// Where it stands.
    pub state: EngineState,
    /// Time in this state.
    #[serde(rename = "since_seconds", serialize_with = "as_seconds")]
    pub since: Duration,
    /// Its make, once known.
    pub kind: Option<EngineKind>,
    /// Its version, where it tells.
    pub version: Option<String>,
    /// Its models.
    pub models: Vec<ModelInfo>,
    /// Its workers by data-parallel rank; one with rank 0 where there are no ranks.
    pub workers: BTreeMap<u32, WorkerStatus>,
    /// Where load reports come from.
    pub load_source: LoadSource,
    /// The last thing that went wrong. Kept when it is over.
    pub last_error: Option<LastError>,
    /// Consecutive failed health probes.
    pub failures: u32,
    /// Times that it went from ready to down.
    pub downs: u64,
    /// The part of the work that it does.
    pub role: WorkerRole,
    /// It loads LoRA adapters when a call asks for them.
    pub loads_adapters: bool,
    /// The user's labels without a value.
    pub tags: Vec<String>,
    /// The user's taints.
    pub taints: Vec<String>,
    /// The user's labels.
    pub labels: BTreeMap<String, String>,
}
