//! Where KV lies, and what prompts need of it.
//!
//! - Purpose: know for each prompt, when it arrives, how much of it every worker could reuse, and tell afterwards
//!   whether that was right.
//! - Parts: [`task`] owns the picture of the caches ([`tandem_kvplane::Plane`]) and is fed by events; [`blocks`]
//!   finds a prompt's blocks, from the best source that has them ([`local`] is the tokenizer here); [`fleet`] is
//!   what of the engines both need; [`held`] looks waiting turns up again; [`status`] and [`admin`] show it to
//!   metrics and people.
//! - Invariants: I-KVG-1 no request fails because of anything here;
//!   I-KVG-5 a tenant's prompts match those of another only where caches are not kept apart.
//! - No request waits longer than its sources' bounds because of anything here.
//! - The task that applies events has a thread of its own, and requests only read what it wrote: one that lags
//!   makes matches old, not requests slow, and workers stale for as long.
//! - What was dispatched counts before the turn's bytes leave, and no longer when it failed before the first byte of
//!   an answer.
//! - No content is kept: blocks are hashes, outlines are hashes and lengths; what is kept to tokenize a session's
//!   next prompt is bounded and never written anywhere.
//! - Degrading: events lost -> what was dispatched lately -> the session's home -> load. Each step down and up is
//!   a transition in the metrics.
//! - Deliberately absent: the choice of a worker (routing), the index (kvplane), the wire (engines).

pub(crate) mod admin;
pub(crate) mod blocks;
pub(crate) mod fleet;
pub(crate) mod held;
pub(crate) mod local;
mod session;
pub(crate) mod status;
mod task;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tandem_engines::{EngineEvent, Engines, KvEvents, StoreEvents};
use tandem_kvplane::{PlaneReader, PlaneStats, PromptChain};
use tandem_lineage::Lineage;
use tandem_types::{ProgramKey, WorkerId};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::clock::Clock;
use crate::config::KvSettings;
use crate::metrics::{Family, Metrics};

pub use local::TokenizerError;
pub(crate) use session::engine_session;
pub(crate) use task::{Running, StartError, Starting, start, ticks};

/// What the plane's task is told by requests and people.
pub(crate) enum News {
    /// A session's prompt went to a worker.
    Told {
        program: ProgramKey,
        parent: Option<ProgramKey>,
        relation: tandem_kvplane::Relation,
        chain: PromptChain,
        worker: WorkerId,
    },
    /// A session is over.
    Ended(ProgramKey),
    /// Time passed.
    Tick,
    /// Somebody wants the numbers.
    Stats(oneshot::Sender<PlaneStats>),
    /// Somebody asks for objects of the store.
    Contains(Vec<String>, oneshot::Sender<Vec<bool>>),
    /// The end.
    Close,
}

/// The KV side of the gateway, as requests and people see it.
pub(crate) struct Kv {
    pub(crate) settings: KvSettings,
    pub(crate) reader: PlaneReader,
    pub(crate) tokenizers: local::Tokenizers,
    pub(crate) fleet: fleet::Fleet,
    pub(crate) held: held::Held,
    pub(crate) engines: Engines,
    events: Option<KvEvents>,
    store: Option<Arc<StoreEvents>>,
    lineage: Mutex<Lineage>,
    lookups: Semaphore,
    next_lookup: AtomicUsize,
    patience: blocks::EnginePatience,
    news: mpsc::Sender<News>,
    workers: mpsc::UnboundedSender<EngineEvent>,
    clock: Clock,
    metrics: Metrics,
}

impl Kv {
    /// News that only refine the picture: when the task is behind, they are left out and counted.
    pub(crate) fn tell(&self, news: News) {
        if self.news.try_send(news).is_err() {
            self.metrics.inc(Family::LimitHits, &[("limit", "kv_queue")]);
        }
    }

    /// A worker came, changed or left.
    pub(crate) fn worker(&self, event: &EngineEvent) {
        if matches!(event, EngineEvent::Up { .. } | EngineEvent::Removed { .. }) {
            let _ = self.workers.send(event.clone());
        }
    }

    /// A session is over.
    pub(crate) fn session_end(&self, program: &ProgramKey) {
        self.tokenizers.forget(program);
        self.lineage().end_session(program);
        self.tell(News::Ended(program.clone()));
    }

    pub(crate) const fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    pub(crate) fn lineage(&self) -> MutexGuard<'_, Lineage> {
        self.lineage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The numbers of now.
    pub(crate) async fn stats(&self) -> Option<PlaneStats> {
        let (answer, receiver) = oneshot::channel();
        self.news.send(News::Stats(answer)).await.ok()?;
        receiver.await.ok()
    }

    /// Whether the store is known to hold these objects.
    pub(crate) async fn contains(&self, keys: Vec<String>) -> Option<Vec<bool>> {
        let (answer, receiver) = oneshot::channel();
        self.news.send(News::Contains(keys, answer)).await.ok()?;
        receiver.await.ok()
    }

    /// A number that goes round.
    fn turn_of(&self, count: usize) -> usize {
        self.next_lookup.fetch_add(1, Ordering::Relaxed).checked_rem(count).unwrap_or(0)
    }
}
