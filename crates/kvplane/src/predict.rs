//! Predictions that wait for the event that confirms them.
//!
//! A prompt that was dispatched counts as cached at once. When the worker stores the prompt's last block, its events
//! know better, and the prediction is withdrawn: it must not hide what is evicted later. If no event comes, the
//! prediction ends by its time.

use std::collections::{BTreeMap, VecDeque};

use tandem_kvindex::worker::Route;
use tandem_types::{Time, WorkerId};

use crate::PromptChain;

/// A dispatch as the routed indexes know it.
#[derive(Debug, Clone)]
pub(crate) struct Routed {
    pub(crate) chain: PromptChain,
    /// Which of the chain's parts.
    pub(crate) part: usize,
    pub(crate) route: Route,
}

impl Routed {
    pub(crate) fn hashes(&self) -> &[u64] {
        self.chain.parts().get(self.part).map_or(&[], |part| &part.hashes)
    }
}

/// By worker and last block.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    workers: BTreeMap<WorkerId, BTreeMap<u64, Vec<Routed>>>,
    /// Oldest first; may name some that are gone.
    order: VecDeque<(Time, WorkerId, u64)>,
    most: usize,
    /// Predictions that ended with an event.
    pub(crate) confirmed: u64,
    /// Predictions that nobody waits for, because too many do.
    pub(crate) refused: u64,
}

impl Pending {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    pub(crate) fn add(&mut self, worker: WorkerId, routed: Routed, until: Time) {
        let Some(&last) = routed.hashes().last() else { return };
        if self.order.len() >= self.most {
            self.refused += 1;
            return;
        }
        self.workers.entry(worker).or_default().entry(last).or_default().push(routed);
        self.order.push_back((until, worker, last));
    }

    pub(crate) fn awaits(&self, worker: WorkerId) -> bool {
        self.workers.contains_key(&worker)
    }

    /// The worker stored this block: what waited for it.
    pub(crate) fn confirm(&mut self, worker: WorkerId, block: u64) -> Vec<Routed> {
        let Some(waiting) = self.workers.get_mut(&worker) else { return Vec::new() };
        let over = waiting.remove(&block).unwrap_or_default();
        if waiting.is_empty() {
            self.workers.remove(&worker);
        }
        self.confirmed += over.len() as u64;
        over
    }

    /// A dispatch was withdrawn.
    pub(crate) fn withdraw(&mut self, worker: WorkerId, routed: &Routed) {
        let Some(&last) = routed.hashes().last() else { return };
        let Some(waiting) = self.workers.get_mut(&worker) else { return };
        if let Some(list) = waiting.get_mut(&last) {
            list.retain(|other| other.route != routed.route);
            if list.is_empty() {
                waiting.remove(&last);
            }
        }
        if waiting.is_empty() {
            self.workers.remove(&worker);
        }
    }

    pub(crate) fn drop_worker(&mut self, worker: WorkerId) {
        self.workers.remove(&worker);
    }

    /// Forgets those whose time is over. One that was made anew with the same last block meanwhile goes with the
    /// first of them; its prediction then ends by its own time.
    pub(crate) fn expire(&mut self, now: Time) {
        while let Some((until, worker, last)) =
            self.order.front().copied().filter(|(until, ..)| *until <= now)
        {
            let _ = until;
            self.order.pop_front();
            if let Some(waiting) = self.workers.get_mut(&worker) {
                waiting.remove(&last);
                if waiting.is_empty() {
                    self.workers.remove(&worker);
                }
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.workers.values().flat_map(BTreeMap::values).map(Vec::len).sum()
    }
}
