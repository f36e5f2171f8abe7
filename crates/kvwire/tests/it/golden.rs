//! Every captured frame decodes to the form that the capture shows beside it, and what the current engines
//! wrote is written again byte for byte. The decoded form in the captures is what a Python msgpack library
//! made of the same bytes.

use std::sync::Arc;

use crate::captured::{DYNAMO_MOCKER, SGLANG, VLLM, VLLM_MOONCAKE, captured};
use serde_json::Value;
use tandem_kvwire::{Layout, Skipped, decode, encode, parse_message};
use tandem_types::{BlockRemoved, BlockStored, GroupKind, KvBatch, KvEvent, Tier};

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

fn small(v: &Value) -> u32 {
    u32::try_from(v.as_u64().unwrap_or_default()).expect("small")
}

fn event(v: &Value) -> KvEvent {
    match v["type"].as_str().expect("type") {
        "AllBlocksCleared" => KvEvent::Cleared,
        "BlockRemoved" => KvEvent::Removed(BlockRemoved {
            block_hashes: hashes(&v["block_hashes"]),
            tier: tier(v),
            group: small(&v["group_idx"]),
            ..BlockRemoved::default()
        }),
        "BlockStored" => {
            // The captures have salts, but neither adapters nor media.
            let keys: Option<Vec<Option<Vec<String>>>> =
                serde_json::from_value(v["extra_keys"].clone()).expect("texts");
            let mut keys: Vec<String> = keys.into_iter().flatten().flatten().flatten().collect();
            let salt = keys.pop().map(Arc::from);
            assert_eq!(keys, [""; 0]);
            assert!(matches!(v["kv_cache_spec_kind"].as_str(), None | Some("full_attention")));
            KvEvent::Stored(BlockStored {
                block_hashes: hashes(&v["block_hashes"]),
                parent: (!v["parent_block_hash"].is_null()).then(|| hash(&v["parent_block_hash"])),
                tokens: serde_json::from_value(v["token_ids"].clone()).expect("tokens"),
                block_size: small(&v["block_size"]),
                tier: tier(v),
                lora: v["lora_name"].as_str().map(Arc::from),
                salt,
                group: small(&v["group_idx"]),
                kind: GroupKind::Full,
                session: v["session_id"].as_str().map(Arc::from),
                echo: v["medium"] == "cpu",
                ..BlockStored::default()
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
    assert_eq!(check(VLLM, Some(Layout::Vllm)), 32);
}

/// I-KVW-3, I-KVW-4.
#[test]
fn sglang_0_5_23() {
    assert_eq!(check(SGLANG, Some(Layout::Sglang)), 10);
}

#[test]
fn vllm_with_a_store_connector() {
    // Its own events have other optional fields than the block pool's, so only decoding is exact.
    assert_eq!(check(VLLM_MOONCAKE, None), 74);
}

#[test]
fn dynamo_mocker() {
    assert_eq!(check(DYNAMO_MOCKER, None), 7);
}
