//! Random loads against naive oracles.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use tandem_engine_model::{
    EngineConfig, EngineModel, Flavor, LinkConfig, MemoryStore, Output, Pass, PreemptionOrder, Prompt,
    Refusal, Request, RequestKey, SchedulingPolicy, TierConfig, TiersConfig, WritePolicy,
};
use tandem_types::{KvEvent, Tier, Time};

use crate::support::{config, request, run};

const BLOCK: usize = 4;

/// A prefix cache as one would write it without regard to cost: blocks in a list, least recently used first,
/// each with its age and the text from the start to its end (none: empty). Requests run one at a time.
struct NaiveCache {
    lru: Vec<(usize, Option<Vec<u32>>)>,
    stored: usize,
}

impl NaiveCache {
    fn new(capacity: u32) -> Self {
        Self { lru: vec![(0, None); capacity as usize], stored: 0 }
    }

    /// Place of the oldest copy of a block.
    fn find(&self, text: &[u32]) -> Option<usize> {
        (0..self.lru.len()).filter(|i| self.lru[*i].1.as_deref() == Some(text)).min_by_key(|i| self.lru[*i].0)
    }

    /// Runs a request over `text` (prompt and computed answer); returns the cached prompt tokens.
    fn run(&mut self, text: &[u32], prompt: usize) -> usize {
        let mut held = Vec::new();
        while (held.len() + 1) * BLOCK < prompt
            && let Some(place) = self.find(&text[..(held.len() + 1) * BLOCK])
        {
            held.push(self.lru.remove(place));
        }
        let hit = held.len();
        for n in hit + 1..=text.len().div_ceil(BLOCK) {
            self.lru.remove(0);
            self.stored += 1;
            held.push((self.stored, text.get(..n * BLOCK).map(<[u32]>::to_vec)));
        }
        self.lru.extend(held.into_iter().rev());
        hit * BLOCK
    }

    fn cached(&self, text: &[u32]) -> usize {
        (1..).take_while(|n| n * BLOCK < text.len() && self.find(&text[..n * BLOCK]).is_some()).count()
            * BLOCK
    }
}

