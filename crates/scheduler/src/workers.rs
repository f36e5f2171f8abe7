//! The workers, and which of them may take a turn.
//!
//! - I-WRK-1 `ready` holds exactly the ready workers, `free` those of them with a slot, both by (load, id).
//! - I-WRK-2 `turns_running` counts dispatched turns, the load meter dispatched turns and side calls. Side calls
//!   take no slot: they are short, and the engine's own queue takes them.
//! - I-WRK-4 `briefs` says of every worker, by id, what a comparison of the whole fleet asks: such a comparison walks one
//!   piece of memory.
//! - I-WRK-3 a removed worker stays known, unseen by routing, until what runs there is over.
//! - Deliberately absent: where a worker's URL is; the driver knows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;
use tandem_routing::{Candidate, Fleet, LoadMeter};
use tandem_types::{EngineKind, LoadReport, RouteWishes, Time, WorkerId, WorkerInfo, WorkerRole};

use crate::breaker::Breaker;

/// What a worker is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerState {
    /// Configured, never ready so far.
    Expected {
        /// Until when turns for unknown models wait for it.
        until: Time,
    },
    /// Takes turns.
    Ready,
    /// Finishes what it has.
    Draining,
    /// Not reachable or not ready.
    Down,
    /// Gone; what still runs there reports its own fate.
    Removed,
}

#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) state: WorkerState,
    /// Known once the worker was ready.
    pub(crate) info: Option<WorkerInfo>,
    /// The models in `info`, shared with other workers that serve the same: a scan of the fleet then compares
    /// each list of names once.
    models: Option<Arc<[String]>>,
    pub(crate) meter: LoadMeter,
    pub(crate) report: Option<LoadReport>,
    /// When the report is no longer believed.
    pub(crate) report_until: Option<Time>,
    pub(crate) turns_running: u32,
    /// Prompt tokens that running turns without a first token were expected to compute here.
    pub(crate) queued_prefill: u64,
    pub(crate) breaker: Breaker,
    /// The load under which `ready` knows this worker.
    ready_at: Option<u64>,
    /// The load under which `free` knows this worker.
    free_at: Option<u64>,
    /// The time under which `opened` knows this worker.
    opened_at: Option<Time>,
    /// The time under which `reported` knows this worker.
    reported_at: Option<Time>,
}

impl Worker {
    pub(crate) const fn new(state: WorkerState, breaker: Breaker) -> Self {
        Self {
            state,
            info: None,
            models: None,
            meter: LoadMeter::new(),
            report: None,
            report_until: None,
            turns_running: 0,
            queued_prefill: 0,
            breaker,
            ready_at: None,
            free_at: None,
            opened_at: None,
            reported_at: None,
        }
    }

    /// What others have there is not known any more.
    pub(crate) const fn forget_report(&mut self) {
        self.meter.forget_foreign();
        (self.report, self.report_until) = (None, None);
    }

    fn serves(&self, asked: Asked<'_>) -> bool {
        self.models.as_ref().is_some_and(|models| asked.served(models, self.loads_adapters()))
    }

    fn loads_adapters(&self) -> bool {
        self.info.as_ref().is_some_and(|info| info.loads_adapters)
    }

    pub(crate) fn role(&self) -> WorkerRole {
        self.info.as_ref().map_or(WorkerRole::Both, |info| info.role)
    }

    pub(crate) fn kind(&self) -> Option<EngineKind> {
        self.info.as_ref().map(|info| info.kind)
    }

    fn has_slot(&self) -> bool {
        self.info.as_ref().is_some_and(|info| info.max_running.is_none_or(|max| self.turns_running < max))
    }

    /// Whether it carries what a request asks for, and nothing that the request does not put up with.
    fn suits(&self, wishes: &RouteWishes) -> bool {
        self.info.as_ref().is_none_or(|info| {
            wishes.require.iter().all(|label| info.labels.contains(label))
                && info.taints.iter().all(|taint| wishes.tolerate.contains(taint))
        })
    }

