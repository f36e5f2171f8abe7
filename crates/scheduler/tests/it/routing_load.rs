//! What routing policies are worth: eight modelled engines serve agent sessions in virtual time.
//!
//! - Sessions share a system text, grow by an answer and a tool's result each turn, pause while the tool runs, and
//!   end without a word. Each lane starts its next session when one has ended, so that the load stays.
//! - Load = working set / KV pool, the working set being what all live sessions hold beyond the shared text.
//! - The ideal is an unlimited cache that all workers share: of each turn only what nobody computed before.
//! - The match is what the modelled engines have, and what was sent there and is not computed yet, as an index with
//!   prediction would say.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use tandem_engine_model::{EngineConfig, EngineModel, Namespace, Output, Pass, Prompt, Request, RequestKey};
use tandem_routing::Rng;
use tandem_scheduler::{
    Effect, Input, Scheduler, SchedulerConfig, TurnArrival, TurnOutcome, TurnResult, invariants,
};
use tandem_types::{
    EngineKind, MatchSource, PrefixMatch, Time, TurnId, Usage, WorkerId, WorkerInfo, WorkerPrefix,
};

use crate::support::{arrival, program, worker};

const WORKERS: u32 = 8;
/// Tokens in a block.
const BLOCK: u32 = 256;
/// Blocks in each worker's pool.
const POOL: u32 = 512;
/// Blocks of the system text that all sessions share.
const SYSTEM: u32 = 16;
/// Blocks that a session holds of its own on average over its life, measured.
const OWN_MEAN: u32 = 32;
/// Sessions that each lane runs, one after the other.
const SESSIONS: u32 = 4;

/// One session: the context at each turn's prompt, the answers, and the pauses after them.
#[derive(Debug)]
struct Session {
    name: String,
    ids: Arc<[u64]>,
    turns: Vec<PlannedTurn>,
}

#[derive(Debug, Clone, Copy)]
struct PlannedTurn {
    prompt: u32,
    answer: u32,
    pause: Duration,
}

fn session(lane: u32, number: u32, seed: u64) -> Session {
    let name = format!("lane{lane}-{number}");
    let mut rng = Rng::child(seed, &name);
    let mut between = |low: u64, high: u64| low + rng.below(high - low);
    let mut context = SYSTEM * BLOCK + u32::try_from(between(500, 4000)).expect("small");
    let turns: Vec<PlannedTurn> = (0..between(6, 16))
        .map(|_| {
            let answer = u32::try_from(between(20, 60)).expect("small");
            let turn =
                PlannedTurn { prompt: context, answer, pause: Duration::from_millis(between(500, 6000)) };
            context += answer + u32::try_from(between(200, 2500)).expect("small");
            turn
        })
        .collect();
    let own = (u64::from(lane) << 32) | (u64::from(number) << 16);
    let ids = (0..=context / BLOCK)
        .map(|block| if block < SYSTEM { u64::from(block) } else { (1 << 60) | own | u64::from(block) })
        .collect();
    Session { name, ids, turns }
}

#[derive(Debug, Clone, Copy)]
struct Running {
    lane: u32,
    worker: WorkerId,
    computing: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    PassEnds(u32),
    Arrives(u32),
}

#[derive(Debug)]
struct Lane {
    number: u32,
    turn: usize,
    session: Session,
}

/// Tokens of all turns.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    prompt: u64,
    cached: u64,
    ideal: u64,
}

#[derive(Debug)]
struct World {
    now: Time,
    seed: u64,
    core: Scheduler,
    engines: Vec<(EngineModel, Pass, bool)>,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    stamps: u64,
    lanes: Vec<Lane>,
    running: BTreeMap<u64, Running>,
    turns: u64,
    totals: Totals,
    served: Vec<u64>,
    busy: Vec<Duration>,
    moves: u64,
    homes: BTreeMap<u32, WorkerId>,
}

/// What came of a run.
#[derive(Debug, Clone, Copy)]
struct Outcome {
    /// Part of the prompt tokens that came from a cache.
    hits: f64,
    /// The same with the ideal cache.
    ideal: f64,
    /// Turns at the busiest worker by the mean.
    most_turns: f64,
    /// Computing time of the busiest worker by the mean.
    most_busy: f64,
    /// Part of the turns that did not run where their session ran before.
    moved: f64,
}

