//! From [`Config`] to what the gateway runs on.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use tandem_engines::{
    ApiKey as EngineKey, ClientIdentity, EngineKindHint, EngineSpec, EnginesConfig, HttpConfig, SpecError,
    TlsConfig,
};
use tandem_identity::{HygieneConfig, IdentityConfig};
use tandem_scheduler::{ConfigError as SchedulerError, Scheduler, SchedulerConfig};
use tandem_trace::config::{FileFormat, Records, SinkKind, ToolZmq, TraceConfig};
use tandem_trace::record::Rows;
use tandem_types::{IdError, TenantId};

use super::kv::KvSettings;
use super::routing;
use super::sections::{self, TraceFormat, TraceRows, TraceSink, WorkerKind};
use super::units::Secret;
use super::{Config, DEFAULT_ADMIN_PORT, DEFAULT_METRICS_PORT};
use crate::otlp::{OtelEnvironment, OtlpConfig};

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Nobody to serve.
    #[error("no engines: give --worker-urls (or worker_urls in the file), such as http://127.0.0.1:8000")]
    NoWorkers,
    /// An engine's address or options.
    #[error("engine {text:?}: {source}")]
    Worker {
        /// What was given, without keys.
        text: String,
        /// What is wrong.
        source: SpecError,
    },
    /// A value that does not fit.
    #[error("{key}: {reason}")]
    Value {
        /// The key.
        key: &'static str,
        /// What would do.
        reason: String,
    },
    /// A tenant's name.
    #[error("tenant {name:?}: {source}")]
    Tenant {
        /// The name.
        name: String,
        /// What is wrong.
        source: IdError,
    },
    /// A file that the configuration names.
    #[error("{key}: cannot read {path}: {source}")]
    File {
        /// The key.
        key: &'static str,
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
}

pub(super) fn value(key: &'static str, reason: impl Into<String>) -> ConfigError {
    ConfigError::Value { key, reason: reason.into() }
}

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    /// The address.
    pub addr: SocketAddr,
    /// Take a free port when this one is taken (ports that nobody asked for by number).
    pub or_free_port: bool,
}

/// Who may call, as whom.
#[derive(Debug, Clone, Default)]
pub struct Tenancy {
    /// Client keys; empty = everybody may call.
    pub keys: BTreeMap<String, TenantId>,
    /// A header in which a trusted proxy names the tenant.
    pub trusted_header: Option<HeaderName>,
    /// Whether prompts of tenants are kept apart in the engines' caches.
    pub salt_caches: bool,
}

/// A certificate chain and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate chain, PEM.
    pub cert: PathBuf,
    /// Private key, PEM.
    pub key: PathBuf,
}

/// What the gateway runs on: validated, unit-typed.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches of the configuration")]
pub struct Resolved {
    /// What was written, for `config show` and the admin API.
    pub written: Config,
    /// For inference calls.
    pub listen: Listen,
    /// For the admin API.
    pub admin: Listen,
    /// For Prometheus.
    pub metrics: Listen,
    /// Engines at the start.
    pub engines: Vec<EngineSpec>,
    /// How engines are watched.
    pub engines_config: EnginesConfig,
    /// How engines are reached.
    pub http: HttpConfig,
    /// The scheduler's settings.
    pub scheduler: SchedulerConfig,
    /// The scheduler's seed.
    pub seed: u64,
    /// How sessions are recognised.
    pub identity: IdentityConfig,
    /// Tell sessions without an id apart by their prompts.
    pub infer: bool,
    /// What is done about volatile text.
    pub hygiene: HygieneConfig,
    /// Who may call.
    pub tenancy: Tenancy,
    /// Origins that may call from browsers; empty = none.
    pub cors_origins: Vec<HeaderValue>,
    /// TLS towards clients.
    pub tls: Option<TlsFiles>,
    /// Longest time of a call.
    pub request_timeout: Duration,
    /// Most calls at once.
    pub max_concurrent_requests: usize,
    /// One log line per call.
    pub log_requests: bool,
    /// Name the worker in `x-tandem-worker`.
    pub worker_header: bool,
    /// Send clients' credentials on to engines without keys.
    pub forward_authorization: bool,
    /// Ask engines for usage.
    pub ask_for_usage: bool,
    /// Record the scheduler's inputs here.
    pub record_inputs: Option<PathBuf>,
    /// Time limits.
    pub timeouts: sections::Timeouts,
    /// Size limits.
    pub limits: sections::Limits,
    /// How long turns are kept waiting.
    pub hold: sections::Hold,
    /// The request trace; `None` = off.
    pub trace: Option<TraceConfig>,
    /// The way to the collector that the trace is sent to, where one is asked for.
    pub otlp: Option<OtlpConfig>,
    /// Where the trace's token ids come from.
    pub trace_tokens: sections::TraceTokens,
    /// Tokens in a hashed block.
    pub trace_block_size: NonZeroU32,
    /// Where harnesses push tool events.
    pub tool_zmq: Option<ToolZmq>,
    /// Where KV lies; `None` = nobody asks.
    pub kv: Option<KvSettings>,
    /// Where what is known of sessions is kept; `None` = nowhere.
    pub state: Option<sections::StateSettings>,
}

