//! The session-prefix index against a model that keeps every branch as a whole list of blocks.

mod model;

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;
use tandem_kvindex::session::{
    Advance, Branch, Change, Relation, Resident, SessionIndex, SessionLimits, StoredBlocks, Told,
};
use tandem_types::{EngineId, ProgramKey, SessionId, TenantId, Tier, Time, WorkerId};

const NOW: Time = Time::ZERO;

fn key(number: usize) -> ProgramKey {
    ProgramKey::root(TenantId::default(), SessionId::new(&format!("s{number}")).expect("valid"))
}

fn worker(number: u32) -> WorkerId {
    WorkerId { engine: EngineId(number), rank: 0 }
}

/// The blocks of a path that takes these turns, each named by all turns up to it.
fn chain(turns: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let mut last = 0u64;
    turns
        .into_iter()
        .map(|turn| {
            last = (last ^ (turn + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31).wrapping_add(turn);
            last
        })
        .collect()
}

fn straight(len: usize) -> Vec<u64> {
    chain(std::iter::repeat_n(0, len))
}

/// `shared` blocks of the straight path, then `own` of path number `turn`.
fn fork(shared: usize, turn: u64, own: usize) -> Vec<u64> {
    chain(std::iter::repeat_n(0, shared).chain(std::iter::repeat_n(turn, own)))
}

fn index() -> SessionIndex {
    SessionIndex::new(SessionLimits::default(), 7)
}

fn tell(index: &mut SessionIndex, session: usize, chain: &[u64], home: u32) -> Advance {
    index.told(&key(session), &Told { chain, worker: Some(worker(home)), ..Told::default() }, NOW)
}

fn hear(index: &mut SessionIndex, session: usize, home: u32, after: Option<u64>, blocks: &[u64]) -> Advance {
    let key = key(session);
    let stored =
        StoredBlocks { worker: worker(home), tier: Tier::Device, session: Some(&key), after, blocks };
    index.stored(&stored, NOW)
}

fn working_set(index: &SessionIndex, number: u32) -> u64 {
    index.worker(worker(number)).map_or(0, |summary| summary.working_set)
}

fn blocks(index: &SessionIndex, session: usize) -> u64 {
    index.session(&key(session)).map_or(0, |summary| summary.blocks)
}

/// I-SES-1, I-SES-3.
#[test]
fn a_shared_block_counts_once_for_its_worker() {
    let mut index = index();
    // 100 shared blocks, then 30, 50 and, on another worker, 70 of their own.
    tell(&mut index, 1, &fork(100, 1, 30), 1);
    tell(&mut index, 2, &fork(100, 2, 50), 1);
    tell(&mut index, 3, &fork(100, 3, 70), 2);
    assert_eq!((working_set(&index, 1), working_set(&index, 2)), (180, 170));
    assert_eq!((blocks(&index, 1), blocks(&index, 2), blocks(&index, 3)), (130, 150, 170));
    assert_eq!(index.blocks(), 250);
    // What leaving would free, what coming would add.
    assert_eq!((index.exclusive(&key(1), worker(1)), index.exclusive(&key(3), worker(2))), (30, 170));
    assert_eq!((index.added(&key(3), worker(1)), index.added(&key(1), worker(2))), (70, 30));
    assert_eq!((index.added(&key(1), worker(1)), index.added(&key(1), worker(9))), (0, 130));
    // A session that moves takes its own share along.
    tell(&mut index, 2, &fork(100, 2, 51), 2);
    assert_eq!((working_set(&index, 1), working_set(&index, 2)), (130, 221));
    assert!(index.end(&key(3), NOW));
    assert_eq!((working_set(&index, 1), working_set(&index, 2)), (130, 151));
    assert!(index.end(&key(1), NOW) && index.end(&key(2), NOW) && !index.end(&key(2), NOW));
    assert_eq!((working_set(&index, 1), working_set(&index, 2)), (0, 0));
    assert_eq!((index.blocks(), index.runs(), index.sessions()), (0, 0, 0));
}

#[test]
fn a_rewritten_end_replaces_the_old_one_and_a_strange_prompt_is_a_branch() {
    let mut index = index();
    tell(&mut index, 1, &fork(40, 1, 20), 1);
    // The answer was rendered anew without its reasoning: the same agent, 40 of 60 blocks shared.
    assert_eq!(tell(&mut index, 1, &fork(40, 2, 25), 1), Advance::Moved { new: 25 });
    assert_eq!((blocks(&index, 1), index.blocks()), (65, 65));
    // A subagent under the same id shares a system prompt of 10 blocks.
    assert_eq!(tell(&mut index, 1, &fork(10, 3, 30), 2), Advance::Branched { new: 30 });
    let branches = index.branches(&key(1));
    let ends = [fork(10, 3, 30), fork(40, 2, 25)].map(|chain| *chain.last().expect("not empty"));
    assert_eq!(branches.iter().map(|branch| branch.last).collect::<Vec<_>>(), ends);
    assert_eq!(branches[0], Branch { last: ends[0], blocks: 40, home: Some(worker(2)), rooted: true });
    assert_eq!((blocks(&index, 1), working_set(&index, 1), working_set(&index, 2)), (95, 65, 40));
    // A fork that runs beside its origin keeps both; a compaction keeps nothing else.
    let beside = fork(40, 4, 1);
    let told =
        Told { chain: &beside, worker: Some(worker(1)), relation: Relation::Beside, ..Told::default() };
    assert_eq!(index.told(&key(1), &told, NOW), Advance::Branched { new: 1 });
    assert_eq!((index.branches(&key(1)).len(), working_set(&index, 1)), (3, 66));
    let compacted = fork(10, 5, 3);
    let told = Told { chain: &compacted, relation: Relation::Replaces, ..told };
    assert_eq!(index.told(&key(1), &told, NOW), Advance::Moved { new: 3 });
    assert_eq!((index.branches(&key(1)).len(), blocks(&index, 1), index.blocks()), (1, 13, 13));
    // Back to a part of what is known: nothing is lost, unless it replaces.
    assert_eq!(tell(&mut index, 1, &straight(5), 1), Advance::Known);
    assert_eq!(blocks(&index, 1), 13);
    let short = straight(5);
    index.told(&key(1), &Told { chain: &short, relation: Relation::Replaces, ..Told::default() }, NOW);
    assert_eq!((blocks(&index, 1), index.blocks(), index.runs()), (5, 5, 1));
}

/// I-SES-6.
#[test]
fn echoes_lengthen_what_was_told_and_never_turn_it_back() {
    let mut index = index();
    let prompt = straight(20);
    let answered = fork(20, 1, 3);
    tell(&mut index, 1, &prompt, 1);
    assert_eq!(hear(&mut index, 1, 1, prompt.last().copied(), &answered[20..21]), Advance::Moved { new: 1 });
    // The next turn renders the answer otherwise; then the rest of the old answer's events arrive.
    tell(&mut index, 1, &fork(20, 2, 6), 1);
    assert_eq!(hear(&mut index, 1, 1, Some(answered[20]), &answered[21..22]), Advance::Stale);
    assert_eq!(hear(&mut index, 1, 1, Some(prompt[19]), &answered[20..23]), Advance::Stale);
    assert_eq!((blocks(&index, 1), index.blocks()), (26, 26));
    // The prefill side of a disaggregated pair echoes too: the told home stays.
    hear(&mut index, 1, 2, None, &prompt);
    assert_eq!(index.session(&key(1)).and_then(|summary| summary.home), Some(worker(1)));
    assert_eq!(index.resident(&key(1), worker(2)).device_prefix, 20);
    // Ended: late events do not bring it back, a new turn does.
    index.end(&key(1), NOW);
    assert_eq!(hear(&mut index, 1, 1, None, &prompt), Advance::Stale);
    assert_eq!(index.sessions(), 0);
    tell(&mut index, 1, &prompt, 1);
    assert_eq!(blocks(&index, 1), 20);
    // Past the grace a store is a new beginning.
    index.end(&key(1), NOW);
    let key = key(1);
    let stored = StoredBlocks {
        worker: worker(1),
        tier: Tier::Device,
        session: Some(&key),
        after: None,
        blocks: &prompt,
    };
    assert_eq!(index.stored(&stored, Time::from_millis(60_000)), Advance::Branched { new: 20 });
}

/// I-SES-5.
#[test]
fn residency_follows_events_by_tier_and_moves_no_lineage() {
    let mut index = index();
    let prompt = straight(100);
    let told = Told {
        chain: &prompt,
        worker: Some(worker(1)),
        resident: [70, 90, 0],
        relation: Relation::Continues,
    };
    index.told(&key(1), &told, NOW);
    let expect = |device_prefix, local_prefix, blocks| Resident { device_prefix, local_prefix, blocks };
    assert_eq!(index.resident(&key(1), worker(1)), expect(70, 90, [70, 90, 0]));
    index.stored(
        &StoredBlocks {
            worker: worker(1),
            tier: Tier::Disk,
            session: None,
            after: Some(prompt[89]),
            blocks: &prompt[90..],
        },
        NOW,
    );
    index.removed(worker(1), Tier::Device, &prompt[10..11]);
    index.removed(worker(1), Tier::Device, &[1, 2, 3]);
    assert_eq!(index.resident(&key(1), worker(1)), expect(10, 100, [69, 90, 10]));
    assert_eq!(index.worker(worker(1)).map(|summary| summary.resident), Some([69, 90, 10]));
    assert_eq!((blocks(&index, 1), working_set(&index, 1)), (100, 100));
    // Residency splits and merges with the runs.
    tell(&mut index, 2, &fork(37, 5, 4), 2);
    assert_eq!(index.resident(&key(2), worker(1)), expect(10, 37, [36, 37, 0]));
    index.end(&key(2), NOW);
    assert_eq!(index.resident(&key(1), worker(1)), expect(10, 100, [69, 90, 10]));
    // The engine's clear empties the device; disk and host survive.
    index.cleared(worker(1), Some(Tier::Device));
    index.cleared(worker(1), Some(Tier::Shared));
    assert_eq!(index.resident(&key(1), worker(1)), expect(0, 100, [0, 90, 10]));
    index.stored(
        &StoredBlocks {
            worker: worker(1),
            tier: Tier::Device,
            session: None,
            after: None,
            blocks: &prompt[..3],
        },
        NOW,
    );
    assert_eq!(index.resident(&key(1), worker(1)), expect(3, 100, [3, 90, 10]));
    index.cleared(worker(1), None);
    assert_eq!(index.resident(&key(1), worker(1)), Resident::default());
    // A worker that goes takes home and residency with it, lineage stays; its successor starts empty.
    tell(&mut index, 1, &prompt, 1);
    index.drop_worker(worker(1));
    assert_eq!(index.worker(worker(1)), None);
    assert_eq!(index.session(&key(1)).map(|summary| (summary.blocks, summary.home)), Some((100, None)));
    tell(&mut index, 2, &straight(3), 7);
    assert_eq!((working_set(&index, 7), index.resident(&key(1), worker(7)).blocks), (3, [0; 3]));
    tell(&mut index, 1, &straight(101), 7);
    assert_eq!(working_set(&index, 7), 101);
}

/// I-SES-2.
#[test]
fn what_a_fork_splits_is_merged_again() {
    let mut index = index();
    tell(&mut index, 1, &straight(94), 1);
    assert_eq!(index.runs(), 2);
    // 50, and behind the fork 14 of the first run with the 30 that followed it.
    tell(&mut index, 2, &fork(50, 1, 1), 1);
    assert_eq!(index.runs(), 3);
    index.end(&key(2), NOW);
    assert_eq!(index.runs(), 2);
    for shared in 1..94 {
        tell(&mut index, 2, &fork(shared, 1, 1), 1);
        index.end(&key(2), NOW);
        assert_eq!((index.runs(), index.blocks()), (2, 94), "fork at {shared}");
    }
    tell(&mut index, 2, &straight(10), 1);
    index.end(&key(1), NOW);
    assert_eq!((index.runs(), index.blocks()), (1, 10));
}

#[test]
fn lineage_is_given_from_the_root_or_from_an_anchor() {
    let mut index = index();
    let path = fork(90, 1, 60);
    tell(&mut index, 1, &path, 1);
    tell(&mut index, 2, &fork(70, 2, 1), 1);
    let last = index.branches(&key(1))[0].last;
    assert_eq!(index.path(last, None), Some(path.clone()));
    for anchor in [0, 63, 64, 69, 70, 100, 148] {
        assert_eq!(index.path(last, Some(path[anchor])), Some(path[anchor + 1..].to_vec()), "{anchor}");
    }
    assert_eq!(index.path(last, Some(last)), Some(vec![]));
    assert_eq!(index.path(path[3], Some(path[5])), None);
    assert_eq!(index.path(last, Some(fork(70, 2, 1)[70])), None);
    assert_eq!((index.path(1, None), index.path(last, Some(1))), (None, None));
}

#[test]
fn children_branch_from_their_parents() {
    let mut index = index();
    index.open(&key(1), None, NOW);
    tell(&mut index, 1, &straight(80), 1);
    // The child is heard of before its parent, and the grandchild before both.
    assert!(index.open(&key(3), Some(&key(2)), NOW));
    assert!(index.open(&key(2), Some(&key(1)), NOW));
    tell(&mut index, 2, &fork(30, 1, 10), 1);
    tell(&mut index, 3, &fork(5, 2, 10), 1);
    assert_eq!((index.parent(&key(3)), index.parent(&key(1))), (Some(&key(2)), None));
    assert_eq!((index.shared_with_parent(&key(2)), index.shared_with_parent(&key(3))), (Some(30), Some(5)));
    assert_eq!(index.shared_with_parent(&key(1)), None);
    // No circles.
    index.open(&key(1), Some(&key(3)), NOW);
    index.open(&key(1), Some(&key(1)), NOW);
    assert_eq!((index.parent(&key(1)), index.counters().parents_refused), (None, 1));
    // The family stays one when the middle goes.
    index.end(&key(2), NOW);
    assert_eq!(index.parent(&key(3)), Some(&key(1)));
    assert_eq!(index.children(&key(1)), [&key(3)]);
}

#[test]
fn silence_ends_a_session_but_not_a_parent_whose_child_lives() {
    let limits = SessionLimits { idle: Duration::from_secs(10), ..SessionLimits::default() };
    let mut index = SessionIndex::new(limits, 0);
    let at = |seconds: u64| Time::from_millis(seconds * 1_000);
    index.open(&key(1), None, at(0));
    index.open(&key(2), Some(&key(1)), at(0));
    index.open(&key(3), None, at(0));
    index.set_idle(&key(3), Duration::from_secs(3));
    index.touch(&key(2), at(9));
    assert_eq!(index.expire(at(2), 10), []);
    assert_eq!(index.expire(at(3), 10), [key(3)]);
    assert_eq!(index.expire(at(18), 10), []);
    assert_eq!(index.expire(at(19), 10), [key(2)]);
    assert!(index.next_deadline().is_some_and(|next| next <= at(30)));
    assert_eq!(index.expire(at(30), 10), [key(1)]);
    assert_eq!((index.sessions(), index.next_deadline()), (0, None));
    // Shorter than what was reckoned with before.
    index.open(&key(4), None, at(30));
    assert_eq!(index.expire(at(31), 10), []);
    index.set_idle(&key(4), Duration::from_secs(3));
    assert!(index.next_deadline().is_some_and(|next| next <= at(33)));
    assert_eq!(index.expire(at(33), 10), [key(4)]);
    for number in 0..5 {
        index.open(&key(number), None, at(31));
    }
    assert_eq!((index.expire(at(60), 2).len(), index.sessions()), (2, 3));
    assert_eq!(index.counters().expired, 6);
}

/// I-SES-8.
#[test]
fn the_longest_silent_sessions_make_room() {
    let limits = SessionLimits { sessions: 3, blocks: 100, workers: 1, ..SessionLimits::default() };
    let mut index = SessionIndex::new(limits, 0);
    for number in 0..3 {
        let path = fork(0, number as u64 + 1, 30);
        index.told(&key(number), &Told { chain: &path, ..Told::default() }, Time(number as u64));
    }
    index.touch(&key(0), Time(10));
    index.open(&key(3), None, Time(11));
    assert!(index.session(&key(1)).is_none() && index.session(&key(0)).is_some());
    let long = fork(0, 9, 90);
    let told = Told { chain: &long, ..Told::default() };
    assert_eq!(index.told(&key(3), &told, Time(12)), Advance::Branched { new: 90 });
    assert_eq!((index.sessions(), index.blocks()), (1, 90));
    let longer = fork(0, 8, 101);
    assert_eq!(index.told(&key(3), &Told { chain: &longer, ..told }, Time(13)), Advance::Refused);
    assert_eq!((blocks(&index, 3), index.counters().evicted, index.counters().refused), (90, 3, 1));
    tell(&mut index, 3, &fork(0, 9, 91), 1);
    assert_eq!(hear(&mut index, 3, 2, None, &long), Advance::Refused);
    assert_eq!(index.workers(), 1);
}

#[test]
fn contradictions_are_counted_and_change_nothing() {
    let mut index = index();
    let path = straight(10);
    tell(&mut index, 1, &path, 1);
    let twisted = [path[..4].to_vec(), vec![77], path[6..7].to_vec()].concat();
    assert_eq!(tell(&mut index, 2, &twisted, 1), Advance::Conflict);
    assert_eq!(hear(&mut index, 3, 1, Some(path[9]), &path[..1]), Advance::Conflict);
    assert_eq!(hear(&mut index, 3, 1, Some(123), &[path[0]]), Advance::Conflict);
    // Two fragments that each claim to follow the other.
    hear(&mut index, 4, 1, Some(501), &[500]);
    hear(&mut index, 4, 1, Some(500), &[501]);
    assert_eq!((index.blocks(), index.counters().conflicts), (12, 4));
    index.end(&key(4), NOW);
    index.end(&key(1), NOW);
    assert_eq!((index.blocks(), index.runs(), index.fragments(), working_set(&index, 1)), (0, 0, 0, 0));
}

#[test]
fn changes_are_drained_once_and_readers_see_them() {
    let mut index = index();
    let reader = index.reader();
    tell(&mut index, 1, &straight(10), 1);
    tell(&mut index, 1, &straight(12), 1);
    let drained = index.drain_changes();
    let (session, worker_now) = (index.session(&key(1)), index.worker(worker(1)));
    assert_eq!(
        drained,
        [
            Change::Worker(worker(1), worker_now.expect("known")),
            Change::Session(key(1), session.expect("known"))
        ]
    );
    assert_eq!((reader.session(&key(1)), reader.worker(worker(1))), (session, worker_now));
    assert_eq!(index.drain_changes(), []);
    index.end(&key(1), NOW);
    assert_eq!(reader.session(&key(1)), None);
    assert_eq!(reader.worker(worker(1)).map(|summary| summary.working_set), Some(0));
    assert!(index.drain_changes().contains(&Change::Gone(key(1))));
    tell(&mut index, 1, &straight(2), 1);
    index.drop_worker(worker(1));
    assert_eq!(reader.worker(worker(1)), None);
    assert_eq!(reader.session(&key(1)).map(|summary| summary.home), Some(None));
}

#[test]
fn readers_are_served_from_another_thread() {
    let mut index = index();
    tell(&mut index, 1, &straight(1), 1);
    let reader = index.reader();
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut last = 0;
            while last < 2_000 {
                let now = reader.session(&key(1)).expect("lives").blocks;
                assert!(now >= last, "{now} after {last}");
                last = now;
            }
        });
        let path = straight(2_000);
        for len in 2..=path.len() {
            tell(&mut index, 1, &path[..len], 1);
        }
        asking.join().expect("no panic");
    });
}

