//! Scenarios that broke other routers: frames as they come, and how many leading blocks of a prompt each rank
//! then holds. Frames go through decoder and tracker into an index that is as naive as can be.

use std::collections::BTreeMap;

use serde_json::Value;
use tandem_kvwire::hash::block::{Media, Namespace, Parent, Shape, prompt, stored};
use tandem_kvwire::{
    Effect, ReplayAnswer, Tracker, TrackerConfig, decode, parse_replay_answer, replay_answer, replay_end,
};
use tandem_types::{BlockHash, BlockRemoved, BlockStored, KvEvent, Tier, Time};

const NOW: Time = Time::ZERO;

/// What one rank holds. Engines' ids lead to our hashes, and are counted per tier and group.
#[derive(Default)]
struct Index {
    content: BTreeMap<(u32, u64), (BlockHash, Namespace)>,
    copies: BTreeMap<(Tier, u32, u64), u32>,
}

impl Index {
    fn apply(&mut self, event: &KvEvent) {
        match event {
            KvEvent::Cleared => *self = Self::default(),
            KvEvent::Removed(removed) => self.removed(removed),
            KvEvent::Stored(event) => self.stored(event),
        }
    }

    fn removed(&mut self, removed: &BlockRemoved) {
        for (at, &id) in removed.block_hashes.iter().enumerate() {
            if let Some(copies) = self.copies.get_mut(&(removed.tier, removed.group, id)) {
                *copies = removed.remaining.get(at).copied().unwrap_or(copies.saturating_sub(1));
            }
        }
    }

    fn stored(&mut self, event: &BlockStored) {
        let parent = match event.parent {
            None => Some(Parent::Root),
            Some(parent) => self
                .content
                .get(&(event.group, parent))
                .map(|&(hash, namespace)| Parent::Block { hash, namespace }),
        };
        if let Some(parent) = parent {
            let (namespace, hashes) = stored(parent, event);
            for (&id, hash) in event.block_hashes.iter().zip(hashes) {
                self.content.insert((event.group, id), (hash, namespace));
            }
        }
        for &id in event.block_hashes.iter().filter(|&&id| self.content.contains_key(&(event.group, id))) {
            *self.copies.entry((event.tier, event.group, id)).or_default() += 1;
        }
    }

    /// Leading blocks in the engine's own memory, and in any tier.
    fn matched(&self, chain: &[BlockHash]) -> (usize, usize) {
        let holds = |hash: &BlockHash, device: bool| {
            self.copies.iter().any(|(&(tier, group, id), &copies)| {
                copies > 0
                    && (!device || tier == Tier::Device)
                    && self.content.get(&(group, id)).is_some_and(|(held, _)| held == hash)
            })
        };
        let count = |device| chain.iter().take_while(|hash| holds(hash, device)).count();
        (count(true), count(false))
    }
}

struct Rank {
    tracker: Tracker<Vec<u8>>,
    index: Index,
    asked: Option<(u64, u64)>,
    skipped: u32,
}

impl Rank {
    fn new() -> Self {
        let config = TrackerConfig { replay_on_join: false, ..TrackerConfig::engine(true) };
        Self { tracker: Tracker::new(config), index: Index::default(), asked: None, skipped: 0 }
    }

    fn carry_out(&mut self, effects: Vec<Effect<Vec<u8>>>) {
        for effect in effects {
            match effect {
                Effect::Apply { payload, .. } => {
                    let decoded = decode(&payload).expect("a batch");
                    self.skipped += decoded.skipped.total();
                    decoded.batch.events.iter().for_each(|event| self.index.apply(event));
                }
                Effect::Clear(_) => self.index = Index::default(),
                Effect::Replay { attempt, missing, .. } => self.asked = Some((attempt, missing)),
                Effect::Reconcile(loss) => panic!("{loss:?}"),
            }
        }
    }

    fn frame(&mut self, seq: u64, payload: Vec<u8>) {
        let mut effects = Vec::new();
        self.tracker.live(NOW, seq, payload, &mut effects);
        self.carry_out(effects);
    }

    fn replay(&mut self, asked: u64, answers: Vec<[Vec<u8>; 4]>, framing: Framing) {
        let (attempt, missing) = self.asked.take().expect("a replay was asked for");
        assert_eq!(missing, asked);
        let mut effects = Vec::new();
        for frames in answers {
            let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
            let frames = match framing {
                Framing::WithTopic => frames,
                Framing::WithoutTopic => vec![frames[0], frames[2], frames[3]],
            };
            match parse_replay_answer(&frames).expect("an answer") {
                ReplayAnswer::Batch { seq, payload } => {
                    self.tracker.replayed(NOW, attempt, seq, payload.to_vec(), &mut effects);
                }
                ReplayAnswer::End => self.tracker.replay_ended(NOW, attempt, &mut effects),
            }
        }
        self.carry_out(effects);
        assert_eq!(self.asked, None, "one replay is enough");
    }
}

