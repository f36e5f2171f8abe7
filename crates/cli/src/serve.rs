//! `tandem serve`: flags over environment over file over defaults, then the gateway until a signal ends it.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use clap::Args;
use tandem_gateway::config::{
    ApiKey, Config, KvStore, PromptSource, Resolved, Secret, Size, Span, Tls, TokenizerArg, TraceFormat,
};
use tandem_gateway::{Gateway, StartError};
use tokio::signal::unix::{SignalKind, signal};

use crate::Failure;
use crate::assign::assign;

/// Flags of `tandem serve`. Each has an environment variable and a key of the configuration file; what has
/// no flag of its own is reached by `--set`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Configuration file, TOML. `tandem config schema` prints what it may hold.
    #[arg(long, env = "TANDEM_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Sets any key of the configuration, such as `--set timeouts.connect=2s`. May be repeated; beats the
    /// file, is beaten by a flag of its own.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) sets: Vec<String>,

    #[command(flatten)]
    workers: WorkerArgs,
    #[command(flatten)]
    kv: KvArgs,
    #[command(flatten)]
    listen: ListenArgs,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    trace: TraceArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Engines and routing")]
struct WorkerArgs {
    /// Base URLs of the engines, such as `http://gpu-1:8000`.
    #[arg(long, env = "TANDEM_WORKER_URLS", value_name = "URL", num_args = 1.., value_delimiter = ',')]
    worker_urls: Vec<String>,
    /// Key sent to every engine as `Authorization: Bearer`.
    #[arg(long, env = "TANDEM_WORKER_API_KEY", value_name = "KEY", hide_env_values = true)]
    worker_api_key: Option<Secret>,
    /// The routing policy, by name.
    #[arg(long, env = "TANDEM_POLICY", value_name = "NAME")]
    policy: Option<String>,
    /// The admission policy, by name: which turns may run now, so that sessions keep their caches.
    #[arg(long, env = "TANDEM_ADMISSION", value_name = "NAME")]
    admission: Option<String>,
    /// Seed of everything random.
    #[arg(long, env = "TANDEM_SEED", value_name = "N")]
    seed: Option<u64>,
    /// Most tries of one call on different engines before its first byte; 1 = no retries.
    #[arg(long, env = "TANDEM_RETRY_MAX_ATTEMPTS", value_name = "N")]
    retry_max_attempts: Option<u32>,
    /// Failures after which an engine is left alone for a while; 0 = never.
    #[arg(long, env = "TANDEM_BREAKER_FAILURE_THRESHOLD", value_name = "N")]
    breaker_failure_threshold: Option<u32>,
    /// Time between two health checks of an engine.
    #[arg(long, env = "TANDEM_HEALTH_INTERVAL", value_name = "DURATION")]
    health_interval: Option<Span>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "KV")]
struct KvArgs {
    /// Look prompts up in an index of the engines' caches; unset, where the policy uses it (`kv`).
    #[arg(long, env = "TANDEM_KV", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    kv: Option<bool>,
    /// Follow the cache events that engines publish (true).
    #[arg(long, env = "TANDEM_KV_EVENTS", value_name = "BOOL")]
    kv_events: Option<bool>,
    /// Where a prompt's blocks come from, the first that has them: `local`, `lineage`, `engine`, `text`.
    #[arg(long, env = "TANDEM_KV_SOURCES", value_name = "SOURCE", num_args = 1.., value_delimiter = ',')]
    kv_sources: Vec<PromptSource>,
    /// Folder with tokenizer and chat template of a model (`MODEL=FOLDER`) or of all models (`FOLDER`). May be
    /// repeated.
    #[arg(
        long = "tokenizer",
        env = "TANDEM_TOKENIZER",
        value_name = "[MODEL=]FOLDER",
        value_delimiter = ','
    )]
    tokenizers: Vec<TokenizerArg>,
    /// A shared Mooncake store, such as
    /// `events=tcp://store:5559,admin=http://store:9003,kind=vllm,head=MODEL`. May be repeated (in the
    /// environment: with semicolons between).
    #[arg(long = "kv-store", env = "TANDEM_KV_STORE", value_name = "PARTS", value_delimiter = ';')]
    kv_stores: Vec<KvStore>,
    /// Tell engines the session of each call, so that their cache events name it (true).
    #[arg(long, env = "TANDEM_KV_TELL_SESSIONS", value_name = "BOOL")]
    kv_tell_sessions: Option<bool>,
    /// Longest time that a call waits for an engine to tokenize its prompt.
    #[arg(long, env = "TANDEM_KV_ENGINE_TIMEOUT", value_name = "DURATION")]
    kv_engine_timeout: Option<Span>,
    /// Longest time that a call waits for the local tokenizer.
    #[arg(long, env = "TANDEM_KV_TOKENIZER_TIMEOUT", value_name = "DURATION")]
    kv_tokenizer_timeout: Option<Span>,
    /// Memory for what is remembered of the prompts of sessions.
    #[arg(long, env = "TANDEM_KV_MEMORY", value_name = "SIZE")]
    kv_memory: Option<Size>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Listeners and access")]
