//! The writer: workers come, change and go; sessions; time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockWriteGuard};
use std::time::Duration;

use tandem_kvindex::pool::PoolIndex;
use tandem_kvindex::session::{Relation, SessionIndex, Told};
use tandem_kvindex::worker::{Keep, Matches, RoutedIndex, WorkerIndex, WorkerIndexConfig};
use tandem_kvwire::hash::block::Shape;
use tandem_types::{EngineKind, ProgramKey, Time, WorkerId};

use crate::config::TRANSITIONS_MAX;
use crate::knowledge::Stream;
use crate::lane::Worker;
use crate::pages::{Names, Naming, Scheme};
use crate::predict::Pending;
use crate::prompt::Space;
use crate::reader::{PlaneReader, Shared, echoed_names};
use crate::recent::Recent;
use crate::store::Store;
use crate::view::{StoreView, View, WorkerView, lane_id};
use crate::{Knowledge, Pace, PlaneConfig, PromptChain, StoreChange, Transition, WorkerSpec};

/// Most sessions ended by silence in one tick.
const SESSIONS_PER_TICK: usize = 1_024;

/// One picture of where the KV lies. One owner writes; [`Plane::reader`] hands out readers.
#[derive(Debug)]
pub struct Plane {
    pub(crate) config: PlaneConfig,
    pub(crate) shared: Arc<Shared>,
    pub(crate) workers: BTreeMap<WorkerId, Worker>,
    pub(crate) store: Store,
    /// Namespaces of salted blocks, by lane and the engine's id: vLLM states a salt at a prompt's start only.
    pub(crate) salted: Recent<(u32, u64), Space>,
    /// Programs by the text under which a worker's engine knows them.
    pub(crate) texts: Recent<(WorkerId, Arc<str>), ProgramKey>,
    /// Workers that left: what is still under way of their events must not bring them back.
    gone: Recent<WorkerId, ()>,
    pub(crate) next_lane: u32,
    schemes: Vec<Arc<Scheme>>,
    next_scheme: u32,
    /// Readers' view is out of date.
    pub(crate) changed: bool,
    pub(crate) pace: Pace,
    transitions: VecDeque<Transition>,
    pub(crate) transitions_lost: u64,
    pub(crate) workers_refused: u64,
}

impl Plane {
    /// A plane that knows no worker.
    #[must_use]
    pub fn new(config: PlaneConfig) -> Self {
        let sessions = SessionIndex::new(config.session, config.seed);
        let pool = PoolIndex::new(config.pool);
        let shared = Shared {
            view: RwLock::default(),
            index: WorkerIndex::new(WorkerIndexConfig { orphans_max: config.orphans_max }),
            predicted: RoutedIndex::new(Keep::For(config.predict)),
            believed: config.approximate.map(RoutedIndex::new),
            pending: Mutex::new(Pending::new(config.predictions_max)),
            published: sessions.reader(),
            sessions: RwLock::new(sessions),
            pool: pool.reader(),
            names: Names::new(config.names_max),
            version: AtomicU64::new(0),
            predict: config.predict,
            store_trust: config.store_trust,
        };
        Self {
            shared: Arc::new(shared),
            workers: BTreeMap::new(),
            store: Store::new(pool),
            salted: Recent::new(config.salted_max),
            texts: Recent::new(config.texts_max),
            gone: Recent::new(config.workers_max),
            next_lane: 0,
            schemes: Vec::new(),
            next_scheme: 0,
            changed: false,
            pace: Pace::default(),
            transitions: VecDeque::new(),
            transitions_lost: 0,
            workers_refused: 0,
            config,
        }
    }

    /// A handle for questions from other threads.
    #[must_use]
    pub fn reader(&self) -> PlaneReader {
        PlaneReader(Arc::clone(&self.shared))
    }

    /// A worker came up, or what is known of it changed. Whether there was room for it.
    pub fn worker(&mut self, worker: WorkerId, spec: WorkerSpec, now: Time) -> bool {
        if !self.workers.contains_key(&worker) && self.workers.len() >= self.config.workers_max {
            self.workers_refused += 1;
            return false;
        }
        let held = self.workers.entry(worker).or_insert_with(|| Worker::new(spec.clone(), now));
        let store_changed = held.spec.store != spec.store || held.hold.is_none();
        let unfollowed = held.spec.events && !spec.events;
        if held.spec.events != spec.events {
            held.stream = Stream::new(spec.events, now);
        }
        held.spec = spec;
        if store_changed {
            let hold = held.spec.store.as_ref().and_then(|use_| self.store.hold(use_, now));
            if let Some(old) = std::mem::replace(&mut held.hold, hold) {
                self.store.release(&old);
            }
        }
        if unfollowed {
            self.void(worker);
        }
        self.bound(worker);
        self.changed = true;
        self.settle(worker, now);
        true
    }

