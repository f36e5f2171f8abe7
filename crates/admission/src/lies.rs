//! Where a prompt lies, as a turn that waits keeps it: what the match says, with what bounds ask for counted once.

use tandem_types::{Holders, PrefixMatch, WorkerId, WorkerSet};

use crate::rooms::float;

/// Prompt tokens at each worker.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lies {
    holders: Holders,
    /// Nothing is known of them.
    blind: WorkerSet,
    block_size: u64,
    /// The two workers that hold most, most first.
    pub(crate) deepest: [Option<(WorkerId, u64)>; 2],
    /// What any other holds at most.
    pub(crate) others: u64,
}

impl Lies {
    /// What a match says, in whole blocks.
    pub(crate) fn new(prefix: &PrefixMatch) -> Self {
        let mut lies = Self {
            holders: prefix.workers.clone(),
            blind: prefix.blind.clone(),
            block_size: prefix.block_size.into(),
            ..Self::default()
        };
        for alike in prefix.workers.alike() {
            let tokens = lies.tokens(alike.value.depths());
            // More than three that are alike change nothing of who holds most.
            alike.workers().take(3).for_each(|(worker, _)| lies.note(worker, tokens));
        }
        lies
    }

    /// Tokens of the prompt that do not have to be computed where a worker holds so much.
    fn tokens(&self, [device, host, _]: [u32; 3]) -> u64 {
        u64::from(host.max(device)) * self.block_size
    }

    fn note(&mut self, worker: WorkerId, tokens: u64) {
        let [first, second] = self.deepest;
        let deeper = |than: Option<(WorkerId, u64)>| than.is_none_or(|(_, most)| tokens > most);
        let pushed = if deeper(first) {
            self.deepest = [Some((worker, tokens)), first];
            second
        } else if deeper(second) {
            self.deepest = [first, Some((worker, tokens))];
            second
        } else {
            Some((worker, tokens))
        };
        self.others = self.others.max(pushed.map_or(0, |(_, tokens)| tokens));
    }

    /// At one worker; `None` = nothing is known of it.
    pub(crate) fn at(&self, worker: WorkerId) -> Option<u64> {
        if self.block_size == 0 || self.blind.contains(worker) {
            return None;
        }
        Some(self.holders.get(worker).map_or(0, |held| self.tokens(held.depths())))
    }

    /// At each of some workers, sorted; 0 where nothing is known.
    pub(crate) fn each(&self, workers: &[WorkerId], each: &mut Vec<f64>) {
        each.clear();
        each.resize(workers.len(), 0.0);
        for alike in self.holders.alike() {
            alike.note(workers, each, float(self.tokens(alike.value.depths())));
        }
        for alike in self.blind.alike() {
            alike.note(workers, each, 0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tandem_types::{EngineId, MatchSource, WorkerPrefix};

    use super::*;

    const fn id(engine: u32, rank: u32) -> WorkerId {
        WorkerId { engine: EngineId(engine), rank }
    }

    fn held(worker: WorkerId, device: u32, host: u32) -> WorkerPrefix {
        WorkerPrefix { worker, device, host, disk: host, source: MatchSource::Exact }
    }

    /// Each worker's tokens are what the match says, one by one and all at once.
    #[test]
    fn what_the_match_says_is_told() {
        let all: Vec<WorkerId> = (0..40).flat_map(|engine| [id(engine, 0), id(engine, 1)]).collect();
        let mut prefix = PrefixMatch { block_size: 10, blocks: 9, ..PrefixMatch::unknown() };
        let mut expected = BTreeMap::new();
        for worker in all.iter().filter(|worker| worker.engine.0 != 7 && **worker != id(20, 1)) {
            let (device, host) = if *worker == id(3, 1) { (4, 8) } else { (2, 0) };
            prefix.workers.push(held(*worker, device, host));
            expected.insert(*worker, Some(u64::from(device.max(host)) * 10));
        }
        prefix.blind.push(id(7, 0));
        expected.insert(id(7, 0), None);
        let lies = Lies::new(&prefix);
        let mut each = vec![7.0; 3];
        lies.each(&all, &mut each);
        for (worker, told) in all.iter().zip(each) {
            let tokens = expected.get(worker).copied().unwrap_or(Some(0));
            assert_eq!(lies.at(*worker), tokens, "{worker}");
            assert!(told.total_cmp(&float(tokens.unwrap_or(0))).is_eq(), "{worker}");
        }
        assert_eq!((lies.deepest[0], lies.others), (Some((id(3, 1), 80)), 20));
    }

    #[test]
    fn nothing_is_known_without_blocks() {
        let lies = Lies::new(&PrefixMatch::unknown());
        assert_eq!((lies.at(id(1, 0)), lies.others, lies.deepest), (None, 0, [None, None]));
    }
}
