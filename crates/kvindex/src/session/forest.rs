//! The forest of runs: blocks, forks, branch ends; splitting and merging; what each worker must keep.
//!
//! Nothing here knows of sessions. A *fragment* is a tree whose first block follows one that is not known; it
//! is grafted when that block turns up.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::spread::Spread;

use super::holds::{Hold, TIERS, Workers};

/// Most blocks of one run: as many as bits in a word, so that residency of a run is one word per tier.
pub const RUN_BLOCKS: usize = 64;

/// No run.
pub(super) const NONE: u32 = u32::MAX;

/// Tables of block places, so that a resize moves a small part.
const PARTS: usize = 256;

/// A place: the block of that index in that run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) run: u32,
    pub(super) index: usize,
}

/// Where new blocks go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Below {
    /// A tree of their own, from a prompt's start.
    Root,
    /// A tree of their own that follows an unknown block.
    Unknown(u64),
    /// After a run's last block.
    Run(u32),
}

#[derive(Debug, Default)]
pub(super) struct Run {
    pub(super) blocks: Vec<u64>,
    /// A block's stored position minus this is its index: lets a run grow or lose its head without touching
    /// the places of the rest.
    base: u32,
    pub(super) parent: u32,
    kids: u32,
    /// All kids' numbers xored: the only kid's number when there is one.
    kids_mix: u32,
    /// Branches that end here.
    pub(super) ends: u32,
    /// By worker, ascending.
    pub(super) holds: Vec<Hold>,
    /// Scratch of walks: see [`Forest::next_mark`].
    pub(super) mark: u32,
}

/// A tree whose root follows an unknown block.
#[derive(Debug, Default)]
struct Fragment {
    above: u64,
    /// Sessions with branches in it, which grow when it is grafted.
    sessions: BTreeSet<u32>,
}

#[derive(Debug)]
pub(super) struct Forest {
    pub(super) runs: Vec<Run>,
    free: Vec<u32>,
    places: Vec<HashMap<u64, (u32, u32), Spread>>,
    blocks: usize,
    pub(super) workers: Workers,
    fragments: BTreeMap<u32, Fragment>,
    /// Unknown block to the fragments that follow it.
    waiting: BTreeMap<u64, Vec<u32>>,
    /// Sessions whose paths grew by grafts since this was last taken.
    pub(super) grafted: BTreeSet<u32>,
    /// Blocks below which something was grafted since this was last taken.
    graft_points: Vec<u64>,
    mark: u32,
    /// Grafts refused because they would have closed a circle.
    pub(super) circles: u64,
}

