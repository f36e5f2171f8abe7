//! Streams of real engines and of a real store, through the real decoders.

use std::collections::BTreeMap;

use serde_json::Value;
use tandem_kvplane::{Plane, StoreChange, StoreUse, VllmHashing, WorkerSpec};
use tandem_kvwire::hash::vllm::{VllmAlgorithm, VllmKeyForm};
use tandem_kvwire::mooncake::vllm::{VllmKey, VllmLayout};
use tandem_kvwire::mooncake::{ObjectChange, event};
use tandem_kvwire::{decode, parse_message};
use tandem_types::{BlockStored, EngineKind, KvBatch, KvEvent, Tier};

use crate::told::*;

const SGLANG: &str = include_str!("../../../kvwire/tests/fixtures/sglang-0.5.23.jsonl");
const VLLM: &str = include_str!("../../../kvwire/tests/fixtures/vllm-0.32.0.jsonl");
const CONNECTOR: &str = include_str!("../../../kvwire/tests/fixtures/vllm-0.32.0-mooncake-connector.jsonl");
const MASTER: &str = include_str!("../../../kvwire/tests/fixtures/mooncake-0.3.14-from-vllm.jsonl");

fn messages(jsonl: &str) -> Vec<(u64, Vec<u8>)> {
    let message = |line: &str| {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let frames = line["frames"].as_array().expect("frames").iter();
        let frames: Vec<Vec<u8>> =
            frames.map(|f| hex::decode(f.as_str().expect("text")).expect("hex")).collect();
        let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
        let message = parse_message(&frames).expect("three frames");
        (message.seq, message.payload.to_vec())
    };
    jsonl.lines().map(message).collect()
}

fn batches(jsonl: &str) -> Vec<KvBatch> {
    messages(jsonl).iter().map(|(_, payload)| decode(payload).expect("a batch").batch).collect()
}

/// What the events say that lies in device memory, prompt by prompt: tokens of each block after all before it.
fn resident(batches: &[KvBatch]) -> (BTreeMap<u64, Vec<u32>>, BTreeMap<u64, u32>) {
    let (mut paths, mut copies): (BTreeMap<u64, Vec<u32>>, BTreeMap<u64, u32>) = Default::default();
    for event in batches.iter().flat_map(|batch| &batch.events) {
        match event {
            KvEvent::Cleared => copies.clear(),
            KvEvent::Removed(event) => event.block_hashes.iter().for_each(|id| {
                if let Some(count) = copies.get_mut(id) {
                    *count = count.saturating_sub(1);
                }
            }),
            KvEvent::Stored(event) if event.echo || event.tier != Tier::Device => {}
            KvEvent::Stored(event) => {
                let mut path = event.parent.map(|parent| paths[&parent].clone()).unwrap_or_default();
                for (id, tokens) in
                    event.block_hashes.iter().zip(event.tokens.chunks(event.block_size as usize))
                {
                    path.extend(tokens);
                    paths.insert(*id, path.clone());
                    *copies.entry(*id).or_default() += 1;
                }
            }
        }
    }
    (paths, copies)
}

fn salts(batches: &[KvBatch]) -> Vec<Option<String>> {
    let stored = batches.iter().flat_map(|batch| &batch.events).filter_map(|event| match event {
        KvEvent::Stored(BlockStored { salt, .. }) => Some(salt.as_deref().map(str::to_owned)),
        _ => None,
    });
    let mut salts: Vec<Option<String>> = stored.collect();
    salts.sort();
    salts.dedup();
    salts
}

