//! The task that owns the picture of the caches.
//!
//! - Inputs: engines' cache events, the store's events, workers that come and go, what requests tell, ticks.
//!   Outputs: what readers see; transitions and numbers for metrics.
//! - It runs on a thread of its own and waits for nothing but its channels.
//! - Events that wait make workers stale ([`Plane::waited`]): a picture that lags is not taken for one that does not.
//! - Each channel is bounded, but for that of workers, which says little: a full one holds up the subscribers (which
//!   then lose messages and notice) or loses news that only refine the picture.
//! - No timer is polled here, so the thread ends cleanly whenever the runtime does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tandem_engines::{
    EngineEvent, Engines, HttpClient, KvClear, KvEvents, KvEventsConfig, KvUpdate, KvUpdateKind, StoreEvents,
    StoreEventsConfig, StoreUpdate,
};
use tandem_kvplane::{Pace, Plane, PlaneConfig, StoreChange, StoreDoubt, WorkerSpec};
use tandem_lineage::{Lineage, LineageConfig};
use tandem_types::{EngineKind, Time, WorkerId, WorkerInfo};
use tokio::sync::{Semaphore, mpsc};

use super::{Kv, News, blocks, fleet, held, local, status};
use crate::clock::Clock;
use crate::config::KvSettings;
use crate::metrics::{Family, Metrics};

/// Batches of all publishers together that may wait.
const UPDATES_MAX: usize = 4096;

/// So many batches waiting mean that publishers are, or are about to be, held up.
const CROWDED: usize = UPDATES_MAX / 4 * 3;

/// Pages of a store's listing, and batches, that may wait.
const STORE_UPDATES_MAX: usize = 256;

/// News of requests that may wait.
const NEWS_MAX: usize = 65_536;

/// Updates taken at once.
const BATCH: usize = 128;

/// Time between two ticks.
const TICK: Duration = Duration::from_millis(500);

/// What the KV side starts with.
pub(crate) struct Starting {
    pub(crate) settings: KvSettings,
    pub(crate) programs_max: usize,
    pub(crate) program_idle: Duration,
    pub(crate) engines: Engines,
    pub(crate) client: HttpClient,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
    pub(crate) seed: u64,
}

/// The thread under way.
pub(crate) struct Running {
    thread: JoinHandle<()>,
}

impl Running {
    /// Ends it, and waits until it is gone.
    pub(crate) async fn end(self, kv: &Kv) {
        if let Some(events) = &kv.events {
            events.shutdown().await;
        }
        if let Some(store) = &kv.store {
            store.shutdown().await;
        }
        let _ = kv.news.send(News::Close).await;
        let joined = tokio::task::spawn_blocking(|| self.thread.join()).await;
        if !matches!(joined, Ok(Ok(()))) {
            tracing::error!("the task of kv events did not end orderly");
        }
    }
}

/// Starts the KV side. Must be called inside a tokio runtime.
pub(crate) async fn start(from: Starting) -> Result<(Arc<Kv>, Running), StartError> {
    let Starting { settings, engines, client, clock, metrics, .. } = from;
    let tokenizers = local::Tokenizers::load(&settings, &metrics).await?;
    let plane = Plane::new(PlaneConfig {
        predict: settings.predict,
        lag_max: settings.lag_max,
        stale_after: settings.stale_after,
        seed: from.seed,
        ..PlaneConfig::default()
    });
    let (updates, update_inbox) = mpsc::channel(UPDATES_MAX);
    let events = settings.events.then(|| KvEvents::start(&engines, KvEventsConfig::default(), updates));
    let (store_updates, store_inbox) = mpsc::channel(STORE_UPDATES_MAX);
    let store = settings
        .store
        .clone()
        .map(|spec| Arc::new(StoreEvents::start(spec, client, StoreEventsConfig::default(), store_updates)));
    let (news, news_inbox) = mpsc::channel(NEWS_MAX);
    let (workers, worker_inbox) = mpsc::unbounded_channel();
    let lineage = LineageConfig {
        programs_max: from.programs_max,
        idle: from.program_idle,
        ..LineageConfig::default()
    };
    let kv = Arc::new(Kv {
        reader: plane.reader(),
        tokenizers,
        fleet: fleet::Fleet::default(),
        held: held::Held::default(),
        engines,
        events: events.clone(),
        store: store.clone(),
        lineage: std::sync::Mutex::new(Lineage::new(lineage)),
        lookups: Semaphore::new(settings.engine_lookups),
        next_lookup: std::sync::atomic::AtomicUsize::new(0),
        patience: blocks::EnginePatience::default(),
        news,
        workers,
        clock,
        metrics: metrics.clone(),
        settings: settings.clone(),
    });
    let task = Task {
        plane,
        settings,
        events,
        store_events: store,
        clock,
        metrics,
        known: BTreeMap::new(),
        kinds: BTreeMap::new(),
        longest_wait: Duration::ZERO,
    };
    let inboxes =
        Inboxes { updates: update_inbox, store: store_inbox, news: news_inbox, workers: worker_inbox };
    let runtime = tokio::runtime::Handle::current();
    let thread = std::thread::Builder::new()
        .name("tandem-kv".to_owned())
        .spawn(move || runtime.block_on(task.run(inboxes)))
        .map_err(StartError::Thread)?;
    Ok((kv, Running { thread }))
}

