//! The gate: which turns the admission policy lets through, one policy for each pool of workers.
//!
//! - Purpose: translate between the scheduler, which knows turns, models and workers, and
//!   [`tandem_admission::AdmissionPolicy`], which knows working sets and capacities.
//! - Inputs: which workers are ready, for which model, with what capacity; what happens to turns. Outputs: a [`Pass`] for
//!   each turn, held turns let in, programs that lost their places.
//! - A pool is the workers that serve one base model: KV of another model is no use to a turn, and room elsewhere is
//!   none to it. An adapter's turns count at its base model's pool. A program that uses two models has a place in two
//!   pools.
//! - A turn is asked about when a worker that serves its model is ready, again after a dispatch that failed, since its room
//!   went with that, and again if all such workers go while it runs nowhere. Calls that are not turns are never asked about,
//!   and nothing is while the policy is `none`.
//! - Workers that compute prompts for others hold no session's KV for long: policies do not hear of them.
//! - What a policy names is a preference: routing chooses another worker where that one cannot take the turn, and the
//!   charge follows it there. Labels and taints of workers are unknown to policies; where they split a pool, room is
//!   reserved at workers that then do not get the turn.
//! - A capacity once told holds until another one is told or the worker is lost.
//! - I-GTP-1 what a turn's pass says and what its policy counts agree: as many turns are shut as the policies hold, and a
//!   worker where no admitted turn runs or is to run is charged for none.
//! - I-GTP-2 pools are bounded by the workers: one without workers leaves with its last program.
//! - Deliberately absent: how a decision is made (`tandem_admission`), operators' pauses ([`crate::on_gate`]).

use std::collections::{BTreeMap, BTreeSet};

use tandem_admission::{
    Action, AdmissionConfig, AdmissionError, AdmissionPolicy, Capacity, Event, Grant, HoldReason, NONE,
    Stats, by_name,
};
use tandem_types::{ProgramKey, Time, WorkerId, WorkerInfo};

/// A pool's number.
pub(crate) type PoolId = u32;

/// What lets a turn go to the workers, or keeps it from them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pass {
    /// It may go; no policy knows of it.
    Free,
    /// It waits for a worker to be ready whose pool's policy can be asked.
    Unasked,
    /// An operator paused its program; no policy knows of it.
    Stopped,
    /// The policy holds it.
    Shut {
        /// Whose policy.
        pool: PoolId,
        /// Why.
        reason: HoldReason,
    },
    /// The policy let it in.
    Admitted {
        /// Whose policy.
        pool: PoolId,
        /// How.
        grant: Grant,
        /// Why it was held before, if it was.
        held: Option<HoldReason>,
    },
}

impl Pass {
    /// Whether the turn may go to a worker.
    pub(crate) const fn is_open(self) -> bool {
        matches!(self, Self::Free | Self::Admitted { .. })
    }

    /// The pool whose policy counts the turn.
    pub(crate) const fn pool(self) -> Option<PoolId> {
        match self {
            Self::Shut { pool, .. } | Self::Admitted { pool, .. } => Some(pool),
            Self::Free | Self::Unasked | Self::Stopped => None,
        }
    }

    /// The worker where the policy keeps room for the turn.
    pub(crate) const fn kept(self) -> Option<WorkerId> {
        match self {
            Self::Admitted { grant, .. } => grant.placement.kept(),
            Self::Free | Self::Unasked | Self::Stopped | Self::Shut { .. } => None,
        }
    }

    /// The worker that the policy charges for the turn until it runs.
    pub(crate) const fn named(self) -> Option<WorkerId> {
        match self {
            Self::Admitted { grant, .. } => grant.placement.worker(),
            Self::Free | Self::Unasked | Self::Stopped | Self::Shut { .. } => None,
        }
    }
}

/// A worker as policies are to know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    /// The model whose pool it belongs to; `None` = it takes any.
    model: Option<String>,
    capacity: Option<Capacity>,
}

impl Member {
    /// `reported` = what the worker itself said last of its pool, in tokens.
    pub(crate) fn new(info: &WorkerInfo, reported: Option<u64>) -> Self {
        let adapts = |name: &&String| info.adapters.iter().any(|adapter| adapter.name == **name);
        let device = reported.or(info.kv_capacity_tokens).filter(|tokens| *tokens > 0);
        Self {
            model: info.models.iter().find(|name| !adapts(name)).cloned(),
            capacity: device.map(|device| Capacity {
                device,
                resident: info.kv_resident_tokens.map_or(device, |resident| resident.max(device)),
                demotes: info.demotes,
            }),
        }
    }
}

