//! Admission in the simulator.

#![expect(clippy::expect_used, reason = "a helper that fails is a failed test")]

use tandem_engine_model::{EngineConfig, SchedulingPolicy, TimingModel};
use tandem_simulate::{Arrivals, Report, SimConfig, run, scheduler_for};
use tandem_workload::synth::{Kind, Synth};
use tandem_workload::{Format, ImportOptions, Workload, import};

/// Sixteen coding sessions on workers whose pools hold about a third of them.
fn tight(policy: &str) -> Report {
    let workload = Synth { kind: Kind::MiniSwe, sessions: 16, group: 1, seed: 3 }.make().expect("a workload");
    let config = SimConfig {
        engine: EngineConfig { block_size: 16, pool_blocks: 4_000, ..EngineConfig::default() },
        workers: 2,
        scheduler: scheduler_for(policy).expect("a policy"),
        arrivals: Arrivals::Lanes { lanes: 16 },
        ..SimConfig::default()
    };
    run(&workload, &config, &mut |_| {}).expect("a report")
}

// I-SIM-1, I-SIM-3.
#[test]
fn whatever_is_held_is_served_in_the_end_and_runs_repeat() {
    for policy in ["thunderagent", "thunderagent-package", "idle_lease", "tandem", "sticky+tandem"] {
        let report = tight(policy);
        assert_eq!((report.unserved_requests, report.refusals), (0, 0), "{policy}");
        assert!(
            report.held_ms.count > 0,
            "{policy} never held a turn: the pools are too large to show anything"
        );
        assert_eq!(report, tight(policy), "{policy}");
    }
}

/// Without a gate the pools are thrashed; with one, sessions find what they computed.
#[test]
fn a_gate_keeps_sessions_from_evicting_each_other() {
    let (without, with) = (tight("sticky"), tight("tandem"));
    assert_eq!(with.forced_admissions, 0);
    assert!(
        with.first_admission_prefix_cache_reused_ratio > without.first_admission_prefix_cache_reused_ratio,
        "{} against {}",
        with.first_admission_prefix_cache_reused_ratio,
        without.first_admission_prefix_cache_reused_ratio
    );
}

/// One request at a time, a second for each token but the first; 64,000 tokens of KV. D and E have been there before.
///
/// A runs from 1 s to 22 s. B, held since 2 s because A leaves it no room, is let in at the policy's look at 25 s, and its
/// priority raised by 1. D's turn of 21 s runs from 22 s to 27 s. Then come B for 3 s and E's turn of 21.5 s for 10 s, in
/// that order where the engine goes by priority, else the other way round.
#[test]
fn what_admission_raises_goes_first_where_engines_go_by_priority() {
    let row = |session: &str, (from, output): (u32, u32), ids: std::ops::Range<u32>| {
        let (blocks, name) = (ids.len(), format!("{session}{from}"));
        let ids: Vec<String> = ids.map(|id| id.to_string()).collect();
        format!(
            "{{\"schema\":\"dynamo.request.trace.v1\",\"event_type\":\"request_end\",\"event_time_unix_ms\":{from},\
             \"event_source\":\"dynamo\",\"agent_context\":{{\"session_id\":\"{session}\"}},\"request\":{{\
             \"request_id\":\"{name}\",\"model\":\"m\",\"input_tokens\":{input},\"output_tokens\":{output},\
             \"request_received_ms\":{from},\"total_time_ms\":0.0,\"replay\":{{\"trace_block_size\":64,\
             \"input_length\":{input},\"input_sequence_hashes\":[{ids}]}}}}}}\n",
            input = blocks * 64,
            ids = ids.join(","),
        )
    };
    let trace = [
        row("D", (0, 1), 0..1),
        row("E", (0, 1), 10..11),
        row("A", (1_000, 22), 1_000..1_600),
        row("B", (2_000, 4), 2_000..2_400),
        row("D", (21_000, 6), 0..2),
        row("E", (21_500, 11), 10..12),
    ];
    let workload = import(trace.concat().as_bytes(), Format::Dynamo, &ImportOptions::default());
    let workload = workload.expect("a workload");
    let ttft_of = |workload: &Workload, policy, admission: &str| {
        let config = SimConfig {
            engine: EngineConfig {
                timing: TimingModel::Fixed { prefill_ms: 0.0, decode_ms: 1_000.0 },
                pool_blocks: 1_000,
                max_num_seqs: 1,
                policy,
                ..EngineConfig::default()
            },
            scheduler: scheduler_for(admission).expect("a policy"),
            ..SimConfig::default()
        };
        let report = run(workload, &config, &mut |_| {}).expect("a report");
        assert_eq!((report.completed_requests, report.held_ms.count), (6, 1));
        assert_eq!(report.held_ms.max, 23_000.0, "from 2 s to 25 s");
        (report.ttft_ms.mean * 6.0, report.ttft_ms.max)
    };
    let ttft = |policy, admission: &str| ttft_of(&workload, policy, admission);
    let near = |(sum, max): (f64, f64), (hand_sum, hand_max): (f64, f64)| {
        assert!((sum - hand_sum).abs() < 1e-6 && (max - hand_max).abs() < 1e-6, "{sum} {max}");
    };
    // D waits 1 s. By arrival E waits 5.5 s and B 35 s; by priority B 25 s and E 8.5 s.
    near(ttft(SchedulingPolicy::Fcfs, "thunderagent"), (41_500.0, 35_000.0));
    near(ttft(SchedulingPolicy::Priority, "thunderagent"), (34_500.0, 25_000.0));
    // What the client says stands.
    let mut patient = workload.clone();
    patient.nodes.iter_mut().filter(|node| node.output_tokens == 4).for_each(|node| node.priority = -1);
    near(ttft_of(&patient, SchedulingPolicy::Priority, "thunderagent"), (41_500.0, 35_000.0));
    // The package lets no priority through.
    near(ttft(SchedulingPolicy::Priority, "thunderagent-package"), (41_500.0, 35_000.0));
}
