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

/// Millions of operations; `cargo xtask oracle` runs them.
#[test]
#[ignore = "long"]
fn equals_the_oracle_on_millions_of_operations() {
    const STEPS: usize = 125_000;
    let mut done = 0;
    for seed in 0..48 {
        let naming = [Naming::Common, Naming::Own, Naming::Clashing][seed % 3];
        let (nodes, workers) = ([60, 400, 1500, 4000][seed / 3 % 4], 2 + (seed / 12) as u32 * 3);
        random_run(naming, 0x1000 + seed as u64, nodes, workers, STEPS);
        done += STEPS;
        println!("worker index: {done} operations equal to the oracle");
    }
}

fn device(index: &WorkerIndex, contents: &[u64]) -> u32 {
    let mut matches = Matches::default();
    index.find(contents, &mut matches);
    matches.of(worker(0)).map_or(0, |m| m.device)
}

fn blocks<'a>(parent: Option<u64>, ids: &'a [u64], locals: &'a [u64]) -> Stored<'a> {
    Stored { parent, ids, locals, tier: Tier::Device, copies: Copies::Each }
}

#[test]
fn a_block_goes_with_its_last_copy() {
    let index = WorkerIndex::default();
    let contents = chain::chain(&[50, 60]);
    index.stored(worker(0), &blocks(None, &[5, 6], &[50, 60]));
    index.stored(worker(0), &blocks(None, &[5, 6], &[50, 60]));
    assert_eq!(index.removed(worker(0), Tier::Device, &[6]).copies, 1);
    assert_eq!(device(&index, &contents), 2);
    assert_eq!(index.removed(worker(0), Tier::Device, &[6]).changed, 1);
    assert_eq!(device(&index, &contents), 1);
    // The engine says how many remain.
    index.remaining(worker(0), Tier::Device, 5, 1);
    assert_eq!(device(&index, &contents), 1);
    assert_eq!(index.removed(worker(0), Tier::Device, &[5, 5, 99]).unknown, 2);
    assert_eq!(device(&index, &contents), 0);
    // A removal too many does not hide the next store.
    index.stored(worker(0), &blocks(None, &[5], &[50]));
    assert_eq!(device(&index, &contents), 1);
}

/// Twice it came before its parent was known, and once after: of three copies two may go.
#[test]
fn copies_that_waited_for_their_parent_are_copies_too() {
    let index = WorkerIndex::default();
    let contents = chain::chain(&[50, 60]);
    for _ in 0..2 {
        index.stored(worker(0), &blocks(Some(5), &[6], &[60]));
    }
    assert_eq!(index.stats().orphans, 1);
    index.stored(worker(0), &blocks(None, &[5, 6], &[50, 60]));
    assert_eq!((device(&index, &contents), index.stats().orphans), (2, 0));
    for left in [2, 2, 1] {
        index.removed(worker(0), Tier::Device, &[6]);
        assert_eq!(device(&index, &contents), left);
    }
}

#[test]
fn blocks_of_one_salt_or_adapter_are_no_match_for_another() {
    use tandem_kvindex::chain::Namespace;
    let index = WorkerIndex::default();
    let all = [None, Some("a"), Some("b")];
    let locals = |lora, salt| {
        let namespace = Namespace::new(lora, salt);
        vec![namespace.local(&[1, 2]), namespace.local(&[3, 4])]
    };
    index.stored(worker(0), &blocks(None, &[1, 2], &locals(None, Some("a"))));
    for lora in all {
        for salt in all {
            let want = if (lora, salt) == (None, Some("a")) { 2 } else { 0 };
            assert_eq!(device(&index, &chain::chain(&locals(lora, salt))), want);
        }
    }
}

#[test]
fn blocks_that_wait_for_their_parent_are_bounded_and_the_oldest_go() {
    let index = WorkerIndex::new(WorkerIndexConfig { orphans_max: 3 });
    let locals = [10, 20, 30, 40, 50];
    for at in (1..5).rev() {
        let applied = index.stored(worker(0), &blocks(Some(at), &[at + 1], &[locals[at as usize]]));
        assert_eq!((applied.parked, applied.refused), (1, usize::from(at == 1)));
    }
    assert_eq!(index.stats().orphans, 3);
    assert_eq!(device(&index, &chain::chain(&locals)), 0);
    // Blocks 2, 3 and 4 waited; 5 had to go.
    assert_eq!(index.stored(worker(0), &blocks(None, &[1], &[10])).changed, 4);
    assert_eq!(device(&index, &chain::chain(&locals)), 4);
    assert_eq!(index.stats().orphans, 0);
}

