//! Inputs about turns and programs.

use std::time::Duration;

use tandem_admission::Event;
use tandem_types::{PrefixMatch, ProgramKey, Time, TurnId, Usage, WorkerId};

use crate::Scheduler;
use crate::breaker::Signal;
use crate::contract::{
    DispatchFailure, Effect, FailureKind, RejectReason, Remembered, TurnArrival, TurnOutcome, TurnResult,
};
use crate::gate::Pass;
use crate::programs::Begun;
use crate::turns::{Phase, Turn};

/// The worker that answers a turn, and the one that computes its prompt, where that is another.
pub(crate) type Legs = (WorkerId, Option<WorkerId>);

impl Scheduler {
    pub(crate) fn on_turn_arrived(&mut self, arrival: TurnArrival, out: &mut Vec<Effect>) {
        let id = arrival.turn;
        if self.turns.get(id).is_some() {
            self.counters.anomalies.duplicate_turns += 1;
            return;
        }
        // Those whom a breaker's time has just let go stand before the newcomer.
        self.pump(out);
        self.counters.arrived += 1;
        let repeated = self.turns.repeated_by(&arrival);
        let tracked = self.begin_in_program(&arrival);
        let deadline = self.now + arrival.hold_max;
        let mut turn = Turn {
            order: 0,
            came: self.now,
            deadline,
            phase: Phase::Placing,
            pass: Pass::Free,
            attempts: 0,
            failed_on: Vec::new(),
            tracked,
            waited: Duration::ZERO,
            queued_prefill: 0,
            arrival,
        };
        // The old call leaves first, so that its slot and its place in the queue are there for the new one.
        let mut same_worker = None;
        match repeated {
            Some(old) => {
                let place = self.turns.get(old).map(|t| t.order);
                same_worker = self.leave_place_with_signal(old, out);
                if let Some(old_turn) = self.turns.get(old) {
                    turn.waited = old_turn.waited;
                    turn.came = self.now - turn.waited;
                }
                turn.order = place.unwrap_or_else(|| self.turns.next_order());
                self.forget(old);
                self.counters.superseded += 1;
                out.push(Effect::Supersede { old, by: id });
            }
            None => turn.order = self.turns.next_order(),
        }
        self.turns.insert(turn);
        self.place_new(id, same_worker, out);
    }

    /// Counts the turn among its program's. Side calls are not counted.
    fn begin_in_program(&mut self, arrival: &TurnArrival) -> bool {
        let Some(key) = arrival.program.as_ref().filter(|_| arrival.class.is_turn()) else { return false };
        self.programs.send_away(self.now);
        match self.programs.begin_turn(self.now, key, arrival.parent.as_ref(), arrival.group.as_ref()) {
            Begun::Tracked => true,
            Begun::TrackedByEviction => {
                self.counters.programs_evicted += 1;
                true
            }
            Begun::Untracked => {
                self.counters.programs_untracked += 1;
                false
            }
        }
    }

    fn place_new(&mut self, id: TurnId, same: Option<Legs>, out: &mut Vec<Effect>) {
        let Some(turn) = self.turns.get_mut(id) else { return };
        if !self.workers.might_serve(turn.arrival.model.as_deref(), self.now) {
            // Engines decide which names they answer to (SGLang answers to any), and refuse in their own words.
            turn.arrival.model = None;
        }
        self.ask_gate(id);
        let open = self.turns.get(id).is_some_and(|turn| turn.pass.is_open());
        let same = same.filter(|_| open).and_then(|legs| self.choose_same(id, legs));
        match same.or_else(|| self.choose(id)) {
            Some(placement) => self.dispatch(id, placement, Duration::ZERO, out),
            None => self.hold(id, RejectReason::HoldExpired, out),
        }
    }

    /// Takes a turn that ends without a verdict on its workers out of its place, cancelling what runs. Where it ran.
    fn leave_place_with_signal(&mut self, id: TurnId, out: &mut Vec<Effect>) -> Option<Legs> {
        self.signal(id, Signal::Neutral);
        let prefill = match self.turns.get(id).map(|turn| turn.phase) {
            Some(Phase::Running { prefill, .. }) => prefill,
            Some(Phase::Placing | Phase::Held { .. }) | None => None,
        };
        let worker = self.leave_place(id)?;
        out.push(Effect::Cancel { turn: id, worker, prefill });
        Some((worker, prefill))
    }

    /// Tells the breaker of the worker that answers the turn what the turn told.
    fn signal(&mut self, id: TurnId, signal: Signal) {
        let Some(Phase::Running { worker, since, .. }) = self.turns.get(id).map(|turn| turn.phase) else {
            return;
        };
        self.signal_at(worker, id, since, signal);
    }

