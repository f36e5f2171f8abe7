//! What readers see: cells of atomics, found through small tables.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use tandem_types::{EngineId, ProgramKey, WorkerId};

use crate::spread::Spread;

use super::holds::{TIERS, Worker};

const PARTS: usize = 64;
/// No worker.
const NOWHERE: u64 = u64::MAX;

/// A session's numbers. Each is exact as of the writer's last change of it; two of them may be one change apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionSummary {
    /// Different blocks on the session's paths.
    pub blocks: u64,
    /// Its branches.
    pub branches: u64,
    /// Home of the branch used last.
    pub home: Option<WorkerId>,
}

/// A worker's numbers, with the same caution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerSummary {
    /// Different blocks on the paths of branches at home there.
    pub working_set: u64,
    /// Blocks of any session's paths that lie in its device memory, host memory, disk.
    pub resident: [u64; TIERS],
}

#[derive(Debug, Default)]
pub(super) struct SessionCell {
    blocks: AtomicU64,
    branches: AtomicU64,
    home: AtomicU64,
}

#[derive(Debug, Default)]
struct WorkerCell {
    working_set: AtomicU64,
    resident: [AtomicU64; TIERS],
}

#[derive(Debug)]
pub(super) struct Published {
    spread: Spread,
    sessions: Vec<RwLock<HashMap<ProgramKey, Arc<SessionCell>, Spread>>>,
    workers: RwLock<HashMap<WorkerId, Arc<WorkerCell>>>,
}

/// A handle for readers on other threads. They never wait for the forest.
#[derive(Debug, Clone)]
pub struct SessionReader {
    pub(super) published: Arc<Published>,
}

impl SessionReader {
    /// A session's numbers.
    #[must_use]
    pub fn session(&self, key: &ProgramKey) -> Option<SessionSummary> {
        let part = self.published.sessions.get(self.published.part(key))?;
        let cell = part.read().unwrap_or_else(PoisonError::into_inner).get(key).map(Arc::clone)?;
        let home = cell.home.load(Ordering::Relaxed);
        let home = (home != NOWHERE)
            .then_some(WorkerId { engine: EngineId((home >> 32) as u32), rank: home as u32 })
            // A worker may have gone since.
            .filter(|home| {
                self.published.workers.read().unwrap_or_else(PoisonError::into_inner).contains_key(home)
            });
        Some(SessionSummary {
            blocks: cell.blocks.load(Ordering::Relaxed),
            branches: cell.branches.load(Ordering::Relaxed),
            home,
        })
    }

    /// A worker's numbers; `None` while nothing is known of it.
    #[must_use]
    pub fn worker(&self, id: WorkerId) -> Option<WorkerSummary> {
        let workers = self.published.workers.read().unwrap_or_else(PoisonError::into_inner);
        let cell = Arc::clone(workers.get(&id)?);
        drop(workers);
        Some(WorkerSummary {
            working_set: cell.working_set.load(Ordering::Relaxed),
            resident: std::array::from_fn(|at| {
                cell.resident.get(at).map_or(0, |count| count.load(Ordering::Relaxed))
            }),
        })
    }
}

impl Published {
    pub(super) fn new(seed: u64) -> Self {
        let spread = Spread::new(seed);
        Self {
            spread,
            sessions: (0..PARTS).map(|_| RwLock::new(HashMap::with_hasher(spread))).collect(),
            workers: RwLock::default(),
        }
    }

    fn part(&self, key: &ProgramKey) -> usize {
        (self.spread.hash_one(key) >> 58) as usize
    }

    /// Makes a session visible.
    pub(super) fn enter(&self, key: &ProgramKey) -> Arc<SessionCell> {
        let cell = Arc::new(SessionCell::default());
        cell.home.store(NOWHERE, Ordering::Relaxed);
        if let Some(part) = self.sessions.get(self.part(key)) {
            part.write().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), Arc::clone(&cell));
        }
        cell
    }

    /// Makes it invisible.
    pub(super) fn leave(&self, key: &ProgramKey) {
        if let Some(part) = self.sessions.get(self.part(key)) {
            let mut part = part.write().unwrap_or_else(PoisonError::into_inner);
            part.remove(key);
            if part.capacity() > 64 && part.len() < part.capacity() / 4 {
                let room = part.len() * 2;
                part.shrink_to(room);
            }
        }
    }

    pub(super) fn worker(&self, worker: &Worker) {
        let known =
            self.workers.read().unwrap_or_else(PoisonError::into_inner).get(&worker.id).map(Arc::clone);
        let cell = known.unwrap_or_else(|| {
            let mut workers = self.workers.write().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(workers.entry(worker.id).or_default())
        });
        cell.working_set.store(worker.working_set, Ordering::Relaxed);
        for (to, from) in cell.resident.iter().zip(worker.resident) {
            to.store(from, Ordering::Relaxed);
        }
    }

    pub(super) fn drop_worker(&self, id: WorkerId) {
        self.workers.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }
}

impl SessionCell {
    pub(super) fn store(&self, blocks: u64, branches: usize, home: Option<WorkerId>) {
        let home = home.map_or(NOWHERE, |home| u64::from(home.engine.0) << 32 | u64::from(home.rank));
        self.blocks.store(blocks, Ordering::Relaxed);
        self.branches.store(branches as u64, Ordering::Relaxed);
        self.home.store(home, Ordering::Relaxed);
    }
}
