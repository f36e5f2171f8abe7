//! One worker as the writer knows it: its event stream, and a *lane* for each of its full-attention cache groups.
//!
//! The worker index knows lanes, not workers. A hybrid model keeps a block in several groups, and can reuse it only
//! where all of them have it: each group's copies, orphans and tiers are then its own, and a worker's prefix is the
//! shortest of its lanes'. Most workers have one lane.

use tandem_kvwire::hash::block::Shape;
use tandem_types::{EngineKind, Time, WorkerId};

use crate::knowledge::Stream;
use crate::prompt::gcd;
use crate::stats::EventCounts;
use crate::store::Hold;
use crate::view::lane_id;
use crate::{GROUPS_MAX, Knowledge, WorkerSpec};

/// One full-attention cache group of a worker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lane {
    /// The engine's number of it.
    pub(crate) group: u32,
    /// Its name in the worker index; never used again.
    pub(crate) no: u32,
    pub(crate) shape: Shape,
}

impl Lane {
    pub(crate) const fn id(&self) -> WorkerId {
        lane_id(self.no)
    }
}

#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) spec: WorkerSpec,
    pub(crate) stream: Stream,
    /// In the order in which they were first heard of.
    pub(crate) lanes: Vec<Lane>,
    /// Cache groups that do not bound a prefix; [`GROUPS_MAX`] of them at most.
    others: Vec<u32>,
    /// It holds blocks of which its events never told: their children's parents are unknown.
    pub(crate) hollow: bool,
    pub(crate) hold: Option<Hold>,
    /// Its events arrive.
    pub(crate) told: bool,
    /// What was last told to readers.
    pub(crate) knowledge: Option<Knowledge>,
    pub(crate) counts: EventCounts,
}

/// What to do with the blocks of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fit {
    /// They go into this lane.
    Lane(usize),
    /// Their group is new.
    New,
    /// The group's blocks are of another size than was thought: what is known of it is void.
    Resized(usize),
    /// A part of a block: engines with a finer match unit publish those too.
    Partial,
    /// The worker has too many groups.
    Full,
}

impl Worker {
    pub(crate) fn new(spec: WorkerSpec, now: Time) -> Self {
        let stream = Stream::new(spec.events, now);
        Self {
            spec,
            stream,
            lanes: Vec::new(),
            others: Vec::new(),
            hollow: false,
            hold: None,
            told: false,
            knowledge: None,
            counts: EventCounts::default(),
        }
    }

    /// How it cuts prompts: as its events say, else as it was told, else as everybody does.
    pub(crate) fn shape(&self, block_size: u32) -> Shape {
        let lookahead = self.hold.as_ref().map_or(0, |hold| hold.lookahead);
        let told = Shape { block_size: self.spec.block_size.unwrap_or(block_size).max(1), lookahead };
        self.lanes.first().map_or(told, |lane| lane.shape)
    }

    /// Where blocks of `size` tokens of a group go. A part of a block comes alone, at the end of what was computed;
    /// several blocks of another size than expected, or a larger one, mean that the expectation was wrong.
    pub(crate) fn fit(&self, group: u32, size: u32, blocks: usize) -> Fit {
        match self.lanes.iter().position(|lane| lane.group == group) {
            Some(at) => match self.lanes.get(at).map_or(0, |lane| lane.shape.block_size) {
                known if known == size => Fit::Lane(at),
                known if size < known && blocks == 1 => Fit::Partial,
                _ => Fit::Resized(at),
            },
            None if blocks == 1 && self.spec.block_size.is_some_and(|told| size < told) => Fit::Partial,
            None if self.lanes.len() >= GROUPS_MAX => Fit::Full,
            None => Fit::New,
        }
    }

    /// Lanes that an event of a group is about. Events without a description often leave the group out: where the
    /// first one is no lane, they are about whichever knows the block.
    pub(crate) fn about(&self, group: u32) -> Vec<Lane> {
        match self.lanes.iter().find(|lane| lane.group == group) {
            Some(lane) => vec![*lane],
            None if group == 0 && !self.others.contains(&0) => self.lanes.clone(),
            None => Vec::new(),
        }
    }

    /// Blocks of this group do not bound a prefix.
    pub(crate) fn sets_aside(&mut self, group: u32) {
        if !self.others.contains(&group) && self.others.len() < GROUPS_MAX {
            self.others.push(group);
        }
    }

    /// Whether the engine drops all of its tiers when it clears its cache, and not the device's alone.
    pub(crate) fn clears_all_tiers(&self) -> bool {
        self.spec.kind == EngineKind::Sglang
    }

    /// Tokens at a multiple of which the prefixes of all lanes end.
    pub(crate) fn step(&self, block_size: u32) -> u64 {
        let lcm = |a: u64, b: u64| (a / gcd(a, b).max(1)).saturating_mul(b);
        let sizes = self.lanes.iter().map(|lane| u64::from(lane.shape.block_size));
        sizes.fold(1, lcm).max(if self.lanes.is_empty() { u64::from(block_size) } else { 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(sizes: &[u32], told: Option<u32>) -> Worker {
        let mut worker = Worker::new(WorkerSpec::new(EngineKind::Vllm, true), Time::ZERO);
        worker.spec.block_size = told;
        for (no, size) in (0..).zip(sizes) {
            let shape = Shape { block_size: *size, lookahead: 0 };
            worker.lanes.push(Lane { group: no, no, shape });
        }
        worker
    }

    #[test]
    fn parts_of_blocks_are_told_from_another_block_size() {
        let known = worker(&[64], None);
        assert_eq!(known.fit(0, 64, 3), Fit::Lane(0));
        assert_eq!(known.fit(0, 32, 1), Fit::Partial);
        assert_eq!(known.fit(0, 32, 2), Fit::Resized(0));
        assert_eq!(known.fit(0, 128, 1), Fit::Resized(0));
        assert_eq!(known.fit(1, 32, 1), Fit::New);
        let told = worker(&[], Some(64));
        assert_eq!(
            [told.fit(0, 32, 1), told.fit(0, 32, 2), told.fit(0, 64, 1)],
            [Fit::Partial, Fit::New, Fit::New]
        );
        assert_eq!(worker(&[16; GROUPS_MAX], None).fit(99, 16, 1), Fit::Full);
    }

    #[test]
    fn a_prefix_ends_where_all_groups_end() {
        assert_eq!(
            [&[16][..], &[16, 48], &[32, 48], &[]].map(|sizes| worker(sizes, None).step(16)),
            [16, 48, 96, 16]
        );
    }
}
