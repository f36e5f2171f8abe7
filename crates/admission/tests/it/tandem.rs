//! The policy `tandem`, step by step.

use std::time::Duration;

use tandem_admission::{AdmissionConfig, Capacity, Event, HoldReason, Placement, TandemConfig};

use crate::support::{World, key, lies, w};

/// 100 tokens a second: a pool of 10,000 tokens has a horizon of 100 s.
fn config(change: impl FnOnce(&mut TandemConfig)) -> AdmissionConfig {
    let mut tandem = TandemConfig {
        prefill_tokens_per_s: 100.0,
        admit: 0.95,
        pause: 1.0,
        pause_to: 0.98,
        patience: 1.0,
        reprefill_share: 0.05,
        running_max: 0.9,
        ..TandemConfig::default()
    };
    change(&mut tandem);
    AdmissionConfig { policy: "tandem".to_owned(), tandem, ..AdmissionConfig::default() }
}

fn world(capacities: &[u64]) -> World {
    World::new(&config(|_| {}), capacities)
}

/// I-TAN-2.
#[test]
fn while_all_fit_nobody_waits_and_everybody_goes_home() {
    let mut world = world(&[10_000, 10_000]);
    for round in 0..5_u32 {
        for program in 0..10 {
            let prompt = 1_000 + u64::from(round) * 100;
            let turn = world.arrive(&format!("p{program}"), prompt);
            assert_eq!(world.worker(turn), w(program % 2));
            world.end(turn, prompt + 50);
            world.at(f64::from(round) * 20.0 + f64::from(program));
        }
    }
    assert_eq!((world.policy.stats().paused, world.policy.stats().moved), (0, 0));
}

/// Three quarters of a worker are where memory begins to matter.
#[test]
fn routing_places_newcomers_while_every_worker_has_room_to_spare() {
    let mut world = world(&[10_000, 2_000]);
    let small = world.arrive("small", 700);
    assert_eq!(world.grant(small).placement, Placement::Free(w(0)), "1,400 of 2,000 are 0.7");
    let large = world.arrive("large", 800);
    assert_eq!(world.grant(large).placement, Placement::Pin(w(0)), "1,600 of 2,000 are 0.8");
    // The charge follows routing.
    world.tell(&Event::Dispatched { turn: tandem_types::TurnId(small), worker: w(1) });
    assert_eq!((world.charged(0).0, world.charged(1).0), (800, 700));
}

/// What lies in lower tiers has its home there: the question is one of device memory.
#[test]
fn room_to_spare_is_room_on_the_device() {
    for (prompt, free) in [(700, true), (800, false)] {
        let mut world = World::new(&config(|_| {}), &[]);
        let capacity = Some(Capacity { resident: 10_000, ..Capacity::device(2_000) });
        world.tell(&Event::WorkerReady { worker: w(0), capacity });
        let a = world.arrive("a", prompt);
        let placement = if free { Placement::Free(w(0)) } else { Placement::Pin(w(0)) };
        assert_eq!(world.grant(a).placement, placement, "missing tokens count as taken, too: {prompt}");
    }
}

/// The cache of a lies in host memory while x fills the device: a waits for the device and loses nothing.
#[test]
fn who_waits_for_the_device_keeps_its_place_in_a_lower_tier() {
    let mut world = World::new(&config(|_| {}), &[]);
    let capacity = Some(Capacity { resident: 10_000, ..Capacity::device(1_000) });
    world.tell(&Event::WorkerReady { worker: w(0), capacity });
    world.acting("a", 600);
    let x = world.arrive("x", 500);
    let a = world.arrive("a", 610);
    assert_eq!(world.held(a), HoldReason::NoRoom, "1,110 of 1,000");
    assert!(world.paused.is_empty());
    world.end(x, 500);
    assert_eq!(world.worker(a), w(0));
}

