//! Admission in the simulator.

#![expect(clippy::expect_used, reason = "a helper that fails is a failed test")]

use tandem_engine_model::EngineConfig;
use tandem_simulate::{Arrivals, Report, SimConfig, run, scheduler_for};
use tandem_workload::synth::{Kind, Synth};

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
