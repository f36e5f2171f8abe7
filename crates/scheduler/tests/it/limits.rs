//! Bounds, and what is left over when clients give up or drivers err.

use std::time::Duration;

use tandem_scheduler::{
    AdmissionConfig, BreakerConfig, BreakerState, DispatchFailure, Effect, FailureKind, Input, Scheduler,
    SchedulerConfig, TurnArrival, TurnResult, invariants,
};
use tandem_types::{EngineKind, GroupId, LoadReport, Time, TurnId, WorkerInfo};

use crate::support::{arrival, ended, program, turn_of, up, worker};

fn scheduler(config: SchedulerConfig) -> Scheduler {
    Scheduler::new(config, 1).expect("a valid configuration")
}

fn feed(core: &mut Scheduler, ms: u64, input: Input) -> Vec<Effect> {
    let mut out = Vec::new();
    core.handle(Time::from_millis(ms), input, &mut out);
    invariants::check(core).expect("sound");
    out
}

/// I-SCH-9, I-PRG-2.
#[test]
fn ten_thousand_abandoned_newcomers_leave_the_tables_as_they_were() {
    let mut core = scheduler(SchedulerConfig::default());
    feed(&mut core, 0, up(0, &[], Some(1)));
    feed(&mut core, 1, turn_of(1, "c"));
    for n in 0..10_000 {
        let held = feed(&mut core, 2, turn_of(10 + n, &format!("n{n}")));
        assert!(matches!(held[..], [Effect::Hold { position: 1, .. }]), "{held:?}");
        assert_eq!(feed(&mut core, 2, Input::ClientGone { turn: TurnId(10 + n) }), []);
    }
    let view = core.view();
    assert_eq!((view.program_count(), view.turn_count(), view.held_count()), (1, 1, 0));
    assert!(view.program(&program("c")).is_some());
    assert_eq!(core.next_deadline(), None);
    assert_eq!(view.counters().cancelled, 10_000);
}

/// The same where newcomers wait for KV: 1,500 of 2,000 tokens are taken, and no policy lets in 800 more beside them.
#[test]
fn newcomers_that_left_while_they_waited_for_room_take_none() {
    for name in ["thunderagent", "tandem", "idle_lease"] {
        let admission = AdmissionConfig { policy: name.to_owned(), ..AdmissionConfig::default() };
        let mut core = scheduler(SchedulerConfig { admission, ..SchedulerConfig::default() });
        let info = WorkerInfo { kv_capacity_tokens: Some(2_000), ..WorkerInfo::new(EngineKind::Vllm) };
        feed(&mut core, 0, Input::WorkerUp { worker: worker(0), info });
        let arrives = |turn, session: &str, input_tokens_estimate| {
            Input::TurnArrived(TurnArrival {
                program: Some(program(session)),
                input_tokens_estimate,
                max_output_tokens: Some(1),
                ..arrival(turn)
            })
        };
        let goes = |effects: &[Effect]| effects.iter().any(|e| matches!(e, Effect::Dispatch { .. }));
        let charged = |core: &Scheduler| {
            let charged = core.view().worker(worker(0)).and_then(|w| w.charged).expect("charged");
            (charged.running, charged.idle)
        };
        assert!(goes(&feed(&mut core, 1_000, arrives(1, "a", 1_500))), "{name}");
        let alone = charged(&core);
        for n in 0..1_000 {
            let held = feed(&mut core, 2_000, arrives(10 + n, &format!("n{n}"), 800));
            assert!(matches!(held[..], [Effect::Hold { position: 1, .. }]), "{name}: {held:?}");
            assert_eq!(feed(&mut core, 3_000, Input::ClientGone { turn: TurnId(10 + n) }), [], "{name}");
        }
        let stats = core.view().admission().stats;
        assert_eq!((charged(&core), stats.programs, stats.held), (alone, 1, 0), "{name}");
        assert_eq!((core.view().program_count(), core.view().held_count()), (1, 0), "{name}");
        // Nobody stands before a newcomer that fits, and nobody who left gets the room that comes.
        assert!(goes(&feed(&mut core, 4_000, arrives(2, "c", 100))), "{name}");
        feed(&mut core, 5_000, ended(1, TurnResult::Finished));
        feed(&mut core, 5_000, Input::SessionEnd { program: program("a") });
        feed(&mut core, 6_000, ended(2, TurnResult::Finished));
        feed(&mut core, 6_000, Input::SessionEnd { program: program("c") });
        let mut later = Vec::new();
        core.handle_timeout(Time::from_millis(60_000), &mut later);
        assert_eq!((&later[..], charged(&core)), (&[][..], (0, 0)), "{name}");
        assert_eq!(core.view().admission().stats.programs, 0, "{name}");
    }
}

