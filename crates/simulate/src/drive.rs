//! The event loop.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use tandem_scheduler::{Effect, Input, Scheduler, TurnArrival, TurnOutcome, TurnResult};
use tandem_types::{
    EngineKind, ProgramKey, RequestClass, RouteWishes, Time, TurnId, Usage, WorkerId, WorkerInfo,
};
use tandem_workload::{Trigger, Workload};

use crate::clients::{Ask, Clients, Order, skipped};
use crate::config::{Arrivals, SimConfig, SimError};
use crate::fleet::{Fleet, Next, Work, worker};
use crate::measure::{Done, Measure};
use crate::report::Report;
use crate::waiting::Waiting;

/// Tokens of an answer between two pieces of news of it.
const PROGRESS_TOKENS: u32 = 256;

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// The fleet's clock.
    pub now: Time,
    /// Requests answered so far.
    pub completed: u64,
}

/// What happens next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A worker's pass is over.
    PassEnds(u32),
    /// A copy from a lower tier arrives at a worker.
    Wakes(u32),
    /// A client sends a request.
    Send(Ask),
    /// A lane takes its next play.
    Lane(u32),
    /// A recorded play begins.
    Play(u32),
}

/// A turn under way.
#[derive(Debug)]
struct Live {
    ask: Ask,
    program: ProgramKey,
    work: Work,
    /// When the client sent it first.
    sent: Time,
    held_since: Option<Time>,
    held: Option<Duration>,
    worker: Option<u32>,
    /// The worker that computes its prompt for that one.
    prefill: Option<u32>,
    first: Option<Time>,
    second: Option<Time>,
    cached: Option<u32>,
    /// Tokens that it found cached when it came back from preemptions.
    cached_again: u64,
    ideal: u32,
}

/// Simulates one point. `progress` is called now and then.
///
/// # Errors
/// [`SimError`].
pub fn run(
    workload: &Workload,
    config: &SimConfig,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, SimError> {
    config.check()?;
    if workload.nodes.is_empty() {
        return Err(SimError::Empty);
    }
    let mut sim = Sim::new(workload, config)?;
    sim.begin();
    let mut last = 0;
    while sim.step() {
        if sim.completed >= last + 1000 {
            last = sim.completed;
            progress(Progress { now: sim.now, completed: sim.completed });
        }
    }
    Ok(sim.end())
}

struct Sim<'a> {
    config: &'a SimConfig,
    now: Time,
    queue: BinaryHeap<Reverse<(Time, u64, Event)>>,
    /// Makes events of one time come in the order in which they were made.
    age: u64,
    clients: Clients<'a>,
    order: Order,
    scheduler: Scheduler,
    effects: Vec<Effect>,
    fleet: Fleet,
    turns: BTreeMap<TurnId, Live>,
    next_turn: u64,
    waiting: Waiting,
    measure: Measure,
    completed: u64,
    due: Vec<(Time, Ask)>,
    /// What each program computed last, while it may have to be told to engines that it is not worth keeping.
    last_work: BTreeMap<ProgramKey, Work>,
    /// Workers that may begin a pass when all that happens at this time has happened.
    ready: BTreeSet<u32>,
    stop_at: Option<Time>,
    /// Requests that are sent and not answered.
    open: usize,
    /// When requests that come back after a refusal were sent first.
    first_sent: BTreeMap<Ask, Time>,
}

impl<'a> Sim<'a> {
    fn new(workload: &'a Workload, config: &'a SimConfig) -> Result<Self, SimError> {
        let from = Time::ZERO + config.warmup;
        let until = config.duration.map(|duration| from + duration);
        let clients = Clients::new(workload, config.fresh_answers);
        Ok(Self {
            order: Order::new(clients.plan.plays(), config.order, config.seed),
            config,
            now: Time::ZERO,
            queue: BinaryHeap::new(),
            age: 0,
            clients,
            scheduler: Scheduler::new(config.scheduler.clone(), config.seed)?,
            effects: Vec::new(),
            fleet: Fleet::new(config)?,
            turns: BTreeMap::new(),
            next_turn: 0,
            waiting: Waiting::new(config.relook),
            measure: Measure::new(config, from, until),
            completed: 0,
            due: Vec::new(),
            last_work: BTreeMap::new(),
            ready: BTreeSet::new(),
            stop_at: until,
            open: 0,
            first_sent: BTreeMap::new(),
        })
    }

    fn at(&mut self, time: Time, event: Event) {
        self.age += 1;
        self.queue.push(Reverse((time, self.age, event)));
    }

