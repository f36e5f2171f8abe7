//! What is known of sessions, kept on disk, so that a restart finds it again.
//!
//! - Purpose: after `kill -9` a session's next turn goes where its KV lies, and is judged as if nothing had happened.
//! - Parts: [`value`] (what is kept of a program), [`store`] (the file), [`writer`] (the thread that writes it); here is
//!   what notices changes and gathers them.
//! - A program that changed is only named. About once a second what is known then of those that were named is asked of
//!   the scheduler's owner and of the lineage, and goes to the thread that writes: many changes of one program are one write.
//! - Invariants: I-STA-1 no request waits for anything here; I-STA-2 what waits to be written is bounded, the longest
//!   waiting is left out first, and what is kept is compared with what is known afterwards, so that nothing stays that is
//!   over; I-STA-3 what is kept holds ids, addresses of engines, hashes, lengths and counts, no content; I-STA-4 what is
//!   restored is there before the first call is served, and an end of a session is written at once, not with the next
//!   second; I-STA-5 nothing here ends or refuses a call.
//! - What came after the last write before a kill is not known after it. Whoever uses what was restored has to reckon with
//!   that ([`tandem_lineage::Arrival::remembered`]).
//! - Deliberately absent: what caches hold (engines' events tell), token ids (they are content), admission's places (what
//!   is resident is charged when its next turn comes).

mod store;
mod value;
mod writer;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tandem_engines::Engines;
use tandem_scheduler::{Input, Remembered};
use tandem_types::{ProgramKey, Time};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use self::store::{Change, Limits, Store};
use self::value::{Addresses, Place, Record};
use self::writer::Writer;
use crate::clock::{Clock, unix_ms};
use crate::config::StateSettings;
use crate::kv::Kv;
use crate::metrics::{Family, Metrics};
use crate::owner::Owner;

pub use self::store::OpenError as StateError;

/// Programs that may wait to be written.
const WAITING_MAX: usize = 65_536;

/// Programs of one write.
const BATCH: usize = 512;

/// Time between two writes.
const ROUND: Duration = Duration::from_secs(1);

/// The least time between two writes, however much there is to write.
const PAUSE: Duration = Duration::from_millis(50);

/// How long engines that are not known yet are waited for, to be homes again.
const HOMES_WAIT: Duration = Duration::from_secs(600);

/// How long a restarted gateway is not ready because engines have not answered yet.
pub(crate) const ENGINES_WAIT: Duration = Duration::from_secs(3);

/// Programs that changed, each once, the longest waiting first.
#[derive(Default)]
struct Waiting {
    order: VecDeque<ProgramKey>,
    known: HashSet<ProgramKey>,
    /// Some were left out since the last look.
    lost: bool,
}

impl Waiting {
    /// Whether one was left out for it.
    fn add(&mut self, program: &ProgramKey) -> bool {
        if !self.known.insert(program.clone()) {
            return false;
        }
        self.order.push_back(program.clone());
        if self.order.len() <= WAITING_MAX {
            return false;
        }
        if let Some(oldest) = self.order.pop_front() {
            self.known.remove(&oldest);
        }
        self.lost = true;
        true
    }

    fn take(&mut self, count: usize) -> Vec<ProgramKey> {
        let taken: Vec<ProgramKey> = self.order.drain(..count.min(self.order.len())).collect();
        for program in &taken {
            self.known.remove(program);
        }
        taken
    }
}

/// Where programs that changed are named. Cheap to clone; without a directory to keep them in, nothing happens.
#[derive(Clone, Default)]
pub(crate) struct Notes(Option<Arc<Inner>>);

struct Inner {
    waiting: Mutex<Waiting>,
    wake: Notify,
    metrics: Metrics,
}

impl Inner {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Notes {
    /// A program changed.
    pub(crate) fn changed(&self, program: &ProgramKey) {
        let Some(inner) = &self.0 else { return };
        let (lost, count) = {
            let mut waiting = inner.waiting();
            (waiting.add(program), waiting.order.len())
        };
        if lost {
            inner.metrics.inc(Family::StateDropped, &[]);
        }
        inner.metrics.set(Family::StateQueue, &[], count);
        if count == BATCH {
            inner.wake.notify_one();
        }
    }

