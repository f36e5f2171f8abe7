//! The ids by which one worker's engine calls its blocks.
//!
//! - Purpose: from an id to its block and back out again, at little more than the cost of reading the events.
//! - Inputs: blocks that the worker came to hold, with their ids; blocks that it lost. Outputs: where the block of an
//!   id lies.
//! - Engines keep to chains: they store a chain's next blocks, and what they evict they evict along it, from its
//!   tail (vLLM) or node by node (SGLang). So ids lie here in the order of the blocks, run by run, and the first look
//!   is at the neighbours of what came last. What is not there is searched: each id has a mark in one of many
//!   *classes*, chosen by the id, a list that only grows at its end. Entering an id writes to memory that was
//!   written just before; a search reads a few hundred marks in a row, and where one fits the few ids it may be of:
//!   it says in which part of a run the block lies, no more, so that four bytes do for each id.
//! - Invariants:
//!   - I-NAM-1 the block of an id is found from when the id was given until the block is lost, whatever was given
//!     and lost in between; after that it is not;
//!   - I-NAM-2 an id that was given to two blocks means one of them, and the other when that is lost;
//!   - I-NAM-3 marks of lost blocks are swept before they outnumber those of held ones by more than a constant.
//! - Deliberately absent: tiers and copies (the forest, the worker's state).
//! - Sources: vLLM 0.11 to 0.33 (`FreeKVCacheBlockQueue`: a request's blocks are freed last block first), SGLang
//!   0.5.5 to 0.5.23 (`RadixCache.evict`: leaf by leaf).

mod class;
mod hold;

use std::collections::{BTreeMap, HashMap};

use class::{Class, PARTS};
use hold::{GONE, Hold};

use super::runs::{Place, RunNo};
use crate::spread::Spread;

const POSITION_BITS: u32 = 8;
/// Positions of a part of a run: a search reads that many ids, some cache lines in a row, where it finds a mark.
const PART_IDS: u32 = (1 << POSITION_BITS) / PARTS;
/// Ids of a class, at most, after a sweep.
const CLASS_IDS: usize = 1024;
/// Marks of a class, on average, that make a sweep due: a search reads two bytes for each.
const CLASS_MARKS: usize = 2 * CLASS_IDS;
/// Held blocks for each slot of the table of ends.
const BLOCKS_PER_END: usize = 16;
/// Marks of lost blocks, beside as many as there are held ones, before they are swept.
const SPARE_MARKS: usize = 256;

/// Where an id lies: number of the hold, then position in its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct At(u32);

impl At {
    /// No id's: there are fewer runs than that.
    const NONE: Self = Self(u32::MAX);

    const fn new(hold: u32, position: u32) -> Self {
        Self(hold << POSITION_BITS | position)
    }

    const fn hold(self) -> usize {
        (self.0 >> POSITION_BITS) as usize
    }

    pub(super) const fn position(self) -> u32 {
        self.0 & ((1 << POSITION_BITS) - 1)
    }
}

