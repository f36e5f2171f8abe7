//! Turns that wait for room in KV memory, and operators who pause and go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tandem_gateway::Config;
use tandem_gateway::config::Span;
use tandem_mock_engine::{MockConfig, MockEngine, MockModel, Speed};

use tokio::sync::Semaphore;

use crate::client::{self, Client};
use crate::engine::{self, Engine, messages_stream};
use crate::holds::IMPATIENT;
use crate::setup::{Setup, messages, outcome, start_at, start_with};

/// A gateway with a policy of admission before one modelled engine that tells how much it holds.
async fn gated(
    policy: &str,
    pool: u64,
    speed: Speed,
    change: impl FnOnce(&mut Config),
) -> (MockEngine, Setup) {
    let engine = MockEngine::start(MockConfig {
        models: vec![MockModel::base("tiny")],
        pool_tokens: Some(pool),
        speed,
        ..MockConfig::default()
    });
    let engine = engine.await.expect("starts");
    let setup = start_at(vec![engine.url()], |config| {
        config.admission.policy = policy.to_owned();
        change(config);
    })
    .await;
    setup.ready().await;
    let told =
        |seen: &Value| seen["workers"].as_array().is_some_and(|w| !w.is_empty() && w[0]["device"] == pool);
    setup.admin_until("/admission", told).await;
    (engine, setup)
}

/// About as many tokens as words.
fn words(session: &str, count: usize) -> String {
    let words: Vec<String> = (0..count).map(|n| format!("{session}{n:04}")).collect();
    words.join(" ")
}

fn call(session: &str, prompt: &str, tokens: u32, stream: bool) -> Vec<u8> {
    let body = json!({"model": "tiny", "stream": stream, "max_tokens": tokens,
        "messages": [{"role": "user", "content": prompt}]});
    client::post("/v1/chat/completions", &format!("x-session-id: {session}\r\n"), body.to_string().as_bytes())
}

/// More than half of the pool, whether a word or four bytes are taken for a token.
fn large(session: &str) -> String {
    words(session, 6000)
}

/// Sends a turn that fills more than half of the pool and goes on for minutes, unless its client leaves.
async fn occupy(setup: &Setup) -> Client {
    let mut client = Client::connect(setup.addr()).await;
    client.send(&call("a", &large("a"), 2000, true)).await;
    client.until("data:").await;
    client
}

/// What the trace says of admission: what was done, and why.
fn admissions(setup: &Setup) -> Vec<(String, Option<String>)> {
    let rows = setup.events().into_iter().filter(|row| row["event_type"] == "admission");
    let word = |word: &Value| word.as_str().map(str::to_owned);
    rows.map(|row| (word(&row["action"]).unwrap_or_default(), word(&row["reason"]))).collect()
}