impl Resolved {
    /// Whether there is a policy of admission.
    pub(crate) fn admits(&self) -> bool {
        self.scheduler.admission.policy != tandem_scheduler::admission::NONE
    }
}

pub(super) fn resolve(config: Config) -> Result<Resolved, ConfigError> {
    check_bounds(&config)?;
    let tenancy = tenancy(&config.auth)?;
    let engines = engines(&config)?;
    let trace = if config.trace.enabled { Some(trace(&config)?) } else { None };
    Ok(Resolved {
        listen: listen("host", &config.host, "port", config.port, false)?,
        admin: listen(
            "admin_host",
            &config.admin_host,
            "admin_port",
            config.admin_port.unwrap_or(DEFAULT_ADMIN_PORT),
            config.admin_port.is_none(),
        )?,
        metrics: listen(
            "prometheus_host",
            &config.prometheus_host,
            "prometheus_port",
            config.prometheus_port.unwrap_or(DEFAULT_METRICS_PORT),
            config.prometheus_port.is_none(),
        )?,
        engines,
        engines_config: engines_config(&config.health),
        http: HttpConfig {
            connect_timeout: config.timeouts.connect.0,
            tls: engine_tls(&config.engine_tls)?,
            ..HttpConfig::default()
        },
        scheduler: scheduler(&config)?,
        seed: config.seed,
        identity: IdentityConfig {
            generic_headers: config.identity.generic_headers,
            body_fields: config.identity.body_fields,
            trace_parent: config.identity.trace_parent,
            capture_headers: config.identity.capture_headers,
            capture_private_headers: config.identity.capture_private_headers,
        },
        infer: config.identity.infer,
        hygiene: hygiene(&config),
        tenancy,
        cors_origins: config
            .cors
            .allowed_origins
            .iter()
            .map(|text| origin(text))
            .collect::<Result<_, _>>()?,
        tls: config
            .tls
            .as_ref()
            .map(|tls| TlsFiles { cert: PathBuf::from(&tls.cert), key: PathBuf::from(&tls.key) }),
        request_timeout: config.request_timeout.0,
        max_concurrent_requests: config.max_concurrent_requests,
        log_requests: config.log_requests,
        worker_header: config.worker_header,
        // Keys that we check are for us alone.
        forward_authorization: config.forward_authorization.unwrap_or(config.auth.api_keys.is_empty()),
        ask_for_usage: config.ask_for_usage,
        record_inputs: config.record_inputs.as_ref().map(PathBuf::from),
        timeouts: config.timeouts.clone(),
        limits: config.limits.clone(),
        hold: config.hold.clone(),
        otlp: otlp(&config.trace, trace.as_ref())?,
        trace,
        trace_tokens: config.trace.tokens,
        trace_block_size: NonZeroU32::new(config.trace.block_size).unwrap_or(NonZeroU32::MIN),
        tool_zmq: tool_zmq(&config),
        kv: super::kv::resolve(&config.kv, &config.policy)?,
        state: config.state.resolve(),
        written: config,
    })
}

fn hygiene(config: &Config) -> HygieneConfig {
    HygieneConfig {
        billing_line: config.hygiene.billing_line.into(),
        token_budget: config.hygiene.token_budget.into(),
        date_time: config.hygiene.date_time.into(),
    }
}

