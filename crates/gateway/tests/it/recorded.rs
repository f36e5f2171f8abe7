//! What the scheduler decided live, it decides again from the inputs that were recorded.

use std::path::Path;

use serde_json::{Value, json};
use tandem_gateway::config::Span;
use tandem_mock_engine::{MockConfig, MockEngine, MockModel, Speed};
use tandem_scheduler::replay::{Header, Step};
use tandem_scheduler::{Effect, Scheduler};

use crate::client;
use crate::engine::Engine;
use crate::setup::{chat, start_at, start_with};

/// What a recording leads to: decisions, oldest first, and the counts in the end.
fn replayed(path: &Path) -> (Vec<Value>, Value, Value) {
    let text = std::fs::read_to_string(path).expect("recorded");
    let mut lines = text.lines();
    let Header { config, seed } =
        serde_json::from_str(lines.next().expect("a header")).expect("a configuration and a seed");
    let mut scheduler = Scheduler::new(config, seed).expect("a valid configuration");
    let mut effects = Vec::new();
    for line in lines {
        let step: Step = serde_json::from_str(line).expect("a step");
        step.play(&mut scheduler, &mut effects);
    }
    let decisions = effects.into_iter().filter_map(|effect| match effect {
        Effect::Record(decision) => Some(json!(decision)),
        _ => None,
    });
    let view = scheduler.view();
    (decisions.collect(), json!(view.counters()), json!(view.admission().stats))
}

/// Decisions of a gateway, oldest first.
async fn decided(setup: &crate::setup::Setup) -> Vec<Value> {
    let mut decisions =
        setup.admin("/decisions?limit=1000").await["decisions"].as_array().expect("a list").clone();
    decisions.reverse();
    decisions
}

/// I-OWN-1, I-OWN-3.
#[tokio::test(flavor = "multi_thread")]
async fn recorded_inputs_give_the_same_decisions_again() {
    let (a, b) = (Engine::fine().await, Engine::fine().await);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("inputs.jsonl");
    let setup = start_with(&[&a, &b], |config| {
        config.record_inputs = Some(path.to_string_lossy().into_owned());
        config.seed = 7;
    })
    .await;
    for n in 0..20 {
        let headers = format!("x-session-id: s-{}\r\n", n % 5);
        let answer =
            setup.post("/v1/chat/completions", &headers, &chat(&format!("turn {n}"), n % 2 == 0)).await;
        assert_eq!(answer.status, 200);
    }
    let live = decided(&setup).await;
    setup.rows().await;
    let (again, _, _) = replayed(&path);
    assert_eq!(again.len(), 20);
    assert_eq!(json!(again).to_string(), json!(live).to_string());
}

/// 64 sessions in groups over two workers that hold a few of them: holds, pauses and moves depend on times as they
/// were, and come out the same.
#[tokio::test(flavor = "multi_thread")]
async fn what_admission_decided_live_it_decides_again() {
    const SESSIONS: usize = 64;
    let mut engines = Vec::new();
    for seed in 0..2 {
        let config = MockConfig {
            models: vec![MockModel::base("tiny")],
            pool_tokens: Some(4096),
            speed: Speed::Times(20.0),
            seed,
            ..MockConfig::default()
        };
        engines.push(MockEngine::start(config).await.expect("starts"));
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("inputs.jsonl");
    let setup = start_at(engines.iter().map(MockEngine::url).collect(), |config| {
        config.admission.policy = "tandem".to_owned();
        config.admission.tandem.overdue = Span::millis(200);
        config.record_inputs = Some(path.to_string_lossy().into_owned());
        config.seed = 11;
    })
    .await;
    setup
        .admin_until("/admission", |seen| {
            let workers = seen["workers"].as_array();
            workers.is_some_and(|w| w.len() == 2 && w.iter().all(|w| w["device"] == 4096))
        })
        .await;
    let headers =
        |number| format!("x-tandem-session-id: r{number}\r\nx-tandem-group-id: g{}\r\n", number / 8);
    let said = |number, turn| {
        let task = if turn == 0 { format!("task of group {}", number / 8) } else { String::new() };
        task + &format!(" rollout {number} turn {turn}").repeat(30)
    };
    client::sessions(setup.addr(), SESSIONS, headers, said).await;
    setup.idle().await;
    let live = decided(&setup).await;
    let stats = setup.admin("/admission").await["stats"].clone();
    let counters = setup.admin("/counters").await["scheduler"].clone();
    setup.rows().await;
    assert!(stats["paused"].as_u64() > Some(0), "too little happened: {stats}");
    let (again, counters_again, stats_again) = replayed(&path);
    assert_eq!(again.len(), SESSIONS * client::TURNS);
    assert_eq!(json!(again).to_string(), json!(live).to_string());
    assert_eq!((stats_again, counters_again), (stats, counters));
    for engine in engines {
        engine.stop().await;
    }
}
