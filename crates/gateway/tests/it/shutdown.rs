//! The way down: streams in flight finish, nothing is lost, and what does not end is cut and told.

use std::time::Duration;

use serde_json::json;
use tandem_gateway::config::Span;

use crate::client::{self, Client};
use crate::engine::{self, Engine, chat_stream};
use crate::setup::{chat, outcome, start, start_with};

/// I-GW-1, I-LOG-3, I-SRV-3.
#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_under_load_loses_no_stream_and_no_row() {
    const STREAMS: usize = 16;
    let (release, gate) = tokio::sync::watch::channel(false);
    let engine = Engine::start(move |call| {
        let mut gate = gate.clone();
        Box::pin(async move {
            let pieces = chat_stream(true);
            call.stream_head().await;
            call.chunk(pieces[0].as_bytes()).await;
            let _ = gate.wait_for(|open| *open).await;
            for piece in &pieces[1..] {
                call.chunk(piece.as_bytes()).await;
            }
            call.end().await;
        })
    })
    .await;
    let setup = start(&[&engine]).await;
    let mut clients = Vec::new();
    for n in 0..STREAMS {
        let mut client = Client::connect(setup.addr()).await;
        let body = chat(&format!("stream {n}"), true).to_string();
        client.send(&client::post("/v1/chat/completions", "", body.as_bytes())).await;
        client.until("assistant").await;
        clients.push(client);
    }
    let idle = Client::connect(setup.addr()).await;
    setup.gateway.begin_shutdown();
    let _ = idle.closed().await;
    while tokio::net::TcpStream::connect(setup.addr()).await.is_ok() {
        tokio::task::yield_now().await;
    }
    release.send(true).expect("the engine listens");
    for mut client in clients {
        let answer = client.answer().await;
        assert!(answer.complete, "the stream in flight finishes");
        assert_eq!(answer.text(), chat_stream(false).concat());
    }
    let rows = setup.rows().await;
    assert_eq!(rows.len(), STREAMS);
    assert!(rows.iter().all(|row| outcome(row).0 == "finished"));
}

/// I-SRV-3.
#[tokio::test(flavor = "multi_thread")]
async fn what_outlasts_the_grace_is_cut_and_told() {
    let engine = Engine::start(|call| Box::pin(async move { call.gone().await })).await;
    let setup = start_with(&[&engine], |config| config.timeouts.shutdown_grace = Span::millis(100)).await;
    let mut client = Client::connect(setup.addr()).await;
    client.send(&client::post("/v1/chat/completions", "", chat("hi", false).to_string().as_bytes())).await;
    engine.wait_calls(1).await;
    let rows = setup.rows().await;
    engine.wait_gone(1).await;
    assert_eq!(client.closed().await, b"");
    assert_eq!(rows.len(), 1);
    assert_eq!(outcome(&rows[0]), ("cancelled".to_owned(), "shutdown".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_goes_before_the_door_is_closed() {
    let engine = Engine::fine().await;
    let setup = start_with(&[&engine], |config| config.timeouts.shutdown_delay = Span::secs(30)).await;
    setup.ready().await;
    assert_eq!(setup.get("/readiness").await.status, 200);
    setup.gateway.begin_shutdown();
    let answer = setup.get("/readiness").await;
    assert_eq!((answer.status, answer.json()["status"].as_str()), (503, Some("draining")));
    assert_eq!(setup.chat(&chat("hi", false)).await.status, 200, "calls are still taken");
    setup.gateway.abort();
    tokio::time::timeout(Duration::from_secs(20), setup.gateway.wait()).await.expect("ends");
}

/// I-LOG-2.
#[tokio::test(flavor = "multi_thread")]
async fn a_trace_of_a_prompt_sent_as_tokens_carries_its_hashes() {
    let engine = Engine::start(|call| {
        Box::pin(async move {
            let choice = json!({"index": 0, "text": "x", "finish_reason": "stop", "token_ids": [7, 8]});
            let usage = json!({"prompt_tokens": 20, "completion_tokens": 2, "total_tokens": 22});
            let body =
                json!({"id": "cmpl-1", "object": "text_completion", "choices": [choice], "usage": usage});
            call.json(200, &body).await;
        })
    })
    .await;
    let setup = start(&[&engine]).await;
    let prompt: Vec<u32> = (0..20).collect();
    let body = json!({"model": "tiny", "prompt": prompt, "return_token_ids": true});
    assert_eq!(setup.post("/v1/completions", "", &body).await.status, 200);
    let rows = setup.rows().await;
    let replay = &rows[0]["request"]["replay"];
    assert_eq!((replay["trace_block_size"].as_u64(), replay["input_length"].as_u64()), (Some(16), Some(20)));
    let size = std::num::NonZeroU32::new(16).expect("not zero");
    assert_eq!(replay["input_sequence_hashes"], json!(tandem_trace::hash::sequence_hashes(&prompt, size)));
    assert!(replay["output_sequence_hashes"].as_array().is_some_and(|hashes| hashes.len() == 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rendered_prompt_gives_hashes_too() {
    let engine = Engine::start(|call| {
        Box::pin(async move {
            if call.seen.path.ends_with("/render") {
                call.json(200, &json!([{"token_ids": [1, 2, 3]}])).await;
            } else {
                engine::fine(call).await;
            }
        })
    })
    .await;
    let setup = start_with(&[&engine], |config| {
        config.trace.tokens = tandem_gateway::config::TraceTokens::Render;
    })
    .await;
    assert_eq!(setup.chat(&chat("hi", true)).await.status, 200);
    let rows = setup.rows().await;
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["request"]["replay"]["input_length"], 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn content_is_in_the_trace_only_where_it_was_asked_for_by_name() {
    let engine = Engine::fine().await;
    for wanted in [false, true] {
        let setup = start_with(&[&engine], |config| {
            if wanted {
                let names = [
                    ("TANDEM_TRACE", "1"),
                    ("TANDEM_TRACE_RECORDS", "request_end,request_payload"),
                    ("TANDEM_TRACE_FORMAT", "jsonl"),
                    ("TANDEM_TRACE_ROWS", "all"),
                    ("TANDEM_TRACE_PATH", config.trace.path.as_str()),
                    ("TANDEM_TRACE_HTTP_HEADER_CAPTURE_LIST", "x-team"),
                ]
                .map(|(name, value)| (name.to_owned(), value.to_owned()));
                let lookup = |name: &str| names.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
                let mut trace = config.trace.clone();
                let warnings = tandem_gateway::config::apply_trace_environment(&mut trace, lookup);
                assert_eq!(warnings.expect("usable"), []);
                config.trace = trace;
            }
        })
        .await;
        for stream in [false, true] {
            let headers = "x-team: red\r\n";
            let answer = setup.post("/v1/chat/completions", headers, &chat("secret words", stream)).await;
            assert_eq!(answer.status, 200);
        }
        setup.gateway.begin_shutdown();
        setup.gateway.wait().await;
        let events = setup.events();
        let all = json!(events).to_string();
        assert_eq!(all.contains("secret words"), wanted);
        let payloads: Vec<_> = events.iter().filter(|e| e["event_type"] == "request_payload").collect();
        assert_eq!(payloads.len(), if wanted { 2 } else { 0 });
        for payload in payloads.iter().map(|event| &event["payload"]) {
            let streamed = payload["request"]["stream"] == true;
            assert_eq!(payload["payload_complete"], !streamed);
            assert_eq!(payload["response"]["id"] == "chatcmpl-1", !streamed);
            assert_eq!(payload["http_request_headers"], json!({"x-team": "red"}));
        }
    }
}
