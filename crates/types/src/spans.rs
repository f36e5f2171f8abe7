//! Values of workers, in which neighbours with equal values share an entry.
//!
//! - Purpose: the head that all sessions have lies at nearly every worker, and every turn that waits keeps where its prompt
//!   lies. Kept once for each run of workers that is a few entries instead of the whole fleet.
//! - Input: workers with their values, best in ascending order of id. Output: the same, by id.
//! - A span is all ranks from one to another of all engines from one to another, or one rank of some of 64 engines that
//!   follow one another; between its first and last worker, by id, no other worker is known.
//! - I-SPN-1 spans give back what was put in, in order of id, each worker once.
//! - I-SPN-2 equal contents are kept alike, and compare equal.
//! - Copies share their memory: a prompt's holders are kept by those who look for news of them, too.
//! - Where no two neighbours are alike a span takes two thirds more memory than an entry of a list would.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::ids::{EngineId, WorkerId};
use crate::prefix::{MatchSource, WorkerPrefix};

/// Some workers of which the same is said. Of all workers of which something is said, no other is between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alike<T> {
    /// The first of them.
    pub first: WorkerId,
    /// The last of them.
    pub last: WorkerId,
    /// What is said.
    pub value: T,
    /// Which of up to [`WIDTH`] engines they are, from the first one's on, where they are of one rank; else all.
    engines: u64,
}

/// Engines in a span with holes.
const WIDTH: u32 = u64::BITS;

impl<T: Copy> Alike<T> {
    const fn one(worker: WorkerId, value: T) -> Self {
        Self { first: worker, last: worker, value, engines: 1 }
    }

    const fn of_one_rank(&self) -> bool {
        self.first.rank == self.last.rank
    }

    /// Engines from the first one's on to another.
    const fn distance(&self, engine: EngineId) -> u32 {
        engine.0.saturating_sub(self.first.engine.0)
    }

    /// Whether they are all workers of their ranks from the first one's engine to the last one's.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        let engines = self.distance(self.last.engine).saturating_add(1);
        !self.of_one_rank() || engines > WIDTH || self.engines.count_ones() == engines
    }

    /// Whether a worker is one of them.
    #[inline]
    #[must_use]
    pub fn contains(&self, worker: WorkerId) -> bool {
        let between = (self.first.engine..=self.last.engine).contains(&worker.engine)
            && (self.first.rank..=self.last.rank).contains(&worker.rank);
        between && (self.is_whole() || self.engines >> self.distance(worker.engine) & 1 == 1)
    }

    /// How many they are.
    #[must_use]
    pub fn count(&self) -> usize {
        if !self.is_whole() {
            return usize::try_from(self.engines.count_ones()).unwrap_or(usize::MAX);
        }
        let wide = |first: u32, last: u32| usize::try_from(last - first).map_or(usize::MAX, |n| n + 1);
        wide(self.first.engine.0, self.last.engine.0).saturating_mul(wide(self.first.rank, self.last.rank))
    }

    /// Sets what is noted of each of them, where `notes` are of `workers`, which are sorted.
    pub fn note<N: Copy>(&self, workers: &[WorkerId], notes: &mut [N], note: N) {
        let from = workers.partition_point(|worker| *worker < self.first);
        let count = workers.get(from..).unwrap_or_default().partition_point(|worker| *worker <= self.last);
        let workers = workers.get(from..from + count).unwrap_or_default();
        let Some(notes) = notes.get_mut(from..from + count) else { return };
        let ranks = (self.first.rank, self.last.rank);
        let between = |worker: &WorkerId| (ranks.0 <= worker.rank) & (worker.rank <= ranks.1);
        // Without a branch in each step several are looked at at once: mostly they are all of them.
        if self.is_whole() && workers.iter().fold(true, |all, worker| all & between(worker)) {
            notes.fill(note);
        } else {
            let those = workers.iter().zip(notes).filter(|(worker, _)| self.contains(**worker));
            those.for_each(|(_, place)| *place = note);
        }
    }

    /// All of them, by id.
    pub fn workers(self) -> impl Iterator<Item = (WorkerId, T)> {
        let Self { first, last, value, .. } = self;
        let all = (first.engine.0..=last.engine.0).flat_map(move |engine| {
            let engine = EngineId(engine);
            (first.rank..=last.rank).map(move |rank| WorkerId { engine, rank })
        });
        all.filter(move |worker| self.contains(*worker)).map(move |worker| (worker, value))
    }
}

