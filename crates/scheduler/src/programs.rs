//! The programs: one entry for each agent's chain of turns.
//!
//! - States: REASONING while a turn of the program is held or runs (several may), ACTING while none is.
//! - I-PRG-1 bounded: at most `programs_max` entries. A newcomer displaces the program that has been without a
//!   live turn longest; when every program has one, the newcomer is served without being remembered.
//! - I-PRG-2 a program of which no turn was ever dispatched leaves with its last turn: clients that give up while
//!   they wait leave nothing behind. One that an operator paused stays, so that it is still paused when it comes back.
//! - I-PRG-3 `idle` holds exactly the programs without live turns, longest idle first.
//! - I-PRG-4 `at_home` holds for each worker the tokens of the programs whose last worker it is, for answers or for
//!   prompts, and which are not away, and no zeros.
//! - I-PRG-5 a program is away when it has been idle for [`AWAY`] mean pauses, or is remembered from an earlier run, and
//!   until its next turn.
//! - I-PRG-6 what is remembered of an earlier run displaces nothing that was active later, and of a program that this run
//!   knows it adds a home at most, where that has none.
//! - Side calls look a program up (for its worker) and change nothing, but one that is marked final ends it as
//!   any other call does: that mark may come on a call made for nothing else.
//! - Deliberately absent: a tree. A child knows its parent's key; a parent that was forgotten is simply not found.

use std::collections::BTreeMap;
use std::time::Duration;

use indexmap::IndexMap;
use serde::Serialize;
use tandem_types::{GroupId, ProgramKey, Time, WorkerId};

use crate::contract::Remembered;
use crate::homes::Homes;
use crate::place::TOKENS_MAX;

/// A program that has been idle for so many mean pauses counts as away: few sessions say that they are over, and what
/// is over must not count where new sessions are placed. Taking a live one to be away for a while costs less than
/// counting a dead one: of 1, 2, 4 and 16, two found most of the prompts cached in simulated Claude Code sessions
/// whose working set was as large as the pools.
const AWAY: u32 = 2;

/// The mean pause is over about the last so many.
const PAUSES: u32 = 256;

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
    /// It has been idle for so long that it no longer counts among the programs at home anywhere.
    away: bool,
    /// Makes keys in `idle` unique.
    stamp: u64,
}

impl Program {
    pub(crate) const fn state(&self) -> ProgramState {
        if self.live_turns > 0 { ProgramState::Reasoning } else { ProgramState::Acting }
    }

