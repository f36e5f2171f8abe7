//! Knowledge of caches that is lost, old or void: routing goes on with less, recovers by itself, and the metrics tell.

use std::net::{IpAddr, Ipv4Addr};

use serde_json::Value;
use tandem_gateway::config::{PromptSource, Span};
use tandem_mock_engine::{KvEventsConfig, MockConfig, MockEngine, MockKind};

use crate::sessions::{BLOCK, Session, config, empty, engine, gateway};
use crate::setup::Setup;

/// The value of a metric with these labels; 0 where it was never counted.
async fn metric(setup: &Setup, name: &str) -> u64 {
    let text = setup.metrics().await;
    let line = text.lines().find(|line| line.split_once(' ').is_some_and(|(head, _)| head == name));
    line.and_then(|line| line.rsplit_once(' ')?.1.parse().ok()).unwrap_or(0)
}

async fn moves(setup: &Setup, from: &str, to: &str) -> u64 {
    metric(setup, &format!("tandem_kv_transitions_total{{from=\"{from}\",to=\"{to}\"}}")).await
}

async fn clears(setup: &Setup, cause: &str) -> u64 {
    metric(setup, &format!("tandem_kv_clears_total{{worker=\"e0r0\",cause=\"{cause}\"}}")).await
}

/// Waits until the first worker is as wanted.
async fn until(setup: &Setup, wanted: impl Fn(&Value) -> bool) -> Value {
    setup.admin_until("/kv", |kv| wanted(&kv["workers"][0])).await["workers"][0].clone()
}

/// A lost message that the publisher still has is asked for: nothing is forgotten, nothing guessed (I-PUB-4).
#[tokio::test(flavor = "multi_thread")]
async fn events_that_a_replay_brings_back_leave_no_trace() {
    let engine = engine(MockKind::Vllm).await;
    let setup = gateway(&[&engine], &[PromptSource::Engine], |_| {}).await;
    setup.exact().await;
    let mut session = Session::new("s");
    session.known_turn(&setup, "one").await;
    let replays = until(&setup, |_| true).await["stream"]["replays"].as_u64().expect("a count");
    engine.lose_events(1, true);
    let second = session.known_turn(&setup, &"two ".repeat(40)).await;
    let worker = until(&setup, |worker| worker["stream"]["replays"].as_u64() > Some(replays)).await;
    assert_eq!((worker["stream"]["gaps"].as_u64(), worker["hollow"].as_bool()), (Some(0), Some(false)));
    let third = session.turn(&setup, "three").await;
    assert_eq!(third.predicted, Some(third.cached), "{third:?}");
    assert!(third.cached >= second.prompt / BLOCK * BLOCK, "what was lost is known: {third:?}");
    assert_eq!((moves(&setup, "exact", "stale").await, clears(&setup, "lost").await), (0, 0));
    engine.stop().await;
}

/// One that is gone for good: the worker is stale, what was sent there lately is believed, and when its engine says
/// that its cache is empty, all of it is known again.
#[tokio::test(flavor = "multi_thread")]
async fn events_lost_for_good_make_a_worker_stale_until_its_cache_is_rebuilt() {
    let engine = engine(MockKind::Vllm).await;
    let setup = gateway(&[&engine], &[PromptSource::Engine], |_| {}).await;
    setup.exact().await;
    let mut session = Session::new("s");
    session.known_turn(&setup, "one").await;
    engine.lose_events(1, false);
    let second = session.turn(&setup, &"two ".repeat(40)).await;
    let worker = until(&setup, |worker| worker["knowledge"] == "stale").await;
    assert_eq!(worker["hollow"], true, "{worker}");
    let third = session.turn(&setup, "three").await;
    assert_eq!(
        third.predicted,
        Some(second.prompt / BLOCK * BLOCK),
        "the last prompt is believed: {third:?}"
    );
    assert!(third.cached >= second.prompt / BLOCK * BLOCK, "and rightly so: {third:?}");
    let found = setup.post_admin("/kv/match", &session.body()).await.json();
    assert_eq!(found["match"]["workers"][0]["source"], "approximate", "{found}");
    empty(&engine, "/reset_prefix_cache").await;
    let fourth = session.turn(&setup, "four").await;
    assert_eq!(fourth.cached, 0);
    let worker = until(&setup, |worker| worker["knowledge"] == "exact").await;
    assert_eq!(worker["hollow"], false, "{worker}");
    session.known(&setup, &fourth).await;
    let fifth = session.turn(&setup, "five").await;
    assert_eq!(fifth.predicted, Some(fifth.cached), "{fifth:?}");
    assert!(fifth.cached >= fourth.prompt / BLOCK * BLOCK);
    assert_eq!((moves(&setup, "exact", "stale").await, moves(&setup, "stale", "exact").await), (1, 1));
    assert_eq!(clears(&setup, "lost").await, 1);
    until(&setup, |worker| worker["stream"]["gaps"] == 1 && worker["stream"]["lost"] == 1).await;
    engine.stop().await;
}