#[test]
fn what_is_no_workers_own_or_makes_no_sense_is_refused() {
    let index = WorkerIndex::default();
    let shared = Stored { tier: Tier::Shared, ..blocks(None, &[1], &[10]) };
    assert_eq!(index.stored(worker(0), &shared).refused, 1);
    assert_eq!(index.stored(worker(0), &blocks(None, &[1, 2], &[10])).refused, 2);
    assert_eq!(index.removed(worker(0), Tier::Device, &[1]).unknown, 1);
    assert_eq!(index.stats().blocks, 0);
}

#[test]
fn memory_is_given_back_when_blocks_go_in_any_order() {
    let index = WorkerIndex::default();
    let mut rng = Rng(9);
    let prompts = Prompts::new(3000, &mut rng, 30);
    for n in 0..2u32 {
        for node in 0..3000 {
            let path = prompts.path(node);
            let ids: Vec<u64> = path.iter().map(|n| *n as u64).collect();
            let locals: Vec<u64> = path.iter().map(|n| prompts.local[*n]).collect();
            let event = Stored { copies: Copies::Repeated, ..blocks(None, &ids, &locals) };
            index.stored(worker(n), &event);
        }
    }
    let full = index.stats();
    assert_eq!((full.blocks, full.held), (3000, 6000));
    let mut left: Vec<(u32, u64)> = (0..2).flat_map(|n| (0..3000).map(move |id| (n, id))).collect();
    while !left.is_empty() {
        let (n, id) = left.swap_remove(rng.below(left.len()));
        assert_eq!(index.removed(worker(n), Tier::Device, &[id]).changed, 1);
    }
    let empty = index.stats();
    assert_eq!((empty.runs, empty.blocks, empty.held), (0, 0, 0), "{empty:?}");
}

#[test]
fn a_block_with_two_ids_stays_until_both_are_removed() {
    for first in [1, 2] {
        let index = WorkerIndex::default();
        let contents = chain::chain(&[10, 20]);
        index.stored(worker(0), &blocks(None, &[1, 9], &[10, 20]));
        index.stored(worker(0), &blocks(None, &[2], &[10]));
        index.removed(worker(0), Tier::Device, &[first]);
        assert_eq!(device(&index, &contents), 2);
        index.removed(worker(0), Tier::Device, &[3 - first]);
        assert_eq!(device(&index, &contents), 0);
        assert_eq!(index.removed(worker(0), Tier::Device, &[1, 2]).unknown, 2);
        // Neither id means the block any more.
        index.stored(worker(0), &blocks(None, &[2], &[30]));
        assert_eq!(index.stored(worker(0), &blocks(Some(1), &[5], &[50])).parked, 1);
        assert_eq!(device(&index, &chain::chain(&[30])), 1);
    }
}

/// Among 300,000 ids many share the 16 bits by which the index first tells them apart, some dozen pairs 32.
#[test]
fn ids_that_share_bits_are_told_apart() {
    let index = WorkerIndex::default();
    let mut rng = Rng(4);
    let ids: Vec<u64> = (0..300_000).map(|_| rng.next()).collect();
    let locals: Vec<u64> = (0..300_000).map(|_| rng.next()).collect();
    for (id, local) in ids.chunks(1000).zip(locals.chunks(1000)) {
        index.stored(worker(0), &blocks(None, id, local));
    }
    let contents: Vec<Vec<u64>> = locals.chunks(1000).map(chain::chain).collect();
    for (chunk, contents) in ids.chunks(1000).zip(&contents) {
        assert_eq!(device(&index, contents), 1000);
        let removed: Vec<u64> = chunk.iter().rev().take(400).copied().collect();
        assert_eq!(index.removed(worker(0), Tier::Device, &removed).changed, 400);
        assert_eq!(device(&index, contents), 600);
    }
    assert_eq!(index.stats().held, 180_000);
    for contents in &contents {
        assert_eq!(device(&index, contents), 600);
    }
}
