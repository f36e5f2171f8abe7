//! Where the KV is, as the gateway knows it, against what modelled engines say they reused.

use serde_json::{Value, json};
use tandem_gateway::config::{ApiKey, PromptSource, Secret};
use tandem_mock_engine::{MockConfig, MockEngine, MockKind};

use crate::sessions::{BLOCK, Session, config, empty, engine, gateway};

/// Six turns of one session; each must be predicted to the token.
async fn predicted(kind: MockKind, sources: &[PromptSource]) {
    let (a, b) = (engine(kind).await, engine(kind).await);
    let setup = gateway(&[&a, &b], sources, |_| {}).await;
    setup.exact().await;
    let mut session = Session::new("s");
    for turn in 0..6 {
        let said = session.turn(&setup, &format!("question {turn} {}", "and more ".repeat(turn * 7))).await;
        assert_eq!((said.source.as_str(), said.ours), ("engine", Some(said.prompt)), "turn {turn}: {said:?}");
        assert_eq!(said.predicted, Some(said.cached), "turn {turn}: {said:?}");
        assert_eq!(said.cached > 0, turn > 0, "turn {turn}: {said:?}");
        session.known(&setup, &said).await;
    }
    let metrics = setup.metrics().await;
    assert!(
        metrics
            .contains("tandem_kv_predictions_total{source=\"engine\",outcome=\"equal\",claim=\"exact\"} 6"),
        "{metrics}"
    );
    a.stop().await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_predicted_to_the_token_on_vllm() {
    Box::pin(predicted(MockKind::Vllm, &[PromptSource::Engine])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_predicted_to_the_token_on_sglang() {
    Box::pin(predicted(MockKind::Sglang, &[PromptSource::Engine])).await;
}

/// Nothing is tokenized: the engines' events say what the session's path is, its lineage how much of it repeats.
#[tokio::test(flavor = "multi_thread")]
async fn lineage_alone_knows_the_next_turns_overlap() {
    let engine = engine(MockKind::Vllm).await;
    let setup = gateway(&[&engine], &[PromptSource::Lineage], |_| {}).await;
    setup.exact().await;
    let mut session = Session::new("s");
    let mut exact = 0;
    for turn in 0..8 {
        let said = session.turn(&setup, &format!("question {turn} {}", "and more ".repeat(20))).await;
        assert_eq!(said.source, if turn == 0 { "none" } else { "lineage" }, "turn {turn}: {said:?}");
        if turn > 0 {
            assert!(said.predicted.is_some_and(|tokens| tokens > 0 && tokens <= said.cached), "{said:?}");
        }
        exact += u32::from(said.predicted == Some(said.cached));
        let whole = said.blocks();
        setup.admin_until("/kv", |kv| kv["workers"][0]["blocks"].as_u64() >= Some(whole)).await;
    }
    assert!(exact >= 5, "once it is known that answers come back as they were: {exact}");
    engine.stop().await;
}

/// A gateway that starts in the middle of a session learns from replayed events what the engine holds.
#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_gateway_knows_what_was_cached_before() {
    let engine = engine(MockKind::Vllm).await;
    let mut session = Session::new("s");
    let before = gateway(&[&engine], &[PromptSource::Engine], |_| {}).await;
    let first = session.turn(&before, "before").await;
    drop(before);
    let after = gateway(&[&engine], &[PromptSource::Lineage, PromptSource::Engine], |_| {}).await;
    session.known(&after, &first).await;
    let said = session.turn(&after, "after").await;
    assert_eq!(said.source, "engine", "of earlier turns nothing is known");
    assert_eq!(said.predicted, Some(said.cached));
    assert!(said.cached >= first.prompt / BLOCK * BLOCK, "{said:?}");
    engine.stop().await;
}

/// The same by lineage alone: the engine's events still name the session.
#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_gateway_knows_a_session_by_what_the_engine_says_of_it() {
    let engine = engine(MockKind::Vllm).await;
    let mut session = Session::new("s");
    let before = gateway(&[&engine], &[PromptSource::Lineage], |_| {}).await;
    before.exact().await;
    let first = session.turn(&before, "before").await;
    drop(before);
    let after = gateway(&[&engine], &[PromptSource::Lineage], |_| {}).await;
    let whole = first.blocks();
    after.admin_until("/kv", |kv| kv["workers"][0]["blocks"].as_u64() >= Some(whole)).await;
    let said = session.turn(&after, "after").await;
    assert_eq!(said.source, "lineage", "{said:?}");
    assert_eq!(said.predicted, Some(said.cached));
    assert!(said.cached >= first.prompt / BLOCK * BLOCK, "{said:?}");
    let stranger = Session::new("t").turn(&after, "after").await;
    assert_eq!(stranger.source, "none", "another session is not this one: {stranger:?}");
    engine.stop().await;
}

/// SGLang takes a session's id in the body only; what the client wrote there itself stays.
#[tokio::test(flavor = "multi_thread")]
async fn sglang_is_told_of_the_session_in_the_body() {
    let mut kept = config(MockKind::Sglang);
    kept.record.bodies = true;
    let engine = MockEngine::start(kept).await.expect("starts");
    let setup = gateway(&[&engine], &[PromptSource::Lineage], |_| {}).await;
    setup.exact().await;
    Session::new("s").turn(&setup, "question").await;
    let bodies: Vec<Value> = (engine.records().into_iter())
        .filter(|record| record.path == "/v1/chat/completions")
        .filter_map(|record| serde_json::from_str(&record.body?).ok())
        .collect();
    assert_eq!(bodies.len(), 1);
    assert_eq!(bodies[0]["session_id"], "default/s");
    engine.stop().await;
}

/// An engine that publishes nothing is known by what was sent to it, and its turns are answered as any (I-KVG-1).
#[tokio::test(flavor = "multi_thread")]
async fn without_events_a_worker_is_known_by_what_was_sent_to_it() {
    let silent = MockConfig { kv_events: None, ..config(MockKind::Vllm) };
    let engine = MockEngine::start(silent).await.expect("starts");
    let setup = gateway(&[&engine], &[PromptSource::Engine], |_| {}).await;
    setup.admin_until("/kv", |kv| kv["workers"][0]["knowledge"] == "approximate").await;
    let mut session = Session::new("s");
    let first = session.turn(&setup, "one").await;
    let second = session.turn(&setup, "two").await;
    assert_eq!(first.predicted, Some(0));
    // The prompt is believed to be there; of the answer nothing is known.
    assert_eq!(second.predicted, Some(first.prompt / BLOCK * BLOCK), "{second:?}");
    engine.stop().await;
}

/// SGLang says at once that its cache was emptied.
#[tokio::test(flavor = "multi_thread")]
async fn a_cleared_cache_is_forgotten() {
    let engine = engine(MockKind::Sglang).await;
    let setup = gateway(&[&engine], &[PromptSource::Engine], |_| {}).await;
    setup.exact().await;
    let mut session = Session::new("s");
    session.known_turn(&setup, "one").await;
    empty(&engine, "/flush_cache").await;
    setup.admin_until("/kv", |kv| kv["workers"][0]["blocks"] == 0).await;
    let second = session.turn(&setup, "two").await;
    assert_eq!((second.predicted, second.cached), (Some(0), 0), "{second:?}");
    engine.stop().await;
}

/// vLLM says so only when it works the next time: one prediction is wrong, and no more. The turn is answered all the
/// same (I-KVG-1).
#[tokio::test(flavor = "multi_thread")]
async fn a_cache_that_was_cleared_silently_misleads_one_turn_only() {
    let engine = engine(MockKind::Vllm).await;
    let setup = gateway(&[&engine], &[PromptSource::Engine], |_| {}).await;
    setup.exact().await;
    let mut session = Session::new("s");
    session.known_turn(&setup, "one").await;
    empty(&engine, "/reset_prefix_cache").await;
    let second = session.turn(&setup, "two").await;
    assert_eq!(second.cached, 0, "{second:?}");
    session.known(&setup, &second).await;
    let third = session.turn(&setup, "three").await;
    assert_eq!(third.predicted, Some(third.cached), "{third:?}");
    assert!(third.cached > 0, "{third:?}");
    engine.stop().await;
}

/// What evictions take away is no longer predicted.
#[tokio::test(flavor = "multi_thread")]
async fn evicted_blocks_are_not_predicted() {
    let small = MockConfig { pool_tokens: Some(1024), ..config(MockKind::Vllm) };
    let engine = MockEngine::start(small).await.expect("starts");
    let setup = gateway(&[&engine], &[PromptSource::Engine], |_| {}).await;
    setup.exact().await;
    let mut sessions = ["a", "b", "c", "d"].map(Session::new);
    let mut lost = 0;
    for round in 0..3 {
        for session in &mut sessions {
            let said = session.turn(&setup, &format!("round {round} {}", "x".repeat(round * 40))).await;
            assert_eq!(said.predicted, Some(said.cached), "{} in round {round}: {said:?}", session.id);
            lost += u32::from(round > 0 && said.cached == 0);
            session.known(&setup, &said).await;
        }
    }
    assert!(lost > 0, "the pool is too small for all of them");
    engine.stop().await;
}

/// A dispatched prompt counts at once, before anything of it is computed.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_dispatched_counts_at_once() {
    let engine = engine(MockKind::Vllm).await;
    let setup = gateway(&[&engine], &[PromptSource::Engine], |_| {}).await;
    setup.exact().await;
    let mut session = Session::new("s");
    session.history.push(json!({"role": "user", "content": "hello"}));
    let before = setup.post_admin("/kv/match", &session.body()).await.json();
    assert_eq!(
        (before["source"].as_str(), &before["match"]["workers"]),
        (Some("engine"), &Value::Null),
        "{before}"
    );
    let said = session.turn(&setup, "and more").await;
    let after = setup.post_admin("/kv/match?dialect=chat", &session.body()).await.json();
    let device = after["match"]["workers"][0]["device"].as_u64().expect("held");
    assert!(device >= (said.prompt - 1) / BLOCK, "{after}");
    let bad = setup.post_admin("/kv/match", &json!([])).await;
    assert_eq!(bad.status, 400);
    engine.stop().await;
}

