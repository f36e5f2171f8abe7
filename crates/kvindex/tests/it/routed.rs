//! What was sent where, against a naive oracle.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use tandem_kvindex::chain;
use tandem_kvindex::worker::{Keep, Matches, RoutedIndex, WorkerMatch};
use tandem_types::{EngineId, Time, WorkerId};

fn worker(n: u32) -> WorkerId {
    WorkerId { engine: EngineId(n), rank: 0 }
}

/// A prompt that branches off others by its numbers: each number is so many blocks of its own.
fn prompt(turns: &[u8]) -> Vec<u64> {
    let mut locals = Vec::new();
    for (turn, kind) in turns.iter().enumerate() {
        locals.extend(
            (0..u64::from(*kind) * 9 + 1).map(|b| (turn as u64 + 1) * 10_000 + u64::from(*kind) * 100 + b),
        );
    }
    chain::chain(&locals)
}

fn depth(index: &RoutedIndex, chain: &[u64], n: u32) -> u32 {
    let mut matches = Matches::default();
    index.find(chain, &mut matches);
    matches.of(worker(n)).map_or(0, |m| m.device)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// I-RTD-1.
    #[test]
    fn a_block_counts_until_its_last_dispatch_is_too_old(
        steps in prop::collection::vec((0u32..3, prop::collection::vec(0u8..4, 1..60), 0u64..40), 1..40)
    ) {
        let index = RoutedIndex::new(Keep::For(Duration::from_nanos(100)));
        let mut until: BTreeMap<(u32, u64), u64> = BTreeMap::new();
        let mut now = 0;
        for (n, turns, pause) in &steps {
            now += pause;
            index.expire(Time(now));
            let chain = prompt(turns);
            index.routed(worker(*n), &chain, Time(now));
            until.extend(chain.iter().map(|c| ((*n, *c), now + 100)));
            for (m, other, _) in &steps {
                let chain = prompt(other);
                let alive = |c: &&u64| until.get(&(*m, **c)).is_some_and(|u| *u > now);
                let want = chain.iter().take_while(alive).count() as u32;
                prop_assert_eq!(depth(&index, &chain, *m), want);
            }
        }
        index.expire(Time(now + 100));
        prop_assert_eq!(index.credited(), 0);
    }

    /// I-RTD-2.
    #[test]
    fn no_worker_is_credited_with_more_than_its_bound(
        steps in prop::collection::vec((0u32..2, prop::collection::vec(0u8..4, 1..60)), 1..40)
    ) {
        let index = RoutedIndex::new(Keep::Blocks(300));
        for (n, turns) in &steps {
            let chain = prompt(turns);
            index.routed(worker(*n), &chain, Time::ZERO);
            prop_assert_eq!(depth(&index, &chain, *n), chain.len().min(300) as u32);
            prop_assert!(index.credited() <= 600);
        }
    }
}

/// I-RTD-2.
#[test]
fn the_end_of_the_oldest_goes_first() {
    let index = RoutedIndex::new(Keep::Blocks(600));
    let chain = |seed: u64| chain::chain(&(0..500).map(|b| seed * 1000 + b).collect::<Vec<_>>());
    index.routed(worker(0), &chain(1), Time::ZERO);
    index.routed(worker(0), &chain(2), Time::ZERO);
    let left = depth(&index, &chain(1), 0);
    assert!(left <= 100, "{left}");
    assert_eq!(depth(&index, &chain(2), 0), 500);
}

/// I-RTD-3.
#[test]
fn a_withdrawn_dispatch_leaves_what_went_before() {
    let index = RoutedIndex::new(Keep::For(Duration::from_secs(5)));
    let (short, long) = (prompt(&[1]), prompt(&[1, 2, 3]));
    index.routed(worker(0), &short, Time::from_millis(4000));
    let route = index.routed(worker(1), &long, Time::from_millis(0)).expect("routed");
    index.withdraw(worker(1), &long, route);
    assert_eq!((depth(&index, &long, 0), depth(&index, &long, 1)), (short.len() as u32, 0));
    index.remove_worker(worker(0));
    assert_eq!((index.credited(), depth(&index, &long, 0)), (0, 0));
}

/// I-RTD-3.
#[test]
fn a_withdrawn_dispatch_takes_nothing_of_a_longer_one_of_the_same_instant() {
    let index = RoutedIndex::new(Keep::For(Duration::from_secs(5)));
    let long = prompt(&[1, 2, 3]);
    let short = &long[..12];
    index.routed(worker(0), &long, Time::ZERO);
    let route = index.routed(worker(0), short, Time::ZERO).expect("routed");
    index.withdraw(worker(0), short, route);
    assert_eq!(depth(&index, &long, 0), long.len() as u32);
}

#[test]
fn knowledge_and_belief_are_joined_worker_by_worker() {
    let (sure, likely) = (RoutedIndex::default(), RoutedIndex::default());
    let (short, long) = (prompt(&[1]), prompt(&[1, 2]));
    sure.routed(worker(1), &long, Time::ZERO);
    sure.routed(worker(2), &short, Time::ZERO);
    likely.routed(worker(0), &long, Time::ZERO);
    likely.routed(worker(1), &short, Time::ZERO);
    likely.routed(worker(2), &long, Time::ZERO);
    let (mut matches, mut others) = (Matches::default(), Matches::default());
    sure.find(&long, &mut matches);
    likely.find(&long, &mut others);
    matches.raise(&others);
    let all = long.len() as u32;
    let want: Vec<WorkerMatch> =
        (0..3).map(|n| WorkerMatch { worker: worker(n), device: all, host: all, disk: all }).collect();
    assert_eq!(matches.workers(), want);
}
