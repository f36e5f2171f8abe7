//! Sessions are admitted while their working sets fit; idle ones count by how likely they return in time.
//!
//! - Input: events with their times ([`crate::contract`]). Output: admissions with a worker, holds, pauses.
//! - Working set of a worker: tokens of running turns and what they are expected to grow by, tokens of idle programs times
//!   the probability that they return within the horizon, and heads that several programs share, once.
//! - Horizon: keeping a context for that long takes as much of the worker as computing it again. With a prefill rate r
//!   and a pool of C tokens that is C / r, r being that of the context's length, times [`TandemConfig::patience`]: memory
//!   is worth less than time, since the last programs let in add less output than the first. Rates are learned.
//! - A turn of a program that has a place, whose cache still lies at home, goes home unless running turns alone fill the
//!   pool; idle programs lose their places until all fits again, those that free enough with the least to spare. Any
//!   other turn waits for room below [`TandemConfig::admit`]; idle programs that are less likely to return than not give
//!   way to it.
//! - Placement: home while its cache lies there and it fits; else where most room is left, a prompt's missing tokens
//!   counting as room taken. While there is room to spare routing decides ([`Placement::Free`]). A program whose cache lies at a home that is full waits for it as long as computing
//!   everything elsewhere would take, then moves: never more than twice the cost of knowing the future.
//! - Order ([`crate::kin`]): of arrival, by groups and families, tenants in proportion to their shares; but a turn that
//!   fits passes one that does not. A turn that is overdue keeps room for itself at the worker that has most, and takes it
//!   from idle programs that have had some turns, as long as the re-prefills that this costs stay within a budget:
//!   [`TandemConfig::reprefill_share`] of workers' time. The turn of a tenant below its share is overdue at once.
//! - Everything happens on events; a look every second lets the passing of time count.
//! - I-TAN-1 no admission is forced: at each one the running turns of its worker fit the pool, but for a turn that runs
//!   there alone.
//! - I-TAN-2 while nothing is short of room, every turn is admitted at once.
//! - I-TAN-3 no program of a group is let in for the first time while one of a group that began before it waits for that.
//! - I-TAN-4 a program whose subagent's turn is held counts nothing: it cannot return before it.
//! - Caches of programs that were paused, went elsewhere or are over are named ([`Action::Demote`]), so that an engine that
//!   can evicts them before those of programs with a place, which its own order would take first.
//! - Where tiers below the device hold KV there are two budgets: what stays counts against all tiers, what runs against
//!   the device.
//! - Deliberately absent: what is at each worker block by block; matches come with turns. Names of tools: policies are
//!   not told them.
//! - Sources: the break-even rule is the ski-rental one; published gates and what they lack are in the documentation of
//!   the policies.

mod config;

use std::collections::BTreeMap;
use std::time::Duration;

use tandem_types::{GroupId, TenantId, Time, TurnId, WorkerId};

use crate::contract::{Action, Arrival, Capacity, End, Event, Grant, HoldReason, Placement, Stats};
use crate::gap::GapModel;
use crate::rate::PrefillRate;
use crate::table::{Left, Program, Rules, Slot, Table, Turn, Worker};
use crate::{AdmissionConfig, AdmissionPolicy};

pub use config::TandemConfig;

/// While a turn fills its home, or a newcomer any worker, to no more than this, where it goes is not a question of memory,
/// and routing decides: below three quarters of the pools no gate gains anything (independent hardware campaign,
/// zetxqx's thunderagent-original-verification).
const ROOMY: f64 = 0.75;
/// Between two looks while turns wait.
const LOOK: Duration = Duration::from_secs(1);
/// Probabilities of return are this old at most.
const FRESH: Duration = Duration::from_millis(250);
/// Most waiting turns tried after one event.
const TRIED_MAX: usize = 64;
/// Seconds of a worker that a second of computing again is taken to cost: it delays the turns that are answered beside
/// it, and who lost a place takes another's later. Simulated on Claude Code sessions at 1.5 times the pool, a share of
/// 5 % counted singly took 9 % of output.
const COST: f64 = 2.0;
/// The budget for re-prefill does not pile up for longer.
const CREDIT_MAX: Duration = Duration::from_secs(300);