#[test]
fn caches_that_programs_leave_behind_are_named() {
    let mut world = world(&[10_000, 10_000]);
    let a = world.arrive("a", 4_000);
    world.end(a, 4_000);
    // It goes on elsewhere, since nothing of it lies at home any more.
    let home = world.worker(a);
    let gone = lies(&[(w(home.engine.0), 0), (w(1 - home.engine.0), 4_000)], 4_100);
    let again = world.arrive_with("a", 4_000, &gone);
    world.end(again, 4_000);
    let moved = world.arrive_with("a", 4_100, &gone);
    assert_eq!(world.worker(moved), w(1 - home.engine.0));
    assert_eq!(world.demoted, [("a".to_owned(), home.engine.0, 4_000)]);
    world.end(moved, 4_200);
    world.tell(&Event::SessionEnd { program: &key("a") });
    assert_eq!(world.demoted[1..], [("a".to_owned(), 1 - home.engine.0, 4_200)]);
}

/// 0.90 of a worker, and 0.95 of one that evicts first what it is told to.
#[test]
fn workers_that_demote_are_filled_further() {
    for (demotes, fits) in [(false, 9_000), (true, 9_500)] {
        let mut world = World::new(&config(|tandem| tandem.admit = 0.9), &[]);
        let capacity = Some(Capacity { demotes, ..Capacity::device(10_000) });
        world.tell(&Event::WorkerReady { worker: w(0), capacity });
        world.arrive("a", fits - 1_000);
        let (b, c) = (world.arrive("b", 1_000), world.arrive("c", 10));
        assert!(world.runs(b) && !world.runs(c), "{demotes}");
    }
}

#[test]
fn newcomers_are_admitted_up_to_095() {
    let mut world = world(&[10_000]);
    let a = world.arrive("a", 5_000);
    let b = world.arrive("b", 4_500);
    assert!(world.runs(a) && world.runs(b), "9500");
    let c = world.arrive("c", 10);
    assert_eq!(world.held(c), HoldReason::NoRoom);
}

/// Of 5,000 tokens others have computed 4,000 and more at two workers or all, so that the rest fits there beside 6,000.
#[test]
fn who_waits_needs_no_room_for_a_head_that_is_there() {
    for (third, freed) in [(4_000, 0), (4_000, 1), (4_000, 2), (0, 0), (0, 1)] {
        let mut world = world(&[10_000; 3]);
        let mut arrive =
            |name, tokens| [0, 1, 2].map(|number| world.arrive(&format!("{name}{number}"), tokens));
        arrive("large", 6_000);
        let small = arrive("small", 3_000);
        let head = lies(&[(w(0), 4_010), (w(1), 4_010), (w(2), third)], 5_000);
        let waits = world.arrive_with("waits", 5_000, &head);
        assert_eq!(world.held(waits), HoldReason::NoRoom, "9,000 and 990 of 9,500");
        let ends = small.iter().position(|turn| world.worker(*turn) == w(freed)).expect("one each");
        world.end(small[ends], 3_000);
        world.tell(&Event::SessionEnd { program: &key(&format!("small{ends}")) });
        assert_eq!(world.worker(waits), w(freed));
    }
}

/// I-TAN-1.
#[test]
fn returning_programs_may_fill_the_pool_and_not_more() {
    let mut world = world(&[10_000]);
    world.acting("a", 4_000);
    world.acting("b", 4_000);
    let a = world.arrive("a", 5_000);
    let b = world.arrive("b", 4_990);
    assert!(world.runs(a) && world.runs(b), "with an answer of a token each");
    world.at(1.0);
    world.end(a, 5_000);
    let a = world.arrive("a", 5_200);
    assert_eq!(world.held(a), HoldReason::NoRoom, "4,990 + 5,200 do not fit");
    world.end(b, 4_990);
    world.tell(&Event::SessionEnd { program: &key("b") });
    assert!(world.runs(a));
}

/// 5,500 idle and 5,200 running of 10,000: 1,500 too many for 0.92. The one that frees just that would be c.
#[test]
fn the_smallest_lose_their_places_until_there_is_something_to_spare() {
    let mut world = World::new(&config(|tandem| tandem.pause_to = 0.92), &[10_000]);
    for (program, tokens) in [("a", 3_000), ("b", 1_000), ("c", 1_500), ("d", 4_000)] {
        world.acting(program, tokens);
    }
    let d = world.arrive("d", 5_200);
    assert!(world.runs(d));
    assert_eq!(world.paused, ["b", "c"]);
}

