//! Random histories of several workers against an oracle that keeps a plain map.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tandem_kvplane::{Plane, PlaneConfig, WorkerSpec};
use tandem_types::{BlockRemoved, BlockStored, EngineKind, KvEvent, Tier};

use crate::told::{at, batch, config, worker};

/// Tokens in which prompts differ or agree.
const UNIT: usize = 4;
/// Units of the longest prompt.
const UNITS: usize = 8;
const NAMESPACES: [(Option<&str>, Option<&str>); 5] =
    [(None, None), (None, Some("a")), (None, Some("b")), (Some("x"), None), (Some("x"), Some("a"))];
/// Make and block size of each worker.
const WORKERS: [(EngineKind, u32); 4] =
    [(EngineKind::Vllm, 4), (EngineKind::Vllm, 8), (EngineKind::Sglang, 4), (EngineKind::Vllm, 16)];
const TIERS: [Tier; 3] = [Tier::Device, Tier::Host, Tier::Disk];

fn prompt(bits: u8, units: usize) -> Vec<u32> {
    let unit = |at: usize| {
        let choice = u32::from(bits >> at & 1);
        (0..UNIT).map(move |n| 1000 * choice + (at * UNIT + n) as u32)
    };
    (0..units).flat_map(unit).collect()
}

/// A block by content: worker, namespace, end in units, the choices up to there.
type Name = (usize, usize, usize, u8);

fn name(worker: usize, space: usize, end: usize, bits: u8) -> Name {
    let mask = if end >= 8 { u8::MAX } else { (1 << end) - 1 };
    (worker, space, end, bits & mask)
}