    fn begin(&mut self) {
        let engine = &self.config.engine;
        let device = u64::from(engine.pool_blocks) * u64::from(engine.block_size);
        let info = WorkerInfo {
            kind: EngineKind::Vllm,
            models: Vec::new(),
            demotes: self.config.demote,
            kv_capacity_tokens: Some(device),
            kv_resident_tokens: Some(engine.tiers.resident(device)),
            ..WorkerInfo::new(EngineKind::Vllm)
        };
        for index in 0..self.config.workers {
            let info = WorkerInfo { role: self.fleet.role(index), ..info.clone() };
            self.tell(Input::WorkerUp { worker: worker(index), info });
        }
        match self.config.arrivals {
            Arrivals::Lanes { lanes } => {
                for lane in 0..lanes {
                    self.at(Time::ZERO, Event::Lane(lane));
                }
            }
            Arrivals::Recorded { speedup } => {
                let starts: Vec<Duration> =
                    self.clients.plan.workload.plays.iter().map(|play| play.starts).collect();
                for (index, starts) in (0u32..).zip(starts) {
                    self.at(Time::ZERO + starts.div_f64(speedup), Event::Play(index));
                }
            }
        }
    }

    /// Does what happens next; false at the end of the run.
    fn step(&mut self) -> bool {
        let now = self.now;
        if self.queue.peek().is_none_or(|Reverse((time, _, _))| *time > now) {
            while let Some(index) = self.ready.pop_first() {
                self.start(index);
            }
        }
        let next = self.queue.peek().map(|Reverse((time, _, _))| *time);
        // While nothing is asked for, admission's regular looks would cut a pause into pieces.
        let deadline = self.scheduler.next_deadline().filter(|_| self.open > 0);
        let look = self.waiting.next_look();
        let Some(mut time) = [next, deadline, look].into_iter().flatten().min() else { return false };
        if self.stop_at.is_some_and(|stop| time >= stop) {
            self.now = self.stop_at.unwrap_or(time);
            return false;
        }
        if self.open == 0 {
            let skip = skipped(self.now, time, self.config.idle_cap);
            if !skip.is_zero() {
                // All clocks move on together.
                let events = std::mem::take(&mut self.queue).into_vec();
                self.queue = events
                    .into_iter()
                    .map(|Reverse((at, age, event))| Reverse((at - skip, age, event)))
                    .collect();
                self.fleet.skip(skip);
                time = time - skip;
            }
        }
        self.move_to(time);
        let nothing_else = next.is_none_or(|next| next > time);
        if nothing_else && deadline.is_some_and(|deadline| deadline <= time) {
            self.scheduler.handle_timeout(time, &mut self.effects);
            self.carry_out();
            return true;
        }
        if nothing_else && look.is_some_and(|look| look <= time) {
            self.look();
            return true;
        }
        let Some(Reverse((_, _, event))) = self.queue.pop() else { return false };
        match event {
            Event::PassEnds(index) => self.pass_ends(index),
            Event::Wakes(index) => {
                self.fleet.woken(index);
                self.ready.insert(index);
            }
            Event::Send(ask) => self.send(ask),
            Event::Lane(lane) => self.lane(lane),
            Event::Play(play) => self.begin_play(play as usize, 0, 0),
        }
        true
    }

    /// Time passes: workers that stand still while turns are held are noted.
    fn move_to(&mut self, time: Time) {
        if !self.waiting.is_empty() {
            self.measure.stood_still(self.fleet.still(), self.now, time);
        }
        self.now = self.now.max(time);
    }

    /// What is cached of prompts that wait is looked up anew, as a live gateway does.
    fn look(&mut self) {
        for turn in self.waiting.round(self.now) {
            let Some(live) = self.turns.get(&turn) else { continue };
            let prefix = self.fleet.prefix(&live.work, self.now);
            if self.waiting.is_news(turn, &prefix) {
                self.tell(Input::PrefixFound { turn, prefix });
            }
        }
    }

    fn tell(&mut self, input: Input) {
        self.scheduler.handle(self.now, input, &mut self.effects);
        self.carry_out();
    }

    fn lane(&mut self, lane: u32) {
        // Without a bound in time every play runs once.
        if self.config.duration.is_none() && self.order.drawn() >= self.clients.plan.plays() {
            return;
        }
        let (play, round) = self.order.draw();
        self.begin_play(play, lane, round);
    }

    fn begin_play(&mut self, play: usize, lane: u32, round: u32) {
        let mut due = std::mem::take(&mut self.due);
        self.clients.begin(play, lane, round, self.now, &mut due);
        self.schedule(due);
    }

    fn schedule(&mut self, mut due: Vec<(Time, Ask)>) {
        for (time, ask) in due.drain(..) {
            self.at(time, Event::Send(ask));
        }
        self.due = due;
    }

