//! The closed loop.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use anyhow::Result;
use tandem_scheduler::{Effect, Input, Scheduler, TurnArrival, TurnOutcome, TurnResult};
use tandem_types::{
    EngineKind, LoadReport, RequestClass, RouteWishes, Time, TurnId, Usage, WorkerId, WorkerInfo,
};

use crate::fleet::{DECODE, Fleet, id};
use crate::options::Point;
use crate::sessions::{Maker, Session};
use crate::{Kind, Probe};

/// Tokens of an answer between two pieces of news of it.
const PROGRESS: u64 = 256;
/// Between two load reports of a worker.
const REPORTS: Duration = Duration::from_secs(5);
/// One client in so many leaves during its turn.
const LEAVE: u64 = 200;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Ask(usize),
    First { slot: usize, turn: u64 },
    Progress { slot: usize, turn: u64, generated: u64 },
    End { slot: usize, turn: u64 },
    Gone { slot: usize, turn: u64 },
    Load(u32),
}

/// The loop.
pub struct Run<'a, P> {
    pub probe: P,
    pub scheduler: Scheduler,
    point: &'a Point,
    now: Time,
    queue: BinaryHeap<Reverse<(Time, u64, Event)>>,
    age: u64,
    turns: u64,
    /// Which session each live turn belongs to.
    owners: std::collections::HashMap<u64, usize>,
    maker: Maker,
    sessions: Vec<Session>,
    fleet: Fleet,
    effects: Vec<Effect>,
    done: Vec<Done>,
    /// Turns answered.
    pub answered: u64,
}

/// What the loop has to do about an effect.
#[derive(Debug, Clone, Copy)]
enum Done {
    Dispatched(u64, u32),
    Refused(u64, Duration),
}

impl<'a, P: Probe> Run<'a, P> {
    /// A fleet whose sessions are about to begin.
    ///
    /// # Errors
    /// Settings that make no sense.
    pub fn new(point: &'a Point, probe: P) -> Result<Self> {
        let options = &point.options;
        let mut maker = Maker::new(options.seed, options.heads, options.tenants);
        let sessions: Vec<Session> = (0..options.sessions).map(|_| maker.session(true)).collect();
        let own = |session: &Session| session.prompt - maker.head_tokens(session.head);
        let all: u64 = sessions.iter().map(own).sum();
        let capacity = (all as f64 / f64::from(options.workers) / point.fill) as u64;
        let mut run = Self {
            probe,
            scheduler: point.scheduler()?,
            point,
            now: Time::ZERO,
            queue: BinaryHeap::new(),
            age: 0,
            turns: 0,
            owners: std::collections::HashMap::new(),
            maker,
            sessions,
            fleet: Fleet::new(options.workers, capacity, options.heads),
            effects: Vec::new(),
            done: Vec::new(),
            answered: 0,
        };
        for worker in 0..options.workers {
            run.probe.hand_over(|| {
                let info = WorkerInfo {
                    models: vec!["model".to_owned()],
                    kv_capacity_tokens: Some(capacity),
                    max_running: Some(options.max_running),
                    ..WorkerInfo::new(EngineKind::Vllm)
                };
                run.scheduler.handle(
                    Time::ZERO,
                    Input::WorkerUp { worker: id(worker), info },
                    &mut run.effects,
                );
            });
            let first = REPORTS * worker / options.workers;
            run.at(Time::ZERO + first, Event::Load(worker));
        }
        let spread = Duration::from_secs(options.warmup) / 2;
        for slot in 0..run.sessions.len() {
            // As behind a gateway that was started anew: engines have the sessions' caches.
            run.fleet.settle((slot % options.workers as usize) as u32, slot, &mut run.sessions);
            let begins = spread.mul_f64(run.maker.rng.fraction());
            run.at(Time::ZERO + begins, Event::Ask(slot));
        }
        Ok(run)
    }

    fn at(&mut self, time: Time, event: Event) {
        self.age += 1;
        self.queue.push(Reverse((time, self.age, event)));
    }

    /// Goes on until so many virtual seconds after the start.
    pub fn until(&mut self, seconds: u64) {
        let end = Time::ZERO + Duration::from_secs(seconds);
        loop {
            let scheduler = &self.scheduler;
            let deadline = self.probe.call(Kind::Deadline, || scheduler.next_deadline());
            let next = self.queue.peek().map_or(end, |Reverse((time, _, _))| *time);
            if let Some(deadline) = deadline.filter(|at| *at <= next && *at < end) {
                self.now = self.now.max(deadline);
                let (now, scheduler, effects) = (self.now, &mut self.scheduler, &mut self.effects);
                self.probe.call(Kind::Timeout, || scheduler.handle_timeout(now, effects));
                self.carry_out();
                continue;
            }
            if next >= end {
                return;
            }
            let Some(Reverse((time, _, event))) = self.queue.pop() else { return };
            self.now = self.now.max(time);
            self.event(event);
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Ask(slot) => self.ask(slot),
            Event::First { slot, turn } if self.is_live(slot, turn) => {
                self.tell(Kind::FirstToken, |turn| Input::FirstToken { turn }, turn);
            }
            Event::Progress { slot, turn, generated } if self.is_live(slot, turn) => {
                self.tell(Kind::Progress, |turn| Input::Progress { turn, generated }, turn);
            }
            Event::End { slot, turn } if self.is_live(slot, turn) => self.end(slot, turn),
            Event::Gone { slot, turn } if self.is_live(slot, turn) => self.gone(slot, turn),
            Event::Load(worker) => {
                let load =
                    LoadReport { running: 0, waiting: 0, kv_usage: Some(0.5), kv_capacity_tokens: None };
                self.tell(Kind::Load, |_| Input::WorkerLoad { worker: id(worker), load }, 0);
                self.at(self.now + REPORTS, Event::Load(worker));
            }
            // Of a turn that is over.
            Event::First { .. } | Event::Progress { .. } | Event::End { .. } | Event::Gone { .. } => {}
        }
    }