fn check_bounds(config: &Config) -> Result<(), ConfigError> {
    let limits = &config.limits;
    for (key, zero) in [
        ("max_concurrent_requests", config.max_concurrent_requests == 0),
        ("state.max_size", config.state.max_size.0 == 0),
        ("state.dir", config.state.dir.as_deref() == Some("")),
        ("limits.max_payload_size", limits.max_payload_size.0 == 0),
        ("limits.max_headers", limits.max_headers == 0),
        ("limits.max_connections", limits.max_connections == 0),
        ("request_timeout", config.request_timeout.0.is_zero()),
        ("timeouts.connect", config.timeouts.connect.0.is_zero()),
        ("timeouts.response_head", config.timeouts.response_head.0.is_zero()),
        ("timeouts.stream_idle", config.timeouts.stream_idle.0.is_zero()),
        ("timeouts.client_head", config.timeouts.client_head.0.is_zero()),
        ("timeouts.client_body_idle", config.timeouts.client_body_idle.0.is_zero()),
        ("timeouts.small_call", config.timeouts.small_call.0.is_zero()),
        ("hold.keep_alive", config.hold.keep_alive.0.is_zero()),
        ("health.interval", config.health.interval.0.is_zero()),
        ("health.load_interval", config.health.load_interval.0.is_zero()),
        ("trace.block_size", config.trace.block_size == 0),
        ("trace.capacity", config.trace.capacity == 0),
        ("trace.sinks", config.trace.enabled && config.trace.sinks.is_empty()),
    ] {
        if zero {
            return Err(value(key, "must be greater than zero"));
        }
    }
    // The body memory is a count of permits of a semaphore.
    let most = tokio::sync::Semaphore::MAX_PERMITS as u64;
    if limits.body_memory.0 > most.min(u64::from(u32::MAX) << 10) {
        return Err(value("limits.body_memory", "must be at most 4095GiB"));
    }
    if limits.max_payload_size > limits.body_memory {
        return Err(value("limits.body_memory", "must be at least limits.max_payload_size"));
    }
    if !(8 << 10..=64 << 20).contains(&limits.max_header_bytes.0) {
        return Err(value("limits.max_header_bytes", "must be from 8KiB to 64MiB"));
    }
    Ok(())
}

fn listen(
    host_key: &'static str,
    host: &str,
    port_key: &'static str,
    port: u16,
    or_free_port: bool,
) -> Result<Listen, ConfigError> {
    let host = if host == "localhost" { "127.0.0.1" } else { host.trim_matches(['[', ']']) };
    let Ok(ip) = host.parse() else {
        return Err(value(
            host_key,
            format!("{host:?} is not an address, write 0.0.0.0, 127.0.0.1 or [::1]"),
        ));
    };
    let _ = port_key;
    Ok(Listen { addr: SocketAddr::new(ip, port), or_free_port })
}

/// An engine by its text. Errors show of it what holds no key and no password.
fn engine(text: &str) -> Result<EngineSpec, ConfigError> {
    text.parse().map_err(|source| {
        let shown = match &source {
            SpecError::Credentials(without) => without,
            _ => text.split('@').next().unwrap_or_default(),
        };
        ConfigError::Worker { text: shown.to_owned(), source }
    })
}

fn engines(config: &Config) -> Result<Vec<EngineSpec>, ConfigError> {
    let default_key =
        config.worker_api_key.as_ref().map(|key| engine_key("worker_api_key", key)).transpose()?;
    let mut engines = Vec::new();
    for text in &config.worker_urls {
        engines.push(engine(text)?);
    }
    for worker in &config.workers {
        let mut spec = engine(&worker.url)?;
        match worker.kind {
            WorkerKind::Auto => {}
            WorkerKind::Vllm => spec.kind = EngineKindHint::Vllm,
            WorkerKind::Sglang => spec.kind = EngineKindHint::Sglang,
            WorkerKind::OpenAi => spec.kind = EngineKindHint::OpenAi,
        }
        if let Some(key) = &worker.api_key {
            spec.api_key = Some(engine_key("workers.api_key", key)?);
        }
        if worker.max_running == Some(0) {
            return Err(value("workers.max_running", "must be at least 1; leave it out for no bound"));
        }
        spec.max_running = worker.max_running.or(spec.max_running);
        engines.push(spec);
    }
    if engines.is_empty() {
        return Err(ConfigError::NoWorkers);
    }
    for spec in &mut engines {
        if spec.api_key.is_none() {
            spec.api_key.clone_from(&default_key);
        }
    }
    Ok(engines)
}

