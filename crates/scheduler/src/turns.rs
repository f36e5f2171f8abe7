//! The turns that are not over, and which of them a repeated call would replace.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tandem_types::{ProgramKey, RetryKey, Time, TurnId, WorkerId};

use crate::contract::TurnArrival;
use crate::gate::Pass;

/// Where a turn is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Just arrived or just failed: inside one call of the scheduler only.
    Placing,
    /// In the hold queue.
    Held {
        /// Since when.
        since: Time,
    },
    /// At a worker.
    Running {
        /// The one that answers.
        worker: WorkerId,
        /// The one that computes the prompt for it, until that is done.
        prefill: Option<WorkerId>,
        /// Since when.
        since: Time,
        /// The engine's response head is there.
        started: bool,
        /// The client has bytes of the answer.
        answering: bool,
    },
}

#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) arrival: TurnArrival,
    /// Place in the order of arrival.
    pub(crate) order: u64,
    /// When it came, or would have without the connections on which it waited before.
    pub(crate) came: Time,
    /// When its client gives up waiting.
    pub(crate) deadline: Time,
    pub(crate) phase: Phase,
    pub(crate) pass: Pass,
    pub(crate) attempts: u32,
    /// Workers that failed it.
    pub(crate) failed_on: Vec<WorkerId>,
    /// Counted among the live turns of its program.
    pub(crate) tracked: bool,
    /// Time spent in the queue so far.
    pub(crate) waited: Duration,
    /// What it counts for in its worker's queued prefill: tokens, 0 once its first token is out.
    pub(crate) queued_prefill: u64,
}

impl Turn {
    /// Takes the turn out of the queue's time keeping.
    pub(crate) fn stop_waiting(&mut self, now: Time) {
        if let Phase::Held { since } = self.phase {
            self.waited = self.waited.saturating_add(now.since(since));
            self.phase = Phase::Placing;
        }
    }

    /// Whether some workers that would do for others of its model will not do for it. `tainted` = some worker has
    /// a taint.
    pub(crate) const fn is_choosy(&self, tainted: bool) -> bool {
        tainted || !self.failed_on.is_empty() || !self.arrival.wishes.require.is_empty()
    }

    /// The program whose live turns it counts among.
    pub(crate) fn tracked_program(&self) -> Option<&ProgramKey> {
        self.arrival.program.as_ref().filter(|_| self.tracked)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// In memory of their own: nodes of the tree are half empty, and a turn is large.
    by_id: BTreeMap<TurnId, Box<Turn>>,
    /// Turns that a repeated call would replace. Looked up only, never walked.
    unanswered: HashMap<(ProgramKey, RetryKey), TurnId>,
    orders: u64,
    highest: Option<TurnId>,
}

impl Turns {
    pub(crate) fn get(&self, id: TurnId) -> Option<&Turn> {
        self.by_id.get(&id).map(Box::as_ref)
    }

    pub(crate) fn get_mut(&mut self, id: TurnId) -> Option<&mut Turn> {
        self.by_id.get_mut(&id).map(Box::as_mut)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (TurnId, &Turn)> {
        self.by_id.iter().map(|(&id, turn)| (id, turn.as_ref()))
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether the id belongs to a turn that is over, as far as ids in order of arrival tell.
    pub(crate) fn is_past(&self, id: TurnId) -> bool {
        self.highest.is_some_and(|highest| id <= highest) && !self.by_id.contains_key(&id)
    }

    /// The next place in the order of arrival.
    pub(crate) const fn next_order(&mut self) -> u64 {
        self.orders += 1;
        self.orders
    }

    /// The turn that `arrival` repeats.
    pub(crate) fn repeated_by(&self, arrival: &TurnArrival) -> Option<TurnId> {
        self.unanswered.get(&retry_id(arrival)?).copied()
    }

    pub(crate) fn insert(&mut self, turn: Turn) {
        let id = turn.arrival.turn;
        self.highest = self.highest.max(Some(id));
        if let Some(key) = retry_id(&turn.arrival) {
            self.unanswered.insert(key, id);
        }
        self.by_id.insert(id, Box::new(turn));
    }

    /// The turn's answer began: an equal call is a new turn from here on.
    pub(crate) fn answer_began(&mut self, id: TurnId) {
        let Some(key) = self.by_id.get(&id).and_then(|turn| retry_id(&turn.arrival)) else { return };
        if self.unanswered.get(&key) == Some(&id) {
            self.unanswered.remove(&key);
        }
    }

    pub(crate) fn remove(&mut self, id: TurnId) -> Option<Box<Turn>> {
        self.answer_began(id);
        self.by_id.remove(&id)
    }

    /// Checks that exactly the unanswered turns can be replaced, each by its own key.
    pub(crate) fn is_sound(&self) -> bool {
        let mut replaceable = 0_usize;
        for (id, turn) in &self.by_id {
            let Some(key) = retry_id(&turn.arrival) else { continue };
            let answering = matches!(turn.phase, Phase::Running { answering: true, .. });
            if (self.unanswered.get(&key) == Some(id)) == answering {
                return false;
            }
            replaceable += usize::from(!answering);
        }
        replaceable == self.unanswered.len()
    }
}

fn retry_id(arrival: &TurnArrival) -> Option<(ProgramKey, RetryKey)> {
    Some((arrival.program.clone()?, arrival.retry_key?))
}
