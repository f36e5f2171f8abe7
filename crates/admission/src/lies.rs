//! Where a prompt lies, as a turn that waits keeps it.
//!
//! - Workers that follow one another and hold as much are one entry: the head that all sessions share lies at hundreds of
//!   workers, and many turns may wait.
//! - A worker that joins between two of an entry is taken to hold what these do.

use tandem_types::{PrefixMatch, WorkerId};

/// Workers of an entry: the first, the last, and the tokens at each; `None` = nothing is known of them.
type Run = (WorkerId, WorkerId, Option<u64>);

/// Prompt tokens at each worker.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lies {
    /// By worker.
    runs: Vec<Run>,
    /// What is not listed holds nothing, else nothing is known of it.
    known: bool,
    /// The two workers that hold most, most first.
    pub(crate) deepest: [Option<(WorkerId, u64)>; 2],
    /// What any other holds at most.
    pub(crate) others: u64,
}

impl Lies {
    /// What a match says, in whole blocks. `workers` = all there are, by id.
    pub(crate) fn new(prefix: &PrefixMatch, workers: &[WorkerId]) -> Self {
        let size = u64::from(prefix.block_size);
        let mut lies = Self { known: !prefix.is_unknown(), ..Self::default() };
        let mut workers = workers.iter();
        let mut blind = prefix.blind.iter().peekable();
        for held in &prefix.workers {
            while let Some(worker) = blind.next_if(|blind| **blind < held.worker) {
                lies.add(*worker, None, &mut workers);
            }
            lies.add(held.worker, Some(u64::from(held.host.max(held.device)) * size), &mut workers);
        }
        blind.for_each(|worker| lies.add(*worker, None, &mut workers));
        lies.runs.shrink_to_fit();
        lies
    }

    /// `others` = workers behind the last one that was added, or before that.
    fn add(&mut self, worker: WorkerId, tokens: Option<u64>, others: &mut std::slice::Iter<'_, WorkerId>) {
        self.note(worker, tokens.unwrap_or(0));
        // Those before it that are not listed.
        let mut passed = false;
        let known = loop {
            match others.as_slice().first() {
                Some(other) if *other < worker => passed = true,
                first => break first == Some(&worker),
            }
            others.next();
        };
        if known {
            others.next();
        }
        match self.runs.last_mut() {
            // Equal neighbours, with nobody between them, are one entry.
            Some((_, last, same)) if known && !passed && *same == tokens => *last = worker,
            _ => self.runs.push((worker, worker, tokens)),
        }
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

    /// At one worker.
    pub(crate) fn at(&self, worker: WorkerId) -> Option<u64> {
        let index = self.runs.partition_point(|(first, _, _)| *first <= worker);
        match index.checked_sub(1).and_then(|index| self.runs.get(index)) {
            Some((_, last, tokens)) if worker <= *last => *tokens,
            _ => self.known.then_some(0),
        }
    }

    /// For asking of many workers in ascending order.
    pub(crate) const fn walk(&self) -> Walk<'_> {
        Walk { lies: self, next: 0 }
    }
}

/// Looks workers up in ascending order.
#[derive(Debug)]
pub(crate) struct Walk<'a> {
    lies: &'a Lies,
    next: usize,
}

impl Walk<'_> {
    /// The same as [`Lies::at`].
    pub(crate) fn at(&mut self, worker: WorkerId) -> Option<u64> {
        while self.lies.runs.get(self.next).is_some_and(|(_, last, _)| *last < worker) {
            self.next += 1;
        }
        match self.lies.runs.get(self.next) {
            Some((first, _, tokens)) if *first <= worker => *tokens,
            _ => self.lies.known.then_some(0),
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

    /// Each worker's tokens are what the match says, by search and by walk, and equal neighbours share an entry.
    #[test]
    fn what_the_match_says_is_kept_in_few_entries() {
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
        let lies = Lies::new(&prefix, &all);
        let mut walk = lies.walk();
        for worker in &all {
            let tokens = expected.get(worker).copied().unwrap_or(Some(0));
            assert_eq!((lies.at(*worker), walk.at(*worker)), (tokens, tokens), "{worker}");
        }
        // Before and from 3/1 on, 7/0, and around the two holes at 7/1 and 20/1.
        assert_eq!(lies.runs.len(), 6);
        assert_eq!((lies.deepest[0], lies.others), (Some((id(3, 1), 80)), 20));
    }

    #[test]
    fn nothing_is_known_without_blocks() {
        let lies = Lies::new(&PrefixMatch::unknown(), &[id(1, 0)]);
        assert_eq!((lies.at(id(1, 0)), lies.others, lies.deepest), (None, 0, [None, None]));
    }
}
