//! What the driver makes up.

use std::time::Duration;

use tandem_scheduler::replay::Step;
use tandem_scheduler::{
    DispatchFailure, Effect, FailureKind, Input, Remembered, Scheduler, TurnArrival, TurnOutcome, TurnResult,
};
use tandem_types::{
    AgentId, EngineId, EngineKind, LoadReport, PrefixMatch, ProgramKey, RequestClass, RetryKey, TenantId,
    Time, TurnId, Usage, WorkerId, WorkerInfo, WorkerPrefix, WorkerRole,
};

use super::checks::ANSWER_MAX;
use super::turns::Live;
use super::{Chaos, Known};
use crate::support::{arrival, program};

const MODELS: [&str; 3] = ["big", "small", "tiny"];
const BLOCK: u32 = 16;

impl Chaos {
    /// One call, carried out and checked.
    pub(crate) fn call(&mut self, core: &mut Scheduler, effects: &mut Vec<Effect>) {
        effects.clear();
        self.step(core.next_deadline()).play(core, effects);
        self.carry_out(effects);
        self.settled(core);
    }

    /// The next call, at a time that now and then is late for a deadline, by the time that the machine slept or less.
    pub(crate) fn step(&mut self, deadline: Option<Time>) -> Step {
        let before = self.now;
        self.now = self.now + self.up_to(self.size.step);
        if self.one_in(self.size.jump_every) {
            self.now = self.now + self.up_to(self.size.jump_max);
            self.tally("woke up later");
        }
        if deadline.is_some_and(|deadline| deadline <= self.now) && !self.one_in(3) {
            return Step { at: self.now, input: None };
        }
        let mut at = self.now;
        if self.one_in(200) {
            // A clock that runs backwards: the scheduler goes by the latest time that it was told.
            self.now = before;
            at = before - self.up_to(self.size.jump_max);
        }
        let input = self.planned.take().unwrap_or_else(|| self.input());
        self.hear(&input);
        Step { at, input: Some(input) }
    }

    fn up_to(&mut self, most: Duration) -> Duration {
        Duration::from_micros(self.rng.below(u64::try_from(most.as_micros()).expect("short")))
    }

    fn input(&mut self) -> Input {
        if self.one_in(40)
            && let Some(said) = self.said.take()
        {
            self.tally("said again");
            return said;
        }
        match self.rng.below(22) {
            20 if self.one_in(3) => self.by_an_operator(),
            20 | 21 => Input::Progress { turn: self.some_turn(), generated: self.rng.below(ANSWER_MAX) },
            0 => self.about_a_worker(),
            1 => Input::WorkerLoad { worker: self.worker_id(), load: self.load() },
            2 if self.one_in(4) => Input::SessionEnd { program: self.program() },
            2 if self.one_in(2) => {
                let (turn, prefix) = (self.some_turn(), self.prefix(3_000));
                Input::PrefixFound { turn, prefix }
            }
            3..=9 => Input::TurnArrived(self.arrival()),
            _ => self.about_a_turn(),
        }
    }

    /// What the driver knows from what it says.
    fn hear(&mut self, input: &Input) {
        let mut again = true;
        match input {
            Input::ClientGone { turn } => {
                if let Some(state) = self.turns.get(*turn).map(Live::state) {
                    self.tally(state);
                }
                self.leaving = Some(*turn);
            }
            Input::FirstToken { turn } => {
                if let Some(at) = self.turns.get(*turn).and_then(|live| live.at) {
                    self.turns.place(*turn, Some(at), None);
                    self.turns.get_mut(*turn).expect("live").answering = true;
                }
            }
            Input::TurnStarted { turn } => {
                if let Some(live) = self.turns.get_mut(*turn).filter(|live| live.at.is_some()) {
                    live.started = true;
                }
            }
            Input::PrefillDone { turn } => {
                if let Some(at) = self.turns.get(*turn).map(|live| live.at) {
                    self.turns.place(*turn, at, None);
                }
            }
            Input::TurnFailed { turn, .. } | Input::PrefillFailed { turn, .. } => {
                let running = self.turns.get(*turn).is_some_and(|live| live.at.is_some());
                self.turns.place(*turn, None, None);
                self.asking = running.then_some(*turn);
                again = false;
            }
            Input::TurnEnded { turn, .. } => {
                if self.turns.get(*turn).is_some_and(|live| live.at.is_some()) {
                    self.turns.end(*turn);
                }
            }
            Input::SessionEnd { program } => {
                self.said_over = Some(program.clone());
                self.over.push_front(program.clone());
                self.over.truncate(8);
            }
            Input::WorkerUp { worker, info } => {
                self.workers.insert(*worker, Known { info: info.clone(), ready: true });
            }
            Input::WorkerDown { worker }
            | Input::WorkerDraining { worker }
            | Input::WorkerRemoved { worker } => {
                self.workers.entry(*worker).and_modify(|known| known.ready = false);
            }
            // It is no stranger from here on.
            Input::ProgramRemembered(remembered) => {
                self.ran.insert(remembered.program.clone());
            }
            Input::SyncBegin { at_most } => {
                self.sync_until = Some(self.now + *at_most);
                again = false;
            }
            Input::SyncEnd => self.sync_until = None,
            Input::TurnArrived(_) => again = false,
            Input::WorkerExpected { .. }
            | Input::WorkerLoad { .. }
            | Input::PrefixFound { .. }
            | Input::Progress { .. }
            | Input::ProgramPause { .. }
            | Input::ProgramResume { .. } => {}
        }
        if again && self.one_in(8) {
            self.said = Some(input.clone());
        }
    }

