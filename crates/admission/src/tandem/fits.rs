//! Where turns fit, and what that takes.
//!
//! - Everything is compared over all workers at once, in time in proportion to them; rooms must be up to date.

use tandem_types::{TurnId, WorkerId};

use super::{COST, ROOMY, Tandem};
use crate::contract::{Capacity, Placement};
use crate::rooms::{Room, Weighed, float};
use crate::table::{Heads, Program, Slot, Turn};

/// What a turn asks of any worker.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask {
    pub(super) prompt: u64,
    /// What of it others have computed.
    pub(super) heads: Heads,
}

impl Ask {
    /// Tokens that it will take of a worker's room that others' heads do not take already.
    pub(super) fn need(self, at: WorkerId, lies: Option<u64>) -> u64 {
        self.prompt.saturating_sub(self.heads.at(at, lies))
    }
}

/// The most that workers have free for any turn, those counted who may give way: bounds that spare looking closer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound {
    pub(super) most: f64,
    pub(super) at: Option<WorkerId>,
    /// At any other worker.
    pub(super) second: f64,
}

/// Where a turn can go, and who has to give way for it.
#[derive(Debug)]
pub(super) struct Fit {
    pub(super) placement: Placement,
    pub(super) victims: Vec<Slot>,
}

impl Fit {
    pub(super) const fn free(placement: Placement) -> Self {
        Self { placement, victims: Vec::new() }
    }
}

impl Tandem {
    pub(super) fn need(&self, ask: Ask, at: WorkerId, lies: Option<u64>) -> f64 {
        float(ask.need(at, lies)) + self.answer
    }

    /// What a turn may need at most to fit at a worker, were all who may give way to do so.
    pub(super) fn free(&self, room: &Room) -> f64 {
        let Some(capacity) = room.capacity else { return f64::INFINITY };
        let free = self.admits(capacity) - self.used(room) + room.giving;
        if room.running == 0 { f64::INFINITY } else { free.min(self.running_max(room) - self.running(room)) }
    }

    /// Tokens that running turns will take, their growth and shared heads included.
    pub(super) fn running(&self, room: &Room) -> f64 {
        room.tokens + f64::from(room.running) * self.answer / 2.0
    }

    pub(super) fn used(&self, room: &Room) -> f64 {
        self.running(room) + room.weighted
    }

    /// Up to how many tokens a worker is filled.
    pub(super) fn admits(&self, capacity: Capacity) -> f64 {
        let part = if capacity.demotes { self.config.admit_demoting } else { self.config.admit };
        float(capacity.resident) * part
    }

    /// What running turns may take of a worker.
    pub(super) fn running_max(&self, room: &Room) -> f64 {
        room.capacity.map_or(f64::INFINITY, |capacity| {
            let below = capacity.resident > capacity.device;
            float(capacity.device) * if below { self.config.running_max } else { self.config.pause }
        })
    }

    /// Whether a turn may run beside those that do. One that is alone may, however large.
    pub(super) fn may_run(&self, room: &Room, need: f64) -> bool {
        room.running == 0 || self.running(room) + need <= self.running_max(room)
    }

    pub(super) fn ask(&self, turn: &Turn) -> Ask {
        let heads = self.table.program(turn.slot).map_or_else(|| Program::default().heads(), Program::heads);
        Ask { prompt: turn.prompt, heads }
    }

    /// The worker of which a turn takes the least part, and whether all have room to spare.
    pub(super) fn best(&self, turn: &Turn, ask: Ask, reserved: Option<WorkerId>) -> (Option<WorkerId>, bool) {
        let mut roomy = reserved.is_none();
        let mut best: Option<(f64, WorkerId)> = None;
        let mut lies = turn.lies.walk();
        for room in self.rooms.ready().filter(|room| Some(room.id) != reserved) {
            let score = self.score(room, ask, lies.at(room.id));
            let taken = |score: f64| room.capacity.map_or(0.0, |capacity| score * float(capacity.resident));
            roomy &= score.is_some_and(|score| Self::is_roomy(room, taken(score)));
            if let Some(score) = score
                && best.is_none_or(|(least, _)| score < least)
            {
                best = Some((score, room.id));
            }
        }
        (best.map(|(_, at)| at), roomy)
    }

    /// Whether routing may decide although so many tokens of a worker would be taken: of device memory, for what has to
    /// come up from lower tiers takes as long wherever it goes.
    pub(super) fn is_roomy(room: &Room, taken: f64) -> bool {
        room.capacity.is_none_or(|capacity| taken <= float(capacity.device) * ROOMY)
    }

    /// The part of a worker that would be taken if a turn went there; 1 more where idle programs would lose their places.
    /// `None` = it does not fit.
    pub(super) fn score(&self, room: &Room, ask: Ask, lies: Option<u64>) -> Option<f64> {
        // Where nothing is known of its room, its running turns stand for it.
        let Some(capacity) = room.capacity else { return Some(f64::from(room.running) * 1e-3) };
        let (used, need) = (self.used(room), self.need(ask, room.id, lies));
        if !self.may_run(room, need) {
            return None;
        }
        let missing = float(ask.prompt.saturating_sub(lies.unwrap_or(0)));
        let score = (used + need + missing) / float(capacity.resident);
        let lacks = used + need - self.admits(capacity);
        if lacks <= 0.0 {
            return Some(score);
        }
        let gives = if Self::is_alone(room, need, self.admits(capacity)) {
            room.list.is_empty() || room.weighted >= used
        } else {
            room.giving >= lacks
        };
        // Taking a place costs somebody something.
        gives.then_some(score + 1.0)
    }

