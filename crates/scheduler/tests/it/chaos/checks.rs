//! What the driver holds the scheduler to: each effect against what it knows, and its books after each call.

use tandem_routing::Reason;
use tandem_scheduler::admission::Placement;
use tandem_scheduler::view::View;
use tandem_scheduler::{Decision, Effect, PrefillDecision, Scheduler, invariants};
use tandem_types::{EngineKind, ProgramKey, TurnId, WorkerId, WorkerRole};

use super::Chaos;

/// Longest answer that a driver tells of.
pub(super) const ANSWER_MAX: u64 = 800;

impl Chaos {
    /// Carries the effects out and checks each against what the driver knows.
    pub(crate) fn carry_out(&mut self, effects: &[Effect]) {
        if let Some(asking) = self.asking.take() {
            let answers = effects.iter().filter(|effect| match effect {
                Effect::Dispatch { turn, .. } | Effect::Hold { turn, .. } | Effect::Reject { turn, .. } => {
                    *turn == asking
                }
                Effect::Cancel { .. }
                | Effect::Supersede { .. }
                | Effect::Record(_)
                | Effect::Paused { .. }
                | Effect::Demote { .. } => false,
            });
            assert!(answers.count() > 0, "nothing was said of {asking}");
        }
        for (index, effect) in effects.iter().enumerate() {
            match effect {
                Effect::Dispatch { turn, worker, prefill, attempt, .. } => {
                    let before = index.checked_sub(1).map(|before| &effects[before]);
                    let Some(Effect::Record(record)) = before else {
                        panic!("{turn} was dispatched without a record");
                    };
                    assert_eq!((record.turn, record.worker), (*turn, *worker));
                    self.fits(record.prefill.as_ref(), *worker, *prefill);
                    self.dispatched(record, *prefill, *attempt);
                }
                Effect::Hold { turn, .. } => {
                    let live = self.turns.get(*turn).expect("a held turn is live");
                    assert!(live.is_turn && live.at.is_none() && live.deadline > self.now, "{turn} {live:?}");
                }
                Effect::Reject { turn, .. } => {
                    assert!(self.turns.get(*turn).is_some_and(|l| l.at.is_none()), "{turn} was rejected");
                    self.turns.end(*turn);
                }
                // For a turn whose client left, or right before it is superseded.
                Effect::Cancel { turn, prefill, .. } => {
                    if let Some(live) = self.turns.get(*turn) {
                        assert_eq!(live.prefill, *prefill, "{turn}");
                        assert!(live.at.is_some(), "{turn} was cancelled but runs nowhere");
                        self.turns.place(*turn, None, None);
                    }
                    let superseded =
                        matches!(effects.get(index + 1), Some(Effect::Supersede { old, .. }) if old == turn);
                    assert!(superseded || self.leaving == Some(*turn), "{turn} was cancelled");
                }
                Effect::Supersede { old, by } => {
                    assert!(self.turns.get(*by).is_some(), "{by} is not there");
                    let live = self.turns.get(*old).filter(|l| !l.answering && l.at.is_none());
                    let program = live.expect("it waits, or was cancelled").program.clone();
                    if self.went.contains(old) {
                        // It went and is over in one call: nobody looks at its program's first turn later.
                        self.ran.extend(program);
                    }
                    self.turns.end(*old);
                }
                Effect::Paused { worker, tokens, .. } | Effect::Demote { worker, tokens, .. } => {
                    assert!(self.workers.contains_key(worker) && *tokens < 1 << 41, "{effect:?}");
                }
                Effect::Record(_) => {}
            }
        }
        if let Some(turn) = self.leaving.take() {
            self.turns.end(turn);
        }
    }

    /// The parts of the work fit the workers, and what is written of them.
    fn fits(&self, record: Option<&PrefillDecision>, worker: WorkerId, prefill: Option<WorkerId>) {
        let info = |id| &self.workers.get(&id).expect("a known worker").info;
        let role = info(worker).role;
        match (prefill, record) {
            (Some(prefill), Some(PrefillDecision::Remote(leg))) => {
                assert_eq!((leg.worker, role), (prefill, WorkerRole::Decode));
                assert_eq!(info(prefill).role, WorkerRole::Prefill);
                assert_eq!(info(prefill).kind, info(worker).kind);
            }
            (None, Some(PrefillDecision::Local { .. } | PrefillDecision::Alone)) => {
                assert_eq!((role, info(worker).kind), (WorkerRole::Decode, EngineKind::Vllm));
            }
            (None, None) => assert_eq!(role, WorkerRole::Both),
            (prefill, record) => panic!("{prefill:?} and {record:?}"),
        }
    }

    fn dispatched(&mut self, record: &Decision, prefill: Option<WorkerId>, attempt: u32) {
        let (turn, worker) = (record.turn, record.worker);
        let live = self.turns.get(turn).unwrap_or_else(|| panic!("{turn} is over"));
        let exchanging = self.sync_until.is_some_and(|until| until > self.now);
        assert!(!exchanging || !live.is_turn, "{turn} went while weights are exchanged");
        assert!(live.at.is_none() && !live.answering, "{turn} was dispatched twice");
        for worker in prefill.into_iter().chain([worker]) {
            let known = self.workers.get(&worker).expect("a known worker");
            assert!(known.ready, "{turn} went to {worker}, which is not ready");
            let running = self.turns.running_at(worker);
            if let Some(max) = known.info.max_running.filter(|_| live.is_turn) {
                assert!(running < max, "{worker} runs {running} of {max} and got {turn}");
            }
        }
        self.turns.place(turn, Some(worker), prefill);
        let live = self.turns.get_mut(turn).expect("it is live");
        live.attempts += 1;
        assert_eq!(live.attempts, attempt);
        assert!(attempt <= self.config.attempts_max);
        let named = |placement: Placement| match placement {
            Placement::Free(at) | Placement::Prefer(at) | Placement::Pin(at) => at == worker,
            Placement::Any => false,
        };
        live.stray = !record.admission.as_ref().is_some_and(|admission| named(admission.placement))
            && (!self.size.plain || record.reason == Reason::Repeated.as_str());
        self.went.push(turn);
    }