/// Medians and spreads of pauses that are believed before any were seen: tools, subagents (a dozen turns), people.
const TOOLS: (f64, f64) = (6.0, 1.5);
const SUBAGENTS: (f64, f64) = (90.0, 1.0);
const PEOPLE: (f64, f64) = (120.0, 1.6);

/// What programs' pauses depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    subagent: bool,
    /// It waits for subagents that it spawned.
    spawned: bool,
    tools: bool,
}

/// Idle programs of a worker as they were weighed last.
#[derive(Debug, Clone, Default)]
struct Idle {
    at: Time,
    weighted: f64,
    /// Probability of return, tokens, who: least likely first, in tenths, then smallest.
    list: Vec<(f64, u64, Slot)>,
}

/// Where a turn can go, and who has to give way for it.
#[derive(Debug)]
struct Fit {
    placement: Placement,
    victims: Vec<Slot>,
}

impl Fit {
    const fn free(placement: Placement) -> Self {
        Self { placement, victims: Vec::new() }
    }
}

/// The policy `tandem`.
#[derive(Debug)]
pub(crate) struct Tandem {
    config: TandemConfig,
    table: Table,
    gaps: BTreeMap<Kind, GapModel>,
    rate: PrefillRate,
    /// Mean length of answers, in tokens.
    answer: f64,
    idle: BTreeMap<WorkerId, Idle>,
    /// Seconds of re-prefill that overdue turns may cause.
    credit: f64,
    credit_at: Time,
    next_look: Option<Time>,
}

#[expect(clippy::cast_precision_loss, reason = "token counts are far below 2^52")]
const fn float(tokens: u64) -> f64 {
    tokens as f64
}

impl Tandem {
    pub(crate) fn new(config: &AdmissionConfig) -> Self {
        let both = [false, true];
        let kinds = both.into_iter().flat_map(|subagent| both.map(|spawned| (subagent, spawned)));
        let kinds = kinds.flat_map(|(subagent, spawned)| both.map(|tools| Kind { subagent, spawned, tools }));
        let gaps = kinds.map(|kind| {
            let (median, sigma) = match kind {
                Kind { spawned: true, .. } => SUBAGENTS,
                Kind { tools: true, .. } => TOOLS,
                Kind { tools: false, .. } => PEOPLE,
            };
            (kind, GapModel::new(median, sigma))
        });
        Self {
            table: Table::new(
                config.programs_max,
                config.program_idle_ttl,
                Rules { heads_count_once: true, kin_ranks: true, lists_left: true },
            ),
            gaps: gaps.collect(),
            rate: PrefillRate::new(config.tandem.prefill_tokens_per_s),
            answer: 0.0,
            idle: BTreeMap::new(),
            credit: 0.0,
            credit_at: Time::ZERO,
            next_look: None,
            config: config.tandem.clone(),
        }
    }

    /// How likely an idle program returns before keeping it has cost more than computing it again.
    fn weight(&self, now: Time, program: &Program, resident: u64) -> f64 {
        // Who waits for a subagent that waits itself does not come back before it.
        if program.key.as_ref().is_some_and(|key| self.table.kin.child_waits(key)) {
            return 0.0;
        }
        let Some(gaps) = self.gaps.get(&kind(&self.table, program)) else { return 1.0 };
        let away = program.idle_since.map_or(Duration::ZERO, |since| now.since(since));
        let even = float(resident) / self.rate.tokens_per_s(program.tokens);
        let horizon = Duration::from_secs_f64((even * self.config.patience).clamp(0.0, 86_400.0));
        let believed = self.config.gap_factor;
        gaps.returns_within(away.div_f64(believed), horizon.div_f64(believed))
    }

