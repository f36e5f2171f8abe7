//! The worker index, event by event.

use std::collections::{HashMap, HashSet};

use anyhow::{Result, ensure};
use tandem_kvindex::worker::{Copies, Matches, Stored, WorkerIndex};
use tandem_types::Tier;

use super::{Counts, Replay, worker as id};
use crate::workload::{Load, Op, engine_id};

/// Who holds which block, and nothing else.
#[derive(Default)]
struct Naive {
    holders: HashMap<u64, HashSet<u32>>,
    held: HashMap<u32, HashSet<u64>>,
}

impl Naive {
    fn store(&mut self, worker: u32, content: u64) {
        self.holders.entry(content).or_default().insert(worker);
        self.held.entry(worker).or_default().insert(content);
    }

    fn remove(&mut self, worker: u32, content: u64) {
        if let Some(holders) = self.holders.get_mut(&content) {
            holders.remove(&worker);
            if holders.is_empty() {
                self.holders.remove(&content);
            }
        }
        if let Some(held) = self.held.get_mut(&worker) {
            held.remove(&content);
        }
    }

    fn clear(&mut self, worker: u32) {
        for content in self.held.remove(&worker).unwrap_or_default() {
            self.remove(worker, content);
        }
    }

    fn depths(&self, chain: &[u64]) -> Vec<(u32, u32)> {
        let mut depths: HashMap<u32, u32> = HashMap::new();
        for (depth, content) in (0..).zip(chain) {
            let mut any = false;
            for worker in self.holders.get(content).into_iter().flatten() {
                let at = depths.entry(*worker).or_insert(0);
                any |= *at == depth;
                *at += u32::from(*at == depth);
            }
            if !any {
                break;
            }
        }
        // A worker that comes in later has no run from the first block.
        let mut found: Vec<(u32, u32)> = depths.into_iter().filter(|(_, d)| *d > 0).collect();
        found.sort_unstable();
        found
    }
}

fn replay(index: &WorkerIndex, naive: &mut Naive, load: &Load, counts: &mut Counts) -> Result<()> {
    let mut matches = Matches::default();
    for op in &load.ops {
        match op {
            Op::Find(prompt) => {
                let chain = &load.prompts[*prompt as usize].contents;
                index.find(chain, &mut matches);
                let mut got: Vec<(u32, u32)> =
                    matches.workers().iter().map(|m| (m.worker.engine.0, m.device)).collect();
                got.sort_unstable();
                let expected = naive.depths(chain);
                counts.matches += 1;
                counts.compared += expected.iter().map(|(_, d)| u64::from(*d)).sum::<u64>();
                ensure!(got == expected, "match {}: {got:?} instead of {expected:?}", counts.matches);
            }
            Op::Stored { worker, prompt, from, to } => {
                let p = &load.prompts[*prompt as usize];
                let (from, to) = (*from as usize, *to as usize);
                let ids: Vec<u64> = p.contents[from..to].iter().map(|c| engine_id(*c)).collect();
                let stored = Stored {
                    parent: from.checked_sub(1).map(|b| engine_id(p.contents[b])),
                    ids: &ids,
                    locals: &p.locals[from..to],
                    tier: Tier::Device,
                    copies: Copies::Repeated,
                };
                let applied = index.stored(id(*worker), &stored);
                ensure!(applied.parked + applied.refused == 0, "store not taken: {applied:?}");
                p.contents[from..to].iter().for_each(|c| naive.store(*worker, *c));
                counts.events += 1;
                counts.blocks += (to - from) as u64;
            }
            Op::Removed { worker, contents } => {
                let ids: Vec<u64> = contents.iter().map(|c| engine_id(*c)).collect();
                let applied = index.removed(id(*worker), Tier::Device, &ids);
                let known =
                    contents.iter().filter(|c| naive.held.get(worker).is_some_and(|h| h.contains(*c)));
                ensure!(applied.changed == known.count(), "removal: {applied:?} of {}", ids.len());
                contents.iter().for_each(|c| naive.remove(*worker, *c));
                counts.events += 1;
                counts.blocks += contents.len() as u64;
            }
        }
    }
    Ok(())
}

/// The index and who holds which block.
#[derive(Default)]
pub struct Worker {
    index: WorkerIndex,
    naive: Naive,
}

impl Replay for Worker {
    const NAME: &'static str = "worker index";

    /// Between passes half of the engines drop their caches and half are replaced.
    fn pass(&mut self, load: &Load, workers: u32, counts: &mut Counts) -> Result<()> {
        for worker in 0..workers {
            if worker % 2 == 0 {
                self.index.cleared(id(worker), None);
            } else {
                self.index.remove_worker(id(worker));
            }
            self.naive.clear(worker);
            counts.disturbances += 1;
        }
        replay(&self.index, &mut self.naive, load, counts)?;
        let held: usize = self.naive.held.values().map(HashSet::len).sum();
        ensure!(self.index.stats().held == held, "{} blocks held instead of {held}", self.index.stats().held);
        Ok(())
    }
}