#[derive(Debug)]
struct Pool {
    model: Option<String>,
    policy: Box<dyn AdmissionPolicy>,
    workers: BTreeSet<WorkerId>,
}

/// The policies of all pools.
#[derive(Debug)]
pub(crate) struct Gate {
    config: AdmissionConfig,
    on: bool,
    pools: BTreeMap<PoolId, Pool>,
    next_pool: PoolId,
    /// Ready workers, their pools and what these were told of them.
    members: BTreeMap<WorkerId, (PoolId, Member)>,
    /// Counts of pools that are gone.
    gone: Stats,
}

impl Gate {
    pub(crate) fn new(config: &AdmissionConfig) -> Result<Self, AdmissionError> {
        let policy = by_name(config)?;
        Ok(Self {
            on: policy.name() != NONE,
            config: config.clone(),
            pools: BTreeMap::new(),
            next_pool: 0,
            members: BTreeMap::new(),
            gone: Stats::default(),
        })
    }

    /// Whether there is a policy to ask.
    pub(crate) const fn is_on(&self) -> bool {
        self.on
    }

    pub(crate) fn policy(&self) -> &str {
        &self.config.policy
    }

    /// The first pool of which a worker `serves`.
    pub(crate) fn pool_where(&self, serves: impl Fn(WorkerId) -> bool) -> Option<PoolId> {
        self.pools.iter().find(|(_, pool)| pool.workers.iter().any(|id| serves(*id))).map(|(id, _)| *id)
    }

    /// Whether a pool has workers beside these. One without any may be kept for its programs.
    pub(crate) fn has_workers_beside(&self, id: PoolId, these: &[WorkerId]) -> bool {
        self.pools.get(&id).is_some_and(|pool| pool.workers.iter().any(|worker| !these.contains(worker)))
    }

    /// Tells a pool's policy something.
    pub(crate) fn on(&mut self, id: PoolId, now: Time, event: &Event<'_>, out: &mut Vec<Action>) {
        let Some(pool) = self.pools.get_mut(&id) else { return };
        pool.policy.on(now, event, out);
        if pool.workers.is_empty() {
            self.sweep(id);
        }
    }

    /// The pool that has no worker any more when this one becomes as told.
    pub(crate) fn emptied_by(&self, worker: WorkerId, member: Option<&Member>) -> Option<PoolId> {
        let (pool, known) = self.members.get(&worker)?;
        let stays = member.is_some_and(|member| member.model == known.model);
        (!stays && self.pools.get(pool)?.workers.len() == 1).then_some(*pool)
    }

    /// A worker is ready as told, or is not (`None`). The pools that heard of it, with what they answered.
    pub(crate) fn worker(
        &mut self,
        now: Time,
        worker: WorkerId,
        member: Option<Member>,
    ) -> Vec<(PoolId, Vec<Action>)> {
        let mut answers = Vec::new();
        let known = self.members.get(&worker).cloned();
        let member = member.map(|mut member| {
            let told = known.as_ref().filter(|(_, known)| known.model == member.model);
            member.capacity = member.capacity.or_else(|| told.and_then(|(_, known)| known.capacity));
            member
        });
        if known.as_ref().map(|(_, known)| known) == member.as_ref() {
            return answers;
        }
        let stays = |known: &Member| member.as_ref().is_some_and(|member| member.model == known.model);
        if let Some((pool, _)) = known.filter(|(_, known)| !stays(known)) {
            self.members.remove(&worker);
            if let Some(left) = self.pools.get_mut(&pool) {
                let mut out = Vec::new();
                left.workers.remove(&worker);
                left.policy.on(now, &Event::WorkerLost { worker }, &mut out);
                answers.push((pool, out));
            }
            self.sweep(pool);
        }
        let Some(member) = member else { return answers };
        let Some(id) = self.pool_of(&member) else { return answers };
        if let Some(pool) = self.pools.get_mut(&id) {
            let mut out = Vec::new();
            pool.workers.insert(worker);
            pool.policy.on(now, &Event::WorkerReady { worker, capacity: member.capacity }, &mut out);
            answers.push((id, out));
        }
        self.members.insert(worker, (id, member));
        answers
    }

    /// The pool that a worker belongs to, made where there is none yet.
    fn pool_of(&mut self, member: &Member) -> Option<PoolId> {
        if let Some((id, _)) = self.pools.iter().find(|(_, pool)| pool.model == member.model) {
            return Some(*id);
        }
        // The settings were checked when the gate was made.
        let policy = by_name(&self.config).ok()?;
        let id = self.next_pool;
        self.next_pool += 1;
        self.pools.insert(id, Pool { model: member.model.clone(), policy, workers: BTreeSet::new() });
        Some(id)
    }

