//! Sending a turn to the workers chosen for it ([`crate::pair`]), holding or refusing it, and letting held turns go.

use std::collections::BTreeSet;
use std::time::Duration;

use tandem_admission::Event;
use tandem_routing::Leg;
use tandem_routing::kv::expected_prefill;
use tandem_types::{TurnId, WorkerId};

use crate::Scheduler;
use crate::breaker::Signal;
use crate::contract::{Admission, Decision, Effect, HoldReason, LegDecision, PrefillDecision, RejectReason};
use crate::gate::Pass;
use crate::pace;
use crate::pair::{Placement, Split};
use crate::turns::{Phase, Turn};

/// Larger token counts, which only a broken client or engine reports, count as this many, so that sums over all
/// turns and programs stay exact.
pub(crate) const TOKENS_MAX: u64 = 1 << 40;

impl Scheduler {
    /// Sends the turn where the choice says.
    pub(crate) fn dispatch(
        &mut self,
        id: TurnId,
        placement: Placement,
        delay: Duration,
        out: &mut Vec<Effect>,
    ) {
        let now = self.now;
        let Some(turn) = self.turns.get(id) else { return };
        let (worker, prefill) = (placement.choice.worker, placement.prefill());
        // Where the prompt is computed, and what of it.
        let (leg, computes) = match prefill {
            Some(prefill) => (Leg::Prefill, prefill),
            None => (Leg::Whole, worker),
        };
        let tokens = expected_prefill(&self.route(turn, leg), computes).min(TOKENS_MAX);
        let Some(turn) = self.turns.get_mut(id) else { return };
        turn.stop_waiting(now);
        turn.queued_prefill = tokens;
        turn.attempts = turn.attempts.saturating_add(1);
        turn.phase = Phase::Running { worker, prefill, since: now, started: false, answering: false };
        let attempt = turn.attempts;
        for worker in prefill.into_iter().chain([worker]) {
            self.begin_at(id, worker, if worker == computes { tokens } else { 0 });
        }
        self.counters.dispatched += 1;
        self.counters.retried += u64::from(attempt > 1);
        let Some(turn) = self.turns.get(id) else { return };
        let held = turn.waited;
        let (admission, priority) = self.admission_of(turn.pass);
        if let Some(program) = turn.tracked_program() {
            let prompt = turn.arrival.input_tokens_estimate.min(TOKENS_MAX);
            self.programs.dispatched(program, worker, prefill, prompt);
        }
        // The admitted turn's charge is where it runs.
        self.tell_gate(id, &Event::Dispatched { turn: id, worker });
        let Placement { choice, split } = placement;
        out.push(Effect::Record(Decision {
            turn: id,
            policy: self.policy.name().to_owned(),
            worker,
            reason: choice.reason.as_str().to_owned(),
            candidates: choice.scores,
            terms: choice.terms,
            candidate_count: choice.compared,
            attempt,
            held,
            prefill: prefill_decision(split),
            admission,
        }));
        out.push(Effect::Dispatch { turn: id, worker, prefill, attempt, delay, priority });
    }

    /// How a turn passed the gate, and how urgent that makes it.
    fn admission_of(&self, pass: Pass) -> (Option<Box<Admission>>, i32) {
        let Pass::Admitted { grant, held, .. } = pass else { return (None, 0) };
        let admission = Admission {
            policy: self.gate.policy().to_owned(),
            placement: grant.placement,
            priority: grant.priority,
            forced: grant.forced,
            held: held.map(HoldReason::from),
        };
        (Some(Box::new(admission)), grant.priority)
    }

    /// A leg of the turn begins at a worker, which has to compute `tokens` of its prompt.
    fn begin_at(&mut self, id: TurnId, worker: WorkerId, tokens: u64) {
        let is_turn = self.turns.get(id).is_some_and(|turn| turn.arrival.class.is_turn());
        let probes = self.workers.change(worker, |worker| {
            let admitted = worker.breaker.admits();
            worker.meter.dispatched();
            worker.turns_running += u32::from(is_turn);
            worker.queued_prefill += tokens;
            worker.breaker.dispatched(id);
            admitted != worker.breaker.admits()
        });
        // With the probe under way this worker is a last resort, for held turns that have no other.
        self.room_changed |= probes.unwrap_or_default();
    }