/// Without the engine's word, time heals it: what was sent before the loss is forgotten, what events tell counts.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_lost_events_is_exact_again_after_a_while() {
    let engine = engine(MockKind::Vllm).await;
    let setup = gateway(&[&engine], &[PromptSource::Engine], |config| {
        config.kv.stale_after = Span::millis(300);
    })
    .await;
    let mut session = Session::new("s");
    setup.exact().await;
    session.known_turn(&setup, "one").await;
    engine.lose_events(1, false);
    session.turn(&setup, &"two ".repeat(40)).await;
    until(&setup, |worker| worker["stream"]["gaps"] == 1).await;
    until(&setup, |worker| worker["knowledge"] == "exact").await;
    assert_eq!((moves(&setup, "exact", "stale").await, moves(&setup, "stale", "exact").await), (1, 1));
    let mut other = Session::new("another");
    other.known_turn(&setup, "one").await;
    let after = other.turn(&setup, "two").await;
    assert_eq!(after.predicted, Some(after.cached), "{after:?}");
    assert!(after.cached > 0);
    engine.stop().await;
}

/// With a bound of nothing every event waits too long, and its worker is exact again once it is taken in.
#[tokio::test(flavor = "multi_thread")]
async fn events_that_wait_make_workers_stale_until_they_are_taken_in() {
    let engine = engine(MockKind::Vllm).await;
    let setup = gateway(&[&engine], &[PromptSource::Engine], |config| {
        config.kv.lag_max = Span::millis(0);
    })
    .await;
    let mut session = Session::new("never-a-label");
    session.known_turn(&setup, "one").await;
    setup.exact().await;
    let second = session.turn(&setup, "two").await;
    assert_eq!(second.predicted, Some(second.cached), "nothing was lost: {second:?}");
    session.known(&setup, &second).await;
    setup.admin_until("/kv", |kv| kv["pace"] == "abreast").await;
    let changes = |to: &str| format!("tandem_kv_index_pace_changes_total{{to=\"{to}\"}}");
    let (behind, abreast) =
        (metric(&setup, &changes("behind")).await, metric(&setup, &changes("abreast")).await);
    assert!(behind > 0 && behind == abreast, "{behind} times behind, {abreast} times abreast again");
    let (down, up) = (moves(&setup, "exact", "stale").await, moves(&setup, "stale", "exact").await);
    assert!(down > 0 && up >= down, "{down} down, {up} up");
    let metrics = setup.metrics().await;
    assert!(metrics.contains("\ntandem_kv_index_lag_seconds "), "{metrics}");
    assert!(!metrics.contains("never-a-label"), "I-MET-2");
    engine.stop().await;
}

/// An engine on an address of its own, so that nobody else takes its ports while it is down.
async fn at(ports: [u16; 3], last: u8) -> MockEngine {
    let [port, events, replay] = ports;
    let events = KvEventsConfig { port: events, replay_port: replay, ..KvEventsConfig::default() };
    let host = IpAddr::V4(Ipv4Addr::new(127, 77, 0, last));
    let config = MockConfig { host, port, kv_events: Some(events), ..config(MockKind::Vllm) };
    MockEngine::start(config).await.expect("starts")
}

