//! Every way to fail.

use std::time::Duration;

use http::Method;
use http_body_util::BodyExt;
use serde_json::json;
use tandem_mock_engine::{Fault, FaultRule, MockConfig, MockEngine, MockKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::Client;

const CHAT: &str = "/v1/chat/completions";

fn body(stream: bool) -> serde_json::Value {
    json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 12, "ignore_eos": true, "stream": stream})
}

async fn start() -> (MockEngine, Client) {
    let engine = MockEngine::start(MockConfig::default()).await.expect("started");
    let client = Client::new(&engine);
    (engine, client)
}

/// Raw bytes of an answer, until the connection ends or nothing more comes for a while.
async fn raw(engine: &MockEngine, fault: &str, stream: bool) -> (Vec<u8>, bool) {
    let mut socket = TcpStream::connect(engine.addr()).await.expect("connected");
    let body = body(stream).to_string();
    let request = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nx-mock-fault: {fault}\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    socket.write_all(request.as_bytes()).await.expect("sent");
    let mut seen = Vec::new();
    loop {
        let mut buffer = [0; 4096];
        match tokio::time::timeout(Duration::from_millis(300), socket.read(&mut buffer)).await {
            Err(_) => return (seen, false),
            Ok(Ok(0) | Err(_)) => return (seen, true),
            Ok(Ok(n)) => seen.extend_from_slice(&buffer[..n]),
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test]
async fn connections_break_where_they_are_told_to() {
    let (engine, _) = start().await;
    assert_eq!(raw(&engine, "close", true).await, (Vec::new(), true));
    assert_eq!(raw(&engine, "hang", true).await, (Vec::new(), false));
    let (garbage, closed) = raw(&engine, "garbage", false).await;
    assert!(closed && !garbage.is_empty() && !garbage.starts_with(b"HTTP"), "{}", text(&garbage));
    let (head, closed) = raw(&engine, "stall", true).await;
    assert!(!closed && text(&head).starts_with("HTTP/1.1 200"), "{}", text(&head));
    assert!(!text(&head).contains("data:"));
    for events in [0, 1, 5] {
        let (seen, closed) = raw(&engine, &format!("cut={events}"), true).await;
        let seen = text(&seen);
        assert!(closed && seen.starts_with("HTTP/1.1 200"), "{seen}");
        assert_eq!(seen.matches("data: ").count(), events, "{seen}");
        // The last chunk of a body that ends properly is empty.
        assert!(!seen.ends_with("0\r\n\r\n"));
    }
    let (seen, closed) = raw(&engine, "stall=2", true).await;
    assert_eq!((text(&seen).matches("data: ").count(), closed), (2, false));
    let (half, closed) = raw(&engine, "cut=1", false).await;
    let half = text(&half);
    let (head, body) = half.split_once("\r\n\r\n").expect("a head");
    let length = head.lines().find_map(|l| l.strip_prefix("content-length: ")).expect("a length");
    assert!(closed && body.len() * 2 <= length.parse::<usize>().expect("a number"), "{half}");
    assert!(!body.is_empty());
}

#[tokio::test]
async fn error_answers_and_error_events_have_the_form_of_their_api() {
    let (_engine, client) = start().await;
    let busy = client.post_with(CHAT, &[("x-mock-fault", "status=429;retry-after=7")], &body(true)).await;
    assert_eq!((busy.status.as_u16(), busy.headers["retry-after"].as_bytes()), (429, &b"7"[..]));
    assert_eq!(busy.json()["error"]["type"], "RateLimitError");
    let down = client.post_with(CHAT, &[("x-mock-fault", "status=503")], &body(false)).await;
    assert_eq!((down.status.as_u16(), down.headers.get("retry-after")), (503, None));
    let reply = client.post_with(CHAT, &[("x-mock-fault", "error=3")], &body(true)).await;
    let data = reply.data();
    assert_eq!(data.len(), 4, "{data:?}");
    assert!(data[3].starts_with("{\"error\":{"), "{}", data[3]);
    let messages = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "stream": true});
    let reply = client.post_with("/v1/messages", &[("x-mock-fault", "error=2")], &messages).await;
    assert_eq!(reply.names(), ["message_start", "content_block_start", "error"]);
}

/// I-MFL-2.
#[tokio::test]
async fn rules_fire_as_often_as_they_say_and_leave_other_routes_alone() {
    let (engine, client) = start().await;
    engine.set_faults(vec![FaultRule::next(Fault::Close, 2)]);
    assert_eq!(client.get("/health").await.status, 200);
    for _ in 0..2 {
        let sent = client.send(Method::POST, CHAT, &[], body(false).to_string().into_bytes()).await;
        assert!(sent.is_err());
    }
    assert_eq!(client.post(CHAT, &body(false)).await.status, 200);
    let mut health = FaultRule::always(Fault::Status { status: 503, retry_after: None });
    health.path = Some("/health".to_owned());
    engine.set_faults(vec![health]);
    assert_eq!(client.get("/health").await.status, 503);
    assert_eq!(client.post(CHAT, &body(false)).await.status, 200);
    // The model saw the two that were answered, and nothing of the rest.
    assert_eq!(engine.stats().finished, 2);
}

#[tokio::test]
async fn slow_answers_are_whole() {
    let (engine, client) = start().await;
    engine.set_faults(vec![FaultRule::always(Fault::Slow { millis: 1 })]);
    let reply = client.post(CHAT, &body(true)).await;
    assert_eq!(reply.data().last().map(String::as_str), Some("[DONE]"));
}

#[tokio::test]
async fn connections_can_be_refused_and_taken_again() {
    let (engine, client) = start().await;
    assert_eq!(client.get("/health").await.status, 200);
    engine.set_listening(false).await.expect("closed");
    let refused = TcpStream::connect(engine.addr()).await.expect_err("refused");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    engine.set_listening(true).await.expect("open");
    assert_eq!(Client::new(&engine).get("/health").await.status, 200);
}

#[tokio::test]
async fn stopping_lets_streams_end_and_killing_cuts_them() {
    let slow = [("x-mock-fault", "slow=2")];
    for kind in [MockKind::Vllm, MockKind::Sglang] {
        let engine = MockEngine::start(MockConfig { kind, ..MockConfig::default() }).await.expect("started");
        let client = Client::new(&engine);
        let sent = client.send(Method::POST, CHAT, &slow, body(true).to_string().into_bytes()).await;
        let response = sent.expect("an answer");
        let addr = engine.addr();
        let (_, whole) = tokio::join!(engine.stop(), response.into_body().collect());
        let whole = whole.expect("a whole body").to_bytes();
        assert!(text(&whole).ends_with("data: [DONE]\n\n"));
        assert!(TcpStream::connect(addr).await.is_err());
    }
    let (engine, client) = start().await;
    let stall = [("x-mock-fault", "stall=1")];
    let sent = client.send(Method::POST, CHAT, &stall, body(true).to_string().into_bytes()).await;
    let response = sent.expect("an answer");
    engine.kill();
    assert!(response.into_body().collect().await.is_err());
}