    /// Tells a worker's breaker what a turn sent there at `since` told.
    pub(crate) fn signal_at(&mut self, worker: WorkerId, id: TurnId, since: Time, signal: Signal) {
        let (now, config) = (self.now, &self.config.breaker);
        let changed = self.workers.change(worker, |worker| {
            let admitted = worker.breaker.admits();
            let opened = worker.breaker.signal(signal, id, since, now, config);
            (opened, admitted != worker.breaker.admits())
        });
        let (opened, changed) = changed.unwrap_or_default();
        self.counters.breakers_opened += u64::from(opened);
        self.room_changed |= changed;
    }

    /// Counts an input about a turn that is not running.
    pub(crate) fn misplaced(&mut self, id: TurnId) {
        if self.turns.get(id).is_some() {
            self.counters.anomalies.wrong_phase += 1;
        } else if self.turns.is_past(id) {
            self.counters.late_inputs += 1;
        } else {
            self.counters.anomalies.unknown_turns += 1;
        }
    }

    pub(crate) fn on_prefill_done(&mut self, id: TurnId) {
        match self.turns.get(id).map(|turn| turn.phase) {
            Some(Phase::Running { .. }) => {
                if !self.end_prefill(id, Signal::Success) {
                    // The first byte of the answer came before, and said the same.
                    self.counters.late_inputs += 1;
                }
            }
            Some(Phase::Placing | Phase::Held { .. }) | None => self.misplaced(id),
        }
    }

    pub(crate) fn on_prefill_failed(&mut self, id: TurnId, failure: &DispatchFailure, out: &mut Vec<Effect>) {
        match self.turns.get(id).map(|turn| turn.phase) {
            Some(Phase::Running { prefill: Some(worker), answering: false, .. }) => {
                self.end_prefill(id, verdict(failure.kind));
                self.signal(id, Signal::Neutral);
                self.leave_place(id);
                self.try_again(id, worker, failure, out);
            }
            Some(Phase::Running { answering, .. }) => {
                self.counters.anomalies.wrong_phase += 1;
                if !answering {
                    self.on_turn_failed(id, failure, out);
                }
            }
            Some(Phase::Placing | Phase::Held { .. }) | None => self.misplaced(id),
        }
    }

    pub(crate) fn on_turn_started(&mut self, id: TurnId) {
        if let Some(Turn { phase: Phase::Running { started, .. }, .. }) = self.turns.get_mut(id) {
            *started = true;
        } else {
            self.misplaced(id);
        }
    }

    pub(crate) fn on_first_token(&mut self, id: TurnId) {
        let Some(Turn { phase: Phase::Running { started, answering, .. }, arrival, .. }) =
            self.turns.get_mut(id)
        else {
            return self.misplaced(id);
        };
        if std::mem::replace(answering, true) {
            self.counters.anomalies.wrong_phase += 1;
            return;
        }
        *started = true;
        // It is not placed again: where its prompt lay is of no use any more, and in a large fleet it is most of a turn.
        arrival.prefix = PrefixMatch::unknown();
        self.turns.answer_began(id);
        self.end_prefill(id, Signal::Success);
        self.prefill_done(id);
        self.signal(id, Signal::FirstByte);
        self.tell_gate(id, &Event::FirstToken { turn: id });
    }

    /// The turn's prefill is no longer queued at its worker.
    fn prefill_done(&mut self, id: TurnId) {
        let Some(turn) = self.turns.get_mut(id) else { return };
        let Phase::Running { worker, .. } = turn.phase else { return };
        let tokens = std::mem::take(&mut turn.queued_prefill);
        self.workers.change(worker, |worker| worker.queued_prefill -= tokens.min(worker.queued_prefill));
    }

    pub(crate) fn on_prefix_found(&mut self, id: TurnId, prefix: PrefixMatch) {
        self.tell_gate(id, &Event::Found { turn: id, prefix: &prefix });
        match self.turns.get_mut(id) {
            Some(turn) => turn.arrival.prefix = prefix,
            None => self.misplaced(id),
        }
    }

    pub(crate) fn on_turn_failed(&mut self, id: TurnId, failure: &DispatchFailure, out: &mut Vec<Effect>) {
        let Some(Turn { phase: Phase::Running { answering, .. }, .. }) = self.turns.get(id) else {
            return self.misplaced(id);
        };
        if *answering {
            // The client has bytes already: nothing may be tried again, and there is nothing left to refuse.
            self.counters.anomalies.wrong_phase += 1;
            let result = TurnResult::Failed;
            return self.on_turn_ended(id, &TurnOutcome { result, usage: None, tool_calls: 0 });
        }
        self.signal(id, verdict(failure.kind));
        let Some(worker) = self.leave_place(id) else { return };
        self.try_again(id, worker, failure, out);
    }

