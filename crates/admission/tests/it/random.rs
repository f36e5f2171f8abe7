//! Random histories: nothing leaks, every hold ends, capacity is respected.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tandem_admission::{AdmissionConfig, Capacity, Event};
use tandem_types::TurnId;

use crate::support::{Fate, World, key, lies, w};

#[derive(Debug, Clone)]
enum Step {
    Arrive { program: u8, more: u64, lies: bool },
    End { which: u8, output: u64, usage: bool },
    Abort { which: u8 },
    Progress { which: u8, tokens: u64 },
    SessionEnd { program: u8 },
    Lose { worker: u8 },
    Ready { worker: u8, capacity: Option<u64> },
    Elsewhere { which: u8, worker: u8 },
    Fail { which: u8, worker: u8 },
    Wait { seconds: f64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..24_u8, 1..400_u64, any::<bool>())
            .prop_map(|(program, more, lies)| Step::Arrive { program, more, lies }),
        8 => (any::<u8>(), 1..300_u64, any::<bool>())
            .prop_map(|(which, output, usage)| Step::End { which, output, usage }),
        1 => any::<u8>().prop_map(|which| Step::Abort { which }),
        2 => (any::<u8>(), 0..200_u64).prop_map(|(which, tokens)| Step::Progress { which, tokens }),
        1 => (0..24_u8).prop_map(|program| Step::SessionEnd { program }),
        1 => (0..3_u8).prop_map(|worker| Step::Lose { worker }),
        1 => (0..3_u8, prop::option::of(500..6_000_u64))
            .prop_map(|(worker, capacity)| Step::Ready { worker, capacity }),
        1 => (any::<u8>(), 0..3_u8).prop_map(|(which, worker)| Step::Elsewhere { which, worker }),
        3 => (any::<u8>(), 0..3_u8).prop_map(|(which, worker)| Step::Fail { which, worker }),
        4 => (0.0..40.0_f64).prop_map(|seconds| Step::Wait { seconds }),
    ]
}

/// Turns that are not over, with the context of each.
type Open = BTreeMap<u64, u64>;

fn pick(open: &Open, which: u8, keep: impl Fn(&u64) -> bool) -> Option<u64> {
    let ids: Vec<u64> = open.keys().copied().filter(keep).collect();
    ids.get(usize::from(which) % ids.len().max(1)).copied()
}

fn play(policy: &str, steps: &[Step], disturbed: bool) {
    let config = AdmissionConfig { policy: policy.to_owned(), ..AdmissionConfig::default() };
    let mut world = World::new(&config, &[4_000, 3_000, 5_000]);
    let (mut open, mut contexts, mut clock) = (Open::new(), BTreeMap::<u8, u64>::new(), 0.0);
    for step in steps {
        let runs = |world: &World, id: &u64| matches!(world.fates.get(id), Some(Fate::Runs(_)));
        match step {
            Step::Arrive { program, more, lies: lies_home } => {
                let prompt = (contexts.get(program).copied().unwrap_or(0) + more).min(2_500);
                let prefix = if *lies_home { lies(&[(w(0), prompt / 2)], prompt) } else { lies(&[], prompt) };
                let id = world.arrive_with(&format!("p{program}"), prompt, &prefix);
                open.insert(id, prompt);
                contexts.insert(*program, prompt);
            }
            Step::End { which, output, usage } => {
                if let Some(id) = pick(&open, *which, |id| runs(&world, id)) {
                    let prompt = open.remove(&id).unwrap_or(1);
                    world.end_as(id, usage.then_some(prompt + output), output % 2 == 0);
                }
            }
            Step::Abort { which } => {
                if let Some(id) = pick(&open, *which, |_| true) {
                    open.remove(&id);
                    world.abort(id);
                }
            }
            Step::Progress { which, tokens } => {
                if let Some(id) = pick(&open, *which, |id| runs(&world, id)) {
                    world.tell(&Event::Progress { turn: TurnId(id), generated: *tokens });
                }
            }
            Step::SessionEnd { program } => {
                contexts.remove(program);
                world.tell(&Event::SessionEnd { program: &key(&format!("p{program}")) });
            }
            Step::Lose { worker } if disturbed => {
                world.tell(&Event::WorkerLost { worker: w(u32::from(*worker)) })
            }
            Step::Ready { worker, capacity } if disturbed => world.tell(&Event::WorkerReady {
                worker: w(u32::from(*worker)),
                capacity: capacity.map(Capacity::device),
            }),
            Step::Elsewhere { which, worker } if disturbed => {
                if let Some(id) = pick(&open, *which, |id| runs(&world, id)) {
                    world.tell(&Event::Dispatched { turn: TurnId(id), worker: w(u32::from(*worker)) });
                }
            }
            Step::Lose { .. } | Step::Ready { .. } | Step::Elsewhere { .. } => {}
            // At the worker that was named, or at another where it was sent instead.
            Step::Fail { which, worker } => {
                if let Some(id) = pick(&open, *which, |id| runs(&world, id)) {
                    let named = world.grant(id).placement.worker().filter(|_| !disturbed);
                    world.fail(id, named.unwrap_or(w(u32::from(*worker))));
                }
            }
            Step::Wait { seconds } => {
                clock += seconds;
                world.at(clock);
            }
        }
        if !disturbed && policy == "tandem" {
            capacity_is_respected(&world, &open);
        }
    }
    drain(policy, &mut world, open, clock);
}

