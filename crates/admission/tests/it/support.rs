//! A policy and the little world around it.

use std::collections::BTreeMap;

use tandem_admission::{
    Action, AdmissionConfig, AdmissionPolicy, Arrival, Capacity, End, Event, Grant, HoldReason, Placement,
    by_name,
};
use tandem_types::{
    EngineId, GroupId, MatchSource, PrefixMatch, ProgramKey, SessionId, TenantId, Time, TurnId, Usage,
    WorkerId, WorkerPrefix,
};

pub(crate) const BLOCK: u32 = 10;

pub(crate) const fn w(engine: u32) -> WorkerId {
    WorkerId { engine: EngineId(engine), rank: 0 }
}

pub(crate) fn key(name: &str) -> ProgramKey {
    ProgramKey::root(TenantId::default(), SessionId::new(name).expect("an id"))
}

/// A match of so many tokens at each of these workers, and of none elsewhere.
pub(crate) fn lies(at: &[(WorkerId, u64)], prompt: u64) -> PrefixMatch {
    let blocks = |tokens: u64| u32::try_from(tokens).expect("small") / BLOCK;
    let worker = |(worker, tokens): &(WorkerId, u64)| WorkerPrefix {
        worker: *worker,
        device: blocks(*tokens),
        host: blocks(*tokens),
        disk: blocks(*tokens),
        source: MatchSource::Exact,
    };
    PrefixMatch {
        block_size: BLOCK,
        blocks: blocks(prompt),
        workers: at.iter().map(worker).collect(),
        ..PrefixMatch::unknown()
    }
}

/// What became of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Held(HoldReason),
    Runs(Grant),
}

/// Whom a turn stands for, beside its program.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Kin {
    pub(crate) tenant: Option<&'static str>,
    pub(crate) parent: Option<&'static str>,
    pub(crate) group: Option<&'static str>,
}

pub(crate) struct World {
    pub(crate) policy: Box<dyn AdmissionPolicy>,
    pub(crate) now: Time,
    pub(crate) fates: BTreeMap<u64, Fate>,
    pub(crate) paused: Vec<String>,
    /// Caches called not worth keeping: whose, where, how many tokens.
    pub(crate) demoted: Vec<(String, u32, u64)>,
    /// Workers that failed turns.
    failed: BTreeMap<u64, Vec<WorkerId>>,
    next: u64,
}

impl World {
    pub(crate) fn new(config: &AdmissionConfig, capacities: &[u64]) -> Self {
        let policy = by_name(config).expect("a policy");
        let mut world = Self {
            policy,
            now: Time::ZERO,
            fates: BTreeMap::new(),
            paused: Vec::new(),
            demoted: Vec::new(),
            failed: BTreeMap::new(),
            next: 0,
        };
        for (index, capacity) in (0..).zip(capacities) {
            let capacity = Some(Capacity::device(*capacity));
            world.tell(&Event::WorkerReady { worker: w(index), capacity });
        }
        world
    }

    pub(crate) fn tell(&mut self, event: &Event<'_>) {
        let mut out = Vec::new();
        self.policy.on(self.now, event, &mut out);
        self.take(out);
    }

    fn take(&mut self, out: Vec<Action>) {
        for action in out {
            match action {
                Action::Admit { turn, grant } => {
                    let before = self.fates.insert(turn.0, Fate::Runs(grant));
                    assert!(!matches!(before, Some(Fate::Runs(_))), "{turn} is admitted twice");
                    if let Some(worker) = grant.placement.worker() {
                        self.tell(&Event::Dispatched { turn, worker });
                    }
                }
                Action::Hold { turn, reason } => {
                    assert_eq!(self.fates.insert(turn.0, Fate::Held(reason)), None, "{turn} is held twice");
                }
                Action::Paused { program, .. } => self.paused.push(program.session.to_string()),
                Action::Demote { program, worker, tokens } => {
                    self.demoted.push((program.session.to_string(), worker.engine.0, tokens));
                }
            }
        }
        self.policy.check().expect("sound");
    }

    /// Moves the clock, stopping wherever the policy wants to be called.
    pub(crate) fn at(&mut self, seconds: f64) {
        let until = Time::ZERO + std::time::Duration::from_secs_f64(seconds);
        while let Some(deadline) = self.policy.next_deadline().filter(|deadline| *deadline <= until) {
            self.now = self.now.max(deadline);
            let mut out = Vec::new();
            self.policy.on_time(self.now, &mut out);
            self.take(out);
            let next = self.policy.next_deadline();
            assert!(next.is_none_or(|next| next > self.now), "a deadline that does not move");
        }
        self.now = until;
    }

