//! The workers' caches and queues, roughly: prompts are computed one after the other, answers side by side; what does not
//! fit is forgotten, whole sessions at a time, the one used longest ago first.

use std::collections::BTreeSet;
use std::time::Duration;

use tandem_types::{EngineId, Holders, MatchSource, PrefixMatch, Time, WorkerId, WorkerPrefix};

use crate::sessions::{BLOCK, Session};

/// Tokens of prompts a second.
const PREFILL: u64 = 40_000;
/// What a token of an answer takes.
pub const DECODE: Duration = Duration::from_millis(25);

#[derive(Debug, Clone, Default)]
struct Worker {
    busy_until: Time,
    /// Tokens there, of running sessions too.
    held: u64,
    /// Idle sessions there, by last use.
    idle: BTreeSet<(u64, usize)>,
}

/// All workers.
#[derive(Debug)]
pub struct Fleet {
    workers: Vec<Worker>,
    capacity: u64,
    /// Of each head, the workers that have it.
    heads: Vec<Holders>,
    uses: u64,
}

/// A worker's id.
#[must_use]
pub const fn id(worker: u32) -> WorkerId {
    WorkerId { engine: EngineId(worker), rank: 0 }
}

fn holds(worker: u32, tokens: u64) -> WorkerPrefix {
    let blocks = u32::try_from(tokens / u64::from(BLOCK)).unwrap_or(u32::MAX);
    WorkerPrefix {
        worker: id(worker),
        device: blocks,
        host: blocks,
        disk: blocks,
        source: MatchSource::Exact,
    }
}

impl Fleet {
    #[must_use]
    pub fn new(workers: u32, capacity: u64, heads: u64) -> Self {
        let heads = (0..heads).map(|_| Holders::new()).collect();
        Self { workers: vec![Worker::default(); workers as usize], capacity, heads, uses: 0 }
    }

    /// Where a session's prompt lies.
    #[must_use]
    pub fn prefix(&self, session: &Session) -> PrefixMatch {
        let blocks = u32::try_from(session.prompt / u64::from(BLOCK)).unwrap_or(u32::MAX);
        let mut workers = self.heads.get(session.head as usize).cloned().unwrap_or_default();
        if let Some((at, tokens)) = session.at {
            workers.push(holds(at, tokens.min(session.prompt)));
        }
        PrefixMatch { block_size: BLOCK, blocks, workers, ..PrefixMatch::unknown() }
    }

    /// A session has been at a worker before: what it had is there as long as there is room.
    pub fn settle(&mut self, at: u32, slot: usize, sessions: &mut [Session]) {
        let tokens = sessions[slot].prompt;
        sessions[slot].at = Some((at, tokens));
        self.workers[at as usize].held += tokens;
        self.end(slot, sessions, tokens);
    }

    /// A turn goes to a worker; when its first token will be there.
    pub fn begin(&mut self, now: Time, at: u32, slot: usize, session: &mut Session, head: u64) -> Time {
        let cached = match session.at {
            Some((home, tokens)) if home == at => tokens,
            _ => 0,
        };
        self.forget(slot, session);
        if let Some(list) = self.heads.get_mut(session.head as usize)
            && list.get(id(at)).is_none()
        {
            list.push(holds(at, head));
        }
        let missing = session.prompt - cached.max(head).min(session.prompt);
        let worker = &mut self.workers[at as usize];
        worker.busy_until = worker.busy_until.max(now) + Duration::from_micros(missing * 1_000_000 / PREFILL);
        let first = worker.busy_until + DECODE;
        worker.held += session.prompt;
        (session.at, session.running) = (Some((at, session.prompt)), true);
        first
    }

    /// A turn is over: what it computed stays as long as there is room.
    pub fn end(&mut self, slot: usize, sessions: &mut [Session], tokens: u64) {
        let session = &mut sessions[slot];
        let Some((at, before)) = session.at else { return };
        self.uses += 1;
        (session.at, session.running, session.used) = (Some((at, tokens)), false, self.uses);
        let worker = &mut self.workers[at as usize];
        worker.held = worker.held - before + tokens;
        worker.idle.insert((self.uses, slot));
        while worker.held > self.capacity {
            let Some((_, oldest)) = worker.idle.pop_first() else { return };
            if let Some((_, tokens)) = sessions[oldest].at.take() {
                worker.held -= tokens;
            }
        }
    }

    /// What a session had anywhere is gone.
    pub fn forget(&mut self, slot: usize, session: &mut Session) {
        if let Some((at, tokens)) = session.at.take() {
            let worker = &mut self.workers[at as usize];
            worker.idle.remove(&(session.used, slot));
            worker.held -= tokens;
        }
        session.running = false;
    }
}
