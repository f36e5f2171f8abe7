//! The store's events and object keys, against captures of Mooncake 0.3.14 and the layouts of both engines.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::{Value, json};
use tandem_kvwire::hash::sglang::prompt;
use tandem_kvwire::mooncake::event::{StoreLabels, decode, encode};
use tandem_kvwire::mooncake::sglang::{Half, SglangKey, SglangLayout, SglangPart};
use tandem_kvwire::mooncake::vllm::{VllmKey, VllmLayout};
use tandem_kvwire::mooncake::{ObjectChange, ObjectKey, StoreBatch, StoreEvent};
use tandem_kvwire::{DecodeError, Skipped, parse_message};
use tandem_types::KvEvent;

use crate::captured::{MOONCAKE, MOONCAKE_FROM_VLLM, VLLM_MOONCAKE, captured};
use crate::layouts::pack;

fn event(v: &Value) -> StoreEvent {
    let text = |name: &str| v[name].as_str().map(Into::into);
    let key = || text("object_key").expect("a key");
    StoreEvent {
        event_id: v["event_id"].as_u64().expect("id"),
        timestamp_ms: v["timestamp"].as_i64().expect("time"),
        change: match v["event_type"].as_str().expect("type") {
            "stored" => ObjectChange::Stored(key()),
            "removed" => ObjectChange::Removed(key()),
            "cleared" => ObjectChange::Cleared,
            other => panic!("type {other}"),
        },
        tenant: text("tenant_id"),
        backend: text("backend_id"),
        group: text("group_id"),
        medium: text("medium"),
    }
}

/// Returns the events.
fn check(jsonl: &str, labels: &StoreLabels) -> Vec<StoreEvent> {
    let mut events = Vec::new();
    for c in captured(jsonl) {
        let frames: Vec<&[u8]> = c.frames.iter().map(Vec::as_slice).collect();
        let message = parse_message(&frames).expect("three frames");
        assert_eq!((message.topic, message.seq), (&b""[..], c.seq));
        let decoded = decode(message.payload).expect("a batch");
        let expected = StoreBatch {
            timestamp_ms: c.decoded[0].as_i64().expect("time"),
            events: c.decoded[1].as_array().expect("events").iter().map(event).collect(),
        };
        assert_eq!((&decoded.batch, decoded.skipped), (&expected, Skipped::default()), "sequence {}", c.seq);
        assert_eq!(hex::encode(encode(&expected, labels)), hex::encode(message.payload));
        events.extend(expected.events);
    }
    events
}

/// I-MKE-2.
#[test]
fn mooncake_0_3_14() {
    let events = check(MOONCAKE, &StoreLabels { model: Some("tiny".into()), block_size: Some(64) });
    let count = |kind: fn(&ObjectChange) -> bool| events.iter().filter(|event| kind(&event.change)).count();
    assert_eq!(events.len(), 64);
    assert_eq!(count(|change| matches!(change, ObjectChange::Removed(_))), 57);
    assert_eq!(count(|change| *change == ObjectChange::Cleared), 1);
    assert_eq!(events.last().map(|event| event.event_id), Some(129));
}

/// I-MKV-1, I-MKV-2: the digests in the store's keys end with the ids in vLLM's own events, 54 of 54.
#[test]
fn the_stores_keys_are_vllms_blocks() {
    let mut in_store = BTreeSet::new();
    for event in check(MOONCAKE_FROM_VLLM, &StoreLabels::default()) {
        let ObjectChange::Stored(key) = &event.change else { panic!("{event:?}") };
        let Some(ObjectKey::Vllm(parsed)) = ObjectKey::parse(key) else { panic!("{key}") };
        assert_eq!(parsed.to_string(), **key);
        assert_eq!((parsed.head.as_str(), parsed.tp_rank, parsed.group), ("tiny-qwen3", 0, 0));
        let layout = VllmLayout::single("tiny-qwen3");
        assert_eq!(layout.keys(&parsed.digest).map(|key| key.to_string()).collect::<Vec<_>>(), [&**key]);
        in_store.insert(parsed.block_id());
    }
    let published: BTreeSet<u64> = captured(VLLM_MOONCAKE)
        .iter()
        .flat_map(|c| tandem_kvwire::decode(&c.frames[2]).expect("a batch").batch.events)
        .filter_map(|event| match event {
            KvEvent::Stored(stored) if stored.echo => Some(stored.block_hashes),
            _ => None,
        })
        .flatten()
        .collect();
    assert_eq!(in_store.len(), 54);
    assert_eq!(in_store, published);
}