    /// The workers that it counts at, each once.
    fn homes(&self) -> impl Iterator<Item = WorkerId> + use<> {
        let prefill = self.last_prefill.filter(|worker| Some(*worker) != self.last_worker);
        let away = self.away;
        self.last_worker.into_iter().chain(prefill).filter(move |_| !away)
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
    /// Context tokens of the programs that ran last at each worker and are not away.
    at_home: Homes,
    /// Programs before this in `idle` are away.
    away_until: (Time, u64),
    /// Mean pause between a program's turns, recent ones counting more; `None` before the first.
    pause: Option<Duration>,
    stamps: u64,
    max: usize,
}

impl Programs {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            by_key: IndexMap::new(),
            idle: BTreeMap::new(),
            at_home: Homes::default(),
            away_until: (Time::ZERO, 0),
            pause: None,
            stamps: 0,
            max,
        }
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
            if self.idle.remove(&(program.last_active, program.stamp)).is_some()
                && program.turns_dispatched > 0
            {
                let pause = now.since(program.last_active);
                self.pause = Some(self.pause.map_or(pause, |mean| mean - mean / PAUSES + pause / PAUSES));
            }
            if std::mem::take(&mut program.away) {
                come_home(&mut self.at_home, program);
            }
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
            away: false,
            stamp: 0,
        };
        self.insert_idle(key, program);
    }

    fn insert_idle(&mut self, key: &ProgramKey, mut program: Program) {
        self.stamps += 1;
        program.stamp = self.stamps;
        self.idle.insert((program.last_active, program.stamp), key.clone());
        self.by_key.insert(key.clone(), program);
    }

    /// Takes over what an earlier run knew of a program; false if it was of no use.
    pub(crate) fn remember(&mut self, now: Time, remembered: &Remembered) -> bool {
        let key = &remembered.program;
        if let Some(program) = self.by_key.get_mut(key) {
            // It counts for nothing at home, so that its home can change without more ado.
            let homeless = program.last_worker.is_none() && program.home_tokens == 0;
            if homeless {
                (program.last_worker, program.last_prefill) =
                    (remembered.last_worker, remembered.last_prefill);
            }
            return homeless && remembered.last_worker.is_some();
        }
        let last_active = remembered.last_active.min(now);
        if remembered.turns_dispatched == 0 && !remembered.stopped {
            return false;
        }
        if self.by_key.len() >= self.max {
            let longest = self.idle.first_key_value().map(|((since, _), key)| (*since, key.clone()));
            let Some((since, oldest)) = longest.filter(|(since, _)| *since < last_active) else {
                return false;
            };
            let stamp = self.by_key.get(&oldest).map_or(0, |program| program.stamp);
            self.idle.remove(&(since, stamp));
            self.remove(&oldest);
        }
        let program = Program {
            parent: remembered.parent.clone().filter(|parent| parent != key),
            group: remembered.group.clone(),
            last_worker: remembered.last_worker,
            last_prefill: remembered.last_prefill,
            live_turns: 0,
            turns_dispatched: remembered.turns_dispatched,
            turns_finished: remembered.turns_finished,
            known_tokens: remembered.known_tokens,
            home_tokens: 0,
            ended_with_tools: remembered.ended_with_tools,
            last_active,
            ending: false,
            stopped: remembered.stopped,
            away: true,
            stamp: 0,
        };
        self.insert_idle(key, program);
        true
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

    /// Takes programs that have been idle for [`AWAY`] mean pauses from those at home.
    pub(crate) fn send_away(&mut self, now: Time) {
        let Some(pause) = self.pause else { return };
        let before = now - pause.saturating_mul(AWAY);
        let gone = self.idle.range(self.away_until..self.away_until.max((before, 0)));
        for (_, key) in gone {
            if let Some(program) = self.by_key.get_mut(key).filter(|program| !program.away) {
                leave_home(&mut self.at_home, program);
                program.away = true;
            }
        }
        self.away_until = self.away_until.max((before, 0));
    }

    /// Context tokens of the programs that ran last at each worker, by worker, but for those that are away.
    pub(crate) const fn at_home(&self) -> &Homes {
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
        let mut at_home = Homes::default();
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

fn leave_home(at_home: &mut Homes, program: &Program) {
    program.homes().for_each(|worker| at_home.take(worker, program.home_tokens));
}

fn come_home(at_home: &mut Homes, program: &Program) {
    program.homes().for_each(|worker| at_home.add(worker, program.home_tokens));
}

#[cfg(test)]
mod tests {
    use tandem_types::{EngineId, SessionId, TenantId};

    use super::*;

    const WORKER: WorkerId = WorkerId { engine: EngineId(1), rank: 0 };

    fn key(name: &str) -> ProgramKey {
        let tenant = TenantId::new("t").expect("a tenant");
        ProgramKey::root(tenant, SessionId::new(name).expect("a session"))
    }

    /// A turn with a prompt of 100 tokens, from one second to the next.
    fn turn(programs: &mut Programs, name: &str, second: u64) {
        let at = |second: u64| Time::from_millis(second * 1000);
        programs.send_away(at(second));
        programs.begin_turn(at(second), &key(name), None, None);
        programs.dispatched(&key(name), WORKER, None, 100);
        programs.end_turn(at(second + 1), &key(name));
        assert!(programs.is_sound());
    }

    /// I-PRG-4, I-PRG-5.
    #[test]
    fn programs_that_stay_away_longer_than_others_pause_do_not_count_at_home() {
        let mut programs = Programs::new(10);
        let counted = |programs: &Programs| programs.at_home().at(WORKER);
        turn(&mut programs, "gone", 0);
        // No pause was seen yet.
        turn(&mut programs, "steady", 1);
        assert_eq!(counted(&programs), 200);
        // Pauses of two seconds; four seconds after its end at 1 the other one is away.
        turn(&mut programs, "steady", 4);
        assert_eq!(counted(&programs), 200);
        turn(&mut programs, "steady", 7);
        assert_eq!(counted(&programs), 100);
        // It comes back, and counts.
        turn(&mut programs, "gone", 8);
        assert_eq!(counted(&programs), 200);
        assert!(programs.end(&key("gone")) && programs.is_sound());
        assert_eq!(counted(&programs), 100);
    }

    fn remembered(name: &str, second: u64) -> Remembered {
        Remembered {
            program: key(name),
            parent: None,
            group: None,
            last_worker: Some(WORKER),
            last_prefill: None,
            turns_dispatched: 3,
            turns_finished: 3,
            known_tokens: 500,
            ended_with_tools: true,
            last_active: Time::from_millis(second * 1000),
            stopped: false,
        }
    }

    /// I-PRG-5: its home is known, and counts from its next turn on.
    #[test]
    fn a_remembered_program_has_a_home_and_counts_nowhere() {
        let mut programs = Programs::new(10);
        let now = Time::from_millis(9000);
        assert!(programs.remember(now, &remembered("back", 7)) && programs.is_sound());
        let known = programs.get(&key("back")).expect("remembered");
        assert_eq!((known.last_worker, known.known_tokens), (Some(WORKER), 500));
        assert_eq!(programs.at_home().at(WORKER), 0);
        assert_eq!(programs.idle_since(), Some(Time::from_millis(7000)));
        turn(&mut programs, "back", 10);
        assert_eq!(programs.at_home().at(WORKER), 500);
        // Now this run knows more.
        assert!(!programs.remember(now, &Remembered { known_tokens: 9, ..remembered("back", 7) }));
        assert_eq!(programs.get(&key("back")).map(|program| program.known_tokens), Some(500));
        // Of a turn that was never dispatched nothing is left, remembered or not.
        assert!(!programs.remember(now, &Remembered { turns_dispatched: 0, ..remembered("never", 7) }));
    }

    /// I-PRG-6: three are remembered where there is room for two, in whatever order; a home may come later.
    #[test]
    fn what_is_remembered_displaces_only_what_is_older() {
        for order in [[1, 2, 3], [3, 2, 1], [2, 3, 1]] {
            let mut programs = Programs::new(2);
            for second in order {
                programs.remember(Time::from_millis(9000), &remembered(&format!("p{second}"), second));
                assert!(programs.is_sound());
            }
            let known = [1, 2, 3].map(|second| programs.get(&key(&format!("p{second}"))).is_some());
            assert_eq!(known, [false, true, true], "{order:?}");
        }
        let mut programs = Programs::new(2);
        let homeless = Remembered { last_worker: None, ..remembered("late", 1) };
        assert!(programs.remember(Time::from_millis(9000), &homeless));
        assert!(programs.remember(Time::from_millis(9000), &remembered("late", 1)) && programs.is_sound());
        assert_eq!(programs.get(&key("late")).and_then(|program| program.last_worker), Some(WORKER));
    }
}
