//! Turns whose dispatch failed, and who want their room back. Workers of 1,000 tokens, of which `tandem` fills 900.

use tandem_admission::{AdmissionConfig, Capacity, Event, HoldReason, Placement};

use crate::support::{World, key, w};

fn world(policy: &str, workers: usize) -> World {
    let config = AdmissionConfig { policy: policy.to_owned(), ..AdmissionConfig::default() };
    World::new(&config, &vec![1_000; workers])
}

fn over(world: &mut World, turn: u64, program: &str) {
    world.end(turn, 600);
    world.tell(&Event::SessionEnd { program: &key(program) });
}

/// 600 run and 500 wait. With the 600 gone for a moment the 500 would fit.
#[test]
fn its_room_is_its_own_before_it_is_anybodys() {
    for policy in ["tandem", "idle_lease", "thunderagent"] {
        let mut world = world(policy, 1);
        let a = world.arrive("a", 600);
        let b = world.arrive("b", 500);
        assert!(!world.runs(b), "{policy}");
        world.fail(a, w(0));
        assert_eq!((world.worker(a), world.charged(0)), (w(0), (600, 0)), "{policy}");
        assert!(!world.runs(b), "{policy}");
        assert_eq!(world.policy.stats().admitted, 1, "{policy}: a turn is admitted once");
    }
}

/// I-TAN-1, I-GAT-1. 600 run at each of two workers. The one that failed a turn is not where it goes again; the other would
/// have 1,200.
#[test]
fn a_turn_that_has_to_move_waits_until_there_is_room() {
    let mut world = world("tandem", 2);
    let (a, b) = (world.arrive("a", 600), world.arrive("b", 600));
    world.at(1.0);
    let c = world.arrive("c", 500);
    assert_eq!((world.worker(a), world.worker(b), world.held(c)), (w(0), w(1), HoldReason::NoRoom));
    world.fail(a, w(0));
    assert_eq!(world.held(a), HoldReason::NoRoom);
    assert_eq!(world.worker(c), w(0), "what a cannot use is another's");
    assert_eq!((world.charged(0), world.charged(1)), ((500, 0), (600, 0)));
    let stats = world.policy.stats();
    assert_eq!((stats.held, stats.held_tokens, stats.paused), (1, 600, 0), "a never had a cache to lose");
    // It stands where it stood: before whoever came after it.
    let d = world.arrive("d", 500);
    world.at(2.0);
    over(&mut world, b, "b");
    assert_eq!((world.worker(a), world.held(d)), (w(1), HoldReason::NoRoom));
    assert_eq!((world.charged(0), world.charged(1)), ((500, 0), (600, 0)));
    over(&mut world, a, "a");
    assert!(world.runs(d));
}

/// Where nobody else is ready a worker that failed a turn is better than none, now or later.
#[test]
fn a_worker_that_failed_it_will_do_where_there_is_no_other() {
    let mut world = world("tandem", 2);
    let (a, b) = (world.arrive("a", 600), world.arrive("b", 600));
    world.fail(a, w(0));
    assert_eq!((world.worker(b), world.held(a)), (w(1), HoldReason::NoRoom));
    world.tell(&Event::WorkerLost { worker: w(1) });
    assert_eq!(world.worker(a), w(0));
    world.fail(a, w(0));
    assert_eq!(world.worker(a), w(0));
    // A third that is ready is preferred.
    world.tell(&Event::WorkerReady { worker: w(2), capacity: Some(Capacity::device(1_000)) });
    world.fail(a, w(0));
    assert_eq!(world.worker(a), w(2));
}

/// A turn that waits for longer than 30 s keeps the room of a worker for itself: of one where it may go. 850 run there, and
/// nothing runs at the one that failed it.
#[test]
fn an_overdue_turn_keeps_no_room_where_it_does_not_go() {
    let mut world = world("tandem", 2);
    let (a, b) = (world.arrive("a", 400), world.arrive("b", 850));
    world.fail(a, w(0));
    assert_eq!(world.held(a), HoldReason::NoRoom);
    world.at(31.0);
    let c = world.arrive("c", 300);
    assert_eq!(
        world.worker(c),
        w(0),
        "the room at the first worker is of no use to the turn that is overdue"
    );
    assert!(world.runs(b) && !world.runs(a));
}

/// A program that ran keeps its place when its turn does, and loses it to the queue when there is no room for it.
#[test]
fn a_program_without_room_for_its_turn_loses_its_place() {
    let mut world = world("tandem", 2);
    world.acting("a", 500);
    let a = world.arrive("a", 600);
    let b = world.arrive("b", 600);
    assert_eq!((world.worker(a), world.worker(b)), (w(0), w(1)));
    world.fail(a, w(0));
    assert_eq!((world.held(a), world.paused.as_slice()), (HoldReason::Paused, ["a".to_owned()].as_slice()));
    assert_eq!(world.charged(0), (0, 0));
    // I-ATB-3: its client leaves, and it is as before that turn.
    world.abort(a);
    assert_eq!((world.charged(0), world.charged(1)), ((0, 500), (600, 0)));
}

/// What fails of a program takes nothing from its other turn.
#[test]
fn one_of_several_turns_of_a_program_fails() {
    let mut world = world("tandem", 1);
    let (first, second) = (world.arrive("a", 400), world.arrive("a", 450));
    world.fail(second, w(0));
    assert!(world.runs(first) && world.runs(second));
    assert_eq!(world.charged(0), (850, 0));
    world.end(first, 410);
    world.end(second, 460);
    assert_eq!(world.charged(0), (0, 460));
}

/// Nothing is published of retries: an ACTIVE program keeps its place, over the threshold too, and is as urgent as before.
#[test]
fn thunderagent_sends_an_active_program_home_again() {
    let mut world = world("thunderagent", 2);
    let (a, b) = (world.arrive("a", 600), world.arrive("b", 600));
    let first = world.grant(a);
    assert_eq!((first.placement, first.priority), (Placement::Pin(w(0)), 0));
    world.tell(&Event::Progress { turn: tandem_types::TurnId(a), generated: 700 });
    world.at(1.0);
    world.fail(a, w(0));
    assert_eq!(world.grant(a), first);
    // Its worker gone, it is held as any program is that fits nowhere, and goes by the rules of the tick.
    world.tell(&Event::WorkerLost { worker: w(0) });
    world.fail(a, w(0));
    assert_eq!(world.held(a), HoldReason::NoRoom);
    over(&mut world, b, "b");
    world.tell(&Event::WorkerReady { worker: w(1), capacity: Some(Capacity::device(2_000)) });
    world.at(5.0);
    assert_eq!(world.worker(a), w(1));
}

#[test]
fn an_idle_lease_keeps_the_place_of_one_that_moves() {
    let mut world = world("idle_lease", 2);
    let (a, _) = (world.arrive("a", 600), world.arrive("b", 600));
    world.tell(&Event::WorkerLost { worker: w(0) });
    world.fail(a, w(0));
    assert_eq!(world.worker(a), w(1), "it is charged there although that is full");
    assert_eq!(world.charged(1), (1_200, 0));
}