#[test]
fn a_turn_larger_than_the_pool_runs_alone() {
    let mut world = world(&[1_000]);
    let big = world.arrive("big", 5_000);
    assert!(world.runs(big), "the engine has to say what it thinks of that");
    let small = world.arrive("small", 10);
    assert!(!world.runs(small));
    world.end(big, 5_000);
    world.tell(&Event::SessionEnd { program: &key("big") });
    assert!(world.runs(small));
}

/// Tools have been seen to take 2 s: after 200 s few are expected within the next 100.
#[test]
fn idle_programs_give_way_when_they_are_not_expected() {
    let mut world = world(&[10_000]);
    world.acting("fast", 100);
    for i in 1..200_u32 {
        world.at(f64::from(i) * 2.0);
        world.acting("fast", 100);
    }
    world.tell(&Event::SessionEnd { program: &key("fast") });
    world.acting("a", 9_000);
    world.at(401.0);
    let b = world.arrive("b", 5_000);
    assert!(!world.runs(b), "a is expected back");
    world.at(600.0);
    assert!(world.runs(b), "a is overdue by far");
    let a = world.arrive("a", 9_100);
    assert!(!world.runs(a), "b runs in its place");
    assert!(world.policy.charged(w(0)).0 <= 10_000);
}

#[test]
fn people_are_expected_back_later_than_tools() {
    // Nothing was seen yet: priors of 6 s for tools and 120 s for people, a horizon of 100 s, and 40 s have passed.
    // Tools misjudged by a factor of 20 are as people, and people by a twentieth as tools.
    for (factor, tools, waits) in
        [(1.0, true, false), (1.0, false, true), (20.0, true, true), (0.05, false, false)]
    {
        let change = |c: &mut TandemConfig| (c.give_way, c.gap_factor) = (0.55, factor);
        let mut world = World::new(&config(change), &[10_000]);
        let a = world.arrive("a", 9_000);
        world.end_as(a, Some(9_000), tools);
        world.at(0.1);
        let b = world.arrive("b", 4_000);
        // A person is less likely than not back within the horizon, tools are nearly sure to be.
        assert_eq!(world.runs(b), waits, "tools {tools}, {factor}");
    }
}

#[test]
fn a_program_whose_cache_is_gone_queues_like_a_newcomer() {
    let mut world = world(&[10_000]);
    world.acting("a", 4_000);
    world.acting("b", 5_000);
    let b = world.arrive_with("b", 5_200, &lies(&[(w(0), 5_000)], 5_200));
    assert!(world.runs(b), "it lies there");
    world.end(b, 5_200);
    // Word of what lies there may be lost: a program with a place goes home all the same, once.
    let gone = |prompt| lies(&[(w(0), 1_000)], prompt);
    let a = world.arrive_with("a", 4_100, &gone(4_100));
    assert!(world.runs(a), "it has a place");
    world.end(a, 4_100);
    let a = world.arrive_with("a", 5_000, &gone(5_000));
    assert_eq!(world.held(a), HoldReason::Paused, "3,000 of 4,000 are gone, and 5,200 + 5,000 exceed 9,500");
}

/// What a program finds where it was before is its own, and no head that others have taken room for already.
#[test]
fn a_program_that_comes_back_to_a_worker_takes_all_of_its_room() {
    let mut world = world(&[10_000, 10_000]);
    let others = lies(&[(w(0), 500)], 4_000);
    let a = world.arrive_with("a", 4_000, &others);
    assert_eq!(world.charged(0).0, 3_500, "500 are others'");
    world.end(a, 4_000);
    for (at, prompt, charge) in [(1, 4_100, 4_100), (0, 4_200, 3_700)] {
        let own = lies(&[(w(0), 4_000)], prompt);
        let a = world.arrive_with("a", prompt, &own);
        world.tell(&Event::Dispatched { turn: tandem_types::TurnId(a), worker: w(at) });
        assert_eq!(world.charged(at).0, charge, "of its head others have 500 at worker 0 and nothing at 1");
        world.end(a, prompt);
    }
}