/// Class bits and mark of an id; engines may count instead of hashing.
const fn spread(id: u64) -> (usize, u16) {
    let x = (id ^ (id >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((x >> 32) as usize, (x >> 48) as u16)
}

/// Ids that follow each other as blocks do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stretch {
    /// How many ids these are.
    pub(super) count: usize,
    /// First position in the run.
    pub(super) start: u32,
    /// One more than the last.
    pub(super) end: u32,
}

/// The ids of one worker.
#[derive(Debug)]
pub(super) struct Names {
    holds: Vec<Hold>,
    free: Vec<u32>,
    by_run: HashMap<RunNo, u32, Spread>,
    /// As many as a power of two, or none.
    classes: Vec<Class>,
    /// Marks in all classes.
    marks: usize,
    held: usize,
    /// Second ids of a block.
    others: BTreeMap<u64, At>,
    /// Where chains were last seen to end, by their ids: some are forgotten. As many as a power of two, or none.
    ends: Vec<At>,
    stored: At,
    removed: At,
}

impl Default for Names {
    fn default() -> Self {
        Self {
            holds: Vec::new(),
            free: Vec::new(),
            by_run: HashMap::default(),
            classes: Vec::new(),
            marks: 0,
            held: 0,
            others: BTreeMap::new(),
            ends: Vec::new(),
            stored: At::NONE,
            removed: At::NONE,
        }
    }
}

impl Names {
    /// Blocks that have ids.
    pub(super) const fn len(&self) -> usize {
        self.held
    }

    /// The runs in which the worker holds blocks.
    pub(super) fn runs(&self) -> impl Iterator<Item = RunNo> + '_ {
        self.holds.iter().filter(|h| h.held > 0).map(|h| h.run)
    }

    /// The block that an id names.
    pub(super) fn place(&self, id: u64) -> Option<Place> {
        let at = self.locate(id)?;
        Some(Place::new(self.run(at)?, at.position() as usize))
    }

    /// The run of a block.
    pub(super) fn run(&self, at: At) -> Option<RunNo> {
        Some(self.holds.get(at.hold())?.run)
    }

    /// The block that an id names, after which blocks are to be stored.
    pub(super) fn parent(&mut self, id: u64) -> Option<Place> {
        let at = self.seek(id, |end| [self.stored, end])?;
        self.stored = at;
        Some(Place::new(self.run(at)?, at.position() as usize))
    }

    /// Where the block of an id lies.
    pub(super) fn locate(&self, id: u64) -> Option<At> {
        let [below, above] = [self.removed.0.wrapping_sub(1), self.removed.0.wrapping_add(1)].map(At);
        self.seek(id, |end| [below, end, above])
    }

    /// Where the block of an id lies, by a look at `likely` places first; one that the table of ends tells is given.
    fn seek<const N: usize>(&self, id: u64, likely: impl FnOnce(At) -> [At; N]) -> Option<At> {
        if !self.others.is_empty()
            && let Some(at) = self.others.get(&id)
        {
            return Some(*at);
        }
        if id == GONE {
            return None;
        }
        let (bits, mark) = spread(id);
        let end = self.ends.get(bits & self.ends.len().wrapping_sub(1)).copied().unwrap_or(At::NONE);
        if let Some(at) = likely(end).into_iter().find(|at| self.names(*at, id)) {
            return Some(at);
        }
        let class = self.classes.get(bits & self.classes.len().wrapping_sub(1))?;
        class.find(mark, |low, part| {
            let from = part * PART_IDS;
            // Few workers have holds beyond those that the low bits tell apart; theirs are tried one by one.
            let mut holds = self.holds.iter().enumerate().skip(usize::from(low)).step_by(1 << u16::BITS);
            holds.find_map(|(hold, h)| Some(At::new(hold as u32, h.find(id, from, from + PART_IDS)?)))
        })
    }

    fn names(&self, at: At, id: u64) -> bool {
        self.holds.get(at.hold()).and_then(|h| h.id(at.position())) == Some(id)
    }

    /// A chain ends at `at` now: the next store or removal may name that block.
    fn end_at(&mut self, at: At) {
        let id = self.holds.get(at.hold()).and_then(|h| h.id(at.position()));
        let mask = self.ends.len().wrapping_sub(1);
        if let Some(end) = id.and_then(|id| self.ends.get_mut(spread(id).0 & mask)) {
            *end = at;
        }
    }

    /// How many of `ids`, the first of which lies at `at`, follow each other down or up a run.
    pub(super) fn stretch(&mut self, at: At, ids: &[u64]) -> Stretch {
        let first = at.position();
        let one = Stretch { count: 1, start: first, end: first + 1 };
        self.removed = at;
        let Some(hold) = self.holds.get(at.hold()) else { return one };
        let Some(from) = (first as usize).checked_sub(usize::from(hold.base)) else { return one };
        let next = ids.get(1..).unwrap_or_default();
        let same = |(id, there): &(&u64, &u64)| id == there && **id != GONE;
        let below = hold.ids.get(..from).unwrap_or_default();
        let down = next.iter().zip(below.iter().rev()).take_while(same).count();
        if down > 0 {
            let start = first - down as u32;
            self.removed = At::new(at.hold() as u32, start);
            return Stretch { count: down + 1, start, end: first + 1 };
        }
        let above = hold.ids.get(from + 1..).unwrap_or_default();
        let up = next.iter().zip(above).take_while(same).count();
        self.removed = At::new(at.hold() as u32, first + up as u32);
        Stretch { count: up + 1, start: first, end: first + up as u32 + 1 }
    }

    /// The worker holds blocks of a run from `start` on, which have these ids. Those in `known` it held before.
    pub(super) fn give(&mut self, run: RunNo, start: u32, ids: &[u64], known: &[(u32, u32)]) {
        let Some(last) = (ids.len() as u32).checked_sub(1) else { return };
        let hold = self.hold_of(run);
        let mut done = 0;
        for (from, to) in known.iter().map(|(a, b)| ((a - start) as usize, (b - start) as usize)) {
            self.enter(hold, start + done as u32, ids.get(done..from).unwrap_or_default());
            for (position, id) in (start + from as u32..).zip(ids.get(from..to).unwrap_or_default()) {
                self.call(At::new(hold, position), *id);
            }
            done = to.max(done);
        }
        self.enter(hold, start + done as u32, ids.get(done..).unwrap_or_default());
        self.stored = At::new(hold, start + last);
        self.end_at(self.stored);
        self.sweep();
    }

    fn hold_of(&mut self, run: RunNo) -> u32 {
        // Mostly blocks go on where their parent lies.
        let last = self.stored.hold();
        if self.holds.get(last).is_some_and(|h| h.run == run && h.held > 0) {
            return last as u32;
        }
        if let Some(hold) = self.by_run.get(&run) {
            return *hold;
        }
        let hold = Hold { run, ..Hold::default() };
        let number = match self.free.pop() {
            Some(number) => {
                if let Some(slot) = self.holds.get_mut(number as usize) {
                    *slot = hold;
                }
                number
            }
            None => {
                if self.holds.len() == self.holds.capacity() {
                    self.holds.reserve_exact((self.holds.len() / 8).max(2));
                }
                self.holds.push(hold);
                self.holds.len() as u32 - 1
            }
        };
        self.by_run.insert(run, number);
        number
    }

    /// Ids of blocks that were not held.
    fn enter(&mut self, number: u32, start: u32, ids: &[u64]) {
        let Some(hold) = self.holds.get_mut(number as usize).filter(|_| !ids.is_empty()) else { return };
        hold.put(start, ids);
        hold.held += ids.len() as u16;
        self.held += ids.len();
        self.marks += ids.len();
        if self.classes.is_empty() {
            self.classes.push(Class::default());
        }
        let mask = self.classes.len() - 1;
        for (position, id) in (start..).zip(ids) {
            let (bits, mark) = spread(*id);
            if let Some(class) = self.classes.get_mut(bits & mask) {
                class.push(mark, number, position / PART_IDS);
            }
        }
        if !self.others.is_empty() {
            for id in ids {
                self.others.remove(id);
            }
        }
        if let Some(nth) = ids.iter().rposition(|id| *id == GONE) {
            self.others.insert(GONE, At::new(number, start + nth as u32));
        }
    }

    /// One more id of a block that is held.
    fn call(&mut self, at: At, id: u64) {
        let first = self.holds.get(at.hold()).and_then(|h| h.id(at.position()));
        if first != Some(id) || id == GONE {
            self.others.insert(id, at);
        }
    }

    /// The worker lost blocks `start..end` of the run in which `at` lies.
    pub(super) fn lose(&mut self, at: At, start: u32, end: u32) {
        let number = at.hold();
        let Some(hold) = self.holds.get_mut(number) else { return };
        hold.drop(start, end);
        let end_before = start.checked_sub(1).map(|p| At::new(number as u32, p));
        hold.held = hold.held.saturating_sub((end - start) as u16);
        self.held -= (end - start) as usize;
        if hold.held == 0 {
            self.by_run.remove(&hold.run);
            hold.ids = Vec::new();
            self.free.push(number as u32);
        }
        if !self.others.is_empty() {
            self.others.retain(|_, o| o.hold() != number || !(start..end).contains(&o.position()));
        }
        if let Some(at) = end_before {
            self.end_at(at);
        }
        self.sweep();
    }

    /// The worker lost all blocks but those that `held` names.
    pub(super) fn retain(&mut self, mut held: impl FnMut(Place) -> bool) {
        let mut lost: Vec<At> = Vec::new();
        for (number, hold) in (0..).zip(&self.holds).filter(|(_, h)| h.held > 0) {
            for (position, id) in (u32::from(hold.base)..).zip(&hold.ids) {
                if *id != GONE && !held(Place::new(hold.run, position as usize)) {
                    lost.push(At::new(number, position));
                }
            }
        }
        for at in self.others.values() {
            let run = self.run(*at);
            lost.extend(run.filter(|r| !held(Place::new(*r, at.position() as usize))).map(|_| *at));
        }
        lost.sort_unstable_by_key(|at| at.0);
        lost.dedup();
        for at in lost {
            self.lose(at, at.position(), at.position() + 1);
        }
    }

    /// Makes the marks anew where too many are of lost blocks, or in a class.
    fn sweep(&mut self) {
        if self.marks <= self.held * 2 + SPARE_MARKS && self.marks <= self.classes.len() * CLASS_MARKS {
            return;
        }
        let classes = if self.held == 0 { 0 } else { self.held.div_ceil(CLASS_IDS).next_power_of_two() };
        self.classes = Vec::new();
        self.classes.resize_with(classes, Class::default);
        self.ends = vec![At::NONE; (self.held / BLOCKS_PER_END).next_power_of_two()];
        self.marks = 0;
        for (number, hold) in (0..).zip(&self.holds) {
            for (position, id) in (u32::from(hold.base)..).zip(&hold.ids).filter(|(_, id)| **id != GONE) {
                let (bits, mark) = spread(*id);
                if let Some(class) = self.classes.get_mut(bits & (classes - 1)) {
                    class.push(mark, number, position / PART_IDS);
                    self.marks += 1;
                }
            }
        }
        if self.held == 0 {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests;
