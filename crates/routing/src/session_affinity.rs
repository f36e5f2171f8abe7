//! `session_affinity`: a program goes where it ran last. The default.
//!
//! - Purpose: an agent sends its whole history again each turn; the worker that computed it last still has its
//!   beginning in its KV cache, any other would compute it anew.
//! - Input: the program's last worker (home), its parent's last worker. Order: home, else the parent's worker
//!   (a subagent shares part of its parent's prompt), else two random choices.
//! - I-AFF-1 home is taken whenever it may take the turn and
//!   `load(home) <= load(lightest) * HOME_FACTOR + HOME_SLACK`.
//! - I-AFF-2 a new child takes its parent's worker whenever that may take the turn and
//!   `load(parent's) <= load(lightest) + CHILD_SLACK`: a fan-out of many children spreads.
//! - I-AFF-3 affinity never makes a turn wait: a worker that is down, full or behind an open breaker is left, and
//!   the new worker becomes home.
//! - I-AFF-4 deciding for a program that stays home looks at two workers, however many there are.
//! - Deliberately absent: what really is in the caches. That is known only with KV events.
//! - Sources of the constants: 1.5 is the relative imbalance at which SMG 1.x leaves its cache-aware choice
//!   (`balance-rel-threshold`); its absolute companion of 64 suits fleets with hundreds of running requests per
//!   worker, ours of 16 also small ones. Children get less slack, since measured harnesses share only the first
//!   few tools or a system text between parent and child.

use tandem_types::WorkerId;

use crate::{Candidate, Choice, Fleet, Reason, Rng, RoutePolicy, RouteTurn, power_of_two};

/// Home may have this many times (numerator, denominator) the lightest worker's load ...
pub const HOME_FACTOR: (u64, u64) = (3, 2);

/// ... and this many requests more.
pub const HOME_SLACK: u64 = 16;

/// A parent's worker may have this many requests more than the lightest to get a new child.
pub const CHILD_SLACK: u64 = 4;

/// The policy.
#[derive(Debug)]
pub struct SessionAffinity;

impl RoutePolicy for SessionAffinity {
    fn name(&self) -> &'static str {
        "session_affinity"
    }

    fn choose(&mut self, turn: &RouteTurn<'_>, fleet: &dyn Fleet, rng: &mut Rng) -> Option<Choice> {
        let lightest = fleet.lightest()?;
        let home_limit =
            (lightest.load.saturating_mul(HOME_FACTOR.0) / HOME_FACTOR.1).saturating_add(HOME_SLACK);
        let child_limit = lightest.load.saturating_add(CHILD_SLACK);
        let wish = match (turn.home, turn.parent_home) {
            (Some(home), _) => stay(fleet, home, home_limit, Reason::Affinity),
            (None, Some(parent)) => stay(fleet, parent, child_limit, Reason::ParentAffinity),
            (None, None) => Err(Reason::PowerOfTwo),
        };
        match wish {
            Ok((worker, reason)) => Some(Choice::among(worker, reason, &[lightest])),
            Err(reason) => power_of_two::draw(fleet, reason, rng),
        }
    }
}

fn stay(
    fleet: &dyn Fleet,
    worker: WorkerId,
    limit: u64,
    reason: Reason,
) -> Result<(Candidate, Reason), Reason> {
    let wished = fleet.get(worker).ok_or(Reason::HomeUnavailable)?;
    if wished.load <= limit { Ok((wished, reason)) } else { Err(Reason::HomeOverloaded) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Workers, worker};

    fn choose(home: Option<u32>, parent: Option<u32>, loads: &[(u32, u64)]) -> (u32, Reason) {
        let turn =
            RouteTurn { home: home.map(worker), parent_home: parent.map(worker), ..RouteTurn::default() };
        let choice =
            SessionAffinity.choose(&turn, &Workers::new(loads), &mut Rng::new(2)).expect("not empty");
        (choice.worker.engine.0, choice.reason)
    }

    /// I-AFF-1.
    #[test]
    fn a_program_stays_until_its_worker_is_far_above_the_lightest() {
        // Limit with the lightest at 4: 4 * 1.5 + 16 = 22.
        assert_eq!(choose(Some(1), None, &[(0, 4), (1, 22)]), (1, Reason::Affinity));
        assert_eq!(choose(Some(1), None, &[(0, 4), (1, 23)]), (0, Reason::HomeOverloaded));
        // The home wins over the parent's worker.
        assert_eq!(choose(Some(1), Some(0), &[(0, 0), (1, 9)]), (1, Reason::Affinity));
    }

    /// I-AFF-2.
    #[test]
    fn a_new_child_joins_its_parent_with_less_slack() {
        assert_eq!(choose(None, Some(1), &[(0, 3), (1, 7)]), (1, Reason::ParentAffinity));
        assert_eq!(choose(None, Some(1), &[(0, 3), (1, 8)]), (0, Reason::HomeOverloaded));
    }

    /// I-AFF-3.
    #[test]
    fn a_worker_that_may_not_take_the_turn_is_left_at_once() {
        assert_eq!(choose(Some(7), None, &[(0, 50)]), (0, Reason::HomeUnavailable));
        assert_eq!(choose(None, Some(7), &[(0, 50)]), (0, Reason::HomeUnavailable));
    }

    #[test]
    fn without_identity_two_choices_decide() {
        assert_eq!(choose(None, None, &[(0, 5), (1, 0)]), (1, Reason::PowerOfTwo));
    }

    /// I-AFF-4.
    #[test]
    fn staying_home_asks_for_no_scan_of_the_fleet() {
        let fleet = Workers::new(&[(0, 0), (1, 1), (2, 0)]).without_scan();
        let turn = RouteTurn { home: Some(worker(1)), ..RouteTurn::default() };
        let choice = SessionAffinity.choose(&turn, &fleet, &mut Rng::new(2)).expect("not empty");
        assert_eq!(choice.scores, [(worker(1), 1.0), (worker(0), 0.0)]);
        assert_eq!(choice.compared, 2);
    }
}
