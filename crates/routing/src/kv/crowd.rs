//! How the fleet's programs lie, and what a worker's share of them costs one more.

use super::cost::prompt_tokens;
use crate::RouteTurn;
use crate::columns::{Columns, Row, float};

/// Part of its KV pool that a worker's programs may take before it counts as overfull: the rest is for answers under
/// way and for what they add.
const ROOM: f64 = 0.95;

/// From there on the cost of overfull workers rises to the whole over this part of the pool: a pool that is taken by
/// programs in turn drops, least recently used first, just what is needed next, so little too much loses nearly all.
const OVERFULL_SLOPE: f64 = 0.1;

/// Mean part of their pools, that of the newcomer included, at which a fleet is overfull as a whole.
const GATHER_FROM: f64 = 1.0;

/// How much more the share counts for a program that is placed for the first time, since its prompt grows several times
/// over, and for one that is about to leave an overfull home. Twice over while newcomers are gathered, where queues are
/// longest.
const FOR_LIFE: f64 = 4.0;

/// How the fleet's programs lie.
#[derive(Debug, Clone, Copy)]
pub(super) struct Crowd {
    /// Mean KV capacity of the candidates that tell one; 1 when none does.
    capacity: f64,
    /// Mean share of the candidates, the program included.
    pub(super) mean: f64,
    /// The program's own tokens.
    pub(super) own: f64,
    /// It is placed for the first time, and for its life.
    first: bool,
    /// Its home's programs have outgrown the KV pool.
    leaves: bool,
    /// Most shares of the mean that a worker may have to be given one more; `None` = newcomers go where most room is.
    gather: Option<f64>,
    /// Part of programs' tokens that no other program has.
    alone: f64,
}

/// How the share of a worker's programs is counted.
#[derive(Debug, Clone, Copy)]
pub(super) enum Manner {
    /// Newcomers go to the fullest workers with at most so many shares of the mean.
    Gather(f64),
    /// For the program's life.
    ForLife,
    /// For one turn of a program whose home is overfull.
    Leaves,
    /// For one turn.
    ForTurn,
}

/// How the fleet's programs lie, for a turn of a program.
pub(super) fn crowd(
    turn: &RouteTurn<'_>,
    home: Option<Row>,
    candidates: &Columns<'_>,
    gather: f64,
    common: f64,
) -> Option<Crowd> {
    let own = float(turn.program_tokens?.max(prompt_tokens(turn)));
    // Four at once: each step waits for the one before. Whole numbers below 2^52 add up to the same in any order.
    let (fours, rest) = candidates.capacity.as_chunks::<4>();
    let sums = fours.iter().fold([0.0; 4], |sums, four| std::array::from_fn(|at| sums[at] + four[at]));
    let sum: f64 = rest.iter().chain(&sums).sum();
    let told = candidates.capacity.iter().filter(|tokens| **tokens > 0.0).count();
    let count = float(u64::try_from(told).unwrap_or(u64::MAX));
    let capacity = if count > 0.0 { sum / count } else { 1.0 };
    // A program that is placed for the first time goes where there is room for its life. One whose KV is somewhere,
    // or whose parent's is, leaves that for one prompt's worth at most.
    let first = home.is_none() && turn.parent_home.is_none();
    let mut crowd =
        Crowd { capacity, mean: 0.0, own, first, leaves: false, gather: None, alone: 1.0 - common };
    let held = crowd.held(candidates);
    let joining = if home.is_some() { 0.0 } else { own / capacity };
    crowd.mean = (held + joining) / float(u64::try_from(candidates.len()).unwrap_or(u64::MAX)).max(1.0);
    crowd.leaves = home.is_some_and(|home| crowd.overfull(home, true) > 0.0);
    let full = count > 0.0 && crowd.mean * crowd.alone > GATHER_FROM;
    crowd.gather = (first && full && gather > 0.0).then_some(gather);
    Some(crowd)
}

impl Crowd {
    /// Tokens of programs by the capacity of the worker that they are at home at.
    #[inline]
    pub(super) fn share(&self, tokens: f64, capacity: f64) -> f64 {
        tokens / if capacity > 0.0 { capacity } else { self.capacity }
    }

    /// The sum of all candidates' shares, one after the other by id.
    fn held(&self, candidates: &Columns<'_>) -> f64 {
        let (homes, rest) = candidates.home.as_chunks::<4>();
        let (capacities, rest_capacities) = candidates.capacity.as_chunks::<4>();
        let mut held = 0.0;
        for (home, capacity) in homes.iter().zip(capacities) {
            // Four at once: a division takes longer than the rest.
            let shares: [f64; 4] = std::array::from_fn(|at| self.share(home[at], capacity[at]));
            shares.iter().for_each(|share| held += share);
        }
        rest.iter()
            .zip(rest_capacities)
            .fold(held, |held, (&home, &capacity)| held + self.share(home, capacity))
    }

    /// Whether a worker of the largest share is not overfull.
    pub(super) fn fits_all(&self, most: f64) -> bool {
        most * self.alone <= ROOM
    }

    pub(super) fn manner(&self) -> Manner {
        match self.gather {
            Some(most) => Manner::Gather(most),
            None if self.first => Manner::ForLife,
            None if self.leaves => Manner::Leaves,
            None => Manner::ForTurn,
        }
    }

    pub(super) fn excess(&self, candidate: Row, at_home: bool) -> f64 {
        if self.mean <= 0.0 {
            return 0.0;
        }
        let shares = self.with_it(candidate, at_home) / self.mean;
        match self.manner() {
            Manner::Gather(most) => self.gathered(most, shares),
            Manner::ForLife => self.for_life(shares),
            Manner::Leaves => self.leaving(shares),
            Manner::ForTurn => self.for_turn(shares),
        }
    }

    /// Where newcomers are gathered at workers with up to `most` shares of the mean.
    #[inline]
    pub(super) fn gathered(&self, most: f64, shares: f64) -> f64 {
        // Fuller is better up to the limit, and beyond it worse than anything below.
        let beside = if shares <= most { most - shares } else { most + shares };
        // There is room all the same.
        let room = shares * self.mean * self.alone <= ROOM;
        if room { 0.0 } else { FOR_LIFE * FOR_LIFE * self.own * beside }
    }

    #[inline]
    pub(super) fn for_life(&self, shares: f64) -> f64 {
        FOR_LIFE * self.own * (shares - 1.0).max(0.0)
    }

    #[inline]
    pub(super) fn for_turn(&self, shares: f64) -> f64 {
        self.own * (shares - 1.0).clamp(0.0, 1.0)
    }

    /// The same where its home is overfull.
    #[inline]
    pub(super) fn leaving(&self, shares: f64) -> f64 {
        FOR_LIFE * self.for_turn(shares)
    }

    pub(super) fn overfull(&self, candidate: Row, at_home: bool) -> f64 {
        self.over(self.with_it(candidate, at_home), candidate.capacity)
    }

    /// The program's tokens, or a part of them where the worker's pool is a little too small for all its programs.
    #[inline]
    pub(super) fn over(&self, share: f64, capacity: f64) -> f64 {
        let over = self.own * ((share * self.alone - ROOM) / OVERFULL_SLOPE).clamp(0.0, 1.0);
        if capacity > 0.0 { over } else { 0.0 }
    }

    /// The worker's share with the program there.
    fn with_it(&self, candidate: Row, at_home: bool) -> f64 {
        self.share(candidate.home + if at_home { 0.0 } else { self.own }, candidate.capacity)
    }
}