/// Tenants whose caches are kept apart do not find each other's prompts (I-KVG-5).
#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_does_not_match_what_another_has_cached() {
    let engine = engine(MockKind::Vllm).await;
    let setup = gateway(&[&engine], &[PromptSource::Engine], |config| {
        config.auth.api_keys = ["a", "b"]
            .map(|name| ApiKey { key: Secret::new(format!("key-{name}")), tenant: name.to_owned() })
            .to_vec();
    })
    .await;
    setup.exact().await;
    let as_tenant = |name: &'static str| {
        let mut session = Session::new("s");
        session.tenant = name;
        session.headers = format!("authorization: Bearer key-{name}\r\n");
        session
    };
    let (mut a, mut b) = (as_tenant("a"), as_tenant("b"));
    a.known_turn(&setup, "one").await;
    let other = b.turn(&setup, "one").await;
    assert_eq!((other.predicted, other.cached), (Some(0), 0), "{other:?}");
    let again = a.turn(&setup, "two").await;
    assert_eq!(again.predicted, Some(again.cached));
    assert!(again.cached > 0, "{again:?}");
    engine.stop().await;
}

/// What was predicted, what came of it and why: in the trace and in the explanation, without content.
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_system_prompt_is_told_as_the_cause() {
    let engine = engine(MockKind::Vllm).await;
    let setup = gateway(&[&engine], &[PromptSource::Engine], |_| {}).await;
    setup.exact().await;
    let mut session = Session::new("s");
    session.known_turn(&setup, "one").await;
    session.history[0] = json!({"role": "system", "content": "something-quite-different ".repeat(40)});
    session.headers = "x-request-id: asked\r\n".to_owned();
    session.turn(&setup, "two").await;
    let told = setup.admin_until("/admin/explain/asked", |told| told["prompts"][0].is_object()).await;
    let prompt = &told["prompts"][0];
    assert_eq!(prompt["divergence"]["cause"], "system_changed", "{prompt}");
    let split = &prompt["split"];
    let sum: u64 =
        ["new", "diverged", "moved", "evicted", "unknown"].iter().filter_map(|k| split[k].as_u64()).sum();
    assert_eq!(
        sum,
        prompt["input_tokens"].as_u64().expect("told") - prompt["cached_tokens"].as_u64().expect("told")
    );
    let metrics = setup.metrics().await;
    assert!(metrics.contains("tandem_prefix_divergence_total{cause=\"system_changed\"} 1"), "{metrics}");
    setup.gateway.begin_shutdown();
    setup.gateway.wait().await;
    let events = setup.events();
    let prefix: Vec<&Value> = events.iter().filter(|event| event["event_type"] == "prefix").collect();
    assert_eq!(prefix.len(), 2);
    assert_eq!(prefix[1]["divergence"]["cause"], "system_changed");
    let routed: Vec<&Value> = events.iter().filter(|event| event["event_type"] == "routing").collect();
    assert!(routed.iter().all(|event| event["terms"][0]["prefill"].is_u64()), "{routed:?}");
    assert!(routed.iter().all(|event| event["prefix"]["block_size"] == 16), "{routed:?}");
    let all = serde_json::to_string(&events).expect("json");
    assert!(!all.contains("quite-different") && !all.contains("instructions"), "content in the trace");
    engine.stop().await;
}