/// The engine's id of a block: no two workers agree on them.
fn id((worker, space, end, bits): Name) -> u64 {
    let mixed = (worker as u64) << 48 | (space as u64) << 32 | (end as u64) << 16 | u64::from(bits) << 1 | 1;
    mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[derive(Debug, Clone, Copy)]
struct Op {
    kind: u8,
    worker: usize,
    space: usize,
    bits: u8,
    from: usize,
    blocks: usize,
    tier: usize,
    copies: u32,
}

fn op() -> impl Strategy<Value = Op> {
    let place = (0usize..WORKERS.len(), 0usize..NAMESPACES.len(), any::<u8>());
    (0u8..16, place, 0usize..8, 1usize..5, 0usize..3, 0u32..3).prop_map(
        |(kind, (worker, space, bits), from, blocks, tier, copies)| Op {
            kind,
            worker,
            space,
            bits,
            from,
            blocks,
            tier,
            copies,
        },
    )
}

#[derive(Default)]
struct Oracle {
    copies: BTreeMap<Name, [u32; 3]>,
}

impl Oracle {
    fn held(&self, name: Name) -> bool {
        self.copies.get(&name).is_some_and(|copies| copies.iter().any(|n| *n > 0))
    }

    fn prefix(&self, worker: usize, space: usize, bits: u8, tiers: usize) -> u32 {
        let step = WORKERS[worker].1 as usize / UNIT;
        let there = |block: &usize| {
            let copies = self.copies.get(&name(worker, space, (block + 1) * step, bits));
            copies.is_some_and(|copies| copies[..tiers].iter().any(|n| *n > 0))
        };
        (0..UNITS / step).take_while(there).count() as u32
    }
}

/// What the op means for engine and oracle; `None` = it makes no sense now.
fn play(op: Op, oracle: &mut Oracle) -> Option<KvEvent> {
    let (kind, size) = WORKERS[op.worker];
    let step = size as usize / UNIT;
    let from = op.from % (UNITS / step);
    let blocks = op.blocks.min(UNITS / step - from);
    let names: Vec<Name> =
        (from..from + blocks).map(|block| name(op.worker, op.space, (block + 1) * step, op.bits)).collect();
    let ids: Vec<u64> = names.iter().map(|name| id(*name)).collect();
    let tokens = prompt(op.bits, UNITS);
    let tokens = tokens[from * size as usize..(from + blocks) * size as usize].to_vec();
    let (lora, salt) = NAMESPACES[op.space];
    let parent = (from > 0).then(|| name(op.worker, op.space, from * step, op.bits));
    let stored = BlockStored {
        block_hashes: ids.clone(),
        parent: parent.map(id),
        tokens,
        block_size: size,
        tier: TIERS[op.tier],
        lora: lora.map(Into::into),
        // vLLM states it at the start only.
        salt: salt.filter(|_| from == 0 || kind == EngineKind::Sglang).map(Into::into),
        ..BlockStored::default()
    };
    Some(match op.kind {
        0..=6 => {
            if parent.is_some_and(|parent| !oracle.held(parent)) {
                return None;
            }
            names.iter().for_each(|name| oracle.copies.entry(*name).or_default()[op.tier] += 1);
            KvEvent::Stored(stored)
        }
        7 => {
            for name in names.iter().filter(|name| oracle.held(**name)).copied().collect::<Vec<_>>() {
                oracle.copies.entry(name).or_default()[op.tier] += 1;
            }
            KvEvent::Stored(BlockStored { tokens: Vec::new(), block_size: 0, parent: None, ..stored })
        }
        8 => KvEvent::Stored(BlockStored { tier: Tier::Host, echo: true, ..stored }),
        // Deep blocks of a prompt that nobody told of.
        9 => KvEvent::Stored(BlockStored { parent: Some(2), block_hashes: vec![4; ids.len()], ..stored }),
        10..=12 => {
            for name in &names {
                if let Some(copies) = oracle.copies.get_mut(name) {
                    copies[op.tier] = copies[op.tier].saturating_sub(1);
                }
            }
            KvEvent::Removed(BlockRemoved {
                block_hashes: ids,
                tier: TIERS[op.tier],
                ..BlockRemoved::default()
            })
        }
        13 => {
            let first = names[0];
            if oracle.held(first) {
                oracle.copies.entry(first).or_default()[op.tier] = op.copies;
            }
            KvEvent::Removed(BlockRemoved {
                block_hashes: vec![ids[0]],
                tier: TIERS[op.tier],
                remaining: vec![op.copies],
                ..BlockRemoved::default()
            })
        }
        14 if op.copies == 0 => {
            let all = kind == EngineKind::Sglang;
            for (_, copies) in oracle.copies.iter_mut().filter(|(name, _)| name.0 == op.worker) {
                *copies = if all { [0; 3] } else { [0, copies[1], copies[2]] };
            }
            KvEvent::Cleared
        }
        _ => return None,
    })
}

fn check(plane: &Plane, oracle: &Oracle, space: usize, bits: u8) -> Result<(), TestCaseError> {
    let (lora, salt) = NAMESPACES[space];
    let reader = plane.reader();
    let chain = reader.chain(&prompt(bits, UNITS), lora, salt, None);
    for (found, last) in [(reader.held(&chain, at(0)), false), (reader.find(&chain, at(0)), true)] {
        for (at, (_, size)) in (0..).zip(WORKERS) {
            let held = found.of(worker(at)).expect("not blind");
            let most = if last { (UNITS * UNIT) as u32 - size } else { u32::MAX };
            let got = [held.device, held.host, held.disk].map(|blocks| blocks * found.block_size);
            let expected =
                [1, 2, 3].map(|tiers| (oracle.prefix(at as usize, space, bits, tiers) * size).min(most));
            prop_assert_eq!(got, expected, "worker {} {:?} {:b}", at, NAMESPACES[space], bits);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    /// What is known of each worker is what its events say, whatever the others say: with copies, tiers, echoes,
    /// salts, adapters, block sizes, unknown parents, clears, lost streams and prompts looked up meanwhile.
    #[test]
    fn the_plane_knows_what_a_plain_map_knows(ops in prop::collection::vec(op(), 1..120)) {
        let mut plane = Plane::new(PlaneConfig { approximate: None, ..config() });
        for (at_, (kind, size)) in (0..).zip(WORKERS) {
            let spec = WorkerSpec { block_size: Some(size), ..WorkerSpec::new(kind, true) };
            plane.worker(worker(at_), spec, at(0));
            plane.live(worker(at_), at(0));
        }
        let mut oracle = Oracle::default();
        for op in ops {
            let id = worker(op.worker as u32);
            if op.kind == 15 && op.copies == 0 {
                // A gap for good.
                oracle.copies.retain(|name, _| name.0 != op.worker);
                plane.cleared(id, at(0));
            } else if let Some(event) = play(op, &mut oracle) {
                plane.batch(id, &batch(vec![event]), at(0));
            }
            check(&plane, &oracle, op.space, op.bits)?;
        }
        for space in 0..NAMESPACES.len() {
            for bits in [0, 0b1111_1111, 0b1010_1010] {
                check(&plane, &oracle, space, bits)?;
            }
        }
    }
}