    /// Bounds what is believed of a worker by the room that it has.
    pub(crate) fn bound(&self, worker: WorkerId) {
        let (Some(believed), Some(held)) = (&self.shared.believed, self.workers.get(&worker)) else { return };
        let size = u64::from(held.shape(self.config.block_size).block_size);
        if let Some(tokens) = held.spec.kv_capacity_tokens {
            believed.bound(worker, usize::try_from(tokens / size).unwrap_or(usize::MAX));
        }
    }

    /// A worker left for good, with all that it held.
    pub fn worker_gone(&mut self, worker: WorkerId, now: Time) {
        self.void(worker);
        let Some(gone) = self.workers.remove(&worker) else { return };
        if let Some(hold) = &gone.hold {
            self.store.release(hold);
        }
        if let Some(believed) = &self.shared.believed {
            believed.remove_worker(worker);
        }
        self.sessions().drop_worker(worker);
        self.gone.insert(worker, ());
        self.note(Transition { worker, from: gone.knowledge, to: None, at: now });
        self.changed = true;
        self.publish();
    }

    /// The worker, made known if its events come before anybody told of it.
    pub(crate) fn known(&mut self, worker: WorkerId, now: Time) -> bool {
        self.workers.contains_key(&worker)
            || self.gone.get(&worker).is_none()
                && self.worker(worker, WorkerSpec::new(EngineKind::OpenAi, true), now)
    }

    /// A worker's engine is another process: it holds nothing of what was told, or sent there.
    pub fn cleared(&mut self, worker: WorkerId, now: Time) {
        self.voided(worker, false, now);
    }

    /// Messages of a worker were lost for good. What was told is void, but the engine may hold it still: what was sent
    /// there lately is believed besides what events tell from now on.
    pub fn lost(&mut self, worker: WorkerId, now: Time) {
        self.voided(worker, true, now);
    }

    fn voided(&mut self, worker: WorkerId, holds: bool, now: Time) {
        if !self.known(worker, now) {
            return;
        }
        self.void(worker);
        if let Some(held) = self.workers.get_mut(&worker) {
            held.stream.heard = false;
            held.stream.since = now;
            held.stream.lost = holds.then_some(now);
            held.hollow = holds;
            held.counts.voided += 1;
        }
        if !holds {
            self.disbelieve(worker);
        }
        self.settle(worker, now);
    }

    /// What was sent to a worker is not there any more.
    pub(crate) fn disbelieve(&self, worker: WorkerId) {
        if let Some(believed) = &self.shared.believed {
            believed.remove_worker(worker);
        }
        self.bound(worker);
    }

    /// How long the oldest event that was not taken in waits, zero where none does, and whether so many wait that their
    /// publishers are held up (`crowded`: then nobody knows how old the oldest is). To be called before events are
    /// taken in and when none is left. Returns what changed.
    pub fn waited(&mut self, age: Duration, crowded: bool, now: Time) -> Option<Pace> {
        let pace = self.pace.next(age, crowded, self.config.lag_max, self.config.stale_after);
        if pace == std::mem::replace(&mut self.pace, pace) {
            return None;
        }
        self.review_all(now);
        self.publish();
        self.shared.version.fetch_add(1, Ordering::Relaxed);
        Some(pace)
    }

    /// A worker's publisher is out of reach: what was told stands, but grows old.
    pub fn stale(&mut self, worker: WorkerId, now: Time) {
        self.stream(worker, false, now);
    }

    /// A worker's events are up to date (again).
    pub fn live(&mut self, worker: WorkerId, now: Time) {
        self.stream(worker, true, now);
    }

    fn stream(&mut self, worker: WorkerId, live: bool, now: Time) {
        if !self.known(worker, now) {
            return;
        }
        if let Some(held) = self.workers.get_mut(&worker) {
            held.stream.live = live;
            held.stream.heard |= live;
            held.stream.since = now;
        }
        self.settle(worker, now);
    }