    /// Whether a turn is let in because nothing else runs there, too large as it is.
    pub(super) fn is_alone(room: &Room, need: f64, admits: f64) -> bool {
        room.running == 0 && need > admits
    }

    /// How a turn fits at a worker.
    pub(super) fn fit(&self, ask: Ask, at: WorkerId, lies: Option<u64>) -> Option<Fit> {
        let room = self.rooms.get(at)?;
        self.score(room, ask, lies)?;
        let Some(capacity) = room.capacity else { return Some(Fit::free(Placement::Prefer(at))) };
        let (used, need, admits) = (self.used(room), self.need(ask, at, lies), self.admits(capacity));
        let alone = Self::is_alone(room, need, admits);
        let bound = if alone { f64::INFINITY } else { self.config.give_way };
        let list = room.list.iter().filter(|idle| idle.weight < bound);
        let victims = enough(list, if alone { used } else { used + need - admits });
        Some(Fit { placement: Placement::Pin(at), victims })
    }

    pub(super) fn bound(&self) -> Bound {
        let mut bound = Bound { most: f64::NEG_INFINITY, at: None, second: f64::NEG_INFINITY };
        for room in self.rooms.ready() {
            let free = self.free(room);
            if free > bound.most {
                bound = Bound { most: free, at: Some(room.id), second: bound.most };
            } else {
                bound.second = bound.second.max(free);
            }
        }
        bound
    }

    /// Whether a turn that waits fits nowhere, by bounds: at the two workers that hold most of its prompt, and at any
    /// other.
    pub(super) fn is_hopeless(&self, id: TurnId, bound: Bound, reserved: Option<WorkerId>) -> bool {
        let Some(turn) = self.table.turn(id) else { return true };
        if self.table.program(turn.slot).is_some_and(|program| program.active) {
            return false;
        }
        // Sums are taken in another order than where it counts.
        const ROUNDING: f64 = 1.0;
        let fits =
            |lies: u64, free: f64| float(turn.prompt.saturating_sub(lies)) + self.answer <= free + ROUNDING;
        let deepest = turn.lies.deepest.into_iter().flatten().filter(|(at, _)| Some(*at) != reserved);
        let mut rooms =
            deepest.filter_map(|(at, lies)| Some((lies, self.rooms.get(at).filter(|room| room.ready)?)));
        let most = if bound.at == reserved { bound.second } else { bound.most };
        !fits(turn.lies.others, most) && !rooms.any(|(lies, room)| fits(lies, self.free(room)))
    }

    /// Where a turn fits at the least cost for idle programs that have had their turns, and that cost in seconds.
    pub(super) fn cheapest(&self, id: TurnId) -> Option<(f64, Fit)> {
        let turn = self.table.turn(id)?;
        let (ask, mut lies) = (self.ask(turn), turn.lies.walk());
        // Workers with what they lack, those first that could cost least.
        let mut could: Vec<(f64, f64, &Room)> = Vec::new();
        for room in self.rooms.ready() {
            let (need, Some(capacity)) = (self.need(ask, room.id, lies.at(room.id)), room.capacity) else {
                continue;
            };
            let lacks = self.used(room) + need - self.admits(capacity);
            if self.may_run(room, need) && room.served >= lacks {
                could.push((lacks.max(0.0) / self.rate.fastest() * COST, lacks, room));
            }
        }
        could.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.2.id.cmp(&b.2.id)));
        let mut best: Option<(f64, WorkerId, Vec<Slot>)> = None;
        for (least, lacks, room) in could {
            if best.as_ref().is_some_and(|(cost, _, _)| least > *cost) {
                break;
            }
            let mut left = lacks;
            let victims = fewest(room.list.iter().filter(|idle| idle.served), &mut left);
            let lost = |slot: &Slot| {
                let found = room.list.iter().find(|idle| idle.slot == *slot);
                found.map_or(0.0, |idle| idle.weight * self.rate.seconds(idle.tokens))
            };
            let cost = victims.iter().map(lost).sum::<f64>() * COST;
            let better = |(least, at, _): &(f64, WorkerId, Vec<Slot>)| (cost, room.id) < (*least, *at);
            if left <= 0.0 && best.as_ref().is_none_or(better) {
                best = Some((cost, room.id, victims));
            }
        }
        best.map(|(cost, at, victims)| (cost, Fit { placement: Placement::Pin(at), victims }))
    }
}

/// The first of those listed that free enough together, or all of them.
fn enough<'a>(list: impl Iterator<Item = &'a Weighed>, lacks: f64) -> Vec<Slot> {
    let (mut left, mut taken) = (lacks, Vec::new());
    for idle in list {
        if left <= 0.0 {
            break;
        }
        left -= idle.counts();
        taken.push(idle.slot);
    }
    taken
}

/// The smallest that free enough together, or all of them. What is left over when they do not suffice stays in `lacks`.
pub(super) fn smallest<'a>(list: impl Iterator<Item = &'a Weighed>, lacks: &mut f64) -> Vec<Slot> {
    let mut rest: Vec<&Weighed> = list.collect();
    rest.sort_unstable_by_key(|idle| (idle.tokens, idle.slot));
    let mut taken = Vec::new();
    for idle in rest {
        if *lacks <= 0.0 {
            break;
        }
        *lacks -= idle.counts();
        taken.push(idle.slot);
    }
    taken
}

/// Those who free enough with the least to spare: one where one suffices, else the largest and so on. What is left over
/// when all of them do not suffice stays in `lacks`.
fn fewest<'a>(list: impl Iterator<Item = &'a Weighed>, lacks: &mut f64) -> Vec<Slot> {
    let mut rest: Vec<(f64, Slot)> = list.map(|idle| (idle.counts(), idle.slot)).collect();
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
