//! The writer: what is told and heard, begin and end of sessions, changes.

use std::sync::Arc;
use std::time::Duration;

use tandem_types::{ProgramKey, Tier, Time, WorkerId};

use super::advance::Step;
use super::forest::{Forest, NONE, low_bits};
use super::holds::tier_index;
use super::published::{Published, SessionReader, SessionSummary, WorkerSummary};
use super::records::Records;
use super::{BLOCKS_MAX, BRANCHES_MAX, ENDED_MAX, SESSIONS_MAX, WORKERS_MAX};

/// Bounds of a session index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionLimits {
    /// Most sessions.
    pub sessions: usize,
    /// Most different blocks.
    pub blocks: usize,
    /// Most branches of one session.
    pub branches: usize,
    /// Most workers.
    pub workers: usize,
    /// How many ended sessions are remembered.
    pub ended: usize,
    /// How long an ended session's late events are ignored.
    pub ended_grace: Duration,
    /// How long a session may be silent, unless told otherwise ([`SessionIndex::set_idle`]).
    pub idle: Duration,
}

impl Default for SessionLimits {
    fn default() -> Self {
        Self {
            sessions: SESSIONS_MAX,
            blocks: BLOCKS_MAX,
            branches: BRANCHES_MAX,
            workers: WORKERS_MAX,
            ended: ENDED_MAX,
            ended_grace: Duration::from_secs(60),
            idle: Duration::from_secs(3_600),
        }
    }
}

/// How a told chain relates to what is known of the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Relation {
    /// The agent's next turn. Where it leaves a branch after at least half of it, it is that branch going on
    /// with a rewritten end, and the old end is dropped; else it is a branch of its own (a subagent that shares
    /// the id).
    #[default]
    Continues,
    /// Runs beside what is known: no branch is dropped, unless it lies on the chain.
    Beside,
    /// The history was compacted or edited: nothing else is needed any more.
    Replaces,
}

/// What we know ourselves of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Told<'a> {
    /// Content hashes from the prompt's first block on.
    pub chain: &'a [u64],
    /// The worker that was chosen for it, if it was.
    pub worker: Option<WorkerId>,
    /// Leading blocks that lie there by the match: in device memory, host memory, disk.
    pub resident: [usize; 3],
    /// How it relates to what is known.
    pub relation: Relation,
}

/// Blocks that an engine says it stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredBlocks<'a> {
    /// Where.
    pub worker: WorkerId,
    /// In which tier.
    pub tier: Tier,
    /// The session that made it compute them, if it says.
    pub session: Option<&'a ProgramKey>,
    /// The block that the first one continues; `None` = start of a prompt.
    pub after: Option<u64>,
    /// Content hashes in chain order.
    pub blocks: &'a [u64],
}

/// What became of a session's branches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advance {
    /// A branch moved on, past `new` blocks that no session had.
    Moved {
        /// Blocks that no session had.
        new: usize,
    },
    /// A new branch began.
    Branched {
        /// Blocks that no session had.
        new: usize,
    },
    /// All of it was known of the session.
    Known,
    /// An echo of what the session left behind, or of a session that ended: lineage stays.
    Stale,
    /// A block is known after another one than this says: lineage stays.
    Conflict,
    /// There is no room for so many blocks, or for the session.
    Refused,
}

/// A number that changed since the last drain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A session's.
    Session(ProgramKey, SessionSummary),
    /// A worker's.
    Worker(WorkerId, WorkerSummary),
    /// A session is gone: ended, idle, or evicted to make room.
    Gone(ProgramKey),
    /// More changed than is kept between two drains: look at everything.
    Everything,
}

/// What happened since the start; never reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Chains and stores that contradicted what is known.
    pub conflicts: u64,
    /// Stores of sessions that had gone another way, or had ended.
    pub stale: u64,
    /// Chains and stores refused for want of room.
    pub refused: u64,
    /// Stores whose parent was not known, kept as fragments.
    pub fragments: u64,
    /// Branches dropped because the session had too many.
    pub branches_dropped: u64,
    /// Sessions that ended by word.
    pub ended: u64,
    /// Sessions that ended by silence.
    pub expired: u64,
    /// Sessions evicted to make room.
    pub evicted: u64,
    /// Parents not kept: circles, or too deep.
    pub parents_refused: u64,
}

/// The index. One owner writes; [`SessionIndex::reader`] hands out readers.
#[derive(Debug)]
pub struct SessionIndex {
    pub(super) limits: SessionLimits,
    pub(super) forest: Forest,
    pub(super) records: Records,
    published: Arc<Published>,
    pub(super) counters: Counters,
    changed_sessions: Vec<u32>,
    changed_workers: Vec<u32>,
    gone: Vec<ProgramKey>,
    changes_lost: bool,
    drain: u64,
}

