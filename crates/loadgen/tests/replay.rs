//! Replays against a modelled engine, over HTTP.

#![expect(clippy::expect_used, reason = "a helper that fails is a failed test")]

use std::sync::Arc;
use std::time::Duration;

use tandem_loadgen::{Arrivals, LoadError, Options, Outcome, Target, run};
use tandem_mock_engine::{Fault, FaultRule, MockConfig, MockEngine};
use tandem_workload::{Format, ImportOptions, Workload, import};

const MODEL: &str = "tandem-mock";

/// Sessions of four turns, each with 40 new tokens, and a common head of 64.
fn workload(sessions: u32) -> Arc<Workload> {
    let row = |session: u32| {
        let turns: Vec<String> = (0..4u32)
            .map(|turn| {
                let input = 640 + turn * 160;
                let ids: Vec<String> = (0..input / 64).map(|id| id.to_string()).collect();
                format!(
                    r#"{{"t":{}.0,"type":"n","model":"m","in":{input},"out":32,"hash_ids":[{}],"stop":"tool_use","api_time":1.0}}"#,
                    turn * 2,
                    ids.join(",")
                )
            })
            .collect();
        format!(
            r#"{{"id":"s{session}","models":["m"],"block_size":64,"hash_id_scope":"local","tool_tokens":192,"system_tokens":64,"requests":[{}]}}"#,
            turns.join(",")
        )
    };
    let rows: Vec<String> = (0..sessions).map(row).collect();
    Arc::new(import(rows.join("\n").as_bytes(), Format::Weka, &ImportOptions::default()).expect("is sound"))
}

fn options(engine: &MockEngine) -> Options {
    Options {
        target: Target::new(&engine.url(), MODEL),
        arrivals: Arrivals::Recorded,
        shrink: 4,
        speed: 100.0,
        block_size: 16,
        duration: None,
        seed: 1,
    }
}

async fn replay(config: MockConfig, workload: Arc<Workload>, change: impl FnOnce(&mut Options)) -> Outcome {
    let engine = MockEngine::start(config).await.expect("starts");
    let mut options = options(&engine);
    change(&mut options);
    let outcome = run(workload, options).await.expect("runs");
    engine.stop().await;
    outcome
}

#[tokio::test]
async fn an_engine_with_room_reaches_the_unlimited_cache() {
    let outcome = replay(MockConfig::default(), workload(1), |_| {}).await;
    assert_eq!((outcome.records.len(), outcome.abandoned, outcome.sessions), (4, 0, 1));
    for (turn, record) in (0u32..).zip(&outcome.records) {
        assert_eq!(record.error, None);
        assert_eq!((record.turn, record.prompt, record.output), (turn, 160 + turn * 40, 8));
        assert_eq!(record.cached, record.ideal, "turn {turn}");
        assert!(record.first.is_some_and(|first| first <= record.whole));
    }
    // Whole blocks of 16 of the prompt before.
    let ideal: Vec<u32> = outcome.records.iter().map(|record| record.ideal).collect();
    assert_eq!(ideal, [0, 160, 192, 240]);
}

#[tokio::test]
async fn a_refused_request_comes_again() {
    let refusal = Fault::Status { status: 503, retry_after: Some("0".to_owned()) };
    let config = MockConfig { faults: vec![FaultRule::next(refusal, 3)], ..MockConfig::default() };
    let outcome = replay(config, workload(1), |_| {}).await;
    let tries: Vec<u32> = outcome.records.iter().map(|record| record.tries).collect();
    assert_eq!(tries, [4, 1, 1, 1]);
    assert!(outcome.records.iter().all(|record| record.error.is_none()));
}

#[tokio::test]
async fn a_failure_is_recorded_and_its_session_goes_on() {
    let config = MockConfig { faults: vec![FaultRule::next(Fault::CutAfter(2), 1)], ..MockConfig::default() };
    let outcome = replay(config, workload(1), |_| {}).await;
    let failed: Vec<bool> = outcome.records.iter().map(|record| record.error.is_some()).collect();
    assert_eq!(failed, [true, false, false, false]);
}

#[tokio::test]
async fn what_is_cut_off_at_the_end_is_counted() {
    // I-LDG-4: the engine never answers.
    let config = MockConfig { faults: vec![FaultRule::always(Fault::Hang)], ..MockConfig::default() };
    let outcome = replay(config, workload(2), |options| {
        options.arrivals = Arrivals::Lanes { lanes: 2, midway: false };
        options.target.connections = 1;
        options.duration = Some(Duration::from_secs(5));
    })
    .await;
    assert_eq!((outcome.records.len(), outcome.abandoned, outcome.sessions), (0, 2, 0));
}

#[tokio::test]
async fn what_cannot_be_run_is_refused() {
    let engine = MockEngine::start(MockConfig::default()).await.expect("starts");
    let refused = async |change: fn(&mut Options)| {
        let mut options = options(&engine);
        change(&mut options);
        run(workload(1), options).await.map(|_| ())
    };
    assert_eq!(refused(|options| options.shrink = 0).await, Err(LoadError::Zero("shrink")));
    assert_eq!(refused(|options| options.speed = f64::NAN).await, Err(LoadError::Speed));
    let endless = |options: &mut Options| options.arrivals = Arrivals::Lanes { lanes: 1, midway: true };
    assert_eq!(refused(endless).await, Err(LoadError::Endless));
    engine.stop().await;
}
