//! `least_load`: the worker with the fewest requests.
//!
//! - I-LL-1 no worker with a lower load exists than the chosen one; loading the turn's adapter counts as load.
//! - Equals are drawn at random, so that an idle fleet does not always start with the same worker.
//! - Deliberately absent: sessions. With several routers in front of one fleet prefer `power_of_two`: they would
//!   all see, and all pick, the same lightest worker.

use crate::{Candidate, Choice, Fleet, Reason, Rng, RoutePolicy, RouteTurn};

/// The policy.
#[derive(Debug)]
pub struct LeastLoad;

impl RoutePolicy for LeastLoad {
    fn name(&self) -> &'static str {
        "least_load"
    }

    fn choose(&mut self, _turn: &RouteTurn<'_>, fleet: &dyn Fleet, rng: &mut Rng) -> Option<Choice> {
        let mut all = Vec::new();
        fleet.all(&mut all);
        let least = all.iter().map(Candidate::burden).min()?;
        let equals = all.iter().filter(|c| c.burden() == least).count();
        let drawn = rng.index(equals);
        let chosen = *all.iter().filter(|c| c.burden() == least).nth(drawn)?;
        Some(Choice::among(chosen, Reason::LeastLoad, &all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Workers, assert_an_adapter_counts_as_load, worker};

    /// I-LL-1.
    #[test]
    fn takes_the_lightest_and_draws_among_equals() {
        let fleet = Workers::new(&[(0, 3), (1, 1), (2, 1), (3, 2)]);
        let mut rng = Rng::new(1);
        let mut seen = [false; 4];
        for _ in 0..64 {
            let choice = LeastLoad.choose(&RouteTurn::default(), &fleet, &mut rng).expect("not empty");
            assert_eq!(choice.compared, 4);
            seen[choice.worker.engine.0 as usize] = true;
        }
        assert_eq!(seen, [false, true, true, false]);
    }

    /// I-LL-1: an adapter to load counts as four requests.
    #[test]
    fn a_worker_that_lacks_the_adapter_is_left_for_one_that_is_a_little_busier() {
        assert_an_adapter_counts_as_load(&mut LeastLoad);
    }

    #[test]
    fn scores_are_the_loads_with_the_chosen_worker_first() {
        let fleet = Workers::new(&[(0, 3), (1, 1)]);
        let choice = LeastLoad.choose(&RouteTurn::default(), &fleet, &mut Rng::new(1)).expect("not empty");
        assert_eq!(choice.scores, [(worker(1), 1.0), (worker(0), 3.0)]);
    }
}