    /// Weighs a worker's idle programs again if that was long ago or they have changed.
    fn weigh(&mut self, now: Time, id: WorkerId) {
        if self.idle.get(&id).is_some_and(|idle| now.since(idle.at) < FRESH) {
            return;
        }
        let Some(worker) = self.table.worker(id) else { return };
        let resident = worker.capacity.map_or(0, |capacity| capacity.resident);
        let programs = worker.idle.iter().filter_map(|slot| Some((*slot, self.table.program(*slot)?)));
        let mut list: Vec<(f64, u64, Slot)> = programs
            .map(|(slot, program)| (self.weight(now, program, resident), self.table.idle_charge(slot), slot))
            .collect();
        let tenths = |weight: f64| (weight * 10.0).floor();
        list.sort_by(|a, b| tenths(a.0).total_cmp(&tenths(b.0)).then((a.1, a.2).cmp(&(b.1, b.2))));
        let weighted = list.iter().map(|(weight, tokens, _)| weight * float(*tokens)).sum();
        self.idle.insert(id, Idle { at: now, weighted, list });
    }

    /// A worker's idle programs changed.
    fn touched(&mut self, worker: Option<WorkerId>) {
        if let Some(worker) = worker {
            self.idle.remove(&worker);
        }
    }

    fn ready(&self) -> Vec<WorkerId> {
        self.table.workers.iter().filter(|(_, worker)| worker.ready).map(|(id, _)| *id).collect()
    }

    /// Tokens that running turns will take, their growth and shared heads included.
    fn running(&self, worker: &Worker) -> f64 {
        float(worker.running_tokens + worker.shared) + f64::from(worker.running) * self.answer / 2.0
    }

    fn used(&mut self, now: Time, id: WorkerId) -> f64 {
        self.weigh(now, id);
        let idle = self.idle.get(&id).map_or(0.0, |idle| idle.weighted);
        self.table.worker(id).map_or(0.0, |worker| self.running(worker)) + idle
    }

    /// Up to how many tokens a worker is filled.
    fn admits(&self, capacity: Capacity) -> f64 {
        let part = if capacity.demotes { self.config.admit_demoting } else { self.config.admit };
        float(capacity.resident) * part
    }

    /// What running turns may take of a worker.
    fn running_max(&self, worker: &Worker) -> f64 {
        worker.capacity.map_or(f64::INFINITY, |capacity| {
            let below = capacity.resident > capacity.device;
            float(capacity.device) * if below { self.config.running_max } else { self.config.pause }
        })
    }

    /// Whether a turn may run beside those that do. One that is alone may, however large.
    fn may_run(&self, worker: &Worker, need: f64) -> bool {
        worker.running == 0 || self.running(worker) + need <= self.running_max(worker)
    }

    fn need(&self, turn: &Turn, worker: WorkerId) -> f64 {
        float(self.table.need(turn, worker)) + self.answer
    }