    fn send(&mut self, ask: Ask) {
        let Some(node) = self.clients.plan.node(ask.node) else { return };
        let Some(program) = self.clients.program(ask, node.session) else { return };
        let Some(ids) = self.clients.prompt(ask, self.config.engine.block_size) else { return };
        let ideal = self.measure.ideal(&ids, node.input_tokens, self.config.engine.block_size);
        self.measure.sent(&ids, node.input_tokens, self.now);
        let live = Live {
            ask,
            program,
            work: Work::new(node, ids),
            sent: self.first_sent.remove(&ask).unwrap_or(self.now),
            held_since: None,
            held: None,
            worker: None,
            prefill: None,
            first: None,
            second: None,
            cached: None,
            cached_again: 0,
            ideal,
        };
        self.open += 1;
        self.arrive(live);
    }

    /// A turn comes to the scheduler: for the first time, or again after a refusal.
    fn arrive(&mut self, live: Live) {
        let Some(node) = self.clients.plan.node(live.ask.node) else { return };
        let parent = self.clients.plan.workload.session(node.session).and_then(|session| session.parent);
        let group =
            self.clients.plan.workload.session(node.session).and_then(|session| session.group.clone());
        self.next_turn += 1;
        let turn = TurnId(self.next_turn);
        let arrival = TurnArrival {
            turn,
            program: Some(live.program.clone()),
            parent: parent.and_then(|parent| self.clients.program(live.ask, parent)),
            group: group.and_then(|group| tandem_types::GroupId::new(&group).ok()),
            session_final: self.config.announce_end && self.clients.plan.is_last(live.ask.node),
            class: RequestClass::Turn,
            retry_key: None,
            model: None,
            input_tokens_estimate: u64::from(node.input_tokens),
            prefix: self.fleet.prefix(&live.work, self.now),
            wishes: RouteWishes::none(),
            max_output_tokens: Some(u64::from(node.output_tokens)),
            hold_max: self.config.hold_max,
        };
        self.turns.insert(turn, live);
        self.tell(Input::TurnArrived(arrival));
    }

    fn carry_out(&mut self) {
        let mut effects = std::mem::take(&mut self.effects);
        for effect in effects.drain(..) {
            match effect {
                Effect::Dispatch { turn, worker, prefill, priority, .. } => {
                    self.dispatch(turn, worker, prefill, priority);
                }
                Effect::Hold { turn, .. } => {
                    if let Some(live) = self.turns.get_mut(&turn) {
                        live.held_since = Some(self.now);
                        self.waiting.comes(turn, self.fleet.prefix(&live.work, self.now), self.now);
                    }
                }
                Effect::Reject { turn, retry_after, .. } => self.refused(turn, retry_after),
                Effect::Cancel { .. }
                | Effect::Supersede { .. }
                | Effect::Record(_)
                | Effect::Paused { .. } => {}
                Effect::Demote { program, worker, .. } => {
                    if let Some(work) = self.last_work.get(&program).filter(|_| self.config.demote) {
                        self.fleet.demote(worker.engine.0, work, self.now);
                    }
                }
            }
        }
        // What was done above asked for nothing more: passes only end in events of their own.
        self.effects = effects;
    }

    fn let_go(&mut self, turn: TurnId) {
        if let Some(live) = self.turns.get_mut(&turn)
            && let Some(since) = live.held_since.take()
        {
            live.held = Some(live.held.unwrap_or_default() + self.now.since(since));
            self.waiting.leaves(turn);
        }
    }

    fn dispatch(&mut self, turn: TurnId, to: WorkerId, prefill: Option<WorkerId>, priority: i32) {
        self.let_go(turn);
        let Some(live) = self.turns.get_mut(&turn) else { return };
        // What the client says of it stands, as it does with a live gateway.
        if live.work.priority == 0 {
            live.work.priority = priority;
        }
        let ask = live.ask;
        let (answers, computes) = (to.engine.0, prefill.map(|worker| worker.engine.0));
        (live.worker, live.prefill) = (Some(answers), computes);
        let taken = match computes {
            Some(index) => self.fleet.submit_prefill(index, turn.0, &live.work, self.now),
            None => self.fleet.submit(answers, turn.0, &live.work, self.now),
        };
        if !taken {
            // Longer than the engine takes: it is answered with an error, and the client gives up on it.
            self.finish(turn, None);
            return;
        }
        let mut due = std::mem::take(&mut self.due);
        self.clients.came(ask, Trigger::Dispatch, self.now, &mut due);
        self.schedule(due);
        self.ready.insert(computes.unwrap_or(answers));
    }

    fn refused(&mut self, turn: TurnId, retry_after: Duration) {
        self.let_go(turn);
        self.measure.refusals += 1;
        let Some(live) = self.turns.remove(&turn) else { return };
        // The client's clock goes on; it asks again when it was told to.
        self.first_sent.insert(live.ask, live.sent);
        self.at(self.now + retry_after, Event::Send(live.ask));
        self.open -= 1;
    }

