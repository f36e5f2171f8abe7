//! What must always work: bytes through unchanged, usage asked for and taken out, rows and ids.

use serde_json::json;

use crate::client::{self, Client};
use crate::engine::{self, Engine, chat_stream};
use crate::setup::{chat, messages, outcome, start, start_with};

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_passes_unchanged_and_its_usage_is_asked_for_and_taken_out() {
    let engine = Engine::fine().await;
    let setup = start(&[&engine]).await;
    let answer = setup.post("/v1/chat/completions", "x-request-id: mine-1\r\n", &chat("hi", true)).await;
    assert_eq!((answer.status, answer.complete), (200, true));
    assert_eq!(answer.text(), chat_stream(false).concat());
    assert_eq!(answer.header("x-request-id"), Some("mine-1"));
    assert_eq!(answer.header("x-tandem-worker"), Some("e0r0"));
    let sent = &engine.calls()[0];
    assert_eq!(sent.json()["stream_options"]["include_usage"], true);
    assert_eq!(sent.header("accept-encoding"), Some("identity"));
    assert_eq!(sent.header("x-request-id"), Some("mine-1"));

    // Asked for by the client itself: nothing is taken out.
    let mut body = chat("hi", true);
    body["stream_options"] = json!({"include_usage": true});
    assert_eq!(setup.chat(&body).await.text(), chat_stream(true).concat());

    let rows = setup.rows().await;
    assert_eq!(rows.len(), 2);
    for row in &rows {
        assert_eq!(outcome(row).0, "finished");
        assert_eq!(row["request"]["input_tokens"], 7);
        assert_eq!(row["request"]["output_tokens"], 3);
        assert_eq!(row["request"]["cached_tokens"], 4);
        assert_eq!(row["request"]["worker"]["decode_worker_id"], 0);
        assert!(row["request"]["ttft_ms"].as_f64().expect("a time") >= 0.0);
    }
    assert_ne!(rows[0]["request"]["request_id"], rows[1]["request"]["request_id"]);
}