fn ports(engine: &MockEngine) -> [u16; 3] {
    let port = |endpoint: Option<&str>| {
        let text = endpoint.and_then(|text| text.rsplit_once(':')).expect("an endpoint").1;
        text.parse().expect("a port")
    };
    [engine.addr().port(), port(engine.events_endpoint()), port(engine.replay_endpoint())]
}

/// Events that stop are noticed, and a publisher that comes back, whose numbers begin anew, is believed again.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_restarts_is_known_anew() {
    let engine = at([0; 3], 1).await;
    let setup = gateway(&[&engine], &[PromptSource::Engine], |_| {}).await;
    setup.exact().await;
    let (mut session, mut other) = (Session::new("s"), Session::new("another"));
    session.known_turn(&setup, "one").await;
    let lost = other.known_turn(&setup, "one").await;
    let ports = ports(&engine);
    engine.stop().await;
    setup.admin_until("/workers", |workers| workers["engines"][0]["state"] == "down").await;
    assert_eq!(moves(&setup, "exact", "stale").await, 1);
    let engine = at(ports, 1).await;
    setup.ready().await;
    let second = session.turn(&setup, "two").await;
    assert_eq!(second.cached, 0, "a new process has an empty cache");
    session.known(&setup, &second).await;
    setup.exact().await;
    let third = session.turn(&setup, "three").await;
    assert_eq!(third.predicted, Some(third.cached), "{third:?}");
    assert!(third.cached > 0);
    // Of what the new process never computed nothing is known any more.
    let again = other.turn(&setup, "two").await;
    assert_eq!((again.predicted, again.cached), (Some(0), 0), "{lost:?} is gone: {again:?}");
    assert_eq!((clears(&setup, "restarted").await, clears(&setup, "lost").await), (1, 0));
    until(&setup, |worker| worker["stream"]["restarts"] == 1 && worker["hollow"] == false).await;
    engine.stop().await;
}

/// A gateway that comes so late that no replay reaches back knows what is told from then on, and guesses the rest from
/// what it sends, until the engine's cache begins anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_joins_late_believes_what_it_sends() {
    let short = KvEventsConfig { buffer_steps: 1, ..KvEventsConfig::default() };
    let engine = MockConfig { kv_events: Some(short), ..config(MockKind::Vllm) };
    let engine = MockEngine::start(engine).await.expect("starts");
    let mut session = Session::new("s");
    let before = gateway(&[&engine], &[PromptSource::Engine], |_| {}).await;
    session.turn(&before, "one").await;
    session.turn(&before, "two").await;
    drop(before);
    let setup = gateway(&[&engine], &[PromptSource::Engine], |_| {}).await;
    setup.exact().await;
    let third = session.turn(&setup, "three").await;
    assert_eq!(third.predicted, Some(0), "of the cache it knows the end at most: {third:?}");
    assert!(third.cached > 0);
    let worker = until(&setup, |worker| worker["hollow"] == true).await;
    assert_eq!(worker["stream"]["whole"], false, "{worker}");
    let fourth = session.turn(&setup, "four").await;
    assert_eq!(fourth.predicted, Some(third.prompt / BLOCK * BLOCK), "{fourth:?}");
    assert!(fourth.cached >= third.prompt / BLOCK * BLOCK, "{fourth:?}");
    empty(&engine, "/reset_prefix_cache").await;
    let fifth = session.turn(&setup, "five").await;
    until(&setup, |worker| worker["hollow"] == false).await;
    session.known(&setup, &fifth).await;
    let sixth = session.turn(&setup, "six").await;
    assert_eq!(sixth.predicted, Some(sixth.cached), "{sixth:?}");
    assert!(sixth.cached > 0);
    engine.stop().await;
}
