//! Runs whose outcome can be worked out by hand.

#![expect(clippy::expect_used, reason = "a helper that fails is a failed test")]

use std::time::Duration;

use tandem_engine_model::{EngineConfig, TimingModel};
use tandem_scheduler::SchedulerConfig;
use tandem_simulate::{Arrivals, Report, SimConfig, SimError, run};
use tandem_workload::synth::{Kind, Synth};
use tandem_workload::{Format, ImportOptions, Workload, import};

/// A row of a dynamo trace that began and ended at these milliseconds.
fn row(
    session: &str,
    parent: Option<&str>,
    id: &str,
    (from, to): (u64, u64),
    output: u32,
    ids: &str,
) -> String {
    let parent = parent.map(|p| format!(",\"parent_session_id\":\"{p}\"")).unwrap_or_default();
    let blocks = ids.split(',').count();
    format!(
        "{{\"schema\":\"dynamo.request.trace.v1\",\"event_type\":\"request_end\",\"event_time_unix_ms\":{to},\
         \"event_source\":\"dynamo\",\"agent_context\":{{\"session_id\":\"{session}\"{parent}}},\"request\":{{\
         \"request_id\":\"{id}\",\"model\":\"m\",\"input_tokens\":{input},\"output_tokens\":{output},\
         \"request_received_ms\":{from},\"total_time_ms\":{total}.0,\"replay\":{{\"trace_block_size\":64,\
         \"input_length\":{input},\"input_sequence_hashes\":[{ids}]}}}}}}\n",
        input = blocks * 64,
        total = to - from,
    )
}

fn read(text: &str) -> Workload {
    import(text.as_bytes(), Format::Dynamo, &ImportOptions::default()).expect("a workload")
}

/// One second for each generated token, nothing for prefill.
fn seconds_per_token() -> EngineConfig {
    EngineConfig {
        timing: TimingModel::Fixed { prefill_ms: 0.0, decode_ms: 1000.0 },
        pool_blocks: 1000,
        ..EngineConfig::default()
    }
}

fn simulate(workload: &Workload, config: &SimConfig) -> Report {
    run(workload, config, &mut |_| {}).expect("a report")
}

/// p1 takes 5 s here, the child 50 s; it began 2 s after p1's end, and p2 came 181.43 s after the child's.
fn joined() -> Workload {
    let text = row("P", None, "p1", (0, 10_000), 6, "11,12")
        + &row("P:c", Some("P"), "c1", (12_000, 158_551), 51, "91,92")
        + &row("P", None, "p2", (339_981, 344_981), 1, "11,12,13,14");
    read(&text)
}

// I-SIM-4.
#[test]
fn recorded_pauses_are_kept_behind_what_was_waited_for() {
    let config = SimConfig { engine: seconds_per_token(), ..SimConfig::default() };
    let report = simulate(&joined(), &config);
    assert_eq!((report.completed_requests, report.unserved_requests, report.completed_plays), (3, 0, 1));
    assert!((report.duration_s - 238.43).abs() < 0.05, "p2 ends at once at 238.43: {}", report.duration_s);
    let capped = SimConfig { idle_cap: Some(Duration::from_secs(10)), ..config };
    let report = simulate(&joined(), &capped);
    assert!((report.duration_s - 67.0).abs() < 0.05, "57 + 10: {}", report.duration_s);
}

// I-SIM-1, I-SIM-2, I-SIM-3.
#[test]
fn runs_repeat_and_tokens_are_conserved() {
    let workload = Synth { kind: Kind::MiniSwe, sessions: 12, group: 1, seed: 3 }.make().expect("a workload");
    for policy in ["round_robin", "session_affinity", "kv"] {
        let config = SimConfig {
            engine: EngineConfig { block_size: 16, pool_blocks: 4_000, ..EngineConfig::default() },
            workers: 2,
            scheduler: SchedulerConfig { policy: policy.to_owned(), ..SchedulerConfig::default() },
            arrivals: Arrivals::Lanes { lanes: 6 },
            ..SimConfig::default()
        };
        let report = simulate(&workload, &config);
        assert_eq!(report, simulate(&workload, &config), "{policy}");
        let (input, output) = workload.tokens();
        assert_eq!((report.total_input_tokens, report.total_output_tokens), (input, output), "{policy}");
        assert_eq!(report.completed_requests, workload.nodes.len() as u64);
        assert_eq!(report.worker_turns.iter().sum::<u64>(), report.completed_requests);
        assert!(report.prefix_cache_reused_ratio <= report.ideal_reused_ratio + 1e-9, "{policy}");
        assert!(report.amplification >= 1.0 - 1e-9, "{policy}");
    }
}

#[test]
fn stickiness_finds_what_rounds_lose() {
    let workload = Synth { kind: Kind::MiniSwe, sessions: 16, group: 1, seed: 5 }.make().expect("a workload");
    let reuse = |policy: &str| {
        let config = SimConfig {
            engine: EngineConfig { block_size: 16, pool_blocks: 8_000, ..EngineConfig::default() },
            workers: 4,
            scheduler: SchedulerConfig { policy: policy.to_owned(), ..SchedulerConfig::default() },
            arrivals: Arrivals::Lanes { lanes: 16 },
            ..SimConfig::default()
        };
        let report = simulate(&workload, &config);
        (report.prefix_cache_reused_ratio, report.ideal_reused_ratio)
    };
    let (sticky, ideal) = reuse("session_affinity");
    let (rounds, _) = reuse("round_robin");
    assert!(sticky > ideal - 0.01, "{sticky} of {ideal}");
    assert!(rounds < sticky - 0.2, "{rounds} against {sticky}");
}

#[test]
fn plays_come_again_with_blocks_of_their_own() {
    let workload = read(&row("A", None, "a", (0, 1000), 2, "1,2,3"));
    let config = SimConfig {
        engine: seconds_per_token(),
        arrivals: Arrivals::Lanes { lanes: 1 },
        duration: Some(Duration::from_secs(100)),
        ..SimConfig::default()
    };
    let report = simulate(&workload, &config);
    assert!(report.completed_plays > 40, "{}", report.completed_plays);
    assert_eq!(report.prefix_cache_reused_ratio, 0.0, "a clone does not find its twin's cache");
}

#[test]
fn impossible_points_are_refused() {
    let workload = joined();
    let point = |config: SimConfig| run(&workload, &config, &mut |_| {}).expect_err("refused");
    assert_eq!(point(SimConfig { workers: 0, ..SimConfig::default() }), SimError::Zero("workers"));
    let lanes = Arrivals::Lanes { lanes: 0 };
    assert_eq!(point(SimConfig { arrivals: lanes, ..SimConfig::default() }), SimError::Zero("lanes"));
    let arrivals = Arrivals::Recorded { speedup: f64::NAN };
    assert_eq!(point(SimConfig { arrivals, ..SimConfig::default() }), SimError::Speedup);
}
