//! Known defects of the published code, none of which any policy here may have. Where the article itself prescribes what
//! the code does, a switch of `thunderagent` has both.

use std::time::Duration;

use tandem_admission::{
    AdmissionConfig, Arrival, Capacity, Event, Placement, TandemConfig, ThunderAgentConfig,
};
use tandem_types::{PrefixMatch, TurnId};

use crate::support::{World, key, lies, w};

const GATES: [&str; 3] = ["thunderagent", "tandem", "idle_lease"];

fn worlds(capacities: &[u64]) -> Vec<World> {
    // 100 tokens a second, so that small pools keep idle programs for a while.
    let tandem = TandemConfig {
        prefill_tokens_per_s: 100.0,
        admit: 0.95,
        pause: 1.0,
        pause_to: 0.98,
        ..TandemConfig::default()
    };
    let config = |name: &str| AdmissionConfig {
        policy: name.to_owned(),
        tandem: tandem.clone(),
        ..AdmissionConfig::default()
    };
    GATES.iter().map(|name| World::new(&config(name), capacities)).collect()
}

/// B1: marking went on until nobody was left, since what the marked would release was not counted. Nine turns of 1,150
/// are 10,350 of 10,000. The article comes down to 8,000: three marks release 3,450, two only 2,300. `tandem` comes down
/// to 9,800: one suffices. Marking all is what the package does, and a switch.
#[test]
fn b1_marks_count_what_they_will_release() {
    let package = ThunderAgentConfig { buffer: 0, ..ThunderAgentConfig::package() };
    let article = ThunderAgentConfig { buffer: 0, ..ThunderAgentConfig::default() };
    for (name, settings, expected) in
        [("thunderagent", article.clone(), 3), ("thunderagent", package, 9), ("tandem", article, 1)]
    {
        let config =
            AdmissionConfig { policy: name.to_owned(), thunderagent: settings, ..AdmissionConfig::default() };
        let mut world = World::new(&config, &[10_000]);
        let turns: Vec<u64> = (0..9).map(|i| world.arrive(&format!("p{i}"), 1_000)).collect();
        for turn in &turns {
            world.tell(&Event::Progress { turn: TurnId(*turn), generated: 150 });
        }
        world.at(5.0);
        assert_eq!(world.policy.stats().marked, expected, "{name}");
    }
}

/// B2: what programs share was never subtracted, although documented. The article adds whole contexts up: a switch.
#[test]
fn b2_a_head_that_programs_share_counts_once() {
    for (name, shared_once, runs) in
        [("tandem", false, true), ("thunderagent", true, true), ("thunderagent", false, false)]
    {
        let config = AdmissionConfig {
            policy: name.to_owned(),
            thunderagent: ThunderAgentConfig { buffer: 0, shared_once, ..ThunderAgentConfig::default() },
            ..AdmissionConfig::default()
        };
        let mut world = World::new(&config, &[5_000]);
        let first = world.arrive_with("p0", 1_000, &lies(&[], 1_000));
        world.end(first, 1_000);
        for i in 1..5 {
            let turn = world.arrive_with(&format!("p{i}"), 1_000, &lies(&[(w(0), 800)], 1_000));
            assert!(world.runs(turn), "{name}");
            world.end(turn, 1_000);
        }
        // 1,000 + 4 * 200 beside 800 that they share, or 5 * 1,000.
        assert_eq!(world.charged(0), (0, if runs { 1_800 } else { 5_000 }), "{name} {shared_once}");
        let sixth = world.arrive_with("p5", 1_000, &lies(&[(w(0), 800)], 1_000));
        assert_eq!(world.runs(sixth), runs, "{name} {shared_once}");
    }
}

/// B3: a turn that ended without usage left its program REASONING for ever.
#[test]
fn b3_a_turn_that_ends_without_usage_leaves_its_program_acting() {
    for mut world in worlds(&[1_000]) {
        let turn = world.arrive("a", 400);
        world.tell(&Event::Progress { turn: TurnId(turn), generated: 7 });
        world.end_as(turn, None, false);
        assert_eq!(
            world.charged(0),
            (0, 407),
            "{}: what it computed is all that is known",
            world.policy.name()
        );
        let turn = world.arrive("b", 300);
        world.abort(turn);
        assert_eq!(world.charged(0), (0, 707), "{}", world.policy.name());
    }
}

