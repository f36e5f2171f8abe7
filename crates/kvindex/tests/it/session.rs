//! The session-prefix index against a model that keeps every branch as a whole list of blocks.

use std::collections::{BTreeMap, BTreeSet};
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
    for number in 0..5 {
        index.open(&key(number), None, at(31));
    }
    assert_eq!((index.expire(at(60), 2).len(), index.sessions()), (2, 3));
    assert_eq!(index.counters().expired, 5);
}

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
    assert_eq!((index.blocks(), index.counters().conflicts), (12, 3));
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

/// One session's branch in the model.
#[derive(Debug, Clone)]
struct End {
    chain: Vec<u64>,
    home: Option<u32>,
    home_told: bool,
    used: u64,
}

#[derive(Debug, Default, Clone)]
struct Known {
    ends: Vec<End>,
    told: bool,
}

/// The index as lists of lists: nothing is shared, nothing is counted incrementally.
#[derive(Debug, Default)]
struct Model {
    sessions: BTreeMap<usize, Known>,
    resident: BTreeSet<(u32, usize, u64)>,
    clock: u64,
}

fn common(a: &[u64], b: &[u64]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl Model {
    const BRANCHES: usize = 4;

    fn union<'a>(ends: impl Iterator<Item = &'a End>) -> BTreeSet<u64> {
        ends.flat_map(|end| end.chain.iter().copied()).collect()
    }

    fn all(&self) -> BTreeSet<u64> {
        Self::union(self.sessions.values().flat_map(|known| &known.ends))
    }

    fn at_home(&self, home: u32, but: Option<usize>) -> BTreeSet<u64> {
        let sessions = self.sessions.iter().filter(|(number, _)| Some(**number) != but);
        Self::union(sessions.flat_map(|(_, known)| &known.ends).filter(|end| end.home == Some(home)))
    }

    fn forget_what_nobody_needs(&mut self) {
        let all = self.all();
        self.resident.retain(|(_, _, block)| all.contains(block));
    }

    fn advance(
        &mut self,
        session: usize,
        path: &[u64],
        home: u32,
        told: bool,
        relation: Relation,
    ) -> Advance {
        let all = self.all();
        let known = path.iter().take_while(|block| all.contains(block)).count();
        self.clock += 1;
        let used = self.clock;
        let state = self.sessions.entry(session).or_default();
        let was_told = state.told;
        state.told |= told;
        let replaces = relation == Relation::Replaces;
        let homed = |end: Option<&End>| match end {
            Some(end) if !told && end.home.is_some() && end.home_told => (end.home, true),
            _ => (Some(home), told),
        };
        let exact = state.ends.iter().position(|end| end.chain == path[..known]);
        let ahead = (0..state.ends.len())
            .filter(|at| known > 0 && state.ends[*at].chain.starts_with(&path[..known]))
            .max_by_key(|at| state.ends[*at].used);
        if known == path.len()
            && let Some(at) = exact.or(ahead)
            && !(replaces && exact.is_none())
        {
            let (home, home_told) = homed(Some(&state.ends[at]));
            state.ends[at] = End { home, home_told, used, ..state.ends[at].clone() };
            if replaces {
                state.ends = vec![state.ends[at].clone()];
            }
            return Advance::Known;
        }
        let behind = state.ends.iter().position(|end| path[..known].starts_with(&end.chain));
        if behind.is_none() && !told && was_told {
            return Advance::Stale;
        }
        let rewritten = (0..state.ends.len())
            .map(|at| (common(&state.ends[at].chain, path), state.ends[at].used, at))
            .filter(|(shared, _, at)| *shared > 0 && shared * 2 >= state.ends[*at].chain.len())
            .max()
            .map(|(.., at)| at);
        let moved = behind.or(match relation {
            Relation::Continues => rewritten,
            Relation::Beside => None,
            Relation::Replaces => (0..state.ends.len()).max_by_key(|at| state.ends[*at].used),
        });
        let (home, home_told) = homed(moved.map(|at| &state.ends[at]));
        let end = End { chain: path.to_vec(), home, home_told, used };
        match moved {
            Some(at) => state.ends[at] = end.clone(),
            None => state.ends.push(end.clone()),
        }
        if replaces {
            state.ends = vec![end];
        }
        while state.ends.len() > Self::BRANCHES {
            let oldest = (0..state.ends.len()).min_by_key(|at| state.ends[*at].used).expect("not empty");
            state.ends.remove(oldest);
        }
        let new = path.len() - known;
        if moved.is_some() { Advance::Moved { new } } else { Advance::Branched { new } }
    }

    fn assert_equal(&self, index: &SessionIndex, homes: u32) {
        assert_eq!(index.blocks(), self.all().len());
        let ends: usize = self.sessions.values().map(|known| known.ends.len()).sum();
        assert!(index.runs() <= 2 * ends + index.blocks() / 32 + 1, "{} runs, {ends} ends", index.runs());
        for home in 0..homes {
            let summary = index.worker(worker(home));
            let tiers = [0, 1, 2].map(|tier| {
                self.resident.iter().filter(|(held, at, _)| (*held, *at) == (home, tier)).count() as u64
            });
            assert_eq!(working_set(index, home), self.at_home(home, None).len() as u64, "worker {home}");
            assert_eq!(summary.map_or([0; 3], |summary| summary.resident), tiers, "worker {home}");
        }
        for (number, known) in &self.sessions {
            let union = Self::union(known.ends.iter());
            assert_eq!(blocks(index, *number), union.len() as u64, "session {number}");
            let mut ends: Vec<&End> = known.ends.iter().collect();
            ends.sort_by_key(|end| std::cmp::Reverse(end.used));
            let branches: Vec<Branch> = (ends.iter())
                .map(|end| Branch {
                    last: *end.chain.last().expect("not empty"),
                    blocks: end.chain.len() as u64,
                    home: end.home.map(worker),
                    rooted: true,
                })
                .collect();
            assert_eq!(index.branches(&key(*number)), branches, "session {number}");
            for home in 0..homes {
                let others = self.at_home(home, Some(*number));
                let own = Self::union(known.ends.iter().filter(|end| end.home == Some(home)));
                let exclusive = own.difference(&others).count() as u64;
                assert_eq!(index.exclusive(&key(*number), worker(home)), exclusive, "session {number}");
                let added = union.difference(&self.at_home(home, None)).count() as u64;
                assert_eq!(index.added(&key(*number), worker(home)), added, "session {number}");
            }
            let Some(end) = ends.first() else { continue };
            assert_eq!(index.path(*end.chain.last().expect("not empty"), None).as_ref(), Some(&end.chain));
            let lies = |home, tier, block: &u64| self.resident.contains(&(home, tier, *block));
            for home in 0..homes {
                let expected = Resident {
                    device_prefix: end.chain.iter().take_while(|block| lies(home, 0, block)).count() as u64,
                    local_prefix: (end.chain.iter())
                        .take_while(|block| (0..3).any(|tier| lies(home, tier, block)))
                        .count() as u64,
                    blocks: [0, 1, 2]
                        .map(|tier| end.chain.iter().filter(|block| lies(home, tier, block)).count() as u64),
                };
                assert_eq!(
                    index.resident(&key(*number), worker(home)),
                    expected,
                    "session {number} at {home}"
                );
            }
        }
    }
}