/// Values by worker; copies share memory until one is changed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Spans<T>(Option<Arc<Vec<Alike<T>>>>);

impl<T: Copy + PartialEq> Spans<T> {
    const fn new() -> Self {
        Self(None)
    }

    fn all(&self) -> &[Alike<T>] {
        self.0.as_deref().map_or(&[], Vec::as_slice)
    }

    /// A worker's value; one that it had before is replaced.
    fn put(&mut self, worker: WorkerId, value: T) {
        if self.all().last().is_none_or(|span| span.last < worker) {
            return append(Arc::make_mut(self.0.get_or_insert_default()), worker, value);
        }
        let before = std::mem::replace(self, Self::new());
        let mut rest = before.iter().filter(|(other, _)| *other != worker).peekable();
        let spans = Arc::make_mut(self.0.get_or_insert_default());
        while let Some((other, value)) = rest.next_if(|(other, _)| *other < worker) {
            append(spans, other, value);
        }
        append(spans, worker, value);
        rest.for_each(|(worker, value)| append(spans, worker, value));
    }

    /// Puts in a list, sorted.
    fn of(list: impl Iterator<Item = (WorkerId, T)>) -> Self {
        let mut list: Vec<_> = list.collect();
        list.sort_by_key(|(worker, _)| *worker);
        let mut all = Self::new();
        list.into_iter().for_each(|(worker, value)| all.put(worker, value));
        if let Some(spans) = &mut all.0 {
            Arc::make_mut(spans).shrink_to_fit();
        }
        all
    }

    fn get(&self, worker: WorkerId) -> Option<T> {
        let behind = self.all().partition_point(|span| span.first <= worker);
        let span = self.all().get(behind.checked_sub(1)?)?;
        span.contains(worker).then_some(span.value)
    }

    /// The same for workers in ascending order: `at` is where the last one was found, 0 for the first.
    #[inline]
    fn next(&self, at: &mut usize, worker: WorkerId) -> Option<T> {
        let all = self.all();
        while all.get(*at).is_some_and(|span| span.last < worker) {
            *at += 1;
        }
        all.get(*at).filter(|span| span.contains(worker)).map(|span| span.value)
    }

    fn iter(&self) -> impl Iterator<Item = (WorkerId, T)> {
        self.all().iter().flat_map(|span| span.workers())
    }

    fn len(&self) -> usize {
        self.all().iter().map(Alike::count).fold(0, usize::saturating_add)
    }
}

/// The value of a worker behind all others.
fn append<T: Copy + PartialEq>(spans: &mut Vec<Alike<T>>, worker: WorkerId, value: T) {
    if let Some(span) = spans.last_mut().filter(|span| span.value == value) {
        let one_engine = span.first.engine == span.last.engine;
        if one_engine && span.last.engine == worker.engine && next(span.last.rank, worker.rank) {
            span.last = worker;
            return join(spans);
        }
        let distance = span.distance(worker.engine);
        let follows = span.is_whole() && next(span.last.engine.0, worker.engine.0);
        if span.of_one_rank() && span.last.rank == worker.rank && (follows || distance < WIDTH) {
            span.last = worker;
            span.engines |= 1_u64.checked_shl(distance).unwrap_or(0);
            return;
        }
    }
    spans.push(Alike::one(worker, value));
}

/// An engine whose ranks are those of the engines before it joins them.
fn join<T: Copy + PartialEq>(spans: &mut Vec<Alike<T>>) {
    if let [.., before, row] = spans.as_mut_slice()
        && before.value == row.value
        && next(before.last.engine.0, row.first.engine.0)
        && (before.first.rank, before.last.rank) == (row.first.rank, row.last.rank)
    {
        before.last = row.last;
        spans.pop();
    }
}

/// Whether one number follows another.
fn next(before: u32, number: u32) -> bool {
    before.checked_add(1) == Some(number)
}

/// How much of a prompt a worker holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Depths {
    device: u32,
    host: u32,
    disk: u32,
    source: MatchSource,
}

