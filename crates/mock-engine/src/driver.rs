//! The task that owns the modelled engine and lives its time.
//!
//! - Purpose: drive the pure model (one per rank) by the clock, tell requests of their tokens, and publish
//!   cache events.
//! - Inputs: submissions, aborts, resets; outputs: progress per request, counters, event batches.
//! - Invariants:
//!   - I-DRV-1 a request whose [`Ticket`] is dropped before its end is aborted in the model;
//!   - I-DRV-2 the content of a pass is delivered at its end, never earlier, except when there is no waiting
//!     at all;
//!   - I-DRV-3 a slow reader holds up nobody: progress is a number that is overwritten, not a queue.
//! - Deliberately absent: HTTP, texts.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tandem_engine_model::{EngineModel, Load, Loaded, Pass, Refusal, Request, RequestKey, TokenOutput};
use tandem_types::{KvEvent, Time};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;

use crate::config::{MockKind, Speed};
use crate::kv::EventSink;
use crate::observe::{Life, Observed};
use crate::store::{Names, RemoteStore};

/// Submissions that may wait for the driver.
const COMMANDS_MAX: usize = 1024;

/// Timer lag beyond which the model's time jumps to the clock's instead of catching up.
const LAG_MAX: Duration = Duration::from_millis(250);

/// How far one sequence has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Progress {
    /// Tokens generated.
    pub(crate) tokens: u32,
    /// Prompt tokens that came from the cache.
    pub(crate) cached: u32,
    /// Of these, tokens that were read from tiers below the device.
    pub(crate) loaded: Loaded,
    /// Whether that was all.
    pub(crate) done: bool,
}

/// The sequences of one request.
#[derive(Debug, Default)]
pub(crate) struct Group {
    progress: Mutex<Vec<Progress>>,
    news: Notify,
}

impl Group {
    pub(crate) fn new(sequences: usize) -> Arc<Self> {
        Arc::new(Self { progress: Mutex::new(vec![Progress::default(); sequences]), news: Notify::new() })
    }

    pub(crate) fn progress(&self) -> Vec<Progress> {
        lock(&self.progress).clone()
    }

    /// Waits for news since the last call.
    pub(crate) async fn changed(&self) {
        self.news.notified().await;
    }

    /// Waits until all sequences are done.
    pub(crate) async fn finished(&self) -> Vec<Progress> {
        loop {
            let progress = self.progress();
            if progress.iter().all(|p| p.done) {
                return progress;
            }
            self.changed().await;
        }
    }

    fn update(&self, place: usize, with: impl FnOnce(&mut Progress)) {
        if let Some(progress) = lock(&self.progress).get_mut(place) {
            with(progress);
        }
        self.news.notify_one();
    }
}

/// A panic elsewhere leaves plain numbers that are still of use.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The right to a sequence; dropping it aborts what is not done.
#[derive(Debug)]
pub(crate) struct Ticket {
    id: RequestKey,
    aborts: mpsc::UnboundedSender<RequestKey>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // Of a finished sequence the driver knows nothing any more, and of a stopped driver nobody.
        let _ = self.aborts.send(self.id);
    }
}

/// What is submitted.
#[derive(Debug)]
pub(crate) struct Submission {
    /// Rank, or the least loaded one.
    pub(crate) rank: Option<u32>,
    /// Everything but id and arrival.
    pub(crate) request: Request,
    /// Where to report.
    pub(crate) group: Arc<Group>,
    /// Which of the group's sequences it is.
    pub(crate) place: usize,
    /// Whether its last token is its last by a limit.
    pub(crate) by_length: bool,
    /// The client's bound, for the engine's statistics.
    pub(crate) max_tokens: u32,
    /// Sequences that share the request.
    pub(crate) n: u32,
    /// The request's id, by which a client may abort it.
    pub(crate) name: String,
    /// Its objects, where there is a store.
    pub(crate) objects: Names,
}

enum Command {
    Submit(Box<Submission>, oneshot::Sender<Result<(), Refusal>>),
    Reset(oneshot::Sender<bool>),
    /// Aborts the requests whose ids begin so; all, with an empty text.
    Abort(String, oneshot::Sender<()>),
}