    /// A leg of the turn is over at a worker, which still had `tokens` of its prompt queued.
    fn end_at(&mut self, worker: WorkerId, is_turn: bool, tokens: u64) {
        self.workers.change(worker, |worker| {
            worker.meter.finished();
            worker.queued_prefill -= tokens.min(worker.queued_prefill);
            worker.turns_running = worker.turns_running.saturating_sub(u32::from(is_turn));
        });
        self.room_changed = true;
    }

    /// The prefill leg of a turn is over, and told this of its worker. False where there is none.
    pub(crate) fn end_prefill(&mut self, id: TurnId, signal: Signal) -> bool {
        let Some(turn) = self.turns.get_mut(id) else { return false };
        let Phase::Running { prefill, since, .. } = &mut turn.phase else { return false };
        let (since, Some(worker)) = (*since, prefill.take()) else { return false };
        let (is_turn, tokens) = (turn.arrival.class.is_turn(), std::mem::take(&mut turn.queued_prefill));
        self.signal_at(worker, id, since, signal);
        self.end_at(worker, is_turn, tokens);
        true
    }

    /// Puts the turn in the queue, or refuses it where it cannot wait. `refusal` is the reason given when it may
    /// not wait for want of time.
    pub(crate) fn hold(&mut self, id: TurnId, refusal: RejectReason, out: &mut Vec<Effect>) {
        let Some(turn) = self.turns.get(id) else { return };
        let asked = self.workers.asked(turn.arrival.model.as_deref());
        if turn.attempts == 0 && self.workers.none_suits(asked, &turn.arrival.wishes) {
            return self.reject(id, RejectReason::NoneSuits, out);
        }
        let reason = self.hold_reason(turn);
        if !turn.arrival.class.is_turn() {
            let refusal = if turn.attempts == 0 { RejectReason::NoWorker } else { refusal };
            return self.reject(id, refusal, out);
        }
        if turn.deadline <= self.now {
            return self.reject(id, refusal, out);
        }
        if self.queue.len() >= self.config.queue_max {
            let refusal = if turn.attempts == 0 { RejectReason::QueueFull } else { refusal };
            return self.reject(id, refusal, out);
        }
        let position = if turn.pass.is_open() {
            self.queue.push(&turn.arrival.model, turn.order, id, turn.deadline)
        } else {
            self.queue.push_in_line(turn.order, id, turn.deadline)
        };
        if let Some(turn) = self.turns.get_mut(id) {
            turn.phase = Phase::Held { since: self.now };
        }
        self.counters.held += 1;
        out.push(Effect::Hold { turn: id, reason, position });
    }

    /// Answers the turn with a refusal; it is over.
    pub(crate) fn reject(&mut self, id: TurnId, reason: RejectReason, out: &mut Vec<Effect>) {
        let Some(turn) = self.turns.get(id) else { return };
        let retry_after = self.retry_after(turn, reason);
        self.forget(id);
        self.counters.rejected += 1;
        out.push(Effect::Reject { turn: id, reason, retry_after });
    }

    fn retry_after(&self, turn: &Turn, reason: RejectReason) -> Duration {
        match (reason, self.hold_reason(turn)) {
            (_, HoldReason::WeightSync) if let Some(until) = self.sync_until => {
                pace::whole_seconds(until.since(self.now))
            }
            (RejectReason::NoneSuits, _)
            | (
                _,
                HoldReason::NoWorker
                | HoldReason::NoPrefillWorker
                | HoldReason::NoDecodeWorker
                | HoldReason::PausedByOperator
                | HoldReason::WeightSync,
            ) => pace::RETRY_AFTER_NO_WORKER,
            // Something is broken, not full: waiting for others to finish is not what it takes.
            (RejectReason::AttemptsExhausted(_), _) => pace::RETRY_AFTER_MIN,
            (
                RejectReason::QueueFull | RejectReason::HoldExpired | RejectReason::NoWorker,
                HoldReason::WorkersFull | HoldReason::MemoryFull | HoldReason::Paused | HoldReason::Behind,
            ) => {
                let placing = usize::from(turn.phase == Phase::Placing);
                let running = self.turns.len().saturating_sub(self.queue.len() + placing);
                self.pace.retry_after(self.queue.len(), running)
            }
        }
    }