/// A session's turns go where its KV is, also when they come without an id.
#[tokio::test(flavor = "multi_thread")]
async fn turns_without_a_session_follow_the_cache() {
    let (a, b) = (engine(MockKind::Vllm).await, engine(MockKind::Vllm).await);
    let setup =
        gateway(&[&a, &b], &[PromptSource::Engine], |config| config.identity.generic_headers = false).await;
    setup.exact().await;
    let mut session = Session::new("s");
    let mut workers = Vec::new();
    for turn in 0..5 {
        let said = session.known_turn(&setup, &format!("question {turn}")).await;
        workers.push(said.worker);
    }
    workers.dedup();
    assert_eq!(workers.len(), 1, "{workers:?}");
    a.stop().await;
    b.stop().await;
}

/// Turns that name no session are told apart by what they extend.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_without_an_id_are_inferred() {
    let engine = engine(MockKind::Vllm).await;
    let setup = gateway(&[&engine], &[PromptSource::Engine], |config| {
        config.identity.generic_headers = false;
        config.identity.infer = true;
    })
    .await;
    let mut sessions = ["a", "b"].map(Session::new);
    for turn in 0..3 {
        for session in &mut sessions {
            session.turn(&setup, &format!("question {turn}")).await;
        }
    }
    let known = setup.admin("/sessions").await;
    assert_eq!(known["total"], 2, "{known}");
    let metrics = setup.metrics().await;
    assert!(metrics.contains("tandem_identity_total{source=\"inferred\"} 6"), "{metrics}");
    engine.stop().await;
}

/// Where the same text was sent before, without any tokens.
#[tokio::test(flavor = "multi_thread")]
async fn text_finds_what_was_sent_with_the_same_text() {
    let silent = MockConfig { kv_events: None, ..config(MockKind::Vllm) };
    let engine = MockEngine::start(silent).await.expect("starts");
    let setup = gateway(&[&engine], &[PromptSource::Text], |_| {}).await;
    setup.admin_until("/kv", |kv| kv["workers"][0]["knowledge"] == "approximate").await;
    let mut session = Session::new("s");
    session.turn(&setup, "one").await;
    let second = session.turn(&setup, "two").await;
    assert_eq!((second.source.as_str(), second.ours), ("text", None));
    assert!(second.predicted.is_some_and(|tokens| tokens > 0), "{second:?}");
    engine.stop().await;
}
