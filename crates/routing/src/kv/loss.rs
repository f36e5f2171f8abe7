//! How much of their KV programs lately found lost when they came home.
//!
//! - Input: the match of each turn whose program has a home of which the index knows. Output: the mean part that was
//!   lost, over the fleet, recent turns counting more; 0 before anybody came home.

use super::cost::found_at;
use crate::RouteTurn;
use crate::columns::float;

/// Part of the distance to a new observation that the mean goes: about the last hundred turns count.
const STEP: f64 = 1.0 / 64.0;

/// So much is lost in a fleet that has room too: pools fill unevenly, and there a move to one with room helps.
const TOLERATED: f64 = 0.2;

/// The mean part lost.
#[derive(Debug)]
pub(super) struct Loss {
    mean: f64,
}

impl Loss {
    pub(super) const fn new() -> Self {
        Self { mean: 0.0 }
    }

    /// Learns from a program that comes home.
    pub(super) fn learn(&mut self, turn: &RouteTurn<'_>) {
        let Some((home, had)) = turn.home.zip(turn.program_tokens) else { return };
        let Some((found, whole)) = found_at(turn, home) else { return };
        // Of what it had, only whole blocks of the prompt can be there.
        let had = had.min(whole);
        if had > 0 {
            let lost = 1.0 - (float(found) / float(had)).min(1.0);
            self.mean += (lost - self.mean) * STEP;
        }
    }

    /// The mean part lost beyond what is tolerated, 0 to 1.
    pub(super) fn excess(&self) -> f64 {
        (self.mean - TOLERATED).max(0.0)
    }
}