/// Each block that a real engine announced is found, from its prompt's tokens, exactly while it is there.
#[test]
fn streams_of_real_engines_are_followed_block_by_block() {
    for (jsonl, kind) in
        [(VLLM, EngineKind::Vllm), (CONNECTOR, EngineKind::Vllm), (SGLANG, EngineKind::Sglang)]
    {
        let batches = batches(jsonl);
        let salts = salts(&batches);
        let mut checked = 0;
        // The state half way, and at the end.
        for count in [batches.len() / 2, batches.len()] {
            let mut plane = Plane::new(config());
            plane.worker(worker(0), WorkerSpec::new(kind, true), at(0));
            plane.live(worker(0), at(0));
            batches.iter().take(count).for_each(|batch| plane.batch(worker(0), batch, at(0)));
            let (paths, copies) = resident(&batches[..count]);
            let reader = plane.reader();
            let there = |id: &u64| copies.get(id).is_some_and(|count| *count > 0);
            for (id, path) in &paths {
                let size = plane.stats().workers[0].block_size as usize;
                let best = salts.iter().map(|salt| {
                    let found = reader.held(&reader.chain(path, None, salt.as_deref(), None), at(0));
                    found.of(worker(0)).map_or(0, |held| held.device * found.block_size / size as u32)
                });
                // Equal prefixes of several prompts are one chain: the blocks before this one, by their tokens.
                let whole = (1..=path.len() / size).all(|blocks| {
                    paths
                        .iter()
                        .any(|(id, p)| p.len() == blocks * size && p[..] == path[..p.len()] && there(id))
                });
                let got = best.max().unwrap_or_default() as usize * size;
                assert_eq!(got == path.len(), whole && there(id), "block {id:x} of {} tokens", path.len());
                checked += 1;
            }
        }
        assert!(checked > 30, "{checked}");
    }
}

/// The loop of a real vLLM with a real store: device events, the connector's own, the master's.
#[test]
fn a_real_store_holds_what_a_real_engine_wrote() {
    let (engine, master) = (batches(CONNECTOR), messages(MASTER));
    let (paths, _) = resident(&engine);
    let mut objects: Vec<VllmKey> = Vec::new();
    for (_, payload) in &master {
        for event in event::decode(payload).expect("a batch").batch.events {
            if let ObjectChange::Stored(key) = event.change {
                objects.push(VllmKey::parse(&key).expect("a vLLM key"));
            }
        }
    }
    let head = objects[0].head.clone();
    let hash = VllmHashing { algorithm: VllmAlgorithm::Sha256, seed: None, form: VllmKeyForm::Tagged };
    for hash in [Some(hash), None] {
        let mut plane = plane(0);
        let store = StoreUse::Vllm { tenant: String::new(), layout: VllmLayout::single(&head), hash };
        for engine in [0, 1] {
            let spec = WorkerSpec { store: Some(store.clone()), ..WorkerSpec::new(EngineKind::Vllm, true) };
            // The block size in use is known before the first event: the other worker never sends one.
            plane.worker(worker(engine), WorkerSpec { block_size: Some(32), ..spec }, at(0));
            plane.live(worker(engine), at(0));
        }
        engine.iter().for_each(|batch| plane.batch(worker(0), batch, at(0)));
        for (seq, payload) in &master {
            let batch = event::decode(payload).expect("a batch").batch;
            plane.store(StoreChange::Batch { seq: *seq, batch: &batch }, at(0));
        }
        assert_eq!(plane.stats().store.objects, objects.len() as u64);
        let reader = plane.reader();
        let mut longest = 0;
        for (id, path) in &paths {
            let mut prompt = path.clone();
            prompt.push(1);
            let found = reader.find(&reader.chain(&prompt, None, None, None), at(0));
            let [own, other] = [0, 1].map(|engine| found.of(worker(engine)).expect("not blind"));
            let blocks = u32::try_from(path.len() / 32).expect("few");
            let there = |blocks: u32| {
                let ids = paths.iter().filter(|(_, p)| {
                    p[..] == path[..p.len().min(path.len())] && p.len() <= blocks as usize * 32
                });
                ids.filter(|(id, _)| objects.iter().any(|key| key.block_id() == **id)).count() as u32
            };
            // One object for each block: the other worker can load all of them that the store has from the first on.
            assert_eq!((other.disk, found.shared_beyond(other)), (0, there(blocks)), "block {id:x}");
            assert_eq!(own.device, own.disk, "the connector's own events are no host tier");
            assert_eq!(own.disk + found.shared_beyond(own), own.disk.max(there(blocks)));
            longest = longest.max(there(blocks));
        }
        assert!(longest >= 8, "{longest}");
    }
}
