//! What a turn costs on a worker, in prompt tokens.
//!
//! `cost = prefill + transfer + queued + decode + left_behind + crowding + affinity + labels + adapter`
//!
//! - `prefill`: the prompt less its credits. A block counts once, at the best weight among the places where an
//!   engine could take it from: the worker's own tiers, as far as its leading run goes, and behind that the shared
//!   store up to the first hole.
//! - `queued`: prefill sent to the worker whose first token is not out yet.
//! - `decode`: requests there.
//! - `left_behind`: what home holds of the prompt in its own tiers and this worker does not.
//! - `crowding`: the program's size times the worker's share of the fleet's programs beyond the mean, as it would
//!   be with the program there. Shares are by KV capacity where workers tell it; there the worker's programs beyond
//!   what its pool holds count as well, and a fleet that is overfull as a whole gathers its newcomers at the fullest
//!   workers while none has room. What programs have in common counts once there (see `heads`).
//! - `affinity`: a part of the prompt for not being home, much more in a fleet that loses KV; a fixed amount for not
//!   being the parent's worker.
//! - `labels`: preferred labels that are missing, in parts of the prompt.
//! - `adapter`: the LoRA adapter that would have to be loaded.
//! - Where prompts and answers have workers of their own: a worker for prompts has no `decode` (all that runs there is
//!   queued prefill); a worker for answers has `transfer` in place of `prefill`, the part of the prompt that it would
//!   have to fetch, and there `left_behind`, `crowding` and `affinity` count by the same scale.

use serde::{Deserialize, Serialize};
use tandem_types::{EngineId, MatchSource, PrefixMatch, WorkerId, WorkerPrefix};

use super::config::{WEIGHT_MAX, Weights};
use super::crowd::{Crowd, Manner, crowd};
use crate::columns::{Columns, Row, float, most};
use crate::{Fleet, Leg, RouteTurn};

/// What makes up a worker's cost, in tokens, and the blocks behind its credits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CostTerms {
    /// Leading blocks in the worker's device memory.
    pub device_blocks: u32,
    /// Blocks behind these in its host memory.
    pub host_blocks: u32,
    /// Blocks behind these on its disk.
    pub disk_blocks: u32,
    /// Blocks behind these that it could load from the shared store.
    pub shared_blocks: u32,
    /// Tokens taken to be cached because the program ran here, where the index cannot tell.
    pub assumed_tokens: u64,
    /// Prefill still to do.
    pub prefill: u64,
    /// Prefill queued before it.
    pub queued: u64,
    /// Running requests.
    pub decode: u64,
    /// KV left behind at home.
    pub left_behind: u64,
    /// More than its share of the fleet's programs.
    pub crowding: u64,
    /// Not home, or not the parent's worker.
    pub affinity: u64,
    /// Preferred labels missing.
    pub labels: u64,
    /// KV of the prompt still to fetch from where it is computed.
    #[serde(default)]
    pub transfer: u64,
    /// An adapter to load.
    #[serde(default)]
    pub adapter: u64,
}

impl CostTerms {
    /// The cost.
    #[must_use]
    pub fn total(&self) -> u64 {
        [
            self.transfer,
            self.queued,
            self.decode,
            self.left_behind,
            self.crowding,
            self.affinity,
            self.labels,
            self.adapter,
        ]
        .into_iter()
        .fold(self.prefill, u64::saturating_add)
    }

    /// Whether anything of the prompt is taken to be in the worker's reach.
    #[must_use]
    pub const fn holds_any(&self) -> bool {
        self.device_blocks > 0
            || self.host_blocks > 0
            || self.disk_blocks > 0
            || self.shared_blocks > 0
            || self.assumed_tokens > 0
    }
}