impl Depths {
    const fn of(held: WorkerPrefix) -> (WorkerId, Self) {
        let WorkerPrefix { worker, device, host, disk, source } = held;
        (worker, Self { device, host, disk, source })
    }

    const fn at(self, worker: WorkerId) -> WorkerPrefix {
        let Self { device, host, disk, source } = self;
        WorkerPrefix { worker, device, host, disk, source }
    }
}

/// Workers that hold a prompt's beginning. Reads and writes as a list of [`WorkerPrefix`], sorted by id, each worker once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holders(Spans<Depths>);

impl Holders {
    /// Nobody.
    #[must_use]
    pub const fn new() -> Self {
        Self(Spans::new())
    }

    /// Adds a worker, in few steps if its id is the highest; what was said of it before is replaced.
    pub fn push(&mut self, held: WorkerPrefix) {
        let (worker, depths) = Depths::of(held);
        self.0.put(worker, depths);
    }

    /// What is said of a worker.
    #[must_use]
    pub fn get(&self, worker: WorkerId) -> Option<WorkerPrefix> {
        Some(self.0.get(worker)?.at(worker))
    }

    /// The depths of a worker, for workers in ascending order: `at` is where the last one was found, 0 for the first.
    #[inline]
    pub fn next(&self, at: &mut usize, worker: WorkerId) -> Option<[u32; 3]> {
        self.0.next(at, worker).map(|Depths { device, host, disk, .. }| [device, host, disk])
    }

    /// All of them, by id.
    pub fn iter(&self) -> impl Iterator<Item = WorkerPrefix> {
        self.0.iter().map(|(worker, depths)| depths.at(worker))
    }

    /// All of them, by id, neighbours that hold as much together, with what the first of them holds.
    pub fn alike(&self) -> impl Iterator<Item = Alike<WorkerPrefix>> {
        self.0.all().iter().map(|span| {
            let Alike { first, last, value, engines } = *span;
            Alike { first, last, value: value.at(first), engines }
        })
    }

    /// How many workers they are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nobody holds anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.all().is_empty()
    }
}

impl Default for Holders {
    fn default() -> Self {
        Self::new()
    }
}

impl FromIterator<WorkerPrefix> for Holders {
    fn from_iter<I: IntoIterator<Item = WorkerPrefix>>(list: I) -> Self {
        Self(Spans::of(list.into_iter().map(Depths::of)))
    }
}

impl Serialize for Holders {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for Holders {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Vec::<WorkerPrefix>::deserialize(from)?.into_iter().collect())
    }
}

/// Some workers. Reads and writes as a sorted list of ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerSet(Spans<()>);

impl WorkerSet {
    /// None.
    #[must_use]
    pub const fn new() -> Self {
        Self(Spans::new())
    }

    /// Adds a worker, in few steps if its id is the highest.
    pub fn push(&mut self, worker: WorkerId) {
        self.0.put(worker, ());
    }

    /// Whether a worker is among them.
    #[must_use]
    pub fn contains(&self, worker: WorkerId) -> bool {
        self.0.get(worker).is_some()
    }

    /// The same for workers in ascending order: `at` is where the last one was found, 0 for the first.
    #[inline]
    pub fn next(&self, at: &mut usize, worker: WorkerId) -> bool {
        self.0.next(at, worker).is_some()
    }

    /// All of them, by id.
    pub fn iter(&self) -> impl Iterator<Item = WorkerId> {
        self.0.iter().map(|(worker, ())| worker)
    }

    /// All of them, by id, neighbours together.
    pub fn alike(&self) -> impl Iterator<Item = Alike<()>> {
        self.0.all().iter().copied()
    }

    /// How many they are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.all().is_empty()
    }
}

impl Default for WorkerSet {
    fn default() -> Self {
        Self::new()
    }
}

impl FromIterator<WorkerId> for WorkerSet {
    fn from_iter<I: IntoIterator<Item = WorkerId>>(list: I) -> Self {
        Self(Spans::of(list.into_iter().map(|worker| (worker, ()))))
    }
}

impl Serialize for WorkerSet {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for WorkerSet {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Vec::<WorkerId>::deserialize(from)?.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const fn id(engine: u32, rank: u32) -> WorkerId {
        WorkerId { engine: EngineId(engine), rank }
    }