/// Why the KV side does not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// A tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] local::TokenizerError),
    /// The thread.
    #[error("cannot start the thread of kv events: {0}")]
    Thread(std::io::Error),
}

/// Ticks, as long as anybody listens.
pub(crate) async fn ticks(kv: Arc<Kv>) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut published = status::Published::default();
    loop {
        ticks.tick().await;
        kv.fleet.refresh(&kv.engines);
        let now = kv.clock.now();
        kv.lineage().expire(now);
        kv.tell(News::Tick);
        published.publish(&kv);
    }
}

struct Inboxes {
    updates: mpsc::Receiver<KvUpdate>,
    store: mpsc::Receiver<StoreUpdate>,
    news: mpsc::Receiver<News>,
    workers: mpsc::UnboundedReceiver<EngineEvent>,
}

struct Task {
    plane: Plane,
    settings: KvSettings,
    events: Option<KvEvents>,
    store_events: Option<Arc<StoreEvents>>,
    clock: Clock,
    metrics: Metrics,
    /// What the plane was told of each worker.
    known: BTreeMap<WorkerId, WorkerSpec>,
    /// The makes of workers whose events come before anything else is known of them.
    kinds: BTreeMap<WorkerId, EngineKind>,
    /// Longest wait of an event since the last tick.
    longest_wait: Duration,
}

impl Task {
    async fn run(mut self, mut inboxes: Inboxes) {
        let mut batch = Vec::with_capacity(BATCH);
        let (mut updates_open, mut store_open) = (true, true);
        loop {
            tokio::select! {
                event = inboxes.workers.recv() => match event {
                    Some(event) => self.worker(event),
                    None => return,
                },
                news = inboxes.news.recv() => match news {
                    Some(News::Close) => return,
                    Some(news) => {
                        self.news(news);
                        let queues = [
                            ("news", inboxes.news.len()),
                            ("events", inboxes.updates.len()),
                            ("store", inboxes.store.len()),
                        ];
                        for (of, waiting) in queues {
                            self.metrics.set(Family::KvQueue, &[("of", of)], waiting);
                        }
                    }
                    None => return,
                },
                count = inboxes.updates.recv_many(&mut batch, BATCH), if updates_open => {
                    updates_open = count > 0;
                    self.updates(&mut batch, &inboxes.updates);
                }
                update = inboxes.store.recv(), if store_open => match update {
                    Some(update) => self.store(&update),
                    None => store_open = false,
                },
            }
            self.transitions();
        }
    }

    fn worker(&mut self, event: EngineEvent) {
        let now = self.clock.now();
        match event {
            EngineEvent::Up { worker, info } => self.up(worker, &info, now),
            EngineEvent::Removed { worker } => {
                self.known.remove(&worker);
                self.plane.worker_gone(worker, now);
            }
            EngineEvent::Draining { .. } | EngineEvent::Down { .. } | EngineEvent::Load { .. } => {}
        }
    }

    fn up(&mut self, worker: WorkerId, info: &WorkerInfo, now: Time) {
        let events = self.followed(worker) || self.known.get(&worker).is_some_and(|spec| spec.events);
        let spec = WorkerSpec {
            kv_capacity_tokens: info.kv_capacity_tokens,
            store: self.settings.store_use(info.kind, &info.models),
            ..WorkerSpec::new(info.kind, events)
        };
        self.say(worker, spec, now);
    }

    fn say(&mut self, worker: WorkerId, spec: WorkerSpec, now: Time) {
        self.kinds.insert(worker, spec.kind);
        if self.known.get(&worker) == Some(&spec) {
            return;
        }
        if !self.plane.worker(worker, spec.clone(), now) {
            self.metrics.inc(Family::LimitHits, &[("limit", "kv_workers")]);
        }
        self.known.insert(worker, spec);
    }

