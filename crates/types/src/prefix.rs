//! Where a prompt's KV lies, as an index saw it when the prompt arrived.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::ids::WorkerId;
use crate::spans::{Holders, WorkerSet};

/// How an index came to know what it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MatchSource {
    /// From the engines' own events, which are up to date.
    #[default]
    Exact,
    /// From what was routed where, or from events that are old or have holes: the engine may have dropped it since.
    Approximate,
}

/// How much of a prompt one worker holds, in leading blocks. Each figure includes the one before:
/// `device <= host <= disk`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WorkerPrefix {
    /// The worker.
    pub worker: WorkerId,
    /// Leading blocks in device memory.
    pub device: u32,
    /// Leading blocks each of which is in device or host memory.
    pub host: u32,
    /// Leading blocks each of which is in device memory, host memory or on disk.
    pub disk: u32,
    /// Where this knowledge comes from.
    #[serde(default)]
    pub source: MatchSource,
}

impl WorkerPrefix {
    /// Leading blocks in device memory, in that or host memory, in these or on disk.
    #[inline]
    #[must_use]
    pub const fn depths(&self) -> [u32; 3] {
        [self.device, self.host, self.disk]
    }
}

/// What one worker could load of a prompt from a shared store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SharedPrefix {
    /// The worker.
    pub worker: WorkerId,
    /// Blocks right behind its own leading ones ([`WorkerPrefix::disk`]).
    pub blocks: u32,
}

/// So many leading tokens of a prompt tell its head from others ([`PrefixMatch::head`]): enough for what differs between
/// harnesses and kinds of agents, less than any system prompt with tools.
pub const HEAD_TOKENS: u32 = 512;

/// Where a prompt's KV lies. The default says that nothing is known: neither the prompt's blocks nor any worker.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PrefixMatch {
    /// Tokens in a block; 0 = the prompt's blocks are not known.
    pub block_size: u32,
    /// Whole blocks of the prompt.
    pub blocks: u32,
    /// Names the prompt's first [`HEAD_TOKENS`] tokens: equal for prompts that begin alike. `None` = it is shorter, or its
    /// blocks are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<u64>,
    /// Workers that hold the beginning of the prompt.
    #[serde(default, skip_serializing_if = "Holders::is_empty")]
    pub workers: Holders,
    /// Workers of which the index knows nothing (no events, events lost). Of all others it knows that they hold what
    /// `workers` says and no more.
    #[serde(default, skip_serializing_if = "WorkerSet::is_empty")]
    pub blind: WorkerSet,
    /// Blocks that a shared store holds: positions in the prompt, ascending, half open, disjoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared: Vec<Range<u32>>,
    /// What each worker could load from the shared store: engines lay their blocks out there in ways of their own,
    /// and not all of them use it. Sorted by worker; those that use none are not listed. Absent = any worker can
    /// load what `shared` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loadable: Option<Vec<SharedPrefix>>,
    /// State of the index: rises with each change that it took in, so that a reader of a record can tell an old
    /// match from a new one.
    #[serde(default)]
    pub version: u64,
}

impl PrefixMatch {
    /// Nothing is known.
    #[must_use]
    pub const fn unknown() -> Self {
        Self {
            block_size: 0,
            blocks: 0,
            head: None,
            workers: Holders::new(),
            blind: WorkerSet::new(),
            shared: Vec::new(),
            loadable: None,
            version: 0,
        }
    }

    /// Whether the prompt's blocks are not known, so that nothing else can be.
    #[must_use]
    pub const fn is_unknown(&self) -> bool {
        self.block_size == 0
    }

    /// Whether another match says the same of who holds how much, whenever and however it was found.
    #[must_use]
    pub fn agrees(&self, other: &Self) -> bool {
        (&self.workers, &self.shared, &self.blind) == (&other.workers, &other.shared, &other.blind)
    }

    /// What a worker holds; `None` = nothing is known of that worker.
    #[must_use]
    pub fn of(&self, worker: WorkerId) -> Option<WorkerPrefix> {
        if self.is_unknown() || self.blind.contains(worker) {
            return None;
        }
        let nothing = WorkerPrefix { worker, device: 0, host: 0, disk: 0, source: MatchSource::Exact };
        Some(self.workers.get(worker).unwrap_or(nothing))
    }

