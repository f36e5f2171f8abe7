//! The published scheduler, one row for each threshold, order and corner of its description, with figures worked out by
//! hand. Workers hold 1,000 tokens each and buffers are 0 unless the row says otherwise, so that per mille are tokens:
//! pause above 950, down to 800; demote from 800 on; resume up to 850.

mod corners;
mod orders;
mod thresholds;

use std::collections::BTreeMap;
use std::time::Duration;

use tandem_admission::{AdmissionConfig, Capacity, Event, HoldReason, Placement, ThunderAgentConfig};
use tandem_types::TurnId;

use crate::support::{World, key, w};

type Name = &'static str;

/// What happens, and what must then be so.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// The clock stands at so many seconds.
    At(f64),
    /// A program runs a turn and waits for its tools with this context.
    Acting(Name, u64),
    /// A turn of a program asks to be let in.
    Asks(Name, u64),
    /// So much of its answer is there.
    Grows(Name, u64),
    /// Its turn ends with this context.
    Ends(Name, u64),
    /// Its client hangs up.
    Leaves(Name),
    /// The program is over.
    Over(Name),
    Lost(u32),
    Ready(u32, Option<u64>),
    /// Its last turn runs there.
    Runs(Name, u32),
    /// Its last turn runs wherever routing sends it.
    Anywhere(Name),
    Held(Name, HoldReason),
    /// The urgency of its last turn.
    Urgency(Name, i32),
    Forced(Name),
    Unforced(Name),
    /// Exactly these have been paused so far, in this order.
    ArePaused(&'static [Name]),
    Marked(u64),
    /// Tokens charged at a worker: running, idle.
    Charged(u32, u64, u64),
}

struct Row {
    what: Name,
    workers: &'static [u64],
    set: fn(&mut ThunderAgentConfig),
    steps: &'static [Step],
}

const ONE: &[u64] = &[1_000];
const TWO: &[u64] = &[1_000, 1_000];

const fn row(what: Name, workers: &'static [u64], steps: &'static [Step]) -> Row {
    Row { what, workers, set: |_| {}, steps }
}

const fn set(
    what: Name,
    workers: &'static [u64],
    set: fn(&mut ThunderAgentConfig),
    steps: &'static [Step],
) -> Row {
    Row { what, workers, set, steps }
}

fn play(row: &Row) {
    let mut thunderagent = ThunderAgentConfig { buffer: 0, ..ThunderAgentConfig::default() };
    (row.set)(&mut thunderagent);
    let config = AdmissionConfig {
        policy: "thunderagent".to_owned(),
        program_idle_ttl: Duration::from_secs(7_200),
        thunderagent,
        ..AdmissionConfig::default()
    };
    let mut world = World::new(&config, row.workers);
    let mut turns: BTreeMap<Name, u64> = BTreeMap::new();
    for (number, step) in row.steps.iter().enumerate() {
        let place = format!("{}: step {number}, {step:?}", row.what);
        let turn = |name: &Name| *turns.get(name).unwrap_or_else(|| panic!("{place}: no turn"));
        match step {
            Step::At(seconds) => world.at(*seconds),
            Step::Acting(name, tokens) => world.acting(name, *tokens),
            Step::Asks(name, tokens) => {
                let turn = world.arrive(name, *tokens);
                turns.insert(name, turn);
            }
            Step::Grows(name, generated) => {
                world.tell(&Event::Progress { turn: TurnId(turn(name)), generated: *generated });
            }
            Step::Ends(name, tokens) => world.end(turn(name), *tokens),
            Step::Leaves(name) => world.abort(turn(name)),
            Step::Over(name) => world.tell(&Event::SessionEnd { program: &key(name) }),
            Step::Lost(worker) => world.tell(&Event::WorkerLost { worker: w(*worker) }),
            Step::Ready(worker, capacity) => {
                let capacity = capacity.map(Capacity::device);
                world.tell(&Event::WorkerReady { worker: w(*worker), capacity });
            }
            Step::Runs(name, worker) => {
                assert!(world.runs(turn(name)), "{place}: it is held");
                assert_eq!(world.worker(turn(name)), w(*worker), "{place}");
            }
            Step::Anywhere(name) => {
                assert!(world.runs(turn(name)), "{place}: it is held");
                assert_eq!(world.grant(turn(name)).placement, Placement::Any, "{place}");
            }
            Step::Held(name, reason) => {
                assert!(!world.runs(turn(name)), "{place}: it runs");
                assert_eq!(world.held(turn(name)), *reason, "{place}");
            }
            Step::Urgency(name, priority) => {
                assert_eq!(world.grant(turn(name)).priority, *priority, "{place}")
            }
            Step::Forced(name) => assert!(world.grant(turn(name)).forced, "{place}"),
            Step::Unforced(name) => assert!(!world.grant(turn(name)).forced, "{place}"),
            Step::ArePaused(names) => assert_eq!(world.paused, *names, "{place}"),
            Step::Marked(count) => assert_eq!(world.policy.stats().marked, *count, "{place}"),
            Step::Charged(worker, running, idle) => {
                assert_eq!(world.charged(*worker), (*running, *idle), "{place}")
            }
        }
    }
}

#[test]
fn every_threshold() {
    thresholds::THRESHOLDS.iter().for_each(play);
}

#[test]
fn every_order() {
    orders::ORDERS.iter().for_each(play);
}

#[test]
fn every_corner() {
    corners::CORNERS.iter().for_each(play);
}

/// A clock that jumps makes one look, not many, and the next comes in its time.
#[test]
fn a_late_look_is_one() {
    let config = AdmissionConfig { policy: "thunderagent".to_owned(), ..AdmissionConfig::default() };
    let mut world = World::new(&config, ONE);
    world.arrive("a", 500);
    world.now = world.now + Duration::from_secs(3_600);
    let mut out = Vec::new();
    world.policy.on_time(world.now, &mut out);
    assert_eq!(world.policy.next_deadline(), Some(world.now + Duration::from_secs(5)));
}