fn engine_key(key: &'static str, secret: &Secret) -> Result<EngineKey, ConfigError> {
    EngineKey::new(secret.reveal()).ok_or_else(|| value(key, "must be visible ascii without spaces"))
}

fn engines_config(health: &sections::Health) -> EnginesConfig {
    EnginesConfig {
        health_interval: health.interval.0,
        probe_timeout: health.timeout.0,
        fail_threshold: health.failure_threshold.max(1),
        ok_threshold: health.success_threshold.max(1),
        load_interval: health.load_interval.0,
        models_interval: health.models_interval.0,
        dns_interval: health.dns_interval.0,
        ..EnginesConfig::default()
    }
}

fn scheduler(config: &Config) -> Result<SchedulerConfig, ConfigError> {
    if config.retry.max_attempts == 0 {
        return Err(value("retry.max_attempts", "must be at least 1"));
    }
    if config.sessions.max == 0 {
        return Err(value("sessions.max", "must be at least 1"));
    }
    let mut scheduler = SchedulerConfig {
        policy: config.policy.clone(),
        kv: routing::resolve(&config.routing)?,
        queue_max: config.queue_size,
        programs_max: config.sessions.max,
        program_idle_ttl: config.sessions.idle_timeout.0,
        attempts_max: config.retry.max_attempts,
        backoff_first: config.retry.initial_backoff.0,
        backoff_max: config.retry.max_backoff.0,
        startup_grace: config.health.startup_grace.0,
        pd: config.pd.scheduler(),
        admission: config.admission.scheduler(config.sessions.max),
        ..SchedulerConfig::default()
    };
    // Some reports may fail before a load counts as unknown.
    scheduler.load_report_ttl =
        scheduler.load_report_ttl.max(config.health.load_interval.0.saturating_mul(5));
    scheduler.breaker.failures_to_open = config.breaker.failure_threshold;
    scheduler.breaker.open_first = config.breaker.timeout.0;
    scheduler.breaker.open_max = config.breaker.max_timeout.0;
    match Scheduler::new(scheduler.clone(), config.seed) {
        Ok(_) => Ok(scheduler),
        Err(error @ SchedulerError::Admission(_)) => Err(value("admission", error.to_string())),
        Err(error) => Err(value("policy", error.to_string())),
    }
}

fn tool_zmq(config: &Config) -> Option<ToolZmq> {
    let events = &config.tool_events;
    if let Some(zmq) = config.trace.environment.as_ref().and_then(|trace| trace.tool_zmq.clone()) {
        return Some(zmq);
    }
    let endpoint = events.zmq_endpoint.clone()?;
    Some(ToolZmq { endpoint, topic: events.zmq_topic.clone() })
}

/// Takes in what the environment says of the trace. `lookup` gives the value of a variable, if set. Returns what
/// was odd, for the log.
///
/// # Errors
/// Where nothing that was asked for can be done.
pub fn apply_trace_environment(
    trace: &mut sections::Trace,
    lookup: impl Fn(&str) -> Option<String>,
) -> Result<Vec<tandem_trace::config::ConfigWarning>, tandem_trace::config::ConfigError> {
    let found = tandem_trace::config::resolve(&lookup)?;
    trace.otel_environment = OtelEnvironment::read(&lookup);
    match found.trace {
        Some(environment) => {
            trace.enabled = true;
            trace.path = environment.path.to_string_lossy().into_owned();
            trace.format = match environment.format {
                FileFormat::Jsonl => TraceFormat::Jsonl,
                FileFormat::JsonlGz => TraceFormat::JsonlGz,
            };
            trace.environment = Some(Box::new(environment));
        }
        // Said to be off, or not said at all.
        None => trace.enabled &= lookup("TANDEM_TRACE").is_none(),
    }
    Ok(found.warnings)
}