    /// A program is over, or an operator wants something of it.
    pub(crate) fn over(&self, program: &ProgramKey) {
        self.changed(program);
        if let Some(inner) = &self.0 {
            inner.wake.notify_one();
        }
    }
}

/// A store that was opened, and what it knew.
pub(crate) struct Opened {
    writer: Writer,
    /// For the scheduler, the longest idle first.
    programs: Vec<Remembered>,
    homeless: BTreeMap<String, Vec<(ProgramKey, Record)>>,
    notes: Notes,
}

impl Opened {
    /// What the run begins with: programs for the scheduler, and where changes are named.
    pub(crate) fn of_run(&mut self) -> (Vec<Remembered>, Notes) {
        (std::mem::take(&mut self.programs), self.notes.clone())
    }
}

/// What restoring works with.
pub(crate) struct Restoring {
    pub(crate) settings: StateSettings,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
    pub(crate) engines: Engines,
    pub(crate) kv: Option<Arc<Kv>>,
}

/// A directory's store, open for this process alone.
pub(crate) struct Held {
    store: Store,
    limits: Limits,
}

/// Opens the store of a directory. Done before anything else, so that a second process ends here.
pub(crate) async fn hold(
    settings: &StateSettings,
    programs_max: usize,
    idle: Duration,
) -> Result<Held, StateError> {
    let limits = Limits {
        programs: programs_max,
        bytes: settings.max_size,
        idle_ms: u64::try_from(idle.as_millis()).unwrap_or(u64::MAX),
    };
    let folder = settings.folder.clone();
    let opening = tokio::task::spawn_blocking(move || Store::open(&folder, limits)).await;
    let opened = opening.unwrap_or_else(|error| {
        Err(StateError::Database { path: settings.folder.clone(), why: error.to_string() })
    });
    let (store, aside) = opened?;
    if let Some(why) = aside {
        tracing::warn!("kept sessions are not used: {why}; starting without any");
    }
    Ok(Held { store, limits })
}

/// Gives back what was kept: prompts to the lineage at once, programs for the scheduler.
pub(crate) async fn restore(held: Held, from: Restoring) -> Result<Opened, StateError> {
    let (folder, metrics) = (from.settings.folder.clone(), from.metrics.clone());
    let job = tokio::task::spawn_blocking(move || Restore::new(from).run(held)).await;
    let failed = |why: String| StateError::Database { path: folder.clone(), why };
    let (held, restore) = job.map_err(|error| failed(error.to_string()))?.map_err(failed)?;
    let limits = held.limits;
    let writer = Writer::start(held.store, folder.clone(), limits, metrics.clone())
        .map_err(|source| StateError::Io { path: folder.clone(), source })?;
    let inner = Inner { waiting: Mutex::default(), wake: Notify::new(), metrics };
    Ok(Opened {
        writer,
        programs: restore.programs,
        homeless: restore.homeless,
        notes: Notes(Some(Arc::new(inner))),
    })
}

struct Restore {
    from: Restoring,
    addresses: Addresses,
    programs: Vec<Remembered>,
    homeless: BTreeMap<String, Vec<(ProgramKey, Record)>>,
}

impl Restore {
    fn new(from: Restoring) -> Self {
        let addresses = Addresses::new(from.engines.list());
        Self { from, addresses, programs: Vec::new(), homeless: BTreeMap::new() }
    }

    fn run(mut self, held: Held) -> Result<(Held, Self), String> {
        let began = std::time::Instant::now();
        if let Some(kv) = &self.from.kv {
            let learned = held.store.learned().map_err(|error| error.to_string())?;
            let learned = learned.and_then(|bytes| rmp_serde::from_slice(&bytes).ok());
            learned.into_iter().for_each(|learned| kv.lineage().relearn(learned));
        }
        let now_ms = unix_ms();
        let mut unreadable = 0_u64;
        let read = held.store.each(now_ms, |key, bytes| {
            if self.take(key, bytes, now_ms).is_none() {
                unreadable += 1;
            }
        });
        read.map_err(|error| error.to_string())?;
        let count = |outcome: &str, count: usize| {
            self.from.metrics.count(Family::StateRestored, &[("outcome", outcome)], count as u64);
        };
        let homeless = self.programs.iter().filter(|program| program.last_worker.is_none()).count();
        count("home", self.programs.len() - homeless);
        count("homeless", homeless);
        count("unreadable", usize::try_from(unreadable).unwrap_or(usize::MAX));
        tracing::info!(
            programs = self.programs.len(),
            homeless,
            unreadable,
            bytes = held.store.bytes(),
            took = ?began.elapsed(),
            "sessions restored"
        );
        Ok((held, self))
    }

    fn take(&mut self, key: &[u8], bytes: &[u8], now_ms: u64) -> Option<()> {
        let program = value::program(key)?;
        let last_ms = value::last_ms(bytes)?;
        let mut record = value::decode(bytes)?;
        let age = Duration::from_millis(now_ms.saturating_sub(last_ms));
        let last = self.from.clock.now() - age;
        if let (Some(kv), Some(lineage)) = (&self.from.kv, record.lineage.take()) {
            kv.lineage().remember(&program, lineage, last);
        }
        let remembered = record.remembered(program.clone(), last, &self.addresses);
        if remembered.last_worker.is_none()
            && let Some(home) = &record.home
        {
            self.homeless.entry(home.engine.clone()).or_default().push((program, record));
        }
        self.programs.push(remembered);
        Some(())
    }
}

/// What keeps programs while the gateway runs.
pub(crate) struct Keeper {
    pub(crate) opened: Opened,
    pub(crate) owner: Owner,
    pub(crate) engines: Engines,
    pub(crate) kv: Option<Arc<Kv>>,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
}

/// The keeper under way.
pub(crate) struct Running {
    task: tokio::task::JoinHandle<()>,
    stop: CancellationToken,
}

impl Running {
    /// Writes what is still to be written, and ends.
    pub(crate) async fn finish(self) {
        self.stop.cancel();
        let _ = self.task.await;
    }
}

impl Keeper {
    /// Starts it. Must be called inside a tokio runtime.
    pub(crate) fn start(self) -> Running {
        let stop = CancellationToken::new();
        let task = tokio::spawn(self.run(stop.clone()));
        Running { task, stop }
    }