    /// Where a turn can go; `reserved` = a worker whose room is kept for another.
    fn place(&mut self, now: Time, id: TurnId, reserved: Option<WorkerId>) -> Result<Fit, HoldReason> {
        let ready = self.ready();
        let Some(turn) = self.table.turn(id).cloned() else { return Err(HoldReason::NoRoom) };
        let Some(program) = self.table.program(turn.slot) else { return Err(HoldReason::NoRoom) };
        if ready.is_empty() {
            return Ok(Fit::free(Placement::Any));
        }
        let (active, ran, context) = (program.active, program.ran, program.tokens.min(turn.prompt));
        let home = program.home.filter(|home| self.table.is_ready(*home));
        let lies = |at: WorkerId| self.table.lies(&turn, at);
        let at_home = home.filter(|home| lies(*home).is_none_or(|tokens| tokens * 2 >= context));
        if let Some(home) = at_home.filter(|_| active) {
            let need = self.need(&turn, home);
            let used = self.used(now, home);
            let worker = self.table.worker(home).cloned().unwrap_or_default();
            if !self.may_run(&worker, need) {
                return Err(HoldReason::NoRoom);
            }
            let roomy = worker.capacity.is_none_or(|c| used + need <= float(c.resident) * ROOMY);
            return Ok(Fit::free(if roomy { Placement::Free(home) } else { Placement::Pin(home) }));
        }
        let mut best: Option<(f64, u64, Fit)> = None;
        let mut roomy = reserved.is_none() && at_home.is_none();
        for at in ready.into_iter().filter(|at| Some(*at) != reserved) {
            let Some((score, fit)) = self.fit(now, &turn, at) else {
                roomy = false;
                continue;
            };
            if Some(at) == at_home {
                return Ok(fit);
            }
            roomy &= score <= ROOMY;
            if best.as_ref().is_none_or(|(least, _, _)| score < *least) {
                let missing = turn.prompt.saturating_sub(self.table.lies(&turn, at).unwrap_or(0));
                best = Some((score, missing, fit));
            }
        }
        let held = if ran { HoldReason::Paused } else { HoldReason::NoRoom };
        let (_, missing, fit) = best.ok_or(held)?;
        if let Some(charged) = fit.placement.worker().filter(|_| roomy) {
            return Ok(Fit::free(Placement::Free(charged)));
        }
        // Waiting for home pays no longer than computing everything elsewhere takes.
        let spared = at_home.map_or(0, |home| self.table.lies(&turn, home).unwrap_or(context).min(missing));
        if spared > 0 && now.since(turn.arrived).as_secs_f64() < self.rate.seconds(spared) {
            return Err(held);
        }
        Ok(fit)
    }

    /// Whether and how a turn fits at a worker, with a score: the part of the worker that would be taken.
    fn fit(&mut self, now: Time, turn: &Turn, at: WorkerId) -> Option<(f64, Fit)> {
        let used = self.used(now, at);
        let worker = self.table.worker(at)?;
        let need = self.need(turn, at);
        let missing = float(turn.prompt.saturating_sub(self.table.lies(turn, at).unwrap_or(0)));
        let Some(capacity) = worker.capacity else {
            // Nothing is known of its room: its running turns stand for it.
            return Some((f64::from(worker.running) * 1e-3, Fit::free(Placement::Prefer(at))));
        };
        let resident = float(capacity.resident);
        let score = (used + need + missing) / resident;
        let admitted = self.admits(capacity);
        let lacks = used + need - admitted;
        if !self.may_run(worker, need) {
            return None;
        }
        if lacks <= 0.0 {
            return Some((score, Fit::free(Placement::Pin(at))));
        }
        let list = &self.idle.get(&at)?.list;
        let alone = worker.running == 0 && need > admitted;
        let bound = if alone { f64::INFINITY } else { self.config.give_way };
        let victims =
            enough(list.iter().filter(|(weight, _, _)| *weight < bound), if alone { used } else { lacks });
        let victims = match victims {
            Some(victims) => victims,
            None if alone && list.is_empty() => Vec::new(),
            None => return None,
        };
        // Taking a place costs somebody something.
        Some((score + 1.0, Fit { placement: Placement::Pin(at), victims }))
    }

    fn admit(&mut self, now: Time, id: TurnId, fit: Fit, out: &mut Vec<Action>) {
        for slot in fit.victims {
            self.pause(slot, out);
        }
        let slot = self.table.turn(id).map(|turn| turn.slot);
        let home = slot.and_then(|slot| self.table.program(slot)?.home);
        self.table.admit(id, fit.placement.worker());
        self.touched(home);
        self.touched(self.parents_home(slot));
        self.touched(fit.placement.worker());
        out.push(Action::Admit { turn: id, grant: Grant::to(fit.placement) });
        if let Some(worker) = fit.placement.worker() {
            self.relieve(now, worker, out);
        }
    }

    fn pause(&mut self, slot: Slot, out: &mut Vec<Action>) {
        let home = self.table.program(slot).and_then(|program| program.home);
        if let Some((program, worker, tokens)) = self.table.pause(slot) {
            out.push(Action::Paused { program, worker, tokens });
        }
        self.touched(home);
    }

