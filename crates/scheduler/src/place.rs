//! Finding a worker for a turn, sending it there, holding or refusing it, and letting held turns go.
//!
//! Order of preference among the workers that serve the turn's model: well ones that have not failed this turn,
//! well ones that have, then the same two among those behind an open breaker. A rank without a free slot is passed
//! over only when it has no ready worker at all: a turn waits for a full well worker rather than go to one that is
//! likely broken.

use std::collections::BTreeSet;
use std::time::Duration;

use tandem_routing::kv::expected_prefill;
use tandem_routing::{Choice, Fleet, Reason, RouteTurn};
use tandem_types::{TurnId, WorkerId};

use crate::Scheduler;
use crate::contract::{Decision, Effect, HoldReason, RejectReason};
use crate::pace;
use crate::turns::{Phase, Turn};
use crate::workers::{Tier, Wanted};

/// Larger token counts, which only a broken client or engine reports, count as this many, so that sums over all
/// turns and programs stay exact.
pub(crate) const TOKENS_MAX: u64 = 1 << 40;

/// The four ranks: which tier, and whether workers that failed the turn are left out.
const RANKS: [(Tier, bool); 4] =
    [(Tier::Well, true), (Tier::Well, false), (Tier::LastResort, true), (Tier::LastResort, false)];

/// What a turn asks of workers in general.
pub(crate) fn wanted(turn: &Turn, tier: Tier, spare_failed: bool) -> Wanted<'_> {
    Wanted {
        model: turn.arrival.model.as_deref(),
        tier,
        except: if spare_failed { &turn.failed_on } else { &[] },
        slot: turn.arrival.class.is_turn(),
        wishes: &turn.arrival.wishes,
    }
}

impl Scheduler {
    /// Chooses a worker that can take the turn now.
    pub(crate) fn choose(&mut self, id: TurnId) -> Option<Choice> {
        let turn = self.turns.get(id)?;
        if turn.arrival.class.is_turn() && !self.workers.has_free() {
            return None;
        }
        let route = self.route(turn);
        for (tier, spare_failed) in RANKS {
            if !spare_failed && turn.failed_on.is_empty() {
                continue;
            }
            let wanted = wanted(turn, tier, spare_failed);
            let fleet = self.workers.eligible(wanted, self.programs.at_home());
            if let Some(choice) = self.policy.choose(&route, &fleet, &mut self.route_rng) {
                return Some(choice);
            }
            if self.workers.any_ready(wanted) {
                return None;
            }
        }
        None
    }

