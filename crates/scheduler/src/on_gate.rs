//! Asking the gate about turns, doing what it says, and operators' pauses.
//!
//! - An operator's pause of a program holds its turns that are not dispatched yet, and those that come; a turn that runs
//!   goes on, retries included. The policy knows nothing of turns held so: they ask for room when the pause is over.
//! - While weights are exchanged (`SyncBegin` to `SyncEnd`) no turn is dispatched, retries included, whatever the policy
//!   says; calls that are not turns pass. A watchdog ends it when whoever began it does not.
//! - I-GTE-1 a turn is in the line before the gate exactly while its pass is not open; what its policy lets in goes to
//!   the queue for a worker in the same call, and from there as soon as one has a slot.
//! - I-GTE-2 no turn is dispatched while weights are exchanged, and that lasts no longer than was said at its beginning.

use std::time::Duration;

use tandem_admission::{Action, Arrival, End, Event};
use tandem_types::{ProgramKey, TurnId, WorkerId, WorkerRole};

use crate::Scheduler;
use crate::contract::{Effect, HoldReason, TurnOutcome, TurnResult};
use crate::gate::{Member, Pass, PoolId};
use crate::turns::{Phase, Turn};
use crate::workers::WorkerState;

impl Scheduler {
    /// Asks whether the turn may go, and notes the answer as its pass.
    pub(crate) fn ask_gate(&mut self, id: TurnId) {
        let Some(turn) = self.turns.get(id).filter(|turn| turn.arrival.class.is_turn()) else { return };
        let program = turn.tracked_program().and_then(|key| self.programs.get(key));
        let (mut pass, mut pool) = (Pass::Free, None);
        if turn.attempts == 0 && program.is_some_and(|program| program.stopped) {
            pass = Pass::Stopped;
        } else if self.gate.is_on() {
            let asked = self.workers.asked(turn.arrival.model.as_deref());
            pool = self.gate.pool_where(|worker| self.workers.serves(worker, asked));
            pass = Pass::Unasked;
        }
        if let Some(turn) = self.turns.get_mut(id) {
            turn.pass = pass;
        }
        if let Some(pool) = pool {
            self.present(id, pool);
        }
    }

    /// Asks a pool's policy about the turn.
    fn present(&mut self, id: TurnId, pool: PoolId) {
        let Some(turn) = self.turns.get(id) else { return };
        let event = Event::Arrived(Arrival {
            turn: id,
            program: turn.arrival.program.as_ref(),
            parent: turn.arrival.parent.as_ref(),
            group: turn.arrival.group.as_ref(),
            prompt_tokens: turn.arrival.input_tokens_estimate,
            prefix: &turn.arrival.prefix,
            last: turn.arrival.session_final,
            waited: self.now.since(turn.came),
        });
        let mut actions = Vec::new();
        self.gate.on(pool, self.now, &event, &mut actions);
        self.carry_out(pool, actions);
    }

    /// Asks again about a turn whose dispatch failed: it has no room any more, but its place among those that wait.
    pub(crate) fn ask_anew(&mut self, id: TurnId) {
        let Some(turn) = self.turns.get(id) else { return };
        let Some(pool) = turn.pass.pool() else { return };
        if self.gate.has_workers_beside(pool, &[]) {
            let mut actions = Vec::new();
            // Health, labels and taints are unknown to policies: there may be others, and none that would do.
            let unfit = self.gate.has_workers_beside(pool, &turn.failed_on) && !self.ready_elsewhere(turn);
            let failed_on: &[WorkerId] = if unfit { &[] } else { &turn.failed_on };
            let event = Event::Undispatched { turn: id, again: Some(failed_on) };
            self.gate.on(pool, self.now, &event, &mut actions);
            return self.carry_out(pool, actions);
        }
        // As in `withdraw`.
        self.tell_pool(pool, &Event::Undispatched { turn: id, again: None });
        self.tell_pool(pool, &Event::Aborted { turn: id });
        self.ask_gate(id);
    }