    /// Takes the turn off its workers or out of the queue, and out of the tables.
    pub(crate) fn forget(&mut self, id: TurnId) {
        self.leave_place(id);
        let Some(turn) = self.turns.remove(id) else { return };
        if let Some(program) = turn.tracked_program() {
            self.programs.end_turn(self.now, program);
        }
        self.tell_gate_of_abort(id, &turn);
    }

    /// Takes the turn off its workers or out of the queue. The worker that answers, if it had one.
    pub(crate) fn leave_place(&mut self, id: TurnId) -> Option<WorkerId> {
        // A prefill leg that is still under way has proved nothing.
        self.end_prefill(id, Signal::Neutral);
        let now = self.now;
        let turn = self.turns.get_mut(id)?;
        match turn.phase {
            Phase::Placing => None,
            Phase::Held { .. } => {
                self.queue.remove(&turn.arrival.model, turn.order, id, turn.deadline);
                turn.stop_waiting(now);
                None
            }
            Phase::Running { worker, .. } => {
                turn.phase = Phase::Placing;
                let (is_turn, tokens) =
                    (turn.arrival.class.is_turn(), std::mem::take(&mut turn.queued_prefill));
                self.end_at(worker, is_turn, tokens);
                Some(worker)
            }
        }
    }

    /// Lets held turns go while workers can take them, oldest first.
    pub(crate) fn pump(&mut self, out: &mut Vec<Effect>) {
        out.append(&mut self.notices);
        while self.sync_until.is_none()
            && std::mem::take(&mut self.room_changed)
            && self.queue.wants_worker()
            && self.workers.has_free()
        {
            self.let_go(out);
        }
        out.append(&mut self.notices);
    }

    fn let_go(&mut self, out: &mut Vec<Effect>) {
        let mut heads = self.queue.heads();
        while let Some(((order, id), model)) = heads.pop_first() {
            let next = self.queue.after(&model, (order, id));
            let goes = self.choose(id);
            // Those behind the head want the same workers, unless the head is choosier than they are.
            let choosy = self.turns.get(id).is_some_and(|turn| turn.is_choosy(self.workers.tainted()));
            let dispatched = goes.is_some();
            if let Some(placement) = goes {
                if let Some(turn) = self.turns.get(id) {
                    self.queue.remove(&model, order, id, turn.deadline);
                }
                self.dispatch(id, placement, Duration::ZERO, out);
            }
            if let Some(next) = next.filter(|_| dispatched || choosy) {
                heads.insert(next, model);
            }
        }
    }

    /// Held turns that a worker could take: none, by I-SCH-6. For the invariant check.
    pub(crate) fn idle_while_held(&self) -> BTreeSet<TurnId> {
        let could_go = |id: &TurnId| {
            let turn = self.turns.get(*id).filter(|turn| !self.holds_for_sync(turn));
            turn.is_some_and(|turn| self.plan(turn).is_some())
        };
        self.queue.iter().map(|(_, _, id)| id).filter(could_go).collect()
    }
}

fn prefill_decision(split: Split) -> Option<PrefillDecision> {
    match split {
        Split::Whole => None,
        Split::Alone => Some(PrefillDecision::Alone),
        Split::Local(tokens) => Some(PrefillDecision::Local { tokens }),
        Split::Remote(choice) => Some(PrefillDecision::Remote(LegDecision {
            worker: choice.worker,
            reason: choice.reason.as_str().to_owned(),
            candidates: choice.scores,
            terms: choice.terms,
            candidate_count: choice.compared,
        })),
    }
}
