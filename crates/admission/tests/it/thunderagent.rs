//! The published scheduler, step by step, with figures worked out by hand. Buffers are 0 unless a test is about them, so
//! that sums are round.

use std::time::Duration;

use tandem_admission::{AdmissionConfig, Capacity, Event, HoldReason, Placement, ThunderAgentConfig};
use tandem_types::TurnId;

use crate::support::{World, w};

fn config(change: impl FnOnce(&mut ThunderAgentConfig)) -> AdmissionConfig {
    let mut thunderagent = ThunderAgentConfig { buffer: 0, ..ThunderAgentConfig::default() };
    change(&mut thunderagent);
    let program_idle_ttl = Duration::from_secs(7_200);
    AdmissionConfig {
        policy: "thunderagent".to_owned(),
        program_idle_ttl,
        thunderagent,
        ..AdmissionConfig::default()
    }
}

fn world(capacities: &[u64]) -> World {
    World::new(&config(|_| {}), capacities)
}

#[test]
fn a_new_program_goes_where_it_fits_and_least_is_used() {
    let mut world = world(&[1_000, 1_000]);
    let a = world.arrive("a", 400);
    let b = world.arrive("b", 300);
    let c = world.arrive("c", 500);
    assert_eq!(
        [a, b, c].map(|turn| world.worker(turn)),
        [w(0), w(1), w(1)],
        "b's worker has 700 left, a's 600"
    );
    // 600 fits neither 600 - nothing: worker 0 has exactly 600 left.
    let d = world.arrive("d", 600);
    assert_eq!(world.worker(d), w(0), "the test is against the full capacity");
    let e = world.arrive("e", 201);
    assert_eq!(world.held(e), HoldReason::NoRoom, "worker 1 has 200 left");
    let f = world.arrive("f", 10);
    assert_eq!(world.held(f), HoldReason::Behind, "new programs queue behind those that wait");
}

/// I-THA-1: below the resume ceiling.
#[test]
fn a_paused_program_waits_for_room_below_085_and_is_boosted_once() {
    let mut world = world(&[1_000]);
    for (name, tokens) in [("a", 100), ("b", 250), ("c", 300), ("d", 310)] {
        world.acting(name, tokens);
    }
    world.at(5.0);
    assert_eq!(world.paused, ["a", "b"], "960 - 100 = 860, - 250 = 610");
    world.at(6.0);
    let a = world.arrive("a", 110);
    let b = world.arrive("b", 250);
    assert_eq!((world.held(a), world.held(b)), (HoldReason::Paused, HoldReason::Paused));
    // 850 - 610 = 240: a (110) fits, b (250) does not any more.
    world.at(10.0);
    assert!(world.runs(a) && !world.runs(b));
    assert_eq!(world.grant(a).priority, 1, "held turns are boosted");
    world.end(a, 110);
    let next = world.arrive("a", 120);
    assert_eq!(world.grant(next).priority, 0, "once");
}

/// Waiting turns of known programs, then new programs, then idle ones; smallest first within each.
#[test]
fn resuming_follows_group_and_size() {
    let mut world = world(&[1_000]);
    world.acting("old", 200);
    world.acting("idle", 150);
    world.acting("big", 620);
    world.at(5.0);
    assert_eq!(world.paused, ["idle", "old"], "970 - 150 - 200 = 620");
    let new = world.arrive("new", 50);
    let old = world.arrive("old", 200);
    world.at(10.0);
    // Room: 850 - 620 = 230. old (group 0, 200) first; new (50) is over 230; idle (150) too.
    assert!(world.runs(old) && !world.runs(new));
    world.tell(&Event::SessionEnd { program: &crate::support::key("big") });
    world.at(15.0);
    assert!(world.runs(new));
    assert_eq!(world.charged(0), (250, 150), "idle has its place back");
}

/// Chosen smallest first as long as they fit all room together; placed largest first where most room is.
#[test]
fn resumed_programs_are_packed_largest_first() {
    let mut world = world(&[1_000, 1_000]);
    let x = world.arrive("x", 900);
    let y = world.arrive("y", 800);
    let waiting = ["a", "b", "c"].map(|name| world.arrive(name, 300));
    assert!(waiting.iter().all(|turn| !world.runs(*turn)));
    world.end(x, 500);
    world.end(y, 200);
    world.at(5.0);
    // Room 350 and 650, 1000 together: three of 300 fit. Worker 1 (650), worker 0 (350) against worker 1 (350): the lower
    // id, then worker 1.
    assert_eq!(waiting.map(|turn| world.worker(turn)), [w(1), w(0), w(1)]);
}

/// 700 tokens idle for two half-lives count 175.
#[test]
fn what_idles_counts_less_where_a_switch_says_so() {
    for (decayed, fits) in [(false, false), (true, true)] {
        let mut world = World::new(&config(|c| c.decayed = decayed), &[1_000]);
        world.acting("x", 700);
        world.at(2.0);
        let turn = world.arrive("a", 825);
        assert_eq!(world.runs(turn), fits, "1,000 - 175 = 825");
    }
    let mut world = World::new(&config(|c| c.decayed = true), &[1_000]);
    world.acting("x", 700);
    world.at(2.0);
    let turn = world.arrive("a", 826);
    assert!(!world.runs(turn), "one token too many");
}