    /// Idle programs lose their places until a worker's working set fits again; running ones are marked to lose theirs
    /// when that does not suffice, what they will release counted.
    fn relieve(&mut self, now: Time, id: WorkerId, out: &mut Vec<Action>) {
        let used = self.used(now, id);
        let Some(capacity) = self.table.worker(id).and_then(|worker| worker.capacity) else { return };
        let resident = float(capacity.resident);
        if used <= resident * self.config.pause {
            return;
        }
        let mut lacks = used - resident * self.config.pause_to;
        let list = self.idle.get(&id).map(|idle| idle.list.clone()).unwrap_or_default();
        let counted: Vec<(f64, u64, Slot)> =
            list.into_iter().filter(|(weight, _, _)| *weight > 0.05).collect();
        let victims = fewest(&counted, &mut lacks);
        victims.into_iter().for_each(|slot| self.pause(slot, out));
        if lacks <= 0.0 {
            return;
        }
        let mut running: Vec<(u64, Slot)> = Vec::new();
        for (slot, program) in self.table.programs().filter(|(_, p)| p.running > 0 && p.home == Some(id)) {
            let turns = program.live.iter().filter_map(|turn| self.table.turn(*turn));
            let tokens = turns.filter(|turn| !turn.waiting).map(|turn| turn.prompt + turn.generated).sum();
            if program.marked {
                lacks -= float(tokens);
            } else {
                running.push((tokens, slot));
            }
        }
        running.sort_unstable();
        // The last one stays: somebody has to get on.
        running.pop();
        for (tokens, slot) in running {
            if lacks <= 0.0 {
                return;
            }
            lacks -= float(tokens);
            if let Some(program) = self.table.program_mut(slot) {
                program.marked = true;
                self.table.stats.marked += 1;
            }
        }
    }

    /// Lets waiting turns in that fit, in their order. An overdue one keeps room for itself.
    fn pump(&mut self, now: Time, out: &mut Vec<Action>) {
        self.earn(now);
        let mut reserved = None;
        let mut room = self.room(now);
        let mut begun = None;
        for id in self.queue(TRIED_MAX) {
            let overdue = self.is_overdue(now, id);
            let group = self.new_in_group(id);
            if group.is_some() && begun.is_some() && group != begun {
                continue;
            }
            begun = begun.or(group);
            let hopeless = |turn: &Turn| {
                let active = self.table.program(turn.slot).is_some_and(|program| program.active);
                !active && float(self.table.least_need(turn)) > room
            };
            if self.table.turn(id).is_some_and(hopeless) && !(overdue && reserved.is_none()) {
                continue;
            }
            match self.place(now, id, reserved) {
                Ok(fit) => {
                    self.admit(now, id, fit, out);
                    room = self.room(now);
                }
                Err(_) if overdue && reserved.is_none() => {
                    reserved = self.serve_overdue(now, id, out);
                    room = self.room(now);
                }
                Err(_) => {}
            }
        }
        self.next_look = (!self.table.waiting.is_empty()).then(|| now + LOOK);
    }

    /// The first of those that wait.
    fn queue(&self, most: usize) -> Vec<TurnId> {
        let needs = |id| self.table.turn(id).map_or(0, |turn| turn.prompt);
        self.table.kin.queue(most, |tenant| self.share(tenant), needs)
    }

    fn share(&self, tenant: &TenantId) -> f64 {
        self.config.shares.get(tenant.as_str()).copied().unwrap_or(1.0)
    }

    /// The group of a turn that is its program's first.
    fn new_in_group(&self, id: TurnId) -> Option<GroupId> {
        let program = self.table.program(self.table.turn(id)?.slot)?;
        program.group.clone().filter(|_| !program.ran)
    }

    /// Whether a turn opens a group although one that began before it is not whole.
    fn is_early(&self, id: TurnId) -> bool {
        let Some(group) = self.new_in_group(id) else { return false };
        let before = self.queue(TRIED_MAX).into_iter().take_while(|other| *other != id);
        before.filter_map(|other| self.new_in_group(other)).any(|other| other != group)
    }