    /// Whether somebody publishes for a worker, as far as is known.
    fn followed(&self, worker: WorkerId) -> bool {
        let status = self.events.as_ref().and_then(|events| events.worker(worker));
        status.is_some_and(|status| status.state != tandem_engines::KvState::Absent)
    }

    /// A worker's events come: it is one with events, whatever was known before.
    fn has_events(&mut self, worker: WorkerId, now: Time) {
        let known = self.known.get(&worker);
        if known.is_some_and(|spec| spec.events) {
            return;
        }
        let kind = self.kinds.get(&worker).copied().unwrap_or(EngineKind::Vllm);
        let spec = known.cloned().unwrap_or_else(|| WorkerSpec::new(kind, true));
        let spec = WorkerSpec { events: true, ..spec };
        self.say(worker, spec, now);
    }

    /// Takes in what was received together. The first is the oldest: it says how far this task is behind.
    fn updates(&mut self, batch: &mut Vec<KvUpdate>, inbox: &mpsc::Receiver<KvUpdate>) {
        if let Some(first) = batch.first() {
            self.waited(self.clock.age(first.received), inbox.len() >= CROWDED);
        }
        for update in batch.drain(..) {
            self.update(&update);
        }
        if inbox.is_empty() {
            self.waited(Duration::ZERO, false);
        }
    }

    fn waited(&mut self, age: Duration, crowded: bool) {
        self.longest_wait = self.longest_wait.max(age);
        if let Some(pace) = self.plane.waited(age, crowded, self.clock.now()) {
            if pace == Pace::Abreast {
                tracing::info!("cache events are taken in as they come again");
            } else {
                tracing::warn!(
                    ?age,
                    crowded,
                    "cache events wait to be taken in: workers' caches are known less well"
                );
            }
            self.metrics.inc(Family::KvIndexPace, &[("to", pace.as_str())]);
        }
    }

    fn update(&mut self, update: &KvUpdate) {
        let (now, worker) = (self.clock.now(), update.worker);
        match &update.kind {
            KvUpdateKind::Batch(batch) => {
                self.has_events(worker, now);
                self.metrics.inc(Family::KvBatches, &[("worker", &worker.to_string())]);
                self.metrics.count(Family::KvEvents, &[], batch.events.len() as u64);
                self.plane.batch(worker, batch, now);
            }
            KvUpdateKind::Cleared(cause) => {
                let labels = [("worker", &*worker.to_string()), ("cause", cause.as_str())];
                self.metrics.inc(Family::KvClears, &labels);
                match cause {
                    KvClear::Restarted => self.plane.cleared(worker, now),
                    KvClear::Lost | KvClear::Ended => self.plane.lost(worker, now),
                }
            }
            KvUpdateKind::Stale => self.plane.stale(worker, now),
            KvUpdateKind::Live => {
                self.has_events(worker, now);
                self.plane.live(worker, now);
            }
        }
    }

    fn store(&mut self, update: &StoreUpdate) {
        let now = self.clock.now();
        let change = match update {
            StoreUpdate::Batch { seq, batch } => StoreChange::Batch { seq: *seq, batch },
            StoreUpdate::Doubt(doubt) => {
                let (doubt, word) = match doubt {
                    tandem_engines::StoreDoubt::Gap => (StoreDoubt::Gap, "gap"),
                    tandem_engines::StoreDoubt::Restart => (StoreDoubt::Restart, "restart"),
                    tandem_engines::StoreDoubt::Disconnected => (StoreDoubt::Disconnected, "disconnected"),
                    tandem_engines::StoreDoubt::Dropped => (StoreDoubt::Dropped, "dropped"),
                };
                self.metrics.inc(Family::KvStoreDoubts, &[("cause", word)]);
                StoreChange::Doubt(doubt)
            }
            StoreUpdate::ListingBegins => StoreChange::ListingBegins,
            StoreUpdate::Listed(keys) => StoreChange::Listed(keys),
            StoreUpdate::Absent(keys) => StoreChange::Absent(keys),
            StoreUpdate::ListingEnds { complete } => {
                let outcome = if *complete { "complete" } else { "partial" };
                self.metrics.inc(Family::KvStoreListings, &[("outcome", outcome)]);
                StoreChange::ListingEnds { complete: *complete }
            }
        };
        self.plane.store(change, now);
    }

