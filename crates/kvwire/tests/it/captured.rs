//! Frames captured from real publishers, each with its decoded form beside it, which a Python msgpack library
//! made of the same bytes.

use serde_json::Value;

pub(crate) struct Captured {
    pub(crate) frames: Vec<Vec<u8>>,
    pub(crate) topic: String,
    pub(crate) seq: u64,
    pub(crate) timestamp: f64,
    pub(crate) decoded: Value,
}

pub(crate) fn captured(jsonl: &str) -> Vec<Captured> {
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

pub(crate) const VLLM: &str = include_str!("../fixtures/vllm-0.32.0.jsonl");
pub(crate) const VLLM_MOONCAKE: &str = include_str!("../fixtures/vllm-0.32.0-mooncake-connector.jsonl");
pub(crate) const SGLANG: &str = include_str!("../fixtures/sglang-0.5.23.jsonl");
pub(crate) const DYNAMO_MOCKER: &str = include_str!("../fixtures/dynamo-mocker-1.6.1.jsonl");
pub(crate) const MOONCAKE: &str = include_str!("../fixtures/mooncake-0.3.14.jsonl");
pub(crate) const MOONCAKE_FROM_VLLM: &str = include_str!("../fixtures/mooncake-0.3.14-from-vllm.jsonl");
