//! The worker index: what each worker holds, tier by tier.
//!
//! - Purpose: for the blocks of a prompt, how many leading ones each worker has, in device memory, with host
//!   memory, with disk; while many workers' events stream in.
//! - Inputs: stores, removals and clears of one worker in its own order, with the engine's own block ids and
//!   local hashes ([`crate::chain`]); prompts as chains of content hashes. Outputs: [`Matches`]; what became of
//!   each event ([`Applied`]); counters ([`Stats`]).
//! - Invariants:
//!   - I-WIX-1 a match tells, for each worker and tier, the longest run of leading blocks without a hole;
//!   - I-WIX-2 a block stored several times is there until it was removed as often ([`Copies::Each`]), a stated
//!     number of remaining copies is believed, and a removal too many has no effect;
//!   - I-WIX-3 what one worker's events say changes no other worker's matches;
//!   - I-WIX-4 a block whose parent is unknown is no match until the parent is known;
//!   - I-WIX-5 a match sees, block by block, a state between two operations: of an event of several blocks it
//!     may see a leading part; a block that stays resident all along is never missed;
//!   - matches and events of other workers wait for a lock of one shard at most, which is held for one
//!     run of at most 256 blocks; only a new or a departing worker excludes matches;
//!   - I-WIX-7 memory follows what is resident: what nobody holds leaves the forest, and tables shrink;
//!   - freed places are used again.
//! - Memory: 8 bytes for each distinct block, however many workers hold it; 12 to 17 for its id on each worker that
//!   holds it; 8 for each unbroken stretch that a worker holds of a run; about 130 for each run. Ids are each
//!   worker's own, so engines that share them save nothing and engines that do not cost nothing.
//! - Bounds: content hashes have 64 bits. 2^24 workers; 2^24 runs, beyond which stores are refused.
//! - Deliberately absent: event order, gaps and replay (the stream's reader), several KV groups (folded by the
//!   caller), the shared pool, prompts' tokens.
//! - Sources: vLLM 0.11 to 0.33 and SGLang 0.5.5 to 0.5.23 for what their events mean.

mod matching;
mod names;
mod orphans;
mod roster;
mod routed;
mod runs;
mod span;
mod state;
mod table;

use tandem_types::{Tier, WorkerId};

pub use matching::{Matches, WorkerMatch};
pub use routed::{Keep, Route, RoutedIndex};

use roster::Roster;
use runs::Forest;
use state::{Shared, State};

/// Bounds of a worker index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerIndexConfig {
    /// Most blocks of one worker that wait for their parent; 0 = none waits.
    pub orphans_max: usize,
}

impl Default for WorkerIndexConfig {
    fn default() -> Self {
        Self { orphans_max: 4096 }
    }
}

/// Whether a store of a block that is resident already is another copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Copies {
    /// The engine announces each physical copy: the block is there until each was removed.
    #[default]
    Each,
    /// The engine repeats what it holds (vLLM's `kv_cache_report_mode: full`): nothing is added.
    Repeated,
}

/// Blocks that became resident, in chain order.
#[derive(Debug, Clone, Copy)]
pub struct Stored<'a> {
    /// The engine's id of the block before the first one; `None` = start of a prompt.
    pub parent: Option<u64>,
    /// The engine's ids.
    pub ids: &'a [u64],
    /// Local hashes, one for each id; empty = the engine does not say what is in the blocks. Such blocks are
    /// taken when the worker has told before, and skipped otherwise.
    pub locals: &'a [u64],
    /// Where they lie. [`Tier::Shared`] is no worker's own and is skipped.
    pub tier: Tier,
    /// What a repetition means.
    pub copies: Copies,
}

/// What became of an event's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Applied {
    /// Became resident in the tier, or left it.
    pub changed: usize,
    /// One copy more or less of a block that stays resident.
    pub copies: usize,
    /// Wait for their parent.
    pub parked: usize,
    /// Removals of what is not there; stores that say nothing of blocks that are not known.
    pub unknown: usize,
    /// Not taken: a bound is reached, ids and hashes do not match, or the tier is not a worker's.
    pub refused: usize,
}

/// A block that a worker holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldBlock {
    /// Its content hash.
    pub content: u64,
    /// Whether it lies in device memory, in host memory, on disk.
    pub tiers: [bool; 3],
}

