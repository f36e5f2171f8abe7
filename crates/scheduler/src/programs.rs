//! The programs: one entry for each agent's chain of turns.
//!
//! - States: REASONING while a turn of the program is held or runs (several may), ACTING while none is.
//! - I-PRG-1 bounded: at most `programs_max` entries. A newcomer displaces the program that has been without a
//!   live turn longest; when every program has one, the newcomer is served without being remembered.
//! - I-PRG-2 a program of which no turn was ever dispatched leaves with its last turn: clients that give up while
//!   they wait leave nothing behind. One that an operator paused stays, so that it is still paused when it comes back.
//! - I-PRG-3 `idle` holds exactly the programs without live turns, longest idle first.
//! - I-PRG-4 `at_home` holds for each worker the tokens of the programs whose last worker it is, for answers or for
//!   prompts, and no zeros.
//! - Side calls look a program up (for its worker) and change nothing, but one that is marked final ends it as
//!   any other call does: that mark may come on a call made for nothing else.
//! - Deliberately absent: a tree. A child knows its parent's key; a parent that was forgotten is simply not found.

use std::collections::BTreeMap;
use std::time::Duration;

use indexmap::IndexMap;
use serde::Serialize;
use tandem_types::{GroupId, ProgramKey, Time, WorkerId};

use crate::place::TOKENS_MAX;

/// Where a program is in its loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProgramState {
    /// A turn is held or runs.
    Reasoning,
    /// The agent is away: running tools, waiting for a person, or gone.
    Acting,
}

/// One program.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    pub(crate) parent: Option<ProgramKey>,
    pub(crate) group: Option<GroupId>,
    pub(crate) last_worker: Option<WorkerId>,
    /// Where a prompt of it was computed last for another worker.
    pub(crate) last_prefill: Option<WorkerId>,
    pub(crate) live_turns: u32,
    pub(crate) turns_dispatched: u64,
    pub(crate) turns_finished: u64,
    pub(crate) known_tokens: u64,
    /// What it counts for among the tokens at home at its last worker.
    home_tokens: u64,
    pub(crate) ended_with_tools: bool,
    /// When its last turn arrived or ended.
    pub(crate) last_active: Time,
    /// Its client said that no more turns come.
    pub(crate) ending: bool,
    /// An operator paused it.
    pub(crate) stopped: bool,
    /// Makes keys in `idle` unique.
    stamp: u64,
}

impl Program {
    pub(crate) const fn state(&self) -> ProgramState {
        if self.live_turns > 0 { ProgramState::Reasoning } else { ProgramState::Acting }
    }

    /// The workers that it is at home at, each once.
    fn homes(&self) -> impl Iterator<Item = WorkerId> + use<> {
        let prefill = self.last_prefill.filter(|worker| Some(*worker) != self.last_worker);
        self.last_worker.into_iter().chain(prefill)
    }
}

/// What became of a program that got a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begun {
    /// It is in the table.
    Tracked,
    /// It is in the table, and another one had to leave.
    TrackedByEviction,
    /// The table is full of programs with live turns.
    Untracked,
}

#[derive(Debug)]
pub(crate) struct Programs {
    by_key: IndexMap<ProgramKey, Program>,
    idle: BTreeMap<(Time, u64), ProgramKey>,
    /// Context tokens of the programs that ran last at each worker.
    at_home: BTreeMap<WorkerId, u64>,
    stamps: u64,
    max: usize,
}

impl Programs {
    pub(crate) fn new(max: usize) -> Self {
        Self { by_key: IndexMap::new(), idle: BTreeMap::new(), at_home: BTreeMap::new(), stamps: 0, max }
    }

    pub(crate) fn get(&self, key: &ProgramKey) -> Option<&Program> {
        self.by_key.get(key)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&ProgramKey, &Program)> {
        self.by_key.iter()
    }

    /// A turn of the program arrived.
    pub(crate) fn begin_turn(
        &mut self,
        now: Time,
        key: &ProgramKey,
        parent: Option<&ProgramKey>,
        group: Option<&GroupId>,
    ) -> Begun {
        let mut begun = Begun::Tracked;
        if !self.by_key.contains_key(key) {
            if self.by_key.len() >= self.max {
                let Some((_, longest_idle)) = self.idle.pop_first() else { return Begun::Untracked };
                self.remove(&longest_idle);
                begun = Begun::TrackedByEviction;
            }
            self.insert(now, key);
        }
        if let Some(program) = self.by_key.get_mut(key) {
            self.idle.remove(&(program.last_active, program.stamp));
            program.last_active = now;
            program.live_turns = program.live_turns.saturating_add(1);
            program.ending = false;
            // What a client says first of its place in the tree holds; later turns may leave it out.
            if program.parent.is_none() {
                program.parent = parent.filter(|&p| p != key).cloned();
            }
            if program.group.is_none() {
                program.group = group.cloned();
            }
        }
        begun
    }

    fn insert(&mut self, now: Time, key: &ProgramKey) {
        self.stamps += 1;
        let program = Program {
            parent: None,
            group: None,
            last_worker: None,
            last_prefill: None,
            live_turns: 0,
            turns_dispatched: 0,
            turns_finished: 0,
            known_tokens: 0,
            home_tokens: 0,
            ended_with_tools: false,
            last_active: now,
            ending: false,
            stopped: false,
            stamp: self.stamps,
        };
        self.idle.insert((now, program.stamp), key.clone());
        self.by_key.insert(key.clone(), program);
    }

