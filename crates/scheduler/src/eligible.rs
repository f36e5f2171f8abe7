//! What a turn asks of a worker, and the workers that fit it.

use std::borrow::Cow;
use std::collections::BTreeSet;

use tandem_routing::{Candidate, Columns, Fleet};
use tandem_types::{EngineKind, RouteWishes, WorkerId, WorkerRole};

use crate::homes::Homes;
use crate::roster::{Brief, Rows};
use crate::workers::{Worker, Workers};

/// Whether a worker with these models takes a turn for `model` as it is.
fn listed(models: &[String], model: Option<&str>) -> bool {
    model.is_none_or(|wanted| models.is_empty() || models.iter().any(|known| known == wanted))
}

/// The model that a turn asks for, and what lets a worker take it that does not list it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asked<'a> {
    pub(crate) model: Option<&'a str>,
    pub(crate) cold: Cold<'a>,
}

/// What a worker needs that loads adapters when asked, to take a turn for a name that it does not list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cold<'a> {
    /// No such worker takes it: the name is a model's.
    Never,
    /// The model that the name adapts, as workers say that have the adapter loaded.
    Base(&'a str),
    /// Nothing: nobody knows the name, so it may be an adapter of any model.
    Unknown,
}

impl Asked<'_> {
    /// Whether a worker that serves the turn would have to load its adapter first.
    fn is_cold_at(&self, models: &[String]) -> bool {
        self.cold != Cold::Never && !listed(models, self.model)
    }

    pub(crate) fn served(&self, models: &[String], loads_adapters: bool) -> bool {
        listed(models, self.model)
            || loads_adapters
                && match self.cold {
                    Cold::Never => false,
                    Cold::Base(base) => listed(models, Some(base)),
                    Cold::Unknown => true,
                }
    }
}

/// Which workers to prefer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tier {
    /// Breaker closed, or half-open and waiting for a probe.
    Well,
    /// Breaker open, or half-open with a probe under way.
    LastResort,
}

/// What a turn needs of a worker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) asked: Asked<'a>,
    /// The part of the work that it is to do.
    pub(crate) role: WorkerRole,
    /// The make that it must be of, where the other worker of a pair demands it.
    pub(crate) kind: Option<EngineKind>,
    pub(crate) tier: Tier,
    /// Workers that failed this turn already.
    pub(crate) except: &'a [WorkerId],
    /// Whether the call takes one of the worker's slots.
    pub(crate) slot: bool,
    /// Labels and taints.
    pub(crate) wishes: &'a RouteWishes,
}

impl Wanted<'_> {
    pub(crate) fn accepts(&self, id: WorkerId, worker: &Worker) -> bool {
        self.accepts_but_model(id, worker) && worker.serves(self.asked)
    }

    pub(crate) fn accepts_but_model(&self, id: WorkerId, worker: &Worker) -> bool {
        worker.is_ready()
            && worker.role() == self.role
            && (self.kind.is_none() || self.kind == worker.kind())
            && worker.breaker.admits() == (self.tier == Tier::Well)
            && (!self.slot || worker.has_slot())
            && !self.except.contains(&id)
            && worker.suits(self.wishes)
    }

    /// The same, wishes and failures aside: whether it would have to load an adapter, if it fits.
    fn judge(&self, brief: &Brief) -> Option<bool> {
        let models = brief.models.as_ref()?;
        let takes = brief.ready
            && brief.role == self.role
            && (self.kind.is_none() || self.kind == brief.kind)
            && brief.admits == (self.tier == Tier::Well)
            && (!self.slot || brief.has_slot)
            && self.asked.served(models, brief.loads_adapters);
        takes.then(|| self.asked.is_cold_at(models))
    }
}

/// The workers that fit one turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Eligible<'a> {
    pub(crate) workers: &'a Workers,
    pub(crate) wanted: Wanted<'a>,
    pub(crate) at_home: &'a Homes,
}

impl<'a> Eligible<'a> {
    const fn index(&self) -> &BTreeSet<(u64, WorkerId)> {
        if self.wanted.slot { &self.workers.free } else { &self.workers.ready }
    }

    fn are_few(&self) -> bool {
        self.index().len() < self.workers.by_id.len() / 8
    }

    /// Each unbroken row of workers that fit, and whether they would have to load an adapter.
    fn each_row(&self, take: impl FnMut(Rows<'a>, bool)) {
        let Self { workers, wanted, .. } = self;
        let choosy = workers.tainted || !wanted.wishes.require.is_empty() || !wanted.except.is_empty();
        let suits = |id| {
            let suits = workers.get(id).is_some_and(|worker| worker.suits(wanted.wishes));
            suits && !wanted.except.contains(&id)
        };
        let suits: Option<&dyn Fn(WorkerId) -> bool> = if choosy { Some(&suits) } else { None };
        workers.roster.rows_of(|brief| wanted.judge(brief), suits, take);
    }
}

/// Adds to a column; the first part is lent.
fn join<'a, T: Clone>(column: &mut Cow<'a, [T]>, part: &'a [T]) {
    if column.is_empty() {
        *column = Cow::Borrowed(part);
    } else {
        column.to_mut().extend_from_slice(part);
    }
}

impl Fleet for Eligible<'_> {
    fn get(&self, id: WorkerId) -> Option<Candidate> {
        let worker = self.workers.get(id).filter(|worker| self.wanted.accepts(id, worker))?;
        let home_tokens = self.at_home.at(id);
        let cold = worker.models.as_ref().is_some_and(|models| self.wanted.asked.is_cold_at(models));
        Some(Candidate { cold, ..worker.candidate(id, home_tokens) })
    }

    fn lightest(&self) -> Option<Candidate> {
        self.index().iter().find_map(|&(_, id)| self.get(id))
    }

    fn all(&self, out: &mut Vec<Candidate>) {
        // Walking the table is cheaper than looking most of it up; with few workers in question it is not.
        if self.are_few() {
            let start = out.len();
            out.extend(self.index().iter().filter_map(|&(_, id)| self.get(id)));
            if let Some(added) = out.get_mut(start..) {
                added.sort_unstable_by_key(|c| c.worker);
            }
            return;
        }
        self.each_row(|rows, cold| {
            let candidate =
                |it: &Candidate| Candidate { home_tokens: self.at_home.at(it.worker), cold, ..*it };
            out.extend(rows.candidates.iter().map(candidate));
        });
    }

    fn columns(&self) -> Columns<'_> {
        if self.are_few() {
            let mut all = Vec::new();
            self.all(&mut all);
            return Columns::of(&all);
        }
        let mut all = Columns::default();
        self.each_row(|rows, cold| {
            join(&mut all.workers, rows.ids);
            join(&mut all.load, rows.load);
            join(&mut all.queued, rows.queued);
            join(&mut all.capacity, rows.capacity);
            if cold {
                let before = all.workers.len() - rows.ids.len();
                all.cold.resize(before, false);
                all.cold.resize(all.workers.len(), true);
            }
        });
        all.home = self.at_home.of_each(&all.workers);
        all
    }

    fn labels(&self, id: WorkerId) -> &[String] {
        self.workers.get(id).and_then(|worker| worker.info.as_ref()).map_or(&[], |info| &info.labels)
    }
}