    pub(crate) fn arrive(&mut self, program: &str, prompt: u64) -> u64 {
        self.arrive_with(program, prompt, &PrefixMatch::unknown())
    }

    pub(crate) fn arrive_with(&mut self, program: &str, prompt: u64, prefix: &PrefixMatch) -> u64 {
        self.arrive_of(&Kin::default(), program, prompt, prefix)
    }

    pub(crate) fn arrive_of(&mut self, kin: &Kin, program: &str, prompt: u64, prefix: &PrefixMatch) -> u64 {
        self.next += 1;
        let turn = TurnId(self.next);
        let mut program = key(program);
        if let Some(tenant) = kin.tenant {
            program.tenant = TenantId::new(tenant).expect("an id");
        }
        let parent = kin.parent.map(key);
        let group = kin.group.map(|group| GroupId::new(group).expect("an id"));
        self.tell(&Event::Arrived(Arrival {
            turn,
            program: Some(&program),
            parent: parent.as_ref(),
            group: group.as_ref(),
            prompt_tokens: prompt,
            prefix,
            last: false,
            waited: std::time::Duration::ZERO,
        }));
        assert!(self.fates.contains_key(&turn.0), "every arrival is answered at once");
        turn.0
    }

    /// The turn ends with a context of so many tokens, and tools at work.
    pub(crate) fn end(&mut self, turn: u64, tokens: u64) {
        self.end_as(turn, Some(tokens), true);
    }

    pub(crate) fn end_as(&mut self, turn: u64, tokens: Option<u64>, tools: bool) {
        let usage =
            tokens.map(|tokens| Usage { input_tokens: tokens - 1, output_tokens: 1, ..Usage::default() });
        self.tell(&Event::Ended { turn: TurnId(turn), end: End { usage, tools } });
    }

    /// As [`World::end`], and the engine says how much of the prompt it found cached.
    pub(crate) fn end_counted(&mut self, turn: u64, tokens: u64, cached: u64) {
        let usage = Usage {
            input_tokens: tokens - 1,
            output_tokens: 1,
            cached_tokens: Some(cached),
            ..Usage::default()
        };
        self.tell(&Event::Ended { turn: TurnId(turn), end: End { usage: Some(usage), tools: true } });
    }

    /// A program that has run one turn and waits for its tools with this context.
    pub(crate) fn acting(&mut self, program: &str, tokens: u64) {
        let turn = self.arrive(program, tokens);
        assert!(self.runs(turn), "{program} does not run: {:?}", self.fates.get(&turn));
        self.end(turn, tokens);
    }

    /// The turn's dispatch failed at a worker, and it is to be sent again.
    pub(crate) fn fail(&mut self, turn: u64, at: WorkerId) {
        let on = self.failed.entry(turn).or_default();
        if !on.contains(&at) {
            on.push(at);
        }
        let on = on.clone();
        assert!(matches!(self.fates.remove(&turn), Some(Fate::Runs(_))), "{turn} does not run");
        self.tell(&Event::Undispatched { turn: TurnId(turn), again: Some(&on) });
        assert!(self.fates.contains_key(&turn), "who asks again is answered at once");
    }

    pub(crate) fn abort(&mut self, turn: u64) {
        self.tell(&Event::Aborted { turn: TurnId(turn) });
    }

    pub(crate) fn runs(&self, turn: u64) -> bool {
        matches!(self.fates.get(&turn), Some(Fate::Runs(_)))
    }

    pub(crate) fn grant(&self, turn: u64) -> Grant {
        match self.fates.get(&turn) {
            Some(Fate::Runs(grant)) => *grant,
            other => panic!("{turn} does not run: {other:?}"),
        }
    }

    pub(crate) fn worker(&self, turn: u64) -> WorkerId {
        match self.grant(turn).placement {
            Placement::Pin(worker) | Placement::Prefer(worker) | Placement::Free(worker) => worker,
            Placement::Any => panic!("{turn} goes anywhere"),
        }
    }

    pub(crate) fn held(&self, turn: u64) -> HoldReason {
        match self.fates.get(&turn) {
            Some(Fate::Held(reason)) => *reason,
            other => panic!("{turn} is not held: {other:?}"),
        }
    }

    /// Tokens charged to a worker: running and idle.
    pub(crate) fn charged(&self, worker: u32) -> (u64, u64) {
        self.policy.charged(w(worker))
    }
}