    fn by_an_operator(&mut self) -> Input {
        if self.one_in(self.size.sync_every) {
            return Input::SyncBegin { at_most: self.up_to(Duration::from_secs(4)) };
        }
        match self.rng.below(6) {
            0 if self.one_in(2) => Input::SyncEnd,
            1 | 2 => Input::ProgramPause { program: self.program() },
            5 => Input::ProgramRemembered(self.remembered()),
            _ => Input::ProgramResume { program: self.program() },
        }
    }

    /// What a store tells late: of programs that are live, over, or never heard of, at workers that may be gone.
    fn remembered(&mut self) -> Remembered {
        let ran = self.rng.below(50);
        Remembered {
            program: self.program(),
            parent: self.one_in(4).then(|| self.program()),
            group: None,
            last_worker: self.one_in(2).then(|| self.worker_id()),
            last_prefill: None,
            turns_dispatched: ran,
            turns_finished: ran,
            known_tokens: self.rng.below(3_000),
            ended_with_tools: self.one_in(2),
            last_active: self.now - self.up_to(Duration::from_secs(600)),
            stopped: self.one_in(8),
        }
    }

    fn worker_id(&mut self) -> WorkerId {
        let engine = u32::try_from(self.rng.below(self.size.engines)).expect("small");
        WorkerId { engine: EngineId(engine), rank: u32::try_from(self.rng.below(2)).expect("small") }
    }

    fn load(&mut self) -> LoadReport {
        LoadReport {
            running: self.rng.below(10),
            waiting: self.rng.below(3),
            kv_capacity_tokens: (self.size.steady.is_none() && self.one_in(4))
                .then(|| 2000 + self.rng.below(20_000)),
            ..LoadReport::default()
        }
    }

    fn about_a_worker(&mut self) -> Input {
        let worker = self.worker_id();
        match self.rng.below(10) {
            0 => Input::WorkerExpected { worker },
            1 => Input::WorkerDraining { worker },
            2 => Input::WorkerDown { worker },
            3 => Input::WorkerRemoved { worker },
            4 => {
                // Another one under its id, while what ran there has not ended.
                if self.turns.running_at(worker) > 0 {
                    self.tally("replaced under its id");
                }
                self.planned = Some(Input::WorkerUp { worker, info: self.info(worker) });
                Input::WorkerRemoved { worker }
            }
            _ => Input::WorkerUp { worker, info: self.info(worker) },
        }
    }

    fn info(&mut self, worker: WorkerId) -> WorkerInfo {
        let plain = self.size.plain;
        let models =
            MODELS.iter().filter(|_| self.rng.below(2) == 0 || plain).map(|&m| m.to_owned()).collect();
        let bounded = !self.one_in(4) && !plain;
        let max_running = bounded.then(|| u32::try_from(self.rng.below(5)).expect("small"));
        let (role, kind) = self.role(worker);
        let drawn = (!self.one_in(4)).then(|| 2000 + self.rng.below(20_000));
        let kv_capacity_tokens = self.size.capacity(worker).or(drawn);
        let tiers =
            if self.size.steady.is_some() { worker.engine.0.is_multiple_of(3) } else { self.one_in(3) };
        WorkerInfo {
            role,
            models,
            kv_capacity_tokens,
            kv_resident_tokens: kv_capacity_tokens.filter(|_| tiers).map(|tokens| tokens * 4),
            max_running,
            ..WorkerInfo::new(kind)
        }
    }

    pub(super) const fn role(&self, worker: WorkerId) -> (WorkerRole, EngineKind) {
        match worker.engine.0 {
            1 if self.split => (WorkerRole::Prefill, EngineKind::Vllm),
            2 if self.split => (WorkerRole::Decode, EngineKind::Vllm),
            3 if self.split => (WorkerRole::Prefill, EngineKind::Sglang),
            4 if self.split => (WorkerRole::Decode, EngineKind::Sglang),
            _ => (WorkerRole::Both, EngineKind::Vllm),
        }
    }

    /// A program: one of those seen most, any, or one that was said to be over, by whoever it was or another tenant.
    fn program(&mut self) -> ProgramKey {
        let at = self.rng.index(self.over.len());
        if let Some(over) = self.over.get(at).cloned().filter(|_| self.rng.below(12) == 0) {
            let tenant =
                if self.one_in(3) { TenantId::new("other").expect("valid") } else { over.tenant.clone() };
            return ProgramKey { tenant, ..over };
        }
        let of = if self.one_in(4) { self.size.busy_sessions } else { self.size.sessions };
        let mut key = program(&format!("s{}", self.rng.below(of)));
        if self.one_in(3) {
            key.agent = AgentId::new(&format!("a{}", self.rng.below(3))).ok();
        }
        if self.one_in(5) {
            key.tenant = TenantId::new("other").expect("valid");
        }
        key
    }