#[derive(Clone, Copy)]
enum Framing {
    WithTopic,
    WithoutTopic,
}

fn payload(v: &Value) -> (u64, Vec<u8>) {
    let seq = v["seq"].as_u64().expect("seq");
    (seq, hex::decode(v["payload"].as_str().expect("payload")).expect("hex"))
}

fn query(index: &Index, q: &Value, block_size: u32) -> (usize, usize) {
    let tokens: Vec<u32> = serde_json::from_value(q["tokens"].clone()).expect("tokens");
    let media: Vec<Media> = q["media"].as_array().map_or_else(Vec::new, |media| {
        let number = |v: &Value| usize::try_from(v.as_u64().expect("a number")).expect("small");
        media
            .iter()
            .map(|m| Media {
                id: m["identifier"].as_str().expect("id").into(),
                start: number(&m["start"]),
                len: number(&m["length"]),
            })
            .collect()
    });
    let namespace = Namespace::new(q["lora"].as_str(), q["salt"].as_str());
    index.matched(&prompt(namespace, Shape { block_size, lookahead: 0 }, &tokens, &media))
}

/// Returns how many expectations were checked and how many events were skipped.
fn run(scenario: &str, framing: Framing) -> (usize, u32) {
    let scenario: Value = serde_json::from_str(scenario).expect("scenario");
    let mut ranks = BTreeMap::new();
    let mut sizes = BTreeMap::new();
    for worker in scenario["workers"].as_array().expect("workers") {
        let id = worker["id"].as_str().expect("id");
        sizes.insert(id, u32::try_from(worker["block_size"].as_u64().expect("size")).expect("small"));
        for rank in worker["ranks"].as_array().expect("ranks") {
            ranks.insert(format!("{id}/{rank}"), Rank::new());
        }
    }
    let name = |v: &Value| format!("{}/{}", v["worker"].as_str().expect("worker"), v["rank"]);
    let mut checked = 0;
    for (at, step) in scenario["steps"].as_array().expect("steps").iter().enumerate() {
        if let Some(frame) = step.get("frame").filter(|frame| frame["lost"] != true) {
            let (seq, payload) = payload(frame);
            ranks.get_mut(&name(frame)).expect("known").frame(seq, payload);
        }
        if let Some(replay) = step.get("replay") {
            let mut answers: Vec<[Vec<u8>; 4]> = Vec::new();
            for frame in replay["frames"].as_array().expect("frames") {
                let (seq, payload) = payload(frame);
                answers.push(replay_answer(b"kv", seq, payload));
            }
            answers.push(replay_end());
            let rank = ranks.get_mut(&name(replay)).expect("known");
            rank.replay(replay["asked"].as_u64().expect("asked"), answers, framing);
        }
        let Some(q) = step.get("query") else { continue };
        for (name, expected) in step["expect"].as_object().expect("expectations") {
            let (worker, _) = name.split_once('/').expect("worker/rank");
            let got = query(&ranks[name].index, q, sizes[worker]);
            for (tier, got) in [("device", got.0), ("any", got.1)] {
                if let Some(expected) = expected.get(tier) {
                    assert_eq!(
                        expected.as_u64(),
                        Some(got as u64),
                        "step {at}, {name}, {tier}: {}",
                        step["why"]
                    );
                    checked += 1;
                }
            }
        }
    }
    (checked, ranks.values().map(|rank| rank.skipped).sum())
}

#[test]
fn map_and_array_events() {
    let scenario = include_str!("../fixtures/cases/41-kv-map-and-array-events.json");
    assert_eq!(run(scenario, Framing::WithTopic), (6, 1));
}

#[test]
fn cache_salts() {
    let scenario = include_str!("../fixtures/cases/45-kv-cache-salt.json");
    assert_eq!(run(scenario, Framing::WithTopic), (20, 0));
}

#[test]
fn duplicate_copies() {
    let scenario = include_str!("../fixtures/cases/46-kv-duplicate-copies.json");
    assert_eq!(run(scenario, Framing::WithTopic), (10, 0));
}

#[test]
fn gap_and_replay_in_both_framings() {
    let scenario = include_str!("../fixtures/cases/48-kv-gap-and-replay.json");
    assert_eq!(run(scenario, Framing::WithTopic), (12, 0));
    assert_eq!(run(scenario, Framing::WithoutTopic), (12, 0));
}

#[test]
fn data_parallel_ranks() {
    let scenario = include_str!("../fixtures/cases/49-kv-dp-ranks.json");
    assert_eq!(run(scenario, Framing::WithTopic), (20, 0));
}