fn texts() -> impl Strategy<Value = Vec<(Vec<u32>, u32)>> {
    // Few different tokens, so that prompts share prefixes of all lengths.
    let prompt = prop::collection::vec(prop_oneof![9 => Just(0_u32), 1 => Just(1)], 1..36);
    prop::collection::vec((prompt, 1_u32..9), 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// One request at a time: reuse and residency are those of the naive cache (I-BLK-2, I-BLK-3).
    #[test]
    fn reuse_is_that_of_a_naive_lru_cache(texts in texts(), capacity in 11_u32..24) {
        let mut engine = EngineModel::new(EngineConfig { emit_events: false, ..config(capacity) }).expect("usable");
        let mut naive = NaiveCache::new(capacity);
        for (id, (prompt, output)) in texts.iter().enumerate() {
            let answer: Arc<[u32]> = vec![0; *output as usize].into();
            let ask = Request {
                output: Output::Tokens(Arc::clone(&answer)),
                max_output_tokens: *output,
                ..request(id as u64, prompt.as_slice().into(), 1)
            };
            let text: Vec<u32> = prompt.iter().chain(answer.iter().skip(1)).copied().collect();
            prop_assert_eq!(run(&mut engine, ask) as usize, naive.run(&text, prompt.len()));
            for (probe, _) in &texts {
                let ask = request(u64::MAX, probe.as_slice().into(), 1);
                prop_assert_eq!(engine.cached_prefix(&ask) as usize, naive.cached(probe));
            }
        }
    }
}

/// What a consumer of events believes is resident: copies by key, as vLLM's semantics ask.
#[derive(Default)]
struct Mirror {
    copies: BTreeMap<u64, u32>,
    parents: BTreeMap<u64, Option<u64>>,
    /// What lies below the device.
    lower: BTreeSet<(Tier, u64)>,
    /// Whether a cleared cache means those tiers, too.
    clears_all: bool,
}

impl Mirror {
    fn apply(&mut self, events: &[KvEvent]) {
        for event in events {
            match event {
                KvEvent::Stored(stored) if stored.tier != Tier::Device => {
                    assert_eq!(stored.tokens.len(), stored.block_hashes.len() * BLOCK);
                    if stored.echo {
                        continue;
                    }
                    for hash in &stored.block_hashes {
                        assert!(self.lower.insert((stored.tier, *hash)), "stored twice");
                    }
                }
                KvEvent::Removed(removed) if removed.tier != Tier::Device => {
                    for hash in &removed.block_hashes {
                        assert!(self.lower.remove(&(removed.tier, *hash)), "only what was stored is removed");
                    }
                }
                KvEvent::Stored(stored) => {
                    assert_eq!(stored.tokens.len(), stored.block_hashes.len() * BLOCK);
                    let mut parent = stored.parent;
                    for hash in &stored.block_hashes {
                        *self.copies.entry(*hash).or_default() += 1;
                        assert_eq!(
                            *self.parents.entry(*hash).or_insert(parent),
                            parent,
                            "one parent per hash"
                        );
                        parent = Some(*hash);
                    }
                }
                KvEvent::Removed(removed) => {
                    for hash in &removed.block_hashes {
                        let copies = self.copies.get_mut(hash).expect("only what was stored is removed");
                        *copies = copies.checked_sub(1).expect("as often as it was stored");
                    }
                }
                KvEvent::Cleared => {
                    self.copies.clear();
                    if self.clears_all {
                        self.lower.clear();
                    }
                }
            }
        }
        self.copies.retain(|_, copies| *copies > 0);
        for hash in self.copies.keys() {
            if let Some(parent) = self.parents.get(hash).copied().flatten() {
                assert!(self.copies.contains_key(&parent), "a block outlives its prefix");
            }
        }
    }

    fn total(&self) -> u32 {
        self.copies.values().sum()
    }
}

#[derive(Debug, Clone)]
enum Act {
    Submit { prompt: Vec<u32>, output: u32, max: u32, priority: i32 },
    Step,
    Abort { nth: usize },
    Reset,
}

fn act() -> impl Strategy<Value = Act> {
    let prompt = prop::collection::vec(prop_oneof![12 => Just(0_u32), 1 => Just(1)], 1..70);
    prop_oneof![
        5 => (prompt, 1_u32..30, 1_u32..30, 0..3).prop_map(|(prompt, output, max, priority)| Act::Submit {
            prompt,
            output,
            max,
            priority
        }),
        12 => Just(Act::Step),
        1 => (0_usize..8).prop_map(|nth| Act::Abort { nth }),
        1 => Just(Act::Reset),
    ]
}

/// None at all, or any of them; a block takes from nothing to 8 ms, which is nearly a prefill.
fn tiers() -> impl Strategy<Value = TiersConfig> {
    let speed = prop_oneof![Just(f64::INFINITY), Just(4.0), Just(0.5)];
    let tier = || prop::option::of(4_u64..120);
    let any = (tier(), tier(), any::<bool>(), any::<bool>(), speed).prop_map(
        |(host, disk, shared, back, speed)| {
            let link = LinkConfig { read_gb_s: speed, write_gb_s: speed };
            let tier = |tokens: u64| TierConfig { tokens, link };
            TiersConfig {
                host: host.map(tier),
                disk: disk.map(tier),
                shared: shared.then_some(link),
                policy: if back { WritePolicy::Back } else { WritePolicy::Through },
                token_bytes: 1_000_000,
            }
        },
    );
    prop_oneof![1 => Just(TiersConfig::default()), 2 => any]
}

fn set_up() -> impl Strategy<Value = EngineConfig> {
    (
        (12_u32..40, 1_u32..9, 1_u32..40),
        (
            any::<bool>(),
            any::<bool>(),
            any::<bool>(),
            any::<bool>(),
            any::<bool>(),
            prop::bool::weighted(0.8),
        ),
        tiers(),
    )
        .prop_map(
            |((pool, seqs, budget), (sglang, priority, fifo, chunked, reserve, caching), tiers)| {
                EngineConfig {
                    tiers,
                    flavor: if sglang { Flavor::Sglang } else { Flavor::Vllm },
                    max_num_seqs: seqs,
                    max_num_batched_tokens: budget,
                    prefix_caching: caching,
                    chunked_prefill: chunked,
                    reserve_full_prompt: reserve,
                    policy: if priority { SchedulingPolicy::Priority } else { SchedulingPolicy::Fcfs },
                    preemption: if fifo { PreemptionOrder::Fifo } else { PreemptionOrder::Lifo },
                    ..config(pool)
                }
            },
        )
}

/// One request's life as a client sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Life {
    expected: u32,
    got: u32,
    ended: bool,
}