    fn candidate(&self, id: WorkerId, home_tokens: u64) -> Candidate {
        Candidate {
            worker: id,
            load: self.meter.load(),
            queued_prefill: self.queued_prefill,
            home_tokens,
            kv_capacity_tokens: self
                .report
                .and_then(|report| report.kv_capacity_tokens)
                .or_else(|| self.info.as_ref().and_then(|info| info.kv_capacity_tokens)),
            cold: false,
        }
    }

    fn is_ready(&self) -> bool {
        self.state == WorkerState::Ready
    }

    /// The same in short.
    fn brief(&self, id: WorkerId) -> Brief {
        Brief {
            ready: self.is_ready(),
            role: self.role(),
            kind: self.kind(),
            admits: self.breaker.admits(),
            has_slot: self.has_slot(),
            loads_adapters: self.loads_adapters(),
            models: self.models.clone(),
            candidate: self.candidate(id, 0),
        }
    }
}

/// What a comparison of the whole fleet asks of a worker.
#[derive(Debug, Clone, PartialEq)]
struct Brief {
    ready: bool,
    role: WorkerRole,
    kind: Option<EngineKind>,
    admits: bool,
    has_slot: bool,
    loads_adapters: bool,
    models: Option<Arc<[String]>>,
    /// Without what depends on the turn.
    candidate: Candidate,
}

/// Whether a worker with these models takes a turn for `model` as it is.
fn listed(models: &[String], model: Option<&str>) -> bool {
    model.is_none_or(|wanted| models.is_empty() || models.iter().any(|known| known == wanted))
}

/// The model that a turn asks for, and what lets a worker take it that does not list it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asked<'a> {
    pub(crate) model: Option<&'a str>,
    cold: Cold<'a>,
}

