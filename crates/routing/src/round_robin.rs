//! `round_robin`: each worker in turn.
//!
//! - I-RR-1 the next worker is the one with the lowest id above the last one chosen, or the lowest of all: a
//!   worker that joins, leaves or is full for a while neither gets two turns in a row nor shifts the others.
//! - Deliberately absent: loads and sessions.

use tandem_types::WorkerId;

use crate::{Candidate, Choice, Fleet, Reason, Rng, RoutePolicy, RouteTurn};

/// The policy.
#[derive(Debug, Default)]
pub struct RoundRobin {
    last: Option<WorkerId>,
}

impl RoutePolicy for RoundRobin {
    fn name(&self) -> &'static str {
        "round_robin"
    }

    fn choose(&mut self, _turn: &RouteTurn<'_>, fleet: &dyn Fleet, _rng: &mut Rng) -> Option<Choice> {
        let mut all = Vec::new();
        fleet.all(&mut all);
        for candidate in &mut all {
            candidate.load = 0;
        }
        let next = all.partition_point(|c| self.last.is_some_and(|last| c.worker <= last));
        let chosen: Candidate = *all.get(next).or_else(|| all.first())?;
        self.last = Some(chosen.worker);
        Some(Choice::among(chosen, Reason::RoundRobin, &all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Workers, worker};

    /// I-RR-1.
    #[test]
    fn goes_round_whatever_the_loads_and_survives_changes_of_the_fleet() {
        let mut policy = RoundRobin::default();
        let mut rng = Rng::new(0);
        let mut next = |workers: &[(u32, u64)]| {
            policy.choose(&RouteTurn::default(), &Workers::new(workers), &mut rng).expect("not empty").worker
        };
        let three = [(0, 9), (1, 0), (2, 5)];
        assert_eq!([next(&three), next(&three), next(&three), next(&three)], [0, 1, 2, 0].map(worker));
        // Worker 1 leaves, worker 3 joins: the round goes on after 0.
        let changed = [(0, 0), (2, 0), (3, 0)];
        assert_eq!([next(&changed), next(&changed), next(&changed)], [2, 3, 0].map(worker));
    }
}