#[test]
fn churn_keeps_memory_flat() {
    let mut index = index();
    let mut after_first = (0, 0);
    let (live, own) = (200usize, 150usize);
    for number in 0..live * 10 {
        // Sessions share 100 blocks, and grow in three turns of which the second is rewritten.
        for (turn, len) in [(0, 60), (1, own), (2, own)] {
            let path = chain(
                std::iter::repeat_n(0, 100)
                    .chain(std::iter::repeat_n(number as u64 + 1, 60))
                    .chain(std::iter::repeat_n(turn, len - 60)),
            );
            tell(&mut index, number, &path, number as u32 % 8);
        }
        if number >= live {
            index.end(&key(number - live), NOW);
        }
        if number == live {
            after_first = (index.bytes(), index.runs());
        }
    }
    assert_eq!(index.blocks(), 100 + live * own);
    assert!(index.bytes() <= after_first.0 * 3 / 2, "{} after {}", index.bytes(), after_first.0);
    assert!(index.runs() <= after_first.1 * 3 / 2, "{} after {}", index.runs(), after_first.1);
    let each = index.bytes() / index.blocks();
    assert!(each < 80, "{each} bytes per block");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// However the events of a late join arrive, the end is as if they had come in order (I-SES-3, I-SES-4).
    #[test]
    fn events_in_any_order_give_the_same_forest(
        trunk in 1..200usize,
        forks in prop::collection::vec((0..200usize, 1..90usize), 0..4),
        cuts in prop::collection::vec(1..60usize, 40),
        order in prop::collection::vec(any::<u32>(), 64),
        told in any::<bool>(),
    ) {
        let mut paths = vec![straight(trunk)];
        paths.extend(forks.iter().enumerate().map(|(at, (shared, own))| fork(*shared.min(&trunk), at as u64 + 1, *own)));
        let mut pieces = Vec::new();
        let mut cuts = cuts.iter().cycle();
        for (session, path) in paths.iter().enumerate() {
            let mut from = 0;
            while from < path.len() {
                let upto = path.len().min(from + cuts.next().expect("endless"));
                pieces.push((session, from.checked_sub(1).map(|at| path[at]), path[from..upto].to_vec()));
                from = upto;
            }
        }
        let mut shuffled: Vec<_> = pieces.iter().zip(order.iter().cycle()).collect();
        shuffled.sort_by_key(|(_, order)| **order);
        let mut index = index();
        for ((session, after, blocks), _) in &shuffled {
            let advance = hear(&mut index, *session, *session as u32 % 2, *after, blocks);
            prop_assert!(!matches!(advance, Advance::Conflict | Advance::Stale | Advance::Refused));
        }
        if told {
            // What we know ourselves joins the fragments too.
            for (session, path) in paths.iter().enumerate() {
                prop_assert_eq!(tell(&mut index, session, path, session as u32 % 2), Advance::Known);
            }
        }
        prop_assert_eq!(index.fragments(), 0);
        for (session, path) in paths.iter().enumerate() {
            let branches = index.branches(&key(session));
            prop_assert_eq!(branches.len(), 1);
            let lineage = index.path(branches[0].last, None);
            prop_assert_eq!(lineage.as_ref(), Some(path));
            prop_assert_eq!(blocks(&index, session), path.len() as u64);
            prop_assert_eq!(index.resident(&key(session), worker(session as u32 % 2)).device_prefix, path.len() as u64);
        }
        for home in 0..2usize {
            let needed: BTreeSet<u64> = paths.iter().skip(home).step_by(2).flatten().copied().collect();
            prop_assert_eq!(working_set(&index, home as u32), needed.len() as u64);
        }
        for session in 0..paths.len() {
            index.end(&key(session), NOW);
        }
        prop_assert_eq!((index.blocks(), index.runs(), index.fragments()), (0, 0, 0));
    }
}

/// A join in mid-session: only later blocks are heard of, until our own knowledge fills in the rest.
#[test]
fn what_we_know_fills_in_what_was_never_heard() {
    let mut index = index();
    let path = straight(300);
    hear(&mut index, 1, 1, Some(path[99]), &path[100..150]);
    hear(&mut index, 1, 1, Some(path[199]), &path[200..260]);
    assert_eq!((index.fragments(), blocks(&index, 1), index.counters().fragments), (2, 110, 2));
    assert!(index.branches(&key(1)).iter().all(|branch| !branch.rooted));
    assert_eq!(index.resident(&key(1), worker(1)).device_prefix, 0);
    assert_eq!(tell(&mut index, 1, &path, 1), Advance::Moved { new: 40 });
    assert_eq!((index.fragments(), blocks(&index, 1), working_set(&index, 1)), (0, 300, 300));
    assert_eq!(index.path(path[299], None), Some(path.clone()));
    assert_eq!(index.resident(&key(1), worker(1)).blocks, [110, 0, 0]);
    assert!(index.runs() <= 300 / 32 + 3);
}