    /// The turn's dispatch failed through `worker`; its places are free again.
    fn try_again(&mut self, id: TurnId, worker: WorkerId, failure: &DispatchFailure, out: &mut Vec<Effect>) {
        let Some(turn) = self.turns.get_mut(id) else { return };
        if !turn.failed_on.contains(&worker) {
            turn.failed_on.push(worker);
        }
        let exhausted = RejectReason::AttemptsExhausted(failure.kind);
        let Some(turn) = self.turns.get(id) else { return };
        // An overloaded engine is not asked again at once; others may have room.
        let may_retry = failure.retryable
            && turn.attempts < self.config.attempts_max
            && (failure.kind != FailureKind::Overloaded || self.ready_elsewhere(turn));
        let attempts = turn.attempts;
        if !may_retry {
            self.tell_gate(id, &Event::Undispatched { turn: id, again: None });
            return self.reject(id, exhausted, out);
        }
        self.ask_anew(id);
        match self.choose(id) {
            Some(placement) => {
                let delay = self.backoff(attempts);
                self.dispatch(id, placement, delay, out);
            }
            None => self.hold(id, exhausted, out),
        }
    }

    /// The wait before another try after `attempts` tries: doubles, bounded, drawn from the upper half so that
    /// the turns of a worker that died do not come back in one wave.
    fn backoff(&mut self, attempts: u32) -> Duration {
        let doublings = attempts.saturating_sub(1).min(16);
        let full = self.config.backoff_first.saturating_mul(1 << doublings).min(self.config.backoff_max);
        let half = full / 2;
        let span = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX);
        half.saturating_add(Duration::from_nanos(self.backoff_rng.below(span.saturating_add(1))))
    }

    pub(crate) fn on_turn_ended(&mut self, id: TurnId, outcome: &TurnOutcome) {
        let Some(turn) = self.turns.get(id) else { return self.misplaced(id) };
        let Phase::Running { since, .. } = turn.phase else { return self.misplaced(id) };
        let took = self.now.since(since);
        let ended_program = turn.arrival.program.clone().filter(|_| turn.arrival.session_final);
        if let Some(program) = turn.tracked_program()
            && outcome.result == TurnResult::Finished
        {
            self.programs.answered(program, outcome.usage.map(total_tokens), outcome.tool_calls > 0);
        }
        let is_turn = turn.arrival.class.is_turn();
        match outcome.result {
            TurnResult::Finished => {
                self.counters.finished += 1;
                self.signal(id, Signal::Success);
                if is_turn {
                    self.pace.finished(took);
                }
            }
            TurnResult::Refused => {
                self.counters.refused += 1;
                self.signal(id, Signal::Neutral);
            }
            TurnResult::Failed => {
                self.counters.failed += 1;
                self.signal(id, Signal::Failure);
            }
        }
        self.tell_gate_of_end(id, outcome);
        self.forget(id);
        if let Some(program) = ended_program {
            self.programs.end(&program);
            self.tell_gate_of_session_end(&program);
        }
    }

    pub(crate) fn on_client_gone(&mut self, id: TurnId, out: &mut Vec<Effect>) {
        if self.turns.get(id).is_none() {
            return self.misplaced(id);
        }
        self.counters.cancelled += 1;
        self.leave_place_with_signal(id, out);
        self.forget(id);
    }

    pub(crate) fn on_program_remembered(&mut self, remembered: &Remembered) {
        if self.programs.remember(self.now, remembered) {
            self.counters.programs_remembered += 1;
        }
    }

    pub(crate) fn on_session_end(&mut self, program: &ProgramKey) {
        if !self.programs.end(program) {
            self.counters.unknown_session_ends += 1;
        }
        self.tell_gate_of_session_end(program);
    }
}

/// What a failure tells of the worker at fault.
const fn verdict(kind: FailureKind) -> Signal {
    match kind {
        FailureKind::Connect
        | FailureKind::Disconnected
        | FailureKind::Timeout
        | FailureKind::ServerError
        | FailureKind::Garbage => Signal::Failure,
        FailureKind::Overloaded => Signal::Neutral,
    }
}

const fn total_tokens(usage: Usage) -> u64 {
    usage.input_tokens.saturating_add(usage.output_tokens)
}