/// I-PRG-1.
#[test]
fn a_full_program_table_displaces_the_longest_idle_and_never_a_busy_one() {
    let mut core = scheduler(SchedulerConfig { programs_max: 2, ..SchedulerConfig::default() });
    feed(&mut core, 0, up(0, &[], None));
    for (n, name) in [(1, "a"), (2, "b")] {
        feed(&mut core, n, turn_of(n, name));
        feed(&mut core, n, ended(n, TurnResult::Finished));
    }
    // a becomes active again and is then the one that was idle last.
    feed(&mut core, 3, turn_of(3, "a"));
    feed(&mut core, 4, ended(3, TurnResult::Finished));
    feed(&mut core, 5, turn_of(4, "c"));
    let known =
        |core: &Scheduler| ["a", "b", "c", "d", "e"].map(|n| core.view().program(&program(n)).is_some());
    assert_eq!(known(&core), [true, false, true, false, false]);
    feed(&mut core, 6, turn_of(5, "d"));
    assert_eq!(known(&core), [false, false, true, true, false]);
    // Both are busy: the newcomer is served without being remembered.
    let served = feed(&mut core, 7, turn_of(6, "e"));
    assert!(matches!(served[..], [Effect::Record(_), Effect::Dispatch { .. }]));
    assert_eq!(known(&core), [false, false, true, true, false]);
    let counters = core.view().counters();
    assert_eq!((counters.programs_evicted, counters.programs_untracked), (2, 1));
    feed(&mut core, 8, ended(6, TurnResult::Finished));
    assert_eq!(core.view().turn_count(), 2);
}

/// I-PACE-1.
#[test]
fn every_refusal_names_a_whole_number_of_seconds_between_5_and_60() {
    let mut core = scheduler(SchedulerConfig { queue_max: 50, ..SchedulerConfig::default() });
    feed(&mut core, 0, up(0, &["m"], Some(1)));
    let mut seen = Vec::new();
    for n in 0..60 {
        // Holds of growing length, so that queues of every length see an expiry.
        let hold_max = Duration::from_millis(1000 + 37 * n);
        let model = if n % 7 == 3 { "unknown" } else { "m" };
        let turn = TurnArrival { hold_max, model: Some(model.to_owned()), ..arrival(n) };
        seen.extend(feed(&mut core, n, Input::TurnArrived(turn)));
    }
    while let Some(at) = core.next_deadline() {
        core.handle_timeout(at, &mut seen);
    }
    let waits: Vec<Duration> = seen
        .iter()
        .filter_map(|e| if let Effect::Reject { retry_after, .. } = e { Some(*retry_after) } else { None })
        .collect();
    assert_eq!(waits.len(), 59);
    for wait in waits {
        assert!((5..=60).contains(&wait.as_secs()) && wait.subsec_nanos() == 0, "{wait:?}");
    }
}

#[test]
fn a_worker_whose_reports_stop_is_not_shunned_for_ever() {
    let mut core =
        scheduler(SchedulerConfig { policy: "least_load".to_owned(), ..SchedulerConfig::default() });
    feed(&mut core, 0, up(0, &[], None));
    feed(&mut core, 0, up(1, &[], None));
    let load = LoadReport { running: 50, ..LoadReport::default() };
    feed(&mut core, 0, Input::WorkerLoad { worker: worker(0), load });
    let mut turn = 0;
    let mut goes_to = |core: &mut Scheduler, ms: u64| {
        turn += 1;
        let effects = feed(core, ms, Input::TurnArrived(arrival(turn)));
        let [_, Effect::Dispatch { worker, .. }] = effects[..] else { panic!("{effects:?}") };
        worker
    };
    let first = [goes_to(&mut core, 1), goes_to(&mut core, 29_999)];
    assert_eq!(first, [worker(1); 2]);
    // The last report is 30 s old. A newer one counts as long again.
    assert_eq!(goes_to(&mut core, 30_000), worker(0));
    feed(&mut core, 30_000, Input::WorkerLoad { worker: worker(0), load });
    assert_eq!(core.view().worker(worker(0)).map(|w| w.load), Some(50));
    assert_eq!(goes_to(&mut core, 59_999), worker(1));
    assert_eq!(core.next_deadline(), None);
}