#[derive(Debug, Clone)]
enum Op {
    /// Keep so much (of 256) of a branch of some session, and go on along a path.
    Told {
        session: usize,
        of: usize,
        keep: usize,
        own: usize,
        turn: u64,
        home: u32,
        relation: Relation,
    },
    /// The same, but only the last blocks are said, by an engine.
    Heard {
        session: usize,
        of: usize,
        keep: usize,
        own: usize,
        turn: u64,
        home: u32,
        tier: usize,
    },
    /// Part of some session's branch is stored or removed, without a name.
    Resident {
        of: usize,
        from: usize,
        len: usize,
        home: u32,
        tier: usize,
        stored: bool,
    },
    Clear {
        home: u32,
        tier: Option<usize>,
    },
    Drop {
        home: u32,
    },
    End {
        session: usize,
    },
}

const SESSIONS: usize = 6;
const HOMES: u32 = 3;
const TIERS: [Tier; 3] = [Tier::Device, Tier::Host, Tier::Disk];

fn op() -> impl Strategy<Value = Op> {
    let keep = prop_oneof![3 => Just(256usize), 3 => 0..257usize, 1 => 240..257usize];
    let own = prop_oneof![3 => 0..8usize, 2 => 0..150usize];
    let relation = prop_oneof![
        6 => Just(Relation::Continues),
        2 => Just(Relation::Beside),
        1 => Just(Relation::Replaces),
    ];
    let go = (0..SESSIONS, 0..SESSIONS, keep, own, 0..3u64, 0..HOMES);
    prop_oneof![
        8 => (go.clone(), relation).prop_map(|((session, of, keep, own, turn, home), relation)| {
            Op::Told { session, of, keep, own, turn, home, relation }
        }),
        6 => (go, 0..3usize).prop_map(|((session, of, keep, own, turn, home), tier)| {
            Op::Heard { session, of, keep, own, turn, home, tier }
        }),
        6 => (0..SESSIONS, 0..257usize, 0..90usize, 0..HOMES, 0..3usize, any::<bool>()).prop_map(
            |(of, from, len, home, tier, stored)| Op::Resident { of, from, len, home, tier, stored }
        ),
        1 => (0..HOMES, prop::option::of(0..3usize)).prop_map(|(home, tier)| Op::Clear { home, tier }),
        1 => (0..HOMES).prop_map(|home| Op::Drop { home }),
        2 => (0..SESSIONS).prop_map(|session| Op::End { session }),
    ]
}

struct Pair {
    model: Model,
    index: SessionIndex,
}

