//! What is named, what becomes of it where too much is named at once, and times.

use std::sync::atomic::Ordering;

use tandem_engines::{EngineEvent, EnginesConfig, HttpClient, HttpConfig};
use tandem_scheduler::{Scheduler, SchedulerConfig};
use tandem_types::{SessionId, TenantId, WorkerId};
use tokio::sync::mpsc;

use super::store::tests::{Failing, LIMITS};
use super::*;
use crate::explain::Decisions;
use crate::owner;

fn program(number: usize) -> ProgramKey {
    ProgramKey::root(TenantId::default(), SessionId::new(&format!("s{number}")).unwrap())
}

/// I-STA-2; I-STA-1: nobody writes here, and naming waits for nobody.
#[test]
fn the_longest_waiting_is_left_out_and_counted() {
    let metrics = Metrics::new().unwrap();
    let inner = Inner { waiting: Mutex::default(), wake: Notify::new(), metrics: metrics.clone() };
    let notes = Notes(Some(Arc::new(inner)));
    for number in 0..WAITING_MAX + 3 {
        notes.changed(&program(number));
        // A second change of one that waits takes no second place.
        notes.changed(&program(number));
    }
    assert!(metrics.render().contains("tandem_state_dropped_total 3"), "{}", metrics.render());
    let inner = notes.0.unwrap();
    let mut waiting = inner.waiting();
    assert!(waiting.lost && waiting.order.len() == WAITING_MAX && waiting.known.len() == WAITING_MAX);
    assert_eq!(waiting.take(2), [program(3), program(4)]);
    assert!(!waiting.add(&program(3)));
}

#[test]
fn without_a_directory_nothing_is_noted() {
    let notes = Notes::default();
    notes.changed(&program(1));
    notes.over(&program(1));
}

/// Times of this run and of all runs.
#[test]
fn a_time_is_told_as_one_of_the_wall_clock() {
    let at = Time::from_millis;
    assert_eq!(unix_of(at(4_000), at(5_500), 1_000_000), 998_500);
    assert_eq!(unix_of(at(6_000), at(5_500), 1_000_000), 1_000_000);
}

/// What is kept of a program that ran once.
const fn record() -> Record {
    Record {
        parent: None,
        group: None,
        home: None,
        prefill: None,
        turns_dispatched: 1,
        turns_finished: 1,
        known_tokens: 10,
        ended_with_tools: false,
        stopped: false,
        outlines: 0,
        lineage: None,
    }
}

/// A keeper that nobody runs, over a disk that fails when it is told to.
struct Bench {
    keeper: Keeper,
    inner: Arc<Inner>,
    full: Arc<std::sync::atomic::AtomicBool>,
    /// Engines would tell the owner here.
    _engine_events: mpsc::Sender<EngineEvent>,
}

impl Bench {
    fn new(folder: &std::path::Path) -> Self {
        Self::within(Limits { idle_ms: u64::MAX, ..LIMITS }, folder)
    }

    fn within(limits: Limits, folder: &std::path::Path) -> Self {
        let metrics = Metrics::new().unwrap();
        let (backend, full) = Failing::new();
        let store = Store::on(backend, limits).unwrap();
        let writer = Writer::start(store, folder.to_owned(), limits, metrics.clone()).unwrap();
        let waiting = Mutex::default();
        let inner = Arc::new(Inner { waiting, wake: Notify::new(), metrics: metrics.clone() });
        let notes = Notes(Some(Arc::clone(&inner)));
        let (events, engine_events) = mpsc::channel(1);
        let client = HttpClient::new(&HttpConfig::default()).unwrap();
        let engines = Engines::start(EnginesConfig::default(), client, Vec::new(), events.clone());
        let (owner, task) = owner::new(owner::Parts {
            scheduler: Scheduler::new(SchedulerConfig::default(), 1).unwrap(),
            engine_events,
            clock: Clock::start(),
            metrics: metrics.clone(),
            decisions: Decisions::default(),
            tee: None,
            kv: None,
            remembered: Vec::new(),
            notes: notes.clone(),
            turns_max: 10,
        });
        tokio::spawn(task);
        let opened = Opened { writer, programs: Vec::new(), homeless: BTreeMap::new(), notes };
        let keeper = Keeper { opened, owner, engines, kv: None, clock: Clock::start(), metrics };
        Self { keeper, inner, full, _engine_events: events }
    }

    /// Programs that the scheduler knows from here on, written.
    async fn with(self, numbers: std::ops::Range<usize>) -> Self {
        for number in numbers {
            let known = Remembered {
                program: program(number),
                parent: None,
                group: None,
                last_worker: None,
                last_prefill: None,
                turns_dispatched: 1,
                turns_finished: 1,
                known_tokens: 10,
                ended_with_tools: false,
                last_active: Time::ZERO,
                stopped: false,
            };
            self.keeper.owner.operator(Input::ProgramRemembered(known)).await;
            self.keeper.opened.notes.changed(&program(number));
        }
        self.round().await;
        self
    }

    async fn round(&self) {
        self.keeper.round(&self.inner, &mut Vec::new()).await;
    }