#[test]
fn what_others_had_on_a_worker_that_went_down_is_forgotten() {
    let mut core = scheduler(SchedulerConfig::default());
    feed(&mut core, 0, up(0, &[], None));
    let load = LoadReport { running: 50, ..LoadReport::default() };
    feed(&mut core, 0, Input::WorkerLoad { worker: worker(0), load });
    feed(&mut core, 1, Input::WorkerDown { worker: worker(0) });
    feed(&mut core, 2, up(0, &[], None));
    let view = core.view().worker(worker(0)).expect("known");
    assert_eq!((view.load, view.report), (0, None));
}

#[test]
fn a_program_keeps_the_parent_and_the_group_that_it_named_first() {
    let mut core = scheduler(SchedulerConfig::default());
    feed(&mut core, 0, up(0, &[], None));
    let said =
        [(None, None), (Some("p"), Some("g")), (None, None), (Some("q"), Some("h")), (Some("c"), None)];
    let seen = said.into_iter().zip(1..).map(|((parent, group), turn)| {
        let arrival = TurnArrival {
            program: Some(program("c")),
            parent: parent.map(program),
            group: group.and_then(|group| GroupId::new(group).ok()),
            ..arrival(turn)
        };
        feed(&mut core, turn, Input::TurnArrived(arrival));
        let view = core.view().program(&program("c")).expect("known");
        (view.parent, view.group.map(|group| group.to_string()))
    });
    let named = (Some(program("p")), Some("g".to_owned()));
    assert_eq!(seen.collect::<Vec<_>>(), [(None, None), named.clone(), named.clone(), named.clone(), named]);
}

#[test]
fn a_worker_that_was_away_gets_a_probe_as_soon_as_it_is_back() {
    let breaker = BreakerConfig { failures_to_open: 1, ..BreakerConfig::default() };
    let mut core = scheduler(SchedulerConfig { breaker, ..SchedulerConfig::default() });
    feed(&mut core, 0, up(0, &[], None));
    feed(&mut core, 0, turn_of(1, "a"));
    let failure = DispatchFailure { kind: FailureKind::Connect, retryable: false };
    feed(&mut core, 0, Input::TurnFailed { turn: TurnId(1), failure });
    let state = |core: &Scheduler| core.view().worker(worker(0)).expect("known").breaker;
    // Told again that it is ready, it was not away: its breaker stays open.
    feed(&mut core, 1, up(0, &[], None));
    assert!(matches!(state(&core), BreakerState::Open { .. }));
    feed(&mut core, 2, Input::WorkerDown { worker: worker(0) });
    feed(&mut core, 3, up(0, &[], None));
    assert!(matches!(state(&core), BreakerState::HalfOpen { probe: None, .. }));
}

/// I-BRK-4: an answer that has begun closes a half-open breaker before it has ended.
#[test]
fn the_first_byte_of_a_probe_brings_a_worker_back() {
    let breaker = BreakerConfig { failures_to_open: 1, ..BreakerConfig::default() };
    let mut core = scheduler(SchedulerConfig { breaker, ..SchedulerConfig::default() });
    feed(&mut core, 0, up(0, &[], None));
    feed(&mut core, 0, turn_of(1, "a"));
    let failure = DispatchFailure { kind: FailureKind::Connect, retryable: false };
    feed(&mut core, 0, Input::TurnFailed { turn: TurnId(1), failure });
    feed(&mut core, 6000, turn_of(2, "b"));
    let state = |core: &Scheduler| core.view().worker(worker(0)).expect("known").breaker;
    assert!(matches!(state(&core), BreakerState::HalfOpen { probe: Some(TurnId(2)), .. }));
    feed(&mut core, 6001, Input::FirstToken { turn: TurnId(2) });
    assert_eq!(state(&core), BreakerState::Closed { failures: 0 });
}