impl SessionIndex {
    /// An empty index. `seed` spreads the tables; it changes no answer.
    #[must_use]
    pub fn new(limits: SessionLimits, seed: u64) -> Self {
        Self {
            limits,
            forest: Forest::new(seed),
            records: Records::new(seed),
            published: Arc::new(Published::new(seed)),
            counters: Counters::default(),
            changed_sessions: Vec::new(),
            changed_workers: Vec::new(),
            gone: Vec::new(),
            changes_lost: false,
            drain: 1,
        }
    }

    /// A handle for readers on other threads.
    #[must_use]
    pub fn reader(&self) -> SessionReader {
        SessionReader { published: Arc::clone(&self.published) }
    }

    /// A session exists, and who spawned it if anyone did (made known too, if need be). Whether it is kept.
    pub fn open(&mut self, key: &ProgramKey, parent: Option<&ProgramKey>, now: Time) -> bool {
        let Some(slot) = self.ensure(key, None, now) else { return false };
        if let Some(parent) = parent.filter(|parent| *parent != key)
            && let Some(parent) = self.ensure(parent, Some(slot), now)
            && !self.records.adopt(slot, parent)
        {
            self.counters.parents_refused += 1;
        }
        self.publish();
        true
    }

    /// What we know ourselves of a session's prompt, or of prompt and answer: it outranks what engines echo.
    pub fn told(&mut self, key: &ProgramKey, told: &Told<'_>, now: Time) -> Advance {
        let Some(session) = self.ensure(key, None, now) else { return Advance::Refused };
        let worker = told.worker.and_then(|id| self.forest.workers.slot_or_new(id, self.limits.workers));
        let step = Step {
            session,
            after: None,
            blocks: told.chain,
            home: worker,
            told: true,
            relation: told.relation,
        };
        let advance = self.advance(&step);
        if let Some(session) = self.records.get_mut(session) {
            session.told = true;
        }
        if let Some(worker) = worker {
            for (tier, leading) in told.resident.iter().enumerate() {
                self.mark_prefix(told.chain, *leading, worker, tier);
            }
        }
        self.publish();
        advance
    }

    /// An engine stored blocks: residency of those on sessions' paths, and lineage where it names a session.
    pub fn stored(&mut self, stored: &StoredBlocks<'_>, now: Time) -> Advance {
        let Some(worker) = self.forest.workers.slot_or_new(stored.worker, self.limits.workers) else {
            self.counters.refused += 1;
            return Advance::Refused;
        };
        let advance = match stored.session {
            None => Advance::Known,
            Some(key) if self.records.ended_lately(key, now, self.limits.ended_grace) => {
                self.counters.stale += 1;
                Advance::Stale
            }
            Some(key) => match self.ensure(key, None, now) {
                None => Advance::Refused,
                Some(session) => self.advance(&Step {
                    session,
                    after: stored.after,
                    blocks: stored.blocks,
                    home: Some(worker),
                    told: false,
                    relation: Relation::Continues,
                }),
            },
        };
        self.set_resident(worker, stored.tier, stored.blocks, true);
        self.publish();
        advance
    }

    /// An engine's last copies of blocks left a tier.
    pub fn removed(&mut self, worker: WorkerId, tier: Tier, blocks: &[u64]) {
        if let Some(worker) = self.forest.workers.slot(worker) {
            self.set_resident(worker, tier, blocks, false);
            self.publish();
        }
    }

    /// A worker dropped what it held in one tier, or (`None`) in all. Lineage and homes stay.
    pub fn cleared(&mut self, worker: WorkerId, tier: Option<Tier>) {
        let tier = match tier {
            None => None,
            Some(tier) => match tier_index(tier) {
                Some(tier) => Some(tier),
                None => return,
            },
        };
        if let Some(worker) = self.forest.workers.slot(worker) {
            self.forest.workers.clear(worker, tier);
            self.publish();
        }
    }

    /// A worker is gone: branches at home there have no home until told or heard of elsewhere.
    pub fn drop_worker(&mut self, worker: WorkerId) {
        if self.forest.workers.remove(worker) {
            self.published.drop_worker(worker);
        }
    }

    /// The session is alive.
    pub fn touch(&mut self, key: &ProgramKey, now: Time) {
        if let Some(session) = self.records.slot(key).and_then(|slot| self.records.get_mut(slot)) {
            session.last = session.last.max(now);
        }
    }

    /// How long this session may be silent, from what its gaps have taught.
    pub fn set_idle(&mut self, key: &ProgramKey, idle: Duration) {
        if let Some(slot) = self.records.slot(key) {
            self.records.set_idle(slot, idle);
        }
    }

    /// The session is over; its children go to its own parent. False if it was not known.
    pub fn end(&mut self, key: &ProgramKey, now: Time) -> bool {
        let Some(slot) = self.records.slot(key) else { return false };
        self.remove(slot);
        self.records.remember_end(key.clone(), now, self.limits.ended);
        self.counters.ended += 1;
        self.publish();
        true
    }

