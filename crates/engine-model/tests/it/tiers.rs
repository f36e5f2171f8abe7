//! Tiers below the device.

use tandem_engine_model::{
    EngineConfig, EngineModel, Flavor, LinkConfig, MemoryStore, Pass, TierConfig, TiersConfig, WritePolicy,
};
use tandem_types::{KvEvent, Tier, Time};

use crate::support::{config, request, tokens};

/// A block of 4 tokens is 4 MB, which 1 GB/s moves in 4 ms.
const LINK: LinkConfig = LinkConfig { read_gb_s: 1.0, write_gb_s: 1.0 };
const MS: u64 = 1_000_000;

fn tier(blocks: u64) -> Option<TierConfig> {
    Some(TierConfig { tokens: 4 * blocks, link: LINK })
}

fn engine(flavor: Flavor, device: u32, tiers: TiersConfig) -> EngineModel {
    let tiers = TiersConfig { token_bytes: 1_000_000, ..tiers };
    EngineModel::new(EngineConfig { flavor, tiers, ..config(device) }).expect("usable set-up")
}

/// What a run of the engine's time showed.
#[derive(Default)]
struct Seen {
    now: Time,
    cached: u32,
    /// Tokens from host, disk, store.
    loaded: (u32, u32, u32),
    /// (tier, echo, ids) of stores, in order.
    stored: Vec<(Tier, bool, Vec<u64>)>,
    removed: Vec<(Tier, Vec<u64>)>,
    first_token: Time,
}

/// Runs one request, and the transfers after it, to the end.
fn run(
    engine: &mut EngineModel,
    store: &mut MemoryStore,
    now: Time,
    id: u64,
    first: u32,
    count: u32,
) -> Seen {
    engine.submit(request(id, tokens(first, count), 1)).expect("accepted");
    let mut seen = Seen { now, ..Seen::default() };
    let mut pass = Pass::default();
    loop {
        if !engine.step_with(seen.now, store, &mut pass) {
            let Some(wake) = engine.wakes_at() else { return seen };
            assert!(wake > seen.now, "time goes on");
            seen.now = wake;
            continue;
        }
        seen.now = pass.ends_at;
        for admission in &pass.admitted {
            seen.cached = admission.cached_tokens;
            seen.loaded = (admission.loaded.host, admission.loaded.disk, admission.loaded.shared);
        }
        if !pass.outputs.is_empty() {
            seen.first_token = pass.ends_at;
        }
        for event in &pass.events {
            match event {
                KvEvent::Stored(s) => {
                    assert_eq!(s.tokens.len(), 4 * s.block_hashes.len(), "content is told");
                    seen.stored.push((s.tier, s.echo, s.block_hashes.clone()));
                }
                KvEvent::Removed(r) => seen.removed.push((r.tier, r.block_hashes.clone())),
                KvEvent::Cleared => {}
            }
        }
    }
}

fn no_store() -> MemoryStore {
    MemoryStore::new(0, 1.0)
}