    /// A turn of the program with a prompt of about `tokens` goes to a worker, or to a pair.
    pub(crate) fn dispatched(
        &mut self,
        key: &ProgramKey,
        worker: WorkerId,
        prefill: Option<WorkerId>,
        tokens: u64,
    ) {
        if let Some(program) = self.by_key.get_mut(key) {
            leave_home(&mut self.at_home, program);
            program.last_worker = Some(worker);
            // A turn without a worker of its own for the prompt leaves the former one's copy where it is.
            program.last_prefill = prefill.or(program.last_prefill);
            program.turns_dispatched += 1;
            program.home_tokens = tokens.max(program.known_tokens).min(TOKENS_MAX);
            come_home(&mut self.at_home, program);
        }
    }

    /// Context tokens of the programs that ran last at each worker, by worker.
    pub(crate) const fn at_home(&self) -> &BTreeMap<WorkerId, u64> {
        &self.at_home
    }

    fn remove(&mut self, key: &ProgramKey) {
        if let Some(program) = self.by_key.swap_remove(key) {
            leave_home(&mut self.at_home, &program);
        }
    }

    /// A turn's answer is there: what it told about the program.
    pub(crate) fn answered(&mut self, key: &ProgramKey, tokens: Option<u64>, with_tools: bool) {
        if let Some(program) = self.by_key.get_mut(key) {
            program.turns_finished += 1;
            program.ended_with_tools = with_tools;
            if let Some(tokens) = tokens {
                leave_home(&mut self.at_home, program);
                (program.known_tokens, program.home_tokens) = (tokens, tokens.min(TOKENS_MAX));
                come_home(&mut self.at_home, program);
            }
        }
    }

    /// A turn of the program is over, however.
    pub(crate) fn end_turn(&mut self, now: Time, key: &ProgramKey) {
        let Some(program) = self.by_key.get_mut(key) else { return };
        program.live_turns = program.live_turns.saturating_sub(1);
        program.last_active = now;
        if program.live_turns > 0 {
            return;
        }
        if program.turns_dispatched == 0 && !program.stopped || program.ending {
            self.remove(key);
            return;
        }
        self.idle.insert((now, program.stamp), key.clone());
    }

    /// The program will not come back: it leaves now, or with its last live turn. False when it is not known.
    pub(crate) fn end(&mut self, key: &ProgramKey) -> bool {
        let Some(program) = self.by_key.get_mut(key) else { return false };
        if program.live_turns > 0 {
            program.ending = true;
        } else {
            self.idle.remove(&(program.last_active, program.stamp));
            self.remove(key);
        }
        true
    }

    /// An operator pauses the program, or lets it go on. False when it is not known.
    pub(crate) fn stop(&mut self, key: &ProgramKey, stopped: bool) -> bool {
        let Some(program) = self.by_key.get_mut(key) else { return false };
        program.stopped = stopped;
        if !stopped && program.live_turns == 0 && program.turns_dispatched == 0 {
            self.idle.remove(&(program.last_active, program.stamp));
            self.remove(key);
        }
        true
    }

    /// When the longest idle program became idle.
    pub(crate) fn idle_since(&self) -> Option<Time> {
        self.idle.first_key_value().map(|(&(since, _), _)| since)
    }

    /// Forgets the longest idle program if it has been idle for `ttl`.
    pub(crate) fn expire_one(&mut self, now: Time, ttl: Duration) -> bool {
        let Some(entry) = self.idle.first_entry() else { return false };
        if entry.key().0 + ttl > now {
            return false;
        }
        let key = entry.remove();
        self.remove(&key);
        true
    }

    /// Checks I-PRG-1 to I-PRG-4.
    pub(crate) fn is_sound(&self) -> bool {
        let idle: BTreeMap<(Time, u64), &ProgramKey> = self
            .iter()
            .filter(|(_, p)| p.live_turns == 0)
            .map(|(key, p)| ((p.last_active, p.stamp), key))
            .collect();
        let mut at_home = BTreeMap::new();
        for (_, program) in self.iter() {
            come_home(&mut at_home, program);
        }
        at_home == self.at_home
            && self.len() <= self.max
            && idle.len() == self.idle.len()
            && idle
                .iter()
                .zip(&self.idle)
                .all(|((at, key), (idle_at, idle_key))| at == idle_at && *key == idle_key)
            && self.iter().all(|(_, p)| p.live_turns > 0 || p.turns_dispatched > 0 || p.stopped)
    }
}

fn leave_home(at_home: &mut BTreeMap<WorkerId, u64>, program: &Program) {
    for worker in program.homes() {
        if let Some(tokens) = at_home.get_mut(&worker) {
            *tokens = tokens.saturating_sub(program.home_tokens);
            if *tokens == 0 {
                at_home.remove(&worker);
            }
        }
    }
}

fn come_home(at_home: &mut BTreeMap<WorkerId, u64>, program: &Program) {
    for worker in program.homes().filter(|_| program.home_tokens > 0) {
        let tokens = at_home.entry(worker).or_default();
        *tokens = tokens.saturating_add(program.home_tokens);
    }
}