    fn held(worker: WorkerId, device: u32) -> WorkerPrefix {
        WorkerPrefix { worker, device, host: device, disk: device, source: MatchSource::Exact }
    }

    #[test]
    fn a_head_that_lies_everywhere_takes_few_entries() {
        let fleet = (0..1_000).map(|engine| held(id(engine, 0), if engine == 400 { 90 } else { 8 }));
        let holders: Holders = fleet.clone().collect();
        assert_eq!((holders.0.all().len(), holders.len()), (3, 1_000));
        assert!(holders.iter().eq(fleet));
        // Eight ranks an engine; the first engine lacks its first rank, the last one its last.
        let ranks = (0..50).flat_map(|engine| (0..8).map(move |rank| id(engine, rank)));
        let ranks: Vec<WorkerId> =
            ranks.filter(|worker| *worker != id(0, 0) && *worker != id(49, 7)).collect();
        let set: WorkerSet = ranks.iter().copied().collect();
        assert_eq!((set.0.all().len(), set.len()), (3, 398));
        assert!(set.iter().eq(ranks) && !set.contains(id(49, 7)) && set.contains(id(49, 6)));
        // Every third engine of a thousand, in sixteen times 64.
        let some: WorkerSet =
            (0..1_000).filter(|engine| engine % 3 == 0).map(|engine| id(engine, 0)).collect();
        assert_eq!((some.0.all().len(), some.len()), (16, 334));
    }

    /// I-SPN-1, I-SPN-2: any order of all sorts of fleets, beside a map.
    #[test]
    fn spans_give_back_what_was_put_in_whatever_the_order() {
        let mut state = 7_u64;
        let mut below = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            u32::try_from((state >> 33) % most).expect("small")
        };
        for _ in 0..300 {
            let wide = if below(4) == 0 { 150 } else { 9 };
            let (engines, ranks, depths, many) =
                (1 + below(wide), 1 + below(4), 1 + u64::from(below(3)), below(120));
            let (mut map, mut put) = (BTreeMap::new(), Holders::new());
            for _ in 0..many {
                let worker = id(below(engines.into()), below(ranks.into()));
                let device = below(depths);
                map.insert(worker, held(worker, device));
                put.push(held(worker, device));
            }
            assert!(put.iter().eq(map.values().copied()), "{map:?} {put:?}");
            assert_eq!(put, map.values().copied().collect(), "{map:?}");
            assert_eq!(put.len(), map.len());
            assert_eq!(put.alike().map(|alike| alike.count()).sum::<usize>(), map.len());
            let all: Vec<WorkerId> =
                (0..151).step_by(2).flat_map(|engine| (0..5).map(move |rank| id(engine, rank))).collect();
            let mut notes = vec![u32::MAX; all.len()];
            put.alike().for_each(|alike| alike.note(&all, &mut notes, alike.value.device));
            let expected = all.iter().map(|worker| map.get(worker).map_or(u32::MAX, |held| held.device));
            assert!(notes.into_iter().eq(expected), "{map:?} {put:?}");
            let mut at = 0;
            for worker in (0..151).flat_map(|engine| (0..5).map(move |rank| id(engine, rank))) {
                assert_eq!(put.get(worker), map.get(&worker).copied(), "{worker} {put:?}");
                let depths = map.get(&worker).map(WorkerPrefix::depths);
                assert_eq!(put.next(&mut at, worker), depths, "{worker} {put:?}");
            }
        }
    }

    #[test]
    fn holders_read_and_write_as_a_list() {
        let list = [held(id(1, 0), 3), held(id(2, 0), 3), held(id(9, 1), 5)];
        let holders: Holders = list.into_iter().collect();
        let text = serde_json::to_string(&holders).expect("written");
        assert_eq!(text, serde_json::to_string(&list).expect("written"));
        assert_eq!(serde_json::from_str::<Holders>(&text).expect("read"), holders);
        let set: WorkerSet = [id(2, 1), id(1, 0)].into_iter().collect();
        let text = serde_json::to_string(&set).expect("written");
        assert_eq!(serde_json::from_str::<Vec<WorkerId>>(&text).expect("read"), [id(1, 0), id(2, 1)]);
        assert_eq!(serde_json::from_str::<WorkerSet>(&text).expect("read"), set);
    }
}
