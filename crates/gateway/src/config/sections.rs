//! The sections of [`Config`](super::Config), each with its defaults.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tandem_engines::EnginesConfig;
use tandem_identity::{Handling, HygieneConfig, IdentityConfig};
use tandem_scheduler::SchedulerConfig;
use tandem_trace::config::TraceConfig;

use super::units::{Secret, Size, Span};
use crate::otlp::OtelEnvironment;

/// One engine.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Worker {
    /// Where: `http://gpu-1:8000`, or `dns://engines.example:8000` for all addresses of a name.
    #[serde(serialize_with = "super::units::url_without_key")]
    #[schemars(with = "String")]
    pub url: String,
    /// Its make; `auto` finds out.
    #[serde(default)]
    pub kind: WorkerKind,
    /// Key sent to it as `Authorization: Bearer`.
    #[serde(default)]
    pub api_key: Option<Secret>,
    /// Most turns that run at once on each of its data-parallel ranks; unset leaves the queueing to it.
    #[serde(default)]
    pub max_running: Option<u32>,
}

/// An engine's make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WorkerKind {
    /// Found out by asking it.
    #[default]
    Auto,
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// Anything else with the OpenAI API.
    #[serde(rename = "openai")]
    OpenAi,
}

/// Time limits.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Timeouts {
    /// To reach an engine.
    pub connect: Span,
    /// Until an engine's response head. Engines answer calls that do not stream only when all is
    /// generated, so this is long.
    pub response_head: Span,
    /// Longest silence inside an engine's answer (a long prefill is silent).
    pub stream_idle: Span,
    /// Until a client has sent the head of its request; on a connection that it keeps, from the answer before.
    pub client_head: Span,
    /// Longest silence inside a client's request body.
    pub client_body_idle: Span,
    /// For count, model list and other small calls to engines.
    pub small_call: Span,
    /// At shutdown, how long calls under way may still take.
    pub shutdown_grace: Span,
    /// At shutdown, how long new connections are still taken while load balancers notice that readiness
    /// is gone.
    pub shutdown_delay: Span,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Span::secs(5),
            response_head: Span::secs(1800),
            stream_idle: Span::secs(600),
            // Longer than the longest `Retry-After`, or who comes back then finds the connection just being closed.
            client_head: Span::secs(75),
            client_body_idle: Span::secs(60),
            small_call: Span::secs(30),
            shutdown_grace: Span::secs(180),
            shutdown_delay: Span::secs(0),
        }
    }
}

/// Size limits.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Largest request body; larger ones are refused with 413.
    pub max_payload_size: Size,
    /// Request bodies held in memory, all together; a call that does not fit waits, then gets 503.
    pub body_memory: Size,
    /// Most headers of a request; more are refused with 431.
    pub max_headers: usize,
    /// Largest request head; larger ones are refused with 431.
    pub max_header_bytes: Size,
    /// Most client connections at once; more wait in the kernel's queue.
    pub max_connections: usize,
    /// Largest answer that is collected before it is passed on, where the client did not ask for a stream.
    /// Larger ones are passed on as they come, without their usage being read.
    pub answer_buffer: Size,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_payload_size: Size::mib(64),
            body_memory: Size::mib(2048),
            max_headers: 256,
            max_header_bytes: Size::kib(256),
            max_connections: 65_536,
            answer_buffer: Size::mib(16),
        }
    }
}

/// How long turns are kept waiting for a worker. The harness's own measured limit always applies as well.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Hold {
    /// Longest wait.
    pub max: Span,
    /// How often a client that is kept waiting behind an early 200 gets a sign of life.
    pub keep_alive: Span,
    /// Whether a stream may be answered with an early 200 and keep-alive events while it is held.
    pub early_200: bool,
}

impl Default for Hold {
    fn default() -> Self {
        Self { max: Span::secs(1800), keep_alive: Span::secs(10), early_200: true }
    }
}

/// Repeated tries on other engines, only before the first byte of an answer.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Retry {
    /// Most tries in all, the first included; 1 = no retries.
    pub max_attempts: u32,
    /// Wait before the second try; doubles each time, the real wait is drawn from its upper half.
    pub initial_backoff: Span,
    /// Longest wait between two tries.
    pub max_backoff: Span,
}

impl Default for Retry {
    fn default() -> Self {
        let scheduler = SchedulerConfig::default();
        Self {
            max_attempts: scheduler.attempts_max,
            initial_backoff: Span(scheduler.backoff_first),
            max_backoff: Span(scheduler.backoff_max),
        }
    }
}