    /// Where the run of shared blocks that position `from` belongs to ends: blocks behind a hole are of no use
    /// to an engine. `from` itself when the store does not hold that block.
    #[must_use]
    pub fn shared_run_end(&self, from: u32) -> u32 {
        let next = self.shared.partition_point(|run| run.end <= from);
        let mut end = from;
        for run in self.shared.get(next..).unwrap_or_default() {
            if run.start > end {
                break;
            }
            end = end.max(run.end);
        }
        end.min(self.blocks.max(from))
    }

    /// Blocks that a worker could load from the shared store right behind its own.
    #[must_use]
    pub fn shared_beyond(&self, held: WorkerPrefix) -> u32 {
        match &self.loadable {
            None => self.shared_run_end(held.disk) - held.disk,
            Some(list) => {
                let found = list.binary_search_by_key(&held.worker, |shared| shared.worker);
                let blocks = found.ok().and_then(|at| list.get(at)).map_or(0, |shared| shared.blocks);
                blocks.min(self.blocks.saturating_sub(held.disk))
            }
        }
    }

    /// Whether a worker can load from the shared store at all.
    #[must_use]
    pub fn uses_store(&self, worker: WorkerId) -> bool {
        let listed = |list: &Vec<SharedPrefix>| list.binary_search_by_key(&worker, |s| s.worker).is_ok();
        self.loadable.as_ref().is_none_or(listed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::EngineId;

    const fn worker(engine: u32) -> WorkerId {
        WorkerId { engine: EngineId(engine), rank: 0 }
    }

    #[test]
    fn a_run_of_shared_blocks_ends_at_the_first_hole_and_at_the_prompts_end() {
        let found = PrefixMatch {
            block_size: 16,
            blocks: 12,
            shared: vec![1..3, 3..5, 7..20],
            ..PrefixMatch::unknown()
        };
        let ends = [0, 1, 2, 4, 5, 6, 7, 11, 12].map(|from| found.shared_run_end(from));
        assert_eq!(ends, [0, 5, 5, 5, 5, 6, 12, 12, 12]);
    }

    #[test]
    fn a_worker_that_is_not_listed_holds_nothing_unless_the_index_is_blind_there() {
        let held =
            WorkerPrefix { worker: worker(2), device: 3, host: 4, disk: 4, source: MatchSource::Exact };
        let mut found = PrefixMatch {
            block_size: 16,
            blocks: 5,
            workers: [held].into_iter().collect(),
            blind: [worker(3)].into_iter().collect(),
            ..PrefixMatch::unknown()
        };
        assert_eq!(found.of(worker(2)), Some(held));
        assert_eq!(found.of(worker(1)).map(|held| held.disk), Some(0));
        assert_eq!(found.of(worker(3)), None);
        found.block_size = 0;
        assert_eq!(found.of(worker(2)), None);
    }

    #[test]
    fn a_worker_loads_what_its_own_layout_has_and_no_more() {
        let held = |engine, disk| WorkerPrefix {
            worker: worker(engine),
            device: 0,
            host: 0,
            disk,
            source: MatchSource::Exact,
        };
        let mut found = PrefixMatch { block_size: 16, blocks: 8, ..PrefixMatch::unknown() };
        found.shared.push(1..4);
        assert_eq!([held(1, 0), held(1, 1), held(1, 2)].map(|held| found.shared_beyond(held)), [0, 3, 2]);
        found.loadable = Some(vec![
            SharedPrefix { worker: worker(1), blocks: 2 },
            SharedPrefix { worker: worker(3), blocks: 9 },
        ]);
        let beyond = [held(1, 1), held(2, 1), held(3, 5)].map(|held| found.shared_beyond(held));
        assert_eq!(beyond, [2, 0, 3]);
        assert_eq!([1, 2, 3].map(|engine| found.uses_store(worker(engine))), [true, false, true]);
    }
}