    /// The most that any worker could take, were all who may give way to do so; a bound that spares looking closer.
    fn room(&mut self, now: Time) -> f64 {
        let mut most = 0.0_f64;
        for at in self.ready() {
            let used = self.used(now, at);
            let Some(worker) = self.table.worker(at) else { continue };
            let Some(capacity) = worker.capacity.filter(|_| worker.running > 0) else { return f64::INFINITY };
            let list = self.idle.get(&at).map_or(&[][..], |idle| &idle.list);
            let giving = list.iter().filter(|(weight, _, _)| *weight < self.config.give_way);
            let giving: f64 = giving.map(|(weight, tokens, _)| weight * float(*tokens)).sum();
            most = most.max(float(capacity.resident) * self.config.pause - used + giving);
        }
        most
    }

    fn is_overdue(&self, now: Time, id: TurnId) -> bool {
        let Some(turn) = self.table.turn(id) else { return false };
        let tenant = self.table.program(turn.slot).map(|program| &program.tenant);
        now.since(turn.arrived) >= self.config.overdue
            || tenant.is_some_and(|t| self.table.kin.is_short(t, turn.prompt, |tenant| self.share(tenant)))
    }

    /// The worker whose room is kept for the first turn that waits, if it is overdue and not the one that arrives.
    fn reserved(&mut self, now: Time, arriving: TurnId) -> Option<WorkerId> {
        let id = self.queue(1).first().copied().filter(|first| *first != arriving)?;
        self.is_overdue(now, id).then(|| self.roomiest(now)).flatten()
    }

