//! The last decisions, kept for explanation.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tandem_scheduler::Decision;
use tandem_types::TurnId;

use crate::respond::RequestIdentity;

/// Decisions kept.
const KEPT: usize = 4096;

/// A bounded ring of decisions, and of which request each turn was. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Decisions {
    ring: Arc<Mutex<Ring>>,
}

#[derive(Default)]
struct Ring {
    decisions: VecDeque<Arc<Decision>>,
    requests: VecDeque<(TurnId, RequestIdentity)>,
}

impl Decisions {
    fn ring(&self) -> std::sync::MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a decision; the oldest makes room.
    pub(crate) fn push(&self, decision: Arc<Decision>) {
        let mut ring = self.ring();
        if ring.decisions.len() == KEPT {
            ring.decisions.pop_front();
        }
        ring.decisions.push_back(decision);
    }

    /// Remembers under which request ids a turn came.
    pub(crate) fn name(&self, turn: TurnId, ids: &RequestIdentity) {
        let mut ring = self.ring();
        if ring.requests.len() == KEPT {
            ring.requests.pop_front();
        }
        ring.requests.push_back((turn, ids.clone()));
    }

    /// The decisions about requests of that id (ours or the client's), or the turn of that number (`t12`),
    /// oldest first.
    pub(crate) fn about(&self, id: &str) -> Vec<Arc<Decision>> {
        let ring = self.ring();
        let numbered = id.strip_prefix('t').and_then(|n| n.parse().ok()).map(TurnId);
        let named = ring.requests.iter().filter(|(_, ids)| ids.is(id)).map(|(turn, _)| *turn);
        let turns: Vec<TurnId> = named.chain(numbered).collect();
        ring.decisions.iter().filter(|decision| turns.contains(&decision.turn)).cloned().collect()
    }

    /// The latest decisions, newest first.
    pub(crate) fn latest(&self, count: usize) -> Vec<Arc<Decision>> {
        self.ring().decisions.iter().rev().take(count).cloned().collect()
    }
}