/// Events of a cache are lost: 4,000 tokens lie at home and nothing is told of them. The first token comes at once, and
/// does not mean that 4,000 were computed at once, for then memory would be cheap and no idle program worth keeping.
#[test]
fn a_cache_that_was_not_known_of_says_nothing_of_the_prefill_rate() {
    for (cached, keeps) in [(3_999, true), (0, false)] {
        let mut world = world(&[10_000]);
        world.acting("a", 4_000);
        let a = world.arrive_with("a", 4_100, &lies(&[(w(0), 0)], 4_100));
        world.at(0.02);
        world.tell(&Event::FirstToken { turn: tandem_types::TurnId(a) });
        world.end_counted(a, 4_100, cached);
        let b = world.arrive("b", 7_000);
        assert_eq!(!world.runs(b), keeps, "{cached}");
    }
}

/// The engine counts more than was told: the events of the cache were lost, not the cache.
#[test]
fn an_engines_count_is_believed_before_the_index() {
    for (cached, runs) in [(3_900, true), (900, false)] {
        let mut world = world(&[10_000]);
        world.acting("a", 4_000);
        world.acting("b", 5_200);
        let gone = |prompt| lies(&[(w(0), 1_000)], prompt);
        let a = world.arrive_with("a", 4_100, &gone(4_100));
        world.end_counted(a, 4_100, cached);
        let a = world.arrive_with("a", 5_000, &gone(5_000));
        assert_eq!(world.runs(a), runs, "{cached}");
    }
}

/// The cache of a lies at worker 0, which is full. Computing its 2,000 tokens again takes 20 s.
#[test]
fn waiting_for_home_lasts_as_long_as_moving_would_cost() {
    let mut world = World::new(&config(|c| c.reprefill_share = 0.0), &[10_000, 10_000]);
    world.acting("a", 2_000);
    let x = world.arrive("x", 9_000);
    assert_eq!(world.worker(x), w(1));
    let y = world.arrive("y", 7_300);
    assert_eq!(world.worker(y), w(0));
    let z = world.arrive_with("a", 3_000, &lies(&[(w(0), 2_000)], 3_000));
    assert_eq!(world.held(z), HoldReason::NoRoom, "7,300 + 3,000");
    world.end(x, 9_000);
    world.tell(&Event::SessionEnd { program: &key("x") });
    assert!(!world.runs(z), "worker 1 is empty now, but home may be soon");
    world.at(19.0);
    assert!(!world.runs(z));
    world.at(21.0);
    assert_eq!(world.worker(z), w(1));
    assert_eq!(world.policy.stats().moved, 1);
}

#[test]
fn a_resumed_program_goes_home_when_its_cache_still_lies_there() {
    let mut world = world(&[10_000, 10_000]);
    world.acting("a", 3_000);
    let x = world.arrive("x", 9_000);
    assert_eq!(world.worker(x), w(1));
    let y = world.arrive("y", 6_400);
    world.tell(&Event::Progress { turn: tandem_types::TurnId(y), generated: 3_000 });
    assert_eq!(world.paused, ["a"], "9,400 + 3,000");
    world.end(x, 9_000);
    world.tell(&Event::SessionEnd { program: &key("x") });
    world.end(y, 5_000);
    let a = world.arrive_with("a", 3_100, &lies(&[(w(0), 3_000)], 3_100));
    assert_eq!(world.worker(a), w(0), "worker 1 is empty, but home has room too");
}

/// 5 % of one worker's time, 100 tokens a second, each counted twice: after 60 s the budget pays for 150 tokens.
#[test]
fn an_overdue_turn_takes_a_place_as_the_budget_allows() {
    for (share, tokens, runs) in [(0.05, 125, true), (0.05, 250, false), (0.0, 125, false)] {
        let settings = |c: &mut TandemConfig| {
            c.reprefill_share = share;
            c.give_way = 0.0;
            c.turns_at_least = 1;
        };
        let mut world = World::new(&config(settings), &[10_000]);
        world.arrive("runs", 9_400 - tokens);
        world.acting("small", tokens);
        let late = world.arrive("late", 120);
        assert!(!world.runs(late));
        // small keeps coming back, so that it is always expected.
        for i in 1..60_u32 {
            world.at(f64::from(i));
            if world.runs(late) {
                break;
            }
            world.acting("small", tokens);
        }
        assert_eq!(world.runs(late), runs, "{share} {tokens}");
        assert_eq!(world.paused.contains(&"small".to_owned()), runs);
    }
}

