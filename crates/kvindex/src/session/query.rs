//! Questions to the owner. Readers on other threads have [`super::SessionReader`].

use std::collections::{BTreeMap, BTreeSet};

use tandem_types::{ProgramKey, WorkerId};

use super::forest::{NONE, low_bits};
use super::holds::TIERS;
use super::index::SessionIndex;
use super::published::{SessionSummary, WorkerSummary};

/// One branch of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Branch {
    /// Its last block.
    pub last: u64,
    /// Known blocks on its path.
    pub blocks: u64,
    /// Where its next turn is at home.
    pub home: Option<WorkerId>,
    /// Whether its path is known from the prompt's first block on.
    pub rooted: bool,
}

/// What of a branch lies at a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Resident {
    /// Leading blocks without a hole in device memory.
    pub device_prefix: u64,
    /// Leading blocks without a hole in any of the worker's tiers.
    pub local_prefix: u64,
    /// Blocks anywhere on the path: in device memory, host memory, disk.
    pub blocks: [u64; TIERS],
}

impl SessionIndex {
    /// A session's numbers.
    #[must_use]
    pub fn session(&self, key: &ProgramKey) -> Option<SessionSummary> {
        let session = self.records.get(self.records.slot(key)?)?;
        let home = session.latest().and_then(|end| self.home_of(end.home));
        Some(SessionSummary { blocks: session.blocks, branches: session.ends.len() as u64, home })
    }

    /// A worker's numbers; `None` while nothing is known of it.
    #[must_use]
    pub fn worker(&self, id: WorkerId) -> Option<WorkerSummary> {
        let worker = self.forest.workers.get(self.forest.workers.slot(id)?)?;
        Some(WorkerSummary { working_set: worker.working_set, resident: worker.resident })
    }

    /// A session's branches, the one used last first.
    #[must_use]
    pub fn branches(&self, key: &ProgramKey) -> Vec<Branch> {
        let Some(session) = self.records.slot(key).and_then(|slot| self.records.get(slot)) else {
            return Vec::new();
        };
        let mut ends = session.ends.clone();
        ends.sort_by_key(|end| std::cmp::Reverse(end.used));
        ends.iter()
            .filter_map(|end| {
                let last = *self.forest.run(end.run)?.blocks.last()?;
                let rooted = self.forest.unknown_above(self.forest.root_of(end.run).0).is_none();
                Some(Branch { last, blocks: end.depth, home: self.home_of(end.home), rooted })
            })
            .collect()
    }

    /// The blocks that lead to `last`, from the first known on, or from behind `after`; `None` if `last` is on no
    /// session's path, or `after` not on its own.
    #[must_use]
    pub fn path(&self, last: u64, after: Option<u64>) -> Option<Vec<u64>> {
        let spot = self.forest.find(last)?;
        let stop = match after {
            Some(after) => Some(self.forest.find(after)?),
            None => None,
        };
        let (mut at, mut upto) = (spot.run, spot.index + 1);
        let mut path = Vec::new();
        loop {
            let blocks = self.forest.run(at)?.blocks.get(..upto)?;
            if let Some(stop) = stop.filter(|stop| stop.run == at) {
                path.extend(blocks.get(stop.index + 1..)?.iter().rev());
                break;
            }
            path.extend(blocks.iter().rev());
            at = self.forest.parent(at);
            if at == NONE {
                if stop.is_some() {
                    return None;
                }
                break;
            }
            upto = self.forest.len(at);
        }
        path.reverse();
        Some(path)
    }

    /// What of a session's branch used last lies at a worker, as far as events and matches told.
    #[must_use]
    pub fn resident(&self, key: &ProgramKey, worker: WorkerId) -> Resident {
        let mut out = Resident::default();
        let Some(session) = self.records.slot(key).and_then(|slot| self.records.get(slot)) else {
            return out;
        };
        let (Some(end), Some(worker)) = (session.latest(), self.forest.workers.slot(worker)) else {
            return out;
        };
        let mut runs = Vec::new();
        let mut at = end.run;
        while at != NONE {
            runs.push(at);
            at = self.forest.parent(at);
        }
        // A path whose start is unknown has no prefix.
        let rooted = runs.last().is_some_and(|root| self.forest.unknown_above(*root).is_none());
        let (mut device, mut local) = (rooted, rooted);
        for run in runs.into_iter().rev() {
            let len = self.forest.len(run);
            let bits = self.forest.hold(run, worker).bits;
            for (count, bits) in out.blocks.iter_mut().zip(bits) {
                *count += u64::from(bits.count_ones());
            }
            let leading = |bits: u64| (bits & low_bits(len)).trailing_ones().min(len as u32) as usize;
            for (whole, prefix, bits) in [
                (&mut device, &mut out.device_prefix, bits[0]),
                (&mut local, &mut out.local_prefix, bits[0] | bits[1] | bits[2]),
            ] {
                if *whole {
                    *prefix += leading(bits) as u64;
                    *whole = leading(bits) == len;
                }
            }
        }
        out
    }

