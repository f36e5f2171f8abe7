//! Runs whose outcome can be worked out by hand.

#![expect(clippy::expect_used, reason = "a helper that fails is a failed test")]

use std::time::Duration;

use tandem_engine_model::{EngineConfig, LinkConfig, TierConfig, TiersConfig, TimingModel};
use tandem_scheduler::SchedulerConfig;
use tandem_simulate::{Arrivals, PlayOrder, Report, SimConfig, SimError, run, scheduler_for};
use tandem_workload::synth::{Kind, Synth};
use tandem_workload::{Dep, Format, ImportOptions, NodeNo, Trigger, Workload, import};

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
fn parent_and_child() -> [String; 3] {
    [
        row("P", None, "p1", (0, 10_000), 6, "11,12"),
        row("P:c", Some("P"), "c1", (12_000, 158_551), 51, "91,92"),
        row("P", None, "p2", (339_981, 344_981), 1, "11,12,13,14"),
    ]
}

/// When the last request of a run ends, in milliseconds. Two engines take turns, so that no request waits for another's
/// token to end before it begins.
fn ends_at(rows: &str, idle_cap: Option<u64>) -> f64 {
    let config = SimConfig {
        engine: seconds_per_token(),
        workers: 2,
        scheduler: SchedulerConfig { policy: "round_robin".to_owned(), ..SchedulerConfig::default() },
        idle_cap: idle_cap.map(Duration::from_secs),
        ..SimConfig::default()
    };
    let report = simulate(&read(rows), &config);
    assert_eq!((report.completed_requests, report.unserved_requests), (rows.lines().count() as u64, 0));
    report.duration_ms
}

// I-SIM-4. Without its last row the run ends with the child, 50 s after that began.
#[test]
fn recorded_pauses_are_kept_behind_what_was_waited_for() {
    let [p1, c1, p2] = parent_and_child();
    let (begun, joined) = (p1 + &c1, p2);
    assert!((ends_at(&begun, None) - 57_000.0).abs() < 50.0, "the child begins 2 s after p1's end, at 7 s");
    let whole = begun.clone() + &joined;
    let end = ends_at(&whole, None);
    assert!((end - 238_430.0).abs() < 50.0, "p2 ends at once at 57 + 181.43 s: {end}");
    assert!((ends_at(&begun, Some(10)) - 57_000.0).abs() < 50.0, "2 s are no long pause");
    let end = ends_at(&whole, Some(10));
    assert!((end - 67_000.0).abs() < 50.0, "p2 comes 10 s after the child's end: {end}");
}

// I-SIM-4. While anybody is served nobody's pause is cut, and what is cut is cut for all.
#[test]
fn only_time_in_which_nothing_goes_on_is_skipped() {
    let whole = parent_and_child().concat();
    let busy = row("Q", None, "q1", (0, 1_000), 239, "501,502");
    let end = ends_at(&(whole.clone() + &busy), Some(10));
    assert!((end - 238_430.0).abs() < 50.0, "q1 ends at 238 s, p2 at its own time: {end}");

    // r2 is due at 100 s, 43 s after the child's end: 33 s are skipped. It takes 150 s, from 67 s on, in which p2's
    // pause goes on: p2 is due at 238.43 - 33 s and takes 20 s.
    let [p1, c1, _] = parent_and_child();
    let p2 = row("P", None, "p2", (339_981, 344_981), 21, "11,12,13,14");
    let other = row("R", None, "r1", (0, 1_000), 2, "601")
        + &row("R", None, "r2", (100_000, 101_000), 151, "601,602");
    let end = ends_at(&(p1 + &c1 + &p2 + &other), Some(10));
    assert!((end - 225_430.0).abs() < 50.0, "205.43 + 20 s: {end}");
}