struct Bench {
    engine: EngineModel,
    lives: Vec<Life>,
    mirror: Mirror,
    refused: u64,
    aborted: u64,
    prefilled: u64,
    log: Vec<Pass>,
    now: Time,
    store: MemoryStore,
}

impl Bench {
    fn new(set_up: EngineConfig) -> Self {
        Self {
            mirror: Mirror { clears_all: set_up.flavor == Flavor::Sglang, ..Mirror::default() },
            engine: EngineModel::new(set_up).expect("usable"),
            lives: Vec::new(),
            now: Time::ZERO,
            store: MemoryStore::new(20, 1.0),
            refused: 0,
            aborted: 0,
            prefilled: 0,
            log: Vec::new(),
        }
    }

    fn act(&mut self, act: &Act) {
        match act {
            Act::Submit { prompt, output, max, priority } => {
                let id = self.lives.len() as u64;
                let ask = Request {
                    // Half of the answers spell what prompts spell, so that answers are shared, too.
                    output: match id % 2 {
                        0 => Output::Tokens(vec![0; *output as usize].into()),
                        _ => Output::Seeded { seed: 7, tokens: *output },
                    },
                    max_output_tokens: *max,
                    priority: *priority,
                    ..request(id, prompt.as_slice().into(), 1)
                };
                let result = self.engine.submit(ask);
                if let Err(reason) = result {
                    assert!(matches!(reason, Refusal::ExceedsPool { .. } | Refusal::ExceedsBudget { .. }));
                    self.refused += 1;
                }
                self.lives.push(Life { expected: *output.min(max), got: 0, ended: result.is_err() });
            }
            Act::Step => {
                self.step();
            }
            Act::Abort { nth } => {
                let open: Vec<usize> = (0..self.lives.len()).filter(|i| !self.lives[*i].ended).collect();
                if let Some(i) = open.get(*nth) {
                    assert!(self.engine.abort(RequestKey(*i as u64)));
                    self.lives[*i].ended = true;
                    self.aborted += 1;
                }
            }
            Act::Reset => {
                let idle = self.engine.load().used_blocks == 0;
                assert_eq!(self.engine.reset_prefix_cache(), idle);
            }
        }
    }

    fn step(&mut self) -> bool {
        let mut pass = Pass::default();
        // Transfers end in their own time.
        while !self.engine.step_with(self.now, &mut self.store, &mut pass) {
            let Some(wake) = self.engine.wakes_at() else {
                assert!(self.lives.iter().all(|life| life.ended), "nothing goes on");
                return false;
            };
            assert!(wake > self.now || self.now == Time::ZERO, "time goes on");
            self.now = wake;
        }
        self.now = self.now.max(pass.starts_at);
        let config = self.engine.config();
        let (budget, sglang) = (config.max_num_batched_tokens, config.flavor == Flavor::Sglang);
        let idle = pass.prefill_tokens + pass.decode_requests == 0;
        assert!(!idle || !pass.events.is_empty(), "a pass that does nothing");
        if sglang {
            assert!(pass.prefill_tokens <= budget);
            assert!(pass.prefill_tokens == 0 || pass.decode_requests == 0);
        } else {
            assert!(pass.prefill_tokens + pass.decode_requests <= budget);
        }
        for output in &pass.outputs {
            let life = &mut self.lives[output.id.0 as usize];
            assert!(!life.ended, "an answer after the end");
            assert_eq!(output.index, life.got);
            life.got += 1;
            life.ended = output.finish.is_some();
            assert_eq!(life.ended, life.got == life.expected);
        }
        self.prefilled += u64::from(pass.prefill_tokens);
        self.mirror.apply(&pass.events);
        self.log.push(pass);
        self.check_load();
        true
    }