    fn is_live(&self, slot: usize, turn: u64) -> bool {
        self.sessions[slot].turn == Some(turn)
    }

    fn tell(&mut self, kind: Kind, input: impl FnOnce(TurnId) -> Input, turn: u64) {
        let input = self.probe.hand_over(|| input(TurnId(turn)));
        let (now, scheduler, effects) = (self.now, &mut self.scheduler, &mut self.effects);
        self.probe.call(kind, || scheduler.handle(now, input, effects));
        self.carry_out();
    }

    fn ask(&mut self, slot: usize) {
        self.turns += 1;
        let turn = self.turns;
        self.sessions[slot].turn = Some(turn);
        self.sessions[slot].answer = self.maker.answer();
        self.owners.insert(turn, slot);
        let (session, maker, fleet) = (self.sessions[slot], &self.maker, &self.fleet);
        let hold_max = self.point.hold_max();
        let input = self.probe.hand_over(|| {
            Input::TurnArrived(TurnArrival {
                turn: TurnId(turn),
                program: Some(maker.key(session.number, session.parent)),
                parent: session.parent.map(|parent| maker.key(parent, None)),
                group: None,
                session_final: session.announces && session.turns <= 1,
                class: RequestClass::Turn,
                retry_key: None,
                model: Some("model".to_owned()),
                input_tokens_estimate: session.prompt,
                prefix: fleet.prefix(&session),
                wishes: RouteWishes::none(),
                max_output_tokens: None,
                hold_max,
            })
        });
        let (now, scheduler, effects) = (self.now, &mut self.scheduler, &mut self.effects);
        self.probe.call(Kind::Arrival, || scheduler.handle(now, input, effects));
        if self.maker.rng.below(LEAVE) == 0 {
            let leaves = Duration::from_millis(self.maker.rng.below(20_000));
            self.at(self.now + leaves, Event::Gone { slot, turn });
        }
        self.carry_out();
    }

    fn carry_out(&mut self) {
        let (effects, done) = (&mut self.effects, &mut self.done);
        for effect in effects.iter() {
            match effect {
                Effect::Dispatch { turn, worker: WorkerId { engine, .. }, .. } => {
                    done.push(Done::Dispatched(turn.0, engine.0));
                }
                Effect::Reject { turn, retry_after, .. } => done.push(Done::Refused(turn.0, *retry_after)),
                _ => {}
            }
        }
        self.probe.hand_over(|| effects.clear());
        while let Some(done) = self.done.pop() {
            match done {
                Done::Dispatched(turn, worker) => self.dispatched(turn, worker),
                Done::Refused(turn, after) => {
                    if let Some(slot) = self.owners.remove(&turn) {
                        self.sessions[slot].turn = None;
                        self.at(self.now + after, Event::Ask(slot));
                    }
                }
            }
        }
    }

    fn dispatched(&mut self, turn: u64, worker: u32) {
        let Some(&slot) = self.owners.get(&turn) else { return };
        let session = &mut self.sessions[slot];
        let head = self.maker.head_tokens(session.head);
        let first = self.fleet.begin(self.now, worker, slot, session, head);
        let answer = session.answer;
        self.at(first, Event::First { slot, turn });
        for generated in (PROGRESS..answer).step_by(PROGRESS as usize) {
            self.at(first + DECODE * generated as u32, Event::Progress { slot, turn, generated });
        }
        self.at(first + DECODE * answer as u32, Event::End { slot, turn });
    }

    fn end(&mut self, slot: usize, turn: u64) {
        self.owners.remove(&turn);
        let session = &mut self.sessions[slot];
        let (input_tokens, output_tokens) = (session.prompt, session.answer);
        session.turn = None;
        session.turns = session.turns.saturating_sub(1);
        let over = session.turns == 0;
        let tokens = input_tokens + output_tokens;
        session.prompt = tokens + self.maker.step();
        self.fleet.end(slot, &mut self.sessions, tokens);
        let usage = Some(Usage { input_tokens, output_tokens, ..Usage::default() });
        let tool_calls = u32::from(self.maker.rng.below(10) > 0);
        let outcome = TurnOutcome { result: TurnResult::Finished, usage, tool_calls };
        self.answered += 1;
        if over {
            // Another one takes its place; its cache stays until it is pushed out.
            self.fleet.forget(slot, &mut self.sessions[slot]);
            self.sessions[slot] = self.maker.session(false);
        }
        let pause = self.maker.pause();
        self.at(self.now + pause, Event::Ask(slot));
        self.tell(Kind::End, |turn| Input::TurnEnded { turn, outcome }, turn);
    }

    fn gone(&mut self, slot: usize, turn: u64) {
        self.owners.remove(&turn);
        let session = &mut self.sessions[slot];
        session.turn = None;
        if session.running {
            self.fleet.forget(slot, session);
        }
        let pause = self.maker.pause();
        self.at(self.now + pause, Event::Ask(slot));
        self.tell(Kind::Gone, |turn| Input::ClientGone { turn }, turn);
    }
}