impl World {
    fn new(policy: &str, lanes: u32, seed: u64) -> Self {
        let config = SchedulerConfig { policy: policy.to_owned(), ..SchedulerConfig::default() };
        let mut core = Scheduler::new(config, seed).expect("sound");
        let engine = EngineConfig { block_size: BLOCK, pool_blocks: POOL, ..EngineConfig::default() };
        for id in 0..WORKERS {
            let info = WorkerInfo {
                models: Vec::new(),
                kv_capacity_tokens: Some(u64::from(POOL * BLOCK)),
                ..WorkerInfo::new(EngineKind::Vllm)
            };
            core.handle(Time::ZERO, Input::WorkerUp { worker: worker(id), info }, &mut Vec::new());
        }
        let engines =
            (0..WORKERS).map(|_| (EngineModel::new(engine.clone()).expect("sound"), Pass::default(), false));
        let mut world = Self {
            now: Time::ZERO,
            seed,
            core,
            engines: engines.collect(),
            events: BinaryHeap::new(),
            stamps: 0,
            lanes: (0..lanes).map(|l| Lane { number: 0, turn: 0, session: session(l, 0, seed) }).collect(),
            running: BTreeMap::new(),
            turns: 0,
            totals: Totals::default(),
            served: vec![0; WORKERS as usize],
            busy: vec![Duration::ZERO; WORKERS as usize],
            moves: 0,
            homes: BTreeMap::new(),
        };
        let mut rng = Rng::child(seed, "starts");
        for lane in 0..lanes {
            world.at(Duration::from_millis(rng.below(30_000)), Event::Arrives(lane));
        }
        world
    }

    fn at(&mut self, after: Duration, event: Event) {
        self.stamps += 1;
        self.events.push(Reverse((self.now + after, self.stamps, event)));
    }

    fn run(mut self) -> Outcome {
        while let Some(Reverse((now, _, event))) = self.events.pop() {
            self.now = now;
            match event {
                Event::Arrives(lane) => self.arrive(lane),
                Event::PassEnds(engine) => self.pass_ends(engine),
            }
        }
        invariants::check(&self.core).expect("sound");
        let total = |count: u64| count as f64 / self.totals.prompt as f64;
        let mean = self.turns as f64 / f64::from(WORKERS);
        let busy: Vec<f64> = self.busy.iter().map(Duration::as_secs_f64).collect();
        let most_busy = busy.iter().copied().fold(0.0, f64::max);
        Outcome {
            hits: total(self.totals.cached),
            ideal: total(self.totals.ideal),
            most_turns: self.served.iter().copied().max().unwrap_or(0) as f64 / mean,
            most_busy: most_busy * f64::from(WORKERS) / busy.iter().sum::<f64>(),
            moved: self.moves as f64 / self.turns as f64,
        }
    }

    fn arrive(&mut self, lane: u32) {
        self.turns += 1;
        let id = self.turns;
        let Lane { turn, session, .. } = &self.lanes[lane as usize];
        let planned = session.turns[*turn];
        let request = Request {
            id: RequestKey(id),
            prompt: Prompt::Blocks { ids: Arc::clone(&session.ids), tokens: planned.prompt },
            output: Output::Seeded { seed: id, tokens: planned.answer },
            max_output_tokens: planned.answer,
            priority: 0,
            namespace: Namespace::default(),
            session: None,
            arrival: self.now,
        };
        let before = turn.checked_sub(1).map(|last| session.turns[last]);
        // The last token of an answer is never computed upon, and the last of a prompt always.
        let known = before.map_or(SYSTEM * BLOCK, |t| t.prompt + t.answer - 1).min(planned.prompt - 1);
        self.totals.ideal += if id == 1 { 0 } else { u64::from(known / BLOCK * BLOCK) };
        self.totals.prompt += u64::from(planned.prompt);
        let program = program(&session.name);
        let turn = TurnArrival {
            program: Some(program),
            input_tokens_estimate: u64::from(planned.prompt),
            prefix: self.find(&request),
            ..arrival(id)
        };
        let mut effects = Vec::new();
        self.core.handle(self.now, Input::TurnArrived(turn), &mut effects);
        let to = effects.iter().find_map(|effect| match effect {
            Effect::Dispatch { worker, .. } => Some(*worker),
            _ => None,
        });
        let worker = to.expect("nothing bounds the workers");
        let home = self.homes.insert(lane, worker);
        self.moves += u64::from(before.is_some() && home != Some(worker));
        self.served[worker.engine.0 as usize] += 1;
        self.running.insert(id, Running { lane, worker, computing: true });
        let (engine, _, stepping) = &mut self.engines[worker.engine.0 as usize];
        engine.submit(request).expect("fits");
        if !*stepping {
            self.step(worker.engine.0);
        }
    }

