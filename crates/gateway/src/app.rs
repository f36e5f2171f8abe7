//! What all requests share.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tandem_engines::{EngineState, Engines};
use tandem_types::{RequestId, Time, TurnId};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::body::Reading;
use crate::clock::Clock;
use crate::config::Resolved;
use crate::explain::Decisions;
use crate::kv::Kv;
use crate::metrics::Metrics;
use crate::owner::Owner;
use crate::state::{ENGINES_WAIT, Notes};
use crate::trace_log::TraceLog;

/// The gateway, as its request handlers see it.
pub(crate) struct App {
    pub(crate) config: Resolved,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
    pub(crate) owner: Owner,
    pub(crate) engines: Engines,
    pub(crate) decisions: Decisions,
    pub(crate) trace: TraceLog,
    pub(crate) reading: Reading,
    /// Where KV lies; `None` = nobody asks.
    pub(crate) kv: Option<Arc<Kv>>,
    /// Where programs that changed are named.
    pub(crate) notes: Notes,
    /// One permit per call under way.
    pub(crate) slots: Arc<Semaphore>,
    /// Cancelled when shutdown begins: readiness is gone.
    pub(crate) draining: CancellationToken,
    /// Cancelled when the grace is over: what is still under way is cut.
    pub(crate) aborting: CancellationToken,
    pub(crate) ids: RequestIds,
    /// Turns that wait for a worker.
    pub(crate) held: AtomicU64,
    /// What admission had counted when its metrics were brought up to date last.
    pub(crate) admission: crate::admission::Seen,
    /// Where the rotation of calls that are no turns stands.
    pub(crate) next_small_call: AtomicUsize,
    next_turn: AtomicU64,
}

/// What [`App::new`] puts together.
pub(crate) struct Shared {
    pub(crate) config: Resolved,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
    pub(crate) owner: Owner,
    pub(crate) engines: Engines,
    pub(crate) decisions: Decisions,
    pub(crate) trace: TraceLog,
    pub(crate) reading: Reading,
    pub(crate) kv: Option<Arc<Kv>>,
    pub(crate) notes: Notes,
}

impl App {
    pub(crate) fn new(shared: Shared) -> Self {
        let Shared { config, clock, metrics, owner, engines, decisions, trace, reading, kv, notes } = shared;
        Self {
            slots: Arc::new(Semaphore::new(config.max_concurrent_requests.min(Semaphore::MAX_PERMITS))),
            config,
            clock,
            metrics,
            owner,
            engines,
            decisions,
            trace,
            reading,
            kv,
            notes,
            draining: CancellationToken::new(),
            aborting: CancellationToken::new(),
            ids: RequestIds::default(),
            held: AtomicU64::new(0),
            admission: crate::admission::Seen::default(),
            next_small_call: AtomicUsize::new(0),
            next_turn: AtomicU64::new(1),
        }
    }

    /// A fresh turn number.
    pub(crate) fn next_turn(&self) -> TurnId {
        TurnId(self.next_turn.fetch_add(1, Ordering::Relaxed))
    }

    /// Just started, and not all engines have answered yet: sessions that come back may not find their worker.
    pub(crate) fn settling(&self) -> bool {
        let start = self.clock.instant(Time::ZERO);
        self.clock.age(start) < ENGINES_WAIT
            && self.engines.list().iter().any(|engine| engine.state == EngineState::Starting)
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }
}

/// Request ids that engines are working on. Engines key their work by the id, so an id that a client uses
/// twice at once must not reach them twice.
#[derive(Clone, Default)]
pub(crate) struct RequestIds {
    in_use: Arc<Mutex<HashSet<RequestId>>>,
}

/// An id that nobody else sends to an engine as long as this lives.
pub(crate) struct UniqueId {
    id: RequestId,
    ids: RequestIds,
}

impl RequestIds {
    fn in_use(&self) -> std::sync::MutexGuard<'_, HashSet<RequestId>> {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first of `wished` and `own` that is free; `own` ids are never equal.
    pub(crate) fn claim(&self, wished: Option<&RequestId>, own: &RequestId) -> UniqueId {
        let mut in_use = self.in_use();
        let id = match wished {
            Some(wished) if !in_use.contains(wished) => wished,
            _ => own,
        };
        in_use.insert(id.clone());
        UniqueId { id: id.clone(), ids: self.clone() }
    }
}

impl UniqueId {
    pub(crate) fn as_str(&self) -> &str {
        self.id.as_str()
    }
}

impl Drop for UniqueId {
    fn drop(&mut self) {
        self.ids.in_use().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_in_use_is_not_given_twice() {
        let id = |text: &str| RequestId::new(text).expect("valid");
        let ids = RequestIds::default();
        let first = ids.claim(Some(&id("a")), &id("own-1"));
        let second = ids.claim(Some(&id("a")), &id("own-2"));
        assert_eq!((first.as_str(), second.as_str()), ("a", "own-2"));
        drop(first);
        assert_eq!(ids.claim(Some(&id("a")), &id("own-3")).as_str(), "a");
        assert_eq!(ids.claim(None, &id("own-4")).as_str(), "own-4");
    }
}