/// The driver's state that anyone may read.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) loads: Mutex<Vec<Load>>,
    pub(crate) observed: Mutex<Observed>,
}

/// Access to the driver.
#[derive(Debug, Clone)]
pub(crate) struct Driver {
    commands: mpsc::Sender<Command>,
    /// Unbounded so that dropping a ticket never waits; there is one message for each ticket.
    aborts: mpsc::UnboundedSender<RequestKey>,
    keys: Arc<AtomicU64>,
    pub(crate) shared: Arc<Shared>,
}

/// The driver has stopped.
#[derive(Debug)]
pub(crate) struct Stopped;

impl Driver {
    /// Starts driving; the task ends when every [`Driver`] is gone.
    pub(crate) fn start(
        models: Vec<EngineModel>,
        sinks: Vec<EventSink>,
        store: Option<RemoteStore>,
        kind: MockKind,
        speed: Speed,
    ) -> Self {
        let (commands, command_inbox) = mpsc::channel(COMMANDS_MAX);
        let (aborts, abort_inbox) = mpsc::unbounded_channel();
        let limits = models.first().and_then(|model| model.config().max_model_len);
        let max_model_len = limits.unwrap_or(u32::MAX);
        let shared = Arc::new(Shared {
            loads: Mutex::new(models.iter().map(EngineModel::load).collect()),
            observed: Mutex::new(Observed::new(models.len(), kind, max_model_len)),
        });
        let ranks = models
            .into_iter()
            .zip(sinks)
            .map(|(model, sink)| Rank { model, sink, pass: Pass::default(), running: false })
            .collect();
        let task = Task {
            ranks,
            commands: command_inbox,
            aborts: abort_inbox,
            live: BTreeMap::new(),
            shared: Arc::clone(&shared),
            store,
            kind,
            instant: speed == Speed::Instant,
            origin: Instant::now(),
            latest: Time::ZERO,
        };
        tokio::spawn(task.run());
        Self { commands, aborts, keys: Arc::default(), shared }
    }

    /// Submits a sequence. `Err(None)`: the driver has stopped.
    pub(crate) async fn submit(&self, mut submission: Submission) -> Result<Ticket, Option<Refusal>> {
        let id = RequestKey(self.keys.fetch_add(1, Ordering::Relaxed));
        submission.request.id = id;
        // The ticket comes first: if the caller goes away while waiting here, the sequence is aborted.
        let ticket = Ticket { id, aborts: self.aborts.clone() };
        let (reply, answer) = oneshot::channel();
        let command = Command::Submit(Box::new(submission), reply);
        self.commands.send(command).await.map_err(|_| None)?;
        answer.await.map_err(|_| None)?.map_err(Some)?;
        Ok(ticket)
    }

    /// Forgets all cached blocks, if no request holds any.
    pub(crate) async fn reset(&self) -> Result<bool, Stopped> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::Reset(reply)).await.map_err(|_| Stopped)?;
        answer.await.map_err(|_| Stopped)
    }

    /// Aborts the requests whose ids begin with `name`, which is how SGLang matches them; all, if it is empty.
    pub(crate) async fn abort(&self, name: &str) -> Result<(), Stopped> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::Abort(name.to_owned(), reply)).await.map_err(|_| Stopped)?;
        answer.await.map_err(|_| Stopped)
    }
}

struct Rank {
    model: EngineModel,
    sink: EventSink,
    pass: Pass,
    /// Whether `pass` is under way.
    running: bool,
}

struct Live {
    rank: usize,
    group: Arc<Group>,
    place: usize,
    by_length: bool,
    name: String,
    life: Life,
}

struct Task {
    ranks: Vec<Rank>,
    commands: mpsc::Receiver<Command>,
    aborts: mpsc::UnboundedReceiver<RequestKey>,
    live: BTreeMap<RequestKey, Live>,
    shared: Arc<Shared>,
    store: Option<RemoteStore>,
    kind: MockKind,
    instant: bool,
    origin: Instant,
    /// End of the latest pass delivered: without waiting, the model's time runs ahead of the clock.
    latest: Time,
}