/// Tokens that a worker will have to compute for a turn, copies in any tier and in the shared store counting as
/// cached: what the turn adds to the worker's queued prefill.
#[must_use]
pub fn expected_prefill(turn: &RouteTurn<'_>, worker: WorkerId) -> u64 {
    let prompt = prompt_tokens(turn);
    let cached = match known(turn, worker) {
        Some((found, held)) => u64::from(held.disk + found.shared_beyond(held)) * u64::from(found.block_size),
        None => assumed(turn, worker),
    };
    prompt.saturating_sub(cached)
}

pub(super) fn prompt_tokens(turn: &RouteTurn<'_>) -> u64 {
    let blocks = turn.prefix.map_or(0, |found| u64::from(found.blocks) * u64::from(found.block_size));
    turn.input_tokens.max(blocks)
}

/// What is known of a worker, with depths in order and within the prompt.
fn known<'a>(turn: &RouteTurn<'a>, worker: WorkerId) -> Option<(&'a PrefixMatch, WorkerPrefix)> {
    let found = turn.prefix?;
    let held = found.of(worker)?;
    let [device, host, disk] = in_order(found, held.depths());
    Some((found, WorkerPrefix { device, host, disk, ..held }))
}

/// Depths in order and within the prompt.
#[inline]
fn in_order(found: &PrefixMatch, [device, host, disk]: Depths) -> Depths {
    let device = device.min(found.blocks);
    let host = host.clamp(device, found.blocks);
    [device, host, disk.clamp(host, found.blocks)]
}

/// Leading blocks of a prompt in a worker's tiers, each with those before.
pub(super) type Depths = [u32; 3];

/// Tokens that a worker is taken to hold where the index cannot tell: what its program had computed there.
fn assumed(turn: &RouteTurn<'_>, worker: WorkerId) -> u64 {
    let at_home = turn.home == Some(worker);
    turn.program_tokens.filter(|_| at_home).unwrap_or(0).min(prompt_tokens(turn))
}

/// Tokens of the prompt in a worker's own tiers, and those that whole blocks of it could hold; `None` where the
/// index cannot tell.
pub(super) fn found_at(turn: &RouteTurn<'_>, worker: WorkerId) -> Option<(u64, u64)> {
    let (found, held) = known(turn, worker)?;
    let block = u64::from(found.block_size);
    Some((u64::from(held.disk) * block, u64::from(found.blocks) * block))
}

/// The costs of one turn.
#[derive(Debug)]
pub(super) struct Costs<'a> {
    weights: &'a Weights<'a>,
    turn: &'a RouteTurn<'a>,
    prompt: f64,
    /// Credit of home's own tiers, in tokens, when home is a candidate.
    home_credit: Option<f64>,
    crowd: Option<Crowd>,
    /// What load counts for: less for a program's first turn.
    load: f64,
    /// What any worker but home costs more.
    stay: f64,
    /// The request prefers labels.
    prefers: bool,
}

/// The terms of one cost, each a whole number of tokens.
#[derive(Debug, Clone, Copy, Default)]
struct Parts {
    prefill: f64,
    transfer: f64,
    queued: f64,
    decode: f64,
    left_behind: f64,
    crowding: f64,
    affinity: f64,
    labels: f64,
    adapter: f64,
}

/// Candidates that a crowd is compared at: what they hold, their shares with the program there, and their prices.
struct Places<'a> {
    capacity: &'a [f64],
    shares: &'a [f64],
    prices: &'a mut [f64],
}

/// What follows from how much of a prompt lies at a worker.
#[derive(Debug, Clone, Copy)]
struct At {
    missing: f64,
    left_behind: f64,
}

