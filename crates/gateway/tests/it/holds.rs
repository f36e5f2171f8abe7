//! Turns that wait: silently, behind an early 200, too long, or for a client that leaves.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tandem_gateway::config::Span;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::client::{self, Client};
use crate::engine::{self, Engine, messages_stream};
use crate::setup::{Setup, chat, messages, outcome, start_at, start_with};

/// A session of Claude Code that says how long it waits.
pub(crate) const IMPATIENT: &str = "x-claude-code-session-id: 0b0b0b0b-1111-4222-8333-444444444444\r\n\
                         user-agent: claude-cli/2.1.332\r\nx-stainless-timeout: 1\r\n";

/// A gateway whose only engine is not there.
async fn without_engine(change: impl FnOnce(&mut tandem_gateway::Config)) -> Setup {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    drop(listener);
    start_at(vec![url], change).await
}

async fn add_engine(setup: &Setup, engine: &Engine) {
    let body = json!({"url": engine.url}).to_string();
    let answer =
        client::call(setup.gateway.admin_addr(), &client::post("/workers", "", body.as_bytes())).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
}

async fn held(setup: &Setup, count: u64) {
    setup.admin_until("/turns", |turns| turns["held_total"] == count).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_waits_for_the_first_engine_and_is_then_served() {
    let setup = without_engine(|_| {}).await;
    let mut client = Client::connect(setup.addr()).await;
    client.send(&client::post("/v1/chat/completions", "", chat("hi", false).to_string().as_bytes())).await;
    held(&setup, 1).await;
    let engine = Engine::fine().await;
    add_engine(&setup, &engine).await;
    assert_eq!(client.answer().await.status, 200);
    let rows = setup.rows().await;
    assert_eq!(outcome(&rows[0]).0, "finished");
    assert!(rows[0]["tandem"]["held_ms"].as_f64().expect("held") > 0.0);
}

/// I-GW-2.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_too_long_ends_in_the_dialects_form() {
    let setup = without_engine(|config| config.hold.max = Span::millis(150)).await;
    let answer = setup.post("/v1/messages", "", &messages("hi", true)).await;
    assert_eq!((answer.status, answer.json()["error"]["type"].as_str()), (503, Some("overloaded_error")));
    assert!((5..=60).contains(&answer.retry_after()));
    setup.idle().await;
    let rows = setup.rows().await;
    assert_eq!(outcome(&rows[0]), ("rejected".to_owned(), "hold_expired".to_owned()));
    assert_eq!(rows[0]["tandem"]["outcome"]["status"], 503);
}

/// An unknown client would else be held for 55 s; what it says counts no more than the operator's own limit.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_says_itself_how_long_it_waits() {
    for (own, max) in [("0.2", Span::secs(1800)), ("1800", Span::millis(200))] {
        let setup = without_engine(|config| config.hold.max = max).await;
        let header = format!("x-tandem-hold-max: {own}\r\n");
        let answer = setup.post("/v1/chat/completions", &header, &chat("hi", false)).await;
        assert_eq!(answer.status, 503, "{}", answer.text());
        let rows = setup.rows().await;
        assert_eq!(outcome(&rows[0]), ("rejected".to_owned(), "hold_expired".to_owned()));
        let held = rows[0]["tandem"]["held_ms"].as_f64().expect("held");
        assert!((200.0..20_000.0).contains(&held), "{held} ms");
    }
}