struct ListenArgs {
    /// Address for inference calls.
    #[arg(long, env = "TANDEM_HOST", value_name = "ADDRESS")]
    host: Option<String>,
    /// Port for inference calls (30000); 0 takes a free one.
    #[arg(long, env = "TANDEM_PORT", value_name = "PORT")]
    port: Option<u16>,
    /// Address of the admin API (127.0.0.1).
    #[arg(long, env = "TANDEM_ADMIN_HOST", value_name = "ADDRESS")]
    admin_host: Option<String>,
    /// Port of the admin API (30001).
    #[arg(long, env = "TANDEM_ADMIN_PORT", value_name = "PORT")]
    admin_port: Option<u16>,
    /// Address for Prometheus.
    #[arg(long, env = "TANDEM_PROMETHEUS_HOST", value_name = "ADDRESS")]
    prometheus_host: Option<String>,
    /// Port for Prometheus (29000).
    #[arg(long, env = "TANDEM_PROMETHEUS_PORT", value_name = "PORT")]
    prometheus_port: Option<u16>,
    /// Keys that clients must present. Without any, everybody may call.
    #[arg(long, env = "TANDEM_API_KEYS", value_name = "KEY", value_delimiter = ',', hide_env_values = true)]
    api_key: Vec<Secret>,
    /// Origins that may call from a browser.
    #[arg(long, env = "TANDEM_CORS_ALLOWED_ORIGINS", value_name = "ORIGIN", num_args = 1.., value_delimiter = ',')]
    cors_allowed_origins: Vec<String>,
    /// Certificate chain for TLS towards clients, PEM.
    #[arg(long, env = "TANDEM_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<String>,
    /// Private key for TLS towards clients, PEM.
    #[arg(long, env = "TANDEM_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<String>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
struct LimitArgs {
    /// Longest time that one call may take, waiting included.
    #[arg(long, env = "TANDEM_REQUEST_TIMEOUT", value_name = "DURATION")]
    request_timeout: Option<Span>,
    /// Largest request body.
    #[arg(long, env = "TANDEM_MAX_PAYLOAD_SIZE", value_name = "SIZE")]
    max_payload_size: Option<Size>,
    /// Most calls served at once.
    #[arg(long, env = "TANDEM_MAX_CONCURRENT_REQUESTS", value_name = "N")]
    max_concurrent_requests: Option<usize>,
    /// Most turns that may wait for a worker.
    #[arg(long, env = "TANDEM_QUEUE_SIZE", value_name = "N")]
    queue_size: Option<usize>,
    /// Longest wait for a worker; a harness's own limit applies as well.
    #[arg(long, env = "TANDEM_QUEUE_TIMEOUT", value_name = "DURATION")]
    queue_timeout: Option<Span>,
    /// Directory in which what is known of sessions is kept, so that a restart finds it again.
    #[arg(long, env = "TANDEM_STATE_DIR", value_name = "FOLDER")]
    state_dir: Option<String>,
    /// At shutdown, how long calls under way may still take.
    #[arg(long, env = "TANDEM_SHUTDOWN_GRACE", value_name = "DURATION")]
    shutdown_grace: Option<Span>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Trace and log")]
struct TraceArgs {
    /// Write the request trace. `TANDEM_TRACE=1` and `DYN_REQUEST_TRACE=1` with its companions do the same.
    #[arg(long)]
    trace: bool,
    /// Trace file (`jsonl`) or prefix of its segments (`jsonl_gz`); switches the trace on.
    #[arg(long, value_name = "PATH")]
    trace_path: Option<String>,
    /// `jsonl` or `jsonl_gz`.
    #[arg(long, value_name = "FORMAT")]
    trace_format: Option<TraceFormat>,
    /// Write one line per call to the log.
    #[arg(long, env = "TANDEM_LOG_REQUESTS")]
    log_requests: bool,
}

/// The configuration from all its sources, not yet validated.
pub(crate) fn layered(args: ServeArgs) -> Result<Config, Failure> {
    let mut config = from_file(args.config.as_ref(), &args.sets).map_err(Failure::Usage)?;
    tandem_gateway::config::apply_trace_environment(&mut config.trace, |name| std::env::var(name).ok())
        .map_err(|e| Failure::Usage(e.into()))?
        .into_iter()
        .for_each(|warning| tracing::warn!("{warning}"));
    apply_workers(&mut config, args.workers);
    apply_kv(&mut config, args.kv);
    apply_listen(&mut config, args.listen);
    apply_limits(&mut config, args.limits);
    let trace = args.trace;
    config.trace.enabled |= trace.trace || trace.trace_path.is_some();
    set(&mut config.trace.path, trace.trace_path);
    set(&mut config.trace.format, trace.trace_format);
    config.log_requests |= trace.log_requests;
    Ok(config)
}

fn apply_workers(config: &mut Config, args: WorkerArgs) {
    if !args.worker_urls.is_empty() {
        config.worker_urls = args.worker_urls;
    }
    set_some(&mut config.worker_api_key, args.worker_api_key);
    set(&mut config.policy, args.policy);
    set(&mut config.admission.policy, args.admission);
    set(&mut config.seed, args.seed);
    set(&mut config.retry.max_attempts, args.retry_max_attempts);
    set(&mut config.breaker.failure_threshold, args.breaker_failure_threshold);
    set(&mut config.health.interval, args.health_interval);
}

fn apply_kv(config: &mut Config, args: KvArgs) {
    let kv = &mut config.kv;
    set_some(&mut kv.enabled, args.kv);
    set(&mut kv.events, args.kv_events);
    if !args.kv_sources.is_empty() {
        kv.sources = args.kv_sources;
    }
    kv.tokenizers.extend(args.tokenizers.into_iter().map(|one| (one.model, one.folder)));
    if !args.kv_stores.is_empty() {
        kv.stores = args.kv_stores;
    }
    set(&mut kv.tell_sessions, args.kv_tell_sessions);
    set(&mut kv.engine_timeout, args.kv_engine_timeout);
    set(&mut kv.tokenizer_timeout, args.kv_tokenizer_timeout);
    set(&mut kv.memory, args.kv_memory);
}

fn apply_listen(config: &mut Config, args: ListenArgs) {
    set(&mut config.host, args.host);
    set(&mut config.port, args.port);
    set(&mut config.admin_host, args.admin_host);
    set_some(&mut config.admin_port, args.admin_port);
    set(&mut config.prometheus_host, args.prometheus_host);
    set_some(&mut config.prometheus_port, args.prometheus_port);
    if !args.api_key.is_empty() {
        config.auth.api_keys =
            args.api_key.into_iter().map(|key| ApiKey { key, tenant: "default".to_owned() }).collect();
    }
    if !args.cors_allowed_origins.is_empty() {
        config.cors.allowed_origins = args.cors_allowed_origins;
    }
    if let (Some(cert), Some(key)) = (args.tls_cert, args.tls_key) {
        config.tls = Some(Tls { cert, key });
    }
}

fn apply_limits(config: &mut Config, args: LimitArgs) {
    set(&mut config.request_timeout, args.request_timeout);
    set(&mut config.limits.max_payload_size, args.max_payload_size);
    set(&mut config.max_concurrent_requests, args.max_concurrent_requests);
    set(&mut config.queue_size, args.queue_size);
    set(&mut config.hold.max, args.queue_timeout);
    set_some(&mut config.state.dir, args.state_dir);
    set(&mut config.timeouts.shutdown_grace, args.shutdown_grace);
}

fn set<T>(key: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *key = value;
    }
}

fn set_some<T>(key: &mut Option<T>, value: Option<T>) {
    if value.is_some() {
        *key = value;
    }
}

/// Defaults, the file, and `--set`, in this order.
fn from_file(path: Option<&PathBuf>, sets: &[String]) -> anyhow::Result<Config> {
    let text = match path {
        Some(path) => std::fs::read_to_string(path)
            .with_context(|| format!("reading configuration file {}", path.display()))?,
        None => String::new(),
    };
    let name = path.map_or_else(|| "configuration".to_owned(), |p| p.display().to_string());
    // From the text first: its errors carry line and column.
    let config: Config = toml::from_str(&text).map_err(|e| anyhow!("{name}: {e}"))?;
    if sets.is_empty() {
        return Ok(config);
    }
    let mut table: toml::Table = toml::from_str(&text).map_err(|e| anyhow!("{name}: {e}"))?;
    for assignment in sets {
        assign(&mut table, assignment)?;
    }
    table.try_into().map_err(|e: toml::de::Error| anyhow!("--set: {}", e.message()))
}

/// Runs the gateway until SIGTERM or SIGINT; a second SIGINT ends it at once.
pub(crate) async fn run(args: ServeArgs) -> Result<ExitCode, Failure> {
    let config = layered(args)?;
    let resolved: Resolved = config.resolve().map_err(|e| Failure::Usage(e.into()))?;
    let gateway = Gateway::start(resolved).await.map_err(|error| {
        let wrong = matches!(error, StartError::Tls(_) | StartError::EngineTls(_) | StartError::Tokenizer(_));
        let error = anyhow::Error::new(error).context("starting the gateway");
        if wrong { Failure::Usage(error) } else { Failure::Run(error) }
    })?;
    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listening for SIGINT")?;
    let mut hangup = signal(SignalKind::hangup()).context("listening for SIGHUP")?;
    let mut stopping = false;
    loop {
        let impatient = tokio::select! {
            () = gateway.wait() => return Ok(ExitCode::SUCCESS),
            _ = hangup.recv() => {
                gateway.reload_certificates();
                continue;
            }
            // Supervisors repeat SIGTERM as they like; only a person's second Ctrl-C means "now".
            _ = terminate.recv() => false,
            _ = interrupt.recv() => stopping,
        };
        if impatient {
            return Err(Failure::Run(anyhow!("stopped by a second signal; calls under way were cut")));
        }
        if !stopping {
            tracing::info!("stopping: no new calls, those under way finish");
            gateway.begin_shutdown();
            stopping = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_reaches_nested_keys_and_reads_values_as_toml_or_text() {
        let sets =
            ["timeouts.connect=2s", "worker_urls=[\"http://a\"]", "limits.max_headers=7", "policy=random"]
                .map(str::to_owned);
        let config = from_file(None, &sets).expect("valid");
        assert_eq!(config.timeouts.connect, Span::secs(2));
        assert_eq!(config.worker_urls, ["http://a"]);
        assert_eq!(config.limits.max_headers, 7);
        assert_eq!(config.policy, "random");
    }

    #[test]
    fn an_unknown_key_is_refused_with_its_name() {
        let error = from_file(None, &["timeouts.conect=2s".to_owned()]).expect_err("unknown");
        assert!(error.to_string().contains("conect"), "{error}");
        let error = from_file(None, &["nonsense".to_owned()]).expect_err("no value");
        assert!(error.to_string().contains("KEY=VALUE"), "{error}");
    }

    #[test]
    fn a_fault_in_the_file_is_reported_with_its_line() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let path = dir.path().join("tandem.toml");
        std::fs::write(&path, "policy = \"random\"\nprot = 1\n").expect("written");
        let error = from_file(Some(&path), &[]).expect_err("unknown key");
        let text = error.to_string();
        assert!(text.contains("line 2") && text.contains("prot"), "{text}");
    }
}