    async fn run(mut self, stop: CancellationToken) {
        let Some(inner) = self.opened.notes.0.clone() else { return };
        let began = tokio::time::Instant::now();
        let mut learned = Vec::new();
        while !stop.is_cancelled() {
            tokio::select! {
                () = stop.cancelled() => {}
                () = inner.wake.notified() => {}
                () = tokio::time::sleep(ROUND) => {}
            }
            self.round(&inner, &mut learned).await;
            if began.elapsed() > HOMES_WAIT {
                self.opened.homeless.clear();
            }
            self.find_homes().await;
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
        self.round(&inner, &mut learned).await;
        self.opened.writer.finish().await;
    }

    /// Writes what was named until now.
    async fn round(&self, inner: &Inner, learned: &mut Vec<u8>) {
        let mut left = inner.waiting().order.len();
        while left > 0 {
            let batch = inner.waiting().take(BATCH.min(left));
            left -= batch.len();
            if batch.is_empty() {
                break;
            }
            if !self.write(&batch, learned).await {
                // What could not be written is named again, and waits for the next round.
                for program in &batch {
                    inner.waiting().add(program);
                }
                break;
            }
        }
        self.metrics.set(Family::StateQueue, &[], inner.waiting().order.len());
        if left == 0 && std::mem::take(&mut inner.waiting().lost) && !self.sweep(learned).await {
            // What was left out is still not known.
            inner.waiting().lost = true;
        }
        // An empty batch takes out what was quiet for too long.
        self.opened.writer.write(Vec::new()).await;
    }

    /// Compares all that is kept with what is known; false if that could not be done to the end.
    async fn sweep(&self, learned: &mut Vec<u8>) -> bool {
        let Some(keys) = self.opened.writer.keys().await else { return false };
        let programs: Vec<ProgramKey> = keys.iter().filter_map(|key| value::program(key)).collect();
        for batch in programs.chunks(BATCH) {
            if !self.write(batch, learned).await {
                return false;
            }
        }
        true
    }

    async fn write(&self, programs: &[ProgramKey], learned: &mut Vec<u8>) -> bool {
        let wanted = programs.to_vec();
        let look = self.owner.look(move |scheduler| {
            let view = scheduler.view();
            wanted.into_iter().map(|key| (view.program(&key), key)).collect::<Vec<_>>()
        });
        let Ok(views) = look.await else { return false };
        let addresses = Addresses::new(self.engines.list());
        let (now, now_ms) = (self.clock.now(), unix_ms());
        let mut batch = Vec::with_capacity(views.len() + 1);
        for (view, program) in views {
            let key = value::key(&program);
            let Some(view) = view else {
                batch.push(Change::Remove { key });
                continue;
            };
            let last_ms = unix_of(view.last_active, now, now_ms);
            let lineage = self.kv.as_ref().and_then(|kv| kv.lineage().remembered(&program));
            let record = Record::new(view, lineage, &addresses);
            batch.extend(value::encode(last_ms, &record).map(|value| Change::Put { key, value }));
        }
        let now_learned = self
            .kv
            .as_ref()
            .and_then(|kv| rmp_serde::to_vec(&kv.lineage().learned()).ok())
            .unwrap_or_default();
        if !now_learned.is_empty() && now_learned != *learned {
            batch.push(Change::Learned(now_learned.clone()));
        }
        let written = self.opened.writer.write(batch).await;
        if written {
            *learned = now_learned;
        }
        written
    }

    /// Tells the scheduler of homes whose engines were found since the start.
    async fn find_homes(&mut self) {
        if self.opened.homeless.is_empty() {
            return;
        }
        let addresses = Addresses::new(self.engines.list());
        let there = |engine: &String| addresses.worker(&Place { engine: engine.clone(), rank: 0 }).is_some();
        let found: Vec<String> =
            self.opened.homeless.keys().filter(|engine| there(engine)).cloned().collect();
        for engine in found {
            for (program, record) in self.opened.homeless.remove(&engine).unwrap_or_default() {
                // Only the home is taken: of a program that left meanwhile nothing comes back.
                let remembered = record.remembered(program, Time::ZERO, &addresses);
                let home = Remembered { turns_dispatched: 0, stopped: false, ..remembered };
                self.owner.operator(Input::ProgramRemembered(home)).await;
            }
        }
    }
}

/// A time of this run as milliseconds since the Unix epoch.
fn unix_of(time: Time, now: Time, now_ms: u64) -> u64 {
    now_ms.saturating_sub(u64::try_from(now.since(time).as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