    /// What must hold after each call and is quick to see: the books agree, whoever waits has time left, and the
    /// scheduler wants to be called before that is over.
    pub(crate) fn settled(&mut self, core: &Scheduler) {
        let view = core.view();
        let (waiting, first) = self.turns.waiting();
        assert_eq!((view.turn_count(), view.held_count()), (self.turns.len(), waiting));
        assert!(waiting <= self.config.queue_max, "{waiting} wait");
        let next = core.next_deadline();
        if let Some((deadline, turn)) = first {
            assert!(deadline > self.now, "{turn} still waits");
            assert!(next.is_some_and(|next| next <= deadline), "{turn} may wait past {deadline:?}: {next:?}");
        }
        self.sync_until = self.sync_until.filter(|until| *until > self.now);
        if let Some(until) = self.sync_until {
            assert!(next.is_some_and(|next| next <= until), "nobody ends the exchange of weights: {next:?}");
        }
        for program in std::mem::take(&mut self.turns.quiet) {
            if self.ending.contains(&program) && self.turns.of_program(&program) == 0 {
                self.left(&view, program);
            }
        }
        if let Some(program) = self.said_over.take() {
            if self.turns.of_program(&program) == 0 {
                self.left(&view, program);
            } else {
                self.ending.insert(program);
            }
        }
        for turn in std::mem::take(&mut self.went) {
            self.is_a_stranger_at_first(&view, turn);
            self.respects_capacity(&view, turn);
        }
    }

    /// Nothing is left of a program that was said to be over once its last turn is.
    fn left(&mut self, view: &View<'_>, program: ProgramKey) {
        assert_eq!(view.program(&program), None, "its client said that it is over");
        self.ending.remove(&program);
        self.ran.remove(&program);
        self.tally("over when it was said");
    }

    /// A program that never ran under its key, or not since that was told to be over, takes nothing from who had the
    /// same id: not before it, not of another tenant.
    fn is_a_stranger_at_first(&mut self, view: &View<'_>, turn: TurnId) {
        let live = self.turns.get(turn).filter(|live| live.is_turn);
        let Some(program) = live.and_then(|live| live.program.clone()) else { return };
        if !self.ran.insert(program.clone()) {
            return;
        }
        // The table may be full of busy ones.
        let Some(seen) = view.program(&program) else { return };
        assert_eq!((seen.turns_finished, seen.known_tokens), (0, 0), "{program} is new");
        assert!(
            seen.turns_dispatched <= u64::from(self.turns.of_program(&program)),
            "{program} is new: {seen:?}"
        );
        self.tally("new under its key");
    }

    /// Running turns fit the device under `tandem` as it is set by default (I-TAN-1), twice the device where tiers below it
    /// keep what idles. Slack: one may run alone, an answer may grow beyond what was foreseen, and routing may have to send
    /// a turn where admission did not, as it does with a call that comes again while the first runs.
    fn respects_capacity(&mut self, view: &View<'_>, turn: TurnId) {
        let Some(live) = self.turns.get(turn) else { return };
        let Some(worker) = live.at else { return };
        let Some(device) = self.size.capacity(worker).filter(|_| self.config.admission.policy == "tandem")
        else {
            return;
        };
        if !live.is_turn || !self.size.plain && !self.next_turn.is_multiple_of(10) {
            return;
        }
        let Some(charged) = view.worker(worker).and_then(|seen| seen.charged) else { return };
        let tiers = self.workers.get(&worker).is_some_and(|known| known.info.kv_resident_tokens.is_some());
        let device = if tiers { 2 * device } else { device };
        let here = || self.turns.iter().filter(|(_, live)| live.is_turn && live.at == Some(worker));
        let slack: u64 = here()
            .map(|(_, live)| ANSWER_MAX + if live.stray { live.prompt_tokens + ANSWER_MAX } else { 0 })
            .sum();
        let count = here().count();
        assert!(
            count <= 1 || charged.running <= device + slack,
            "{worker} has {count} turns of {} tokens in {device}, slack {slack}",
            charged.running
        );
        self.tally("capacity looked at");
        if charged.running + self.size.prompts.1 > device {
            self.tally("filled to the brim");
        }
        if view.admission().stats.held > 0 {
            self.tally("others wait for room");
        }
    }

    /// The driver and the scheduler agree on what is live, and the scheduler's own invariants hold. Takes time in proportion
    /// to the whole state.
    pub(crate) fn agree(&self, core: &Scheduler) {
        let theirs = core.view().turns().map(|t| (t.turn, t.worker, t.prefill));
        let ours = self.turns.iter().map(|(id, live)| (id, live.at, live.prefill));
        assert!(theirs.eq(ours), "not the same turns run at the same workers");
        if let Err(violation) = invariants::check(core) {
            panic!("{violation}");
        }
    }
}