/// I-MKE-1.
#[test]
fn odd_store_events_are_skipped_one_by_one() {
    let mut bytes = Vec::new();
    pack(
        &json!([1.5, [
            {"event_type": "stored", "object_key": "a", "seq_hashes": "none", "event_id": "x", "new": {"a": [1]}},
            {"event_type": "leased", "object_key": "a"},
            {"event_type": "stored"},
            {"event_type": "stored", "object_key": 5},
            {"event_type": "removed", "object_key": "a", "tenant_id": 5},
            ["stored", "a"],
            {"type": "BlockRemoved", "object_key": "b", "group_id": "g", "medium": 5},
            {"event_type": "cleared"},
        ]]),
        &mut bytes,
    );
    let d = decode(&bytes).expect("a batch");
    let plain = StoreEvent {
        event_id: 0,
        timestamp_ms: 0,
        change: ObjectChange::Stored("a".into()),
        tenant: None,
        backend: None,
        group: None,
        medium: None,
    };
    let removed =
        StoreEvent { change: ObjectChange::Removed("b".into()), group: Some("g".into()), ..plain.clone() };
    let cleared = StoreEvent { change: ObjectChange::Cleared, ..plain.clone() };
    assert_eq!(d.batch, StoreBatch { timestamp_ms: 1500, events: vec![plain, removed, cleared] });
    assert_eq!(d.skipped, Skipped { unknown_type: 1, malformed: 4, ..Skipped::default() });
    assert_eq!(decode(&[0x91, 0x07]), Err(DecodeError::Type(0)));
    assert_eq!(decode(&[0x92, 0xa1, b'x', 0x90]), Err(DecodeError::Type(1)));
}

fn page() -> [u8; 32] {
    prompt(None, &[1, 2, 3, 4], 4, false)[0]
}

const PAGE: &str = "cf97adeedb59e05bfd73a2b4c2a8885708c4f4f70c84c64b27120e72ab733b72";

/// I-MKS-1, I-MKS-2, I-MKS-3.
#[test]
fn sglang_keys_of_every_layout() {
    let check = |layout: &SglangLayout, prefix: &str, suffixes: &[&str]| {
        let expected: Vec<String> = suffixes.iter().map(|suffix| format!("{prefix}{PAGE}{suffix}")).collect();
        let keys = layout.keys(&page());
        assert_eq!(keys, expected);
        assert_eq!(layout.objects(), keys.len() as u64);
        for key in keys {
            let Some(ObjectKey::Sglang(parsed)) = ObjectKey::parse(&key) else { panic!("{key}") };
            assert_eq!((parsed.to_string(), parsed.page), (key, page()));
            assert!(!matches!(parsed.part, SglangPart::Pool(_)));
            assert_eq!(parsed.prefix, layout.prefix);
        }
    };
    let layout = SglangLayout::new;
    check(&layout(1, 1, false), "", &["_0_k", "_0_v"]);
    check(&layout(2, 1, false), "", &["_0_k", "_0_v", "_1_k", "_1_v"]);
    check(&layout(1, 2, false), "", &["_0_0_k", "_0_0_v", "_0_1_k", "_0_1_v"]);
    check(&layout(8, 1, true), "", &["__k"]);
    check(&layout(8, 2, true), "", &["_0_k", "_1_k"]);
    // A TP2 worker whose pages TP4 workers share: the grid of four.
    let split = SglangLayout { tp_lcm_size: Some(4), ..layout(2, 1, false) };
    check(&split, "", &["_0_k", "_0_v", "_1_k", "_1_v", "_2_k", "_2_v", "_3_k", "_3_v"]);
    let tagged = layout(1, 1, false).with_prefix(Some("tag"), None, None);
    check(&tagged, "tag_", &["_0_k", "_0_v"]);
    let named = layout(1, 1, true).with_prefix(Some("tag"), Some("org/model"), None);
    check(&named, "tag_org-model_", &["__k"]);
    let shards = SglangLayout { dcp_size: 2, cp_size: 1, ..layout(8, 2, true) };
    let shards = shards.with_prefix(None, Some("m"), Some(128));
    check(
        &shards,
        "m_tp8_dcp2_page128_pp2_cp1_",
        &["_dcp0_cp0_0_k", "_dcp1_cp0_0_k", "_dcp0_cp0_1_k", "_dcp1_cp0_1_k"],
    );
    let one_stage = SglangLayout { pp_size: 1, prefix: None, ..shards };
    check(&one_stage, "", &["_dcp0_cp0_k", "_dcp1_cp0_k"]);
    let empty = SglangLayout { prefix: Some(String::new()), ..layout(1, 1, true) };
    check(&empty, "_", &["__k"]);
    assert_eq!(named.group_id(&page()), format!("sglang-hicache:tag_org-model_{PAGE}"));
}

