//! `power_of_two`: the lighter of two workers drawn at random.
//!
//! - I-P2-1 of two different workers drawn evenly, the one with the lower load; of equals, the one drawn first. One
//!   that would have to load the turn's adapter counts as busier by a few requests.
//! - Why not the lightest of all: loads of other routers in front of the same fleet are seen late, and all would
//!   herd to the same worker until the next report. Two choices bring the fullest worker from log n / log log n
//!   down to log log n (Mitzenmacher 2001) without that.
//! - Deliberately absent: sessions.

use crate::{Choice, Fleet, Reason, Rng, RoutePolicy, RouteTurn};

/// The policy.
#[derive(Debug)]
pub struct PowerOfTwo;

impl RoutePolicy for PowerOfTwo {
    fn name(&self) -> &'static str {
        "power_of_two"
    }

    fn choose(&mut self, _turn: &RouteTurn<'_>, fleet: &dyn Fleet, rng: &mut Rng) -> Option<Choice> {
        draw(fleet, Reason::PowerOfTwo, rng)
    }
}

/// Draws two and takes the lighter, for `reason`.
pub(crate) fn draw(fleet: &dyn Fleet, reason: Reason, rng: &mut Rng) -> Option<Choice> {
    let mut all = Vec::new();
    fleet.all(&mut all);
    let first = rng.index(all.len());
    let a = *all.get(first)?;
    if all.len() == 1 {
        return Some(Choice::among(a, reason, &[a]));
    }
    // A second index among the others.
    let step = 1 + rng.index(all.len() - 1);
    let b = all.get((first + step) % all.len()).copied().unwrap_or(a);
    let chosen = if b.burden() < a.burden() { b } else { a };
    Some(Choice::among(chosen, reason, &[a, b]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Workers, assert_an_adapter_counts_as_load};

    /// I-P2-1.
    #[test]
    fn never_takes_the_heaviest_and_reaches_all_others() {
        let fleet = Workers::new(&[(0, 0), (1, 5), (2, 9), (3, 2)]);
        let mut rng = Rng::new(11);
        let mut seen = [0_u32; 4];
        for _ in 0..600 {
            let choice = PowerOfTwo.choose(&RouteTurn::default(), &fleet, &mut rng).expect("not empty");
            assert_eq!(choice.scores.len(), 2);
            assert!(choice.scores[0].1 <= choice.scores[1].1);
            seen[choice.worker.engine.0 as usize] += 1;
        }
        // Of the six equally likely pairs the lightest wins three, the next two, the next one, the last none.
        assert_eq!(seen[2], 0);
        for (worker, share) in [(0, 300_u32), (3, 200), (1, 100)] {
            assert!(seen[worker].abs_diff(share) < 45, "{seen:?}");
        }
    }

    /// I-P2-1: an adapter to load counts as four requests.
    #[test]
    fn a_worker_that_lacks_the_adapter_is_left_for_one_that_is_a_little_busier() {
        assert_an_adapter_counts_as_load(&mut PowerOfTwo);
    }

    /// I-ROU-4: what was just placed counts for the next.
    #[test]
    fn two_idle_workers_share_sixteen_calls_evenly() {
        let mut loads = [(0, 0), (1, 1)];
        let mut rng = Rng::new(5);
        for _ in 0..16 {
            let fleet = Workers::new(&loads);
            let choice = PowerOfTwo.choose(&RouteTurn::default(), &fleet, &mut rng).expect("not empty");
            loads[choice.worker.engine.0 as usize].1 += 1;
        }
        assert!(loads[0].1.abs_diff(loads[1].1) <= 1, "{loads:?}");
    }
}
