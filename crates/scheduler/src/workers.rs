//! The workers, and which of them may take a turn.
//!
//! - I-WRK-1 `ready` holds exactly the ready workers, `free` those of them with a slot, both by (load, id).
//! - I-WRK-2 `turns_running` counts dispatched turns, the load meter dispatched turns and side calls. Side calls
//!   take no slot: they are short, and the engine's own queue takes them.
//! - I-WRK-4 `roster` says of every worker, by id, what a comparison of the whole fleet asks.
//! - I-WRK-3 a removed worker stays known, unseen by routing, until what runs there is over.
//! - Deliberately absent: where a worker's URL is; the driver knows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;
use tandem_routing::{Candidate, LoadMeter};
use tandem_types::{EngineKind, LoadReport, RouteWishes, Time, WorkerId, WorkerInfo, WorkerRole};

use crate::breaker::Breaker;
use crate::eligible::{Asked, Cold, Eligible, Wanted};
use crate::homes::Homes;
use crate::roster::{Brief, Roster};

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
    pub(crate) models: Option<Arc<[String]>>,
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

    pub(crate) fn serves(&self, asked: Asked<'_>) -> bool {
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

    pub(crate) fn has_slot(&self) -> bool {
        self.info.as_ref().is_some_and(|info| info.max_running.is_none_or(|max| self.turns_running < max))
    }

    /// Whether it carries what a request asks for, and nothing that the request does not put up with.
    pub(crate) fn suits(&self, wishes: &RouteWishes) -> bool {
        self.info.as_ref().is_none_or(|info| {
            wishes.require.iter().all(|label| info.labels.contains(label))
                && info.taints.iter().all(|taint| wishes.tolerate.contains(taint))
        })
    }

    pub(crate) fn candidate(&self, id: WorkerId, home_tokens: u64) -> Candidate {
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

    pub(crate) fn is_ready(&self) -> bool {
        self.state == WorkerState::Ready
    }

    /// The same in short.
    fn brief(&self) -> Brief {
        Brief {
            ready: self.is_ready(),
            role: self.role(),
            kind: self.kind(),
            admits: self.breaker.admits(),
            has_slot: self.has_slot(),
            loads_adapters: self.loads_adapters(),
            models: self.models.clone(),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Workers {
    pub(crate) by_id: BTreeMap<WorkerId, Worker>,
    pub(crate) roster: Roster,
    pub(crate) ready: BTreeSet<(u64, WorkerId)>,
    pub(crate) free: BTreeSet<(u64, WorkerId)>,
    opened: BTreeSet<(Time, WorkerId)>,
    reported: BTreeSet<(Time, WorkerId)>,
    pub(crate) tainted: bool,
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
        if worker.state == WorkerState::Removed && worker.meter.ours() == 0 {
            reindex(&mut self.opened, id, &mut worker.opened_at, None);
            reindex(&mut self.reported, id, &mut worker.reported_at, None);
            self.by_id.remove(&id);
            self.roster.remove(id);
            return Some(result);
        }
        self.roster.set(worker.brief(), worker.candidate(id, 0));
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
    pub(crate) const fn eligible<'a>(&'a self, wanted: Wanted<'a>, at_home: &'a Homes) -> Eligible<'a> {
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
        let mut roster = Roster::default();
        self.iter().for_each(|(id, worker)| roster.set(worker.brief(), worker.candidate(id, 0)));
        self.roster == roster
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