    fn roomiest(&mut self, now: Time) -> Option<WorkerId> {
        let room = |at: WorkerId, policy: &mut Self| {
            let used = policy.used(now, at);
            let capacity = policy.table.worker(at)?.capacity?;
            Some((policy.admits(capacity) - used, at))
        };
        let all: Vec<(f64, WorkerId)> = self.ready().into_iter().filter_map(|at| room(at, self)).collect();
        all.into_iter().max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1))).map(|(_, at)| at)
    }

    fn earn(&mut self, now: Time) {
        let workers = float(self.table.workers.values().filter(|worker| worker.ready).count() as u64);
        let earned = |time: Duration| time.as_secs_f64() * workers * self.config.reprefill_share;
        self.credit = (self.credit + earned(now.since(self.credit_at))).min(earned(CREDIT_MAX));
        self.credit_at = now;
    }

    /// Takes room for an overdue turn from idle programs that have had their turns, as long as the budget pays for what
    /// they lose. The worker whose room is kept for it if it could not be let in.
    fn serve_overdue(&mut self, now: Time, id: TurnId, out: &mut Vec<Action>) -> Option<WorkerId> {
        let turn = self.table.turn(id).cloned()?;
        let mut best: Option<(f64, Fit)> = None;
        for at in self.ready() {
            let used = self.used(now, at);
            let Some(worker) = self.table.worker(at) else { continue };
            let (need, Some(capacity)) = (self.need(&turn, at), worker.capacity) else { continue };
            if !self.may_run(worker, need) {
                continue;
            }
            let lacks = used + need - self.admits(capacity);
            let mut list = self.idle.get(&at).map(|idle| idle.list.clone()).unwrap_or_default();
            let had =
                |slot: Slot| self.table.program(slot).is_some_and(|p| p.served >= self.config.turns_at_least);
            list.retain(|(_, _, slot)| had(*slot));
            let mut left = lacks;
            let victims = fewest(&list, &mut left);
            if left > 0.0 {
                continue;
            }
            let lost = |slot: &Slot| {
                let found = list.iter().find(|(_, _, s)| s == slot);
                found.map_or(0.0, |(weight, tokens, _)| weight * self.rate.seconds(*tokens))
            };
            let cost = victims.iter().map(lost).sum::<f64>() * COST;
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                best = Some((cost, Fit { placement: Placement::Pin(at), victims }));
            }
        }
        match best {
            Some((cost, fit)) if cost <= self.credit => {
                self.credit -= cost;
                self.admit(now, id, fit, out);
                None
            }
            _ => self.roomiest(now),
        }
    }

    fn arrived(&mut self, now: Time, arrival: &Arrival<'_>, out: &mut Vec<Action>) {
        let id = arrival.turn;
        if !self.table.arrive(now, arrival) {
            return;
        }
        let slot = self.table.turn(id).map(|turn| turn.slot);
        let home = slot.and_then(|slot| self.table.program(slot)?.home);
        self.touched(home);
        self.touched(self.parents_home(slot));
        self.learn_gap(now, id);
        let reserved = self.reserved(now, id);
        let placed = if self.is_early(id) { Err(HoldReason::Behind) } else { self.place(now, id, reserved) };
        match placed {
            Ok(fit) => self.admit(now, id, fit, out),
            Err(reason) => {
                let alone = |p: &Program| p.active && p.running == 0;
                if let Some(slot) = slot.filter(|slot| self.table.program(*slot).is_some_and(alone)) {
                    // It lost its cache or there is no room to run: it queues like others.
                    self.pause(slot, out);
                }
                out.push(Action::Hold { turn: id, reason });
                self.next_look.get_or_insert(now + LOOK);
            }
        }
    }

    /// Where the program lies that waits for this one.
    fn parents_home(&self, slot: Option<Slot>) -> Option<WorkerId> {
        self.table.parent(slot?).and_then(|parent| parent.home)
    }

    fn learn_gap(&mut self, now: Time, id: TurnId) {
        let Some(turn) = self.table.turn(id) else { return };
        let since = turn.away_since();
        let Some(kind) = self.table.program(turn.slot).map(|program| kind(&self.table, program)) else {
            return;
        };
        if let (Some(since), Some(gaps)) = (since, self.gaps.get_mut(&kind)) {
            gaps.returned(now.since(since));
        }
    }

    fn ended(&mut self, now: Time, id: TurnId, end: &End, out: &mut Vec<Action>) {
        if let Some(usage) = end.usage {
            let output = float(usage.output_tokens.min(1 << 20));
            self.answer += (output - self.answer) * if self.answer > 0.0 { 0.02 } else { 1.0 };
        }
        let home = self.table.turn(id).and_then(|turn| self.table.program(turn.slot)?.home);
        let idle = self.table.end(now, id, end);
        self.left(idle, home, out);
    }

    fn left(&mut self, idle: Option<Slot>, home: Option<WorkerId>, out: &mut Vec<Action>) {
        self.touched(home);
        if let Some(slot) = idle.filter(|slot| self.table.program(*slot).is_some_and(|p| p.marked)) {
            self.pause(slot, out);
        }
    }

    fn first_token(&mut self, now: Time, id: TurnId) {
        let Some(turn) = self.table.turn(id) else { return };
        let (Some(since), Some(at)) = (turn.dispatched, turn.at()) else { return };
        // Only where most was missing: what comes behind a long prefix takes longer for each token.
        if let Some(lies) = self.table.lies(turn, at).filter(|lies| lies * 2 <= turn.prompt) {
            self.rate.sample(turn.prompt - lies, now.since(since));
        }
    }

    fn expire(&mut self, now: Time) {
        let mut gone = Vec::new();
        self.table.expire(now, |table, program| gone.push(kind(table, program)));
        for kind in gone {
            if let Some(gaps) = self.gaps.get_mut(&kind) {
                gaps.never();
            }
        }
        self.idle.clear();
    }

    fn take_in(&mut self, now: Time, event: &Event<'_>, out: &mut Vec<Action>) {
        match event {
            Event::WorkerReady { worker, capacity } => self.table.worker_ready(*worker, *capacity),
            Event::WorkerLost { worker } => {
                self.table.worker_lost(*worker);
                self.touched(Some(*worker));
            }
            Event::Arrived(arrival) => return self.arrived(now, arrival, out),
            Event::Dispatched { turn, worker } => {
                let before = self.table.turn(*turn).and_then(Turn::at);
                self.table.dispatched(now, *turn, *worker);
                if before != Some(*worker) {
                    self.touched(before);
                    self.touched(Some(*worker));
                    self.relieve(now, *worker, out);
                }
                return;
            }
            Event::Undispatched { turn } => self.table.undispatched(*turn),
            Event::FirstToken { turn } => return self.first_token(now, *turn),
            Event::Progress { turn, generated } => {
                self.table.progress(*turn, *generated);
                if let Some(worker) = self.table.turn(*turn).and_then(Turn::at) {
                    self.relieve(now, worker, out);
                }
                return;
            }
            Event::Ended { turn, end } => self.ended(now, *turn, end, out),
            Event::Aborted { turn } => {
                let home = self.table.turn(*turn).and_then(|turn| self.table.program(turn.slot)?.home);
                let idle = self.table.abort(now, *turn);
                let back = idle.and_then(|slot| self.table.program(slot)?.home);
                self.touched(back);
                self.left(idle, home, out);
            }
            Event::SessionEnd { program } => {
                self.table.session_end(program);
                self.idle.clear();
            }
        }
        self.pump(now, out);
    }

    /// Passes on which caches are not worth keeping.
    fn tell_left(&mut self, out: &mut Vec<Action>) {
        let left = self.table.left.drain(..);
        out.extend(left.map(|Left { program, worker, tokens }| Action::Demote { program, worker, tokens }));
    }
}

