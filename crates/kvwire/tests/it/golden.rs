//! Every captured frame decodes to the form that the capture shows beside it, and what the current engines
//! wrote is written again byte for byte. The decoded form in the captures is what a Python msgpack library
//! made of the same bytes.

use std::sync::Arc;

use serde_json::Value;
use tandem_kvwire::{Layout, Skipped, decode, encode, parse_message};
use tandem_types::{BlockRemoved, BlockStored, KvBatch, KvEvent, Tier};

struct Captured {
    frames: Vec<Vec<u8>>,
    topic: String,
    seq: u64,
    timestamp: f64,
    decoded: Value,
}

fn captured(jsonl: &str) -> Vec<Captured> {
    jsonl
        .lines()
        .map(|line| {
            let v: Value = serde_json::from_str(line).expect("fixture is JSON");
            Captured {
                frames: v["frames"]
                    .as_array()
                    .expect("frames")
                    .iter()
                    .map(|f| hex::decode(f.as_str().expect("hex text")).expect("hex"))
                    .collect(),
                topic: v["topic"].as_str().expect("topic").to_owned(),
                seq: v["seq"].as_u64().expect("seq"),
                timestamp: timestamp(line),
                decoded: v["decoded"].clone(),
            }
        })
        .collect()
}

/// Read from the text, because the JSON parser may be off by one in the last place of a float.
fn timestamp(line: &str) -> f64 {
    let (_, rest) = line.split_once("\"decoded\":[").expect("decoded");
    rest.split(',').next().and_then(|t| t.parse().ok()).expect("timestamp")
}

/// A hash as JSON shows it: unsigned, or signed in SGLang's captures.
fn hash(v: &Value) -> u64 {
    v.as_u64().unwrap_or_else(|| v.as_i64().expect("hash").cast_unsigned())
}

fn hashes(v: &Value) -> Vec<u64> {
    v.as_array().expect("hashes").iter().map(hash).collect()
}

fn tier(v: &Value) -> Tier {
    match v["medium"].as_str() {
        None | Some("GPU") => Tier::Device,
        Some("cpu") => Tier::Host,
        other => panic!("medium {other:?}"),
    }
}

fn event(v: &Value) -> KvEvent {
    match v["type"].as_str().expect("type") {
        "AllBlocksCleared" => KvEvent::Cleared,
        "BlockRemoved" => {
            KvEvent::Removed(BlockRemoved { block_hashes: hashes(&v["block_hashes"]), tier: tier(v) })
        }
        "BlockStored" => {
            let mut extra_keys: Vec<Option<Vec<String>>> =
                serde_json::from_value(v["extra_keys"].clone()).unwrap_or_default();
            if extra_keys.iter().all(Option::is_none) {
                extra_keys.clear();
            }
            KvEvent::Stored(BlockStored {
                block_hashes: hashes(&v["block_hashes"]),
                parent: (!v["parent_block_hash"].is_null()).then(|| hash(&v["parent_block_hash"])),
                tokens: serde_json::from_value(v["token_ids"].clone()).expect("tokens"),
                block_size: u32::try_from(v["block_size"].as_u64().expect("size")).expect("small"),
                tier: tier(v),
                lora: v["lora_name"].as_str().map(Arc::from),
                extra_keys,
                session: v["session_id"].as_str().map(Arc::from),
            })
        }
        other => panic!("type {other}"),
    }
}

fn batch(timestamp: f64, v: &Value) -> KvBatch {
    KvBatch {
        timestamp,
        events: v[1].as_array().expect("events").iter().map(event).collect(),
        rank: v[2].as_u64().map(|r| u32::try_from(r).expect("small")),
    }
}

/// Returns how many events were compared.
fn check(jsonl: &str, layout: Option<Layout>) -> usize {
    let mut events = 0;
    for c in captured(jsonl) {
        let frames: Vec<&[u8]> = c.frames.iter().map(Vec::as_slice).collect();
        let message = parse_message(&frames).expect("three frames");
        assert_eq!((message.topic, message.seq), (c.topic.as_bytes(), c.seq));
        let decoded = decode(message.payload).expect("a batch");
        assert_eq!(decoded.batch, batch(c.timestamp, &c.decoded), "sequence {}", c.seq);
        assert_eq!(decoded.skipped, Skipped::default());
        if let Some(layout) = layout {
            assert_eq!(hex::encode(encode(&decoded.batch, layout)), hex::encode(message.payload));
        }
        events += decoded.batch.events.len();
    }
    events
}

/// I-KVW-3.
#[test]
fn vllm_0_32() {
    assert_eq!(check(include_str!("../fixtures/vllm-0.32.0.jsonl"), Some(Layout::Vllm)), 32);
}

/// I-KVW-3, I-KVW-4.
#[test]
fn sglang_0_5_23() {
    assert_eq!(check(include_str!("../fixtures/sglang-0.5.23.jsonl"), Some(Layout::Sglang)), 10);
}

#[test]
fn vllm_with_a_store_connector() {
    // The connector spells the medium in lower case, so only decoding is exact.
    assert_eq!(check(include_str!("../fixtures/vllm-0.32.0-mooncake-connector.jsonl"), None), 18);
}

#[test]
fn dynamo_mocker() {
    assert_eq!(check(include_str!("../fixtures/dynamo-mocker-1.6.1.jsonl"), None), 2);
}