impl Task {
    async fn run(mut self) {
        if self.kind == MockKind::Sglang {
            // SGLang flushes its cache when it starts and says so.
            for rank in &mut self.ranks {
                rank.sink.publish(vec![KvEvent::Cleared]).await;
            }
        }
        loop {
            let now = self.now();
            self.start_passes(now).await;
            let due = self.ranks.iter().filter(|rank| rank.running).map(|rank| rank.pass.ends_at).min();
            let idle = self.ranks.iter().filter(|rank| !rank.running);
            let wake = idle.filter_map(|rank| rank.model.wakes_at()).min();
            if self.instant
                && due.is_none()
                && let Some(wake) = wake
            {
                // Nothing but transfers goes on: they end at once.
                self.latest = self.latest.max(wake);
                continue;
            }
            match due {
                Some(due) if self.instant || due <= now => {
                    self.deliver(due).await;
                    // Others must get their turn: the clients of these tokens, and new requests.
                    tokio::task::yield_now().await;
                    while let Ok(id) = self.aborts.try_recv() {
                        self.abort(id);
                    }
                    while let Ok(command) = self.commands.try_recv() {
                        self.obey(command).await;
                    }
                }
                due => {
                    let wake = due.into_iter().chain(wake).min();
                    let wake = wake.map(|due| self.origin + Duration::from_nanos(due.0));
                    let sleep = async {
                        match wake {
                            Some(wake) => tokio::time::sleep_until(wake).await,
                            None => std::future::pending().await,
                        }
                    };
                    tokio::select! {
                        biased;
                        Some(id) = self.aborts.recv() => self.abort(id),
                        command = self.commands.recv() => match command {
                            Some(command) => self.obey(command).await,
                            None => return,
                        },
                        () = sleep => {}
                    }
                }
            }
        }
    }

    fn now(&self) -> Time {
        let elapsed = u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Time(elapsed).max(self.latest)
    }

    async fn start_passes(&mut self, now: Time) {
        for (index, rank) in self.ranks.iter_mut().enumerate() {
            if rank.running {
                continue;
            }
            // A rank that never idled goes on where its last pass ended, so that late timers cost nothing.
            let last = rank.pass.ends_at;
            let start = if last > Time::ZERO && now.since(last) <= LAG_MAX { last } else { now };
            let start = if rank.model.has_work() { start } else { now };
            // What a transfer has brought by now is taken in now.
            let start = rank.model.wakes_at().map_or(start, |wake| start.max(wake.min(now)));
            rank.running = match &mut self.store {
                Some(store) => {
                    let running = rank.model.step_with(start, store, &mut rank.pass);
                    store.flush().await;
                    running
                }
                None => rank.model.step(start, &mut rank.pass),
            };
            if !rank.running && self.kind == MockKind::Sglang {
                // What an aborted request leaves in the cache is announced at once.
                rank.sink.publish(rank.model.take_events()).await;
            }
            if let Some(load) = lock(&self.shared.loads).get_mut(index) {
                *load = rank.model.load();
            }
        }
    }

    /// Delivers every pass that ends at `due`.
    async fn deliver(&mut self, due: Time) {
        for index in 0..self.ranks.len() {
            let Some(rank) = self.ranks.get_mut(index) else { continue };
            if !rank.running || rank.pass.ends_at > due {
                continue;
            }
            rank.running = false;
            self.latest = self.latest.max(rank.pass.ends_at);
            // Events go out before the tokens, so that who saw a token will find its blocks.
            let events = std::mem::take(&mut rank.pass.events);
            rank.sink.publish(events).await;
            let mut pass = std::mem::take(&mut rank.pass);
            self.account(index, &pass);
            for output in &pass.outputs {
                self.token(*output, pass.ends_at);
            }
            let ends_at = pass.ends_at;
            pass.clear();
            pass.ends_at = ends_at;
            if let Some(rank) = self.ranks.get_mut(index) {
                rank.pass = pass;
            }
        }
    }