    /// What each worker has of the prompt, or is about to have.
    fn find(&self, request: &Request) -> PrefixMatch {
        let Prompt::Blocks { ids, tokens } = &request.prompt else { return PrefixMatch::unknown() };
        let blocks = tokens / BLOCK;
        let mut found = PrefixMatch { block_size: BLOCK, blocks, ..PrefixMatch::unknown() };
        for id in 0..WORKERS {
            let mut device = self.engines[id as usize].0.cached_prefix(request) / BLOCK;
            for running in self.running.values().filter(|r| r.computing && r.worker == worker(id)) {
                let Lane { turn, session, .. } = &self.lanes[running.lane as usize];
                let sent = session.turns[*turn].prompt / BLOCK;
                let same = session.ids.iter().zip(&**ids).take_while(|(a, b)| a == b).count();
                device = device.max(u32::try_from(same).expect("small").min(sent).min(blocks));
            }
            if device > 0 {
                let source = MatchSource::Exact;
                found.workers.push(WorkerPrefix {
                    worker: worker(id),
                    device,
                    host: device,
                    disk: device,
                    source,
                });
            }
        }
        found
    }

    fn step(&mut self, id: u32) {
        let (engine, pass, stepping) = &mut self.engines[id as usize];
        *stepping = engine.step(self.now, pass);
        if *stepping {
            let takes = pass.ends_at.since(self.now);
            self.busy[id as usize] += takes;
            self.at(takes, Event::PassEnds(id));
        }
    }

    fn pass_ends(&mut self, id: u32) {
        let outputs = self.engines[id as usize].1.outputs.clone();
        for output in outputs {
            let turn = TurnId(output.id.0);
            let mut effects = Vec::new();
            if output.index == 0 {
                self.totals.cached += u64::from(output.cached_tokens);
                self.core.handle(self.now, Input::FirstToken { turn }, &mut effects);
                if let Some(running) = self.running.get_mut(&turn.0) {
                    running.computing = false;
                }
            }
            if output.finish.is_some() {
                self.end(turn, &mut effects);
            }
        }
        self.step(id);
    }

    fn end(&mut self, turn: TurnId, effects: &mut Vec<Effect>) {
        let Running { lane: number, .. } = self.running.remove(&turn.0).expect("runs");
        let lane = &mut self.lanes[number as usize];
        let planned = lane.session.turns[lane.turn];
        let usage = Usage {
            input_tokens: u64::from(planned.prompt),
            output_tokens: u64::from(planned.answer),
            ..Usage::default()
        };
        lane.turn += 1;
        if lane.turn == lane.session.turns.len() {
            lane.number += 1;
            lane.turn = 0;
            lane.session = session(number, lane.number, self.seed);
        }
        let goes_on = lane.number < SESSIONS;
        let outcome = TurnOutcome { result: TurnResult::Finished, usage: Some(usage), tool_calls: 1 };
        self.core.handle(self.now, Input::TurnEnded { turn, outcome }, effects);
        if goes_on {
            self.at(planned.pause, Event::Arrives(number));
        }
    }
}

/// The mean over some seeds.
fn mean(policy: &str, load: f64, seeds: u64) -> Outcome {
    let lanes = (load * f64::from(WORKERS * (POOL - SYSTEM)) / f64::from(OWN_MEAN)).round() as u32;
    let runs: Vec<Outcome> = (1..=seeds).map(|seed| World::new(policy, lanes, seed).run()).collect();
    let mean = |of: fn(&Outcome) -> f64| runs.iter().map(of).sum::<f64>() / seeds as f64;
    let most = |of: fn(&Outcome) -> f64| runs.iter().map(of).fold(0.0, f64::max);
    Outcome {
        hits: mean(|o| o.hits),
        ideal: mean(|o| o.ideal),
        most_turns: most(|o| o.most_turns),
        most_busy: most(|o| o.most_busy),
        moved: mean(|o| o.moved),
    }
}

/// Both policies at a load: `kv` finds at least as much in caches and overloads nobody.
fn compare(load: f64, seeds: u64) -> Outcome {
    let (kv, affinity) = (mean("kv", load, seeds), mean("session_affinity", load, seeds));
    // A twentieth of a point: with room for all, both find everything but a few blocks.
    assert!(kv.hits >= affinity.hits - 0.0005, "{kv:?} {affinity:?}");
    assert!(kv.most_turns <= 1.3 && kv.most_busy <= 1.3, "{kv:?}");
    kv
}

#[test]
fn below_saturation_kv_is_within_a_point_of_an_unlimited_cache() {
    for load in [0.25, 0.5] {
        let kv = compare(load, 3);
        assert!(kv.hits >= kv.ideal - 0.01, "{kv:?}");
        assert!(kv.moved < 0.01, "{kv:?}");
    }
}

#[test]
fn at_the_cliff_kv_finds_no_less_than_session_affinity() {
    compare(0.75, 4);
    compare(1.0, 3);
}

#[test]
fn far_above_saturation_kv_finds_no_less_than_session_affinity() {
    compare(1.5, 2);
}