/// I-TIR-2, I-TIR-3, I-EAD-2: what the device lost comes back from host memory, in the time that its link
/// takes, and counts as cached.
#[test]
fn evicted_blocks_come_back_from_the_host() {
    for flavor in [Flavor::Vllm, Flavor::Sglang] {
        let mut engine = engine(flavor, 6, TiersConfig { host: tier(100), ..TiersConfig::default() });
        let mut store = no_store();
        // Five full blocks and two tokens.
        let a = run(&mut engine, &mut store, Time::ZERO, 1, 0, 22);
        let device: Vec<u64> =
            a.stored.iter().filter(|s| s.0 == Tier::Device).flat_map(|s| s.2.clone()).collect();
        let host: Vec<u64> =
            a.stored.iter().filter(|s| s.0 == Tier::Host).flat_map(|s| s.2.clone()).collect();
        assert_eq!((device.len(), &host), (5, &device), "{flavor:?}: written through");
        // 10 ms of prefill, five blocks of 4 ms.
        assert_eq!(a.now, Time(30 * MS));
        let runs = if flavor == Flavor::Vllm { 5 } else { 1 };
        assert_eq!(
            a.stored.iter().filter(|s| s.0 == Tier::Host).count(),
            runs,
            "events per block, or per run"
        );

        let b = run(&mut engine, &mut store, a.now, 2, 1_000, 22);
        assert_eq!(b.cached, 0);
        let gone: Vec<u64> = b.removed.iter().flat_map(|r| r.1.clone()).collect();
        assert!(b.removed.iter().all(|r| r.0 == Tier::Device) && gone.contains(&device[0]));

        let again = run(&mut engine, &mut store, b.now, 3, 0, 22);
        assert_eq!((again.cached, again.loaded.0), (20, 20), "{flavor:?}");
        assert_eq!(
            again.first_token,
            Time(b.now.0 + 20 * MS + 10 * MS),
            "five blocks of 4 ms, then the pass"
        );
        let back: Vec<u64> =
            again.stored.iter().filter(|s| s.0 == Tier::Device).flat_map(|s| s.2.clone()).collect();
        assert_eq!(back, device, "announced on the device again");
        assert!(again.stored.iter().all(|s| s.0 == Tier::Device), "the host had them");
        let load = engine.load();
        assert_eq!((load.host_hits, load.lower_queries, load.prefix_cache_hits), (20, 66, 0));
        assert_eq!((load.host_blocks, load.host_total_blocks), (10, 100));
    }
}

/// Written back, a block goes down when the device drops it, and not before.
#[test]
fn written_back_at_eviction() {
    let tiers = TiersConfig { host: tier(100), policy: WritePolicy::Back, ..TiersConfig::default() };
    let mut engine = engine(Flavor::Sglang, 6, tiers);
    let mut store = no_store();
    let a = run(&mut engine, &mut store, Time::ZERO, 1, 0, 22);
    assert!(a.stored.iter().all(|s| s.0 == Tier::Device));
    let b = run(&mut engine, &mut store, a.now, 2, 1_000, 22);
    let down: usize = b.stored.iter().filter(|s| s.0 == Tier::Host).map(|s| s.2.len()).sum();
    assert_eq!(down, 5);
    let again = run(&mut engine, &mut store, b.now, 3, 0, 22);
    assert_eq!((again.cached, again.loaded.0), (20, 20));
}

/// I-TIR-1: a full host sends its oldest blocks to disk, tails first; the disk drops what it has no room for.
#[test]
fn the_host_overflows_to_disk() {
    let tiers = TiersConfig { host: tier(5), disk: tier(3), ..TiersConfig::default() };
    let mut engine = engine(Flavor::Vllm, 6, tiers);
    let mut store = no_store();
    let a = run(&mut engine, &mut store, Time::ZERO, 1, 0, 22);
    let keys: Vec<u64> = a.stored.iter().filter(|s| s.0 == Tier::Host).map(|s| s.2[0]).collect();
    let b = run(&mut engine, &mut store, a.now, 2, 1_000, 22);
    let tail_first: Vec<u64> = keys.iter().rev().copied().collect();
    let of = |seen: &Seen, tier| -> Vec<u64> {
        seen.removed.iter().filter(|r| r.0 == tier).flat_map(|r| r.1.clone()).collect()
    };
    assert_eq!(of(&b, Tier::Host), tail_first);
    let on_disk: Vec<u64> = b.stored.iter().filter(|s| s.0 == Tier::Disk).map(|s| s.2[0]).collect();
    let load = engine.load();
    assert_eq!((load.host_blocks, load.disk_blocks), (5, 3));
    assert_eq!(of(&b, Tier::Disk).len() + 3, on_disk.len());
}