/// 5 % of one worker's time for at most 300 s, however long nobody asked, and each second of it once: 15 s, of which a place
/// of 650 tokens, 96 of 100 times expected back, takes 12.5 s, and one of 900 would take 17.3 s.
#[test]
fn the_budget_does_not_pile_up_and_is_spent_once() {
    let settings = |c: &mut TandemConfig| {
        (c.overdue, c.give_way, c.turns_at_least) = (Duration::ZERO, 0.0, 1);
    };
    for (tokens, runs) in [(650, true), (900, false)] {
        let mut world = World::new(&config(settings), &[10_000]);
        world.at(100_000.0);
        world.arrive("runs", 9_450 - tokens);
        world.acting("small", tokens);
        let late = world.arrive("late", 120);
        assert!(!world.runs(late));
        world.at(100_002.0);
        assert_eq!(world.runs(late), runs, "{tokens}");
        if runs {
            world.end(late, 120);
            world.tell(&Event::SessionEnd { program: &key("late") });
            world.acting("another", tokens);
            let later = world.arrive("later", 120);
            world.at(100_004.0);
            assert!(!world.runs(later), "2.7 s are left");
        }
    }
}

/// Of the 4,000 that come, a worker of 10,000 would have less to compute for its size, but an idle program would lose its
/// place: 5,000 run there, and 4,000 wait for tools that were to take 6 s and have taken 300.
#[test]
fn a_worker_where_nobody_loses_a_place_comes_first() {
    let mut world = world(&[10_000, 5_000]);
    let runs = world.arrive("runs", 5_000);
    world.acting("idle", 4_000);
    assert_eq!((world.worker(runs), world.charged(0)), (w(0), (5_000, 4_000)));
    world.at(300.0);
    let b = world.arrive("b", 4_000);
    assert_eq!(world.worker(b), w(1));
    assert!(world.paused.is_empty());
}

#[test]
fn an_overdue_turn_keeps_room_for_itself() {
    let mut world = World::new(&config(|c| c.reprefill_share = 0.0), &[10_000]);
    let a = world.arrive("a", 5_000);
    world.arrive("b", 2_000);
    let large = world.arrive("large", 7_000);
    let small = world.arrive("small", 2_000);
    assert!(!world.runs(large) && world.runs(small), "at first a small one passes");
    world.at(31.0);
    world.end(a, 5_000);
    world.tell(&Event::SessionEnd { program: &key("a") });
    let other = world.arrive("other", 1_000);
    assert!(!world.runs(large) && !world.runs(other), "5,000 are free and kept");
    world.end(small, 2_000);
    world.tell(&Event::SessionEnd { program: &key("small") });
    assert!(world.runs(large));
}

#[test]
fn a_lower_tier_keeps_what_idles_and_the_device_what_runs() {
    let mut world = World::new(&config(|_| {}), &[]);
    let capacity = Some(Capacity { device: 1_000, resident: 10_000, demotes: false });
    world.tell(&Event::WorkerReady { worker: w(0), capacity });
    (0..9).for_each(|i| world.acting(&format!("p{i}"), 800));
    let first = world.arrive("p0", 800);
    let second = world.arrive("p1", 800);
    assert!(world.runs(first) && !world.runs(second), "900 of device memory are for running turns");
    world.end(first, 810);
    assert!(world.runs(second), "at once");
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let bad = [
        config(|c| c.admit = 0.0),
        config(|c| c.admit = 1.1),
        config(|c| c.pause_to = f64::NAN),
        config(|c| c.give_way = 2.0),
        config(|c| c.prefill_tokens_per_s = 0.0),
        AdmissionConfig { policy: "best".to_owned(), ..AdmissionConfig::default() },
    ];
    for config in bad {
        assert!(tandem_admission::by_name(&config).is_err(), "{config:?}");
    }
    let text = serde_json::to_string(&config(|c| c.overdue = Duration::from_secs(7))).expect("text");
    let back: AdmissionConfig = serde_json::from_str(&text).expect("settings");
    assert_eq!(back.tandem.overdue, Duration::from_secs(7));
}
