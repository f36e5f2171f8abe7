//! What becomes of turns and of their programs: let in, dispatched, over; paused, resumed, forgotten.

use tandem_types::{PrefixMatch, ProgramKey, Time, TurnId, WorkerId};

use super::{Before, EXPIRE_PER_CALL_MAX, Left, Program, Slot, TOKENS_MAX, Table};
use crate::contract::End;
use crate::lies::Lies;

impl Table {
    /// Lets a turn go, to a worker where its room is taken at once.
    pub(crate) fn admit(&mut self, id: TurnId, worker: Option<WorkerId>) {
        let Some(turn) = self.turns.get_mut(&id) else { return };
        if !std::mem::take(&mut turn.waiting) {
            return;
        }
        let (rank, slot) = (turn.rank, turn.slot);
        let again = std::mem::replace(&mut turn.again, true);
        self.unwait(slot, (rank, id));
        self.stats.admitted += u64::from(!again);
        let Some(program) = self.program_mut(slot) else { return };
        let resumed = !program.active && program.ran;
        let moved = program.home.is_some() && worker.is_some() && worker != program.home;
        if !program.active {
            program.served = 0;
        }
        program.active = true;
        program.running += 1;
        self.stats.resumed += u64::from(resumed);
        self.stats.moved += u64::from(moved);
        if moved {
            self.leave_behind(slot);
        }
        if let Some(worker) = worker {
            self.charge(id, worker);
        }
    }

    /// Lists what a program has at its home as not worth keeping.
    pub(super) fn leave_behind(&mut self, slot: Slot) {
        let Some(program) = self.program(slot).filter(|p| p.ran && self.rules.lists) else { return };
        let (Some(key), Some(home)) = (program.key.as_deref(), program.home) else { return };
        let left = Left { program: key.clone(), worker: home, tokens: program.tokens };
        self.left.push(left);
    }

    /// Where the prompt of a turn lies now, if it is not computed yet; whether the turn waits.
    pub(crate) fn found(&mut self, id: TurnId, prefix: &PrefixMatch) -> bool {
        let Some(turn) = self.turns.get_mut(&id).filter(|turn| turn.first_after.is_none()) else {
            return false;
        };
        turn.lies = Lies::new(prefix);
        turn.waiting
    }

    /// A turn goes to a worker: what it takes is taken there.
    pub(crate) fn dispatched(&mut self, now: Time, id: TurnId, worker: WorkerId) {
        let Some(turn) = self.turns.get_mut(&id) else { return };
        turn.dispatched = Some(now);
        if turn.waiting {
            // Whoever drives did not wait for us; what runs is counted.
            self.admit(id, Some(worker));
        } else if turn.charge.is_none_or(|(at, _)| at != worker) {
            self.discharge(id);
            self.charge(id, worker);
        }
    }

    /// A turn's prompt is computed: where it lay before is of no use any more.
    pub(crate) fn computed(&mut self, now: Time, id: TurnId) {
        if let Some(turn) = self.turns.get_mut(&id) {
            turn.first_after = turn.dispatched.map(|since| now.since(since));
            turn.lies = Lies::default();
        }
    }

    /// A dispatch came to nothing: nothing was computed, and nothing is taken. A turn that is to be sent `again` waits as it
    /// did before it was let in, at its place; whether it does so now. Its program stays where it is.
    pub(crate) fn undispatched(&mut self, id: TurnId, again: Option<&[WorkerId]>) -> bool {
        self.discharge(id);
        let Some(turn) = self.turns.get_mut(&id) else { return false };
        turn.dispatched = None;
        let Some(failed_on) = again.filter(|_| !turn.waiting) else { return false };
        turn.waiting = true;
        turn.failed_on = failed_on.to_vec();
        let (slot, rank) = (turn.slot, turn.rank);
        if let Some(program) = self.program_mut(slot) {
            program.running = program.running.saturating_sub(1);
        }
        self.wait(slot, (rank, id));
        true
    }

    /// A program that never ran loses the place of its only turn, which was let in and has to wait after all.
    pub(crate) fn displace(&mut self, slot: Slot) {
        self.leave_home(slot);
        if let Some(program) = self.program_mut(slot) {
            program.active = false;
        }
    }

    /// A turn that ran is over. The program that it leaves idle.
    pub(crate) fn end(&mut self, now: Time, id: TurnId, end: &End) -> Option<Slot> {
        let turn = self.turns.get(&id).filter(|turn| !turn.waiting)?;
        let known = end.usage.map(|usage| usage.input_tokens.saturating_add(usage.output_tokens));
        let tokens = known.unwrap_or_else(|| turn.prompt.saturating_add(turn.generated)).min(TOKENS_MAX);
        let slot = turn.slot;
        let (expected, found) = turn.computed_before(end);
        let cold = turn.before.active && found.is_some_and(|found| found.saturating_mul(2) < expected);
        if let Some(program) = self.program_mut(slot) {
            program.cold = cold;
            program.peak = program.peak.max(tokens);
            program.tools = end.tools;
            program.served = program.served.saturating_add(1);
            program.ran = true;
        }
        self.leave(now, id, true)
    }