/// What a worker needs that loads adapters when asked, to take a turn for a name that it does not list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cold<'a> {
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

    fn served(&self, models: &[String], loads_adapters: bool) -> bool {
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
    fn accepts(&self, id: WorkerId, worker: &Worker) -> bool {
        self.accepts_but_model(id, worker) && worker.serves(self.asked)
    }

    fn accepts_but_model(&self, id: WorkerId, worker: &Worker) -> bool {
        worker.is_ready()
            && worker.role() == self.role
            && (self.kind.is_none() || self.kind == worker.kind())
            && worker.breaker.admits() == (self.tier == Tier::Well)
            && (!self.slot || worker.has_slot())
            && !self.except.contains(&id)
            && worker.suits(self.wishes)
    }

    /// The same, wishes aside.
    fn takes(&self, brief: &Brief) -> bool {
        brief.ready
            && brief.role == self.role
            && (self.kind.is_none() || self.kind == brief.kind)
            && brief.admits == (self.tier == Tier::Well)
            && (!self.slot || brief.has_slot)
            && !self.except.contains(&brief.candidate.worker)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Workers {
    by_id: BTreeMap<WorkerId, Worker>,
    briefs: Vec<Brief>,
    ready: BTreeSet<(u64, WorkerId)>,
    free: BTreeSet<(u64, WorkerId)>,
    opened: BTreeSet<(Time, WorkerId)>,
    reported: BTreeSet<(Time, WorkerId)>,
    tainted: bool,
    /// Some worker does only a part of the work.
    split: bool,
    /// Some worker loads adapters when asked.
    loading: bool,
    /// The models that adapters adapt, by the adapter's name.
    bases: BTreeMap<String, String>,
}

impl Workers {
    pub(crate) fn get(&self, id: WorkerId) -> Option<&Worker> {
        self.by_id.get(&id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (WorkerId, &Worker)> {
        self.by_id.iter().map(|(&id, worker)| (id, worker))
    }

    /// Adds a worker that is not there yet, then changes it.
    pub(crate) fn upsert(
        &mut self,
        id: WorkerId,
        fresh: impl FnOnce() -> Worker,
        change: impl FnOnce(&mut Worker),
    ) {
        self.by_id.entry(id).or_insert_with(fresh);
        self.change(id, change);
    }

    /// Sets what is known of a worker.
    pub(crate) fn inform(&mut self, id: WorkerId, info: WorkerInfo) {
        let shared = self.by_id.values().filter_map(|w| w.models.as_ref()).find(|m| ***m == *info.models);
        let models = shared.map_or_else(|| Arc::from(info.models.as_slice()), Arc::clone);
        self.change(id, |worker| {
            worker.info = Some(info);
            worker.models = Some(models);
        });
        let infos = || self.by_id.values().filter_map(|w| w.info.as_ref());
        self.tainted = infos().any(|info| !info.taints.is_empty());
        self.split = infos().any(|info| !info.role.is_both());
        self.loading = infos().any(|info| info.loads_adapters);
        let adapters = infos().flat_map(|info| &info.adapters).filter(|_| self.loading);
        self.bases = adapters.map(|adapter| (adapter.name.clone(), adapter.base.clone())).collect();
    }

    /// What `model` is to workers.
    pub(crate) fn asked<'a>(&'a self, model: Option<&'a str>) -> Asked<'a> {
        let cold = match model.filter(|_| self.loading) {
            None => Cold::Never,
            Some(name) => match self.bases.get(name) {
                Some(base) => Cold::Base(base),
                None if self.knows(name) => Cold::Never,
                None => Cold::Unknown,
            },
        };
        Asked { model, cold }
    }

    /// Whether some worker lists the name.
    fn knows(&self, name: &str) -> bool {
        let lists = self.by_id.values().filter_map(|worker| worker.models.as_ref());
        lists.flat_map(|models| models.iter()).any(|known| known == name)
    }

    /// Whether workers that do only a part of the work serve the model.
    pub(crate) fn splits(&self, asked: Asked<'_>) -> bool {
        self.split && self.present().any(|worker| !worker.role().is_both() && worker.serves(asked))
    }

    /// Workers that are not gone.
    fn present(&self) -> impl Iterator<Item = &Worker> {
        self.by_id.values().filter(|worker| worker.state != WorkerState::Removed)
    }

    /// Whether the labels and taints of workers, and nothing else, keep a turn from ever being served: workers
    /// serve the model, and of one kind that it takes none suits.
    pub(crate) fn none_suits(&self, asked: Asked<'_>, wishes: &RouteWishes) -> bool {
        if wishes.require.is_empty() && !self.tainted
            || self.present().any(|worker| matches!(worker.state, WorkerState::Expected { .. }))
        {
            return false;
        }
        // Whether there are workers of the role, and whether one of them suits.
        let of = |role| {
            let mut serving = self.present().filter(|w| w.role() == role && w.serves(asked)).peekable();
            (serving.peek().is_some(), serving.any(|worker| worker.suits(wishes)))
        };
        let (whole, prefill, decode) =
            (of(WorkerRole::Both), of(WorkerRole::Prefill), of(WorkerRole::Decode));
        let lacking = |(there, suits): (bool, bool)| there && !suits;
        let split = prefill.0 || decode.0;
        (whole.0 || split) && !whole.1 && (!split || lacking(prefill) || lacking(decode))
    }

    /// Changes a worker and keeps the indexes true. `None` when there is no such worker.
    pub(crate) fn change<R>(&mut self, id: WorkerId, change: impl FnOnce(&mut Worker) -> R) -> Option<R> {
        let worker = self.by_id.get_mut(&id)?;
        let result = change(worker);
        let load = worker.meter.load();
        let ready_at = worker.is_ready().then_some(load);
        let free_at = ready_at.filter(|_| worker.has_slot());
        let opened_at = worker.breaker.open_until();
        reindex(&mut self.ready, id, &mut worker.ready_at, ready_at);
        reindex(&mut self.free, id, &mut worker.free_at, free_at);
        reindex(&mut self.opened, id, &mut worker.opened_at, opened_at);
        reindex(&mut self.reported, id, &mut worker.reported_at, worker.report_until);
        let place = self.briefs.binary_search_by_key(&id, |brief| brief.candidate.worker);
        if worker.state == WorkerState::Removed && worker.meter.ours() == 0 {
            reindex(&mut self.opened, id, &mut worker.opened_at, None);
            reindex(&mut self.reported, id, &mut worker.reported_at, None);
            self.by_id.remove(&id);
            if let Ok(at) = place {
                self.briefs.remove(at);
            }
            return Some(result);
        }
        match place.map(|at| self.briefs.get_mut(at)) {
            Ok(Some(brief)) => *brief = worker.brief(id),
            Ok(None) => {}
            Err(at) => self.briefs.insert(at, worker.brief(id)),
        }
        Some(result)
    }

    /// The first end of an open breaker's time.
    pub(crate) fn next_half_open(&self) -> Option<(Time, WorkerId)> {
        self.opened.first().copied()
    }

    /// The first end of a load report's time.
    pub(crate) fn next_stale_report(&self) -> Option<(Time, WorkerId)> {
        self.reported.first().copied()
    }

    /// Whether some worker may come to serve the model: nothing is known of any worker yet, one that is not
    /// gone serves it, or one is expected of which nothing is known.
    pub(crate) fn might_serve(&self, model: Option<&str>, now: Time) -> bool {
        let asked = self.asked(model);
        let mut informed = false;
        for worker in self.by_id.values().filter(|w| w.state != WorkerState::Removed) {
            if worker.serves(asked) || matches!(worker.state, WorkerState::Expected { until } if now < until)
            {
                return true;
            }
            informed |= worker.info.is_some();
        }
        !informed
    }

    /// Whether a worker serves what is asked for.
    pub(crate) fn serves(&self, id: WorkerId, asked: Asked<'_>) -> bool {
        self.by_id.get(&id).is_some_and(|worker| worker.serves(asked))
    }

    /// Whether a ready worker fits, slots aside.
    pub(crate) fn any_ready(&self, wanted: Wanted<'_>) -> bool {
        let wanted = Wanted { slot: false, ..wanted };
        self.ready.iter().any(|&(_, id)| self.by_id.get(&id).is_some_and(|worker| wanted.accepts(id, worker)))
    }

    /// Whether some worker has, or had when workers last told, a taint.
    pub(crate) const fn tainted(&self) -> bool {
        self.tainted
    }

    /// Whether some worker does only a part of the work, or did when workers last told.
    pub(crate) const fn has_split(&self) -> bool {
        self.split
    }

    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// The workers that fit, with the tokens of the programs `at_home` at each.
    pub(crate) const fn eligible<'a>(
        &'a self,
        wanted: Wanted<'a>,
        at_home: &'a BTreeMap<WorkerId, u64>,
    ) -> Eligible<'a> {
        Eligible { workers: self, wanted, at_home }
    }

    /// Checks I-WRK-1, I-WRK-3 and I-WRK-4.
    pub(crate) fn indexes_are_true(&self) -> bool {
        let keys = |keep: fn(&Worker) -> bool| -> BTreeSet<(u64, WorkerId)> {
            self.iter().filter(|(_, w)| keep(w)).map(|(id, w)| (w.meter.load(), id)).collect()
        };
        let opened: BTreeSet<(Time, WorkerId)> =
            self.iter().filter_map(|(id, w)| Some((w.breaker.open_until()?, id))).collect();
        let reported: BTreeSet<(Time, WorkerId)> =
            self.iter().filter_map(|(id, w)| Some((w.report_until?, id))).collect();
        let briefs = self.iter().map(|(id, worker)| worker.brief(id));
        self.briefs.iter().cloned().eq(briefs)
            && self.ready == keys(Worker::is_ready)
            && self.free == keys(|w| w.is_ready() && w.has_slot())
            && self.opened == opened
            && self.reported == reported
            && self.iter().all(|(_, w)| w.state != WorkerState::Removed || w.meter.ours() > 0)
    }
}

fn reindex<K: Ord + Copy>(
    index: &mut BTreeSet<(K, WorkerId)>,
    id: WorkerId,
    current: &mut Option<K>,
    next: Option<K>,
) {
    if *current == next {
        return;
    }
    if let Some(key) = *current {
        index.remove(&(key, id));
    }
    if let Some(key) = next {
        index.insert((key, id));
    }
    *current = next;
}

/// The workers that fit one turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Eligible<'a> {
    workers: &'a Workers,
    wanted: Wanted<'a>,
    at_home: &'a BTreeMap<WorkerId, u64>,
}

impl Eligible<'_> {
    const fn index(&self) -> &BTreeSet<(u64, WorkerId)> {
        if self.wanted.slot { &self.workers.free } else { &self.workers.ready }
    }
}