/// p2 waits for p1's end at 5 s and 100 s more, and for the child's at 57 s and 5 s more: the later time counts, not the last
/// end.
#[test]
fn a_request_waits_for_the_last_of_what_allows_it() {
    let mut workload = read(&parent_and_child().concat());
    let dep =
        |on, delay| Dep { on: NodeNo(on), trigger: Trigger::Completion, delay: Duration::from_secs(delay) };
    workload.nodes[1].deps = vec![dep(0, 100), dep(2, 5)];
    let config = SimConfig {
        engine: seconds_per_token(),
        workers: 2,
        scheduler: SchedulerConfig { policy: "round_robin".to_owned(), ..SchedulerConfig::default() },
        ..SimConfig::default()
    };
    let end = simulate(&workload, &config).duration_ms;
    assert!((end - 105_000.0).abs() < 50.0, "{end}");
}

#[test]
fn recorded_beginnings_come_faster_when_asked() {
    let text = row("A", None, "a", (0, 1_000), 2, "1") + &row("B", None, "b", (100_000, 101_000), 3, "2");
    let config = SimConfig {
        engine: seconds_per_token(),
        arrivals: Arrivals::Recorded { speedup: 4.0 },
        ..SimConfig::default()
    };
    let end = simulate(&read(&text), &config).duration_ms;
    assert!((end - 27_000.0).abs() < 50.0, "25 s and two tokens: {end}");
}

