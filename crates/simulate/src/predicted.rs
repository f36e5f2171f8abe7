//! Prompts under way: what they will leave in caches counts from their dispatch on, as with a live gateway.
//!
//! - Purpose: turns that share a prompt and come together go where it is just being computed.
//! - Inputs: dispatches; prompts that are computed. Output: matches raised by what is under way.
//! - I-PRD-1 a dispatch counts until its prompt is computed, and for the given time at most; where all of the prompt
//!   is cached already it adds nothing, and a turn that is gone leaves nothing behind.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tandem_kvindex::worker::{Keep, Matches, Route, RoutedIndex, WorkerMatch};
use tandem_types::{Holders, MatchSource, Time, WorkerId, WorkerPrefix};

/// One of them.
#[derive(Debug)]
struct UnderWay {
    worker: WorkerId,
    ids: Arc<[u64]>,
    blocks: usize,
    route: Route,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Predicted {
    index: RoutedIndex,
    under_way: BTreeMap<u64, UnderWay>,
    found: Matches,
}

impl Predicted {
    /// A dispatch counts for so long at most.
    pub(crate) fn new(time: Duration) -> Self {
        Self {
            index: RoutedIndex::new(Keep::For(time)),
            under_way: BTreeMap::new(),
            found: Matches::default(),
        }
    }

    /// A prompt of so many whole blocks goes to a worker.
    pub(crate) fn dispatched(
        &mut self,
        key: u64,
        worker: WorkerId,
        ids: &Arc<[u64]>,
        blocks: usize,
        now: Time,
    ) {
        let Some(chain) = ids.get(..blocks) else { return };
        if let Some(route) = self.index.routed(worker, chain, now) {
            self.under_way.insert(key, UnderWay { worker, ids: Arc::clone(ids), blocks, route });
        }
    }

    /// A prompt is computed, or will never be.
    pub(crate) fn over(&mut self, key: u64) {
        if let Some(UnderWay { worker, ids, blocks, route }) = self.under_way.remove(&key) {
            self.index.withdraw(worker, ids.get(..blocks).unwrap_or_default(), route);
        }
    }

    /// Adds to what workers are known to hold of a prompt.
    pub(crate) fn raise(&mut self, chain: &[u64], now: Time, workers: &mut Holders) {
        if self.under_way.is_empty() {
            return;
        }
        self.index.expire(now);
        self.index.find(chain, &mut self.found);
        for &WorkerMatch { worker, device, .. } in self.found.workers() {
            let [known, host, disk] =
                workers.get(worker).map_or([0; 3], |held| [held.device, held.host, held.disk]);
            if device > known {
                let source = MatchSource::Approximate;
                let (host, disk) = (host.max(device), disk.max(device));
                workers.push(WorkerPrefix { worker, device, host, disk, source });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::worker;

    const fn at(seconds: u64) -> Time {
        Time::from_millis(seconds * 1_000)
    }

    /// Device, host and disk of two workers.
    fn raised(predicted: &mut Predicted, chain: &[u64], now: Time, known: &[WorkerPrefix]) -> [[u32; 3]; 2] {
        let mut workers: Holders = known.iter().copied().collect();
        predicted.raise(chain, now, &mut workers);
        [0, 1].map(|index| {
            workers.get(worker(index)).map_or([0; 3], |held| [held.device, held.host, held.disk])
        })
    }

    /// I-PRD-1.
    #[test]
    fn a_dispatch_counts_until_its_prompt_is_computed_or_for_its_time() {
        let mut predicted = Predicted::new(Duration::from_secs(10));
        let ids: Arc<[u64]> = [1, 2, 3, 4].into();
        predicted.dispatched(1, worker(0), &ids, 3, at(5));
        predicted.dispatched(2, worker(1), &[1, 2, 7].into(), 3, at(7));
        assert_eq!(raised(&mut predicted, &ids, at(8), &[]), [[3; 3], [2; 3]], "the fourth is the answer's");
        predicted.over(2);
        assert_eq!(raised(&mut predicted, &ids, at(9), &[]), [[3; 3], [0; 3]]);
        assert_eq!(raised(&mut predicted, &ids, at(15), &[]), [[0; 3], [0; 3]], "ten seconds are over");
        predicted.over(1);
        assert_eq!(raised(&mut predicted, &ids, at(15), &[]), [[0; 3], [0; 3]]);
    }

    #[test]
    fn what_is_known_to_be_there_is_never_lessened() {
        let mut predicted = Predicted::new(Duration::from_secs(10));
        predicted.dispatched(1, worker(0), &[1, 2, 3].into(), 3, at(5));
        let known = |index, [device, host, disk]: [u32; 3]| WorkerPrefix {
            worker: worker(index),
            device,
            host,
            disk,
            source: MatchSource::Exact,
        };
        let found = |predicted: &mut Predicted, held| {
            raised(predicted, &[1, 2, 3], at(6), &[known(0, held), known(1, [1, 1, 2])])
        };
        assert_eq!(found(&mut predicted, [1, 2, 2]), [[3; 3], [1, 1, 2]]);
        assert_eq!(found(&mut predicted, [3, 4, 5]), [[3, 4, 5], [1, 1, 2]]);
    }
}
