//! A model that keeps every branch as a whole list of blocks, and random operations on both.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use proptest::prelude::*;
use tandem_kvindex::session::{
    Advance, Branch, Relation, Resident, SessionIndex, SessionLimits, StoredBlocks, Told,
};
use tandem_types::Tier;

use super::{NOW, blocks, key, worker, working_set};

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
    /// Blocks on some branch, counted anew after each operation.
    known: HashSet<u64>,
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
        let ends = self.sessions.values().flat_map(|known| &known.ends);
        self.known = ends.flat_map(|end| end.chain.iter().copied()).collect();
        let Self { resident, known, .. } = self;
        resident.retain(|(_, _, block)| known.contains(block));
    }

    fn advance(
        &mut self,
        session: usize,
        path: &[u64],
        home: u32,
        told: bool,
        relation: Relation,
    ) -> Advance {
        let known = path.iter().take_while(|block| self.known.contains(block)).count();
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

    /// How many runs there may be. Between branch ends and forks, two runs that follow each other are longer than
    /// 64 together: a stretch of so many blocks has at most `2 * (blocks / 65) + 1`.
    fn most_runs(&self) -> usize {
        let chains: Vec<&Vec<u64>> =
            self.sessions.values().flat_map(|known| &known.ends).map(|end| &end.chain).collect();
        let mut after: BTreeMap<Option<u64>, BTreeSet<u64>> = BTreeMap::new();
        for chain in &chains {
            for (at, block) in chain.iter().enumerate() {
                after.entry(at.checked_sub(1).map(|at| chain[at])).or_default().insert(*block);
            }
        }
        let ends: BTreeSet<u64> = chains.iter().filter_map(|chain| chain.last().copied()).collect();
        let kids = |block: u64| after.get(&Some(block)).map_or(0, BTreeSet::len);
        let stops = |block: u64| ends.contains(&block) || kids(block) != 1;
        let starts =
            after.iter().filter(|(before, _)| before.is_none_or(&stops)).flat_map(|(_, firsts)| firsts);
        starts
            .map(|first| {
                let (mut block, mut len) = (*first, 1);
                while !stops(block) {
                    block = after[&Some(block)].first().copied().expect("one kid");
                    len += 1;
                }
                2 * (len / 65) + 1
            })
            .sum()
    }

    fn assert_equal(&self, index: &SessionIndex, homes: u32) {
        assert_eq!(index.blocks(), self.all().len());
        let most = self.most_runs();
        assert!(index.runs() <= most, "{} runs, {most} would do", index.runs());
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
    let own = prop_oneof![3 => 0..8usize, 1 => 0..100usize];
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

    /// I-SES-1, I-SES-2, I-SES-3, I-SES-4, I-SES-5.
    #[test]
    fn the_index_equals_the_model(ops in prop::collection::vec(op(), 1..40)) {
        let mut pair = Pair::new();
        for (step, op) in ops.iter().enumerate() {
            pair.apply(op);
            if step % 5 == 4 {
                pair.model.assert_equal(&pair.index, HOMES);
            }
        }
        pair.model.assert_equal(&pair.index, HOMES);
        pair.finish();
    }
}

/// Long random runs, from a fixed seed.
#[test]
fn the_index_equals_the_model_for_long() {
    long_runs(2, |_| ());
}

/// A million operations; `cargo xtask oracle` runs them.
#[test]
#[ignore = "long"]
fn the_index_equals_the_model_on_a_million_operations() {
    long_runs(500, |done| println!("session index: {done} operations equal to the model"));
}

/// Tells `progress` of the operations done, now and then.
fn long_runs(runs: usize, progress: impl Fn(usize)) {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let ops = op();
    for run in 1..=runs {
        let mut pair = Pair::new();
        for step in 0..2_000 {
            pair.apply(&ops.new_tree(&mut runner).expect("strategy never rejects").current());
            if step % 200 == 0 {
                pair.model.assert_equal(&pair.index, HOMES);
            }
            // Paths that only grow would make the model slow.
            let long = pair
                .model
                .sessions
                .iter()
                .find(|(_, known)| known.ends.iter().any(|end| end.chain.len() > 400));
            if let Some(session) = long.map(|(session, _)| *session) {
                pair.apply(&Op::End { session });
            }
        }
        pair.model.assert_equal(&pair.index, HOMES);
        pair.finish();
        if run % 50 == 0 {
            progress(run * 2_000);
        }
    }
}