/// x fills worker 0 and a idles there; y leaves worker 1 half empty.
#[test]
fn a_program_that_is_resumed_waits_for_its_origin_where_a_switch_says_so() {
    for (origin_only, elsewhere) in [(false, true), (true, false)] {
        let mut world = World::new(&config(|c| c.origin_only = origin_only), &[1_000, 1_000]);
        world.acting("a", 400);
        world.acting("y", 450);
        let x = world.arrive("x", 560);
        assert_eq!(world.worker(x), w(0), "600 are left there");
        world.at(5.0);
        assert_eq!(world.paused, ["a"], "960 - 400");
        let a = world.arrive("a", 400);
        world.at(10.0);
        assert_eq!(world.runs(a), elsewhere, "850 - 560 = 290, 850 - 450 = 400");
        if elsewhere {
            assert_eq!(world.worker(a), w(1));
        } else {
            world.end(x, 450);
            world.at(15.0);
            assert_eq!(world.worker(a), w(0), "850 - 450");
        }
    }
}

/// I-THA-1: a new program that fits whole, and one that waits and does not fit below the ceiling.
#[test]
fn what_fits_the_sum_but_no_worker_keeps_waiting() {
    let mut world = world(&[1_000, 1_000]);
    world.acting("x", 700);
    world.acting("y", 700);
    let a = world.arrive("a", 299);
    assert!(world.runs(a), "a new program may fill a worker to its end");
    world.end(a, 299);
    let b = world.arrive("b", 400);
    world.at(5.0);
    assert!(!world.runs(b), "850 - 700 = 150 and less");
}

/// I-THA-2.
#[test]
fn the_smallest_reasoning_programs_are_marked_until_what_they_release_suffices() {
    for (mark_all, expected) in [(false, [true, false, false]), (true, [true, true, true])] {
        let mut world = World::new(&config(|c| c.mark_all = mark_all), &[1_000]);
        let turns = [("a", 200), ("b", 300), ("c", 400)].map(|(name, tokens)| world.arrive(name, tokens));
        world.tell(&Event::Progress { turn: TurnId(turns[2]), generated: 60 });
        world.at(5.0);
        // 960 is above 950; 960 - 200 = 760 is below 800, so the article's scheduler stops at a.
        assert_eq!(world.policy.stats().marked, if mark_all { 3 } else { 1 });
        for (turn, tokens) in turns.into_iter().zip([200, 300, 460]) {
            world.end(turn, tokens);
        }
        let paused = ["a", "b", "c"].map(|name| world.paused.contains(&name.to_owned()));
        assert_eq!(paused, expected, "marked programs are paused when their turns end");
    }
}

#[test]
fn a_turn_held_for_30_minutes_goes_in_by_force_and_is_charged() {
    let mut world = world(&[1_000, 1_000]);
    let x = world.arrive("x", 900);
    world.arrive("y", 950);
    let late = world.arrive("late", 600);
    world.end(x, 900);
    world.at(1_795.0);
    assert!(!world.runs(late));
    // x has been away so long that it counts nothing: its worker is the one with most room.
    world.arrive("y", 950);
    world.at(1_800.0);
    let grant = world.grant(late);
    assert_eq!((grant.forced, grant.placement), (true, Placement::Pin(w(0))));
    assert_eq!(world.policy.stats().forced, 1);
    assert_eq!(world.charged(0).0, 600, "forced or not, it takes its room");
}

#[test]
fn only_ticks_resume_unless_switched() {
    for event_driven in [false, true] {
        let mut world = World::new(&config(|c| c.event_driven = event_driven), &[1_000]);
        let a = world.arrive("a", 900);
        world.at(1.0);
        let b = world.arrive("b", 500);
        world.at(2.0);
        world.end(a, 100);
        assert_eq!(world.runs(b), event_driven);
        world.at(5.0);
        assert!(world.runs(b));
    }
}

#[test]
fn every_threshold_is_a_setting() {
    let mut world = World::new(
        &config(|c| {
            c.pause_threshold = 0.5;
            c.pause_target = 0.3;
            c.resume_hysteresis = 0.2;
            c.soft_demote_threshold = 0.25;
            c.tick = Duration::from_secs(2);
        }),
        &[1_000],
    );
    world.acting("a", 200);
    world.acting("b", 301);
    world.at(2.0);
    assert_eq!(world.paused, ["a", "b"], "501 - 200 = 301, and 301 is above 300: b too");
}

/// 1,500 tokens, 1,000 of device memory, 2,000 of the host's.
#[test]
fn lower_tiers_count_where_the_package_counts_them() {
    for (count_tiers, runs) in [(false, false), (ThunderAgentConfig::package().count_tiers, true)] {
        let thunderagent = ThunderAgentConfig { count_tiers, ..ThunderAgentConfig::default() };
        let config =
            AdmissionConfig { policy: "thunderagent".to_owned(), thunderagent, ..AdmissionConfig::default() };
        let mut world = World::new(&config, &[]);
        let capacity = Some(Capacity { resident: 3_000, ..Capacity::device(1_000) });
        world.tell(&Event::WorkerReady { worker: w(0), capacity });
        let large = world.arrive("large", 1_500);
        assert_eq!(world.runs(large), runs);
    }
}
