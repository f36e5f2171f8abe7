//! The set of engines and the tasks that watch them.
//!
//! - Purpose: keep one watching task per engine (and one per discovered name), hand out ids, targets and status.
//! - Invariants:
//!   - I-ENG-1 ids are never reused.
//!   - I-ENG-2 only an engine's own task sends its events, so they come in order; `Removed` is the last.
//!   - I-ENG-3 no call here waits for an engine. A dead or silent engine delays only its own task, and that
//!     only for one probe timeout.
//!   - I-ENG-4 after [`Engines::shutdown`] no task of the registry runs.
//! - Deliberately absent: choosing engines, counting turns, circuit breaking: the scheduler's business.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use bytes::Bytes;
use tandem_types::{Dialect, EngineId, WorkerId};
use tokio::sync::{mpsc, watch as watch_channel};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::client::HttpClient;
use crate::config::{ENGINES_MAX, EnginesConfig};
use crate::discovery::{self, Resolve, SystemResolver};
use crate::engine::Engine;
use crate::render::{self, RenderError};
use crate::spec::{BaseUrl, EngineAddress, EngineSpec};
use crate::state::{EngineEvent, EngineStatus, Target};
use crate::watch;

/// Why an engine is not added.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddError {
    /// It is there already.
    #[error("{0} is registered already")]
    Duplicate(String),
    /// Too many.
    #[error("more than {ENGINES_MAX} engines")]
    TooMany,
    /// The registry is shutting down.
    #[error("shutting down")]
    ShuttingDown,
}

/// What [`Engines::add`] added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Added {
    /// One engine.
    Engine(EngineId),
    /// A name whose addresses become engines as they are found.
    Discovery(String),
}

/// The set of engines. Clones are handles to the same set.
#[derive(Clone)]
pub struct Engines {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) config: EnginesConfig,
    pub(crate) client: HttpClient,
    pub(crate) events: mpsc::Sender<EngineEvent>,
    resolver: Arc<dyn Resolve>,
    next_id: AtomicU32,
    /// Read by the proxy at each dispatch, written under `write`.
    engines: ArcSwap<BTreeMap<EngineId, Arc<Engine>>>,
    names: Mutex<BTreeMap<String, CancellationToken>>,
    write: Mutex<()>,
    pub(crate) stop: CancellationToken,
    /// Counts changes of the set and of what is known of an engine's publishers.
    pub(crate) changed: watch_channel::Sender<u64>,
    tasks: TaskTracker,
}

impl std::fmt::Debug for Engines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engines").field("engines", &self.shared.engines.load().len()).finish_non_exhaustive()
    }
}

impl Engines {
    /// Starts watching `initial`; the first probes leave at once. Duplicates in `initial` are logged and
    /// skipped. Must be called inside a tokio runtime.
    #[must_use]
    pub fn start(
        config: EnginesConfig,
        client: HttpClient,
        initial: Vec<EngineSpec>,
        events: mpsc::Sender<EngineEvent>,
    ) -> Self {
        Self::start_with_resolver(config, client, initial, events, Arc::new(SystemResolver))
    }

    /// [`start`](Self::start) with another way to resolve the names of `dns://` engines.
    #[must_use]
    pub fn start_with_resolver(
        config: EnginesConfig,
        client: HttpClient,
        initial: Vec<EngineSpec>,
        events: mpsc::Sender<EngineEvent>,
        resolver: Arc<dyn Resolve>,
    ) -> Self {
        let engines = Self {
            shared: Arc::new(Shared {
                config: config.clamped(),
                client,
                events,
                resolver,
                next_id: AtomicU32::new(0),
                engines: ArcSwap::default(),
                names: Mutex::default(),
                write: Mutex::default(),
                stop: CancellationToken::new(),
                changed: watch_channel::Sender::new(0),
                tasks: TaskTracker::new(),
            }),
        };
        for spec in initial {
            if let Err(error) = engines.add(spec) {
                tracing::warn!(%error, "engine skipped");
            }
        }
        engines
    }

    /// Adds an engine or a name to discover engines by.
    ///
    /// # Errors
    /// [`AddError`].
    pub fn add(&self, spec: EngineSpec) -> Result<Added, AddError> {
        match spec.address.clone() {
            EngineAddress::Url(base) => self.add_engine(spec, base, None).map(|e| Added::Engine(e.id)),
            EngineAddress::Dns { .. } => {
                let name = spec.address.to_string();
                let stop = self.shared.stop.child_token();
                {
                    let mut names = self.shared.names.lock().unwrap_or_else(PoisonError::into_inner);
                    if self.shared.stop.is_cancelled() {
                        return Err(AddError::ShuttingDown);
                    }
                    if names.contains_key(&name) {
                        return Err(AddError::Duplicate(name));
                    }
                    names.insert(name.clone(), stop.clone());
                }
                let resolver = Arc::clone(&self.shared.resolver);
                self.shared.tasks.spawn(discovery::follow(self.clone(), spec, resolver, stop));
                Ok(Added::Discovery(name))
            }
        }
    }

