//! The gateway in front of modelled engines: what a session gains, end to end.

use serde_json::{Value, json};
use tandem_mock_engine::{MockConfig, MockEngine, MockKind, MockModel};

use crate::setup::{Setup, outcome, start_at};

async fn engines(kind: MockKind) -> (Vec<MockEngine>, Setup) {
    let mut engines = Vec::new();
    for _ in 0..2 {
        let mut config = MockConfig { kind, models: vec![MockModel::base("tiny")], ..MockConfig::default() };
        config.flags.prompt_tokens_details = true;
        config.flags.scale_out = true;
        engines.push(MockEngine::start(config).await.expect("starts"));
    }
    let setup = start_at(engines.iter().map(MockEngine::url).collect(), |config| {
        config.trace.tokens = tandem_gateway::config::TraceTokens::Render;
    })
    .await;
    setup.ready().await;
    (engines, setup)
}

async fn sessions(kind: MockKind) -> Vec<Value> {
    const TURNS: usize = 3;
    let (engines, setup) = engines(kind).await;
    for session in 0..4 {
        let mut history = vec![json!({"role": "system", "content": "long instructions ".repeat(60)})];
        for turn in 0..TURNS {
            history.push(json!({"role": "user", "content": format!("session {session} turn {turn}")}));
            let body =
                json!({"model": "tiny", "stream": turn % 2 == 0, "max_tokens": 16, "messages": history});
            let headers = format!("x-session-id: session-{session}\r\n");
            let answer = setup.post("/v1/chat/completions", &headers, &body).await;
            assert_eq!((answer.status, answer.complete), (200, true), "{}", answer.text());
            history.push(json!({"role": "assistant", "content": "noted"}));
        }
    }
    let rows = setup.rows().await;
    assert_eq!(rows.len(), 4 * TURNS);
    for engine in engines {
        engine.stop().await;
    }
    rows
}

/// Sessions stay where their cache is: from the second turn on, most of the prompt is cached.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_find_their_cache_on_vllm() {
    for row in sessions(MockKind::Vllm).await {
        assert_eq!(outcome(&row).0, "finished");
        let request = &row["request"];
        let (input, cached) = (request["input_tokens"].as_u64(), request["cached_tokens"].as_u64());
        assert!(input.is_some_and(|tokens| tokens > 100), "{request}");
        let first = row["request"]["replay"]["input_length"].as_u64();
        assert_eq!(first, input, "the rendered prompt is the one that was computed");
        assert!(cached <= input);
    }
    let rows = sessions(MockKind::Vllm).await;
    let later =
        rows.iter().filter(|row| row["request"]["kv_hit_rate"].as_f64().is_some_and(|rate| rate > 0.5));
    assert!(later.count() >= 8, "two of three turns of each session, at least");
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_run_on_sglang() {
    for row in sessions(MockKind::Sglang).await {
        assert_eq!(outcome(&row).0, "finished");
        assert!(row["request"]["output_tokens"].as_u64().is_some_and(|tokens| tokens > 0));
    }
}