impl<'a> Costs<'a> {
    pub(super) fn new(
        weights: &'a Weights<'a>,
        turn: &'a RouteTurn<'a>,
        candidates: &Columns<'_>,
        loss: f64,
        common: f64,
    ) -> Self {
        let home = turn.home.and_then(|home| candidates.row(candidates.find(home)?));
        let mut costs = Self {
            weights,
            turn,
            prompt: float(prompt_tokens(turn)),
            home_credit: None,
            crowd: None,
            load: 1.0,
            stay: 0.0,
            prefers: turn.wishes.is_some_and(|wishes| !wishes.prefer.is_empty()),
        };
        let lost = weights.fleet.lost * loss;
        costs.stay = costs.prompt * (weights.fleet.stay + lost);
        costs.home_credit = home.map(|home| costs.credits(home.worker, costs.held(home.worker)).0);
        costs.crowd = crowd(turn, home, candidates, weights.fleet.gather, common);
        if costs.crowd.is_some() && turn.home.is_none() {
            costs.load = 1.0 / (1.0 + lost);
        }
        costs
    }

    /// What the match says of a worker's tiers.
    fn held(&self, worker: WorkerId) -> Option<Depths> {
        self.turn.prefix.and_then(|found| found.of(worker)).map(|held| held.depths())
    }

    /// What the turn costs at a candidate.
    pub(super) fn terms(&self, candidate: Row, fleet: &dyn Fleet) -> CostTerms {
        let held = self.held(candidate.worker);
        let parts = self.parts(candidate, &self.at(candidate.worker, held), fleet);
        let mut terms = CostTerms {
            prefill: count(parts.prefill),
            queued: count(parts.queued),
            decode: count(parts.decode),
            left_behind: count(parts.left_behind),
            crowding: count(parts.crowding),
            affinity: count(parts.affinity),
            labels: count(parts.labels),
            transfer: count(parts.transfer),
            adapter: count(parts.adapter),
            ..CostTerms::default()
        };
        match self.turn.prefix.zip(held).map(|(found, held)| (found, in_order(found, held))) {
            Some((found, [device, host, disk])) => {
                terms.device_blocks = device;
                terms.host_blocks = host - device;
                terms.disk_blocks = disk - host;
                terms.shared_blocks = beyond(found, candidate.worker, disk);
            }
            None => terms.assumed_tokens = assumed(self.turn, candidate.worker),
        }
        terms
    }

    /// The sum of the terms.
    pub(super) fn price_of(&self, candidate: Row, fleet: &dyn Fleet) -> f64 {
        let at = self.at(candidate.worker, self.held(candidate.worker));
        let parts = self.parts(candidate, &at, fleet);
        parts.prefill
            + parts.transfer
            + parts.queued
            + parts.decode
            + parts.left_behind
            + parts.crowding
            + parts.affinity
            + parts.labels
            + parts.adapter
    }

    /// What queued tokens and requests count for, each, before rounding.
    pub(super) fn per_load(&self) -> (f64, f64) {
        let Self { weights, load, turn, .. } = *self;
        (load * weights.queued, if turn.leg == Leg::Prefill { 0.0 } else { load * weights.decode })
    }

    /// What a token of the prompt counts for.
    fn scale(&self) -> f64 {
        if self.turn.leg == Leg::Decode { self.weights.fleet.transfer } else { 1.0 }
    }

    /// The part of the costs that follows from what lies at a worker.
    fn at(&self, worker: WorkerId, held: Option<Depths>) -> At {
        let (own, shared) = self.credits(worker, held);
        let behind = self.home_credit.filter(|_| self.turn.home != Some(worker)).map(|home| home - own);
        At {
            missing: whole(self.scale() * (self.prompt - own - shared)),
            left_behind: behind
                .map_or(0.0, |behind| whole(self.scale() * self.weights.fleet.left_behind * behind)),
        }
    }

