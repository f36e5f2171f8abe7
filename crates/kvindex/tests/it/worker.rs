//! The worker index against a naive oracle.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tandem_kvindex::chain;
use tandem_kvindex::worker::{Copies, Matches, Stored, WorkerIndex, WorkerIndexConfig};
use tandem_types::{EngineId, Tier, WorkerId};

const TIERS: [Tier; 3] = [Tier::Device, Tier::Host, Tier::Disk];

fn worker(n: u32) -> WorkerId {
    WorkerId { engine: EngineId(n / 2), rank: n % 2 }
}

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// A forest of prompts: each node is a block with a parent.
struct Prompts {
    parent: Vec<Option<usize>>,
    local: Vec<u64>,
    content: Vec<u64>,
}

impl Prompts {
    fn new(nodes: usize, rng: &mut Rng, straight: usize) -> Self {
        let mut all = Self { parent: Vec::new(), local: Vec::new(), content: Vec::new() };
        for n in 0..nodes {
            let parent = match n {
                0 => None,
                _ if rng.below(60) == 0 => None,
                _ if rng.below(straight) != 0 => Some(n - 1),
                _ => Some(rng.below(n)),
            };
            let local = rng.next();
            all.content.push(chain::next(parent.map(|p| all.content[p]), local));
            all.parent.push(parent);
            all.local.push(local);
        }
        all
    }

    fn path(&self, node: usize) -> Vec<usize> {
        let mut path = vec![node];
        while let Some(up) = self.parent[path[path.len() - 1]] {
            path.push(up);
        }
        path.reverse();
        path
    }

    fn contents(&self, path: &[usize]) -> Vec<u64> {
        path.iter().map(|n| self.content[*n]).collect()
    }
}

/// Copies of each block, by worker, tier and node.
#[derive(Default)]
struct Oracle(BTreeMap<(u32, usize, usize), u32>);

impl Oracle {
    fn held(&self, worker: u32, tier: usize, node: usize) -> bool {
        self.0.contains_key(&(worker, tier, node))
    }

    fn any(&self, worker: u32, node: usize) -> bool {
        (0..3).any(|t| self.held(worker, t, node))
    }

    fn depths(&self, worker: u32, path: &[usize]) -> [u32; 3] {
        [0, 1, 2].map(|level| {
            let there = |n: &&usize| (0..=level).any(|t| self.held(worker, t, **n));
            path.iter().take_while(there).count() as u32
        })
    }
}

/// How engines name blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Naming {
    /// Equal blocks have equal ids everywhere.
    Common,
    /// Each worker has ids of its own.
    Own,
    /// Workers use the same few ids for different blocks.
    Clashing,
}

struct Run {
    naming: Naming,
    workers: u32,
    prompts: Prompts,
    index: WorkerIndex,
    oracle: Oracle,
    matches: Matches,
}

impl Run {
    fn id(&self, worker: u32, node: usize) -> u64 {
        let nodes = self.prompts.local.len() as u64;
        match self.naming {
            Naming::Common => node as u64,
            Naming::Own => self.prompts.content[node].rotate_left(worker + 1),
            Naming::Clashing => (node as u64 + u64::from(worker) * 7) % nodes,
        }
    }

    fn store(&mut self, worker_no: u32, tier: usize, path: &[usize], from: usize, copies: Copies) {
        let ids: Vec<u64> = path[from..].iter().map(|n| self.id(worker_no, *n)).collect();
        let locals: Vec<u64> = path[from..].iter().map(|n| self.prompts.local[*n]).collect();
        let parent = from.checked_sub(1).map(|p| self.id(worker_no, path[p]));
        let event = Stored { parent, ids: &ids, locals: &locals, tier: TIERS[tier], copies };
        self.index.stored(worker(worker_no), &event);
        for node in &path[from..] {
            let count = self.oracle.0.entry((worker_no, tier, *node)).or_default();
            *count = if copies == Copies::Each { *count + 1 } else { (*count).max(1) };
        }
    }