    /// A turn is over without an answer.
    pub(crate) fn abort(&mut self, now: Time, id: TurnId) -> Option<Slot> {
        let turn = self.turns.get(&id)?;
        let (slot, waiting, before) = (turn.slot, turn.waiting, turn.before);
        let computed = turn.dispatched.map(|_| turn.prompt.saturating_add(turn.generated));
        self.stats.cancelled += u64::from(waiting);
        let alone = self.program(slot).is_some_and(|program| program.live.len() == 1);
        if let Some(program) = self.program_mut(slot) {
            match computed {
                Some(tokens) => {
                    program.peak = program.peak.max(tokens.max(before.tokens));
                    program.ran = true;
                }
                None => program.steps = program.steps.saturating_sub(1),
            }
        }
        let idle = self.leave(now, id, false);
        if let Some(slot) = idle.filter(|_| alone && computed.is_none()) {
            self.restore(now, slot, &before);
        }
        idle
    }

    /// As if a turn had never come: the program's place, and since when it is away.
    pub(super) fn restore(&mut self, now: Time, slot: Slot, before: &Before) {
        self.leave_home(slot);
        let home = before.home.filter(|home| self.is_ready(*home));
        let since = before.idle_since.unwrap_or(now);
        self.idle.remove(&(now, slot));
        if let Some(program) = self.program_mut(slot) {
            (program.active, program.idle_since) = (before.active, Some(since));
            program.shared = home.map_or(0, |_| before.shared);
        }
        self.set_home(slot, home);
        self.idle.insert((since, slot));
        self.list_paused(slot);
        self.count_head(slot, true);
        self.charge_idle(slot);
    }

    /// Takes a turn out; the program that is idle now, if it stays.
    pub(super) fn leave(&mut self, now: Time, id: TurnId, ended: bool) -> Option<Slot> {
        self.discharge(id);
        let turn = self.turns.remove(&id)?;
        self.unwait(turn.slot, (turn.rank, id));
        let slot = turn.slot;
        let program = self.program_mut(slot)?;
        program.live.retain(|live| *live != id);
        if !turn.waiting {
            program.running = program.running.saturating_sub(1);
        }
        if !program.is_idle() {
            return None;
        }
        if program.peak > 0 {
            program.tokens = std::mem::take(&mut program.peak);
        }
        if program.ending || ended && turn.last || !program.ran || program.key.is_none() {
            self.remove(slot);
            return None;
        }
        program.idle_since = Some(now);
        self.idle.insert((now, slot));
        self.list_paused(slot);
        self.charge_idle(slot);
        Some(slot)
    }

    pub(super) fn list_paused(&mut self, slot: Slot) {
        if self.program(slot).is_some_and(|program| program.is_idle() && !program.active) {
            self.paused.insert(slot);
        } else {
            self.paused.remove(&slot);
        }
    }

    /// A program will not come back; it leaves now, or with its last live turn.
    pub(crate) fn session_end(&mut self, key: &ProgramKey) {
        let Some(slot) = self.by_key.get(key).copied() else { return };
        match self.program_mut(slot) {
            Some(program) if !program.is_idle() => program.ending = true,
            _ => self.remove(slot),
        }
    }

    /// The program loses its place: where its cache lies and how much it is.
    pub(crate) fn pause(&mut self, slot: Slot) -> Option<(ProgramKey, WorkerId, u64)> {
        self.discharge_idle(slot);
        let program = self.program_mut(slot).filter(|program| program.active)?;
        (program.active, program.marked) = (false, false);
        self.leave_behind(slot);
        let program = self.program_mut(slot)?;
        let paused = (program.key.as_deref().cloned(), program.home, program.tokens);
        self.stats.paused += 1;
        self.list_paused(slot);
        Some((paused.0?, paused.1?, paused.2))
    }

    /// An idle paused program gets a place at a worker without a turn.
    pub(crate) fn resume_idle(&mut self, slot: Slot, worker: WorkerId) {
        self.leave_home(slot);
        if let Some(program) = self.program_mut(slot) {
            (program.active, program.served) = (true, 0);
            self.stats.resumed += 1;
        }
        self.set_home(slot, Some(worker));
        self.list_paused(slot);
        self.charge_idle(slot);
    }

    /// When the longest idle program became idle, and its kind.
    pub(crate) fn next_expiry(&self) -> Option<Time> {
        self.idle.first().map(|&(since, _)| since + self.idle_ttl)
    }

    /// Forgets programs that have been idle too long; `gone` hears of each.
    pub(crate) fn expire(&mut self, now: Time, mut gone: impl FnMut(&Self, &Program)) {
        for _ in 0..EXPIRE_PER_CALL_MAX {
            let Some((_, slot)) =
                self.idle.first().copied().filter(|(since, _)| *since + self.idle_ttl <= now)
            else {
                return;
            };
            if let Some(program) = self.program(slot) {
                gone(self, program);
            }
            self.stats.expired += 1;
            self.remove(slot);
        }
    }
}