impl Pair {
    fn new() -> Self {
        let limits = SessionLimits {
            branches: Model::BRANCHES,
            ended_grace: Duration::ZERO,
            ..SessionLimits::default()
        };
        Self { model: Model::default(), index: SessionIndex::new(limits, 3) }
    }

    fn path(&self, of: usize, keep: usize, own: usize, turn: u64) -> (Vec<u64>, usize) {
        let known = self.model.sessions.get(&of).and_then(|known| known.ends.last());
        let mut path = known.map_or(Vec::new(), |end| end.chain.clone());
        path.truncate(path.len() * keep / 256);
        let kept = path.len();
        for _ in 0..own {
            let last = path.last().copied().unwrap_or(0);
            path.push((last ^ (turn + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31));
        }
        (path, kept)
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Told { session, of, keep, own, turn, home, relation } => {
                let (path, _) = self.path(of, keep, own, turn);
                let told = Told { chain: &path, worker: Some(worker(home)), resident: [0; 3], relation };
                if path.is_empty() {
                    return;
                }
                let expected = self.model.advance(session, &path, home, true, relation);
                assert_eq!(self.index.told(&key(session), &told, NOW), expected);
            }
            Op::Heard { session, of, keep, own, turn, home, tier } => {
                let (path, kept) = self.path(of, keep, own, turn);
                // The event may repeat some known blocks.
                let from = kept - kept.min(turn as usize);
                if from == path.len() {
                    return;
                }
                let after = from.checked_sub(1).map(|at| path[at]);
                let expected = self.model.advance(session, &path, home, false, Relation::Continues);
                let key = key(session);
                let stored = StoredBlocks {
                    worker: worker(home),
                    tier: TIERS[tier],
                    session: Some(&key),
                    after,
                    blocks: &path[from..],
                };
                assert_eq!(self.index.stored(&stored, NOW), expected);
                self.model.resident.extend(path[from..].iter().map(|block| (home, tier, *block)));
            }
            Op::Resident { of, from, len, home, tier, stored } => {
                let (path, _) = self.path(of, 256, 2, 1);
                let from = path.len() * from / 257;
                let blocks = &path[from..path.len().min(from + len)];
                if stored {
                    let event = StoredBlocks {
                        worker: worker(home),
                        tier: TIERS[tier],
                        session: None,
                        after: None,
                        blocks,
                    };
                    self.index.stored(&event, NOW);
                    self.model.resident.extend(blocks.iter().map(|block| (home, tier, *block)));
                } else {
                    self.index.removed(worker(home), TIERS[tier], blocks);
                    self.model
                        .resident
                        .retain(|held| !(held.0 == home && held.1 == tier && blocks.contains(&held.2)));
                }
            }
            Op::Clear { home, tier } => {
                self.index.cleared(worker(home), tier.map(|tier| TIERS[tier]));
                self.model.resident.retain(|held| held.0 != home || tier.is_some_and(|tier| tier != held.1));
            }
            Op::Drop { home } => {
                self.index.drop_worker(worker(home));
                self.model.resident.retain(|held| held.0 != home);
                for end in self.model.sessions.values_mut().flat_map(|known| &mut known.ends) {
                    if end.home == Some(home) {
                        (end.home, end.home_told) = (None, false);
                    }
                }
            }
            Op::End { session } => {
                let known = self.model.sessions.remove(&session).is_some();
                assert_eq!(self.index.end(&key(session), NOW), known);
            }
        }
        self.model.forget_what_nobody_needs();
    }

    fn finish(mut self) {
        for session in 0..SESSIONS {
            self.index.end(&key(session), NOW);
        }
        assert_eq!((self.index.blocks(), self.index.runs(), self.index.fragments()), (0, 0, 0));
        for home in 0..HOMES {
            assert_eq!(working_set(&self.index, home), 0);
            assert_eq!(self.index.worker(worker(home)).map_or([0; 3], |summary| summary.resident), [0; 3]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn the_index_equals_the_model(ops in prop::collection::vec(op(), 1..40)) {
        let mut pair = Pair::new();
        for op in &ops {
            pair.apply(op);
            pair.model.assert_equal(&pair.index, HOMES);
        }
        pair.finish();
    }

    /// However the events of a late join arrive, the end is as if they had come in order.
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

/// Long random runs, from a fixed seed.
#[test]
fn the_index_equals_the_model_for_long() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let ops = op();
    for _ in 0..2 {
        let mut pair = Pair::new();
        for step in 0..2_000 {
            pair.apply(&ops.new_tree(&mut runner).expect("strategy never rejects").current());
            if step % 100 == 0 {
                pair.model.assert_equal(&pair.index, HOMES);
            }
            // Paths that only grow would make the model slow.
            let long = pair
                .model
                .sessions
                .iter()
                .find(|(_, known)| known.ends.iter().any(|end| end.chain.len() > 600));
            if let Some(session) = long.map(|(session, _)| *session) {
                pair.apply(&Op::End { session });
            }
        }
        pair.model.assert_equal(&pair.index, HOMES);
        pair.finish();
    }
}