fn trace(config: &Config) -> Result<TraceConfig, ConfigError> {
    let trace = &config.trace;
    if let Some(environment) = &trace.environment {
        return Ok(TraceConfig { path: PathBuf::from(&trace.path), ..environment.as_ref().clone() });
    }
    let defaults = TraceConfig::default();
    Ok(TraceConfig {
        records: Records { decision: trace.decisions, ..defaults.records },
        sinks: trace
            .sinks
            .iter()
            .map(|sink| match sink {
                TraceSink::File => SinkKind::File,
                TraceSink::Stderr => SinkKind::Stderr,
                TraceSink::Otel => SinkKind::Otel,
            })
            .collect(),
        path: PathBuf::from(&trace.path),
        format: match trace.format {
            TraceFormat::Jsonl => FileFormat::Jsonl,
            TraceFormat::JsonlGz => FileFormat::JsonlGz,
        },
        rows: match trace.rows {
            TraceRows::Loadable => Rows::Loadable,
            TraceRows::Agentic => Rows::Agentic,
            TraceRows::All => Rows::All,
        },
        capacity: trace.capacity,
        flush_interval: trace.flush_interval.0,
        roll_bytes: trace.roll_size.0,
        output_hashes: trace.output_hashes,
        tool_zmq: tool_zmq(config),
        ..defaults
    })
}

/// The way to the collector, if one of the sinks needs it.
fn otlp(written: &sections::Trace, trace: Option<&TraceConfig>) -> Result<Option<OtlpConfig>, ConfigError> {
    if trace.is_none_or(|trace| !trace.sinks.contains(&SinkKind::Otel)) {
        return Ok(None);
    }
    if !cfg!(feature = "otlp") {
        let key = if written.environment.is_some() { "TANDEM_TRACE_SINKS" } else { "trace.sinks" };
        return Err(value(
            key,
            "there is no otel sink in this build: build it with `--features otlp`, or write file or stderr",
        ));
    }
    crate::otlp::resolve(written.otel_endpoint.as_deref(), &written.otel_environment).map(Some)
}

fn tenancy(auth: &sections::Auth) -> Result<Tenancy, ConfigError> {
    let mut keys = BTreeMap::new();
    for entry in &auth.api_keys {
        let key = entry.key.reveal();
        if key.is_empty() || !key.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(value("auth.api_keys", "a key must be visible ascii without spaces"));
        }
        let tenant = TenantId::new(&entry.tenant)
            .map_err(|source| ConfigError::Tenant { name: entry.tenant.clone(), source })?;
        if keys.insert(key.to_owned(), tenant).is_some() {
            return Err(value(
                "auth.api_keys",
                format!("the key of tenant {:?} is there twice", entry.tenant),
            ));
        }
    }
    let trusted_header = match &auth.trusted_tenant_header {
        Some(name) => Some(name.parse().map_err(|_| {
            value("auth.trusted_tenant_header", format!("{name:?} cannot be the name of a header"))
        })?),
        None => None,
    };
    let tenants: std::collections::BTreeSet<&TenantId> = keys.values().collect();
    let several = tenants.len() > 1 || trusted_header.is_some();
    Ok(Tenancy { salt_caches: auth.salt_caches.unwrap_or(several), keys, trusted_header })
}

fn origin(text: &str) -> Result<HeaderValue, ConfigError> {
    let plausible = text == "*" || text.split_once("://").is_some_and(|(_, host)| !host.contains('/'));
    match HeaderValue::from_str(text) {
        Ok(origin) if plausible => Ok(origin),
        _ => Err(value(
            "cors.allowed_origins",
            format!("{text:?} is not an origin, write https://app.example.com without a path, or *"),
        )),
    }
}