    /// What the policy may know of the turn.
    fn route<'a>(&self, turn: &'a Turn) -> RouteTurn<'a> {
        let program = turn.arrival.program.as_ref().and_then(|key| self.programs.get(key));
        let parent = program.and_then(|p| p.parent.as_ref()).or(turn.arrival.parent.as_ref());
        RouteTurn {
            home: program.and_then(|p| p.last_worker),
            parent_home: parent.and_then(|key| self.programs.get(key)).and_then(|p| p.last_worker),
            input_tokens: turn.arrival.input_tokens_estimate.min(TOKENS_MAX),
            program_tokens: program.map(|p| p.known_tokens.min(TOKENS_MAX)),
            prefix: Some(&turn.arrival.prefix).filter(|prefix| !prefix.is_unknown()),
            wishes: Some(&turn.arrival.wishes),
        }
    }

    /// The choice of one given worker, if it is well and can take the turn now.
    pub(crate) fn choose_same(&self, id: TurnId, worker: WorkerId) -> Option<Choice> {
        let turn = self.turns.get(id)?;
        let wanted = wanted(turn, Tier::Well, true);
        let same = self.workers.eligible(wanted, self.programs.at_home()).get(worker)?;
        Some(Choice::among(same, Reason::Repeated, &[same]))
    }

    /// Sends the turn where the choice says.
    pub(crate) fn dispatch(&mut self, id: TurnId, choice: Choice, delay: Duration, out: &mut Vec<Effect>) {
        let now = self.now;
        let Some(turn) = self.turns.get(id) else { return };
        let prefill = expected_prefill(&self.route(turn), choice.worker).min(TOKENS_MAX);
        let Some(turn) = self.turns.get_mut(id) else { return };
        turn.stop_waiting(now);
        turn.queued_prefill = prefill;
        turn.attempts = turn.attempts.saturating_add(1);
        turn.phase = Phase::Running { worker: choice.worker, since: now, started: false, answering: false };
        let is_turn = turn.arrival.class.is_turn();
        let attempt = turn.attempts;
        let probes = self.workers.change(choice.worker, |worker| {
            let admitted = worker.breaker.admits();
            worker.meter.dispatched();
            worker.turns_running += u32::from(is_turn);
            worker.queued_prefill += prefill;
            worker.breaker.dispatched(id);
            admitted != worker.breaker.admits()
        });
        // With the probe under way this worker is a last resort, for held turns that have no other.
        self.room_changed |= probes.unwrap_or_default();
        self.counters.dispatched += 1;
        self.counters.retried += u64::from(attempt > 1);
        let held = turn.waited;
        if let Some(program) = turn.tracked_program() {
            let prompt = turn.arrival.input_tokens_estimate.min(TOKENS_MAX);
            self.programs.dispatched(program, choice.worker, prompt);
        }
        out.push(Effect::Record(Decision {
            turn: id,
            policy: self.policy.name().to_owned(),
            worker: choice.worker,
            reason: choice.reason.as_str().to_owned(),
            candidates: choice.scores,
            terms: choice.terms,
            candidate_count: choice.compared,
            attempt,
            held,
        }));
        out.push(Effect::Dispatch { turn: id, worker: choice.worker, attempt, delay });
    }

    /// Puts the turn in the queue, or refuses it where it cannot wait. `refusal` is the reason given when it may
    /// not wait for want of time.
    pub(crate) fn hold(&mut self, id: TurnId, refusal: RejectReason, out: &mut Vec<Effect>) {
        let Some(turn) = self.turns.get(id) else { return };
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
        let position = self.queue.push(&turn.arrival.model, turn.order, id, turn.deadline);
        if let Some(turn) = self.turns.get_mut(id) {
            turn.phase = Phase::Held { since: self.now };
        }
        self.counters.held += 1;
        out.push(Effect::Hold { turn: id, reason, position });
    }

    fn hold_reason(&self, turn: &Turn) -> HoldReason {
        let ready = |tier| self.workers.any_ready(wanted(turn, tier, false));
        if ready(Tier::Well) || ready(Tier::LastResort) {
            HoldReason::WorkersFull
        } else {
            HoldReason::NoWorker
        }
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
            // Something is broken, not full: waiting for others to finish is not what it takes.
            (RejectReason::AttemptsExhausted(_), HoldReason::WorkersFull) => pace::RETRY_AFTER_MIN,
            (_, HoldReason::NoWorker) => pace::RETRY_AFTER_NO_WORKER,
            (
                RejectReason::QueueFull | RejectReason::HoldExpired | RejectReason::NoWorker,
                HoldReason::WorkersFull,
            ) => {
                let placing = usize::from(turn.phase == Phase::Placing);
                let running = self.turns.len().saturating_sub(self.queue.len() + placing);
                self.pace.retry_after(self.queue.len(), running)
            }
        }
    }

    /// Takes the turn off its worker or out of the queue, and out of the tables. Its worker, if it had one.
    pub(crate) fn forget(&mut self, id: TurnId) -> Option<WorkerId> {
        let worker = self.leave_place(id);
        let turn = self.turns.remove(id)?;
        if let Some(program) = turn.tracked_program() {
            self.programs.end_turn(self.now, program);
        }
        worker
    }

    /// Takes the turn off its worker or out of the queue. Its worker, if it had one.
    pub(crate) fn leave_place(&mut self, id: TurnId) -> Option<WorkerId> {
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
                let is_turn = turn.arrival.class.is_turn();
                let prefill = std::mem::take(&mut turn.queued_prefill);
                self.workers.change(worker, |worker| {
                    worker.meter.finished();
                    worker.queued_prefill -= prefill.min(worker.queued_prefill);
                    worker.turns_running = worker.turns_running.saturating_sub(u32::from(is_turn));
                });
                self.room_changed = true;
                Some(worker)
            }
        }
    }

    /// Lets held turns go while workers can take them, oldest first.
    pub(crate) fn pump(&mut self, out: &mut Vec<Effect>) {
        while std::mem::take(&mut self.room_changed) && !self.queue.is_empty() && self.workers.has_free() {
            self.let_go(out);
        }
    }

    fn let_go(&mut self, out: &mut Vec<Effect>) {
        let mut heads = self.queue.heads();
        while let Some(((order, id), model)) = heads.pop_first() {
            let next = self.queue.after(&model, (order, id));
            let goes = self.choose(id);
            // Those behind the head want the same workers, unless the head is choosier than they are.
            let choosy = self.turns.get(id).is_some_and(|turn| turn.is_choosy(self.workers.tainted()));
            let dispatched = goes.is_some();
            if let Some(choice) = goes {
                if let Some(turn) = self.turns.get(id) {
                    self.queue.remove(&model, order, id, turn.deadline);
                }
                self.dispatch(id, choice, Duration::ZERO, out);
            }
            if let Some(next) = next.filter(|_| dispatched || choosy) {
                heads.insert(next, model);
            }
        }
    }

    /// Held turns that a worker could take: none, by I-SCH-6. For the invariant check.
    pub(crate) fn idle_while_held(&self) -> BTreeSet<TurnId> {
        let could_go = |id: &TurnId| {
            let Some(turn) = self.turns.get(*id) else { return false };
            for (tier, spare_failed) in RANKS {
                let wanted = wanted(turn, tier, spare_failed);
                if self.workers.eligible(wanted, self.programs.at_home()).lightest().is_some() {
                    return true;
                }
                if self.workers.any_ready(wanted) {
                    return false;
                }
            }
            false
        };
        self.queue.iter().map(|(_, _, id)| id).filter(could_go).collect()
    }
}