    /// Where a prompt's KV lies, as an index says that knows of workers that are gone.
    fn prefix(&mut self, tokens: u64) -> PrefixMatch {
        if self.one_in(2) {
            return PrefixMatch::unknown();
        }
        let blocks = u32::try_from(tokens).expect("small") / BLOCK;
        let mut ids: Vec<WorkerId> = (0..self.rng.below(4)).map(|_| self.worker_id()).collect();
        ids.sort_unstable();
        ids.dedup();
        let workers = ids.into_iter().map(|worker| {
            let device = u32::try_from(self.rng.below(u64::from(blocks) + 1)).expect("small");
            let host = device + u32::try_from(self.rng.below(u64::from(blocks - device) + 1)).expect("small");
            WorkerPrefix { worker, device, host, disk: host, source: tandem_types::MatchSource::Exact }
        });
        let workers = workers.collect();
        let head = (!self.one_in(3)).then(|| self.rng.below(5));
        PrefixMatch { block_size: BLOCK, blocks, head, workers, ..PrefixMatch::unknown() }
    }

    fn arrival(&mut self) -> TurnArrival {
        self.next_turn += 1;
        // Now and then the id of a turn that is under way: must be ignored.
        let again = self.some_turn();
        let duplicate = self.one_in(50) && self.turns.get(again).is_some_and(|l| l.at.is_some());
        let turn = if duplicate { again } else { TurnId(self.next_turn) };
        let identified = !self.one_in(16);
        let (shorter, longer) = self.size.prompts;
        let input_tokens_estimate = if self.one_in(2) { shorter } else { longer };
        let arrival = TurnArrival {
            turn,
            program: identified.then(|| self.program()),
            parent: self.one_in(3).then(|| self.program()),
            session_final: self.one_in(12),
            class: if self.one_in(6) { RequestClass::Title } else { RequestClass::Turn },
            retry_key: (!self.one_in(3)).then(|| RetryKey(u128::from(self.rng.below(2)))),
            model: (!self.one_in(5)).then(|| MODELS[self.rng.index(3)].to_owned()),
            input_tokens_estimate,
            prefix: self.prefix(input_tokens_estimate),
            hold_max: self.up_to(Duration::from_secs(8)),
            ..arrival(0)
        };
        self.expect(&arrival);
        arrival
    }

    /// Something must be said of the turn, unless its id is taken.
    pub(super) fn expect(&mut self, arrival: &TurnArrival) {
        let turn = arrival.turn;
        if self.turns.get(turn).is_some() {
            return;
        }
        self.asking = Some(turn);
        // Whoever comes again is not over.
        if let Some(program) = arrival.program.as_ref().filter(|_| arrival.class.is_turn()) {
            self.ending.remove(program);
        }
        let (is_turn, deadline) = (arrival.class.is_turn(), self.now + arrival.hold_max);
        let live = Live::new(arrival.program.clone(), is_turn, deadline, arrival.input_tokens_estimate);
        self.turns.insert(turn, live);
    }

    /// A live turn, or one that is over, or one that never was.
    fn some_turn(&mut self) -> TurnId {
        match self.turns.draw(&mut self.rng) {
            Some(id) if !self.one_in(15) => id,
            Some(_) | None => TurnId(self.rng.below(self.next_turn + 5)),
        }
    }

    fn about_a_turn(&mut self) -> Input {
        let turn = self.some_turn();
        let answering = self.turns.get(turn).is_some_and(|live| live.answering);
        match self.rng.below(12) {
            0 => Input::ClientGone { turn },
            1 | 2 => Input::FirstToken { turn },
            3 => Input::TurnStarted { turn },
            10 | 11 => Input::PrefillDone { turn },
            4 | 5 if !answering => {
                const KINDS: [FailureKind; 4] = [
                    FailureKind::Connect,
                    FailureKind::ServerError,
                    FailureKind::Overloaded,
                    FailureKind::Disconnected,
                ];
                let failure = DispatchFailure { kind: KINDS[self.rng.index(4)], retryable: !self.one_in(5) };
                // Now and then of a turn that has no prefill worker.
                if self.one_in(3) {
                    Input::PrefillFailed { turn, failure }
                } else {
                    Input::TurnFailed { turn, failure }
                }
            }
            _ => {
                const RESULTS: [TurnResult; 4] =
                    [TurnResult::Finished, TurnResult::Finished, TurnResult::Refused, TurnResult::Failed];
                let input_tokens = self.turns.get(turn).map_or(9, |live| live.prompt_tokens);
                let output_tokens = self.rng.below(ANSWER_MAX);
                let usage = self.one_in(2).then(|| Usage { input_tokens, output_tokens, ..Usage::default() });
                let result = RESULTS[self.rng.index(4)];
                Input::TurnEnded { turn, outcome: TurnOutcome { result, usage, tool_calls: 1 } }
            }
        }
    }
}
