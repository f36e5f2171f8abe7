//! The writer.

use tandem_kvindex::session::Relation;
use tandem_types::{KvBatch, ProgramKey, Time, WorkerId};

use crate::reader::PlaneReader;
use crate::{PlaneConfig, PlaneStats, PromptChain, StoreChange, Transition, WorkerSpec};

/// One picture of where the KV lies. One owner writes; [`Plane::reader`] hands out readers.
#[derive(Debug)]
pub struct Plane {
    reader: PlaneReader,
}

impl Plane {
    /// A plane that knows no worker.
    #[must_use]
    pub fn new(config: PlaneConfig) -> Self {
        let _ = config;
        Self { reader: PlaneReader {} }
    }

    /// A handle for questions from other threads.
    #[must_use]
    pub fn reader(&self) -> PlaneReader {
        self.reader.clone()
    }

    /// A worker came up, or what is known of it changed. Whether there was room for it.
    pub fn worker(&mut self, worker: WorkerId, spec: WorkerSpec, now: Time) -> bool {
        let _ = (worker, spec, now);
        true
    }

    /// A worker left for good, with all that it held.
    pub fn worker_gone(&mut self, worker: WorkerId, now: Time) {
        let _ = (worker, now);
    }

    /// Blocks of a worker came and went.
    pub fn batch(&mut self, worker: WorkerId, batch: &KvBatch, now: Time) {
        let _ = (worker, batch, now);
    }

    /// All that was told of a worker is void.
    pub fn cleared(&mut self, worker: WorkerId, now: Time) {
        let _ = (worker, now);
    }

    /// A worker's publisher is out of reach.
    pub fn stale(&mut self, worker: WorkerId, now: Time) {
        let _ = (worker, now);
    }

    /// A worker's events are up to date.
    pub fn live(&mut self, worker: WorkerId, now: Time) {
        let _ = (worker, now);
    }

    /// The shared store changed, or was listed.
    pub fn store(&mut self, change: StoreChange<'_>, now: Time) {
        let _ = (change, now);
    }

    /// Whether the store is to be listed again although it gave no reason itself: a new layout asks for objects
    /// that were not kept before.
    #[must_use]
    pub fn wants_listing(&self, now: Time) -> bool {
        let _ = now;
        false
    }

    /// Whether the store is known to hold each of these objects. Objects that no worker's layout asks for are
    /// not kept.
    #[must_use]
    pub fn store_contains<'k>(&self, keys: impl IntoIterator<Item = &'k str>) -> Vec<bool> {
        keys.into_iter().map(|_| false).collect()
    }

    /// A session's prompt goes to a worker: [`Relation::Continues`].
    pub fn told(
        &mut self,
        key: &ProgramKey,
        parent: Option<&ProgramKey>,
        chain: &PromptChain,
        worker: Option<WorkerId>,
        now: Time,
    ) {
        self.told_as(Relation::Continues, key, parent, chain, worker, now);
    }

    /// A session's prompt goes to a worker, and how it relates to what the session asked before.
    pub fn told_as(
        &mut self,
        relation: Relation,
        key: &ProgramKey,
        parent: Option<&ProgramKey>,
        chain: &PromptChain,
        worker: Option<WorkerId>,
        now: Time,
    ) {
        let _ = (relation, key, parent, chain, worker, now);
    }

    /// A session is over.
    pub fn session_end(&mut self, key: &ProgramKey, now: Time) {
        let _ = (key, now);
    }

    /// Time passed: expiry, steps of a listing. Cheap; to be called every second and after busy periods.
    pub fn tick(&mut self, now: Time) {
        let _ = now;
    }

    /// What became of the knowledge of workers since the last call, in order.
    pub fn drain_transitions(&mut self) -> Vec<Transition> {
        Vec::new()
    }

    /// Numbers of now: for metrics and people, not for the hot path.
    #[must_use]
    pub fn stats(&self) -> PlaneStats {
        PlaneStats::default()
    }
}