/// I-TIR-3: three prompts go to a store; another engine reads one of them back there.
#[test]
fn a_store_serves_all_its_engines() {
    let tiers = TiersConfig { shared: Some(LINK), ..TiersConfig::default() };
    let (mut one, mut two) = (engine(Flavor::Vllm, 6, tiers), engine(Flavor::Vllm, 6, tiers));
    let mut store = MemoryStore::new(100, 0.5);
    let mut now = Time::ZERO;
    for (id, first) in [(1, 0), (2, 1_000), (3, 2_000)] {
        let seen = run(&mut one, &mut store, now, id, first, 22);
        let echoes: Vec<bool> = seen.stored.iter().filter(|s| s.0 == Tier::Host).map(|s| s.1).collect();
        assert_eq!(echoes, [true; 5], "one echo per block");
        assert!(seen.removed.iter().all(|r| r.0 == Tier::Device), "and no removals");
        now = seen.now;
    }
    assert_eq!(store.len(), 15);
    let back = run(&mut one, &mut store, now, 4, 0, 22);
    assert_eq!((back.cached, back.loaded.2), (20, 20));
    // The store is slower than the link: five blocks of 8 ms, then the pass.
    assert_eq!(back.first_token, Time(now.0 + 50 * MS));
    assert!(back.stored.iter().all(|s| !s.1), "what came from the store is not put there again");
    let other = run(&mut two, &mut store, back.now, 1, 1_000, 22);
    assert_eq!((other.cached, other.loaded.2), (20, 20));
    assert_eq!(store.len(), 15);
}

/// SGLang writes to a store and says nothing of it.
#[test]
fn what_goes_to_a_store_is_told_by_vllm_alone() {
    for (flavor, told) in [(Flavor::Vllm, 5), (Flavor::Sglang, 0)] {
        let mut engine = engine(flavor, 6, TiersConfig { shared: Some(LINK), ..TiersConfig::default() });
        let mut store = MemoryStore::new(100, 1.0);
        let seen = run(&mut engine, &mut store, Time::ZERO, 1, 0, 22);
        assert_eq!(
            (store.len(), seen.stored.iter().filter(|s| s.0 == Tier::Host).count()),
            (5, told),
            "{flavor:?}"
        );
    }
}

/// I-TIR-2: five blocks of 4 ms for the one, then five for the other, each followed by its pass of 10 ms.
#[test]
fn reads_of_one_link_come_one_after_the_other() {
    let mut engine = engine(Flavor::Vllm, 12, TiersConfig { host: tier(100), ..TiersConfig::default() });
    let mut store = no_store();
    let mut now = Time::ZERO;
    for (id, first, count) in [(1, 0, 22), (2, 1_000, 22), (3, 2_000, 46)] {
        now = run(&mut engine, &mut store, now, id, first, count).now;
    }
    engine.submit(request(4, tokens(0, 22), 1)).expect("accepted");
    engine.submit(request(5, tokens(1_000, 22), 1)).expect("accepted");
    let (mut at, mut answers, mut pass) = (now, Vec::new(), Pass::default());
    loop {
        if engine.step_with(at, &mut store, &mut pass) {
            at = pass.ends_at;
            answers.extend(pass.outputs.iter().map(|output| (output.id.0, at.since(now).as_millis())));
        } else if let Some(wake) = engine.wakes_at() {
            at = wake;
        } else {
            break;
        }
    }
    assert_eq!(answers, [(4, 30), (5, 50)]);
}

/// Twice as fast: 5 ms of prefill, five blocks of 2 ms.
#[test]
fn transfers_are_sped_up_as_passes_are() {
    let tiers = TiersConfig { host: tier(100), token_bytes: 1_000_000, ..TiersConfig::default() };
    let fast = EngineConfig { speedup: 2.0, tiers, ..config(6) };
    let mut engine = EngineModel::new(fast).expect("usable set-up");
    assert_eq!(run(&mut engine, &mut no_store(), Time::ZERO, 1, 0, 22).now, Time(15 * MS));
}

