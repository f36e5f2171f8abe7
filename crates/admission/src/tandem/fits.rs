//! Where turns fit, and what that takes.
//!
//! - Everything is compared over all workers at once, in time in proportion to them; rooms must be up to date.

use tandem_types::{TurnId, WorkerId};

use super::{COST, Tandem};
use crate::contract::Placement;
use crate::gauges::{Asked, least};
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

/// Memory for a comparison of the fleet, kept for the next one: of each worker what it says of a turn.
#[derive(Debug, Default)]
pub(super) struct Work {
    lies: Vec<f64>,
    scores: Vec<f64>,
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
        float(ask.need(at, lies)) + self.learned.answer
    }

    pub(super) fn ask(&self, turn: &Turn) -> Ask {
        let heads = self.table.program(turn.slot).map_or_else(|| Program::default().heads(), Program::heads);
        Ask { prompt: turn.prompt, heads }
    }

    /// What a turn asks of each worker. Whole numbers below 2^52: as exact as [`Ask::need`].
    fn asked(&self, turn: &Turn, ask: Ask) -> Asked {
        let at_home = |home| Some((self.rooms.find(home)?, self.need(ask, home, turn.lies.at(home))));
        Asked {
            prompt: float(ask.prompt),
            others: float(ask.heads.elsewhere()),
            answer: self.learned.answer,
            home: ask.heads.home().and_then(at_home),
        }
    }

    /// Workers where a turn is not to go: those that failed it, unless no other is ready.
    pub(super) fn avoided<'a>(&self, turn: &'a Turn) -> &'a [WorkerId] {
        let failed = turn.failed_on.as_slice();
        let mut workers = self.rooms.ids().iter().zip(self.rooms.gauges().rows());
        let others = failed.is_empty() || workers.any(|(id, gauge)| gauge.is_ready() && !failed.contains(id));
        if others { failed } else { &[] }
    }

    /// The worker of which a turn takes the least part, and whether all have room to spare.
    pub(super) fn best(
        &self,
        turn: &Turn,
        ask: Ask,
        reserved: Option<WorkerId>,
        Work { lies, scores }: &mut Work,
    ) -> (Option<WorkerId>, bool) {
        turn.lies.each(self.rooms.ids(), lies);
        let asked = self.asked(turn, ask);
        let roomy = self.rooms.gauges().scores(&asked, lies, scores);
        let reserved = reserved.and_then(|reserved| self.rooms.find(reserved));
        let kept = self.avoided(turn).iter().filter_map(|avoided| self.rooms.find(*avoided)).chain(reserved);
        for at in kept {
            if let Some(score) = scores.get_mut(at) {
                *score = f64::INFINITY;
            }
        }
        let best = first_least(scores).and_then(|at| self.rooms.ids().get(at).copied());
        (best, roomy && reserved.is_none())
    }

    /// How a turn fits at a worker.
    pub(super) fn fit(&self, ask: Ask, at: WorkerId, lies: Option<u64>) -> Option<Fit> {
        let (room, gauge) = (self.rooms.get(at)?, self.rooms.gauge(at)?);
        let need = self.need(ask, at, lies);
        let missing = float(ask.prompt.saturating_sub(lies.unwrap_or(0)));
        if gauge.score(self.learned.answer, need, missing) >= f64::INFINITY {
            return None;
        }
        if !gauge.is_told() {
            return Some(Fit::free(Placement::Prefer(at)));
        }
        let used = gauge.used(self.learned.answer);
        let alone = gauge.is_alone(need);
        let bound = if alone { f64::INFINITY } else { self.config.give_way };
        let list = room.list.iter().filter(|idle| idle.weight < bound);
        let victims = enough(list, if alone { used } else { used + need - gauge.admits });
        Some(Fit { placement: Placement::Pin(at), victims })
    }

    /// The worker with most room that is not taken, among those where a turn may go.
    pub(super) fn most_room(&self, turn: &Turn) -> Option<WorkerId> {
        let avoided = self.avoided(turn);
        let mut best: Option<(f64, WorkerId)> = None;
        let gauges = self.rooms.gauges().rows().zip(self.rooms.ids());
        for (gauge, at) in
            gauges.filter(|(gauge, at)| gauge.is_ready() && gauge.is_told() && !avoided.contains(at))
        {
            let free = gauge.admits - gauge.used(self.learned.answer);
            if best.is_none_or(|(most, _)| free > most) {
                best = Some((free, *at));
            }
        }
        best.map(|(_, at)| at)
    }

    pub(super) fn bound(&self) -> Bound {
        let (most, place, second) = self.rooms.gauges().most_free(self.learned.answer);
        Bound { most, at: place.and_then(|at| self.rooms.ids().get(at).copied()), second }
    }

    /// Whether a turn that waits fits nowhere, by bounds: at the two workers that hold most of its prompt, and at any
    /// other.
    pub(super) fn is_hopeless(
        &self,
        turn: &Turn,
        program: &Program,
        bound: Bound,
        reserved: Option<WorkerId>,
    ) -> bool {
        if program.active {
            return false;
        }
        // Sums are taken in another order than where it counts.
        const ROUNDING: f64 = 1.0;
        let heads = program.heads();
        let fits = |head: u64, free: f64| {
            float(turn.prompt.saturating_sub(head)) + self.learned.answer <= free + ROUNDING
        };
        let most = if bound.at == reserved { bound.second } else { bound.most };
        let mut deepest = turn.lies.deepest.into_iter().flatten().filter(|(at, _)| Some(*at) != reserved);
        let mut fits_deepest = || {
            deepest.any(|(at, lies)| {
                let head = heads.at(at, Some(lies));
                // Where it would not fit into the most that is free, nobody has to be looked up.
                let gauge = Some(at).filter(|_| fits(head, most)).and_then(|at| self.rooms.gauge(at));
                gauge.is_some_and(|gauge| fits(head, gauge.free(self.learned.answer)))
            })
        };
        !fits(heads.anywhere(turn.lies.others), most) && !fits_deepest()
    }

    /// Where a turn fits at the least cost for idle programs that have had their turns, and that cost in seconds.
    pub(super) fn cheapest(&self, id: TurnId, Work { lies, .. }: &mut Work) -> Option<(f64, Fit)> {
        let turn = self.table.turn(id)?;
        // Workers with what they lack, those first that could cost least.
        let mut could: Vec<(f64, f64, &Room)> = Vec::new();
        turn.lies.each(self.rooms.ids(), lies);
        let asked = self.asked(turn, self.ask(turn));
        let avoided = self.avoided(turn);
        let gauges = self.rooms.gauges().rows().enumerate().zip(self.rooms.all()).zip(lies);
        for (((at, gauge), room), lies) in gauges {
            let need = asked.need(at, *lies);
            let lacks = gauge.used(asked.answer) + need - gauge.admits;
            let may = gauge.is_ready() && gauge.is_told() && gauge.may_run(asked.answer, need);
            if may && gauge.served >= lacks && !avoided.contains(&room.id) {
                could.push((lacks.max(0.0) / self.learned.rate.fastest() * COST, lacks, room));
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
                found.map_or(0.0, |idle| idle.weight * self.learned.rate.seconds(idle.tokens))
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

/// The place of the least of some numbers, the first among equals, if one is finite.
fn first_least(numbers: &[f64]) -> Option<usize> {
    // Four at once: each step waits for the one before.
    let (fours, rest) = numbers.as_chunks::<4>();
    let lanes = fours
        .iter()
        .fold([f64::INFINITY; 4], |lanes, four| std::array::from_fn(|at| least(lanes[at], four[at])));
    let smallest = rest.iter().copied().chain(lanes).fold(f64::INFINITY, least);
    numbers.iter().position(|number| *number <= smallest).filter(|_| smallest < f64::INFINITY)
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