/// Slack: an answer may grow beyond what was foreseen (200 here for each turn), and one turn may run alone.
fn capacity_is_respected(world: &World, open: &Open) {
    for (worker, capacity) in [(0, 4_000), (1, 3_000), (2, 5_000)] {
        let here = |id: &&u64| matches!(world.fates.get(id), Some(Fate::Runs(g)) if g.placement.worker() == Some(w(worker)));
        let turns = open.keys().filter(here).count() as u64;
        let running = world.charged(worker).0;
        assert!(turns <= 1 || running <= capacity + 200 * turns, "{running} in {turns} turns of {capacity}");
    }
}

/// Everything that runs ends, again and again: then nothing may be held, and when all sessions end nothing may be left.
fn drain(policy: &str, world: &mut World, mut open: Open, mut clock: f64) {
    for worker in 0..3 {
        world.tell(&Event::WorkerReady { worker: w(worker), capacity: Some(Capacity::device(5_000)) });
    }
    for _ in 0..2_000 {
        if open.is_empty() {
            break;
        }
        let running: Vec<u64> =
            open.keys().copied().filter(|id| matches!(world.fates.get(id), Some(Fate::Runs(_)))).collect();
        for id in running {
            let prompt = open.remove(&id).unwrap_or(1);
            world.end(id, prompt + 1);
        }
        clock += 5.0;
        world.at(clock);
    }
    assert!(open.is_empty(), "{policy} holds {} turns for ever", open.len());
    (0..24).for_each(|program| world.tell(&Event::SessionEnd { program: &key(&format!("p{program}")) }));
    let stats = world.policy.stats();
    assert_eq!((stats.programs, stats.held, stats.held_tokens), (0, 0, 0), "{policy} leaks");
    (0..3).for_each(|worker| assert_eq!(world.charged(worker), (0, 0), "{policy} charges nobody's turns"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// I-GAT-1, I-GAT-2, I-GAT-4, I-GAT-5, I-ATB-1, I-ATB-2, I-ATB-3, I-ROM-1, I-TAN-1; the table is counted again after
    /// every step.
    #[test]
    fn nothing_leaks_and_every_hold_ends(steps in prop::collection::vec(step(), 1..250), disturbed in any::<bool>()) {
        for policy in ["thunderagent", "idle_lease", "tandem"] {
            play(policy, &steps, disturbed);
        }
    }
}

/// I-GAT-3.
#[test]
fn the_same_events_give_the_same_actions() {
    for policy in ["thunderagent", "idle_lease", "tandem"] {
        let run = || {
            let config = AdmissionConfig { policy: policy.to_owned(), ..AdmissionConfig::default() };
            let mut world = World::new(&config, &[3_000, 3_000]);
            for i in 0..400_u64 {
                let id = world.arrive(&format!("p{}", i * 7 % 13), 100 + i * 31 % 900);
                if i % 3 != 0 && world.runs(id) {
                    world.end(id, 150 + i * 31 % 900);
                }
                world.at(f64::from(u32::try_from(i).expect("small")) * 0.7);
            }
            (format!("{:?}", world.fates), world.paused)
        };
        assert_eq!(run(), run(), "{policy}");
    }
}