impl Fleet for Eligible<'_> {
    fn get(&self, id: WorkerId) -> Option<Candidate> {
        let worker = self.workers.get(id).filter(|worker| self.wanted.accepts(id, worker))?;
        let home_tokens = self.at_home.get(&id).copied().unwrap_or(0);
        let cold = worker.models.as_ref().is_some_and(|models| self.wanted.asked.is_cold_at(models));
        Some(Candidate { cold, ..worker.candidate(id, home_tokens) })
    }

    fn lightest(&self) -> Option<Candidate> {
        self.index().iter().find_map(|&(_, id)| self.get(id))
    }

    fn all(&self, out: &mut Vec<Candidate>) {
        let index = self.index();
        // Walking the table is cheaper than looking most of it up; with few workers in question it is not.
        if index.len() < self.workers.by_id.len() / 8 {
            let start = out.len();
            out.extend(index.iter().filter_map(|&(_, id)| self.get(id)));
            if let Some(added) = out.get_mut(start..) {
                added.sort_unstable_by_key(|c| c.worker);
            }
            return;
        }
        let Self { workers, wanted, at_home } = *self;
        let choosy = workers.tainted || !wanted.wishes.require.is_empty();
        let suits = |id| !choosy || workers.get(id).is_some_and(|worker| worker.suits(wanted.wishes));
        // Whether the models of the one before are served, and whether their adapter is to be loaded.
        let mut last: Option<(&Arc<[String]>, bool, bool, bool)> = None;
        // Both lists are in order of id: one walk instead of a look-up for each worker.
        let mut at_home = at_home.iter().peekable();
        out.reserve(workers.briefs.len());
        for brief in &workers.briefs {
            let (Some(models), loads) = (&brief.models, brief.loads_adapters) else { continue };
            let id = brief.candidate.worker;
            if !wanted.takes(brief) || !suits(id) {
                continue;
            }
            let (served, cold) = match last {
                Some((seen, loading, served, cold)) if loading == loads && Arc::ptr_eq(seen, models) => {
                    (served, cold)
                }
                Some(_) | None => (wanted.asked.served(models, loads), wanted.asked.is_cold_at(models)),
            };
            last = Some((models, loads, served, cold));
            if served {
                while at_home.next_if(|&(&home, _)| home < id).is_some() {}
                let home_tokens = at_home.next_if(|&(&home, _)| home == id).map_or(0, |(_, &tokens)| tokens);
                out.push(Candidate { home_tokens, cold, ..brief.candidate });
            }
        }
    }

    fn labels(&self, id: WorkerId) -> &[String] {
        self.workers.get(id).and_then(|worker| worker.info.as_ref()).map_or(&[], |info| &info.labels)
    }
}