    /// What the match says, where the prompt's blocks are known.
    pub(super) fn found(&self) -> Option<&'a PrefixMatch> {
        self.turn.prefix.filter(|found| !found.is_unknown())
    }

    /// What follows for workers other than home and the parent's from how much of the prompt lies there.
    pub(super) fn fixed_at(&self, held: Option<Depths>) -> f64 {
        // No engine has that number.
        let nowhere = WorkerId { engine: EngineId(u32::MAX), rank: u32::MAX };
        let at = self.at(nowhere, held);
        let away = match (self.turn.home, self.turn.parent_home) {
            (Some(_), _) => self.stay,
            (None, Some(_)) => self.weights.fleet.parent_tokens,
            (None, None) => 0.0,
        };
        at.missing + at.left_behind + whole(self.scale() * away)
    }

    /// Workers whose costs follow from more than what they have in common with others.
    pub(super) const fn special(&self) -> [Option<WorkerId>; 2] {
        [self.turn.home, self.turn.parent_home]
    }

    /// Whether each worker has to be asked for what no column tells.
    pub(super) fn asks_each(&self) -> bool {
        self.prefers || self.turn.prefix.is_some_and(|found| found.loadable.is_some())
    }

    /// Adds to the price of each candidate what the crowd there costs a program that comes to it; `shares` is memory for
    /// that.
    pub(super) fn crowd(&self, candidates: &Columns<'_>, shares: &mut Vec<f64>, prices: &mut [f64]) {
        let Some(crowd) = &self.crowd else { return };
        let places = candidates.home.iter().zip(candidates.capacity.iter());
        shares.clear();
        shares.extend(places.map(|(home, capacity)| crowd.share(home + crowd.own, *capacity)));
        let places = Places { capacity: &candidates.capacity, shares, prices };
        // Each way to count has a loop of its own: one that asked in each step would take several times as long.
        match crowd.manner() {
            Manner::Gather(most) => self.crowd_by(crowd, places, |shares| crowd.gathered(most, shares)),
            Manner::ForLife => self.crowd_by(crowd, places, |shares| crowd.for_life(shares)),
            Manner::Leaves => self.crowd_by(crowd, places, |shares| crowd.leaving(shares)),
            Manner::ForTurn => self.crowd_by(crowd, places, |shares| crowd.for_turn(shares)),
        }
    }

    #[inline]
    fn crowd_by(&self, crowd: &Crowd, places: Places<'_>, excess: impl Fn(f64) -> f64) {
        let Places { capacity, shares, prices } = places;
        let (scale, crowding, overfull) =
            (self.scale(), self.weights.fleet.crowding, self.weights.fleet.overfull);
        let excess = |share: f64| crowding * if crowd.mean > 0.0 { excess(share / crowd.mean) } else { 0.0 };
        if crowd.fits_all(most(shares)) {
            for (price, &share) in prices.iter_mut().zip(shares) {
                *price += rounded(scale * excess(share));
            }
        } else {
            for ((price, &share), &capacity) in prices.iter_mut().zip(shares).zip(capacity) {
                *price += rounded(scale * (excess(share) + overfull * crowd.over(share, capacity)));
            }
        }
    }

    #[inline]
    fn parts(&self, candidate: Row, at: &At, fleet: &dyn Fleet) -> Parts {
        let Self { weights, turn, prompt, .. } = *self;
        let worker = candidate.worker;
        let mut parts = Parts { left_behind: at.left_behind, ..Parts::default() };
        let scale = self.scale();
        if turn.leg == Leg::Decode {
            parts.transfer = at.missing;
        } else {
            parts.prefill = at.missing;
        }
        let (per_queued, per_request) = self.per_load();
        parts.queued = whole(per_queued * candidate.queued);
        parts.decode = whole(per_request * candidate.load);
        let at_home = turn.home == Some(worker);
        if let Some(crowd) = &self.crowd {
            let excess = weights.fleet.crowding * crowd.excess(candidate, at_home);
            let overfull = weights.fleet.overfull * crowd.overfull(candidate, at_home);
            parts.crowding = whole(scale * (excess + overfull));
        }
        let away = match (turn.home, turn.parent_home) {
            (Some(home), _) if home != worker => self.stay,
            (None, Some(parent)) if parent != worker => weights.fleet.parent_tokens,
            (Some(_) | None, _) => 0.0,
        };
        parts.affinity = whole(scale * away);
        if self.prefers {
            parts.labels = whole(prompt * self.missing_labels(fleet, worker));
        }
        if candidate.cold {
            parts.adapter = whole(weights.fleet.adapter_tokens);
        }
        parts
    }

    /// Credits in tokens: for the worker's own tiers, and for the shared store.
    #[inline]
    fn credits(&self, worker: WorkerId, held: Option<Depths>) -> (f64, f64) {
        let Self { weights, turn, .. } = *self;
        let known = turn.prefix.zip(held).map(|(found, held)| (found, in_order(found, held)));
        let Some((found, held)) = known else {
            return (weights.device * float(assumed(turn, worker)), 0.0);
        };
        let [device, host, disk] = held;
        let tiers = [(0, device, weights.device), (device, host, weights.host), (host, disk, weights.disk)];
        let own = tiers.into_iter().fold(0.0, |own, (from, to, weight)| own + weight * f64::from(to - from));
        let block = f64::from(found.block_size);
        let nothing = found.shared.is_empty() && found.loadable.is_none();
        let shared = if nothing { 0.0 } else { self.shared(worker, found, tiers) };
        (own * block, shared * block)
    }

    /// Credit for the shared store, in blocks.
    fn shared(&self, worker: WorkerId, found: &PrefixMatch, tiers: [(u32, u32, f64); 3]) -> f64 {
        let [_, _, (_, disk, _)] = tiers;
        let mut shared = self.weights.shared * f64::from(beyond(found, worker, disk));
        // A block that is in the shared store too is taken from wherever it saves more.
        let stored = found.uses_store(worker);
        for (start, end, weight) in tiers {
            let gain = self.weights.shared - weight;
            if gain > 0.0 && end > start && stored {
                shared += gain * f64::from(overlap(found, start, end));
            }
        }
        shared
    }

    fn missing_labels(&self, fleet: &dyn Fleet, worker: WorkerId) -> f64 {
        let Some(wishes) = self.turn.wishes.filter(|wishes| !wishes.prefer.is_empty()) else { return 0.0 };
        let labels = fleet.labels(worker);
        let missing = wishes.prefer.iter().filter(|wish| wish.weight.is_finite()).map(|wish| {
            let carried = labels.contains(&wish.label);
            if carried == (wish.weight > 0.0) { 0.0 } else { wish.weight.abs() }
        });
        missing.sum::<f64>().min(WEIGHT_MAX)
    }
}