    fn news(&mut self, news: News) {
        let now = self.clock.now();
        match news {
            News::Told { program, parent, relation, chain, worker } => {
                self.plane.told_as(relation, &program, parent.as_ref(), &chain, Some(worker), now);
            }
            News::Ended(program) => self.plane.session_end(&program, now),
            News::Tick => self.tick(now),
            News::Close => {}
            News::Stats(answer) => drop(answer.send(self.plane.stats())),
            News::Contains(keys, answer) => {
                drop(answer.send(self.plane.store_contains(keys.iter().map(String::as_str))));
            }
        }
    }

    fn tick(&mut self, now: Time) {
        // A publisher that was found or given up since the worker came.
        let changed: Vec<(WorkerId, bool)> = self
            .known
            .iter()
            .map(|(worker, spec)| (*worker, spec.events, self.followed(*worker)))
            .filter(|(_, said, followed)| said != followed)
            .map(|(worker, _, followed)| (worker, followed))
            .collect();
        for (worker, events) in changed {
            if let Some(spec) = self.known.get(&worker).cloned() {
                self.say(worker, WorkerSpec { events, ..spec }, now);
            }
        }
        self.plane.tick(now);
        if self.plane.wants_listing(now) {
            let _ = self.store_events.as_ref().map(|store| store.reconcile());
        }
        status::plane(&self.metrics, &self.plane.stats());
        let lag = std::mem::take(&mut self.longest_wait).as_secs_f64();
        self.metrics.gauge(Family::KvIndexLag, &[], lag);
    }

    fn transitions(&mut self) {
        for transition in self.plane.drain_transitions() {
            let word = |knowledge: Option<tandem_kvplane::Knowledge>| {
                knowledge.map_or("none", tandem_kvplane::Knowledge::as_str)
            };
            let (from, to) = (word(transition.from), word(transition.to));
            tracing::info!(worker = %transition.worker, from, to, "knowledge of a worker's cache");
            self.metrics.inc(Family::KvTransitions, &[("from", from), ("to", to)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tandem_types::EngineId;

    use super::*;
    use crate::config::Config;

    const WORKER: WorkerId = WorkerId { engine: EngineId(1), rank: 0 };

    /// A task whose events are young however long they wait.
    fn task() -> Task {
        let patient = Duration::from_secs(3600);
        let urls = vec!["http://127.0.0.1:9".to_owned()];
        let config = Config { worker_urls: urls, policy: "kv".to_owned(), ..Config::default() };
        Task {
            plane: Plane::new(PlaneConfig {
                lag_max: patient,
                stale_after: patient,
                ..PlaneConfig::default()
            }),
            settings: config.resolve().unwrap().kv.unwrap(),
            events: None,
            store_events: None,
            clock: Clock::start(),
            metrics: Metrics::new().unwrap(),
            known: BTreeMap::new(),
            kinds: BTreeMap::new(),
            longest_wait: Duration::ZERO,
        }
    }

    fn live() -> KvUpdate {
        KvUpdate { worker: WORKER, received: Instant::now(), kind: KvUpdateKind::Live }
    }

    /// A full channel holds publishers up, and what they hold back has no age here: at three quarters of its 4096 places
    /// workers are stale, however young the oldest event is.
    #[test]
    fn a_crowd_of_young_events_makes_workers_stale() {
        let (mut task, (sender, mut inbox)) = (task(), mpsc::channel(4096));
        let changes = |task: &Task, to: &str| {
            let line = format!("tandem_kv_index_pace_changes_total{{to=\"{to}\"}} 1\n");
            task.metrics.render().contains(&line)
        };
        for _ in 0..3071 {
            sender.try_send(live()).unwrap();
        }
        task.updates(&mut vec![live()], &inbox);
        assert_eq!(task.plane.stats().workers[0].knowledge.as_str(), "exact");
        sender.try_send(live()).unwrap();
        task.updates(&mut vec![live()], &inbox);
        assert_eq!(task.plane.stats().workers[0].knowledge.as_str(), "stale");
        assert!(changes(&task, "behind") && !changes(&task, "abreast"), "{}", task.metrics.render());
        while inbox.try_recv().is_ok() {}
        task.updates(&mut vec![live()], &inbox);
        assert_eq!(task.plane.stats().workers[0].knowledge.as_str(), "exact");
        assert!(changes(&task, "behind") && changes(&task, "abreast"), "{}", task.metrics.render());
    }
}