/// When an engine is left alone. Only failures of the engine count, never its refusals of a request.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Breaker {
    /// Failures in a row that open it; 0 switches it off.
    pub failure_threshold: u32,
    /// How long the engine is left alone at first; doubles each time that the probe fails.
    pub timeout: Span,
    /// Longest such time.
    pub max_timeout: Span,
}

impl Default for Breaker {
    fn default() -> Self {
        let breaker = SchedulerConfig::default().breaker;
        Self {
            failure_threshold: breaker.failures_to_open,
            timeout: Span(breaker.open_first),
            max_timeout: Span(breaker.open_max),
        }
    }
}

/// How engines are watched.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Health {
    /// Time between two checks of a ready engine.
    pub interval: Span,
    /// How long any check may take.
    pub timeout: Span,
    /// Failed checks in a row after which an engine gets no more turns.
    pub failure_threshold: u32,
    /// Good checks in a row after which it gets turns again. A new engine needs one.
    pub success_threshold: u32,
    /// Time between two readings of an engine's load.
    pub load_interval: Span,
    /// Time between two readings of an engine's models, version and capacity.
    pub models_interval: Span,
    /// Time between look-ups of names that stand for several engines (`dns://`).
    pub dns_interval: Span,
    /// How long turns for models that nobody serves wait for engines that never reported yet.
    pub startup_grace: Span,
}

impl Default for Health {
    fn default() -> Self {
        let engines = EnginesConfig::default();
        Self {
            interval: Span(engines.health_interval),
            timeout: Span(engines.probe_timeout),
            failure_threshold: engines.fail_threshold,
            success_threshold: engines.ok_threshold,
            load_interval: Span(engines.load_interval),
            models_interval: Span(engines.models_interval),
            dns_interval: Span(engines.dns_interval),
            startup_grace: Span(SchedulerConfig::default().startup_grace),
        }
    }
}

/// Models whose prompts and answers have workers of their own (`role=prefill`, `role=decode`).
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Pd {
    /// When a worker for answers computes a prompt itself: `off`, `auto`, or the most tokens that it may lack.
    /// vLLM only.
    pub local_prefill: LocalPrefill,
    /// What serves a turn when no pair of workers can.
    pub fallback: Fallback,
}

/// When a worker for answers computes a prompt itself.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum LocalPrefill {
    /// By name.
    Named(LocalPrefillName),
    /// When it lacks this many tokens at most.
    Tokens(u64),
}

/// When a worker for answers computes a prompt itself, by name.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LocalPrefillName {
    /// Never.
    Off,
    /// When it lacks so little that the answers beside it hardly slow down.
    Auto,
}

impl Default for LocalPrefill {
    fn default() -> Self {
        Self::Named(LocalPrefillName::Auto)
    }
}

/// What serves a turn when no pair of workers can.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Fallback {
    /// Nothing: it waits.
    Hold,
    /// A worker that does both, where there is one.
    #[default]
    Aggregated,
    /// The same; and, while no worker for prompts is ready, a worker for answers (vLLM only).
    Alone,
}

impl Pd {
    /// As the scheduler has it.
    pub(super) const fn scheduler(&self) -> tandem_scheduler::PdConfig {
        tandem_scheduler::PdConfig {
            local_prefill: match self.local_prefill {
                LocalPrefill::Named(LocalPrefillName::Off) => tandem_scheduler::LocalPrefill::Off,
                LocalPrefill::Named(LocalPrefillName::Auto) => tandem_scheduler::LocalPrefill::Auto,
                LocalPrefill::Tokens(tokens) => tandem_scheduler::LocalPrefill::Tokens(tokens),
            },
            fallback: match self.fallback {
                Fallback::Hold => tandem_scheduler::PdFallback::Hold,
                Fallback::Aggregated => tandem_scheduler::PdFallback::Aggregated,
                Fallback::Alone => tandem_scheduler::PdFallback::Alone,
            },
        }
    }
}

/// What is remembered of sessions.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Sessions {
    /// Most programs (agents of sessions) remembered; the longest idle ones are forgotten first.
    pub max: usize,
    /// How long an idle program is remembered. No harness says when a session ends.
    pub idle_timeout: Span,
}

impl Default for Sessions {
    fn default() -> Self {
        let scheduler = SchedulerConfig::default();
        Self { max: scheduler.programs_max, idle_timeout: Span(scheduler.program_idle_ttl) }
    }
}

