//! A running mock engine.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tandem_engine_model::{EngineConfig, EngineModel, Flavor, Load, Profile, SchedulingPolicy};
use tandem_kvwire::Layout;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::config::{MockConfig, MockKind, Speed};
use crate::driver::{Driver, lock};
use crate::fault::{FaultPlan, FaultRule};
use crate::http::State;
use crate::kv::{self, EventSink, Losses};
use crate::record::{Record, Recorder};
use crate::script::{Chooser, Script};
use crate::server::{self, Listening};
use crate::store::RemoteStore;

/// Why a mock engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration makes no sense.
    #[error("mock engine: {0}")]
    Config(String),
    /// A socket could not be bound.
    #[error("mock engine: cannot listen on {what}: {reason}")]
    Listen {
        /// The address or endpoint.
        what: String,
        /// The system's words.
        reason: String,
    },
    /// The record file could not be opened.
    #[error("mock engine: cannot open record file: {0}")]
    Record(std::io::Error),
}

/// Where one rank publishes its cache events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvEndpoints {
    /// The rank.
    pub rank: u32,
    /// PUB socket, `tcp://host:port`.
    pub events: String,
    /// Replay ROUTER socket, where there is one.
    pub replay: Option<String>,
}

/// A look into the engine.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MockStats {
    /// Sequences in the batches of all ranks.
    pub running: u64,
    /// Sequences waiting in the queues of all ranks.
    pub waiting: u64,
    /// Part of the KV pool that running sequences hold, 0 to 1, mean over the ranks.
    pub kv_usage: f64,
    /// Sequences that ended on their own.
    pub finished: u64,
    /// Sequences that were aborted because their client had gone or said so.
    pub aborted: u64,
    /// Prompt tokens of all admitted sequences.
    pub prompt_tokens: u64,
    /// Of these, taken from the prefix cache.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
}

/// How long [`MockEngine::stop`] waits for running answers.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// A running mock engine. Dropping it stops it at once, like a crash; [`MockEngine::stop`] is gentle.
#[derive(Debug)]
pub struct MockEngine {
    addr: SocketAddr,
    state: Arc<State>,
    losses: Arc<Losses>,
    listening: mpsc::Sender<Listening>,
    /// Cut: everything ends at once.
    dead: CancellationToken,
    _kill: DropGuard,
}

impl MockEngine {
    /// Binds all sockets and starts serving.
    ///
    /// # Errors
    /// [`StartError`] says what is wrong with the configuration, or what could not be had.
    pub async fn start(config: MockConfig) -> Result<Self, StartError> {
        let model = model_config(&config)?;
        let max_model_len = config.max_model_len.min(model.pool_tokens());
        let recorder = Recorder::new(&config.record).map_err(StartError::Record)?;
        let (listener, addr) = server::listen(SocketAddr::new(config.host, config.port)).await?;
        let dead = CancellationToken::new();
        let kill = dead.clone().drop_guard();
        let layout = match config.kind {
            MockKind::Vllm => Layout::Vllm,
            MockKind::Sglang => Layout::Sglang,
        };
        let losses = Arc::new(Losses::default());
        let (mut models, mut sinks, mut endpoints) = (Vec::new(), Vec::new(), Vec::new());
        for rank in 0..config.dp_ranks {
            models.push(EngineModel::new(model.clone()).map_err(|e| StartError::Config(e.to_string()))?);
            let sink = match &config.kv_events {
                None => EventSink::off(rank),
                Some(events) => {
                    let (endpoint, sink) =
                        kv::start(events, config.host, rank, layout, Arc::clone(&losses), dead.clone())
                            .await?;
                    endpoints.push(endpoint);
                    sink
                }
            };
            sinks.push(sink);
        }
        let store = config.tiers.store.as_ref().map(|store| {
            let bytes = model.tiers.token_bytes * u64::from(model.block_size);
            // The port of a segment is no port of ours: only a name.
            RemoteStore::new(&store.url, addr.to_string(), bytes)
        });
        let driver = Driver::start(models, sinks, store, config.kind, config.speed);
        // Engines of equal seed give equal answers, but never equal ids.
        let id_seed = xxh3_64_with_seed(addr.to_string().as_bytes(), config.seed);
        let state = Arc::new(State::new(config, addr, driver, max_model_len, endpoints, recorder, id_seed));
        let (listening, orders) = mpsc::channel(1);
        tokio::spawn(server::run(Arc::clone(&state), listener, addr, orders, dead.clone()));
        Ok(Self { addr, state, losses, listening, dead, _kill: kill })
    }

    /// `http://host:port`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// The HTTP address.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Rank 0's PUB endpoint, where events are on.
    #[must_use]
    pub fn events_endpoint(&self) -> Option<&str> {
        self.state.kv.first().map(|k| k.events.as_str())
    }

    /// Rank 0's replay endpoint, where there is one.
    #[must_use]
    pub fn replay_endpoint(&self) -> Option<&str> {
        self.state.kv.first().and_then(|k| k.replay.as_deref())
    }

    /// Event endpoints of all ranks.
    #[must_use]
    pub fn kv_endpoints(&self) -> &[KvEndpoints] {
        &self.state.kv
    }