/// `Retry-After` is 60 s at most: who comes back then on the connection that it kept must not find it being closed.
#[test]
fn connections_outlive_the_longest_retry_after() {
    assert!(tandem_gateway::Config::default().timeouts.client_head.0 > Duration::from_secs(60));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_cannot_wait_in_silence_gets_an_early_200_and_signs_of_life() {
    let setup = without_engine(|config| config.hold.keep_alive = Span::millis(50)).await;
    let mut client = Client::connect(setup.addr()).await;
    client.send(&client::post("/v1/messages", IMPATIENT, messages("hi", true).to_string().as_bytes())).await;
    client.until("HTTP/1.1 200").await;
    client.until("text/event-stream").await;
    client.until("event: ping").await;
    held(&setup, 1).await;
    let engine = Engine::fine().await;
    add_engine(&setup, &engine).await;
    let answer = client.answer().await;
    let text = answer.text();
    assert!(answer.complete && text.ends_with(&messages_stream().concat()), "{text}");
    let pings = text.replace(&messages_stream().concat(), "");
    assert!(pings.matches("event: ping").count() >= 1);
    let rows = setup.rows().await;
    assert_eq!(outcome(&rows[0]).0, "finished");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_after_an_early_200_is_told_in_the_stream() {
    let setup = without_engine(|config| {
        config.hold.keep_alive = Span::millis(50);
        config.hold.max = Span::millis(900);
    })
    .await;
    let answer = setup.post("/v1/messages", IMPATIENT, &messages("hi", true)).await;
    assert_eq!((answer.status, answer.complete), (200, true));
    let text = answer.text();
    let last = text.trim_end().rsplit("\n\n").next().expect("an event");
    assert!(last.starts_with("event: error\n") && last.contains("overloaded_error"), "{text}");
    let rows = setup.rows().await;
    assert_eq!(outcome(&rows[0]), ("rejected".to_owned(), "hold_expired".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engines_refusal_after_an_early_200_keeps_its_words() {
    // The engine says nothing until the client has heard from the gateway.
    let heard = Arc::new(Semaphore::new(0));
    let waits = Arc::clone(&heard);
    let engine = Engine::start(move |call| {
        let waits = Arc::clone(&waits);
        Box::pin(async move {
            drop(waits.acquire().await);
            call.json(400, &json!({"error": {"message": "prompt is too long"}})).await;
        })
    })
    .await;
    let setup = start_with(&[&engine], |config| config.hold.keep_alive = Span::millis(50)).await;
    let mut client = Client::connect(setup.addr()).await;
    client.send(&client::post("/v1/messages", IMPATIENT, messages("hi", true).to_string().as_bytes())).await;
    client.until("event: ping").await;
    heard.add_permits(1);
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.complete), (200, true));
    let text = answer.text();
    assert!(text.contains("invalid_request_error") && text.contains("prompt is too long"), "{text}");
    assert_eq!(engine.calls().len(), 1);
}

/// I-OWN-2.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_while_it_waits_leaves_nothing_behind() {
    let setup = without_engine(|config| config.hold.keep_alive = Span::millis(50)).await;
    for (headers, seen) in [("", None), (IMPATIENT, Some("event: ping"))] {
        let mut client = Client::connect(setup.addr()).await;
        client
            .send(&client::post("/v1/messages", headers, messages("hi", true).to_string().as_bytes()))
            .await;
        held(&setup, 1).await;
        if let Some(text) = seen {
            client.until(text).await;
        }
        drop(client);
        setup.idle().await;
    }
    let engine = Engine::fine().await;
    add_engine(&setup, &engine).await;
    assert_eq!(setup.chat(&chat("hi", false)).await.status, 200);
    assert_eq!(engine.calls().len(), 1, "only the call of the client that stayed");
    let metrics = setup.metrics().await;
    assert!(metrics.contains("tandem_client_gone_total{phase=\"held\"} 2"), "{metrics}");
    assert!(metrics.contains("tandem_turns_held 0"), "{metrics}");
    let rows = setup.rows().await;
    assert_eq!(rows.iter().filter(|row| outcome(row).1 == "client_gone").count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_refuses_at_once() {
    let setup = without_engine(|config| config.queue_size = 1).await;
    let mut first = Client::connect(setup.addr()).await;
    first.send(&client::post("/v1/chat/completions", "", chat("hi", false).to_string().as_bytes())).await;
    held(&setup, 1).await;
    let second = setup.chat(&chat("again", false)).await;
    assert_eq!((second.status, second.json()["error"]["code"].as_str()), (503, Some("queue_full")));
    assert!((5..=60).contains(&second.retry_after()));
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_take_as_many_turns_as_they_may_and_the_rest_wait() {
    let (release, gate) = tokio::sync::watch::channel(false);
    let engine = Engine::start(move |call| {
        let mut gate = gate.clone();
        Box::pin(async move {
            let _ = gate.wait_for(|open| *open).await;
            engine::fine(call).await;
        })
    })
    .await;
    let setup = start_at(vec![format!("{}@max_running=1", engine.url)], |_| {}).await;
    setup.ready().await;
    let calls: Vec<_> = (0..3)
        .map(|n| {
            let addr = setup.addr();
            let body = chat(&format!("turn {n}"), true).to_string();
            tokio::spawn(async move {
                client::call(addr, &client::post("/v1/chat/completions", "", body.as_bytes())).await
            })
        })
        .collect();
    held(&setup, 2).await;
    // The one that goes may still be on its way.
    let arrived = async {
        while engine.calls().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(90), arrived).await.expect("one call arrives");
    assert_eq!(engine.calls().len(), 1);
    release.send(true).expect("the engine listens");
    for call in calls {
        assert_eq!(call.await.expect("ends").status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_nobody_lists_is_left_to_an_engine_to_refuse() {
    let words = r#"{"error":{"message":"The model `huge` does not exist.","code":404}}"#;
    let engine = Engine::start(move |call| {
        Box::pin(
            async move { call.respond(404, "content-type: application/json\r\n", words.as_bytes()).await },
        )
    })
    .await;
    let setup = start_with(&[&engine], |_| {}).await;
    setup.ready().await;
    let mut body = chat("hi", false);
    body["model"] = json!("huge");
    let answer = setup.chat(&body).await;
    assert_eq!((answer.status, answer.text().as_str()), (404, words));
    assert_eq!(engine.calls().len(), 1);
}
