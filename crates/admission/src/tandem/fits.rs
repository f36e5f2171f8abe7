//! Where turns fit, and what that takes.
//!
//! - Everything is compared over all workers at once, in time in proportion to them; rooms must be up to date.

use tandem_types::{TurnId, WorkerId};

use super::{COST, ROOMY, Tandem};
use crate::contract::Placement;
use crate::rooms::{Gauge, Room, Weighed, float};
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
        float(ask.need(at, lies)) + self.learned.answer
    }

    /// What a turn may need at most to fit at a worker, were all who may give way to do so.
    fn free(&self, gauge: &Gauge) -> f64 {
        let running = self.running(gauge);
        let free = gauge.admits - (running + gauge.weighted) + gauge.giving;
        if gauge.running > 0.0 { least(free, gauge.running_max - running) } else { f64::INFINITY }
    }

    /// Tokens that running turns will take, their growth and shared heads included.
    fn running(&self, gauge: &Gauge) -> f64 {
        gauge.tokens + gauge.running * self.learned.answer / 2.0
    }

    pub(super) fn used(&self, gauge: &Gauge) -> f64 {
        self.running(gauge) + gauge.weighted
    }

    /// Whether a turn may run beside those that do. One that is alone may, however large.
    pub(super) fn may_run(&self, gauge: &Gauge, need: f64) -> bool {
        gauge.running <= 0.0 || self.running(gauge) + need <= gauge.running_max
    }

    pub(super) fn ask(&self, turn: &Turn) -> Ask {
        let heads = self.table.program(turn.slot).map_or_else(|| Program::default().heads(), Program::heads);
        Ask { prompt: turn.prompt, heads }
    }

    /// What a turn needs at each worker, and how much of its prompt has to be computed there.
    fn asks(&self, turn: &Turn, ask: Ask) -> (Vec<f64>, Vec<f64>) {
        let lies = turn.lies.each(self.rooms.ids());
        // Whole numbers below 2^52: as exact as [`Ask::need`], and several at once.
        let (prompt, others) = (float(ask.prompt), float(ask.heads.elsewhere()));
        let need = |lies: &f64| most(prompt - least(*lies, others), 0.0) + self.learned.answer;
        let mut needs: Vec<f64> = lies.iter().map(need).collect();
        let missing = lies.iter().map(|lies| most(prompt - lies, 0.0)).collect();
        if let Some(home) = ask.heads.home()
            && let Some(at_home) = self.rooms.find(home).and_then(|at| needs.get_mut(at))
        {
            *at_home = self.need(ask, home, turn.lies.at(home));
        }
        (needs, missing)
    }

    /// The worker of which a turn takes the least part, and whether all have room to spare.
    pub(super) fn best(&self, turn: &Turn, ask: Ask, reserved: Option<WorkerId>) -> (Option<WorkerId>, bool) {
        let mut roomy = reserved.is_none();
        let mut best: Option<(f64, usize)> = None;
        let reserved = reserved.and_then(|reserved| self.rooms.find(reserved));
        let (needs, missing) = self.asks(turn, ask);
        let gauges = self.rooms.gauges().iter().enumerate();
        for ((at, gauge), (&need, &missing)) in gauges.zip(needs.iter().zip(&missing)) {
            if !gauge.ready || Some(at) == reserved {
                continue;
            }
            let score = self.score(gauge, need, missing);
            roomy &= score.is_some() && Self::is_roomy(gauge, self.used(gauge) + need + missing);
            if let Some(score) = score
                && best.is_none_or(|(least, _)| score < least)
            {
                best = Some((score, at));
            }
        }
        (best.and_then(|(_, at)| self.rooms.ids().get(at).copied()), roomy)
    }

    /// Whether routing may decide although so many tokens of a worker would be taken: of device memory, for what has to
    /// come up from lower tiers takes as long wherever it goes.
    pub(super) fn is_roomy(gauge: &Gauge, taken: f64) -> bool {
        !gauge.told || taken <= gauge.device * ROOMY
    }

    /// The part of a worker that would be taken if a turn went there; 1 more where idle programs would lose their places.
    /// `None` = it does not fit.
    #[inline]
    fn score(&self, gauge: &Gauge, need: f64, missing: f64) -> Option<f64> {
        // Where nothing is known of its room, its running turns stand for it.
        if !gauge.told {
            return Some(gauge.running * 1e-3);
        }
        let used = self.used(gauge);
        if !self.may_run(gauge, need) {
            return None;
        }
        let score = (used + need + missing) / gauge.resident;
        let lacks = used + need - gauge.admits;
        if lacks <= 0.0 {
            return Some(score);
        }
        let gives = if Self::is_alone(gauge, need) {
            !gauge.idles || gauge.weighted >= used
        } else {
            gauge.giving >= lacks
        };
        // Taking a place costs somebody something.
        gives.then_some(score + 1.0)
    }

    /// Whether a turn is let in because nothing else runs there, too large as it is.
    fn is_alone(gauge: &Gauge, need: f64) -> bool {
        gauge.running <= 0.0 && need > gauge.admits
    }

    /// How a turn fits at a worker.
    pub(super) fn fit(&self, ask: Ask, at: WorkerId, lies: Option<u64>) -> Option<Fit> {
        let (room, gauge) = (self.rooms.get(at)?, self.rooms.gauge(at)?);
        let need = self.need(ask, at, lies);
        self.score(gauge, need, float(ask.prompt.saturating_sub(lies.unwrap_or(0))))?;
        if !gauge.told {
            return Some(Fit::free(Placement::Prefer(at)));
        }
        let used = self.used(gauge);
        let alone = Self::is_alone(gauge, need);
        let bound = if alone { f64::INFINITY } else { self.config.give_way };
        let list = room.list.iter().filter(|idle| idle.weight < bound);
        let victims = enough(list, if alone { used } else { used + need - gauge.admits });
        Some(Fit { placement: Placement::Pin(at), victims })
    }

    /// The worker with most room that is not taken.
    pub(super) fn most_room(&self) -> Option<WorkerId> {
        let mut best: Option<(f64, usize)> = None;
        for (at, gauge) in
            self.rooms.gauges().iter().enumerate().filter(|(_, gauge)| gauge.ready && gauge.told)
        {
            let free = gauge.admits - self.used(gauge);
            if best.is_none_or(|(most, _)| free > most) {
                best = Some((free, at));
            }
        }
        self.rooms.ids().get(best?.1).copied()
    }

    pub(super) fn bound(&self) -> Bound {
        let (mut most, mut second, mut place) = (f64::NEG_INFINITY, f64::NEG_INFINITY, None);
        for (at, gauge) in self.rooms.gauges().iter().enumerate().filter(|(_, gauge)| gauge.ready) {
            let free = self.free(gauge);
            if free > most {
                (second, most, place) = (most, free, Some(at));
            } else if free > second {
                second = free;
            }
        }
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
                gauge.is_some_and(|gauge| gauge.ready && fits(head, self.free(gauge)))
            })
        };
        !fits(heads.anywhere(turn.lies.others), most) && !fits_deepest()
    }

    /// Where a turn fits at the least cost for idle programs that have had their turns, and that cost in seconds.
    pub(super) fn cheapest(&self, id: TurnId) -> Option<(f64, Fit)> {
        let turn = self.table.turn(id)?;
        // Workers with what they lack, those first that could cost least.
        let mut could: Vec<(f64, f64, &Room)> = Vec::new();
        let (needs, _) = self.asks(turn, self.ask(turn));
        let gauges = self.rooms.gauges().iter().zip(self.rooms.all()).zip(&needs);
        for ((gauge, room), need) in gauges.filter(|((gauge, _), _)| gauge.ready && gauge.told) {
            let lacks = self.used(gauge) + need - gauge.admits;
            if self.may_run(gauge, *need) && gauge.served >= lacks {
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

const fn least(a: f64, b: f64) -> f64 {
    if b < a { b } else { a }
}

const fn most(a: f64, b: f64) -> f64 {
    if b > a { b } else { a }
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