    /// Asks again about a turn in the line that nobody was asked about, and lets it go if it may.
    fn ask_again(&mut self, id: TurnId) {
        self.ask_gate(id);
        let Some(turn) = self.turns.get(id).filter(|turn| turn.pass.is_open()) else { return };
        self.queue.let_in(&turn.arrival.model, turn.order, id);
        self.room_changed = true;
    }

    /// Tells the policy that counts the turn something about it.
    pub(crate) fn tell_gate(&mut self, id: TurnId, event: &Event<'_>) {
        let Some(pool) = self.turns.get(id).and_then(|turn| turn.pass.pool()) else { return };
        self.tell_pool(pool, event);
    }

    fn tell_pool(&mut self, pool: PoolId, event: &Event<'_>) {
        let mut actions = Vec::new();
        self.gate.on(pool, self.now, event, &mut actions);
        self.carry_out(pool, actions);
    }

    fn carry_out(&mut self, pool: PoolId, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Admit { turn: id, grant } => {
                    let Some(turn) = self.turns.get_mut(id) else { continue };
                    let held = match turn.pass {
                        Pass::Shut { reason, .. } => Some(reason),
                        Pass::Free | Pass::Unasked | Pass::Stopped | Pass::Admitted { .. } => None,
                    };
                    turn.pass = Pass::Admitted { pool, grant, held };
                    if matches!(turn.phase, Phase::Held { .. }) {
                        self.queue.let_in(&turn.arrival.model, turn.order, id);
                        self.room_changed = true;
                    }
                }
                Action::Hold { turn: id, reason } => {
                    if let Some(turn) = self.turns.get_mut(id) {
                        turn.pass = Pass::Shut { pool, reason };
                    }
                }
                Action::Paused { program, worker, tokens } => {
                    self.notices.push(Effect::Paused { program, worker, tokens });
                }
                Action::Demote { program, worker, tokens } => {
                    self.notices.push(Effect::Demote { program, worker, tokens });
                }
            }
        }
    }

    fn carry_out_all(&mut self, answers: Vec<(PoolId, Vec<Action>)>) {
        for (pool, actions) in answers {
            self.carry_out(pool, actions);
        }
    }

    /// Lets the policies know what time it is, and ends an exchange of weights that takes too long.
    pub(crate) fn gate_on_time(&mut self) {
        let answers = self.gate.on_time(self.now);
        self.carry_out_all(answers);
        if self.sync_until.is_some_and(|until| until <= self.now) {
            self.sync_until = None;
            self.counters.syncs_expired += 1;
            self.room_changed = true;
        }
    }

    /// A worker's state, models or capacity may have changed.
    pub(crate) fn tell_gate_of(&mut self, id: WorkerId) {
        if !self.gate.is_on() {
            return;
        }
        let ready = |worker: &&crate::workers::Worker| {
            worker.state == WorkerState::Ready && worker.role() != WorkerRole::Prefill
        };
        let member = self.workers.get(id).filter(ready).and_then(|worker| {
            let reported = worker.report.and_then(|report| report.kv_capacity_tokens);
            Some(Member::new(worker.info.as_ref()?, reported))
        });
        if let Some(pool) = self.gate.emptied_by(id, member.as_ref()) {
            self.withdraw(pool);
        }
        let answers = self.gate.worker(self.now, id, member);
        let changed = !answers.is_empty();
        self.carry_out_all(answers);
        if changed {
            let unasked = |id: &TurnId| self.turns.get(*id).is_some_and(|turn| turn.pass == Pass::Unasked);
            let again: Vec<TurnId> = self.queue.line().filter(unasked).collect();
            again.into_iter().for_each(|id| self.ask_again(id));
        }
    }

    /// A pool is about to lose its last worker: turns that do not run are asked about anew when there is one again, or all
    /// would be let in while there is nothing that could be full.
    fn withdraw(&mut self, pool: PoolId) {
        let theirs = |id: &TurnId| self.turns.get(*id).is_some_and(|turn| turn.pass.pool() == Some(pool));
        let held: Vec<TurnId> = self.queue.all().filter(theirs).collect();
        held.into_iter().for_each(|id| self.take_back(id, Pass::Unasked));
    }

    /// A held turn's policy forgets it; it waits in the line for what `pass` says.
    fn take_back(&mut self, id: TurnId, pass: Pass) {
        let Some(turn) = self.turns.get_mut(id) else { return };
        let pool = std::mem::replace(&mut turn.pass, pass).pool();
        self.queue.send_back(&turn.arrival.model, turn.order, id);
        if let Some(pool) = pool {
            self.tell_pool(pool, &Event::Aborted { turn: id });
        }
    }

    /// A turn's answer is over.
    pub(crate) fn tell_gate_of_end(&mut self, id: TurnId, outcome: &TurnOutcome) {
        if outcome.result != TurnResult::Finished {
            // `forget` says that it was aborted.
            return;
        }
        let end = End { usage: outcome.usage, tools: outcome.tool_calls > 0 };
        let Some(turn) = self.turns.get_mut(id) else { return };
        // The turn is as good as over: what follows from its end does not concern it.
        let pool = std::mem::replace(&mut turn.pass, Pass::Free).pool();
        if let Some(pool) = pool {
            self.tell_pool(pool, &Event::Ended { turn: id, end });
        }
    }

    /// A turn that was taken out of the tables did not come to a good end.
    pub(crate) fn tell_gate_of_abort(&mut self, id: TurnId, turn: &Turn) {
        if let Some(pool) = turn.pass.pool() {
            self.tell_pool(pool, &Event::Aborted { turn: id });
        }
    }

    pub(crate) fn tell_gate_of_session_end(&mut self, program: &ProgramKey) {
        let answers = self.gate.session_end(self.now, program);
        self.carry_out_all(answers);
    }

    pub(crate) fn on_progress(&mut self, id: TurnId, generated: u64) {
        match self.turns.get(id).map(|turn| turn.phase) {
            Some(Phase::Running { .. }) => self.tell_gate(id, &Event::Progress { turn: id, generated }),
            Some(Phase::Placing | Phase::Held { .. }) | None => self.misplaced(id),
        }
    }

    pub(crate) fn on_program_pause(&mut self, key: &ProgramKey) {
        if !self.programs.stop(key, true) {
            self.counters.late_inputs += 1;
            return;
        }
        let theirs = |id: &TurnId| {
            let turn = self.turns.get(*id);
            turn.is_some_and(|turn| turn.attempts == 0 && turn.tracked_program() == Some(key))
        };
        let held: Vec<TurnId> = self.queue.all().filter(theirs).collect();
        held.into_iter().for_each(|id| self.take_back(id, Pass::Stopped));
    }

    pub(crate) fn on_program_resume(&mut self, key: &ProgramKey) {
        if !self.programs.stop(key, false) {
            self.counters.late_inputs += 1;
            return;
        }
        let theirs = |id: &TurnId| {
            let turn = self.turns.get(*id);
            turn.is_some_and(|turn| turn.pass == Pass::Stopped && turn.tracked_program() == Some(key))
        };
        let held: Vec<TurnId> = self.queue.line().filter(theirs).collect();
        held.into_iter().for_each(|id| self.ask_again(id));
    }

    pub(crate) fn on_sync_begin(&mut self, at_most: Duration) {
        self.counters.syncs += u64::from(self.sync_until.is_none());
        self.sync_until = Some(self.now + at_most);
    }

    pub(crate) fn on_sync_end(&mut self) {
        if self.sync_until.take().is_none() {
            self.counters.late_inputs += 1;
        }
        self.room_changed = true;
    }

    /// Why the gate holds the turn, if it does.
    pub(crate) fn gate_reason(&self, turn: &Turn) -> Option<HoldReason> {
        match turn.pass {
            Pass::Shut { reason, .. } => Some(reason.into()),
            Pass::Stopped => Some(HoldReason::PausedByOperator),
            Pass::Free | Pass::Admitted { .. } if self.holds_for_sync(turn) => Some(HoldReason::WeightSync),
            Pass::Free | Pass::Unasked | Pass::Admitted { .. } => None,
        }
    }

    /// Whether the turn waits for the exchange of weights to end.
    pub(crate) const fn holds_for_sync(&self, turn: &Turn) -> bool {
        self.sync_until.is_some() && turn.arrival.class.is_turn()
    }
}