    fn account(&mut self, index: usize, pass: &Pass) {
        let mut observed = lock(&self.shared.observed);
        observed.pass(index, pass);
        for admission in &pass.admitted {
            if let Some(live) = self.live.get_mut(&admission.id) {
                if !admission.resumed {
                    live.group.update(live.place, |progress| progress.loaded = admission.loaded);
                }
                observed.admitted(index, &mut live.life, admission, pass.starts_at);
            }
        }
        for id in &pass.preempted {
            if let Some(live) = self.live.get_mut(id) {
                live.life.preemptions += 1;
            }
        }
    }

    fn token(&mut self, output: TokenOutput, at: Time) {
        let Some(live) = self.live.get_mut(&output.id) else { return };
        let done = output.finish.is_some();
        {
            let mut observed = lock(&self.shared.observed);
            observed.token(live.rank, &mut live.life, at);
            if done {
                observed.finished(live.rank, &live.life, live.by_length, at);
            }
        }
        live.group.update(live.place, |progress| {
            progress.tokens = output.index.saturating_add(1);
            progress.cached = output.cached_tokens;
            progress.done = done;
        });
        if done {
            self.live.remove(&output.id);
        }
    }

    fn abort(&mut self, id: RequestKey) {
        let Some(live) = self.live.remove(&id) else { return };
        if let Some(rank) = self.ranks.get_mut(live.rank) {
            // False only for one whose last token is on its way; that token is dropped then.
            rank.model.abort(id);
            if let Some(load) = lock(&self.shared.loads).get_mut(live.rank) {
                *load = rank.model.load();
            }
        }
        lock(&self.shared.observed).aborted(live.rank);
        live.group.update(live.place, |progress| progress.done = true);
    }

    async fn obey(&mut self, command: Command) {
        match command {
            Command::Submit(submission, reply) => {
                let id = submission.request.id;
                if let Some(store) = &mut self.store {
                    store.look_up(&submission.objects).await;
                }
                let outcome = self.submit(*submission);
                let accepted = outcome.is_ok();
                if reply.send(outcome).is_err() && accepted {
                    self.abort(id);
                }
            }
            Command::Reset(reply) => {
                let mut done = true;
                for rank in &mut self.ranks {
                    done &= rank.model.reset_prefix_cache();
                    if self.kind == MockKind::Sglang {
                        rank.sink.publish(rank.model.take_events()).await;
                    }
                }
                let _ = reply.send(done);
            }
            Command::Abort(name, reply) => {
                let named = self.live.iter().filter(|(_, live)| live.name.starts_with(&name));
                let ids: Vec<RequestKey> = named.map(|(id, _)| *id).collect();
                for id in ids {
                    self.abort(id);
                }
                let _ = reply.send(());
            }
        }
    }

    fn submit(&mut self, submission: Submission) -> Result<(), Refusal> {
        let now = self.now();
        let index = submission.rank.map_or_else(|| self.least_loaded(), |rank| rank as usize);
        let Some(rank) = self.ranks.get_mut(index) else { return Err(Refusal::DuplicateId) };
        let mut request = submission.request;
        request.arrival = now;
        let id = request.id;
        let life = Life::new(now, request.prompt.len(), submission.max_tokens, submission.n);
        rank.model.submit(request)?;
        if let Some(load) = lock(&self.shared.loads).get_mut(index) {
            *load = rank.model.load();
        }
        let Submission { group, place, by_length, name, .. } = submission;
        self.live.insert(id, Live { rank: index, group, place, by_length, name, life });
        Ok(())
    }

    /// vLLM's own measure: a waiting request counts four times.
    fn least_loaded(&self) -> usize {
        let weight = |rank: &Rank| {
            let load = rank.model.load();
            u64::from(load.waiting) * 4 + u64::from(load.running)
        };
        self.ranks.iter().enumerate().min_by_key(|(_, rank)| weight(rank)).map_or(0, |(index, _)| index)
    }
}