    /// Forgets what a worker's events told.
    pub(crate) fn void(&mut self, worker: WorkerId) {
        if let Some(held) = self.workers.get_mut(&worker) {
            for lane in held.lanes.drain(..) {
                self.shared.index.remove_worker(lane.id());
            }
            held.hollow = false;
            self.changed = true;
        }
        self.unpredict(worker);
        self.sessions().cleared(worker, None);
    }

    /// Predictions of a worker are void.
    pub(crate) fn unpredict(&self, worker: WorkerId) {
        self.shared.pending().drop_worker(worker);
        self.shared.predicted.remove_worker(worker);
    }

    /// The shared store changed, or was listed.
    pub fn store(&mut self, change: StoreChange<'_>, now: Time) {
        self.store.change(change, now);
        self.shared.version.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the store is to be listed again although it gave no reason itself: a new layout asks for objects
    /// that were not kept before, or there is room again for those that were refused.
    #[must_use]
    pub fn wants_listing(&self, now: Time) -> bool {
        !self.store.index.due(now, Duration::MAX).is_empty()
    }

    /// Whether the store is known to hold each of these objects. Objects that no worker's layout asks for are
    /// not kept.
    #[must_use]
    pub fn store_contains<'k>(&self, keys: impl IntoIterator<Item = &'k str>) -> Vec<bool> {
        keys.into_iter().map(|key| self.store.contains(key)).collect()
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

    /// A session's prompt goes to a worker, and how it relates to what the session asked before. The worker's events
    /// may name the session by its key as text (`tenant/session/agent`), by its agent, or by its session.
    pub fn told_as(
        &mut self,
        relation: Relation,
        key: &ProgramKey,
        parent: Option<&ProgramKey>,
        chain: &PromptChain,
        worker: Option<WorkerId>,
        now: Time,
    ) {
        let worker = worker.filter(|worker| self.workers.contains_key(worker));
        if let Some(worker) = worker {
            self.name(worker, key);
        }
        let held = worker.and_then(|worker| self.workers.get(&worker));
        let shape = held.map(|held| held.shape(self.config.block_size));
        let part = match shape {
            Some(shape) => chain.part(shape),
            None => chain.parts().first(),
        };
        // The index tells what lies in lower tiers together with what lies above, so that only the device's share is
        // known block by block; events tell the rest.
        let mut resident = [0; 3];
        if let (Some(part), Some(lane)) = (part, held.and_then(|held| held.lanes.first())) {
            let mut found = Matches::default();
            self.shared.index.find(&part.hashes, &mut found);
            if let Some(found) = found.of(lane.id()) {
                resident[0] = found.device as usize;
            }
        }
        let mut sessions = self.sessions();
        sessions.open(key, parent, now);
        if let Some(part) = part.filter(|part| !part.hashes.is_empty()) {
            sessions.told(key, &Told { chain: &part.hashes, worker, resident, relation }, now);
        }
        // What was heard of it under its text alone goes on under its own name.
        for heard in echoed_names(key).filter(|heard| self.shared.published.session(heard).is_some()) {
            sessions.end(&heard, now);
        }
    }

    /// Remembers by which texts a worker's events may name a program.
    fn name(&mut self, worker: WorkerId, key: &ProgramKey) {
        for text in [&*key.to_string(), key.trace_id()] {
            self.texts.insert((worker, Arc::from(text)), key.clone());
        }
        // Agents may share their session's id; the root agent's claim to it is the better one.
        let session = (worker, Arc::from(key.session.as_str()));
        if key.agent.is_some() && self.texts.get(&session).is_none() {
            self.texts.insert(session, key.clone());
        }
    }

    /// A session is over.
    pub fn session_end(&mut self, key: &ProgramKey, now: Time) {
        self.sessions().end(key, now);
    }

    pub(crate) fn sessions(&self) -> RwLockWriteGuard<'_, SessionIndex> {
        self.shared.sessions.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time passed: expiry, steps of a listing. Cheap; to be called every second and after busy periods.
    pub fn tick(&mut self, now: Time) {
        self.shared.predicted.expire(now);
        if let Some(believed) = &self.shared.believed {
            believed.expire(now);
        }
        self.shared.pending().expire(now);
        {
            let mut sessions = self.sessions();
            sessions.expire(now, SESSIONS_PER_TICK);
            // Readers take the numbers from their cells; nobody waits for the list of changes.
            drop(sessions.drain_changes());
        }
        self.store.step();
        self.review_all(now);
        self.publish();
    }

    fn review_all(&mut self, now: Time) {
        let workers: Vec<WorkerId> = self.workers.keys().copied().collect();
        for worker in workers {
            self.review(worker, now);
        }
    }

    /// What became of the knowledge of workers since the last call, in order.
    pub fn drain_transitions(&mut self) -> Vec<Transition> {
        self.transitions.drain(..).collect()
    }

    fn note(&mut self, transition: Transition) {
        if self.transitions.len() >= TRANSITIONS_MAX {
            self.transitions.pop_front();
            self.transitions_lost += 1;
        }
        self.transitions.push_back(transition);
    }

    /// Something was taken in: brings a worker's knowledge and the readers' view up to date.
    pub(crate) fn settle(&mut self, worker: WorkerId, now: Time) {
        self.review(worker, now);
        self.publish();
        self.shared.version.fetch_add(1, Ordering::Relaxed);
    }

    fn review(&mut self, worker: WorkerId, now: Time) {
        let fallback =
            if self.config.approximate.is_some() { Knowledge::Approximate } else { Knowledge::Blind };
        let Some(held) = self.workers.get_mut(&worker) else { return };
        let own = held.stream.knowledge(fallback, self.config.stale_after, now);
        let to = Some(self.pace.slows(own, fallback));
        let from = std::mem::replace(&mut held.knowledge, to);
        let told = held.stream.told();
        if told != std::mem::replace(&mut held.told, told) {
            self.changed = true;
            // No event will confirm them.
            self.unpredict(worker);
        }
        if from == to {
            return;
        }
        self.changed = true;
        self.note(Transition { worker, from, to, at: now });
    }

    /// Shows readers what changed of workers.
    pub(crate) fn publish(&mut self) {
        if !std::mem::take(&mut self.changed) {
            return;
        }
        let mut view = View::default();
        let mut schemes = Vec::new();
        let ids: Vec<WorkerId> = self.workers.keys().copied().collect();
        for (at, id) in ids.into_iter().enumerate() {
            let Some(held) = self.workers.get(&id) else { continue };
            let shape = held.shape(self.config.block_size);
            let wanted = held.hold.as_ref().map(|hold| {
                let paged = Shape { lookahead: hold.lookahead, ..shape };
                (hold.naming.clone(), paged, hold.layout.clone(), hold.layout_no)
            });
            view.shapes.push(shape);
            view.shapes.extend(held.lanes.iter().map(|lane| lane.shape));
            view.lanes.extend(held.lanes.iter().map(|lane| (lane.no, at)));
            let knowledge = held.knowledge.unwrap_or(Knowledge::Blind);
            if knowledge == Knowledge::Blind {
                view.blind.push(id);
            }
            let mut worker = WorkerView {
                id,
                kind: held.spec.kind,
                knowledge,
                told: held.told,
                hollow: held.hollow,
                shape,
                lanes: held.lanes.len(),
                lane: held.lanes.first().map(|lane| lane.no),
                step: held.step(self.config.block_size),
                store: None,
            };
            if let Some((naming, paged, layout, layout_no)) = wanted {
                view.shapes.push(paged);
                let scheme = self.scheme(naming, paged);
                schemes.push(Arc::clone(&scheme));
                worker.store = Some(StoreView { layout, layout_no, scheme });
            }
            view.workers.push(worker);
        }
        let default = Shape { block_size: self.config.block_size.max(1), lookahead: 0 };
        if view.shapes.is_empty() {
            view.shapes.push(default);
        }
        view.shapes.sort_unstable();
        view.shapes.dedup();
        view.lanes.sort_unstable();
        schemes.sort_unstable_by_key(|scheme: &Arc<Scheme>| scheme.id);
        schemes.dedup_by_key(|scheme| scheme.id);
        self.schemes.clone_from(&schemes);
        view.schemes = schemes;
        *self.shared.view.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(view);
    }

    fn scheme(&mut self, naming: Naming, shape: Shape) -> Arc<Scheme> {
        let known = self.schemes.iter().find(|scheme| scheme.naming == naming && scheme.shape == shape);
        if let Some(scheme) = known {
            return Arc::clone(scheme);
        }
        let scheme = Arc::new(Scheme::new(self.next_scheme, naming, shape));
        self.next_scheme += 1;
        self.schemes.push(Arc::clone(&scheme));
        scheme
    }

    /// Blocks of a worker's first lane, for people.
    pub(crate) fn held_blocks(&self, worker: &Worker) -> usize {
        worker.lanes.first().map_or(0, |lane| self.shared.index.held_by(lane_id(lane.no)))
    }
}
