//! Who follows whom: one task per engine that looks up its publishers, one task per publisher.
//!
//! Invariants: I-KVF-1 no two tasks follow the same worker at once: one ends before its successor starts; I-KVF-2
//! a failed look-up changes nothing; I-KVF-3 after [`KvEvents::shutdown`] no task runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tandem_types::{EngineId, EngineKind, WorkerId};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::discover::{Found, discover};
use super::status::{Board, KvState, KvStatus};
use super::subscriber::{Source, Subscriber};
use super::{KvEventsConfig, KvUpdate};
use crate::control::Control;
use crate::engine::Engine;
use crate::registry::Engines;

/// The subscribers of all engines of a registry. Clones are handles to the same.
#[derive(Debug, Clone)]
pub struct KvEvents {
    board: Board,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// What the tasks share.
#[derive(Clone)]
struct Context {
    engines: Engines,
    config: KvEventsConfig,
    updates: mpsc::Sender<KvUpdate>,
    board: Board,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl KvEvents {
    /// Follows the publishers of all engines, those added later included. Must be called inside a tokio runtime.
    /// `updates` should have room for some hundreds; when it is full, publishers are no longer read.
    #[must_use]
    pub fn start(engines: &Engines, config: KvEventsConfig, updates: mpsc::Sender<KvUpdate>) -> Self {
        let context = Context {
            engines: engines.clone(),
            config: config.clamped(),
            updates,
            board: Board::default(),
            stop: engines.shared.stop.child_token(),
            tasks: TaskTracker::new(),
        };
        let this =
            Self { board: context.board.clone(), stop: context.stop.clone(), tasks: context.tasks.clone() };
        let tasks = context.tasks.clone();
        tasks.spawn(watch_registry(context));
        this
    }

    /// The streams of all workers, by worker; those without a publisher too.
    #[must_use]
    pub fn status(&self) -> Vec<KvStatus> {
        self.board.read()
    }

    /// One worker's stream.
    #[must_use]
    pub fn worker(&self, worker: WorkerId) -> Option<KvStatus> {
        self.board.one(worker)
    }

    /// Ends all tasks and waits until they are gone. No further updates.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Starts a task for each engine that comes.
async fn watch_registry(context: Context) {
    let mut changed = context.engines.shared.changed.subscribe();
    let mut known: BTreeSet<EngineId> = BTreeSet::new();
    loop {
        let engines = context.engines.snapshot();
        known.retain(|id| engines.contains_key(id));
        for (id, engine) in engines.iter() {
            if !engine.is_removed() && known.insert(*id) {
                let follow = FollowEngine::new(context.clone(), Arc::clone(engine));
                context.tasks.spawn(follow.run());
            }
        }
        tokio::select! {
            biased;
            () = context.stop.cancelled() => return,
            result = changed.changed() => if result.is_err() { return },
        }
    }
}

struct Running {
    source: Source,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// What a look-up depends on; when it changes, the engine is asked anew.
#[derive(Debug, PartialEq, Eq, Default)]
struct Facts {
    ready: bool,
    downs: u64,
    kind: Option<EngineKind>,
    ranks: BTreeSet<u32>,
}

struct FollowEngine {
    context: Context,
    engine: Arc<Engine>,
    running: BTreeMap<u32, Running>,
    ranks: BTreeSet<u32>,
}

impl FollowEngine {
    const fn new(context: Context, engine: Arc<Engine>) -> Self {
        Self { context, engine, running: BTreeMap::new(), ranks: BTreeSet::new() }
    }

    async fn run(mut self) {
        let mut changed = self.context.engines.shared.changed.subscribe();
        let stop = self.engine.stop.clone();
        let shutdown = self.context.stop.clone();
        tokio::select! {
            biased;
            () = shutdown.cancelled() => {}
            () = stop.cancelled() => {}
            () = self.follow(&mut changed) => {}
        }
        let ranks: Vec<u32> = self.running.keys().copied().collect();
        for rank in ranks {
            self.end(rank).await;
        }
        for rank in &self.ranks {
            self.context.board.remove(self.worker(*rank));
        }
    }

    async fn follow(&mut self, changed: &mut tokio::sync::watch::Receiver<u64>) {
        let mut seen = Facts::default();
        let mut due: Option<Instant> = None;
        loop {
            let facts = self.facts();
            if facts.ready && (facts != seen || due.is_some_and(|due| due <= Instant::now())) {
                due = Some(self.look_up(&facts).await);
            }
            seen = facts;
            tokio::select! {
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() && seen.ready => {}
                result = changed.changed() => if result.is_err() { return },
            }
        }
    }

    fn facts(&self) -> Facts {
        let facts = self.engine.facts();
        Facts {
            ready: facts.ready,
            downs: facts.downs,
            kind: facts.kind,
            ranks: facts.workers.keys().copied().collect(),
        }
    }

    /// Asks the engine and follows what it says. Returns when to ask again.
    async fn look_up(&mut self, facts: &Facts) -> Instant {
        let config = &self.context.config;
        let control = Control {
            client: self.context.engines.client().clone(),
            target: self.engine.control_target(),
            timeout: self.context.engines.shared.config.probe_timeout,
        };
        let kind = facts.kind.unwrap_or(control.target.kind);
        match discover(&control, &self.engine.spec, kind, &facts.ranks).await {
            Ok(found) => {
                let next = Instant::now() + config.discover_interval;
                self.take(&facts.ranks, found).await;
                next
            }
            Err(error) => {
                tracing::debug!(engine = %self.engine.base, error, "kv event look-up failed");
                let next = Instant::now() + config.discover_retry;
                for rank in &facts.ranks {
                    self.context.board.cell(self.worker(*rank)).error(error.clone());
                }
                self.ranks.extend(&facts.ranks);
                next
            }
        }
    }

    async fn take(&mut self, ranks: &BTreeSet<u32>, found: Found) {
        for trouble in &found.troubles {
            tracing::warn!(engine = %self.engine.base, trouble, "kv events");
        }
        let old: Vec<u32> = self
            .running
            .iter()
            .filter(|(rank, running)| {
                running.task.is_finished() || found.sources.get(rank) != Some(&running.source)
            })
            .map(|(rank, _)| *rank)
            .collect();
        for rank in old {
            self.end(rank).await;
        }
        for rank in self.ranks.difference(ranks) {
            self.context.board.remove(self.worker(*rank));
        }
        self.ranks.clone_from(ranks);
        for rank in ranks {
            if self.running.contains_key(rank) {
                continue;
            }
            match found.sources.get(rank) {
                Some(source) => self.begin(*rank, source.clone()),
                None => {
                    let cell = self.context.board.cell(self.worker(*rank));
                    cell.edit(|status| status.state = KvState::Absent);
                    if let Some(trouble) = found.troubles.first() {
                        cell.error(trouble.clone());
                    }
                }
            }
        }
    }

    fn begin(&mut self, rank: u32, source: Source) {
        let worker = self.worker(rank);
        let context = &self.context;
        let cell = context.board.fresh(worker);
        let stop = CancellationToken::new();
        let subscriber =
            Subscriber::new(worker, source.clone(), context.config.clone(), context.updates.clone(), cell);
        let task = context.tasks.spawn(subscriber.run(stop.clone(), context.stop.clone()));
        self.running.insert(rank, Running { source, stop, task });
    }

    async fn end(&mut self, rank: u32) {
        let Some(running) = self.running.remove(&rank) else { return };
        running.stop.cancel();
        // An error is the task's panic, which the runtime has reported.
        let _ = running.task.await;
        self.context.board.fresh(self.worker(rank));
    }

    fn worker(&self, rank: u32) -> WorkerId {
        WorkerId { engine: self.engine.id, rank }
    }
}