    fn remove(&mut self, worker_no: u32, tier: usize, node: usize) {
        self.index.removed(worker(worker_no), TIERS[tier], &[self.id(worker_no, node)]);
        let key = (worker_no, tier, node);
        if let Some(count) = self.oracle.0.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.oracle.0.remove(&key);
            }
        }
    }

    fn step(&mut self, rng: &mut Rng) {
        let w = rng.below(self.workers as usize) as u32;
        let node = rng.below(self.prompts.local.len());
        let tier = [0, 0, 0, 1, 2][rng.below(5)];
        match rng.below(1000) {
            0..=399 => {
                // A prompt as an engine stores it: what is not there yet, perhaps with copies of what is.
                let path = self.prompts.path(node);
                let held = path.iter().take_while(|n| self.oracle.any(w, **n)).count();
                let known = path.iter().take_while(|n| self.oracle.held(w, tier, **n)).count();
                let from = if rng.below(8) == 0 { rng.below(held + 1) } else { held.min(known) };
                let copies = if rng.below(4) == 0 { Copies::Repeated } else { Copies::Each };
                let to = from + rng.below(path.len() - from + 1);
                self.store(w, tier, &path[..to], from, copies);
            }
            400..=429 => {
                // Blocks whose ancestors were missed.
                let path = self.prompts.path(node);
                let from = rng.below(path.len());
                let to = (from + 1 + rng.below(4)).min(path.len());
                if path[from..to].iter().all(|n| !self.oracle.any(w, *n)) {
                    self.store(w, tier, &path[..to], from, Copies::Each);
                }
            }
            430..=899 => {
                // An engine evicts tails first; now and then a block in the middle.
                let path = self.prompts.path(node);
                let held = path.iter().rposition(|n| self.oracle.held(w, tier, *n)).unwrap_or(0);
                let count = 1 + rng.below(6);
                for back in 0..count.min(held + 1) {
                    let at = if rng.below(10) == 0 { rng.below(path.len()) } else { held - back };
                    self.remove(w, tier, path[at]);
                }
            }
            900 => {
                self.index.cleared(worker(w), None);
                self.oracle.0.retain(|(x, ..), _| *x != w);
            }
            901 => {
                self.index.cleared(worker(w), Some(TIERS[tier]));
                self.oracle.0.retain(|(x, t, _), _| (*x, *t) != (w, tier));
            }
            902 => {
                self.index.remove_worker(worker(w));
                self.oracle.0.retain(|(x, ..), _| *x != w);
            }
            903 => {
                self.index.removed(worker(w), TIERS[tier], &[rng.next()]);
            }
            904..=920 if self.oracle.held(w, tier, node) => {
                let left = rng.below(3) as u32;
                self.index.remaining(worker(w), TIERS[tier], self.id(w, node), left);
                match left {
                    0 => self.oracle.0.remove(&(w, tier, node)),
                    n => self.oracle.0.insert((w, tier, node), n),
                };
            }
            921..=940 if self.oracle.any(w, node) => {
                let id = self.id(w, node);
                let event = Stored {
                    parent: None,
                    ids: &[id],
                    locals: &[],
                    tier: TIERS[tier],
                    copies: Copies::Repeated,
                };
                // Blocks that wait for their parent have no place to which a tier could be added.
                if self.index.stored(worker(w), &event).unknown == 0 {
                    self.oracle.0.entry((w, tier, node)).or_insert(1);
                }
            }
            _ => {}
        }
    }

    fn check(&mut self, node: usize) {
        let path = self.prompts.path(node);
        self.index.find(&self.prompts.contents(&path), &mut self.matches);
        let mut seen = BTreeSet::new();
        for m in self.matches.workers() {
            assert!(seen.insert(m.worker), "each worker once");
        }
        for w in 0..self.workers {
            let got = self.matches.of(worker(w)).map_or([0; 3], |m| [m.device, m.host, m.disk]);
            assert_eq!(got, self.oracle.depths(w, &path), "{:?} worker {w} node {node}", self.naming);
        }
    }
}

fn random_run(naming: Naming, seed: u64, nodes: usize, workers: u32, steps: usize) -> Run {
    let mut rng = Rng(seed);
    let straight = 2 + rng.below(60);
    let config = WorkerIndexConfig { orphans_max: nodes };
    let mut run = Run {
        naming,
        workers,
        prompts: Prompts::new(nodes, &mut rng, straight),
        index: WorkerIndex::new(config),
        oracle: Oracle::default(),
        matches: Matches::default(),
    };
    for _ in 0..steps {
        run.step(&mut rng);
        if rng.below(4) == 0 {
            run.check(rng.below(nodes));
        }
    }
    for node in 0..nodes {
        run.check(node);
    }
    run
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// I-WIX-1, I-WIX-2, I-WIX-3, I-WIX-4; I-RUN-1, I-RUN-2.
    #[test]
    fn equals_the_oracle(
        seed in any::<u64>(),
        naming in prop::sample::select(vec![Naming::Common, Naming::Own, Naming::Clashing]),
        nodes in 1usize..90,
        workers in 1u32..5,
    ) {
        random_run(naming, seed, nodes, workers, 400);
    }
}

/// The same, with churn enough that places are used again: I-RUN-3.
#[test]
fn equals_the_oracle_on_a_long_run() {
    for (naming, seed) in [(Naming::Common, 1), (Naming::Own, 2), (Naming::Clashing, 3)] {
        let run = random_run(naming, seed, 1500, 6, 20_000);
        assert!(run.index.stats().runs > 10);
    }
}