/// Blocks that a worker could load from the shared store behind `disk` of its own.
fn beyond(found: &PrefixMatch, worker: WorkerId, disk: u32) -> u32 {
    let source = MatchSource::Exact;
    found.shared_beyond(WorkerPrefix { worker, device: disk, host: disk, disk, source })
}

/// Shared blocks at the positions `start..end`.
fn overlap(found: &PrefixMatch, start: u32, end: u32) -> u32 {
    let first = found.shared.partition_point(|run| run.end <= start);
    let runs = found.shared.get(first..).unwrap_or_default().iter().take_while(|run| run.start < end);
    runs.map(|run| run.end.min(end).saturating_sub(run.start.max(start))).sum()
}

/// From here on no number has a fraction.
pub(super) const NO_FRACTION: f64 = 4_503_599_627_370_496.0;

/// To the nearest token, halves up, nothing below none: records then survive a trip through JSON unchanged.
#[inline]
pub(super) fn whole(tokens: f64) -> f64 {
    if tokens >= NO_FRACTION { tokens } else { rounded(tokens) }
}

/// The same below [`NO_FRACTION`]; what is not stays so.
#[inline]
pub(super) fn rounded(tokens: f64) -> f64 {
    // As `round` does, but without a call or a branch: this runs several times for each worker. What is added has no
    // fractions left and goes to the nearest even number.
    let some = if tokens > 0.0 { tokens } else { 0.0 };
    let even = some + NO_FRACTION - NO_FRACTION;
    let rest = if some - even >= 0.5 { 1.0 } else { 0.0 };
    even + rest
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and not negative")]
const fn count(whole: f64) -> u64 {
    whole as u64
}