/// I-SCH-10.
#[test]
fn nonsense_from_a_driver_is_counted_and_changes_nothing() {
    let mut core = scheduler(SchedulerConfig::default());
    feed(&mut core, 10, up(0, &[], Some(1)));
    feed(&mut core, 10, turn_of(1, "a"));
    feed(&mut core, 10, turn_of(2, "b"));
    let before = format!(
        "{:?} {:?}",
        core.view().workers().collect::<Vec<_>>(),
        core.view().turns().collect::<Vec<_>>()
    );
    let failure = || tandem_scheduler::DispatchFailure { kind: FailureKind::Connect, retryable: true };
    for input in [
        turn_of(1, "z"),
        Input::TurnStarted { turn: TurnId(77) },
        Input::FirstToken { turn: TurnId(77) },
        Input::TurnFailed { turn: TurnId(77), failure: failure() },
        ended(77, TurnResult::Finished),
        Input::ClientGone { turn: TurnId(77) },
        // Turn 2 is held.
        Input::TurnStarted { turn: TurnId(2) },
        Input::TurnFailed { turn: TurnId(2), failure: failure() },
        ended(2, TurnResult::Finished),
        Input::WorkerDown { worker: worker(9) },
        Input::WorkerDraining { worker: worker(9) },
        Input::WorkerRemoved { worker: worker(9) },
        Input::WorkerLoad { worker: worker(9), load: LoadReport::default() },
        Input::SessionEnd { program: program("nobody") },
    ] {
        assert_eq!(feed(&mut core, 10, input.clone()), [], "{input:?}");
    }
    let view = core.view();
    let after = format!("{:?} {:?}", view.workers().collect::<Vec<_>>(), view.turns().collect::<Vec<_>>());
    assert_eq!(before, after);
    let counters = *view.counters();
    let anomalies = counters.anomalies;
    assert_eq!(
        (
            anomalies.duplicate_turns,
            anomalies.unknown_turns,
            anomalies.wrong_phase,
            anomalies.unknown_workers
        ),
        (1, 5, 3, 4)
    );
    assert_eq!(counters.unknown_session_ends, 1);
    // Time that runs backwards is taken for the latest time seen.
    feed(&mut core, 3, Input::WorkerLoad { worker: worker(0), load: LoadReport::default() });
    assert_eq!(
        (core.view().now(), core.view().counters().anomalies.time_backwards),
        (Time::from_millis(10), 1)
    );
}

#[test]
fn an_arrival_does_not_overtake_those_whom_a_breaker_lets_go_at_the_same_call() {
    let breaker = BreakerConfig { failures_to_open: 1, ..BreakerConfig::default() };
    let mut core = scheduler(SchedulerConfig { breaker, ..SchedulerConfig::default() });
    feed(&mut core, 0, up(0, &[], Some(1)));
    feed(&mut core, 0, turn_of(1, "a"));
    let failure = DispatchFailure { kind: FailureKind::Connect, retryable: false };
    feed(&mut core, 0, Input::TurnFailed { turn: TurnId(1), failure });
    feed(&mut core, 0, up(1, &[], Some(1)));
    feed(&mut core, 1, turn_of(2, "b"));
    // Worker 1 is well and full, worker 0 free and not well: turn 3 waits.
    let held = feed(&mut core, 2, turn_of(3, "c"));
    assert!(matches!(held[..], [Effect::Hold { .. }]), "{held:?}");
    // The end of the breaker's time comes before that of its patience, and the driver must call then.
    assert_eq!(core.next_deadline(), Some(Time::from_millis(5000)));
    // Worker 0's breaker is half-open when turn 4 arrives, and nobody called the time-out before.
    let effects = feed(&mut core, 6000, turn_of(4, "d"));
    let went = |turn: u64| {
        effects.iter().any(|e| matches!(e, Effect::Dispatch { turn: t, .. } if *t == TurnId(turn)))
    };
    assert!(went(3) && !went(4), "{effects:?}");
}

#[test]
fn a_configuration_that_cannot_work_is_refused() {
    let refuse = |config| Scheduler::new(config, 0).expect_err("refused").to_string();
    let zero = SchedulerConfig { attempts_max: 0, ..SchedulerConfig::default() };
    assert_eq!(refuse(zero), "attempts_max must be at least 1");
    let policy = SchedulerConfig { policy: "best".to_owned(), ..SchedulerConfig::default() };
    assert!(refuse(policy).starts_with("no routing policy named \"best\""));
}
