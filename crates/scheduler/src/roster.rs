//! Of every worker what a comparison of the whole fleet asks, in columns, by id.

use std::ops::Range;
use std::sync::Arc;

use tandem_routing::Candidate;
use tandem_types::{EngineKind, WorkerId, WorkerRole};

use crate::homes::float;

/// What decides whether a worker may take a turn.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Brief {
    pub(crate) ready: bool,
    pub(crate) admits: bool,
    pub(crate) has_slot: bool,
    pub(crate) loads_adapters: bool,
    pub(crate) role: WorkerRole,
    pub(crate) kind: Option<EngineKind>,
    pub(crate) models: Option<Arc<[String]>>,
}

impl Brief {
    /// Whether the same is certain to be decided of two workers, labels and failures aside.
    fn is_like(&self, other: &Self) -> bool {
        let flags = |brief: &Self| {
            (brief.ready, brief.admits, brief.has_slot, brief.loads_adapters, brief.role, brief.kind)
        };
        let same_models = match (&self.models, &other.models) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        same_models && flags(self) == flags(other)
    }
}

/// So many workers are compared at once with the one before.
const PASSED_OVER: usize = 16;

/// All workers.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    ids: Vec<WorkerId>,
    /// Which of `briefs` is a worker's.
    sorts: Vec<u32>,
    /// The different ones, with how many workers have them. Those that nobody has are used again.
    briefs: Vec<(Brief, u32)>,
    /// Without what depends on a turn.
    candidates: Vec<Candidate>,
    load: Vec<f64>,
    queued: Vec<f64>,
    capacity: Vec<f64>,
}

impl Roster {
    /// A worker is as told.
    pub(crate) fn set(&mut self, brief: Brief, candidate: Candidate) {
        let id = candidate.worker;
        let load = float(candidate.load);
        let queued = float(candidate.queued_prefill);
        let capacity = float(candidate.kv_capacity_tokens.unwrap_or(0));
        match self.ids.binary_search(&id) {
            Ok(at) => {
                let before = self.sorts.get(at).copied();
                if self.brief(at).is_none_or(|before| !before.is_like(&brief)) {
                    let sort = self.sort(brief);
                    replace(&mut self.sorts, at, sort);
                    self.release(before);
                }
                replace(&mut self.candidates, at, candidate);
                replace(&mut self.load, at, load);
                replace(&mut self.queued, at, queued);
                replace(&mut self.capacity, at, capacity);
            }
            Err(at) => {
                let sort = self.sort(brief);
                self.ids.insert(at, id);
                self.sorts.insert(at, sort);
                self.candidates.insert(at, candidate);
                self.load.insert(at, load);
                self.queued.insert(at, queued);
                self.capacity.insert(at, capacity);
            }
        }
    }

    fn brief(&self, at: usize) -> Option<&Brief> {
        self.briefs.get(place(*self.sorts.get(at)?)).map(|(brief, _)| brief)
    }

    /// The number of a brief that one more worker has.
    fn sort(&mut self, brief: Brief) -> u32 {
        let same = self.briefs.iter().position(|(other, count)| *count > 0 && other.is_like(&brief));
        let vacant = || self.briefs.iter().position(|(_, count)| *count == 0);
        let at = same.or_else(vacant).unwrap_or(self.briefs.len());
        match self.briefs.get_mut(at) {
            Some((_, count)) if same.is_some() => *count += 1,
            Some(entry) => *entry = (brief, 1),
            None => self.briefs.push((brief, 1)),
        }
        u32::try_from(at).unwrap_or(u32::MAX)
    }

    /// One worker less has a brief.
    fn release(&mut self, sort: Option<u32>) {
        if let Some((_, count)) = sort.and_then(|sort| self.briefs.get_mut(place(sort))) {
            *count -= 1;
        }
    }

    /// A worker is gone.
    pub(crate) fn remove(&mut self, id: WorkerId) {
        if let Ok(at) = self.ids.binary_search(&id) {
            self.ids.remove(at);
            let sort = self.sorts.remove(at);
            self.release(Some(sort));
            self.candidates.remove(at);
            for column in [&mut self.load, &mut self.queued, &mut self.capacity] {
                column.remove(at);
            }
        }
    }

    /// Calls `take` with each unbroken row of workers that fit and whether they would have to load an adapter. `judge`
    /// says whether a worker fits, and that; `suits` whether it does so by what no brief tells, if anything does.
    pub(crate) fn rows_of<'a>(
        &'a self,
        judge: impl Fn(&Brief) -> Option<bool>,
        suits: Option<&dyn Fn(WorkerId) -> bool>,
        mut take: impl FnMut(Rows<'a>, bool),
    ) {
        let judged: Vec<Option<bool>> =
            self.briefs.iter().map(|(brief, count)| judge(brief).filter(|_| *count > 0)).collect();
        let (mut begin, mut current): (usize, Option<bool>) = (0, None);
        let mut at = 0;
        while let Some(sort) = self.sorts.get(at) {
            let judged = judged.get(place(*sort)).copied().flatten();
            let fits =
                judged.filter(|_| suits.is_none_or(|suits| self.ids.get(at).is_some_and(|id| suits(*id))));
            if fits != current {
                if let Some(cold) = current {
                    take(self.rows(begin..at), cold);
                }
                (begin, current) = (at, fits);
            }
            at += if suits.is_some() { 1 } else { self.alike(at) };
        }
        if let Some(cold) = current {
            take(self.rows(begin..self.ids.len()), cold);
        }
    }

    /// How many from there on have the same brief, at least one.
    fn alike(&self, at: usize) -> usize {
        let rest = self.sorts.get(at..).unwrap_or_default();
        let Some(sort) = rest.first() else { return 1 };
        // Mostly all have it: several are passed over at once.
        let parts = rest.chunks(PASSED_OVER);
        let same = parts.take_while(|part| part.iter().fold(true, |same, other| same & (other == sort)));
        let passed = same.map(<[u32]>::len).sum::<usize>();
        passed + rest.iter().skip(passed).take_while(|other| *other == sort).count()
    }

    fn rows(&self, range: Range<usize>) -> Rows<'_> {
        Rows {
            ids: part(&self.ids, &range),
            candidates: part(&self.candidates, &range),
            load: part(&self.load, &range),
            queued: part(&self.queued, &range),
            capacity: part(&self.capacity, &range),
        }
    }
}

impl PartialEq for Roster {
    fn eq(&self, other: &Self) -> bool {
        let briefs =
            |roster: &Self| (0..roster.ids.len()).filter_map(|at| roster.brief(at).cloned()).collect();
        let (own, others): (Vec<Brief>, Vec<Brief>) = (briefs(self), briefs(other));
        own == others
            && (&self.ids, &self.candidates) == (&other.ids, &other.candidates)
            && (&self.load, &self.queued, &self.capacity) == (&other.load, &other.queued, &other.capacity)
    }
}

/// Neighbours.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub(crate) ids: &'a [WorkerId],
    pub(crate) candidates: &'a [Candidate],
    pub(crate) load: &'a [f64],
    pub(crate) queued: &'a [f64],
    pub(crate) capacity: &'a [f64],
}

fn part<'a, T>(column: &'a [T], range: &Range<usize>) -> &'a [T] {
    column.get(range.clone()).unwrap_or_default()
}

fn place(sort: u32) -> usize {
    usize::try_from(sort).unwrap_or(usize::MAX)
}

fn replace<T>(column: &mut [T], at: usize, value: T) {
    if let Some(place) = column.get_mut(at) {
        *place = value;
    }
}