    fn start(&mut self, index: u32) {
        match self.fleet.start(index, self.now) {
            Some(Next::PassEnds(at)) => self.at(at, Event::PassEnds(index)),
            Some(Next::Wakes(at)) => self.at(at, Event::Wakes(index)),
            None => {}
        }
    }

    fn pass_ends(&mut self, index: u32) {
        let pass = self.fleet.pass(index, self.now);
        for admission in pass.admitted.iter().filter(|admission| admission.resumed) {
            if let Some(live) = self.turns.get_mut(&TurnId(admission.id.0)) {
                live.cached_again += u64::from(admission.cached_tokens);
            }
        }
        for output in &pass.outputs {
            let turn = TurnId(output.id.0);
            if output.index <= 1
                && let Some(live) = self.turns.get_mut(&turn)
            {
                let computed = live.prefill == Some(index);
                if output.index == 1 {
                    live.second = Some(self.now);
                } else if computed {
                    live.cached = Some(output.cached_tokens);
                    self.fleet.computed(turn.0);
                    self.hand_over(turn);
                    continue;
                } else {
                    live.first = Some(self.now);
                    live.cached.get_or_insert(output.cached_tokens);
                    self.fleet.computed(turn.0);
                    self.tell(Input::TurnStarted { turn });
                    self.tell(Input::FirstToken { turn });
                }
            }
            if output.index > 0 && output.index % PROGRESS_TOKENS == 0 {
                self.tell(Input::Progress { turn, generated: u64::from(output.index) });
            }
            if output.finish.is_some() {
                self.finish(turn, Some(output.index + 1));
            }
        }
        self.fleet.pass_done(index, pass);
        self.ready.insert(index);
    }

    /// A turn's prompt is computed: its KV goes to the worker that answers.
    fn hand_over(&mut self, turn: TurnId) {
        let Some(live) = self.turns.get_mut(&turn) else { return };
        live.prefill = None;
        let Some(index) = live.worker else { return };
        if !self.fleet.submit_decode(index, turn.0, &live.work, self.now) {
            self.finish(turn, None);
            return;
        }
        self.tell(Input::PrefillDone { turn });
        self.ready.insert(index);
    }

    fn finish(&mut self, turn: TurnId, output: Option<u32>) {
        let Some(live) = self.turns.remove(&turn) else { return };
        let Some(node) = self.clients.plan.node(live.ask.node) else { return };
        self.open -= 1;
        self.completed += 1;
        let usage = output.map(|output| Usage {
            input_tokens: u64::from(node.input_tokens),
            output_tokens: u64::from(output),
            cached_tokens: live.cached.map(u64::from),
            reasoning_tokens: None,
        });
        if let (Some(output), Some(first)) = (output, live.first) {
            self.measure.done(&Done {
                program: &live.program,
                sent: live.sent,
                first,
                second: live.second,
                last: self.now,
                held: live.held,
                input: node.input_tokens,
                output,
                cached: live.cached.unwrap_or(0),
                cached_again: live.cached_again,
                ideal: live.ideal,
            });
            self.measure.computed(&live.work.ids);
        }
        if self.config.demote {
            self.last_work.insert(live.program.clone(), live.work.clone());
        }
        let outcome = TurnOutcome {
            result: if output.is_some() { TurnResult::Finished } else { TurnResult::Refused },
            usage,
            tool_calls: u32::from(node.tools),
        };
        let mut due = std::mem::take(&mut self.due);
        self.clients.came(live.ask, Trigger::Completion, self.now, &mut due);
        self.schedule(due);
        if let Some(ended) = self.clients.over(live.ask) {
            self.measure.plays += u64::from(self.measure.measures(self.now));
            if matches!(self.config.arrivals, Arrivals::Lanes { .. }) {
                self.at(self.now, Event::Lane(ended.lane));
            }
        }
        self.tell(Input::TurnEnded { turn, outcome });
        if self.clients.plan.is_last(live.ask.node) {
            self.last_work.remove(&live.program);
        }
    }

    fn end(mut self) -> Report {
        for live in self.turns.values() {
            self.measure.unserved(&live.program, live.sent, self.now);
        }
        let unserved = self.turns.len() as u64;
        let view = self.scheduler.view();
        let admission = view.admission().stats;
        let admission_patience = view.workers().find_map(|worker| worker.charged?.patience);
        Report {
            unserved_requests: unserved,
            forced_admissions: admission.forced,
            pauses: admission.paused,
            resumes: admission.resumed,
            moves: admission.moved,
            admission_patience,
            preemptions: self.fleet.preemptions(),
            committed_prefill_tokens: self.fleet.prefill_tokens(),
            worker_turns: self.fleet.turns(),
            simulated_requests: self.completed,
            ..self.measure.report(self.now, self.config.workers)
        }
    }
}