impl Forest {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            runs: Vec::new(),
            free: Vec::new(),
            places: (0..PARTS).map(|_| HashMap::with_hasher(Spread::new(seed))).collect(),
            blocks: 0,
            workers: Workers::default(),
            fragments: BTreeMap::new(),
            waiting: BTreeMap::new(),
            grafted: BTreeSet::new(),
            graft_points: Vec::new(),
            mark: 0,
            circles: 0,
        }
    }

    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    pub(super) fn runs(&self) -> usize {
        self.runs.len() - self.free.len()
    }

    pub(super) fn fragments(&self) -> usize {
        self.fragments.len()
    }

    pub(super) fn run(&self, run: u32) -> Option<&Run> {
        self.runs.get(run as usize)
    }

    pub(super) fn len(&self, run: u32) -> usize {
        self.run(run).map_or(0, |run| run.blocks.len())
    }

    pub(super) fn parent(&self, run: u32) -> u32 {
        self.run(run).map_or(NONE, |run| run.parent)
    }

    pub(super) fn find(&self, block: u64) -> Option<Spot> {
        let (run, position) = *self.places.get(part_of(block))?.get(&block)?;
        let base = self.run(run)?.base;
        Some(Spot { run, index: position.wrapping_sub(base) as usize })
    }

    pub(super) fn is_end(&self, spot: Spot) -> bool {
        spot.index + 1 == self.len(spot.run)
    }

    /// The block before this one; for a fragment's first block the unknown one that it follows.
    pub(super) fn previous(&self, spot: Spot) -> Option<u64> {
        let run = self.run(spot.run)?;
        if let Some(before) = spot.index.checked_sub(1) {
            return run.blocks.get(before).copied();
        }
        match self.run(run.parent) {
            Some(parent) => parent.blocks.last().copied(),
            None => self.fragments.get(&spot.run).map(|fragment| fragment.above),
        }
    }

    /// The tree's first run, and how many blocks lie before `run`.
    pub(super) fn root_of(&self, run: u32) -> (u32, usize) {
        let (mut at, mut before) = (run, 0);
        while let Some(parent) = self.run(at).map(|run| run.parent).filter(|parent| *parent != NONE) {
            at = parent;
            before += self.len(at);
        }
        (at, before)
    }

    /// The unknown block that a tree follows, if its root is a fragment's.
    pub(super) fn unknown_above(&self, root: u32) -> Option<u64> {
        self.fragments.get(&root).map(|fragment| fragment.above)
    }

    /// Remembers that a session has a branch in a fragment.
    pub(super) fn note_in_fragment(&mut self, root: u32, session: u32) {
        if let Some(fragment) = self.fragments.get_mut(&root) {
            fragment.sessions.insert(session);
        }
    }

    /// A mark that no run bears.
    pub(super) fn next_mark(&mut self) -> u32 {
        if self.mark == u32::MAX {
            for run in &mut self.runs {
                run.mark = 0;
            }
            self.mark = 0;
        }
        self.mark += 1;
        self.mark
    }

    pub(super) fn set_mark(&mut self, run: u32, mark: u32) {
        if let Some(run) = self.runs.get_mut(run as usize) {
            run.mark = mark;
        }
    }

    fn place(&mut self, block: u64, run: u32, position: u32) {
        if let Some(part) = self.places.get_mut(part_of(block)) {
            part.insert(block, (run, position));
        }
    }

    fn unplace(&mut self, block: u64) {
        if let Some(part) = self.places.get_mut(part_of(block)) {
            part.remove(&block);
            if part.capacity() > 16 && part.len() < part.capacity() / 4 {
                part.shrink_to(part.len() * 2);
            }
        }
    }

    fn new_run(&mut self, parent: u32) -> u32 {
        let run = Run { parent, ..Run::default() };
        if let Some(at) = self.free.pop() {
            if let Some(slot) = self.runs.get_mut(at as usize) {
                *slot = run;
            }
            return at;
        }
        self.runs.push(run);
        u32::try_from(self.runs.len() - 1).unwrap_or(NONE)
    }

    fn free_run(&mut self, run: u32) {
        if let Some(slot) = self.runs.get_mut(run as usize) {
            *slot = Run::default();
        }
        self.free.push(run);
    }

    fn change_kid(&mut self, parent: u32, kid: u32, delta: i32) {
        if let Some(run) = self.runs.get_mut(parent as usize) {
            run.kids = run.kids.saturating_add_signed(delta);
            run.kids_mix ^= kid;
        }
    }

    /// Puts blocks at the end of a run, as many as fit; how many did.
    pub(super) fn push(&mut self, run: u32, blocks: &[u64]) -> usize {
        let room = RUN_BLOCKS - self.len(run).min(RUN_BLOCKS);
        let taken = blocks.get(..room.min(blocks.len())).unwrap_or(&[]);
        let Some(slot) = self.runs.get_mut(run as usize) else { return 0 };
        let first = slot.base.wrapping_add(slot.blocks.len() as u32);
        slot.blocks.reserve_exact(if slot.blocks.is_empty() { taken.len() } else { room });
        slot.blocks.extend_from_slice(taken);
        let holders: Vec<u32> =
            slot.holds.iter().filter(|hold| hold.covers > 0).map(|hold| hold.worker).collect();
        for (position, block) in taken.iter().enumerate() {
            self.place(*block, run, first.wrapping_add(position as u32));
        }
        self.blocks += taken.len();
        for worker in holders {
            if self.hold(run, worker).covers > 0 {
                self.workers.add_working_set(worker, taken.len());
            }
        }
        self.graft(taken);
        taken.len()
    }

    /// Whether nothing follows a run, and one branch ends there: that branch may take it along.
    pub(super) fn only_end_below(&self, run: u32) -> bool {
        self.run(run).is_some_and(|run| run.kids == 0 && run.ends == 1)
    }

    /// Adds unknown blocks as new runs; the last of them. A branch must be ended there, or [`Forest::tidy`]
    /// takes them away again.
    pub(super) fn grow(&mut self, below: Below, blocks: &[u64]) -> u32 {
        let mut parent = match below {
            Below::Run(run) => run,
            Below::Root | Below::Unknown(_) => NONE,
        };
        for (at, chunk) in blocks.chunks(RUN_BLOCKS).enumerate() {
            let run = self.new_run(parent);
            self.change_kid(parent, run, 1);
            if let (0, Below::Unknown(above)) = (at, below) {
                self.fragments.insert(run, Fragment { above, sessions: BTreeSet::new() });
                self.waiting.entry(above).or_default().push(run);
            }
            self.push(run, chunk);
            parent = run;
        }
        parent
    }

    /// Hangs fragments below the blocks that they waited for.
    fn graft(&mut self, blocks: &[u64]) {
        if self.waiting.is_empty() {
            return;
        }
        for block in blocks {
            let Some(kids) = self.waiting.remove(block) else { continue };
            let Some(spot) = self.find(*block) else { continue };
            let parent = self.ending_at(spot);
            let (root, _) = self.root_of(parent);
            for kid in kids {
                let Some(fragment) = self.fragments.remove(&kid) else { continue };
                if kid == root {
                    self.circles += 1;
                    continue;
                }
                self.grafted.extend(&fragment.sessions);
                if let Some(outer) = self.fragments.get_mut(&root) {
                    outer.sessions.extend(fragment.sessions);
                }
                if let Some(run) = self.runs.get_mut(kid as usize) {
                    run.parent = parent;
                }
                self.change_kid(parent, kid, 1);
                for worker in self.coverers(kid) {
                    self.cover(parent, worker);
                }
            }
            self.graft_points.push(*block);
        }
    }

    /// Merges what grafts left mergeable; to be called when all branches have ends again.
    pub(super) fn tidy_grafts(&mut self) {
        for block in std::mem::take(&mut self.graft_points) {
            if let Some(spot) = self.find(block).filter(|spot| self.is_end(*spot)) {
                self.merge(spot.run);
            }
        }
    }

    /// The run that ends with this block, split off if need be. The part behind keeps its number if nothing
    /// follows it.
    pub(super) fn ending_at(&mut self, spot: Spot) -> u32 {
        if self.is_end(spot) {
            return spot.run;
        }
        let tail = spot.run;
        let keep = spot.index + 1;
        let parent = self.parent(tail);
        let head = self.new_run(parent);
        let workers = &self.workers;
        let (mut head_holds, mut tail_holds) = (Vec::new(), Vec::new());
        let Some(run) = self.runs.get_mut(tail as usize) else { return tail };
        for hold in run.holds.drain(..) {
            let mut upper = workers.today(hold);
            let mut lower = upper;
            upper.covers = u32::from(upper.covers > 0);
            for (up, low) in upper.bits.iter_mut().zip(&mut lower.bits) {
                *up &= low_bits(keep);
                *low >>= keep;
            }
            head_holds.extend((!upper.is_empty()).then_some(upper));
            tail_holds.extend((!lower.is_empty()).then_some(lower));
        }
        let blocks: Vec<u64> = run.blocks.drain(..keep).collect();
        run.blocks.shrink_to(run.blocks.len() * 2);
        run.base = run.base.wrapping_add(keep as u32);
        run.parent = head;
        run.holds = tail_holds;
        for (position, block) in blocks.iter().enumerate() {
            self.place(*block, head, position as u32);
        }
        if let Some(run) = self.runs.get_mut(head as usize) {
            run.blocks = blocks;
            run.kids = 1;
            run.kids_mix = tail;
            run.holds = head_holds;
        }
        self.replace_top(tail, head, parent);
        // The head may fit into its parent, which it follows alone, and the tail into its only kid.
        self.merge(parent);
        self.merge(tail);
        head
    }

    /// `new` stands where `old` stood: below `parent`, or as a fragment's first run.
    fn replace_top(&mut self, old: u32, new: u32, parent: u32) {
        self.change_kid(parent, old ^ new, 0);
        if let Some(fragment) = self.fragments.remove(&old) {
            for run in self.waiting.get_mut(&fragment.above).into_iter().flatten() {
                if *run == old {
                    *run = new;
                }
            }
            self.fragments.insert(new, fragment);
        }
    }

    /// Merges a run into its only child, if no branch ends between them and they fit into one.
    pub(super) fn merge(&mut self, run: u32) {
        let Some(upper) = self.run(run) else { return };
        let kid = upper.kids_mix;
        if upper.kids != 1 || upper.ends > 0 || upper.blocks.len() + self.len(kid) > RUN_BLOCKS {
            return;
        }
        let parent = upper.parent;
        let Some(upper) = self.runs.get_mut(run as usize).map(std::mem::take) else { return };
        let shift = upper.blocks.len();
        let workers = &self.workers;
        let Some(lower) = self.runs.get_mut(kid as usize) else { return };
        let mut merged: Vec<Hold> = Vec::with_capacity(lower.holds.len().max(upper.holds.len()));
        for hold in &lower.holds {
            let mut hold = workers.today(*hold);
            for bits in &mut hold.bits {
                *bits <<= shift;
            }
            merged.extend((!hold.is_empty()).then_some(hold));
        }
        for hold in &upper.holds {
            let hold = workers.today(*hold);
            match merged.binary_search_by_key(&hold.worker, |known| known.worker) {
                Ok(at) => {
                    if let Some(known) = merged.get_mut(at) {
                        for (to, from) in known.bits.iter_mut().zip(hold.bits) {
                            *to |= from;
                        }
                    }
                }
                Err(at) => {
                    if hold.bits != [0; TIERS] {
                        merged.insert(at, Hold { covers: 0, ..hold });
                    }
                }
            }
        }
        lower.holds = merged;
        lower.base = lower.base.wrapping_sub(shift as u32);
        lower.parent = parent;
        let base = lower.base;
        let mut blocks = Vec::with_capacity(shift + lower.blocks.len());
        blocks.extend_from_slice(&upper.blocks);
        blocks.append(&mut lower.blocks);
        lower.blocks = blocks;
        for (position, block) in upper.blocks.iter().enumerate() {
            self.place(*block, kid, base.wrapping_add(position as u32));
        }
        self.free_run(run);
        self.replace_top(run, kid, parent);
    }

    /// Takes away what no branch needs, from this run upwards, and merges what may be merged.
    pub(super) fn tidy(&mut self, run: u32) {
        let mut at = run;
        while let Some(state) = self.run(at) {
            if state.kids > 0 || state.ends > 0 {
                self.merge(at);
                return;
            }
            let parent = state.parent;
            let Some(state) = self.runs.get_mut(at as usize).map(std::mem::take) else { return };
            for hold in &state.holds {
                let hold = self.workers.today(*hold);
                for (tier, bits) in hold.bits.iter().enumerate() {
                    self.workers.count_resident(hold.worker, tier, 0, bits.count_ones());
                }
            }
            for block in &state.blocks {
                self.unplace(*block);
            }
            self.blocks -= state.blocks.len();
            if let Some(fragment) = self.fragments.remove(&at)
                && let Some(runs) = self.waiting.get_mut(&fragment.above)
            {
                runs.retain(|run| *run != at);
                if runs.is_empty() {
                    self.waiting.remove(&fragment.above);
                }
            }
            self.free_run(at);
            self.change_kid(parent, at, -1);
            at = parent;
        }
    }

    /// Bytes held, from capacities.
    pub(super) fn bytes(&self) -> usize {
        let runs: usize = self
            .runs
            .iter()
            .map(|run| run.blocks.capacity() * size_of::<u64>() + run.holds.capacity() * size_of::<Hold>())
            .sum();
        let places: usize = self.places.iter().map(|part| part.capacity() * 19).sum();
        runs + places + self.runs.capacity() * size_of::<Run>() + self.free.capacity() * size_of::<u32>()
    }
}

/// The lowest `count` bits.
pub(super) const fn low_bits(count: usize) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

fn part_of(block: u64) -> usize {
    (block.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize
}