    async fn kept(&self) -> Vec<ProgramKey> {
        let keys = self.keeper.opened.writer.keys().await.unwrap();
        keys.iter().filter_map(|key| value::program(key)).collect()
    }
}

/// I-STA-2: the end of program 1 is left out for the many that change after it.
#[tokio::test(flavor = "multi_thread")]
async fn what_ended_while_too_much_changed_is_not_kept() {
    let folder = tempfile::tempdir().unwrap();
    let bench = Bench::new(folder.path()).with(0..3).await;
    assert_eq!(bench.kept().await, [0, 1, 2].map(program));
    bench.keeper.owner.session_end(program(1)).await;
    for number in 0..WAITING_MAX {
        bench.keeper.opened.notes.changed(&program(1_000_000 + number));
    }
    assert!(!bench.inner.waiting().known.contains(&program(1)));
    bench.round().await;
    assert_eq!(bench.kept().await, [0, 2].map(program));
}

/// I-STA-2, I-STA-5: the comparison waits for a disk that can be written to.
#[tokio::test(flavor = "multi_thread")]
async fn a_comparison_that_fails_is_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let bench = Bench::new(folder.path()).with(0..2).await;
    bench.inner.waiting().lost = true;
    bench.full.store(true, Ordering::Relaxed);
    bench.round().await;
    assert!(bench.inner.waiting().lost, "what is kept could not be written to");
    // The store is not open now.
    bench.round().await;
    assert!(bench.inner.waiting().lost, "what is kept is not known");
}

/// I-STA-5: what could not be written waits for the next round.
#[tokio::test(flavor = "multi_thread")]
async fn changes_that_could_not_be_written_are_named_again() {
    let folder = tempfile::tempdir().unwrap();
    let bench = Bench::new(folder.path()).with(0..1).await;
    bench.full.store(true, Ordering::Relaxed);
    bench.keeper.opened.notes.changed(&program(0));
    bench.round().await;
    assert_eq!(bench.inner.waiting().order, [program(0)]);
}

/// I-STF-2 holds where nothing changes, too.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_quiet_for_too_long_leaves_without_a_change_of_others() {
    let folder = tempfile::tempdir().unwrap();
    let bench = Bench::within(Limits { idle_ms: 300, ..LIMITS }, folder.path());
    let value = unix_ms().to_le_bytes().to_vec();
    assert!(
        bench.keeper.opened.writer.write(vec![Change::Put { key: value::key(&program(0)), value }]).await
    );
    let leaves = async {
        while !bench.kept().await.is_empty() {
            bench.round().await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(20), leaves).await.is_ok());
}

/// An hour of silence before the restart is one after it.
#[tokio::test(flavor = "multi_thread")]
async fn silence_goes_on_over_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, _) = Store::open(folder.path(), Limits { idle_ms: u64::MAX, ..LIMITS }).unwrap();
    let value = value::encode(unix_ms() - 3_600_000, &record()).unwrap();
    store.write(&[Change::Put { key: value::key(&program(0)), value }], unix_ms()).unwrap();
    let bench = Bench::new(folder.path());
    let from = Restoring {
        settings: StateSettings { folder: folder.path().to_owned(), max_size: 1 << 20 },
        clock: Clock::start_at(Time::ZERO + Duration::from_secs(10_000)),
        metrics: bench.keeper.metrics.clone(),
        engines: bench.keeper.engines.clone(),
        kv: None,
    };
    let opened = restore(Held { store, limits: LIMITS }, from).await.unwrap();
    let last: Vec<Time> = opened.programs.iter().map(|program| program.last_active).collect();
    // The value was made before the clock was started, and read after it.
    let (from, to) = (Time::ZERO + Duration::from_secs(6_300), Time::ZERO + Duration::from_secs(6_500));
    assert!(last.len() == 1 && (from..to).contains(&last[0]), "{last:?}");
}

/// Two programs whose engine is added late. One that ended before that stays away, though it had run and was paused.
#[tokio::test(flavor = "multi_thread")]
async fn who_left_before_its_home_was_found_does_not_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut bench = Bench::new(folder.path()).with(0..2).await;
    // It answers nobody; its address is all that matters.
    let engine = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let spec = format!("http://{}", engine.local_addr().unwrap()).parse().unwrap();
    bench.keeper.engines.add(spec).unwrap();
    let added = bench.keeper.engines.list().remove(0);
    let home = Some(Place { engine: added.url.clone(), rank: 3 });
    let kept =
        [0, 1].map(|number| (program(number), Record { home: home.clone(), stopped: true, ..record() }));
    bench.keeper.opened.homeless.insert(added.url, kept.to_vec());
    bench.keeper.owner.session_end(program(0)).await;
    bench.keeper.find_homes().await;
    let homes = bench.keeper.owner.look(|scheduler| {
        [0, 1].map(|number| scheduler.view().program(&program(number)).map(|known| known.last_worker))
    });
    let found = WorkerId { engine: added.id, rank: 3 };
    assert_eq!(homes.await.unwrap(), [None, Some(Some(found))]);
    assert!(bench.keeper.opened.homeless.is_empty());
}