    pub(crate) fn add_engine(
        &self,
        spec: EngineSpec,
        base: BaseUrl,
        found_by: Option<&str>,
    ) -> Result<Arc<Engine>, AddError> {
        let shared = &self.shared;
        let _write = shared.write.lock().unwrap_or_else(PoisonError::into_inner);
        if shared.stop.is_cancelled() {
            return Err(AddError::ShuttingDown);
        }
        let mut engines = BTreeMap::clone(&shared.engines.load());
        if engines.len() >= ENGINES_MAX {
            return Err(AddError::TooMany);
        }
        if engines.values().any(|e| *e.base == base && !e.is_removed()) {
            return Err(AddError::Duplicate(base.to_string()));
        }
        let id = EngineId(shared.next_id.fetch_add(1, Ordering::Relaxed));
        let engine =
            Arc::new(Engine::new(id, spec, base, found_by, &shared.config, shared.stop.child_token()));
        engines.insert(id, Arc::clone(&engine));
        shared.engines.store(Arc::new(engines));
        self.note_change();
        shared.tasks.spawn(watch::run(self.clone(), Arc::clone(&engine)));
        Ok(engine)
    }

    /// Lets an engine finish what it has. False if it is not there.
    pub fn drain(&self, id: EngineId) -> bool {
        self.get(id).is_some_and(|e| e.set_drained(true))
    }

    /// Takes a [`drain`](Self::drain) back. False if it is not there.
    pub fn undrain(&self, id: EngineId) -> bool {
        self.get(id).is_some_and(|e| e.set_drained(false))
    }

    /// Takes an engine out at once. Calls under way keep their connections. False if it is not there.
    pub fn remove(&self, id: EngineId) -> bool {
        self.get(id).is_some_and(|e| e.remove())
    }

    /// Stops following a name (as [`Added::Discovery`] gave it) and removes the engines found by it. False if
    /// it is not followed.
    pub fn remove_discovery(&self, name: &str) -> bool {
        let stop = self.shared.names.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        let Some(stop) = stop else { return false };
        stop.cancel();
        for engine in self.snapshot().values() {
            if engine.found_by.as_deref() == Some(name) {
                engine.remove();
            }
        }
        true
    }

    /// A call to this engine just failed: probe it now instead of at the next interval.
    pub fn suspect(&self, id: EngineId) {
        if let Some(engine) = self.get(id) {
            engine.wake();
        }
    }

    /// All engines, by id.
    #[must_use]
    pub fn list(&self) -> Vec<EngineStatus> {
        self.snapshot().values().filter(|e| !e.is_removed()).map(|e| e.status()).collect()
    }

    /// One engine.
    #[must_use]
    pub fn status(&self, id: EngineId) -> Option<EngineStatus> {
        self.get(id).map(|e| e.status())
    }

    /// How to reach a worker; `None` when its engine left. Also given for engines that are down: whether to
    /// use one is the scheduler's decision.
    #[must_use]
    pub fn target(&self, worker: WorkerId) -> Option<Target> {
        self.get(worker.engine).map(|e| e.target(worker.rank))
    }

    /// The LoRA adapter that `model` means to a worker's engine: the namespace of its KV. `None` = a model.
    #[must_use]
    pub fn adapter_at<'a>(&self, worker: WorkerId, model: &'a str) -> Option<&'a str> {
        self.get(worker.engine).and_then(|engine| engine.adapter(model))
    }

    /// The same before a worker is chosen: what the name means to the first engine to which it means an adapter.
    #[must_use]
    pub fn adapter<'a>(&self, model: &'a str) -> Option<&'a str> {
        self.shared.engines.load().values().filter(|e| !e.is_removed()).find_map(|e| e.adapter(model))
    }

    /// The token ids of a request's prompt, as the engine's own tokenizer and chat template make them, without
    /// generating. `body` is the request as the client sent it. vLLM's `*/render` routes are tried first, then
    /// `/tokenize`. For use in the background: bounded by [`EnginesConfig::render_concurrency`] and
    /// [`EnginesConfig::render_timeout`].
    ///
    /// # Errors
    /// [`RenderError`]; [`RenderError::Unsupported`] is remembered until the engine comes up again.
    pub async fn render(
        &self,
        worker: WorkerId,
        dialect: Dialect,
        body: Bytes,
    ) -> Result<Vec<u32>, RenderError> {
        let engine = self.get(worker.engine).ok_or(RenderError::Gone)?;
        render::render(&self.shared.client, &self.shared.config, &engine, worker.rank, dialect, body).await
    }

    /// The client that the registry uses, for the calls of turns.
    #[must_use]
    pub fn client(&self) -> &HttpClient {
        &self.shared.client
    }

    /// Stops all tasks and waits until they are gone. No further events.
    pub async fn shutdown(&self) {
        {
            // Under the lock, so that nothing is spawned after the tracker is closed.
            let _write = self.shared.write.lock().unwrap_or_else(PoisonError::into_inner);
            self.shared.stop.cancel();
        }
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }

    pub(crate) fn snapshot(&self) -> Arc<BTreeMap<EngineId, Arc<Engine>>> {
        self.shared.engines.load_full()
    }

    fn get(&self, id: EngineId) -> Option<Arc<Engine>> {
        self.shared.engines.load().get(&id).filter(|e| !e.is_removed()).cloned()
    }

    /// Forgets an engine whose task ends.
    pub(crate) fn forget(&self, id: EngineId) {
        let _write = self.shared.write.lock().unwrap_or_else(PoisonError::into_inner);
        let mut engines = BTreeMap::clone(&self.shared.engines.load());
        engines.remove(&id);
        self.shared.engines.store(Arc::new(engines));
        self.note_change();
    }

    pub(crate) fn note_change(&self) {
        self.shared.changed.send_modify(|count| *count = count.wrapping_add(1));
    }
}