/// Where what is known of sessions is kept, so that a restart finds it again.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct State {
    /// The directory, of this gateway alone; made if need be. Unset: sessions are forgotten with the process. No
    /// content is kept: ids, addresses of engines, hashes, lengths and counts.
    pub dir: Option<String>,
    /// Most bytes of what is kept; the longest idle sessions leave first. The file may be two and a half times as large.
    pub max_size: Size,
}

impl Default for State {
    fn default() -> Self {
        Self { dir: None, max_size: Size::mib(1024) }
    }
}

/// The same as the gateway runs on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateSettings {
    /// The directory.
    pub folder: std::path::PathBuf,
    /// Most bytes of keys and values.
    pub max_size: u64,
}

impl State {
    pub(super) fn resolve(&self) -> Option<StateSettings> {
        let dir = self.dir.as_ref()?;
        Some(StateSettings { folder: dir.into(), max_size: self.max_size.0 })
    }
}

/// Who may call. Without keys everybody may, as the tenant `default`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Auth {
    /// Keys that clients present as `Authorization: Bearer` or `x-api-key`.
    pub api_keys: Vec<ApiKey>,
    /// A header that names the tenant, set by a trusted proxy in front (such as `x-smg-tenant-id`). Never
    /// name one here that clients can set themselves.
    pub trusted_tenant_header: Option<String>,
    /// Keep the tenants' cached prompts apart in the engines, by a salt of each tenant's own. Unset: where
    /// several tenants are configured.
    pub salt_caches: Option<bool>,
}

/// A client's key.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApiKey {
    /// The key.
    pub key: Secret,
    /// Whose it is. Sessions, traces and caches of one tenant are invisible to others.
    #[serde(default = "default_tenant")]
    pub tenant: String,
}

fn default_tenant() -> String {
    "default".to_owned()
}

/// Browser access; off unless origins are named.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Cors {
    /// Origins that may call from a browser, such as `https://app.example.com`; `*` = any.
    pub allowed_origins: Vec<String>,
}

/// TLS towards clients. The files are read again on SIGHUP.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// Certificate chain, PEM.
    pub cert: String,
    /// Private key, PEM.
    pub key: String,
}

/// TLS towards engines.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EngineTls {
    /// Certificates to trust beside the system's, PEM.
    pub ca: Option<String>,
    /// Certificate chain to show to engines that ask for one, PEM; needs `key`.
    pub cert: Option<String>,
    /// Its private key, PEM.
    pub key: Option<String>,
    /// Accept any certificate. Encrypts, but does not tell who is at the other end.
    pub insecure_skip_verify: bool,
}

/// The request trace: one row per turn, without content.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Trace {
    /// Whether to write it.
    pub enabled: bool,
    /// Where to: `file`, `stderr`, `otel`.
    pub sinks: Vec<TraceSink>,
    /// The file (`jsonl`), or the prefix of its segments (`jsonl_gz`).
    pub path: String,
    /// Form of the file.
    pub format: TraceFormat,
    /// Which rows the main file holds; the others go to its companion.
    pub rows: TraceRows,
    /// Rows that may wait for the writer; more are lost and counted.
    pub capacity: usize,
    /// Longest time until a row is on disk.
    pub flush_interval: Span,
    /// Uncompressed size at which a segment is closed and the next one begun.
    pub roll_size: Size,
    /// Our own rows on admission and routing beside the standard ones.
    pub decisions: bool,
    /// Where the token ids come from of which the rows carry block hashes.
    pub tokens: TraceTokens,
    /// Hash generated tokens too, so that a replay knows what the next prompt reuses.
    pub output_hashes: bool,
    /// Tokens in a hashed block.
    pub block_size: u32,
    /// Where the `otel` sink sends to, such as `http://collector:4318`; without a path, `/v1/logs` is
    /// added. `OTEL_EXPORTER_OTLP_LOGS_ENDPOINT` and `OTEL_EXPORTER_OTLP_ENDPOINT` beat it; unset and
    /// without these it is `http://localhost:4318/v1/logs`.
    pub otel_endpoint: Option<String>,
    /// What the environment says (`TANDEM_TRACE*`, `DYN_REQUEST_TRACE*`): it beats the keys above.
    #[serde(skip)]
    #[schemars(skip)]
    pub environment: Option<Box<TraceConfig>>,
    /// What it says of the way to a collector (`OTEL_*`).
    #[serde(skip)]
    #[schemars(skip)]
    pub otel_environment: OtelEnvironment,
}

