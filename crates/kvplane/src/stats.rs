//! Numbers for metrics and people.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use tandem_kvindex::worker::RoutedIndex;
use tandem_kvindex::{pool, session, worker};
use tandem_types::WorkerId;

use crate::{Knowledge, Pace, Plane};

/// A plane's numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PlaneStats {
    /// State of the picture: rises with each change.
    pub version: u64,
    /// How far the writer is behind with events.
    pub pace: Pace,
    /// Each worker's, sorted by id.
    pub workers: Vec<WorkerStats>,
    /// Sizes of the worker index. It counts each cache group of a worker as a worker.
    pub index: worker::Stats,
    /// Blocks with which workers are credited because of what was sent to them lately.
    pub believed: usize,
    /// The same for dispatches whose events are still to come.
    pub predicted: usize,
    /// Dispatches that wait for their event.
    pub pending: usize,
    /// Dispatches that their event confirmed.
    pub confirmed: u64,
    /// Dispatches that nobody waits for, because [`crate::PlaneConfig::predictions_max`] do.
    pub pending_refused: u64,
    /// Workers not taken because [`crate::PlaneConfig::workers_max`] are known.
    pub workers_refused: u64,
    /// Transitions that nobody drained in time.
    pub transitions_lost: u64,
    /// Namespaces of salted blocks remembered.
    pub salted: usize,
    /// Namespaces forgotten to make room: prompts that go on from such a block do not match.
    pub salted_forgotten: u64,
    /// Names of blocks in the store that were learned.
    pub names: usize,
    /// Names forgotten to make room.
    pub names_forgotten: u64,
    /// The session forest's.
    pub sessions: SessionStats,
    /// The shared store's.
    pub store: StoreStats,
}

/// A worker's numbers. Counts are since it came up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerStats {
    /// Which.
    pub worker: WorkerId,
    /// What is known of it.
    pub knowledge: Knowledge,
    /// Tokens in a block; 0 = not known.
    pub block_size: u32,
    /// Its full-attention cache groups.
    pub groups: usize,
    /// Blocks that it holds, in whatever tier: of its first cache group.
    pub blocks: usize,
    /// It holds blocks of which its events never told.
    pub hollow: bool,
    /// What became of its events.
    pub events: EventCounts,
}

/// What became of a worker's events: blocks, where nothing else is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EventCounts {
    /// Batches.
    pub batches: u64,
    /// Became resident in a tier.
    pub stored: u64,
    /// Left a tier.
    pub removed: u64,
    /// One copy more or less of a block that stays.
    pub copies: u64,
    /// Wait for their parent.
    pub parked: u64,
    /// Removals, and stores without content, of what is not known.
    pub unknown: u64,
    /// Not taken: a bound is reached, or ids and hashes do not match.
    pub refused: u64,
    /// Of cache groups that do not bound a prefix.
    pub ignored: u64,
    /// Written to a shared store by a connector that said so: the store's own events count, these do not.
    pub echoes: u64,
    /// In a tier that is no worker's own.
    pub shared: u64,
    /// Parts of blocks.
    pub partial: u64,
    /// Times that the block size changed, and all was forgotten.
    pub resized: u64,
    /// Times that the engine dropped its cache.
    pub cleared: u64,
    /// Times that all was void.
    pub voided: u64,
}

/// The session forest's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SessionStats {
    /// Sessions known.
    pub sessions: usize,
    /// Different blocks on their paths.
    pub blocks: usize,
    /// Bytes of its tables.
    pub bytes: usize,
    /// What happened.
    pub counters: session::Counters,
}

/// The shared store's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreStats {
    /// Objects known to be there, of the store's default tenant.
    pub objects: u64,
    /// Pages kept.
    pub pages: usize,
    /// Bytes of its tables.
    pub bytes: usize,
    /// Something may have been missed since the last listing.
    pub doubted: bool,
    /// Keys of no form that we know.
    pub odd_keys: u64,
    /// Workers' layouts that could not be kept.
    pub layouts_refused: u64,
    /// What happened.
    pub counters: pool::Counters,
}

impl Plane {
    /// Numbers of now: for metrics and people, not for the hot path.
    #[must_use]
    pub fn stats(&self) -> PlaneStats {
        let shared = &self.shared;
        let workers = self.workers.iter().map(|(id, worker)| WorkerStats {
            worker: *id,
            knowledge: worker.knowledge.unwrap_or(Knowledge::Blind),
            block_size: worker.lanes.first().map_or(0, |lane| lane.shape.block_size),
            groups: worker.lanes.len(),
            blocks: self.held_blocks(worker),
            hollow: worker.hollow,
            events: worker.counts,
        });
        let (names, names_forgotten) = shared.names.counts();
        let mut stats = PlaneStats {
            version: shared.version.load(Ordering::Relaxed),
            pace: self.pace,
            workers: workers.collect(),
            index: shared.index.stats(),
            believed: shared.believed.as_ref().map_or(0, RoutedIndex::credited),
            predicted: shared.predicted.credited(),
            workers_refused: self.workers_refused,
            transitions_lost: self.transitions_lost,
            salted: self.salted.len(),
            salted_forgotten: self.salted.forgotten(),
            names,
            names_forgotten,
            ..PlaneStats::default()
        };
        {
            let pending = shared.pending();
            stats.pending = pending.len();
            stats.confirmed = pending.confirmed;
            stats.pending_refused = pending.refused;
        }
        let sessions = shared.sessions.read().unwrap_or_else(PoisonError::into_inner);
        stats.sessions = SessionStats {
            sessions: sessions.sessions(),
            blocks: sessions.blocks(),
            bytes: sessions.bytes(),
            counters: sessions.counters(),
        };
        let pool = &self.store.index;
        stats.store = StoreStats {
            objects: pool.objects(""),
            pages: pool.pages(),
            bytes: pool.bytes(),
            doubted: pool.doubted("").is_some(),
            odd_keys: self.store.odd_keys,
            layouts_refused: self.store.refused,
            counters: pool.counters(),
        };
        stats
    }
}