    /// Ends at most `budget` sessions that have been silent for too long. A session with living children is not
    /// silent. They may come back: late events make them anew.
    pub fn expire(&mut self, now: Time, budget: usize) -> Vec<ProgramKey> {
        let mut over = Vec::new();
        while over.len() < budget
            && let Some(slot) = self.records.overdue(now, self.limits.idle)
        {
            over.extend(self.remove(slot));
            self.counters.expired += 1;
        }
        self.publish();
        over
    }

    /// When [`SessionIndex::expire`] may have something to do, at the earliest.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        self.records.next_deadline()
    }

    /// What happened since the start.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters { conflicts: self.counters.conflicts + self.forest.circles, ..self.counters }
    }

    /// What changed since the last call, each session and worker once, with its numbers of now.
    pub fn drain_changes(&mut self) -> Vec<Change> {
        self.drain += 1;
        let mut changes: Vec<Change> = Vec::new();
        if std::mem::take(&mut self.changes_lost) {
            changes.push(Change::Everything);
        }
        changes.extend(std::mem::take(&mut self.gone).into_iter().map(Change::Gone));
        for slot in std::mem::take(&mut self.changed_workers) {
            let Some(id) = self.forest.workers.get(slot).map(|worker| worker.id) else { continue };
            changes.extend(self.worker(id).map(|summary| Change::Worker(id, summary)));
        }
        for slot in std::mem::take(&mut self.changed_sessions) {
            let Some(key) = self.records.get(slot).map(|session| session.key.clone()) else { continue };
            let summary = self.session(&key);
            changes.extend(summary.map(|summary| Change::Session(key, summary)));
        }
        changes
    }

    /// The session's slot, made if there is room or room can be made.
    fn ensure(&mut self, key: &ProgramKey, spare: Option<u32>, now: Time) -> Option<u32> {
        self.records.revive(key);
        if let Some(slot) = self.records.slot(key) {
            if let Some(session) = self.records.get_mut(slot) {
                session.last = session.last.max(now);
            }
            return Some(slot);
        }
        if self.records.len() >= self.limits.sessions && !self.evict(spare) {
            self.counters.refused += 1;
            return None;
        }
        let cell = self.published.enter(key);
        let slot = self.records.insert(key, cell, now);
        self.records.touch(slot);
        Some(slot)
    }

    /// Ends the session that has been silent longest, other than `spare`; false if there is none.
    pub(super) fn evict(&mut self, spare: Option<u32>) -> bool {
        let Some(slot) = self.records.oldest(spare, self.limits.idle) else { return false };
        self.remove(slot);
        self.counters.evicted += 1;
        true
    }

    fn remove(&mut self, slot: u32) -> Option<ProgramKey> {
        let session = self.records.remove(slot)?;
        for end in &session.ends {
            self.lift(end);
        }
        self.published.leave(&session.key);
        if self.gone.len() < self.limits.sessions {
            self.gone.push(session.key.clone());
        } else {
            self.changes_lost = true;
        }
        Some(session.key)
    }

    fn set_resident(&mut self, worker: u32, tier: Tier, blocks: &[u64], there: bool) {
        let Some(tier) = tier_index(tier) else { return };
        for block in blocks {
            if let Some(spot) = self.forest.find(*block) {
                self.forest.set_bits(spot.run, worker, tier, 1 << spot.index, there);
            }
        }
    }

    /// The first `leading` blocks of a chain lie there. Stops where a run brings no news: what lies before it
    /// was said with it.
    fn mark_prefix(&mut self, chain: &[u64], leading: usize, worker: u32, tier: usize) {
        let last = leading.min(chain.len()).checked_sub(1).and_then(|at| chain.get(at));
        let Some(spot) = last.and_then(|block| self.forest.find(*block)) else { return };
        let (mut run, mut mask) = (spot.run, low_bits(spot.index + 1));
        while run != NONE && self.forest.set_bits(run, worker, tier, mask, true) {
            run = self.forest.parent(run);
            mask = low_bits(self.forest.len(run));
        }
    }

    /// Stores changed numbers where readers see them, and notes them for the next drain.
    fn publish(&mut self) {
        let drain = self.drain;
        while let Some((slot, fresh)) = self.forest.workers.take_touched(drain) {
            if let Some(worker) = self.forest.workers.get(slot) {
                self.published.worker(worker);
            }
            if fresh && self.changed_workers.len() < 2 * self.limits.workers {
                self.changed_workers.push(slot);
            } else if fresh {
                self.changes_lost = true;
            }
        }
        let workers = &self.forest.workers;
        while let Some((slot, fresh)) = self.records.take_touched(drain) {
            let Some(session) = self.records.get(slot) else { continue };
            let home = session
                .latest()
                .and_then(|end| workers.get(workers.alive(end.home?)?))
                .map(|worker| worker.id);
            session.cell.store(session.blocks, session.ends.len(), home);
            if fresh && self.changed_sessions.len() < 2 * self.limits.sessions {
                self.changed_sessions.push(slot);
            } else if fresh {
                self.changes_lost = true;
            }
        }
    }
}
