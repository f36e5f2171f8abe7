//! `random`: any worker, drawn evenly.

use crate::{Choice, Fleet, Reason, Rng, RoutePolicy, RouteTurn};

/// The policy.
#[derive(Debug)]
pub struct Random;

impl RoutePolicy for Random {
    fn name(&self) -> &'static str {
        "random"
    }

    fn choose(&mut self, _turn: &RouteTurn<'_>, fleet: &dyn Fleet, rng: &mut Rng) -> Option<Choice> {
        let mut all = Vec::new();
        fleet.all(&mut all);
        for candidate in &mut all {
            (candidate.load, candidate.cold) = (0, false);
        }
        let chosen = *all.get(rng.index(all.len()))?;
        Some(Choice::among(chosen, Reason::Random, &all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Workers;

    #[test]
    fn draws_evenly_and_the_same_for_the_same_seed() {
        let fleet = Workers::new(&[(0, 100), (1, 0), (2, 0), (3, 7)]);
        let draw = |seed| -> Vec<u32> {
            let mut rng = Rng::new(seed);
            (0..4000)
                .filter_map(|_| Random.choose(&RouteTurn::default(), &fleet, &mut rng))
                .map(|c| c.worker.engine.0)
                .collect()
        };
        let drawn = draw(3);
        for engine in 0..4 {
            let n = drawn.iter().filter(|&&e| e == engine).count();
            assert!((850..1150).contains(&n), "worker {engine} drawn {n} times of 4000");
        }
        assert_eq!(drawn, draw(3));
        assert_ne!(drawn, draw(4));
    }
}