/// What ends in the warm-up counts for nothing, and what has not ended is waited for to the end.
#[test]
fn the_measured_time_begins_after_the_warm_up_and_ends_with_who_waits() {
    let text = row("A", None, "a", (0, 1_000), 3, "1,2")
        + &row("B", None, "b", (10_000, 11_000), 4, "3")
        + &row("C", None, "c", (20_000, 21_000), 500, "4");
    let config = SimConfig {
        engine: EngineConfig { max_num_seqs: 1, ..seconds_per_token() },
        warmup: Duration::from_secs(5),
        duration: Some(Duration::from_secs(55)),
        ..SimConfig::default()
    };
    let report = simulate(&read(&text), &config);
    assert_eq!((report.completed_requests, report.simulated_requests, report.unserved_requests), (1, 2, 1));
    assert_eq!((report.total_input_tokens, report.total_output_tokens), (64, 4));
    assert_eq!(report.worst_turn_ms.max, 40_000.0, "C, from 20 s to 60 s");
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
        assert!(
            report.first_admission_prefix_cache_reused_ratio <= report.ideal_reused_ratio + 1e-9,
            "{policy}"
        );
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

/// Twenty sessions, one after the other, with the same prompt of 100 blocks: each worker that is used computes it once, and
/// after that 99 of the blocks are found.
#[test]
fn who_does_not_know_where_a_prompt_lies_computes_it_on_more_workers() {
    let rows = (0..20).map(|i| row(&format!("S{i}"), None, &format!("r{i}"), (i, i + 1), 2, &ids(1, 100)));
    let workload = read(&rows.collect::<String>());
    let with = |event_delay, event_loss| {
        let config = SimConfig {
            engine: seconds_per_token(),
            workers: 4,
            scheduler: SchedulerConfig { policy: "kv".to_owned(), ..SchedulerConfig::default() },
            arrivals: Arrivals::Lanes { lanes: 1 },
            event_delay,
            event_loss,
            ..SimConfig::default()
        };
        let report = run(&workload, &config, &mut |_| {})?;
        let used = report.worker_turns.iter().filter(|turns| **turns > 0).count() as u32;
        let reused = f64::from(20 - used) * 99.0 / 2_000.0;
        assert!((report.prefix_cache_reused_ratio - reused).abs() < 1e-9, "{used}: {report:?}");
        Ok((used, report))
    };
    let used = |delay, loss| with(delay, loss).map(|(used, _)| used);
    assert_eq!(used(Duration::ZERO, 0.0), Ok(1), "known at once");
    assert_eq!(used(Duration::from_millis(1), 0.0), Ok(1), "known before the next one, a second later");
    let (blind, report) = with(Duration::ZERO, 1.0).expect("a report");
    assert!(blind > 1, "ties are drawn");
    let late = with(Duration::from_secs(1_000), 0.0).expect("a report");
    assert_eq!((blind, report), late, "news after the end is none");
    assert_eq!(used(Duration::ZERO, 1.5), Err(SimError::Loss));
}

/// Sessions with the same prompt, so far apart; news is 20 s late. Whatever is skipped of the pause between two, who comes
/// 100 s later knows where the prompt lies, and the second of three who come 15 s apart does not.
#[test]
fn news_arrives_in_time_that_is_skipped() {
    let used = |apart: u64, sessions: u64, idle_cap: Option<u64>| {
        let at = |i: u64| (i * apart * 1_000, i * apart * 1_000 + 1);
        let rows =
            (0..sessions).map(|i| row(&format!("S{i}"), None, &format!("r{i}"), at(i), 2, &ids(1, 100)));
        let config = SimConfig {
            engine: seconds_per_token(),
            workers: 16,
            scheduler: SchedulerConfig { policy: "kv".to_owned(), ..SchedulerConfig::default() },
            event_delay: Duration::from_secs(20),
            idle_cap: idle_cap.map(Duration::from_secs),
            ..SimConfig::default()
        };
        let report = simulate(&read(&rows.collect::<String>()), &config);
        report.worker_turns.iter().filter(|turns| **turns > 0).count()
    };
    for idle_cap in [None, Some(10), Some(0)] {
        assert_eq!((used(100, 10, idle_cap), used(15, 2, idle_cap)), (1, 2), "{idle_cap:?}");
    }
}

/// A takes 57,600 of 64,000 tokens for 40 minutes; B needs 12,800 and is let in at the first look after half an hour.
#[test]
fn a_client_waits_longer_than_a_policy_takes_to_force_its_turn_in() {
    let text = row("A", None, "a", (0, 1_000), 2_400, &ids(1, 900))
        + &row("B", None, "b", (10_000, 11_000), 1, &ids(2_001, 2_200));
    let config = SimConfig {
        engine: seconds_per_token(),
        scheduler: scheduler_for("thunderagent").expect("a policy"),
        ..SimConfig::default()
    };
    let report = simulate(&read(&text), &config);
    assert_eq!((report.forced_admissions, report.refusals, report.completed_requests), (1, 0, 2));
    let held = report.held_ms.max / 1e3;
    assert!((1_800.0..1_806.0).contains(&held), "{held} s: looks are 5 s apart");
}

/// As above for 40 minutes; B is refused after ten seconds, and again each time that it comes back. Its client has waited since
/// it asked first.
#[test]
fn a_client_that_was_refused_has_waited_since_it_asked_first() {
    let text = row("A", None, "a", (0, 1_000), 2_400, &ids(1, 900))
        + &row("B", None, "b", (10_000, 11_000), 1, &ids(2_001, 2_200));
    let config = SimConfig {
        engine: seconds_per_token(),
        scheduler: scheduler_for("tandem").expect("a policy"),
        hold_max: Duration::from_secs(10),
        ..SimConfig::default()
    };
    let report = simulate(&read(&text), &config);
    assert!(report.refusals > 10, "{}", report.refusals);
    let waited = report.ttft_ms.max / 1e3;
    assert!(
        (2_389.0..2_460.0).contains(&waited),
        "A ends at 2,399 s, and B comes back within a minute: {waited}"
    );
}

/// 32,000 tokens of A idle while B, which came with 28,160, generates 8,000: 68,160 of 64,000.
#[test]
fn admission_hears_of_answers_while_they_grow() {
    let text = row("A", None, "a1", (0, 1_000), 1, &ids(1, 500))
        + &row("B", None, "b", (10_000, 11_000), 8_000, &ids(2_001, 2_440))
        + &row("A", None, "a2", (1_000_000, 1_001_000), 1, &ids(1, 501));
    let timing = TimingModel::Fixed { prefill_ms: 0.0, decode_ms: 10.0 };
    let config = SimConfig {
        engine: EngineConfig { timing, ..seconds_per_token() },
        scheduler: scheduler_for("thunderagent").expect("a policy"),
        ..SimConfig::default()
    };
    let report = simulate(&read(&text), &config);
    assert_eq!((report.pauses, report.resumes, report.completed_requests), (1, 1, 3));
}

/// Of 24 blocks A has 11, the last without a key, then X, which is over, has 11. B needs 11: two that were never used, A's
/// last and eight more of A's; or X's ten and one that was never used.
#[test]
fn an_engine_that_is_told_evicts_first_what_is_over() {
    let text = row("A", None, "a1", (0, 1_000), 2, &ids(1, 10))
        + &row("X", None, "x", (10_000, 11_000), 2, &ids(101, 110))
        + &row("B", None, "b", (20_000, 21_000), 2, &ids(201, 210))
        + &row("A", None, "a2", (30_000, 31_000), 2, &ids(1, 11));
    for (demote, blocks) in [(false, 2.0), (true, 10.0)] {
        let config = SimConfig {
            engine: EngineConfig { pool_blocks: 24, ..seconds_per_token() },
            scheduler: scheduler_for("tandem").expect("a policy"),
            demote,
            ..SimConfig::default()
        };
        let reused = simulate(&read(&text), &config).prefix_cache_reused_ratio;
        assert!((reused - blocks * 64.0 / 2_624.0).abs() < 1e-9, "{demote}: {reused}");
    }
}

/// Two of 10 blocks grow by five each in a pool of 24: B, the later one, is thrown out when both have 12, A takes three of
/// its blocks, and B finds the nine others when it comes back.
#[test]
fn what_is_found_after_a_preemption_counts_beside_what_was_found_first() {
    let text = row("A", None, "a", (0, 1_000), 320, &ids(1, 10))
        + &row("B", None, "b", (0, 1_000), 320, &ids(101, 110));
    let config =
        SimConfig { engine: EngineConfig { pool_blocks: 24, ..seconds_per_token() }, ..SimConfig::default() };
    let report = simulate(&read(&text), &config);
    assert_eq!((report.preemptions, report.first_admission_prefix_cache_reused_ratio), (1, 0.0));
    let reused = report.prefix_cache_reused_ratio;
    assert!((reused - 576.0 / 1_280.0).abs() < 1e-9, "{}", reused * 1_280.0);
}

/// X fills one of two workers for 50 s and Y the other. Z's prompt is Y's and a block more: beside Y it has room as soon
/// as the scheduler knows that it needs little of its own, and not before one of them is over otherwise.
#[test]
fn who_shares_a_prompt_that_is_under_way_need_not_wait() {
    let text = row("X", None, "x1", (0, 50_000), 51, &ids(1001, 1080))
        + &row("Y", None, "y1", (0, 50_000), 51, &ids(1, 80))
        + &row("Z", None, "z1", (0, 50_000), 1, &ids(1, 81));
    let workload = read(&text);
    let waited_ms = |predict: u64, relook: u64| {
        let config = SimConfig {
            engine: EngineConfig { pool_blocks: 100, ..seconds_per_token() },
            workers: 2,
            scheduler: scheduler_for("tandem").expect("a policy"),
            predict: Duration::from_millis(predict),
            relook: Duration::from_millis(relook),
            ..SimConfig::default()
        };
        let report = simulate(&workload, &config);
        assert_eq!(report.completed_requests, 3);
        report.held_ms.max
    };
    assert!(waited_ms(0, 0) > 45_000.0, "{}", waited_ms(0, 0));
    assert!(waited_ms(10_000, 0) < 1.0, "{}", waited_ms(10_000, 0));
    let round = waited_ms(0, 250);
    assert!((round - 250.0).abs() < 1.0, "{round}");
}

/// Nothing is computed again. The factor of 1.5 sinks e-fold in 90 s, for the minute after which what was heard is old.
#[test]
fn what_admission_learned_is_in_the_report() {
    let text = row("A", None, "a1", (0, 1_000), 2, "1,2,3")
        + &row("A", None, "a2", (200_000, 201_000), 2, "1,2,3,4");
    let patience = |policy: &str| {
        let scheduler = scheduler_for(policy).expect("a policy");
        let config = SimConfig { engine: seconds_per_token(), scheduler, ..SimConfig::default() };
        simulate(&read(&text), &config).admission_patience
    };
    let sunk = 1.5 * (-60.0_f64 / 90.0).exp();
    assert!(
        patience("tandem").is_some_and(|factor| (factor - sunk).abs() < 1e-6),
        "{:?}",
        patience("tandem")
    );
    assert_eq!(patience("thunderagent"), None);
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

/// Ids from one to the other as a trace writes them.
/// The second prompt of 320 tokens is the first one of 128, its answer's first 128, and a block of its own. The last token
/// of an answer has no KV: 129 are generated.
#[test]
fn answers_are_found_by_the_next_turn_unless_they_come_back_as_others() {
    let rows = row("S", None, "1", (0, 129_000), 129, "1,2")
        + &row("S", None, "2", (130_000, 131_000), 1, "1,2,3,4,5");
    let found = |fresh_answers| {
        let config = SimConfig { engine: seconds_per_token(), fresh_answers, ..SimConfig::default() };
        let report = simulate(&read(&rows), &config);
        assert_eq!(report.prefix_cache_reused_ratio, report.ideal_reused_ratio);
        report.prefix_cache_reused_ratio * (128.0 + 320.0)
    };
    assert_eq!((found(false), found(true)), (256.0, 128.0));
}

fn ids(from: u32, to: u32) -> String {
    (from..=to).map(|id| id.to_string()).collect::<Vec<_>>().join(",")
}

/// Of A's ten blocks B pushes the last seven out of the device; A's second turn waits until they are back, 64 ms each.
#[test]
fn a_turn_that_waits_for_host_memory_is_woken() {
    let text = row("A", None, "a1", (0, 1_000), 2, &ids(1, 10))
        + &row("B", None, "b1", (10_000, 11_000), 2, &ids(101, 120))
        + &row("A", None, "a2", (20_000, 21_000), 2, &ids(1, 11));
    let host = TierConfig { tokens: 6_400, link: LinkConfig { read_gb_s: 1.0, write_gb_s: 1.0 } };
    let tiers = TiersConfig { host: Some(host), token_bytes: 1_000_000, ..TiersConfig::default() };
    let engine = EngineConfig { pool_blocks: 24, tiers, ..seconds_per_token() };
    let report = simulate(&read(&text), &SimConfig { engine, ..SimConfig::default() });
    assert_eq!((report.completed_requests, report.unserved_requests), (3, 0));
    assert!((report.ttft_ms.max - 448.0).abs() < 1e-6, "{}", report.ttft_ms.max);
    assert!((report.prefix_cache_reused_ratio - 640.0 / 2624.0).abs() < 1e-9, "all ten blocks count");
}

/// 100 ms of prefill, 19 whole blocks of 1 ms on the way, and five decodes of 10 ms.
#[test]
fn prompts_and_answers_on_workers_of_their_own() {
    let text = row("A", None, "a1", (0, 1_000), 5, &ids(1, 20));
    let tiers = TiersConfig { token_bytes: 15_625, ..TiersConfig::default() };
    let timing = TimingModel::Fixed { prefill_ms: 100.0, decode_ms: 10.0 };
    let config = SimConfig {
        engine: EngineConfig { timing, tiers, ..seconds_per_token() },
        workers: 2,
        prefill_workers: 1,
        handover_gb_s: 1.0,
        ..SimConfig::default()
    };
    let report = simulate(&read(&text), &config);
    assert_eq!((report.completed_requests, report.worker_turns), (1, vec![1, 1]));
    assert!((report.ttft_ms.mean - 129.0).abs() < 1e-6, "{}", report.ttft_ms.mean);
    assert!((report.e2e_latency_ms.mean - 169.0).abs() < 1e-6, "{}", report.e2e_latency_ms.mean);
    assert_eq!(report.prefix_cache_reused_ratio, 0.0, "what is handed over was computed");
    let nobody = SimConfig { prefill_workers: 2, ..config };
    let refused = run(&read(&parent_and_child().concat()), &nobody, &mut |_| {});
    assert_eq!(refused, Err(SimError::NobodyAnswers { workers: 2, prefill: 2 }));
}

#[test]
fn a_shared_store_finds_what_another_worker_computed() {
    // Two sessions with one text, one after the other, on two workers that take turns.
    let text = row("A", None, "a1", (0, 1_000), 2, &ids(1, 10))
        + &row("B", None, "b1", (30_000, 31_000), 2, &ids(1, 10));
    let link = LinkConfig { read_gb_s: 1.0, write_gb_s: 1.0 };
    let tiers = TiersConfig { shared: Some(link), token_bytes: 1_000_000, ..TiersConfig::default() };
    let config = SimConfig {
        engine: EngineConfig { tiers, ..seconds_per_token() },
        workers: 2,
        shared_tokens: 6_400,
        scheduler: SchedulerConfig { policy: "round_robin".to_owned(), ..SchedulerConfig::default() },
        ..SimConfig::default()
    };
    let report = simulate(&read(&text), &config);
    assert_eq!(report.worker_turns, [1, 1]);
    assert!((report.prefix_cache_reused_ratio - 576.0 / 1280.0).abs() < 1e-9, "nine of ten blocks");
    assert!((report.ttft_ms.max - 576.0).abs() < 1e-6, "64 ms each: {}", report.ttft_ms.max);
    let apart = simulate(&read(&text), &SimConfig { shared_tokens: 0, ..config });
    assert_eq!(apart.prefix_cache_reused_ratio, 0.0);
}

// I-ORA-1.
#[test]
fn no_run_finds_more_than_the_cache_that_knows_the_future() {
    let workload = Synth { kind: Kind::MiniSwe, sessions: 10, group: 1, seed: 7 }.make().expect("a workload");
    for pool_blocks in [1_200, 2_400] {
        let config = SimConfig {
            engine: EngineConfig { block_size: 16, pool_blocks, ..EngineConfig::default() },
            arrivals: Arrivals::Lanes { lanes: 5 },
            order: PlayOrder::Recorded,
            belady: true,
            ..SimConfig::default()
        };
        let report = simulate(&workload, &config);
        let bound = report.belady_reused_ratio.expect("asked for");
        let found = report.first_admission_prefix_cache_reused_ratio;
        assert!(found <= bound + 1e-9 && bound <= report.ideal_reused_ratio + 1e-9);
        assert!(
            pool_blocks > 1_200 || bound < report.ideal_reused_ratio - 0.01,
            "a small cache loses something"
        );
    }
}

#[test]
fn impossible_points_are_refused() {
    let workload = read(&parent_and_child().concat());
    let point = |config: SimConfig| run(&workload, &config, &mut |_| {}).expect_err("refused");
    assert_eq!(point(SimConfig { workers: 0, ..SimConfig::default() }), SimError::Zero("workers"));
    let lanes = Arrivals::Lanes { lanes: 0 };
    assert_eq!(point(SimConfig { arrivals: lanes, ..SimConfig::default() }), SimError::Zero("lanes"));
    let arrivals = Arrivals::Recorded { speedup: f64::NAN };
    assert_eq!(point(SimConfig { arrivals, ..SimConfig::default() }), SimError::Speedup);
}