/// I-GW-3.
#[tokio::test(flavor = "multi_thread")]
async fn bytes_of_the_request_reach_the_engine_as_they_were() {
    let engine = Engine::fine().await;
    let setup = start(&[&engine]).await;
    let body =
        r#"{ "model":"tiny" ,"messages":[{"role":"user","content":"\u00e9 \/ é"}], "x":[1e2, null ] }"#;
    let body = body.as_bytes();
    let answer = client::call(setup.addr(), &client::post("/v1/chat/completions?a=b", "", body)).await;
    assert_eq!(answer.status, 200);
    let sent = &engine.calls()[0];
    assert_eq!(sent.body, body);
    assert_eq!(sent.path, "/v1/chat/completions?a=b");
    let slashed = client::call(setup.addr(), &client::post("/v1/chat/completions/", "", body)).await;
    assert_eq!((slashed.status, engine.calls()[1].path.as_str()), (200, "/v1/chat/completions"));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_token_passes_at_once() {
    let (tokens, received) = tokio::sync::mpsc::channel::<String>(1);
    let received = std::sync::Arc::new(tokio::sync::Mutex::new(received));
    let engine = Engine::start(move |call| {
        let received = std::sync::Arc::clone(&received);
        Box::pin(async move {
            call.stream_head().await;
            let mut received = received.lock().await;
            while let Some(piece) = received.recv().await {
                call.chunk(piece.as_bytes()).await;
            }
            call.end().await;
        })
    })
    .await;
    let setup = start(&[&engine]).await;
    let mut client = Client::connect(setup.addr()).await;
    client.send(&client::post("/v1/chat/completions", "", chat("hi", true).to_string().as_bytes())).await;
    client.until("\r\n\r\n").await;
    // Each piece is sent only when the one before was read by the client: nothing may be held back.
    for n in 0..5 {
        let text = format!("token-{n}");
        tokens.send(engine::chunk(&json!({"content": text}), None)).await.expect("the engine listens");
        client.until(&text).await;
    }
    tokens.send(engine::chunk(&json!({}), Some("stop"))).await.expect("the engine listens");
    tokens.send(engine::DONE.to_owned()).await.expect("the engine listens");
    drop(tokens);
    let answer = client.answer().await;
    assert!(answer.complete && answer.text().ends_with(engine::DONE));
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_stay_on_their_worker_and_their_turns_are_traced_with_them() {
    let (a, b) = (Engine::fine().await, Engine::fine().await);
    let setup = start(&[&a, &b]).await;
    setup.ready().await;
    let headers = "x-claude-code-session-id: 0b0b0b0b-1111-4222-8333-444444444444\r\n";
    for turn in 0..6 {
        let answer =
            setup.post("/v1/messages?beta=true", headers, &messages(&format!("turn {turn}"), true)).await;
        assert_eq!(answer.text(), engine::messages_stream().concat());
    }
    let (on_a, on_b) = (a.calls().len(), b.calls().len());
    assert!((on_a, on_b) == (6, 0) || (on_a, on_b) == (0, 6), "{on_a} and {on_b}");
    for row in setup.rows().await {
        assert_eq!(row["agent_context"]["session_id"], "0b0b0b0b-1111-4222-8333-444444444444");
        assert_eq!(row["request"]["finish_reason_metadata"]["finish_reason"], "stop");
        assert_eq!(row["tandem"]["harness"], "claude_code");
    }
}

// I-FLT-2.
#[tokio::test(flavor = "multi_thread")]
async fn refusals_of_the_engine_pass_unchanged_and_count_for_nothing() {
    let words = r#"{"error":{"message":"maximum context length is 8192","code":400}}"#;
    let engine = Engine::start(move |call| {
        Box::pin(async move {
            let status = if call.seen.json()["messages"][0]["content"] == "teapot" { 418 } else { 400 };
            call.respond(status, "content-type: application/json\r\nx-engine: 1\r\n", words.as_bytes()).await;
        })
    })
    .await;
    let setup = start(&[&engine]).await;
    for turn in 0..12 {
        let answer = setup.chat(&chat(&format!("too long {turn}"), turn % 2 == 0)).await;
        assert_eq!((answer.status, answer.text().as_str()), (400, words));
        assert_eq!(answer.header("x-engine"), Some("1"));
    }
    assert_eq!(setup.chat(&chat("teapot", true)).await.status, 418);
    assert_eq!(engine.calls().len(), 13, "each was sent once");
    let workers = setup.admin("/workers").await;
    assert_eq!(workers["workers"][0]["breaker"]["closed"]["failures"], 0);
    let rows = setup.rows().await;
    assert_eq!(rows.len(), 13);
    assert!(rows.iter().all(|row| outcome(row) == ("failed".to_owned(), "refused".to_owned())));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engines_own_error_event_passes_once_and_is_no_success() {
    let error = "data: {\"error\": {\"message\": \"EngineCore died\", \"type\": \"InternalServerError\", \"code\": 500}}\n\n";
    let pieces =
        vec![engine::chunk(&json!({"content": "par"}), None), error.to_owned(), engine::DONE.to_owned()];
    let wanted = pieces.concat();
    let engine = Engine::start(move |call| {
        let pieces = pieces.clone();
        Box::pin(async move { call.stream(&pieces).await })
    })
    .await;
    let setup = start(&[&engine]).await;
    assert_eq!(setup.chat(&chat("hi", true)).await.text(), wanted);
    assert_eq!(engine.calls().len(), 1);
    let rows = setup.rows().await;
    assert_eq!(outcome(&rows[0]), ("failed".to_owned(), "engine_error".to_owned()));
    assert_eq!(rows[0]["tandem"]["outcome"]["error_type"], "InternalServerError");
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_request_ids_at_the_same_time_reach_engines_as_different_ones() {
    let engine = Engine::start(|call| {
        Box::pin(async move {
            if call.seen.json()["messages"][0]["content"] == "wait" {
                call.gone().await;
            } else {
                engine::fine(call).await;
            }
        })
    })
    .await;
    let setup = start(&[&engine]).await;
    let mut first = Client::connect(setup.addr()).await;
    let body = chat("wait", false).to_string();
    first.send(&client::post("/v1/chat/completions", "x-request-id: same\r\n", body.as_bytes())).await;
    engine.wait_calls(1).await;
    let second = setup.post("/v1/chat/completions", "x-request-id: same\r\n", &chat("hi", false)).await;
    assert_eq!((second.status, second.header("x-request-id")), (200, Some("same")));
    drop(first);
    engine.wait_gone(1).await;
    setup.idle().await;
    let third = setup.post("/v1/chat/completions", "x-request-id: same\r\n", &chat("hi", false)).await;
    assert_eq!(third.status, 200);
    let ids: Vec<_> = engine.calls().iter().map(|c| c.header("x-request-id").map(str::to_owned)).collect();
    assert_eq!(ids[0].as_deref(), Some("same"));
    assert_ne!(ids[1].as_deref(), Some("same"));
    assert_eq!(ids[2].as_deref(), Some("same"));
    let mut own: Vec<_> = setup.rows().await.iter().map(|r| r["request"]["request_id"].to_string()).collect();
    own.sort();
    own.dedup();
    assert_eq!(own.len(), 3, "row ids are unique whatever clients send");
}

#[tokio::test(flavor = "multi_thread")]
async fn large_answers_that_do_not_stream_pass_as_they_come() {
    let engine = Engine::start(|call| {
        Box::pin(async move {
            call.respond(200, "content-type: application/json\r\n", &vec![b'x'; 3 << 20]).await
        })
    })
    .await;
    let setup =
        start_with(&[&engine], |config| config.limits.answer_buffer = "1MiB".parse().expect("a size")).await;
    let answer = setup.chat(&chat("hi", false)).await;
    assert!(answer.complete);
    assert_eq!(answer.body, vec![b'x'; 3 << 20]);
    assert_eq!(setup.rows().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_billing_line_is_taken_out_and_tenants_are_salted() {
    let engine = Engine::fine().await;
    let setup = start_with(&[&engine], |config| {
        config.auth = serde_json::from_value(json!({"api_keys": [
            {"key": "k-a", "tenant": "a"}, {"key": "k-b", "tenant": "b"}]}))
        .expect("valid");
    })
    .await;
    let mut body = messages("hi", false);
    let line = "x-anthropic-billing-header: cc_version=2.1.332.abc; cc_entrypoint=sdk-cli;";
    body["system"] = json!([{"type": "text", "text": line}, {"type": "text", "text": "be good"}]);
    let session = "x-claude-code-session-id: 0b0b0b0b-1111-4222-8333-444444444444\r\n";
    for key in ["k-a", "k-b", "k-a"] {
        let headers = format!("{session}x-api-key: {key}\r\n");
        assert_eq!(setup.post("/v1/messages", &headers, &body).await.status, 200);
    }
    let calls = engine.calls();
    assert!(calls.iter().all(|call| !String::from_utf8_lossy(&call.body).contains("billing")));
    assert!(calls.iter().all(|call| call.json()["system"].to_string().contains("be good")));
    assert!(calls.iter().all(|call| call.header("x-api-key").is_none()), "keys of clients stay here");
    let salts: Vec<_> = calls.iter().map(|call| call.json()["cache_salt"].to_string()).collect();
    assert_eq!(salts[0], salts[2]);
    assert_ne!(salts[0], salts[1]);
    // One id, two tenants: two programs.
    let sessions = setup.admin("/sessions").await;
    assert_eq!(sessions["total"], 2);
    assert_eq!(setup.admin("/sessions?tenant=a").await["programs"].as_array().map(Vec::len), Some(1));
}
