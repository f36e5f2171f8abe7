//! What turns, heads and idle programs take of workers.

use std::collections::BTreeMap;

use tandem_types::{TurnId, WorkerId};

use super::{Idler, Slot, TOKENS_MAX, Table, Turn};

impl Table {
    pub(crate) fn charged(&self, worker: WorkerId) -> (u64, u64) {
        self.workers.get(&worker).map_or((0, 0), |w| (w.running_tokens, w.idle_tokens))
    }

    /// What a turn will take of a worker's room that is not taken already by others' heads.
    pub(crate) fn need(&self, turn: &Turn, worker: WorkerId) -> u64 {
        turn.prompt.saturating_sub(self.head(turn, worker))
    }

    /// The head of a turn's prompt that others have at a worker.
    pub(super) fn head(&self, turn: &Turn, worker: WorkerId) -> u64 {
        let Some(program) = self.program(turn.slot).filter(|_| self.rules.heads_count_once) else { return 0 };
        program.heads().at(worker, turn.lies.at(worker)).min(turn.prompt)
    }

    pub(super) fn charge(&mut self, id: TurnId, worker: WorkerId) {
        let Some(turn) = self.turns.get(&id) else { return };
        let (slot, head, name) = (turn.slot, self.head(turn, worker), turn.head);
        let tokens = turn.prompt.saturating_add(turn.generated).saturating_sub(head).min(TOKENS_MAX);
        if self.program(slot).is_some_and(|program| program.home != Some(worker)) {
            self.leave_home(slot);
            // Also where nobody has been before.
            self.worker_entry(worker);
            self.set_home(slot, Some(worker));
            if let Some(program) = self.program_mut(slot) {
                (program.shared, program.head) = (head, name);
            }
        } else {
            self.count_head(slot, false);
            if let Some(program) = self.program_mut(slot) {
                (program.shared, program.head) = (head, name);
            }
        }
        if let Some(program) = self.program_mut(slot).filter(|program| !program.ran) {
            program.others = head;
        }
        self.count_head(slot, true);
        if let Some(entry) = self.worker_entry(worker) {
            entry.running += 1;
            entry.running_tokens += tokens;
        }
        if let Some(program) = self.programs.get(slot).and_then(Option::as_ref) {
            self.kin.charge(&program.tenant, tokens);
        }
        if let Some(turn) = self.turns.get_mut(&id) {
            turn.charge = Some((worker, tokens));
            turn.told = turn.lies.at(worker);
        }
    }

    pub(super) fn discharge(&mut self, id: TurnId) {
        let Some(turn) = self.turns.get_mut(&id) else { return };
        let (slot, Some((worker, tokens))) = (turn.slot, turn.charge.take()) else { return };
        if let Some(program) = self.programs.get(slot).and_then(Option::as_ref) {
            self.kin.discharge(&program.tenant, tokens);
        }
        if let Some(entry) = self.worker_mut(worker) {
            entry.running = entry.running.saturating_sub(1);
            entry.running_tokens = entry.running_tokens.saturating_sub(tokens);
        }
        self.sweep(worker);
    }

    /// Counts a program's head at its home, or does so no more.
    pub(super) fn count_head(&mut self, slot: Slot, present: bool) {
        let Some(program) = self.program(slot) else { return };
        let (Some(home), head) = (program.home, program.shared) else { return };
        let key = (program.group.clone(), program.head);
        let Some(worker) = self.worker_mut(home).filter(|_| head > 0) else { return };
        let heads = worker.heads.entry(key.clone()).or_default();
        let longest = |heads: &BTreeMap<u64, u32>| heads.last_key_value().map_or(0, |(head, _)| *head);
        let before = longest(heads);
        if present {
            *heads.entry(head).or_default() += 1;
        } else if let Some(count) = heads.get_mut(&head) {
            *count -= 1;
            if *count == 0 {
                heads.remove(&head);
            }
        }
        worker.shared = worker.shared - before + longest(heads);
        if heads.is_empty() {
            worker.heads.remove(&key);
        }
    }

    /// The program's cache lies nowhere any more. It stays as it is otherwise.
    pub(super) fn leave_home(&mut self, slot: Slot) {
        self.discharge_idle(slot);
        self.count_head(slot, false);
        self.set_home(slot, None);
        if let Some(program) = self.program_mut(slot) {
            program.shared = 0;
        }
    }

    pub(super) fn discharge_idle(&mut self, slot: Slot) {
        let Some((worker, tokens)) = self.program_mut(slot).and_then(|program| program.charge.take()) else {
            return;
        };
        if let Some(program) = self.programs.get(slot).and_then(Option::as_ref) {
            self.kin.discharge(&program.tenant, tokens);
        }
        if let Some(entry) = self.worker_mut(worker) {
            if let Ok(at) = entry.idle.binary_search_by_key(&slot, |idler| idler.slot) {
                entry.idle.remove(at);
            }
            entry.idle_changed = true;
            entry.idle_tokens = entry.idle_tokens.saturating_sub(tokens);
        }
        self.sweep(worker);
    }

    pub(super) fn charge_idle(&mut self, slot: Slot) {
        let Some(program) = self.program(slot) else { return };
        let (true, Some(since), Some(home)) = (program.active, program.idle_since, program.home) else {
            return;
        };
        let tokens = program.tokens.saturating_sub(program.shared);
        let idler = Idler::new(slot, program, since, tokens);
        let Some(entry) = self.worker_mut(home) else { return };
        if let Err(at) = entry.idle.binary_search_by_key(&slot, |idler| idler.slot) {
            entry.idle.insert(at, idler);
        }
        entry.idle_changed = true;
        entry.idle_tokens += tokens;
        if let Some(program) = self.programs.get_mut(slot).and_then(Option::as_mut) {
            program.charge = Some((home, tokens));
            self.kin.charge(&program.tenant, tokens);
        }
    }

    /// What an idle program is charged for.
    pub(crate) fn idle_charge(&self, slot: Slot) -> u64 {
        self.program(slot).and_then(|program| program.charge).map_or(0, |(_, tokens)| tokens)
    }

    pub(crate) fn progress(&mut self, id: TurnId, generated: u64) {
        let Some(turn) = self.turns.get_mut(&id) else { return };
        let more = generated.min(TOKENS_MAX).saturating_sub(turn.generated);
        turn.generated += more;
        if let Some((worker, tokens)) = &mut turn.charge {
            *tokens += more;
            let (worker, slot) = (*worker, turn.slot);
            if let Some(program) = self.programs.get(slot).and_then(Option::as_ref) {
                self.kin.charge(&program.tenant, more);
            }
            if let Some(entry) = self.worker_mut(worker) {
                entry.running_tokens += more;
            }
        }
    }
}