    fn check_load(&mut self) {
        let load = self.engine.load();
        let config = self.engine.config();
        assert!(load.used_blocks + load.cached_blocks <= load.total_blocks);
        assert!(load.running <= config.max_num_seqs);
        let open = self.lives.iter().filter(|life| !life.ended).count() as u32;
        assert_eq!(load.running + load.waiting, open);
        assert!(
            load.context_tokens
                <= u64::from(load.used_blocks) * BLOCK as u64 * u64::from(load.running.max(1))
        );
        assert!(load.host_blocks <= load.host_total_blocks && load.disk_blocks <= load.disk_total_blocks);
        assert_eq!(load.prefill_tokens, self.prefilled);
        if config.prefix_caching {
            assert!(self.mirror.total() >= load.cached_blocks);
            assert!(self.mirror.total() <= load.used_blocks + load.cached_blocks);
        } else {
            assert_eq!((self.mirror.total(), load.cached_blocks), (0, 0));
        }
        if config.flavor == Flavor::Sglang {
            assert!(self.mirror.copies.values().all(|copies| *copies == 1));
        }
    }

    fn finish(&mut self) {
        let mut passes = 0;
        while self.step() {
            passes += 1;
            assert!(passes < 20_000, "no end");
        }
        assert!(self.lives.iter().all(|life| life.ended));
        let events = self.engine.take_events();
        self.mirror.apply(&events);
        let load = self.engine.load();
        assert_eq!((load.used_blocks, load.context_tokens, load.waiting_tokens), (0, 0, 0));
        assert_eq!(
            load.cached_blocks,
            self.mirror.total(),
            "nothing is held: events tell all that is cached"
        );
        let lower = |tier| self.mirror.lower.iter().filter(|(of, _)| *of == tier).count() as u32;
        assert_eq!((load.host_blocks, load.disk_blocks), (lower(Tier::Host), lower(Tier::Disk)));
        let ends = load.finished_stop + load.finished_length + load.aborted + load.refused;
        assert_eq!(ends, self.lives.len() as u64);
        assert_eq!((load.aborted, load.refused), (self.aborted, self.refused));
        assert_eq!(load.generation_tokens, self.lives.iter().map(|life| u64::from(life.got)).sum::<u64>());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Any load on any set-up: limits hold, everything ends once, blocks are conserved, events tell the
    /// truth, and a second run is identical: I-TIR-1, I-TIR-3, I-EAD-3, I-MDL-1, I-MDL-2, I-MDL-3, I-VLL-1, I-VLL-2, I-SGL-1, I-SGL-2,
    /// I-SGL-3, I-SGL-4, I-BLK-1.
    #[test]
    fn any_load_is_conserved_and_repeatable(set_up in set_up(), acts in prop::collection::vec(act(), 1..120)) {
        let mut benches = [Bench::new(set_up.clone()), Bench::new(set_up)];
        for bench in &mut benches {
            acts.iter().for_each(|act| bench.act(act));
            bench.finish();
        }
        let [one, two] = benches;
        prop_assert_eq!(one.log, two.log);
        prop_assert_eq!(one.engine.load(), two.engine.load());
    }

    /// Block ids that break their contract (not prefix-chained) give odd reuse, never a crash or a hang.
    #[test]
    fn unchained_block_ids_do_no_harm(
        set_up in set_up(),
        asks in prop::collection::vec((prop::collection::vec(0_u64..6, 0..12), 1_u32..40, 1_u32..9), 1..30),
    ) {
        let mut engine = EngineModel::new(set_up).expect("usable");
        for (id, (ids, tokens, output)) in asks.into_iter().enumerate() {
            let prompt = Prompt::Blocks { ids: ids.into(), tokens };
            let ask = Request { prompt, ..request(id as u64, [0].into(), output) };
            // Refusals are as good as answers here.
            let _ = engine.submit(ask);
            if id % 3 == 0 {
                engine.step(Time::ZERO, &mut Pass::default());
            }
        }
        let (mut now, mut pass) = (Time::ZERO, Pass::default());
        loop {
            if engine.step(now, &mut pass) {
                now = pass.ends_at;
            } else if let Some(wake) = engine.wakes_at() {
                now = wake;
            } else {
                break;
            }
        }
        let load = engine.load();
        prop_assert_eq!((load.running, load.waiting, load.used_blocks), (0, 0, 0));
    }
}