/// B4: a worker that vanished while a turn was being let in failed the turn.
#[test]
fn b4_a_worker_may_vanish_between_admission_and_dispatch() {
    for mut world in worlds(&[1_000, 1_000]) {
        let name = world.policy.name();
        let turn = world.arrive("a", 400);
        assert_eq!(world.worker(turn), w(0), "{name}");
        world.tell(&Event::WorkerLost { worker: w(0) });
        world.fail(turn, w(0));
        assert_eq!((world.charged(0), world.charged(1)), ((0, 0), (400, 0)), "{name}");
        world.end(turn, 450);
        let turn = world.arrive("a", 460);
        assert_eq!(world.worker(turn), w(1), "{name}");
    }
}

/// B5: nothing ever expired, and calls without identity were all one program.
#[test]
fn b5_idle_programs_expire_and_the_nameless_are_strangers() {
    for name in GATES {
        let config = AdmissionConfig {
            policy: name.to_owned(),
            program_idle_ttl: Duration::from_secs(600),
            ..AdmissionConfig::default()
        };
        let mut world = World::new(&config, &[10_000]);
        for id in 1_000..1_010 {
            world.tell(&Event::Arrived(Arrival {
                turn: TurnId(id),
                program: None,
                parent: None,
                group: None,
                prompt_tokens: 100,
                prefix: &PrefixMatch::unknown(),
                last: false,
                waited: std::time::Duration::ZERO,
            }));
            world.tell(&Event::Dispatched { turn: TurnId(id), worker: w(0) });
        }
        assert_eq!(world.charged(0), (1_000, 0), "{name}");
        (1_000..1_010).for_each(|id| world.end(id, 100));
        assert_eq!(
            (world.charged(0), world.policy.stats().programs),
            ((0, 0), 0),
            "{name}: they leave nothing"
        );
        world.acting("a", 500);
        world.at(599.0);
        assert_eq!(world.policy.stats().programs, 1, "{name}");
        world.at(606.0);
        assert_eq!((world.charged(0), world.policy.stats().programs), ((0, 0), 0), "{name}");
    }
}

/// B6: turns of one program that ran side by side overwrote each other's tokens and state.
#[test]
fn b6_several_turns_of_a_program_are_all_charged() {
    for mut world in worlds(&[10_000]) {
        let name = world.policy.name();
        let long = world.arrive("a", 2_000);
        let short = world.arrive("a", 300);
        assert!(world.runs(long) && world.runs(short), "{name}");
        assert_eq!(world.charged(0), (2_300, 0), "{name}");
        world.end(long, 2_100);
        assert_eq!(world.charged(0), (300, 0), "{name}: it still reasons");
        world.end(short, 310);
        assert_eq!(world.charged(0), (0, 2_100), "{name}: its context is that of the longest");
    }
}

/// B7: once queued, programs were let in on a 5 s tick only. The article prescribes the tick: a switch.
#[test]
fn b7_room_is_used_at_once() {
    for (name, event_driven, at_once) in [
        ("thunderagent", true, true),
        ("thunderagent", false, false),
        ("tandem", false, true),
        ("idle_lease", false, true),
    ] {
        let config = AdmissionConfig {
            policy: name.to_owned(),
            thunderagent: ThunderAgentConfig { event_driven, ..ThunderAgentConfig::default() },
            ..AdmissionConfig::default()
        };
        let mut world = World::new(&config, &[1_000]);
        let a = world.arrive("a", 800);
        let b = world.arrive("b", 500);
        assert!(!world.runs(b), "{name}");
        world.at(0.5);
        world.tell(&Event::Ended { turn: TurnId(a), end: Default::default() });
        world.tell(&Event::SessionEnd { program: &key("a") });
        assert_eq!(world.runs(b), at_once, "{name}");
        world.at(5.0);
        assert!(world.runs(b), "{name}");
    }
}