fn kind(table: &Table, program: &Program) -> Kind {
    let spawned = program.key.as_ref().is_some_and(|key| table.kin.has_children(key));
    Kind { subagent: program.parent.is_some(), spawned, tools: program.tools }
}

/// The first of those listed that free enough together; `None` = all of them do not.
fn enough<'a>(list: impl Iterator<Item = &'a (f64, u64, Slot)>, lacks: f64) -> Option<Vec<Slot>> {
    let (mut left, mut taken) = (lacks, Vec::new());
    for (weight, tokens, slot) in list {
        if left <= 0.0 {
            break;
        }
        left -= weight * float(*tokens);
        taken.push(*slot);
    }
    (left <= 0.0).then_some(taken)
}

/// Those who free enough with the least to spare: one where one suffices, else the largest and so on. What is left over
/// when all of them do not suffice stays in `lacks`.
fn fewest(list: &[(f64, u64, Slot)], lacks: &mut f64) -> Vec<Slot> {
    let mut rest: Vec<(f64, Slot)> =
        list.iter().map(|(weight, tokens, slot)| (weight * float(*tokens), *slot)).collect();
    rest.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut taken = Vec::new();
    while *lacks > 0.0 {
        let suffices = rest.partition_point(|(frees, _)| *frees < *lacks);
        let at = if suffices < rest.len() { suffices } else { rest.len().wrapping_sub(1) };
        let Some((frees, slot)) = (at < rest.len()).then(|| rest.remove(at)) else { break };
        *lacks -= frees;
        taken.push(slot);
    }
    taken
}

impl AdmissionPolicy for Tandem {
    fn name(&self) -> &'static str {
        "tandem"
    }

    fn on(&mut self, now: Time, event: &Event<'_>, out: &mut Vec<Action>) {
        self.on_time(now, out);
        self.take_in(now, event, out);
        self.tell_left(out);
    }

    fn next_deadline(&self) -> Option<Time> {
        [self.next_look, self.table.next_expiry()].into_iter().flatten().min()
    }

    fn on_time(&mut self, now: Time, out: &mut Vec<Action>) {
        if self.table.next_expiry().is_some_and(|at| at <= now) {
            self.expire(now);
        }
        if self.next_look.is_some_and(|at| at <= now) {
            self.pump(now, out);
        }
        self.tell_left(out);
    }

    fn stats(&self) -> Stats {
        self.table.stats()
    }

    fn charged(&self, worker: WorkerId) -> (u64, u64) {
        self.table.charged(worker)
    }

    fn check(&self) -> Result<(), String> {
        self.table.check()
    }
}
