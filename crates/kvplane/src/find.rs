//! The look-up: what the indexes say of a prompt, put together worker by worker.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tandem_kvindex::pool::PageHash;
use tandem_kvindex::worker::{Matches, RoutedIndex};
use tandem_types::{MatchSource, PrefixMatch, SharedPrefix, Time, WorkerPrefix};

use crate::pages::Naming;
use crate::reader::Shared;
use crate::view::{StoreView, View, WorkerView};
use crate::{Knowledge, PromptChain};

/// How much of what is there counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// What the engine would reuse.
    Usable,
    /// All of it.
    Held,
}

/// What is known of one worker's share, in leading tokens.
#[derive(Debug, Clone, Copy)]
struct Share {
    /// Least over the lanes that hold something: device, with host, with disk.
    exact: [u64; 3],
    /// How many lanes that is.
    lanes: usize,
    predicted: u64,
    believed: u64,
}

const NOTHING: Share = Share { exact: [u64::MAX; 3], lanes: 0, predicted: 0, believed: 0 };

pub(crate) struct Finding<'a> {
    shared: &'a Shared,
    chain: &'a PromptChain,
    reach: Reach,
    view: Arc<View>,
    unit: u64,
    matches: Matches,
    /// Runs in the store that were looked up: (layout, tokens before it, bound) to tokens of the run.
    runs: Vec<((u32, u64, u64), u64)>,
    /// Names that were learned, by scheme.
    learned: Vec<(u32, Vec<PageHash>)>,
}

impl<'a> Finding<'a> {
    pub(crate) fn new(shared: &'a Shared, chain: &'a PromptChain, reach: Reach) -> Self {
        let unit = u64::from(chain.unit());
        let (view, matches) = (shared.view(), Matches::default());
        Self { shared, chain, reach, view, unit, matches, runs: Vec::new(), learned: Vec::new() }
    }

    pub(crate) fn run(mut self, now: Time) -> PrefixMatch {
        let version = self.shared.version.load(Ordering::Relaxed);
        if self.unit == 0 {
            return PrefixMatch { version, ..PrefixMatch::unknown() };
        }
        let shares = self.shares();
        let view = Arc::clone(&self.view);
        let mut found = PrefixMatch {
            block_size: self.chain.unit(),
            blocks: self.blocks(self.chain.tokens() as u64),
            head: self.chain.head(),
            blind: view.blind.clone(),
            version,
            ..PrefixMatch::unknown()
        };
        let mut loadable = Vec::new();
        for (worker, share) in view.workers.iter().zip(shares) {
            let held = self.held(worker, share);
            if held.disk > 0 && worker.knowledge != Knowledge::Blind {
                found.workers.push(held);
            }
            // What was not compared with the store for long is not believed: it evicts without a word.
            let trusted = |store: &&StoreView| {
                store.layout.freshness(now).listed.is_none_or(|age| age <= self.shared.store_trust)
            };
            if let Some(store) = worker.store.as_ref().filter(trusted) {
                let blocks = self.loadable(worker, store, held, &mut found.shared);
                loadable.push(SharedPrefix { worker: worker.id, blocks });
            }
        }
        if !loadable.is_empty() {
            found.loadable = Some(loadable);
        }
        found.shared = merged(found.shared);
        found
    }

    fn blocks(&self, tokens: u64) -> u32 {
        u32::try_from(tokens / self.unit.max(1)).unwrap_or(u32::MAX)
    }

    /// Leading tokens that count at most.
    fn limit(&self, worker: &WorkerView) -> u64 {
        match self.reach {
            Reach::Usable => self.chain.usable(worker.kind, worker.shape),
            Reach::Held => u64::MAX,
        }
    }