    /// I-GTP-2.
    fn sweep(&mut self, id: PoolId) {
        let done = |pool: &Pool| pool.workers.is_empty() && pool.policy.stats().programs == 0;
        if self.pools.get(&id).is_some_and(done)
            && let Some(pool) = self.pools.remove(&id)
        {
            self.gone = sum(self.gone, pool.policy.stats());
        }
    }

    /// A program will not come back. The pools, with what they answered.
    pub(crate) fn session_end(&mut self, now: Time, program: &ProgramKey) -> Vec<(PoolId, Vec<Action>)> {
        self.each(|policy, out| policy.on(now, &Event::SessionEnd { program }, out))
    }

    /// Deals with what the passing of time brings about.
    pub(crate) fn on_time(&mut self, now: Time) -> Vec<(PoolId, Vec<Action>)> {
        if self.next_deadline().is_none_or(|at| at > now) {
            return Vec::new();
        }
        self.each(|policy, out| policy.on_time(now, out))
    }

    fn each(
        &mut self,
        mut tell: impl FnMut(&mut dyn AdmissionPolicy, &mut Vec<Action>),
    ) -> Vec<(PoolId, Vec<Action>)> {
        let mut answers = Vec::new();
        for (id, pool) in &mut self.pools {
            let mut out = Vec::new();
            tell(pool.policy.as_mut(), &mut out);
            if !out.is_empty() {
                answers.push((*id, out));
            }
        }
        let empty: Vec<PoolId> =
            self.pools.iter().filter(|(_, pool)| pool.workers.is_empty()).map(|(id, _)| *id).collect();
        empty.into_iter().for_each(|id| self.sweep(id));
        answers
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.pools.values().filter_map(|pool| pool.policy.next_deadline()).min()
    }

    /// Counts over all pools.
    pub(crate) fn stats(&self) -> Stats {
        self.pools.values().map(|pool| pool.policy.stats()).fold(self.gone, sum)
    }

    /// Tokens charged to a worker: those of running turns, those of idle programs, and what it can hold.
    pub(crate) fn charged(&self, worker: WorkerId) -> Option<(u64, u64, Option<Capacity>)> {
        let (pool, member) = self.members.get(&worker)?;
        let (running, idle) = self.pools.get(pool)?.policy.charged(worker);
        Some((running, idle, member.capacity))
    }

    /// How patient the policy is with idle programs at a worker, where it reckons so.
    pub(crate) fn patience(&self, worker: WorkerId) -> Option<f64> {
        let (pool, _) = self.members.get(&worker)?;
        self.pools.get(pool)?.policy.patience()
    }

    /// Checks the policies and I-GTP-2. `shut` = turns that each pool is thought to hold, `taken` = workers where
    /// admitted turns run or are to run.
    pub(crate) fn check(
        &self,
        shut: &BTreeMap<PoolId, u64>,
        taken: &BTreeSet<WorkerId>,
    ) -> Result<(), String> {
        for (id, pool) in &self.pools {
            pool.policy.check()?;
            let (held, thought) = (pool.policy.stats().held, shut.get(id).copied().unwrap_or(0));
            if held != thought {
                return Err(format!("pool {id} holds {held} turns, {thought} are shut"));
            }
            if pool.workers.is_empty() && pool.policy.stats().programs == 0 {
                return Err(format!("pool {id} is left behind"));
            }
            let idle = |worker: &&WorkerId| !taken.contains(worker);
            if let Some(worker) = pool.workers.iter().filter(idle).find(|w| pool.policy.charged(**w).0 > 0) {
                return Err(format!("{worker} is charged for turns that are not there"));
            }
        }
        let lost = shut.keys().find(|id| !self.pools.contains_key(id));
        lost.map_or(Ok(()), |id| Err(format!("turns wait in pool {id}, which is gone")))
    }
}

/// Both together.
const fn sum(a: Stats, b: Stats) -> Stats {
    Stats {
        programs: a.programs + b.programs,
        held: a.held + b.held,
        held_tokens: a.held_tokens + b.held_tokens,
        admitted: a.admitted + b.admitted,
        forced: a.forced + b.forced,
        moved: a.moved + b.moved,
        paused: a.paused + b.paused,
        marked: a.marked + b.marked,
        resumed: a.resumed + b.resumed,
        expired: a.expired + b.expired,
        cancelled: a.cancelled + b.cancelled,
    }
}