fn engine_tls(tls: &sections::EngineTls) -> Result<TlsConfig, ConfigError> {
    let read = |key: &'static str, path: &str| {
        std::fs::read(path).map_err(|source| ConfigError::File { key, path: path.to_owned(), source })
    };
    let client_identity_pem = match (&tls.cert, &tls.key) {
        (Some(cert), Some(key)) => Some(ClientIdentity {
            cert_pem: read("engine_tls.cert", cert)?,
            key_pem: read("engine_tls.key", key)?,
        }),
        (None, None) => None,
        _ => return Err(value("engine_tls", "cert and key belong together")),
    };
    Ok(TlsConfig {
        extra_ca_pem: tls.ca.as_deref().map(|path| read("engine_tls.ca", path)).transpose()?,
        client_identity_pem,
        insecure_skip_verify: tls.insecure_skip_verify,
        ..TlsConfig::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_worker(text: &str) -> Config {
        let mut config: Config = serde_json::from_str(text).expect("a configuration");
        config.worker_urls.push("http://127.0.0.1:8000".to_owned());
        config
    }

    fn refusal(text: &str) -> String {
        with_worker(text).resolve().expect_err(text).to_string()
    }

    // I-CFG-1.
    #[test]
    fn an_empty_configuration_lacks_only_engines() {
        let error = Config::default().resolve().expect_err("no engines").to_string();
        assert!(error.contains("--worker-urls"), "{error}");
        let resolved = with_worker("{}").resolve().expect("valid");
        assert_eq!(resolved.listen.addr, "0.0.0.0:30000".parse().expect("an address"));
        assert_eq!(resolved.admin.addr, "127.0.0.1:30001".parse().expect("an address"));
        assert!(
            resolved.admin.or_free_port && resolved.metrics.or_free_port && !resolved.listen.or_free_port
        );
    }

    /// I-CFG-2.
    #[test]
    fn unknown_keys_are_errors() {
        let error =
            serde_json::from_str::<Config>("{\"worker_url\": \"x\"}").expect_err("unknown").to_string();
        assert!(error.contains("worker_url"), "{error}");
        assert!(serde_json::from_str::<Config>("{\"limits\": {\"max_payload\": \"1MiB\"}}").is_err());
    }

    #[test]
    fn refusals_name_the_key_and_the_remedy() {
        for (text, says) in [
            (r#"{"policy": "magic"}"#, "policy: no routing policy named \"magic\""),
            (r#"{"host": "here"}"#, "host: \"here\" is not an address"),
            (r#"{"max_concurrent_requests": 0}"#, "max_concurrent_requests: must be greater than zero"),
            (r#"{"limits": {"body_memory": "1MiB"}}"#, "at least limits.max_payload_size"),
            (r#"{"worker_urls": ["ftp://a"]}"#, "use http://"),
            (r#"{"cors": {"allowed_origins": ["app.example.com"]}}"#, "is not an origin"),
            (r#"{"auth": {"api_keys": [{"key": "a"}, {"key": "a"}]}}"#, "there twice"),
            (r#"{"auth": {"api_keys": [{"key": "a", "tenant": "a b"}]}}"#, "tenant \"a b\""),
            (r#"{"engine_tls": {"cert": "c.pem"}}"#, "belong together"),
        ] {
            let error = refusal(text);
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn keys_of_several_tenants_switch_salts_on() {
        let one = r#"{"auth": {"api_keys": [{"key": "a"}, {"key": "b"}]}}"#;
        assert!(!with_worker(one).resolve().expect("valid").tenancy.salt_caches);
        let two = r#"{"auth": {"api_keys": [{"key": "a"}, {"key": "b", "tenant": "t"}]}}"#;
        assert!(with_worker(two).resolve().expect("valid").tenancy.salt_caches);
        let off =
            r#"{"auth": {"salt_caches": false, "api_keys": [{"key": "a"}, {"key": "b", "tenant": "t"}]}}"#;
        assert!(!with_worker(off).resolve().expect("valid").tenancy.salt_caches);
    }

    /// A sink that the build lacks is refused by the key that asks for it, and another is not put in its place.
    #[test]
    fn the_otel_sink_is_there_only_with_its_feature() {
        let file = with_worker(r#"{"trace": {"enabled": true, "sinks": ["otel", "file"]}}"#);
        let mut environment = with_worker("{}");
        apply_trace_environment(&mut environment.trace, |name| {
            let value = match name {
                "TANDEM_TRACE" => "1",
                "TANDEM_TRACE_SINKS" => "otel",
                _ => return None,
            };
            Some(value.to_owned())
        })
        .expect("usable");
        for (config, key) in [(file, "trace.sinks: "), (environment, "TANDEM_TRACE_SINKS: ")] {
            let resolved = config.resolve();
            if cfg!(feature = "otlp") {
                assert!(resolved.expect("valid").otlp.is_some(), "{key}");
            } else {
                let error = resolved.expect_err("no such sink").to_string();
                assert!(error.starts_with(key) && error.contains("--features otlp"), "{error}");
            }
        }
        let off = with_worker(r#"{"trace": {"sinks": ["otel"]}}"#).resolve().expect("valid");
        assert!(off.otlp.is_none());
    }

    // I-CFG-3.
    #[test]
    fn secrets_do_not_come_out_again() {
        let config = with_worker(r#"{"worker_api_key": "sk-1", "auth": {"api_keys": [{"key": "sk-2"}]}}"#);
        let shown = serde_json::to_string(&config).expect("writes");
        assert!(!shown.contains("sk-"), "{shown}");
    }
}