#[test]
fn sglang_keys_are_read_leniently() {
    let part = |suffix: &str| SglangKey::parse(&format!("a_{PAGE}{suffix}")).map(|key| key.part);
    let pool = |suffix: &str| Some(SglangPart::Pool(suffix.to_owned()));
    let heads = |rank, pp_rank, half| Some(SglangPart::Heads { rank, pp_rank, half });
    assert_eq!(part("_3_1_v"), heads(3, Some(1), Half::Value));
    for suffix in
        ["_0_temporal", "_0_conv_1", "_0_swa_k", "_0_draft_k", "__indexer", "", "_00_k", "_0_1_2_k", "__v"]
    {
        assert_eq!(part(suffix), pool(suffix), "{suffix}");
    }
    // A tag may look like a page: the last one counts.
    let other = "0".repeat(64);
    let twice = SglangKey::parse(&format!("{other}_{PAGE}_0_k")).expect("a key");
    assert_eq!((twice.prefix, twice.page), (Some(other), page()));
    for odd in ["", "plain-key", "_", "__k", &PAGE[1..], &PAGE.to_uppercase()] {
        assert_eq!(ObjectKey::parse(odd), None, "{odd}");
    }
}

#[test]
fn vllm_keys_of_several_ranks() {
    let layout = VllmLayout {
        tp_size: 2,
        pcp_size: 1,
        dcp_size: 1,
        pp_size: 2,
        groups: 2,
        ..VllmLayout::single("p@m-ns")
    };
    let keys: BTreeSet<String> = layout.keys(&[0xab; 16]).map(|key| key.to_string()).collect();
    assert_eq!(keys.len(), 8);
    let digest = "ab".repeat(16);
    assert!(keys.contains(&format!("p@m-ns@tp_rank:1@pcp0@dcp0@pp_rank:1@group:1@{digest}")));
    for key in &keys {
        let parsed = VllmKey::parse(key).expect("a key");
        assert_eq!(
            (parsed.to_string(), parsed.head.as_str(), parsed.digest),
            (key.clone(), "p@m-ns", vec![0xab; 16])
        );
    }
    assert_eq!(layout.group_id(&[0xab; 16]), format!("vllm-mooncake-store:p@m-ns@{digest}"));
    for odd in [
        format!("@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@{digest}"),
        format!("m@tp_rank:x@pcp0@dcp0@pp_rank:0@group:0@{digest}"),
        format!("m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:+1@{digest}"),
        format!("m@tp_rank:0@pcp0@dcp0@pp_rank:0@{digest}"),
        "m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@abc".to_owned(),
    ] {
        assert_eq!(VllmKey::parse(&odd), None, "{odd}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_parsed_key_is_written_again(
        key in prop_oneof![
            "[a-z_@:0-9]{0,40}",
            "[a-z_@]{0,9}_?[0-9a-f]{64}(_[0-9]{1,2}){0,2}_[kv]",
            "[a-z@]{0,9}@tp_rank:[0-9]{1,2}@pcp0@dcp[0-9]@pp_rank:1@group:2@([0-9a-f]{32}){1,2}",
        ],
    ) {
        match ObjectKey::parse(&key) {
            Some(ObjectKey::Vllm(parsed)) => prop_assert_eq!(parsed.to_string(), key),
            Some(ObjectKey::Sglang(parsed)) => prop_assert_eq!(parsed.to_string(), key),
            None => {}
        }
    }

    #[test]
    fn store_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        let _ = decode(&bytes);
        let _ = decode(&[&[0x93, 0x07, 0x9f], bytes.as_slice()].concat());
    }
}
