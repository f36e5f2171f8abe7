//! Putting a gateway together, and taking it down in order.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tandem_engines::{Engines, HttpClient, TlsError};
use tandem_scheduler::replay::Header;
use tandem_scheduler::{Input, Scheduler};
use tandem_types::{Time, WorkerId};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::app::{App, Shared};
use crate::body::{BodyMemory, Reading};
use crate::clock::Clock;
use crate::config::Resolved;
use crate::explain::Decisions;
use crate::metrics::Metrics;
use crate::server::{Server, TlsKeys, TlsKeysError, bind};
use crate::state::{self, StateError};
use crate::tee::Tee;
use crate::trace_log::{OpenError, Opening, TraceLog};
use crate::{admin, admission, kv, otlp, owner, tool_events};

/// Changes of engines that may wait for the scheduler.
const ENGINE_EVENTS: usize = 4096;

/// Why a gateway does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A port.
    #[error("cannot listen on {addr} ({what}): {source}")]
    Listen {
        /// For what.
        what: &'static str,
        /// Where.
        addr: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// TLS towards clients.
    #[error("tls: {0}")]
    Tls(#[from] TlsKeysError),
    /// TLS towards engines.
    #[error("engine_tls: {0}")]
    EngineTls(#[from] TlsError),
    /// The scheduler's settings.
    #[error(transparent)]
    Scheduler(#[from] tandem_scheduler::ConfigError),
    /// The state directory.
    #[error("state: {0}")]
    State(#[from] StateError),
    /// The trace.
    #[error("trace: {0}")]
    Trace(#[from] OpenError),
    /// TLS towards the collector of the trace.
    #[error("otel: {0}")]
    Otel(TlsError),
    /// The recording of inputs.
    #[error("record_inputs: cannot write {path}: {source}")]
    Record {
        /// Where to.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// A tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] crate::kv::TokenizerError),
    /// The thread of cache events.
    #[error("cannot start the thread of kv events: {0}")]
    KvThread(io::Error),
    /// The address for tool events.
    #[error("tool_events.zmq_endpoint: cannot bind {endpoint}: {reason}")]
    ToolEvents {
        /// Which.
        endpoint: String,
        /// Why.
        reason: String,
    },
    /// The metrics' own settings, which no configuration can break.
    #[error("metrics: {0}")]
    Metrics(#[from] metrics_exporter_prometheus::BuildError),
}

/// A gateway that serves. Dropping it stops it at once; [`Gateway::begin_shutdown`] stops it in order.
pub struct Gateway {
    app: Arc<App>,
    addr: SocketAddr,
    admin_addr: SocketAddr,
    metrics_addr: SocketAddr,
    tls: Option<Arc<TlsKeys>>,
    finished: CancellationToken,
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway").field("addr", &self.addr).finish_non_exhaustive()
    }
}

impl Gateway {
    /// Starts a gateway: binds its ports, opens its files, watches its engines. It serves when this returns;
    /// turns wait for engines that are not ready yet. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn start(config: Resolved) -> Result<Self, StartError> {
        let (held, clock) = Box::pin(hold(&config)).await?;
        let metrics = Metrics::new()?;
        let tls = config.tls.clone().map(TlsKeys::read).transpose()?.map(Arc::new);
        let listener = listen(&config.listen, "inference").await?;
        let admin_listener = listen(&config.admin, "admin api").await?;
        let metrics_listener = listen(&config.metrics, "metrics").await?;
        let addr = local(&listener, &config.listen);
        let admin_addr = local(&admin_listener, &config.admin);
        let metrics_addr = local(&metrics_listener, &config.metrics);
        let trace = open_trace(&config, clock, &metrics)?;
        let tools = match &config.tool_zmq {
            Some(zmq) => Some(tool_events::bind(zmq).await?),
            None => None,
        };

        let decisions = Decisions::default();
        let client = HttpClient::new(&config.http)?;
        let (events, engine_events) = mpsc::channel(ENGINE_EVENTS);
        let engines =
            Engines::start(config.engines_config.clone(), client.clone(), config.engines.clone(), events);
        let (kv, kv_running) = start_kv(&config, &engines, client, clock, &metrics).await?.unzip();
        let mut opened = Box::pin(restore(held, &config, &engines, kv.clone(), clock, &metrics)).await?;
        let (remembered, notes) = opened.as_mut().map(state::Opened::of_run).unwrap_or_default();
        let (owner, owner_task) = owner::new(owner::Parts {
            remembered,
            notes: notes.clone(),
            scheduler: Scheduler::new(config.scheduler.clone(), config.seed)?,
            engine_events,
            clock,
            metrics: metrics.clone(),
            decisions: decisions.clone(),
            tee: recording(&config, &metrics)?,
            kv: kv.clone(),
            turns_max: config.max_concurrent_requests,
        });
        let reading = Reading {
            memory: BodyMemory::new(config.limits.body_memory.0, metrics.clone()),
            max: config.limits.max_payload_size.bytes(),
            idle: config.timeouts.client_body_idle.0,
        };
        let app = Arc::new(App::new(Shared {
            config,
            clock,
            metrics,
            owner,
            engines,
            decisions,
            trace,
            reading,
            kv: kv.clone(),
            notes,
        }));
        let owner_task = tokio::spawn(owner_task);
        let keeping = opened.map(|opened| keeper(&app, opened));
        let helpers = help(&app, admin_listener, metrics_listener, kv, tools);
        let stop = CancellationToken::new();
        let server = Server { app: Arc::clone(&app), listener, tls: tls.clone(), stop: stop.clone() };
        let server = tokio::spawn(server.run());
        let finished = CancellationToken::new();
        // Also when the way down panics: nobody may wait for ever.
        let tell = finished.clone().drop_guard();
        let down = way_down(Arc::clone(&app), stop, server, (owner_task, keeping), helpers, kv_running);
        tokio::spawn(async move {
            down.await;
            drop(tell);
        });
        tracing::info!(%addr, admin = %admin_addr, metrics = %metrics_addr, "serving");
        Ok(Self { app, addr, admin_addr, metrics_addr, tls, finished })
    }

    /// Where inference calls are taken.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Where the admin API is.
    #[must_use]
    pub const fn admin_addr(&self) -> SocketAddr {
        self.admin_addr
    }

    /// Where Prometheus scrapes.
    #[must_use]
    pub const fn metrics_addr(&self) -> SocketAddr {
        self.metrics_addr
    }

    /// Reads the TLS certificate and key again, for new connections. Where they cannot be used, the old ones
    /// stay and the log says why. Without TLS nothing happens.
    pub fn reload_certificates(&self) {
        let Some(keys) = &self.tls else { return };
        match keys.reload() {
            Ok(()) => tracing::info!("tls certificate and key read again"),
            Err(error) => tracing::error!(%error, "tls certificate and key stay as they were"),
        }
    }

    /// Begins an orderly end: readiness goes, no new connections, calls under way finish within the grace.
    pub fn begin_shutdown(&self) {
        self.app.draining.cancel();
    }

    /// Ends the grace: what is still under way is cut, and told as cancelled in the trace.
    pub fn abort(&self) {
        self.app.draining.cancel();
        self.app.aborting.cancel();
    }

    /// Waits for the end: connections closed, trace on disk. [`Gateway::begin_shutdown`] leads to it.
    pub async fn wait(&self) {
        self.finished.cancelled().await;
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.app.draining.cancel();
        self.app.aborting.cancel();
    }
}

/// Starts what learns where KV lies, where anybody wants to know.
async fn start_kv(
    config: &Resolved,
    engines: &Engines,
    client: HttpClient,
    clock: Clock,
    metrics: &Metrics,
) -> Result<Option<(Arc<kv::Kv>, kv::Running)>, StartError> {
    let Some(settings) = config.kv.clone() else { return Ok(None) };
    let starting = kv::Starting {
        settings,
        programs_max: config.scheduler.programs_max,
        program_idle: config.scheduler.program_idle_ttl,
        engines: engines.clone(),
        client,
        clock,
        metrics: metrics.clone(),
        seed: config.seed,
    };
    match kv::start(starting).await {
        Ok(started) => Ok(Some(started)),
        Err(kv::StartError::Tokenizer(error)) => Err(error.into()),
        Err(kv::StartError::Thread(error)) => Err(StartError::KvThread(error)),
    }
}

/// Takes the state directory, where there is one, and starts the clock: what is restored was active before the start,
/// and time does not run below zero.
async fn hold(config: &Resolved) -> Result<(Option<state::Held>, Clock), StartError> {
    let Some(settings) = &config.state else { return Ok((None, Clock::start())) };
    let idle = config.scheduler.program_idle_ttl;
    let held = state::hold(settings, config.scheduler.programs_max, idle).await?;
    Ok((Some(held), Clock::start_at(Time::ZERO + idle)))
}

/// Gives back what an earlier run kept, where something is kept.
async fn restore(
    held: Option<state::Held>,
    config: &Resolved,
    engines: &Engines,
    kv: Option<Arc<kv::Kv>>,
    clock: Clock,
    metrics: &Metrics,
) -> Result<Option<state::Opened>, StartError> {
    let (Some(held), Some(settings)) = (held, config.state.clone()) else { return Ok(None) };
    let from = state::Restoring { settings, clock, metrics: metrics.clone(), engines: engines.clone(), kv };
    Ok(Some(state::restore(held, from).await?))
}

fn keeper(app: &App, opened: state::Opened) -> state::Running {
    let keeper = state::Keeper {
        opened,
        owner: app.owner.clone(),
        engines: app.engines.clone(),
        kv: app.kv.clone(),
        clock: app.clock,
        metrics: app.metrics.clone(),
    };
    keeper.start()
}

async fn listen(
    listen: &crate::config::Listen,
    what: &'static str,
) -> Result<tokio::net::TcpListener, StartError> {
    bind(listen, what).await.map_err(|source| StartError::Listen { what, addr: listen.addr, source })
}

fn local(listener: &tokio::net::TcpListener, listen: &crate::config::Listen) -> SocketAddr {
    listener.local_addr().unwrap_or(listen.addr)
}

fn open_trace(config: &Resolved, clock: Clock, metrics: &Metrics) -> Result<TraceLog, StartError> {
    let Some(trace) = &config.trace else { return Ok(TraceLog::default()) };
    let log = TraceLog::open(Opening {
        config: trace,
        block_size: config.trace_block_size,
        policy: &config.scheduler.policy,
        clock,
        metrics: metrics.clone(),
        more: otlp::sinks(config).map_err(StartError::Otel)?,
    })?;
    Ok(log)
}

fn recording(config: &Resolved, metrics: &Metrics) -> Result<Option<Tee>, StartError> {
    let Some(path) = &config.record_inputs else { return Ok(None) };
    let header = Header { config: config.scheduler.clone(), seed: config.seed };
    Tee::start(path, &header, metrics.clone())
        .map(Some)
        .map_err(|source| StartError::Record { path: path.display().to_string(), source })
}

/// Tasks beside the serving of calls, stopped at the end.
struct Helpers {
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Helpers {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = task => {}
                () = stop.cancelled() => {}
            }
        });
    }
}

/// Tells the scheduler of the engines that are expected, and starts what runs beside the serving of calls.
fn help(
    app: &Arc<App>,
    admin_listener: tokio::net::TcpListener,
    metrics_listener: tokio::net::TcpListener,
    kv: Option<Arc<kv::Kv>>,
    tools: Option<tool_events::Ingress>,
) -> Helpers {
    for engine in app.engines.list() {
        let worker = WorkerId { engine: engine.id, rank: 0 };
        app.owner.tell(Input::WorkerExpected { worker });
    }
    let helpers = Helpers { tasks: TaskTracker::new(), stop: CancellationToken::new() };
    helpers.spawn(admin::serve_admin(Arc::clone(app), admin_listener));
    helpers.spawn(admin::serve_metrics(Arc::clone(app), metrics_listener));
    helpers.spawn(upkeep(Arc::clone(app)));
    if let Some(kv) = kv {
        helpers.spawn(kv::ticks(kv));
        helpers.spawn(kv::held::rounds(Arc::clone(app)));
    }
    if let Some(tools) = tools {
        helpers.spawn(tools.run(Arc::clone(app)));
    }
    helpers
}

/// Keeps metrics in shape between scrapes.
async fn upkeep(app: Arc<App>) {
    let mut ticks = tokio::time::interval(Duration::from_secs(5));
    loop {
        ticks.tick().await;
        app.metrics.upkeep();
        admin::count_workers(&app);
        admission::count(&app).await;
    }
}

/// Waits for the shutdown to begin, then ends everything in the order in which it depends on each other.
async fn way_down(
    app: Arc<App>,
    stop: CancellationToken,
    mut server: tokio::task::JoinHandle<()>,
    (owner, keeping): (tokio::task::JoinHandle<()>, Option<state::Running>),
    helpers: Helpers,
    kv_running: Option<kv::Running>,
) {
    app.draining.cancelled().await;
    let timeouts = &app.config.timeouts;
    tracing::info!(grace = %timeouts.shutdown_grace, "shutting down");
    tokio::select! {
        () = tokio::time::sleep(timeouts.shutdown_delay.0) => {}
        () = app.aborting.cancelled() => {}
    }
    stop.cancel();
    tokio::select! {
        _ = &mut server => {}
        () = tokio::time::sleep(timeouts.shutdown_grace.0) => tracing::warn!("the grace is over, calls are cut"),
        () = app.aborting.cancelled() => {}
    }
    app.aborting.cancel();
    if !server.is_finished() {
        let _ = server.await;
    }
    // While the engines' addresses are known.
    if let Some(keeping) = keeping {
        keeping.finish().await;
    }
    app.engines.shutdown().await;
    app.trace.close().await;
    helpers.stop.cancel();
    helpers.tasks.close();
    helpers.tasks.wait().await;
    // The owner lives as long as somebody can reach it; the app goes with this function's end and the handles
    // of callers, so its task is told to end.
    app.owner.close().await;
    let _ = owner.await;
    if let (Some(kv), Some(running)) = (&app.kv, kv_running) {
        running.end(kv).await;
    }
    tracing::info!("stopped");
}
