//! The admin API, tool events and metrics.

use serde_json::json;
use tokio::net::TcpListener;
use zeromq::{PushSocket, Socket as _, SocketSend as _, ZmqMessage};

use crate::client;
use crate::engine::Engine;
use crate::setup::{Setup, chat, start, start_with};

async fn admin(setup: &Setup, request: String, body: &str) -> client::Answer {
    let request = format!(
        "{request} HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    client::call(setup.gateway.admin_addr(), request.as_bytes()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_come_and_go() {
    let (a, b) = (Engine::fine().await, Engine::fine().await);
    let setup = start(&[&a]).await;
    let body = json!({"url": format!("{}/v1", b.url)}).to_string();
    let added = admin(&setup, "POST /workers".to_owned(), &body).await;
    assert_eq!((added.status, added.json()), (201, json!({"id": 1})));
    assert_eq!(admin(&setup, "POST /workers".to_owned(), &body).await.status, 409);
    let bad = admin(&setup, "POST /workers".to_owned(), "{\"url\": \"ftp://x\"}").await;
    assert_eq!(bad.status, 400);
    assert!(bad.json()["error"]["message"].as_str().expect("a message").contains("use http://"));
    setup.ready().await;

    assert_eq!(admin(&setup, "POST /workers/0/drain".to_owned(), "").await.status, 200);
    setup.admin_until("/workers", |workers| workers["workers"][0]["state"] == "draining").await;
    for n in 0..4 {
        assert_eq!(setup.chat(&chat(&format!("turn {n}"), false)).await.status, 200);
    }
    assert_eq!((a.calls().len(), b.calls().len()), (0, 4));
    assert_eq!(admin(&setup, "POST /workers/0/undrain".to_owned(), "").await.status, 200);
    assert_eq!(admin(&setup, "DELETE /workers/1".to_owned(), "").await.status, 200);
    assert_eq!(admin(&setup, "DELETE /workers/9".to_owned(), "").await.status, 404);
    setup
        .admin_until("/workers", |workers| {
            workers["engines"].as_array().is_some_and(|list| list.len() == 1)
                && workers["workers"][0]["state"] == "ready"
        })
        .await;
    assert_eq!(setup.chat(&chat("last", false)).await.status, 200);
    assert_eq!(a.calls().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_and_sessions_can_be_explained_and_ended() {
    let engine = Engine::fine().await;
    let setup = start(&[&engine]).await;
    let headers = "x-session-id: s-1\r\nx-request-id: r-1\r\n";
    assert_eq!(setup.post("/v1/chat/completions", headers, &chat("hi", true)).await.status, 200);
    let sessions = setup.admin_until("/sessions", |s| s["programs"][0]["live_turns"] == 0).await;
    assert_eq!(sessions["programs"][0]["program"]["session"], "s-1");
    let explained = setup.admin("/turns/r-1").await;
    assert_eq!(explained["decisions"], setup.admin("/turns/t1").await["decisions"]);
    assert_eq!(explained["decisions"][0]["worker"], json!({"engine": 0, "rank": 0}));
    assert!(explained["decisions"][0]["reason"].is_string());
    assert_eq!(admin(&setup, "GET /turns/nobody".to_owned(), "").await.status, 404);
    assert_eq!(admin(&setup, "DELETE /sessions/s-1".to_owned(), "").await.json(), json!({"ended": 1}));
    setup.admin_until("/sessions", |s| s["total"] == 0).await;
    assert_eq!(admin(&setup, "DELETE /sessions/s-1".to_owned(), "").await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_is_shown() {
    let engine = Engine::fine().await;
    let setup = start_with(&[&engine], |config| {
        config.auth = serde_json::from_value(json!({"api_keys": [{"key": "sk-client"}]})).expect("valid");
        config.worker_api_key = serde_json::from_value(json!("sk-engine")).expect("valid");
    })
    .await;
    setup.ready().await;
    for path in ["/config", "/workers"] {
        let text = setup.admin(path).await.to_string();
        assert!(!text.contains("sk-"), "{path}: {text}");
    }
    let headers = "authorization: Bearer sk-client\r\n";
    assert_eq!(setup.post("/v1/chat/completions", headers, &chat("hi", false)).await.status, 200);
    assert_eq!(engine.calls()[0].header("authorization"), Some("Bearer sk-engine"));
}

fn tool_event(call: &str) -> serde_json::Value {
    json!({"schema": "dynamo.request.trace.v1", "event_type": "tool_end", "event_time_unix_ms": 1000,
        "event_source": "harness", "agent_context": {"session_id": "s-1"},
        "tool": {"tool_call_id": call, "tool_class": "bash", "started_at_unix_ms": 10, "ended_at_unix_ms": 20,
            "status": "succeeded"}})
}

#[tokio::test(flavor = "multi_thread")]
async fn tool_events_come_in_over_http_and_zeromq() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let endpoint = format!("tcp://{}", listener.local_addr().expect("an address"));
    drop(listener);
    let engine = Engine::fine().await;
    let setup =
        start_with(&[&engine], |config| config.tool_events.zmq_endpoint = Some(endpoint.clone())).await;
    let body = format!("[{}, {{\"schema\": \"other\"}}]", tool_event("call-http"));
    let taken = admin(&setup, "POST /v1/tool_events".to_owned(), &body).await.json();
    assert_eq!((taken["accepted"].as_u64(), taken["refused"][0]["index"].as_u64()), (Some(1), Some(1)));

    let mut socket = PushSocket::new();
    socket.connect(&endpoint).await.expect("connects");
    let event = rmp_serde::to_vec_named(&tool_event("call-zmq")).expect("packs");
    for frames in
        [vec![b"agent-tool-events".to_vec(), 1_u64.to_be_bytes().to_vec(), event], vec![b"junk".to_vec()]]
    {
        let mut message = ZmqMessage::from(frames[0].clone());
        for frame in &frames[1..] {
            message.push_back(frame.clone().into());
        }
        socket.send(message).await.expect("sent");
    }
    let counted = async {
        loop {
            let metrics = setup.metrics().await;
            if metrics.contains("tandem_tool_events_total{outcome=\"accepted\"} 2")
                && metrics.contains("tandem_tool_events_total{outcome=\"invalid\"} 2")
            {
                break;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), counted).await.expect("both came");
    setup.gateway.begin_shutdown();
    setup.gateway.wait().await;
    let mut ids: Vec<_> = setup
        .events()
        .iter()
        .filter(|event| event["event_type"] == "tool_end")
        .map(|event| event["tool"]["tool_call_id"].to_string())
        .collect();
    ids.sort();
    assert_eq!(ids, ["\"call-http\"", "\"call-zmq\""]);
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_tell_what_happened() {
    let engine = Engine::fine().await;
    let setup = start(&[&engine]).await;
    assert_eq!(setup.chat(&chat("hi", true)).await.status, 200);
    setup.idle().await;
    let metrics = setup.metrics().await;
    for line in [
        "tandem_turns_total{dialect=\"chat\",outcome=\"finished\"} 1",
        "tandem_requests_total{route=\"chat\",status=\"2xx\"} 1",
        "tandem_input_tokens_total 7",
        "tandem_cached_tokens_total 4",
        "tandem_output_tokens_total 3",
        "tandem_turns_in_flight 0",
        "tandem_body_memory_bytes 0",
        "tandem_worker_turns_total{worker=\"e0r0\"} 1",
        "tandem_workers{state=\"ready\"} 1",
        "# TYPE process_resident_memory_bytes gauge",
    ] {
        assert!(metrics.contains(line), "{line} is not in:\n{metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_error_has_the_one_form() {
    let engine = Engine::fine().await;
    let setup = start(&[&engine]).await;
    for (line, body, status) in [
        ("POST /workers", "{", 400),
        ("POST /workers", "{\"uri\": \"http://a\"}", 422),
        ("DELETE /workers/x", "", 400),
        ("GET /turns?limit=-5", "", 400),
        ("PUT /workers", "", 405),
        ("GET /nowhere", "", 404),
    ] {
        let answer = admin(&setup, line.to_owned(), body).await;
        assert_eq!(answer.status, status, "{line}");
        let said = answer.json()["error"]["message"].as_str().map(str::len);
        assert!(said.is_some_and(|length| length > 0), "{line}: {}", answer.text());
    }
}
