//! The last decisions, kept for explanation.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use tandem_scheduler::Decision;
use tandem_trace::record::{PrefixEvent, PrefixSeen};
use tandem_types::{PrefixMatch, TurnId};

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
    prompts: VecDeque<(TurnId, Arc<Explained>)>,
    requests: VecDeque<(TurnId, RequestIdentity)>,
}

/// What became of a turn's prompt.
#[derive(Debug, Serialize)]
pub(crate) struct Explained {
    /// What was predicted, what the engine said, and why the rest had to be computed.
    #[serde(flatten)]
    pub(crate) prompt: PrefixEvent,
    /// Where its KV lay when it was dispatched.
    #[serde(rename = "match")]
    pub(crate) found: Option<PrefixSeen>,
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

    /// Keeps what became of a turn's prompt.
    pub(crate) fn prompt(&self, turn: TurnId, prompt: &PrefixEvent, found: &PrefixMatch) {
        let explained = Explained { prompt: prompt.clone(), found: PrefixSeen::of(found) };
        let mut ring = self.ring();
        if ring.prompts.len() == KEPT {
            ring.prompts.pop_front();
        }
        ring.prompts.push_back((turn, Arc::new(explained)));
    }

    /// What became of the prompts of requests of that id, or of that turn, oldest first.
    pub(crate) fn prompts_about(&self, id: &str) -> Vec<Arc<Explained>> {
        let ring = self.ring();
        let turns = ring.turns(id);
        let about = ring.prompts.iter().filter(|(turn, _)| turns.contains(turn));
        about.map(|(_, explained)| Arc::clone(explained)).collect()
    }

    /// The decisions about requests of that id (ours or the client's), or the turn of that number (`t12`),
    /// oldest first.
    pub(crate) fn about(&self, id: &str) -> Vec<Arc<Decision>> {
        let ring = self.ring();
        let turns = ring.turns(id);
        ring.decisions.iter().filter(|decision| turns.contains(&decision.turn)).cloned().collect()
    }

    /// The latest decisions, newest first.
    pub(crate) fn latest(&self, count: usize) -> Vec<Arc<Decision>> {
        self.ring().decisions.iter().rev().take(count).cloned().collect()
    }
}

impl Ring {
    fn turns(&self, id: &str) -> Vec<TurnId> {
        let numbered = id.strip_prefix('t').and_then(|n| n.parse().ok()).map(TurnId);
        let named = self.requests.iter().filter(|(_, ids)| ids.is(id)).map(|(turn, _)| *turn);
        named.chain(numbered).collect()
    }
}
