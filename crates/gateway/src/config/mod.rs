//! Configuration in two layers: [`Config`] is what people write (file, environment, flags), [`Resolved`] is
//! what the gateway runs on: validated and unit-typed. Names follow the router family where it has them.
//!
//! Invariants: I-CFG-1 every key has a default, so an empty file is valid but for the workers; I-CFG-2 an
//! unknown key is an error, not ignored; I-CFG-3 secrets are never written back.

mod admission;
mod kv;
mod resolved;
mod routing;
mod sections;
mod units;

pub use admission::{Admission, IdleLeaseGate, TandemGate, ThunderAgentGate};
pub use kv::{Kv, KvSettings, KvStore, PromptSource, StoreKind, TokenizerArg};
pub use resolved::{ConfigError, Listen, Resolved, Tenancy, TlsFiles, apply_trace_environment};
pub use routing::{Routing, RoutingKv};
pub use sections::{
    ApiKey, Auth, Breaker, Cors, EngineTls, Fallback, Health, Hold, Hygiene, IdentityKeys, Limits,
    LocalPrefill, LocalPrefillName, Pd, Retry, Sessions, State, StateSettings, Timeouts, Tls, ToolEvents,
    Trace, TraceFormat, TraceRows, TraceSink, TraceTokens, VolatileText, Worker, WorkerKind,
};
pub use units::{Secret, Size, Span, UnitError};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The port for inference, as in the router family.
pub const DEFAULT_PORT: u16 = 30000;
/// The admin API's port.
pub const DEFAULT_ADMIN_PORT: u16 = 30001;
/// The port for Prometheus, as in the router family.
pub const DEFAULT_METRICS_PORT: u16 = 29000;

/// The gateway's configuration as people write it.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Engines, such as `http://gpu-1:8000`, `http://gpu-2:8000@kind=vllm,max_running=64` or
    /// `dns://engines.example:8000`.
    #[serde(serialize_with = "units::urls_without_keys")]
    #[schemars(with = "Vec<String>")]
    pub worker_urls: Vec<String>,
    /// Engines that need more than a URL.
    pub workers: Vec<Worker>,
    /// Key sent to every engine as `Authorization: Bearer`, unless the engine has its own.
    pub worker_api_key: Option<Secret>,
    /// The routing policy, by name.
    pub policy: String,
    /// Seed of everything random: the same seed and the same inputs give the same decisions.
    pub seed: u64,
    /// Address for inference calls.
    pub host: String,
    /// Port for inference calls; 0 takes a free one. Default 30000.
    pub port: u16,
    /// Address of the admin API. Keep it on loopback: it has no keys of its own.
    pub admin_host: String,
    /// Port of the admin API; 0 takes a free one. Default 30001, or a free one when that is taken.
    pub admin_port: Option<u16>,
    /// Address for Prometheus.
    pub prometheus_host: String,
    /// Port for Prometheus; 0 takes a free one. Default 29000, or a free one when that is taken.
    pub prometheus_port: Option<u16>,
    /// Longest time that one call may take, holding included.
    pub request_timeout: Span,
    /// Most calls served at once (held ones included); more are refused with 503.
    pub max_concurrent_requests: usize,
    /// Most turns that may wait for a worker; more are refused with 503.
    pub queue_size: usize,
    /// Write one line per call to the log (no content).
    pub log_requests: bool,
    /// Tell the client which worker answered, in `x-tandem-worker`.
    pub worker_header: bool,
    /// Send the client's `Authorization` and `x-api-key` on to engines that have no key configured. Unset:
    /// only where no client keys are configured here.
    pub forward_authorization: Option<bool>,
    /// Ask engines for the usage of every stream and take the extra chunk out again.
    pub ask_for_usage: bool,
    /// A file that receives all inputs of the scheduler, for an exact replay.
    pub record_inputs: Option<String>,
    /// Time limits.
    pub timeouts: Timeouts,
    /// Size limits.
    pub limits: Limits,
    /// Which turns may run now.
    pub admission: Admission,
    /// How long turns are kept waiting.
    pub hold: Hold,
    /// Repeated tries on other engines.
    pub retry: Retry,
    /// When an engine is left alone.
    pub breaker: Breaker,
    /// How engines are watched.
    pub health: Health,
    /// Models whose prompts and answers have workers of their own.
    pub pd: Pd,
    /// What is remembered of sessions.
    pub sessions: Sessions,
    /// Where what is known of sessions is kept.
    pub state: State,
    /// Who may call.
    pub auth: Auth,
    /// Browser access.
    pub cors: Cors,
    /// TLS towards clients.
    pub tls: Option<Tls>,
    /// TLS towards engines.
    pub engine_tls: EngineTls,
    /// The request trace.
    pub trace: Trace,
    /// Where tool events come in.
    pub tool_events: ToolEvents,
    /// How sessions are recognised.
    pub identity: IdentityKeys,
    /// Volatile text at the head of prompts.
    pub hygiene: Hygiene,
    /// What routing policies go by.
    pub routing: Routing,
    /// Where KV lies and what prompts need.
    pub kv: Kv,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            worker_urls: Vec::new(),
            workers: Vec::new(),
            worker_api_key: None,
            policy: tandem_scheduler::SchedulerConfig::default().policy,
            seed: 0,
            host: "0.0.0.0".to_owned(),
            port: DEFAULT_PORT,
            admin_host: "127.0.0.1".to_owned(),
            admin_port: None,
            prometheus_host: "0.0.0.0".to_owned(),
            prometheus_port: None,
            request_timeout: Span::secs(1800),
            max_concurrent_requests: 16_384,
            queue_size: 4_096,
            log_requests: false,
            worker_header: true,
            forward_authorization: None,
            ask_for_usage: true,
            record_inputs: None,
            timeouts: Timeouts::default(),
            limits: Limits::default(),
            admission: Admission::default(),
            hold: Hold::default(),
            retry: Retry::default(),
            breaker: Breaker::default(),
            health: Health::default(),
            pd: Pd::default(),
            sessions: Sessions::default(),
            state: State::default(),
            auth: Auth::default(),
            cors: Cors::default(),
            tls: None,
            engine_tls: EngineTls::default(),
            trace: Trace::default(),
            tool_events: ToolEvents::default(),
            identity: IdentityKeys::default(),
            hygiene: Hygiene::default(),
            routing: Routing::default(),
            kv: Kv::default(),
        }
    }
}

impl Config {
    /// Validates the whole and turns it into what the gateway runs on.
    ///
    /// # Errors
    /// [`ConfigError`] names the key and says what would be right.
    pub fn resolve(self) -> Result<Resolved, ConfigError> {
        resolved::resolve(self)
    }

    /// The JSON schema of the configuration file.
    #[must_use]
    pub fn json_schema() -> serde_json::Value {
        schemars::schema_for!(Self).to_value()
    }
}