    /// Blocks that a worker would no longer have to keep without this session: those of its branches at home
    /// there that no other session's branch there shares.
    #[must_use]
    pub fn exclusive(&self, key: &ProgramKey, worker: WorkerId) -> u64 {
        let Some(session) = self.records.slot(key).and_then(|slot| self.records.get(slot)) else { return 0 };
        let Some(worker) = self.forest.workers.slot(worker) else { return 0 };
        let mut lifted: BTreeMap<u32, u32> = BTreeMap::new();
        let mut blocks = 0;
        for end in &session.ends {
            if end.home.and_then(|home| self.forest.workers.alive(home)) != Some(worker) {
                continue;
            }
            let mut at = end.run;
            while at != NONE {
                let lifted = lifted.entry(at).or_default();
                *lifted += 1;
                if *lifted < self.forest.hold(at, worker).covers {
                    break;
                }
                blocks += self.forest.len(at) as u64;
                at = self.forest.parent(at);
            }
        }
        blocks
    }

    /// Blocks that a worker would have to keep besides what it keeps already, were all of this session's branches
    /// at home there.
    #[must_use]
    pub fn added(&self, key: &ProgramKey, worker: WorkerId) -> u64 {
        let Some(session) = self.records.slot(key).and_then(|slot| self.records.get(slot)) else { return 0 };
        let Some(worker) = self.forest.workers.slot(worker) else { return session.blocks };
        let mut seen = BTreeSet::new();
        let mut blocks = 0;
        for end in &session.ends {
            let mut at = end.run;
            while at != NONE && self.forest.hold(at, worker).covers == 0 && seen.insert(at) {
                blocks += self.forest.len(at) as u64;
                at = self.forest.parent(at);
            }
        }
        blocks
    }

    /// Who spawned a session.
    #[must_use]
    pub fn parent(&self, key: &ProgramKey) -> Option<&ProgramKey> {
        let session = self.records.get(self.records.slot(key)?)?;
        Some(&self.records.get(session.parent?)?.key)
    }

    /// Whom a session spawned.
    #[must_use]
    pub fn children(&self, key: &ProgramKey) -> Vec<&ProgramKey> {
        let session = self.records.slot(key).and_then(|slot| self.records.get(slot));
        let children = session.into_iter().flat_map(|session| &session.children);
        children.filter_map(|child| self.records.get(*child).map(|child| &child.key)).collect()
    }

    /// Blocks of a session that are on its parent's paths too: where it branched off. `None` without a parent.
    #[must_use]
    pub fn shared_with_parent(&self, key: &ProgramKey) -> Option<u64> {
        let session = self.records.get(self.records.slot(key)?)?;
        let parent = self.records.get(session.parent?)?;
        let runs = |ends: &[super::records::End]| {
            let mut runs = BTreeSet::new();
            for end in ends {
                let mut at = end.run;
                while at != NONE && runs.insert(at) {
                    at = self.forest.parent(at);
                }
            }
            runs
        };
        let shared = &runs(&session.ends) & &runs(&parent.ends);
        Some(shared.iter().map(|run| self.forest.len(*run) as u64).sum())
    }

    /// Sessions known.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.records.len()
    }

    /// Different blocks on sessions' paths.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.forest.blocks()
    }

    /// Runs that they are kept in.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.forest.runs()
    }

    /// Trees whose start is unknown.
    #[must_use]
    pub fn fragments(&self) -> usize {
        self.forest.fragments()
    }

    /// Workers known.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.forest.workers.len()
    }

    /// Bytes held by the tables, from their capacities.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.forest.bytes() + self.records.bytes()
    }

    fn home_of(&self, home: Option<super::holds::Home>) -> Option<WorkerId> {
        let slot = self.forest.workers.alive(home?)?;
        self.forest.workers.get(slot).map(|worker| worker.id)
    }
}