    /// Asks the indexes.
    fn shares(&mut self) -> Vec<Share> {
        let mut shares = vec![NOTHING; self.view.workers.len()];
        let Self { shared, chain, view, matches, .. } = self;
        for part in chain.parts() {
            let size = u64::from(part.shape.block_size);
            shared.index.find(&part.hashes, matches);
            for found in matches.workers() {
                let Some(at) = view.of_lane(found.worker.engine.0) else { continue };
                let Some(share) = shares.get_mut(at) else { continue };
                share.lanes += 1;
                for (least, blocks) in share.exact.iter_mut().zip([found.device, found.host, found.disk]) {
                    *least = (*least).min(u64::from(blocks) * size);
                }
            }
            let mut raise = |index: &RoutedIndex, field: fn(&mut Share) -> &mut u64| {
                index.find(&part.hashes, matches);
                for found in matches.workers() {
                    let share = view.position(found.worker).and_then(|at| shares.get_mut(at));
                    if let Some(tokens) = share.map(field) {
                        *tokens = (*tokens).max(u64::from(found.device) * size);
                    }
                }
            };
            raise(&shared.predicted, |share| &mut share.predicted);
            if let Some(believed) = &shared.believed {
                raise(believed, |share| &mut share.believed);
            }
        }
        shares
    }

    /// What one worker holds, from all that is known of it.
    fn held(&self, worker: &WorkerView, share: Share) -> WorkerPrefix {
        let limit = self.limit(worker);
        // A prefix counts only where every lane has it.
        let whole = worker.lanes > 0 && share.lanes == worker.lanes;
        let exact =
            if whole { share.exact.map(|tokens| tokens / worker.step.max(1) * worker.step) } else { [0; 3] };
        let (exact, guess) = match worker.knowledge {
            Knowledge::Exact if worker.hollow => (exact, share.predicted.max(share.believed)),
            Knowledge::Exact => (exact, share.predicted),
            Knowledge::Stale => (exact, share.predicted.max(share.believed)),
            Knowledge::Approximate => ([0; 3], share.believed),
            Knowledge::Blind => ([0; 3], 0),
        };
        let approximate = worker.knowledge != Knowledge::Exact || guess.min(limit) > exact[0].min(limit);
        let [device, host, disk] = exact.map(|tokens| self.blocks(tokens.max(guess).min(limit)));
        let source = if approximate { MatchSource::Approximate } else { MatchSource::Exact };
        WorkerPrefix { worker: worker.id, device, host, disk, source }
    }

    /// Blocks that a worker could load behind its own; notes where in the prompt they lie.
    fn loadable(
        &mut self,
        worker: &WorkerView,
        store: &StoreView,
        held: WorkerPrefix,
        positions: &mut Vec<Range<u32>>,
    ) -> u32 {
        let local = u64::from(held.disk) * self.unit;
        let limit = self.limit(worker);
        let key = (store.layout_no, local, limit);
        let tokens = match self.runs.iter().find(|(known, _)| *known == key) {
            Some((_, tokens)) => *tokens,
            None => {
                let tokens = self.run_in_store(store, local, limit);
                self.runs.push((key, tokens));
                tokens
            }
        };
        let blocks = self.blocks(tokens);
        if blocks > 0 {
            positions.push(held.disk..held.disk + blocks);
        }
        blocks
    }

    fn run_in_store(&mut self, store: &StoreView, local: u64, limit: u64) -> u64 {
        let page = u64::from(store.scheme.shape.block_size.max(1));
        let scheme = store.scheme.id;
        if let Naming::Learned(scope) = store.scheme.naming
            && !self.learned.iter().any(|(known, _)| *known == scheme)
            && let Some(part) = self.chain.part(store.scheme.shape)
        {
            self.learned.push((scheme, self.shared.names.pages(scope, &part.hashes)));
        }
        let computed = self.chain.pages(scheme).map(|pages| pages.names.as_slice());
        let learned = self.learned.iter().find(|(known, _)| *known == scheme);
        let Some(names) = computed.or(learned.map(|(_, names)| names.as_slice())) else { return 0 };
        let most = usize::try_from(limit / page).unwrap_or(usize::MAX).min(names.len());
        let names = names.get(..most).unwrap_or(names);
        let size = |tokens: u64| usize::try_from(tokens).unwrap_or(usize::MAX);
        self.shared.pool.shared_tokens_beyond(&store.layout, size(local), size(page), names) as u64
    }
}

/// Ranges in order, those that touch as one.
fn merged(mut ranges: Vec<Range<u32>>) -> Vec<Range<u32>> {
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    ranges.dedup_by(|next, kept| {
        let touches = next.start <= kept.end;
        if touches {
            kept.end = kept.end.max(next.end);
        }
        touches
    });
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_are_one() {
        assert_eq!(merged(vec![4..6, 0..2, 2..3, 5..9, 5..6]), vec![0..3, 4..9]);
    }
}
