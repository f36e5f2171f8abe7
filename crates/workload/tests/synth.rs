//! Generators against the figures that they were fitted to.

#![expect(clippy::expect_used, reason = "a helper that fails is a failed test")]

use std::collections::BTreeSet;

use tandem_workload::synth::{Kind, Synth};
use tandem_workload::{SessionNo, Workload};

fn make(kind: Kind, sessions: u32, group: u32, seed: u64) -> Workload {
    Synth { kind, sessions, group, seed }.make().expect("a workload")
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

// I-WKL-1.
#[test]
fn equal_seeds_give_equal_workloads() {
    for kind in [Kind::RlSwe, Kind::MiniSwe, Kind::OpenHands, Kind::ClaudeCode, Kind::Chat] {
        assert_eq!(make(kind, 20, 1, 3), make(kind, 20, 1, 3));
        assert_ne!(make(kind, 20, 1, 3), make(kind, 20, 1, 4));
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
}

/// The set that reproduces the published collapse has 52 turns and 30.1 K of context at the end, on average.
#[test]
fn rollouts_have_the_calibrated_size() {
    let workload = make(Kind::RlSwe, 512, 1, 1);
    let sessions = workload.sessions.len() as f64;
    let turns = workload.nodes.len() as f64 / sessions;
    let contexts: u64 = (0..512).map(|index| workload.peak_context(SessionNo(index))).sum();
    assert!((48.0..56.0).contains(&turns), "{turns} turns");
    let context = contexts as f64 / sessions;
    assert!((29_000.0..31_500.0).contains(&context), "{context} tokens");
    assert!(workload.sessions.iter().all(|s| s.group.is_none()));
}

/// Medians of 510 recorded sessions: growth 655 tokens, answers 216, tool pauses 9 s.
#[test]
fn claude_code_has_the_recorded_medians() {
    let workload = make(Kind::ClaudeCode, 400, 1, 5);
    let outputs = workload.nodes.iter().map(|node| f64::from(node.output_tokens)).collect();
    let output = median(outputs);
    assert!((190.0..245.0).contains(&output), "{output}");
    let pauses = workload.nodes.iter().flat_map(|n| &n.deps).map(|dep| dep.delay.as_secs_f64()).collect();
    let pause = median(pauses);
    assert!((8.0..15.0).contains(&pause), "{pause}");
    let growth = median(
        (0..400)
            .flat_map(|index| {
                let turns = workload.turns(SessionNo(index));
                turns
                    .windows(2)
                    .map(|pair| f64::from(pair[1].input_tokens - pair[0].input_tokens))
                    .collect::<Vec<_>>()
            })
            .collect(),
    );
    assert!((520.0..820.0).contains(&growth), "{growth}");
}

#[test]
fn a_group_shares_its_task_and_nothing_more() {
    let workload = make(Kind::RlSwe, 16, 8, 1);
    let groups: BTreeSet<_> = workload.sessions.iter().filter_map(|session| session.group.clone()).collect();
    assert_eq!(groups.len(), 2);
    let first = |index: u32| workload.prompts(SessionNo(index)).advance(16).expect("a prompt");
    let whole = (workload.turns(SessionNo(0))[0].input_tokens / 16) as usize;
    assert_eq!(first(0)[..whole], first(7)[..whole]);
    assert_ne!(first(0)[0], first(8)[0]);
    let last = |index: u32| {
        let mut prompts = workload.prompts(SessionNo(index));
        std::iter::from_fn(|| prompts.advance(16)).last().expect("a prompt")
    };
    assert_ne!(last(0)[whole + 1], last(7)[whole + 1]);
}

#[test]
fn claude_code_sessions_share_tools_and_system_prompt() {
    let workload = make(Kind::ClaudeCode, 2, 1, 9);
    let first = |index: u32| workload.prompts(SessionNo(index)).advance(16).expect("a prompt");
    assert_eq!(first(0)[..937], first(1)[..937], "15,000 tokens are 937 whole blocks");
    assert_ne!(first(0)[938], first(1)[938]);
}