/// A prompt of two whole blocks is sent twice. The second time its last token is computed again, and its block is there twice.
/// While one copy is on the device nothing has to go down.
#[test]
fn a_block_goes_down_with_its_last_copy() {
    let tiers = TiersConfig { host: tier(100), policy: WritePolicy::Back, ..TiersConfig::default() };
    let mut engine = engine(Flavor::Vllm, 8, tiers);
    let mut store = no_store();
    let first = run(&mut engine, &mut store, Time::ZERO, 1, 0, 8);
    let again = run(&mut engine, &mut store, first.now, 2, 0, 8);
    assert_eq!(again.cached, 4);
    // Five blocks were never used; the sixth is the older copy.
    let third = run(&mut engine, &mut store, again.now, 3, 1_000, 23);
    let down = |seen: &Seen| seen.stored.iter().filter(|s| s.0 == Tier::Host).count();
    assert_eq!((third.removed.len(), down(&third)), (1, 0));
    let fourth = run(&mut engine, &mut store, third.now, 4, 2_000, 5);
    assert_eq!(down(&fourth), 2);
}

/// I-EAD-1: a request that needs nothing from below overtakes one that waits for its blocks.
#[test]
fn others_go_on_while_one_loads() {
    let mut engine = engine(Flavor::Vllm, 12, TiersConfig { host: tier(100), ..TiersConfig::default() });
    let mut store = no_store();
    let a = run(&mut engine, &mut store, Time::ZERO, 1, 0, 22);
    let b = run(&mut engine, &mut store, a.now, 2, 1_000, 46);
    engine.submit(request(3, tokens(0, 22), 1)).expect("accepted");
    engine.submit(request(4, tokens(5_000, 6), 1)).expect("accepted");
    let mut pass = Pass::default();
    assert!(engine.step_with(b.now, &mut store, &mut pass));
    assert_eq!(pass.outputs.iter().map(|o| o.id.0).collect::<Vec<_>>(), [4]);
    assert_eq!((engine.load().waiting, engine.load().running), (1, 0));
    // Aborted in the middle of its load, it leaves nothing behind.
    let used = engine.load().used_blocks;
    assert!(used > 0 && engine.abort(tandem_engine_model::RequestKey(3)));
    assert_eq!((engine.load().used_blocks, engine.load().waiting_tokens, engine.has_work()), (0, 0, false));
}

/// Forgetting the cache: vLLM keeps its other tiers, SGLang empties them too.
#[test]
fn a_cleared_cache() {
    for (flavor, cached) in [(Flavor::Vllm, 20), (Flavor::Sglang, 0)] {
        let mut engine = engine(flavor, 12, TiersConfig { host: tier(100), ..TiersConfig::default() });
        let mut store = no_store();
        let a = run(&mut engine, &mut store, Time::ZERO, 1, 0, 22);
        assert!(engine.reset_prefix_cache());
        assert_eq!(run(&mut engine, &mut store, a.now, 2, 0, 22).cached, cached, "{flavor:?}");
    }
}

/// An aborted request's blocks were about to be copied down when the cache was emptied: nothing of them arrives.
#[test]
fn a_cache_cleared_before_the_copy_down_began() {
    let tiers = TiersConfig { disk: tier(100), ..TiersConfig::default() };
    let mut engine = engine(Flavor::Sglang, 12, tiers);
    let mut store = no_store();
    engine.submit(request(1, tokens(0, 8), 9)).expect("accepted");
    let mut pass = Pass::default();
    // To the second block's end in the answer, which only the end of the request makes a cached one.
    for _ in 0..6 {
        assert!(engine.step_with(Time::ZERO, &mut store, &mut pass));
    }
    let now = pass.ends_at;
    assert!(engine.abort(tandem_engine_model::RequestKey(1)));
    assert!(engine.reset_prefix_cache());
    let seen = run(&mut engine, &mut store, now, 2, 100, 8);
    let on_disk: usize =
        seen.stored.iter().filter(|(tier, ..)| *tier == Tier::Disk).map(|(.., ids)| ids.len()).sum();
    assert_eq!(on_disk, 2, "the two blocks of the second request and no other");
    assert_eq!(engine.load().disk_blocks, 2);
}