/// Sizes of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Workers that have had an event.
    pub workers: usize,
    /// Runs of blocks.
    pub runs: usize,
    /// Distinct blocks, with those that nobody holds but that others hang on.
    pub blocks: usize,
    /// Blocks that workers hold, in whatever tier, summed over workers.
    pub held: usize,
    /// Blocks that wait for their parent.
    pub orphans: usize,
}

/// What each worker holds. All methods take `&self`; events of one worker must come one after the other,
/// everything else may come from any thread at any time.
#[derive(Debug)]
pub struct WorkerIndex {
    shared: Shared,
    roster: Roster<State>,
}

const fn tier_number(tier: Tier) -> Option<u8> {
    match tier {
        Tier::Device => Some(0),
        Tier::Host => Some(1),
        Tier::Disk => Some(2),
        Tier::Shared => None,
    }
}

impl Default for WorkerIndex {
    fn default() -> Self {
        Self::new(WorkerIndexConfig::default())
    }
}

impl WorkerIndex {
    /// An empty index.
    #[must_use]
    pub fn new(config: WorkerIndexConfig) -> Self {
        Self { shared: Shared { forest: Forest::new(), config }, roster: Roster::new() }
    }

    /// Blocks became resident.
    pub fn stored(&self, worker: WorkerId, event: &Stored<'_>) -> Applied {
        let refused = Applied { refused: event.ids.len(), ..Applied::default() };
        let Some(tier) = tier_number(event.tier) else { return refused };
        if !event.locals.is_empty() && event.locals.len() != event.ids.len() {
            return refused;
        }
        self.roster.with(worker, |state| state.stored(&self.shared, event, tier)).unwrap_or(refused)
    }

    /// One copy of each of these blocks left a tier.
    pub fn removed(&self, worker: WorkerId, tier: Tier, ids: &[u64]) -> Applied {
        let unknown = Applied { unknown: ids.len(), ..Applied::default() };
        let Some(tier) = tier_number(tier) else { return unknown };
        self.roster.with_known(worker, |state| state.removed(&self.shared, ids, tier)).unwrap_or(unknown)
    }

    /// A copy of a block left a tier and the engine says how many copies remain there.
    pub fn remaining(&self, worker: WorkerId, tier: Tier, id: u64, copies: u32) -> Applied {
        let unknown = Applied { unknown: 1, ..Applied::default() };
        let Some(tier) = tier_number(tier) else { return unknown };
        self.roster
            .with_known(worker, |state| state.remaining(&self.shared, id, tier, copies))
            .unwrap_or(unknown)
    }

    /// A worker dropped all of a tier (`None` = of every tier).
    pub fn cleared(&self, worker: WorkerId, tier: Option<Tier>) {
        let number = match tier {
            None => None,
            Some(tier) => match tier_number(tier) {
                Some(number) => Some(number),
                None => return,
            },
        };
        self.roster.with_known(worker, |state| state.clear(&self.shared, number));
    }

    /// A worker is gone, with all that it held.
    pub fn remove_worker(&self, worker: WorkerId) {
        self.roster.remove(worker, |state| state.clear(&self.shared, None));
    }

    /// How much of a prompt each worker holds. `chain` = content hashes of its whole blocks, from the first.
    pub fn find(&self, chain: &[u64], out: &mut Matches) {
        let names = self.roster.names();
        out.walk(&self.shared.forest, chain, |number| names.get(number));
    }

    /// The blocks that a worker's ids name, one for each id; `None` = it holds none of that name.
    pub fn blocks(&self, worker: WorkerId, ids: &[u64], out: &mut Vec<Option<HeldBlock>>) {
        out.clear();
        self.roster
            .with_known(worker, |state| out.extend(ids.iter().map(|id| state.block(&self.shared, *id))));
        out.resize(ids.len(), None);
    }

    /// Blocks that a worker holds, in whatever tier.
    #[must_use]
    pub fn held_by(&self, worker: WorkerId) -> usize {
        self.roster.with_known(worker, |state| state.held()).unwrap_or_default()
    }

    /// Sizes, counted now: for metrics, not for the hot path.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let (runs, blocks) = self.shared.forest.size();
        let mut stats = Stats { runs, blocks, ..Stats::default() };
        self.roster.each(|state| {
            stats.workers += 1;
            stats.held += state.held();
            stats.orphans += state.orphans();
        });
        stats
    }
}