    /// What was seen of the requests so far (the last 10,000), oldest first.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        self.state.recorder.all()
    }

    /// Replaces the fault rules; their counts start anew.
    pub fn set_faults(&self, faults: Vec<FaultRule>) {
        *lock(&self.state.faults) = FaultPlan::new(faults);
    }

    /// The next `messages` of the event publishers (of all ranks together) are lost on their way, as those of an
    /// engine whose subscriber does not read fast enough. With `kept` the replay sockets still have them.
    pub fn lose_events(&self, messages: u32, kept: bool) {
        self.losses.set(messages, kept);
    }

    /// Replaces the script; its counts start anew.
    pub fn set_script(&self, script: Script) {
        *lock(&self.state.script) = Arc::new(Chooser::new(script));
    }

    /// A look into the engine.
    #[must_use]
    pub fn stats(&self) -> MockStats {
        let loads: Vec<Load> = lock(&self.state.driver.shared.loads).clone();
        let observed = lock(&self.state.driver.shared.observed);
        let sum = |value: fn(&Load) -> u64| loads.iter().map(value).sum();
        let (used, total) = loads.iter().fold((0.0, 0.0), |(used, total), load| {
            (used + f64::from(load.used_blocks), total + f64::from(load.total_blocks))
        });
        MockStats {
            running: sum(|l| l.running.into()),
            waiting: sum(|l| l.waiting.into()),
            kv_usage: if total > 0.0 { used / total } else { 0.0 },
            finished: observed.ranks.iter().map(|o| o.stop + o.length).sum(),
            aborted: observed.ranks.iter().map(|o| o.abort).sum(),
            prompt_tokens: sum(|l| l.prompt_tokens),
            cached_tokens: sum(|l| l.cached_prompt_tokens),
            generated_tokens: sum(|l| l.generation_tokens),
        }
    }

    /// `false`: new connections are refused (the listening socket is closed); `true`: it is bound again on
    /// the same port. Open connections live on.
    ///
    /// # Errors
    /// [`StartError::Listen`] when the port is no longer to be had.
    pub async fn set_listening(&self, listening: bool) -> Result<(), StartError> {
        let gone =
            || StartError::Listen { what: self.addr.to_string(), reason: "server has ended".to_owned() };
        let (reply, done) = oneshot::channel();
        self.listening.send(Listening::Set(listening, reply)).await.map_err(|_| gone())?;
        done.await.map_err(|_| gone())?
    }

    /// Stops taking connections, lets running answers end (5 s at most), then stops.
    pub async fn stop(self) {
        let (reply, done) = oneshot::channel();
        if self.listening.send(Listening::End(reply)).await.is_ok() {
            let _ = tokio::time::timeout(STOP_GRACE, done).await;
        }
        self.dead.cancel();
    }

    /// Stops at once, like a crash: connections are cut.
    pub fn kill(self) {
        self.dead.cancel();
    }
}

/// The model's set-up of one rank.
fn model_config(config: &MockConfig) -> Result<EngineConfig, StartError> {
    let wrong = |what: &str| Err(StartError::Config(what.to_owned()));
    if config.models.is_empty() {
        return wrong("at least one model name is needed");
    }
    if config.dp_ranks == 0 {
        return wrong("dp_ranks must be at least 1");
    }
    if config.answer.min_tokens == 0 || config.answer.min_tokens > config.answer.max_tokens {
        return wrong("answer lengths must satisfy 1 <= min_tokens <= max_tokens");
    }
    let speedup = match config.speed {
        Speed::Instant => 1.0,
        Speed::Times(factor) if factor.is_finite() && factor > 0.0 => factor,
        Speed::Times(_) => return wrong("speed must be finite and above 0"),
    };
    let flavor = match config.kind {
        MockKind::Vllm => Flavor::Vllm,
        MockKind::Sglang => Flavor::Sglang,
    };
    let profile = Profile::by_name(&config.profile).map_err(|e| StartError::Config(e.to_string()))?;
    let mut model = profile.config(flavor);
    if config.block_size == 0 {
        return wrong("block_size must be at least 1");
    }
    let pool = config.pool_tokens.unwrap_or_else(|| model.pool_tokens().into());
    model.block_size = config.block_size;
    model.pool_blocks = u32::try_from(pool / u64::from(config.block_size)).unwrap_or(u32::MAX);
    model.max_num_seqs = config.max_num_seqs;
    model.max_num_batched_tokens = config.max_num_batched_tokens;
    if config.flags.priority_scheduling {
        model.policy = SchedulingPolicy::Priority;
    }
    model.speedup = speedup;
    model.emit_events = config.kv_events.is_some();
    model.tiers = config.tiers.model;
    model.tiers.shared = config.tiers.store.as_ref().map(|_| model.tiers.shared.unwrap_or_default());
    if config.tiers.store.is_some() && config.kind != MockKind::Vllm {
        return wrong("a store needs kind vllm");
    }
    model.max_model_len = Some(config.max_model_len.min(model.pool_tokens()));
    model.validate().map_err(|e| StartError::Config(e.to_string()))?;
    Ok(model)
}
