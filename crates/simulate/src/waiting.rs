//! Turns that wait for a worker, and what the scheduler was told last of where their prompts lie.
//!
//! - I-WAI-1 as with a live gateway, a turn is looked up anew only while it waits, at most once a round, those that came
//!   first before others and a bounded number in all; the scheduler is told only what changed.

use std::collections::BTreeMap;
use std::time::Duration;

use tandem_types::{PrefixMatch, Time, TurnId};

/// Turns looked up in a round: the live gateway's bound.
const LOOKS_MAX: usize = 256;

/// All of them.
#[derive(Debug)]
pub(crate) struct Waiting {
    turns: BTreeMap<TurnId, PrefixMatch>,
    /// Time between two rounds; 0 = there are none.
    round: Duration,
    next: Option<Time>,
}

impl Waiting {
    pub(crate) const fn new(round: Duration) -> Self {
        Self { turns: BTreeMap::new(), round, next: None }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// When the next round is due.
    pub(crate) const fn next_look(&self) -> Option<Time> {
        self.next
    }

    /// A turn waits from now on.
    pub(crate) fn comes(&mut self, turn: TurnId, told: PrefixMatch, now: Time) {
        self.turns.insert(turn, told);
        if !self.round.is_zero() {
            self.next.get_or_insert(now + self.round);
        }
    }

    /// It waits no longer.
    pub(crate) fn leaves(&mut self, turn: TurnId) {
        self.turns.remove(&turn);
        if self.turns.is_empty() {
            self.next = None;
        }
    }

    /// The turns of a round that is due now.
    pub(crate) fn round(&mut self, now: Time) -> Vec<TurnId> {
        self.next = (!self.turns.is_empty()).then(|| now + self.round);
        self.turns.keys().take(LOOKS_MAX).copied().collect()
    }

    /// Whether what was found of a turn is new to the scheduler; it counts as told then.
    pub(crate) fn is_news(&mut self, turn: TurnId, found: &PrefixMatch) -> bool {
        let Some(told) = self.turns.get_mut(&turn) else { return false };
        let same = told.agrees(found);
        if !same {
            told.clone_from(found);
        }
        !same
    }
}

#[cfg(test)]
mod tests {
    use tandem_types::{MatchSource, WorkerPrefix};

    use super::*;
    use crate::fleet::worker;

    const ROUND: Duration = Duration::from_millis(250);

    fn found(device: u32) -> PrefixMatch {
        let held = WorkerPrefix {
            worker: worker(0),
            device,
            host: device,
            disk: device,
            source: MatchSource::Exact,
        };
        PrefixMatch {
            block_size: 64,
            blocks: 9,
            workers: [held].into_iter().collect(),
            ..PrefixMatch::unknown()
        }
    }

    /// I-WAI-1: rounds.
    #[test]
    fn rounds_come_while_a_turn_waits_and_look_at_the_first_ones() {
        let mut waiting = Waiting::new(ROUND);
        assert_eq!(waiting.next_look(), None);
        (0..300).rev().for_each(|turn| waiting.comes(TurnId(turn), found(1), Time::from_millis(turn)));
        assert_eq!(waiting.next_look(), Some(Time::from_millis(549)), "a round after who came first");
        let round: Vec<TurnId> = (0..256).map(TurnId).collect();
        assert_eq!(waiting.round(Time::from_millis(600)), round);
        assert_eq!(waiting.next_look(), Some(Time::from_millis(850)));
        (0..300).for_each(|turn| waiting.leaves(TurnId(turn)));
        assert_eq!(waiting.next_look(), None);
        let mut never = Waiting::new(Duration::ZERO);
        never.comes(TurnId(1), found(1), Time::ZERO);
        assert_eq!(never.next_look(), None);
    }

    /// I-WAI-1: news.
    #[test]
    fn only_what_changed_of_turns_that_wait_is_news() {
        let mut waiting = Waiting::new(ROUND);
        waiting.comes(TurnId(1), found(3), Time::ZERO);
        assert!(!waiting.is_news(TurnId(1), &found(3)));
        assert!(waiting.is_news(TurnId(1), &found(4)));
        assert!(!waiting.is_news(TurnId(1), &found(4)));
        assert!(!waiting.is_news(TurnId(2), &found(4)));
    }
}
