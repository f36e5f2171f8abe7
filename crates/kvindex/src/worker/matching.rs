//! Walking a prompt through the forest.

use tandem_types::WorkerId;

use super::runs::{Forest, Run};
use super::span::{Span, reach};

/// How much of a prompt one worker holds, in leading blocks. Each figure includes the one before:
/// `device <= host <= disk`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkerMatch {
    /// The worker.
    pub worker: WorkerId,
    /// Leading blocks in device memory.
    pub device: u32,
    /// Leading blocks each of which is in device or host memory.
    pub host: u32,
    /// Leading blocks each of which is in device memory, host memory or on disk.
    pub disk: u32,
}

/// The answer to a prompt; kept between calls, it saves their allocations.
#[derive(Debug, Default)]
pub struct Matches {
    workers: Vec<WorkerMatch>,
    found: Vec<Found>,
    live: Vec<u32>,
}

impl Matches {
    /// Workers that hold the prompt's first block, each once.
    #[must_use]
    pub fn workers(&self) -> &[WorkerMatch] {
        &self.workers
    }

    /// Raises each figure to that of `other`, for the same prompt: what is known and what is believed together.
    pub fn raise(&mut self, other: &Self) {
        self.workers.extend_from_slice(&other.workers);
        self.workers.sort_unstable();
        self.workers.dedup_by(|next, kept| {
            let same = next.worker == kept.worker;
            if same {
                kept.device = kept.device.max(next.device);
                kept.host = kept.host.max(next.host);
                kept.disk = kept.disk.max(next.disk);
            }
            same
        });
    }

    /// The match of one worker; `None` = it holds nothing of the prompt.
    #[must_use]
    pub fn of(&self, worker: WorkerId) -> Option<&WorkerMatch> {
        self.workers.iter().find(|m| m.worker == worker)
    }
}

/// A worker's depths at the three levels.
#[derive(Debug, Clone, Copy)]
struct Found {
    worker: u32,
    depths: [u32; 3],
}

impl Matches {
    /// Fills in the answer. `name` tells a worker by its number.
    pub(super) fn walk(&mut self, forest: &Forest, chain: &[u64], name: impl Fn(u32) -> Option<WorkerId>) {
        self.descend(forest, chain);
        self.workers.clear();
        self.workers.extend(self.found.iter().filter_map(|f| {
            let [device, host, disk] = f.depths;
            Some(WorkerMatch { worker: name(f.worker)?, device, host, disk })
        }));
    }

    fn descend(&mut self, forest: &Forest, chain: &[u64]) {
        self.found.clear();
        self.live.clear();
        let mut rest = chain;
        let mut depth = 0u32;
        while let Some(&next) = rest.first() {
            let Some(shard) = forest.read_for(next) else { return };
            let Some(run) = shard.head(next).and_then(|no| shard.run(no)) else { return };
            let common = run.matching(rest);
            let blocks = u32::try_from(common).unwrap_or(u32::MAX);
            if depth == 0 {
                self.start(run, blocks);
            } else {
                self.go_on(run, depth, blocks);
            }
            depth += blocks;
            self.live.retain(|n| self.found.get(*n as usize).is_some_and(|f| f.depths[2] == depth));
            if self.live.is_empty() {
                return;
            }
            rest = rest.get(common..).unwrap_or(&[]);
        }
    }

    fn start(&mut self, run: &Run, common: u32) {
        for group in run.spans.as_slice().chunk_by(|a, b| a.worker() == b.worker()) {
            let depths = reach(group).map(|d| d.min(common));
            if let Some(span) = group.first()
                && depths[2] > 0
            {
                self.live.push(u32::try_from(self.found.len()).unwrap_or(u32::MAX));
                self.found.push(Found { worker: span.worker(), depths });
            }
        }
    }

    fn go_on(&mut self, run: &Run, depth: u32, common: u32) {
        let spans = run.spans.as_slice();
        let few = self.live.len() * 8 < spans.len();
        let mut groups = spans.chunk_by(|a, b| a.worker() == b.worker()).peekable();
        for n in &self.live {
            let Some(found) = self.found.get_mut(*n as usize) else { continue };
            let group: &[Span] = if few {
                run.spans.of(found.worker)
            } else {
                let before = |g: &&[Span]| g.first().is_some_and(|s| s.worker() < found.worker);
                while groups.next_if(before).is_some() {}
                let mine = |g: &&[Span]| g.first().is_some_and(|s| s.worker() == found.worker);
                groups.next_if(mine).unwrap_or(&[])
            };
            for (level, more) in found.depths.iter_mut().zip(reach(group)) {
                if *level == depth {
                    *level += more.min(common);
                }
            }
        }
    }
}
