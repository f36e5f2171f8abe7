//! Tiers below the device, as clients and listeners see them.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use tandem_engine_model::{TierConfig, TiersConfig};
use tandem_mock_engine::{
    MockConfig, MockEngine, MockKind, MockModel, MockStore, MockTiers, StoreConfig, StoreUse,
};
use tandem_types::Tier;

use crate::client::Client;
use crate::events::{replay, stored};

/// A pool of 48 blocks of 32 tokens, which three prompts of 600 tokens overflow.
fn config(kind: MockKind, tiers: MockTiers) -> MockConfig {
    MockConfig {
        kind,
        models: vec![MockModel::base("org/tiny-qwen3")],
        block_size: 32,
        pool_tokens: Some(1536),
        max_model_len: 1024,
        tiers,
        ..MockConfig::default()
    }
}

/// Asks for 4 tokens after a prompt of 600; returns the cached tokens.
async fn ask(client: &Client, first: u32) -> u64 {
    let prompt: Vec<u32> = (first..first + 600).collect();
    let body = json!({"prompt": prompt, "max_tokens": 4, "ignore_eos": true});
    let reply = client.post("/v1/completions", &body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0)
}

fn metric(text: &str, name: &str) -> f64 {
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name}"));
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
}

/// Waits for something that the engine does on its own.
async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    for _ in 0..6_000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

/// The loop that was measured with the real vLLM and Mooncake: three prompts make 54 objects; the fourth
/// request, the first prompt again, finds 576 tokens, 8 blocks of them in the store. I-STC-1: nothing is found in a
/// store that has nothing of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn evicted_blocks_come_back_from_the_store() {
    let store = MockStore::start(StoreConfig::default()).await.expect("started");
    let tiers = MockTiers { store: Some(StoreUse { url: store.url(), head: None }), ..MockTiers::default() };
    let engine = MockEngine::start(config(MockKind::Vllm, tiers)).await.expect("started");
    let client = Client::new(&engine);
    for first in [0, 2_000, 4_000] {
        assert_eq!(ask(&client, first).await, 0);
    }
    until("54 objects", async || store.keys().len() == 54).await;
    assert_eq!(ask(&client, 0).await, 576);
    let metrics = client.get("/metrics").await;
    assert_eq!(metric(metrics.text(), "vllm:external_prefix_cache_hits_total"), 256.0);
    assert_eq!(store.keys().len(), 54, "nothing new was computed");

    // A block is told of by the device and by the connector's echo, under the id that its object's key ends in.
    let endpoint = engine.replay_endpoint().expect("replay");
    until("54 echoes", async || stored(&replay(endpoint, 0).await).iter().filter(|e| e.echo).count() == 54)
        .await;
    let events = stored(&replay(endpoint, 0).await);
    let of = |tier: Tier| -> BTreeSet<u64> {
        events.iter().filter(|e| e.tier == tier).flat_map(|e| e.block_hashes.clone()).collect()
    };
    let named: BTreeSet<u64> = store
        .keys()
        .iter()
        .map(|key| {
            let digest =
                key.strip_prefix("tiny-qwen3@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@").expect("a key");
            assert_eq!(digest.len(), 64);
            u64::from_str_radix(&digest[48..], 16).expect("hex")
        })
        .collect();
    assert_eq!((of(Tier::Device), of(Tier::Host)), (named.clone(), named));
    let echoes: Vec<_> = events.iter().filter(|e| e.echo).collect();
    assert_eq!(echoes.len(), 54);
    assert!(echoes.iter().all(|e| e.describes() && e.block_hashes.len() == 1 && e.session.is_none()));

    // A second engine of the same store begins warm.
    let tiers = MockTiers {
        store: Some(StoreUse { url: store.url(), head: Some("tiny-qwen3".to_owned()) }),
        ..MockTiers::default()
    };
    let other = MockEngine::start(config(MockKind::Vllm, tiers)).await.expect("started");
    assert_eq!(ask(&Client::new(&other), 2_000).await, 576);
}

/// Host memory serves what the device lost; metrics and events say so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn evicted_blocks_come_back_from_the_host() {
    for kind in [MockKind::Vllm, MockKind::Sglang] {
        let host = Some(TierConfig { tokens: 100_000, ..TierConfig::default() });
        let model = TiersConfig { host, ..TiersConfig::default() };
        let tiers = MockTiers { model, store: None };
        let engine = MockEngine::start(config(kind, tiers)).await.expect("started");
        let client = Client::new(&engine);
        for first in [0, 2_000, 4_000] {
            ask(&client, first).await;
        }
        let endpoint = engine.replay_endpoint().expect("replay").to_owned();
        until("copies in host memory", async || {
            let events = stored(&replay(&endpoint, 0).await);
            let host = events.iter().filter(|e| e.tier == Tier::Host && !e.echo);
            host.map(|e| e.block_hashes.len()).sum::<usize>() >= 54
        })
        .await;
        assert_eq!(ask(&client, 0).await, 576, "{kind:?}");
        let metrics = client.get("/metrics").await;
        let name = match kind {
            MockKind::Vllm => {
                "vllm:prompt_tokens_cached_by_source_total{engine=\"0\",model_name=\"org/tiny-qwen3\",source=\"host\"}"
            }
            MockKind::Sglang => "sglang:cached_tokens_total{cache_source=\"host\"",
        };
        assert!(metric(metrics.text(), name) >= 192.0, "{kind:?}");
    }
}

/// I-STC-2: with a store that is gone the engine goes on alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_gone_is_an_empty_one() {
    let store = MockStore::start(StoreConfig::default()).await.expect("started");
    let url = store.url();
    drop(store);
    let tiers = MockTiers { store: Some(StoreUse { url, head: None }), ..MockTiers::default() };
    let engine = MockEngine::start(config(MockKind::Vllm, tiers)).await.expect("started");
    let client = Client::new(&engine);
    assert_eq!(ask(&client, 0).await, 0);
    assert_eq!(ask(&client, 0).await, 576);
}

/// Ids of the real engines, by request: vLLM's golden vector of tokens 1 to 32, SGLang's of its page of 64.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_are_named_as_the_real_engines_name_them() {
    for (kind, block_size, ids) in [
        (MockKind::Vllm, 16, vec![1_403_909_460_543_360_175, 1_643_945_449_041_937_783]),
        (MockKind::Sglang, 64, vec![905_019_192_701_563_378]),
    ] {
        let config = MockConfig { kind, block_size, engine_hashes: true, ..MockConfig::default() };
        let engine = MockEngine::start(config).await.expect("started");
        let count = block_size * u32::try_from(ids.len()).expect("few");
        let prompt: Vec<u32> = (1..=count).chain([9]).collect();
        let body: Value = json!({"prompt": prompt, "max_tokens": 1});
        assert_eq!(Client::new(&engine).post("/v1/completions", &body).await.status, 200);
        let endpoint = engine.replay_endpoint().expect("replay");
        until("the blocks", async || !stored(&replay(endpoint, 0).await).is_empty()).await;
        let events = stored(&replay(endpoint, 0).await);
        let told: Vec<u64> = events.iter().flat_map(|e| e.block_hashes.clone()).collect();
        assert_eq!(told, ids, "{kind:?}");
    }
}