impl Default for Trace {
    fn default() -> Self {
        let trace = TraceConfig::default();
        Self {
            enabled: false,
            sinks: vec![TraceSink::File],
            path: trace.path.to_string_lossy().into_owned(),
            format: TraceFormat::JsonlGz,
            rows: TraceRows::Loadable,
            capacity: 16_384,
            flush_interval: Span(trace.flush_interval),
            roll_size: Size(trace.roll_bytes),
            decisions: true,
            tokens: TraceTokens::Seen,
            output_hashes: trace.output_hashes,
            block_size: 16,
            otel_endpoint: None,
            environment: None,
            otel_environment: OtelEnvironment::default(),
        }
    }
}

/// Where trace rows go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TraceSink {
    /// Files.
    File,
    /// The error stream.
    Stderr,
    /// An OpenTelemetry collector, as OTLP logs; only in builds with the feature `otlp`.
    Otel,
}

/// Form of trace files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TraceFormat {
    /// One plain file that is appended to.
    Jsonl,
    /// Numbered gzip segments.
    JsonlGz,
}

impl std::str::FromStr for TraceFormat {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "jsonl" => Ok(Self::Jsonl),
            "jsonl_gz" => Ok(Self::JsonlGz),
            _ => Err("expected jsonl or jsonl_gz"),
        }
    }
}

/// Which rows the main trace file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TraceRows {
    /// Those that replay tools can load.
    Loadable,
    /// Those of them that belong to a session.
    Agentic,
    /// All.
    All,
}

/// Where a trace's token ids come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TraceTokens {
    /// No hashes.
    Off,
    /// What passes by anyway: prompts sent as token ids, ids that the client asked the engine for.
    #[default]
    Seen,
    /// The engine is asked to render each prompt once more in the background (vLLM).
    Render,
}

/// Where tool events come in, beside `POST /v1/tool_events` of the admin API.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ToolEvents {
    /// ZeroMQ PULL address to bind, such as `tcp://127.0.0.1:20390`.
    pub zmq_endpoint: Option<String>,
    /// The topic that the first frame must carry.
    pub zmq_topic: String,
}

impl Default for ToolEvents {
    fn default() -> Self {
        Self { zmq_endpoint: None, zmq_topic: "agent-tool-events".to_owned() }
    }
}

/// How sessions are recognised. The headers of known harnesses always count.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches that people set by name")]
pub struct IdentityKeys {
    /// Use headers that no harness owns (`x-session-id`, `session_id`, `x-session-affinity`, ...).
    pub generic_headers: bool,
    /// Use fields of the request body.
    pub body_fields: bool,
    /// Use the W3C trace id, for harnesses known to keep one per run.
    pub trace_parent: bool,
    /// Where nothing else tells: a turn whose prompt extends what one live session has seen is that session's next
    /// turn. Works only where an index of caches is kept (`kv.enabled`).
    pub infer: bool,
    /// Keep harness headers verbatim for the trace.
    pub capture_headers: bool,
    /// Keep also those that describe the user's machine.
    pub capture_private_headers: bool,
}

impl Default for IdentityKeys {
    fn default() -> Self {
        let identity = IdentityConfig::default();
        Self {
            generic_headers: identity.generic_headers,
            body_fields: identity.body_fields,
            trace_parent: identity.trace_parent,
            infer: false,
            capture_headers: identity.capture_headers,
            capture_private_headers: identity.capture_private_headers,
        }
    }
}

/// What is done with volatile text that harnesses put at the head of prompts, where it spoils the cache.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Hygiene {
    /// Claude Code's billing line, the first text of its system prompt.
    pub billing_line: VolatileText,
    /// Token budget and token usage markers at the head of the system prompt.
    pub token_budget: VolatileText,
    /// OpenHands' start time with microseconds.
    pub date_time: VolatileText,
}

impl Default for Hygiene {
    fn default() -> Self {
        let hygiene = HygieneConfig::default();
        Self {
            billing_line: hygiene.billing_line.into(),
            token_budget: hygiene.token_budget.into(),
            date_time: hygiene.date_time.into(),
        }
    }
}

/// What to do with a kind of volatile text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VolatileText {
    /// Take it out.
    Remove,
    /// Put constant text in its place.
    Freeze,
    /// Count it only.
    Keep,
}

impl From<Handling> for VolatileText {
    fn from(handling: Handling) -> Self {
        match handling {
            Handling::Remove => Self::Remove,
            Handling::Freeze => Self::Freeze,
            Handling::Keep => Self::Keep,
        }
    }
}

impl From<VolatileText> for Handling {
    fn from(text: VolatileText) -> Self {
        match text {
            VolatileText::Remove => Self::Remove,
            VolatileText::Freeze => Self::Freeze,
            VolatileText::Keep => Self::Keep,
        }
    }
}