/// Twenty times slower than the model: a token takes more than 100 ms.
const SLOW: Speed = Speed::Times(0.05);

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_finds_no_room_waits_until_there_is_some() {
    let (engine, setup) = gated("tandem", 16_384, SLOW, |_| {}).await;
    let occupied = occupy(&setup).await;
    let mut waiting = Client::connect(setup.addr()).await;
    waiting.send(&call("b", &large("b"), 2, false)).await;
    let turns = setup.admin_until("/turns", |turns| turns["held_total"] == 1).await;
    let held = &turns["held"][0];
    assert_eq!(
        (held["reason"].as_str(), held["position"].as_u64()),
        (Some("memory_full"), Some(1)),
        "{held}"
    );
    let metrics = setup.metrics().await;
    assert!(metrics.contains("tandem_admission_held_turns 1"), "{metrics}");
    // As it is set: no turn has ended, so nothing was heard of what is computed again.
    assert!(metrics.contains("tandem_admission_patience{worker=\"e0r0\"} 1.5"), "{metrics}");
    let tokens = metrics.lines().find_map(|line| line.strip_prefix("tandem_admission_held_tokens "));
    assert!(tokens.and_then(|tokens| tokens.parse::<f64>().ok()).is_some_and(|tokens| tokens > 8000.0));
    drop(occupied);
    assert_eq!(waiting.answer().await.status, 200);
    let metrics = setup.metrics().await;
    for line in [
        "tandem_admission_held_turns 0",
        "tandem_admission_events_total{event=\"admitted\"} 2",
        "tandem_admission_wait_seconds_count{reason=\"memory_full\"} 1",
        "tandem_holds_total{reason=\"memory_full\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    setup.gateway.begin_shutdown();
    setup.gateway.wait().await;
    assert_eq!(
        admissions(&setup),
        [
            ("admitted".to_owned(), None),
            ("held".to_owned(), Some("memory_full".to_owned())),
            ("admitted".to_owned(), Some("memory_full".to_owned()))
        ]
    );
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_room_that_is_too_long_ends_with_a_time_to_come_back() {
    let (engine, setup) = gated("tandem", 16_384, SLOW, |config| config.hold.max = Span::millis(300)).await;
    let occupied = occupy(&setup).await;
    let answer = client::call(setup.addr(), &call("b", &large("b"), 2, false)).await;
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert!((5..=60).contains(&answer.retry_after()));
    assert!(answer.text().contains("memory_full"), "{}", answer.text());
    drop(occupied);
    setup.idle().await;
    let rows = setup.rows().await;
    let refused =
        rows.iter().filter(|row| outcome(row) == ("rejected".to_owned(), "hold_expired".to_owned()));
    assert_eq!(refused.count(), 1);
    engine.stop().await;
}

/// An engine that hangs up on the first try of session `a` once it is told to fail, and answers session `b` once it is told
/// to be done.
async fn until_told(fail: &Arc<Semaphore>, done: &Arc<Semaphore>, tries: &Arc<AtomicUsize>) -> Engine {
    let (fail, done, tries) = (Arc::clone(fail), Arc::clone(done), Arc::clone(tries));
    Engine::start(move |call| {
        let (fail, done, tries) = (Arc::clone(&fail), Arc::clone(&done), Arc::clone(&tries));
        Box::pin(async move {
            let body = String::from_utf8_lossy(&call.seen.body).into_owned();
            if body.contains("a0000") && tries.fetch_add(1, Ordering::Relaxed) == 0 {
                fail.acquire().await.expect("open").forget();
                return call.hang_up().await;
            }
            if body.contains("b0000") {
                done.acquire().await.expect("open").forget();
            }
            engine::fine(call).await;
        })
    })
    .await
}

/// Two engines, a turn that fills more than half at each. The client of the one that is failed waits behind an early 200
/// until the other is over: neither engine gets more than it holds.
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_its_engine_failed_waits_for_room_at_another() {
    let (fail, done) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let tries = Arc::new(AtomicUsize::new(0));
    let first = until_told(&fail, &done, &tries).await;
    let second = until_told(&fail, &done, &tries).await;
    [&first, &second].into_iter().for_each(|engine| engine.holds(16_384));
    let setup = start_with(&[&first, &second], |config| {
        config.admission.policy = "tandem".to_owned();
        config.hold.keep_alive = Span::millis(50);
    })
    .await;
    let at = |seen: &Value, what: fn(&Value) -> bool| {
        seen["workers"].as_array().map_or(0, |workers| workers.iter().filter(|worker| what(worker)).count())
    };
    setup.admin_until("/admission", |seen| at(seen, |worker| worker["device"] == 16_384) == 2).await;
    let busy = |worker: &Value| worker["running"].as_u64().is_some_and(|tokens| tokens > 8_000);
    let mut failed = Client::connect(setup.addr()).await;
    let body = messages(&large("a"), true).to_string();
    failed
        .send(&client::post("/v1/messages", &format!("{IMPATIENT}x-session-id: a\r\n"), body.as_bytes()))
        .await;
    setup.admin_until("/admission", |seen| at(seen, busy) == 1).await;
    let mut other = Client::connect(setup.addr()).await;
    other.send(&call("b", &large("b"), 2, false)).await;
    setup.admin_until("/admission", |seen| at(seen, busy) == 2).await;
    fail.add_permits(1);
    let turns = setup.admin_until("/turns", |turns| turns["held_total"] == 1).await;
    assert_eq!(turns["held"][0]["reason"], "memory_full", "{turns}");
    failed.until("event: ping").await;
    done.add_permits(1);
    assert_eq!(other.answer().await.status, 200);
    let answer = failed.answer().await;
    assert!(answer.complete && answer.text().ends_with(&messages_stream().concat()), "{}", answer.text());
    assert_eq!(
        first.calls().len() + second.calls().len(),
        3,
        "nothing was sent twice but the call that failed"
    );
    let metrics = setup.metrics().await;
    for line in [
        "tandem_admission_events_total{event=\"admitted\"} 2",
        "tandem_admission_wait_seconds_count{reason=\"memory_full\"} 1",
        "tandem_holds_total{reason=\"memory_full\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    setup.gateway.begin_shutdown();
    setup.gateway.wait().await;
    assert_eq!(
        admissions(&setup),
        [
            ("admitted".to_owned(), None),
            ("admitted".to_owned(), None),
            ("held".to_owned(), Some("memory_full".to_owned())),
            ("admitted".to_owned(), Some("memory_full".to_owned()))
        ]
    );
}

/// More sessions than fit, several turns each, at once.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_the_policy_every_session_gets_through() {
    for policy in ["tandem", "thunderagent", "idle_lease"] {
        let (engine, setup) = gated(policy, 4096, Speed::Instant, |config| {
            config.admission.thunderagent.tick = Span::millis(20);
            config.admission.idle_lease.lease = Span::millis(20);
        })
        .await;
        let headers = |session| format!("x-dynamo-session-id: s{session}\r\n");
        client::sessions(setup.addr(), 8, headers, |session, _| words(&format!("s{session}"), 150)).await;
        setup.idle().await;
        let seen = setup.admin("/admission").await;
        assert_eq!(
            (seen["policy"].as_str(), seen["stats"]["admitted"].as_u64()),
            (Some(policy), Some(32)),
            "{seen}"
        );
        let left = (seen["stats"]["held"].as_u64(), seen["stats"]["programs"].as_u64());
        assert_eq!(left, (Some(0), Some(0)), "every session ended: {seen}");
        engine.stop().await;
    }
}

async fn post(setup: &Setup, path: &str, body: &str) -> client::Answer {
    client::call(setup.gateway.admin_addr(), &client::post(path, "", body.as_bytes())).await
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_pause_a_session_and_let_it_go_on() {
    let engine = Engine::fine().await;
    let setup = start_with(&[&engine], |_| {}).await;
    setup.ready().await;
    assert_eq!(client::call(setup.addr(), &call("p", "hi", 4, false)).await.status, 200);
    assert_eq!(post(&setup, "/sessions/nobody/pause", "").await.status, 404);
    let paused = post(&setup, "/sessions/p/pause", "").await;
    assert_eq!((paused.status, paused.json()["paused"].as_u64()), (200, Some(1)), "{}", paused.text());
    let mut waiting = Client::connect(setup.addr()).await;
    waiting.send(&call("p", "hi again", 4, false)).await;
    let turns = setup.admin_until("/turns", |turns| turns["held_total"] == 1).await;
    assert_eq!(turns["held"][0]["reason"], "paused_by_operator");
    assert_eq!(client::call(setup.addr(), &call("q", "hi", 4, false)).await.status, 200, "others go on");
    assert_eq!(post(&setup, "/sessions/p/resume", "").await.json()["resumed"], 1);
    assert_eq!(waiting.answer().await.status, 200);
    // Page by page.
    let first = setup.admin("/sessions?limit=1").await;
    assert_eq!((first["total"].as_u64(), first["next"].as_u64()), (Some(2), Some(1)));
    let second = setup.admin("/sessions?limit=1&offset=1").await;
    assert_eq!((second["programs"].as_array().map(Vec::len), &second["next"]), (Some(1), &Value::Null));
    assert_ne!(first["programs"][0]["program"], second["programs"][0]["program"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_dispatched_while_weights_are_exchanged() {
    let engine = Engine::fine().await;
    let setup = start_with(&[&engine], |_| {}).await;
    setup.ready().await;
    for at_most in ["2h", "0s"] {
        let body = json!({ "at_most": at_most }).to_string();
        assert_eq!(post(&setup, "/weight-sync", &body).await.status, 400, "{at_most}");
    }
    let begun = post(&setup, "/weight-sync", r#"{"at_most": "120s"}"#).await;
    assert_eq!((begun.status, begun.json()["running"].as_u64()), (200, Some(0)), "{}", begun.text());
    let mut waiting = Client::connect(setup.addr()).await;
    waiting.send(&call("w", "hi", 4, false)).await;
    let turns = setup.admin_until("/turns", |turns| turns["held_total"] == 1).await;
    assert_eq!(turns["held"][0]["reason"], "weight_sync");
    assert!(setup.metrics().await.contains("tandem_weight_sync 1"));
    let end = b"DELETE /weight-sync HTTP/1.1\r\nhost: t\r\n\r\n";
    assert_eq!(client::call(setup.gateway.admin_addr(), end).await.status, 200);
    assert_eq!(waiting.answer().await.status, 200);
    assert_eq!(client::call(setup.gateway.admin_addr(), end).await.status, 404, "it is over");
    // The watchdog: whoever began does not end it.
    assert_eq!(post(&setup, "/weight-sync", r#"{"at_most": "50ms"}"#).await.status, 200);
    assert_eq!(client::call(setup.addr(), &call("w", "hi again", 4, false)).await.status, 200);
    assert!(setup.metrics().await.contains("tandem_weight_syncs_expired_total 1"));
}