/// B8: nobody was told of a pause.
#[test]
fn b8_pauses_are_told() {
    for mut world in worlds(&[2_000]) {
        world.acting("a", 1_000);
        world.acting("b", 500);
        world.arrive("a", 1_950);
        world.at(5.0);
        assert_eq!(world.paused, ["b"], "{}", world.policy.name());
    }
}

/// B9: estimates from characters stayed where they were wrong.
#[test]
fn b9_estimates_give_way_to_usage() {
    for mut world in worlds(&[1_000]) {
        let turn = world.arrive("a", 900);
        world.end(turn, 200);
        assert_eq!(world.charged(0), (0, 200), "{}", world.policy.name());
    }
}

/// B10: each decision walked all programs. Here it looks at one worker: what idles elsewhere changes nothing.
#[test]
fn b10_a_decision_at_one_worker_ignores_the_programs_of_others() {
    for mut world in worlds(&[1_000]) {
        let name = world.policy.name();
        world.acting("small", 900);
        world.tell(&Event::WorkerReady { worker: w(1), capacity: Some(Capacity::device(1_000_000)) });
        (0..50).for_each(|i| world.acting(&format!("p{i}"), 950));
        assert_eq!(world.charged(0), (0, 900), "{name}: what does not fit there went elsewhere");
        let again = world.arrive("small", 910);
        assert_eq!(world.grant(again).placement, Placement::Pin(w(0)), "{name}");
    }
}

/// B11: what a program held was never given back, since nobody tore anything down. Here all that a policy holds for it
/// is free again after each way in which it can end: said with its last turn, said alone, never said, never begun.
#[test]
fn b11_each_end_of_a_program_gives_its_place_back() {
    for how in ["last turn", "session end", "expiry", "abort"] {
        for mut world in worlds(&[1_000]) {
            let name = world.policy.name();
            let turn = TurnId(1_000);
            world.tell(&Event::Arrived(Arrival {
                turn,
                program: Some(&key("a")),
                parent: None,
                group: None,
                prompt_tokens: 900,
                prefix: &PrefixMatch::unknown(),
                last: how == "last turn",
                waited: Duration::ZERO,
            }));
            if how == "abort" {
                world.tell(&Event::Undispatched { turn, again: None });
                world.abort(turn.0);
            } else {
                world.end(turn.0, 900);
            }
            match how {
                "session end" => world.tell(&Event::SessionEnd { program: &key("a") }),
                "expiry" => world.at(1_806.0),
                _ => {}
            }
            assert_eq!(world.charged(0), (0, 0), "{name}: {how}");
            assert_eq!(world.policy.stats().programs, 0, "{name}: {how}");
        }
    }
}

/// I-ATB-3.
#[test]
fn an_abort_leaves_a_program_as_it_was() {
    for mut world in worlds(&[1_000]) {
        let name = world.policy.name();
        let a = world.arrive("a", 900);
        let b = world.arrive("b", 800);
        assert!(!world.runs(b), "{name}");
        world.abort(b);
        assert_eq!(world.policy.stats().programs, 1, "{name}: b never ran, nothing is left of it");
        assert_eq!((world.policy.stats().held, world.policy.stats().cancelled), (0, 1), "{name}");
        world.end(a, 900);
        world.at(3.0);
        let again = world.arrive("a", 950);
        world.abort(again);
        assert!(world.charged(0).1 >= 900, "{name}: a keeps its place");
        // The same id after all is over is a new turn.
        world.abort(again);
        world.tell(&Event::Progress { turn: TurnId(again), generated: 5 });
    }
}

#[test]
fn capacities_may_change_and_vanish() {
    for mut world in worlds(&[1_000]) {
        let name = world.policy.name();
        world.arrive("a", 900);
        let b = world.arrive("b", 800);
        assert!(!world.runs(b), "{name}");
        world.tell(&Event::WorkerReady { worker: w(0), capacity: Some(Capacity::device(4_000)) });
        world.at(6.0);
        assert!(world.runs(b), "{name}");
        let c = world.arrive("c", 3_500);
        assert!(!world.runs(c), "{name}");
        world.tell(&Event::WorkerReady { worker: w(0), capacity: None });
        world.at(12.0);
        assert!(world.runs(c), "{name}: nobody is held for want of what is unknown");
    }
}
