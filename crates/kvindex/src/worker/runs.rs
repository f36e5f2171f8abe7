//! The forest: chains of blocks, cut into runs, with the spans that workers hold of them.
//!
//! A content hash names a block *and all before it*, so a run needs neither a link to its parent for walking
//! nor a tree around it: a walk compares hashes inside a run and, where that ends, looks for a run that starts
//! with the next hash. A run branches off anywhere without being split.
//!
//! - I-RUN-1 a content hash lies in at most one place;
//! - I-RUN-2 whoever is in the forest has all its ancestors in it, held or not;
//! - I-RUN-3 a place is used again only when nobody holds what lay there.
//!
//! Locks: stripes (by parent) before shards; never two stripes or two shards at once.

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::HeldBlock;
use super::span::{Span, Spans};
use super::table::Table;

/// Bits of a place that number the block in its run.
const POSITION_BITS: u32 = 8;
/// Most blocks in a run.
pub(super) const RUN_BLOCKS: usize = 1 << POSITION_BITS;
const SHARD_BITS: u32 = 8;
const SHARDS: usize = 1 << SHARD_BITS;
/// Most runs in one shard; the last number is kept free, so that no place equals the table's mark.
const RUNS_PER_SHARD: usize = (1 << (32 - POSITION_BITS - SHARD_BITS)) - 1;
const STRIPES: usize = 64;
const NO_PLACE: u32 = u32::MAX;

/// Number of a run: slot in its shard, then shard.
pub(super) type RunNo = u32;

/// Where a block lies: run number, then position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place(pub(super) u32);

impl Place {
    pub(super) const fn new(run: RunNo, position: usize) -> Self {
        Self(run << POSITION_BITS | position as u32)
    }

    pub(super) const fn run(self) -> RunNo {
        self.0 >> POSITION_BITS
    }

    pub(super) const fn position(self) -> u32 {
        self.0 & (RUN_BLOCKS as u32 - 1)
    }
}

#[derive(Debug)]
pub(super) struct Run {
    /// Content hashes in order.
    pub(super) blocks: Vec<u64>,
    pub(super) spans: Spans,
    /// Place of the block before the first one.
    parent: u32,
    /// Runs that branch off here.
    children: u32,
    /// Blocks that the children need.
    pinned: u16,
}

#[derive(Debug, Default)]
pub(super) struct Shard {
    heads: Table,
    pub(super) runs: Vec<Run>,
    free: Vec<u32>,
}

/// A stretch of blocks that was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) run: RunNo,
    pub(super) start: u32,
    pub(super) end: u32,
    /// Parts that the worker held in this tier already.
    pub(super) had: Vec<(u32, u32)>,
    /// Parts that it held in any tier.
    pub(super) known: Vec<(u32, u32)>,
}

/// What became of a block that a worker gave up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dropped {
    /// The worker did not hold it in this tier.
    NotHeld,
    /// It is still there: in another tier of the worker.
    Left,
    /// The worker holds it in no tier.
    Lost,
}

/// Where a store continues: the block before, and its content hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cursor {
    pub(super) place: Place,
    pub(super) content: u64,
}

/// Why blocks could not be placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unplaced {
    /// The block before is not there any more.
    NoParent,
    /// No run number is free.
    Full,
}

/// What is known of runs that branch off where blocks are to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Branches {
    Unknown,
    /// Their number does not grow: the stripe is held.
    Still,
    /// As before, and none starts with the blocks.
    None,
}

/// Where blocks went.
enum Followed {
    Piece(Piece),
    /// Nowhere yet: a run of theirs is to be made, and its parent knows of it.
    Branched,
    /// Nowhere: there may be a run of theirs.
    Unsure,
}

#[derive(Debug)]
pub(super) struct Forest {
    shards: Vec<RwLock<Shard>>,
    stripes: Vec<Mutex<()>>,
}

const fn shard_of_content(content: u64) -> usize {
    (content >> 32) as usize & (SHARDS - 1)
}

/// Tag of a head: bits that do not choose the shard.
const fn head_tag(content: u64) -> u32 {
    content as u32
}

const fn slot_of(run: RunNo) -> usize {
    (run >> SHARD_BITS) as usize
}

const fn run_no(shard: usize, slot: usize) -> RunNo {
    (slot << SHARD_BITS | shard) as u32
}

const fn short(n: usize) -> u32 {
    n as u32
}

impl Shard {
    pub(super) fn head(&self, content: u64) -> Option<RunNo> {
        let starts = |run: u32| self.run(run).is_some_and(|r| r.blocks.first() == Some(&content));
        self.heads.find(head_tag(content), starts)
    }

    pub(super) fn run(&self, run: RunNo) -> Option<&Run> {
        self.runs.get(slot_of(run))
    }

    fn run_mut(&mut self, run: RunNo) -> Option<&mut Run> {
        self.runs.get_mut(slot_of(run))
    }

    /// The run of a block, if the block is still there.
    fn at_mut(&mut self, at: Cursor) -> Option<&mut Run> {
        let run = self.run_mut(at.place.run())?;
        (run.blocks.get(at.place.position() as usize) == Some(&at.content)).then_some(run)
    }

    fn enter(&mut self, head: u64, contents: &[u64], worker: u32, tier: u8) -> Option<Piece> {
        let no = self.head(head)?;
        let run = self.run_mut(no)?;
        let common = run.common(0, contents);
        Some(run.hold(no, worker, tier, (0, common)))
    }

    fn open(&mut self, shard: usize, parent: u32) -> Option<RunNo> {
        let run = Run { blocks: Vec::new(), spans: Spans::default(), parent, children: 0, pinned: 0 };
        if let Some(no) = self.free.pop() {
            if let Some(slot) = self.run_mut(no) {
                *slot = run;
            }
            return Some(no);
        }
        if self.runs.len() >= RUNS_PER_SHARD {
            return None;
        }
        if self.runs.len() == self.runs.capacity() {
            self.runs.reserve_exact((self.runs.len() / 2).max(4));
        }
        self.runs.push(run);
        Some(run_no(shard, self.runs.len() - 1))
    }

    /// Cuts off blocks at the end that nobody needs; frees the run when none is left. Returns the place of
    /// the parent of a run that was freed.
    fn trim(&mut self, no: RunNo) -> Option<u32> {
        let run = self.run_mut(no)?;
        if run.spans.is_empty() && run.children == 0 {
            let head = run.blocks.first().copied()?;
            let parent = std::mem::replace(&mut run.parent, NO_PLACE);
            run.blocks = Vec::new();
            self.heads.remove(head_tag(head), no);
            if self.free.len() == self.free.capacity() {
                self.free.reserve_exact((self.free.len() / 8).max(4));
            }
            self.free.push(no);
            return Some(parent);
        }
        let held = run.spans.end(short(run.blocks.len()));
        run.blocks.truncate(usize::from(run.pinned).max(held as usize).max(1));
        if run.blocks.len() * 2 < run.blocks.capacity() {
            run.blocks.shrink_to(run.blocks.len() * 9 / 8);
        }
        None
    }
}

impl Run {
    /// Leading blocks of `chain` that continue this run after `from`.
    fn common(&self, from: usize, chain: &[u64]) -> usize {
        let blocks = self.blocks.get(from..).unwrap_or(&[]);
        let most = blocks.len().min(chain.len());
        let same = |n: usize| blocks.get(n) == chain.get(n);
        if most == 0 || !same(0) {
            return 0;
        }
        if same(most - 1) {
            return most;
        }
        // Hashes are chained: once two differ, all later ones do.
        let (mut low, mut high) = (1, most - 1);
        while low < high {
            let middle = low + (high - low) / 2;
            if same(middle) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Leading blocks of `chain` that this run has, from its start.
    pub(super) fn matching(&self, chain: &[u64]) -> usize {
        self.common(0, chain)
    }

    fn hold(&mut self, no: RunNo, worker: u32, tier: u8, range: (usize, usize)) -> Piece {
        let (start, end) = (short(range.0), short(range.1));
        let overlap = |s: &Span| (s.start().max(start), s.end().min(end));
        let known = self.spans.of(worker).iter().map(overlap).filter(|(a, b)| a < b).collect();
        let mut had = Vec::new();
        self.spans.add(worker, tier, start, end, |a, b| had.push((a, b)));
        Piece { run: no, start, end, had, known }
    }

    /// Takes blocks `start..end` out of a worker's tier; tells what became of them, part by part.
    fn give_up(
        &mut self,
        worker: u32,
        tier: u8,
        (start, end): (u32, u32),
        outcome: &mut impl FnMut(u32, u32, Dropped),
    ) {
        if !self.spans.remove(worker, tier, start, end) {
            if end - start == 1 {
                outcome(start, end, Dropped::NotHeld);
            } else {
                for at in start..end {
                    self.give_up(worker, tier, (at, at + 1), outcome);
                }
            }
            return;
        }
        let others = self.spans.of(worker);
        if others.iter().all(|s| s.end() <= start || end <= s.start()) {
            outcome(start, end, Dropped::Lost);
            return;
        }
        for at in start..end {
            let left = others.iter().any(|s| s.covers(at));
            outcome(at, at + 1, if left { Dropped::Left } else { Dropped::Lost });
        }
    }

    fn append(&mut self, contents: &[u64]) -> usize {
        let count = contents.len().min(RUN_BLOCKS - self.blocks.len());
        let have = self.blocks.capacity() - self.blocks.len();
        if have < count {
            let spare = if self.blocks.is_empty() { 0 } else { (self.blocks.len() / 8).max(4) };
            self.blocks.reserve_exact(count.max(spare.min(RUN_BLOCKS - self.blocks.len())));
        }
        self.blocks.extend(contents.iter().take(count));
        count
    }
}

impl Forest {
    pub(super) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            stripes: (0..STRIPES).map(|_| Mutex::default()).collect(),
        }
    }

    fn lock(&self, shard: usize) -> Option<RwLockWriteGuard<'_, Shard>> {
        self.shards.get(shard).map(|s| s.write().unwrap_or_else(PoisonError::into_inner))
    }

    fn read(&self, shard: usize) -> Option<RwLockReadGuard<'_, Shard>> {
        self.shards.get(shard).map(|s| s.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The shard in which a run that starts with this content lies.
    pub(super) fn read_for(&self, content: u64) -> Option<RwLockReadGuard<'_, Shard>> {
        self.read(shard_of_content(content))
    }

    fn shard_of(run: RunNo) -> usize {
        run as usize & (SHARDS - 1)
    }

    fn stripe(&self, parent: u64) -> Option<MutexGuard<'_, ()>> {
        let at = (parent >> 40) as usize % STRIPES;
        self.stripes.get(at).map(|s| s.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Content hash of the block at a place, if it is still there.
    pub(super) fn content(&self, place: Place) -> Option<u64> {
        let shard = self.read(Self::shard_of(place.run()))?;
        shard.run(place.run())?.blocks.get(place.position() as usize).copied()
    }

    /// Whether a worker holds the block in any tier.
    pub(super) fn held(&self, place: Place, worker: u32) -> bool {
        let Some(shard) = self.read(Self::shard_of(place.run())) else { return false };
        let Some(run) = shard.run(place.run()) else { return false };
        let at = place.position();
        run.spans.of(worker).iter().any(|s| s.start() <= at && at < s.end())
    }

    /// The block at a place, if a worker holds it.
    pub(super) fn block(&self, place: Place, worker: u32) -> Option<HeldBlock> {
        let shard = self.read(Self::shard_of(place.run()))?;
        let run = shard.run(place.run())?;
        let content = *run.blocks.get(place.position() as usize)?;
        let at = place.position();
        let mut tiers = [false; 3];
        for span in run.spans.of(worker).iter().filter(|s| s.start() <= at && at < s.end()) {
            if let Some(tier) = tiers.get_mut(usize::from(span.tier())) {
                *tier = true;
            }
        }
        tiers.contains(&true).then_some(HeldBlock { content, tiers })
    }

    /// Puts the blocks `contents` after `cursor` and into the worker's tier; tells where, piece by piece, under no
    /// lock. Pieces stored before an error stay stored.
    pub(super) fn store(
        &self,
        mut cursor: Option<Cursor>,
        mut contents: &[u64],
        worker: u32,
        tier: u8,
        mut each: impl FnMut(Piece),
    ) -> Result<(), Unplaced> {
        while !contents.is_empty() {
            let piece = match cursor {
                None => self.enter_or_open(None, contents, worker, tier).ok_or(Unplaced::Full)?,
                Some(at) => match self.follow(at, contents, worker, tier, Branches::Unknown)? {
                    Followed::Piece(piece) => piece,
                    Followed::Branched | Followed::Unsure => self.branch(at, contents, worker, tier)?,
                },
            };
            let count = (piece.end - piece.start) as usize;
            if let Some(last) = contents.get(count - 1) {
                let place = Place::new(piece.run, piece.end as usize - 1);
                cursor = Some(Cursor { place, content: *last });
            }
            contents = contents.get(count..).unwrap_or(&[]);
            each(piece);
        }
        Ok(())
    }

    /// Blocks that already follow in the same run, or that can be appended to it; else notes a branch where that is
    /// certain to come.
    fn follow(
        &self,
        at: Cursor,
        contents: &[u64],
        worker: u32,
        tier: u8,
        branches: Branches,
    ) -> Result<Followed, Unplaced> {
        let no = at.place.run();
        let mut shard = self.lock(Self::shard_of(no)).ok_or(Unplaced::NoParent)?;
        let run = shard.at_mut(at).ok_or(Unplaced::NoParent)?;
        let from = at.place.position() as usize + 1;
        let none = run.children == 0 || branches == Branches::None;
        let mut count = run.common(from, contents);
        if count == 0 && none && from == run.blocks.len() {
            count = run.append(contents);
        }
        if count > 0 {
            return Ok(Followed::Piece(run.hold(no, worker, tier, (from, from + count))));
        }
        if !none || branches == Branches::Unknown {
            return Ok(Followed::Unsure);
        }
        run.children += 1;
        run.pinned = run.pinned.max(u16::try_from(from).unwrap_or(u16::MAX));
        Ok(Followed::Branched)
    }

    /// Blocks of a run that branches off at `at`, the run being made where there is none.
    fn branch(&self, at: Cursor, contents: &[u64], worker: u32, tier: u8) -> Result<Piece, Unplaced> {
        let _stripe = self.stripe(at.content);
        let mut followed = self.follow(at, contents, worker, tier, Branches::Still)?;
        if matches!(followed, Followed::Unsure) {
            if let Some(piece) = self.enter(contents, worker, tier) {
                return Ok(piece);
            }
            followed = self.follow(at, contents, worker, tier, Branches::None)?;
        }
        if let Followed::Piece(piece) = followed {
            return Ok(piece);
        }
        let opened = self.enter_or_open(Some(at.place), contents, worker, tier);
        if opened.is_none() {
            self.release(at.place.0);
        }
        opened.ok_or(Unplaced::Full)
    }

    /// Blocks of a run that starts with them, if there is one.
    fn enter(&self, contents: &[u64], worker: u32, tier: u8) -> Option<Piece> {
        let head = *contents.first()?;
        self.lock(shard_of_content(head))?.enter(head, contents, worker, tier)
    }

    /// Blocks of a run that starts with them, the run being made where there is none.
    fn enter_or_open(&self, parent: Option<Place>, contents: &[u64], worker: u32, tier: u8) -> Option<Piece> {
        let head = *contents.first()?;
        let home = shard_of_content(head);
        let mut shard = self.lock(home)?;
        if parent.is_none()
            && let Some(piece) = shard.enter(head, contents, worker, tier)
        {
            return Some(piece);
        }
        let no = shard.open(home, parent.map_or(NO_PLACE, |p| p.0))?;
        shard.heads.insert(head_tag(head), no);
        let run = shard.run_mut(no)?;
        let count = run.append(contents);
        Some(run.hold(no, worker, tier, (0, count)))
    }

    /// A run that branched off at `parent` is gone.
    fn release(&self, mut parent: u32) {
        while parent != NO_PLACE {
            let no = Place(parent).run();
            let Some(mut shard) = self.lock(Self::shard_of(no)) else { return };
            let Some(run) = shard.run_mut(no) else { return };
            run.children = run.children.saturating_sub(1);
            if run.children == 0 {
                run.pinned = 0;
            }
            match shard.trim(no) {
                Some(next) => parent = next,
                None => return,
            }
        }
    }

    /// Adds one more tier to a block that is there; tells whether it was in it already.
    pub(super) fn attach(&self, place: Place, worker: u32, tier: u8) -> bool {
        let Some(mut shard) = self.lock(Self::shard_of(place.run())) else { return true };
        let Some(run) = shard.run_mut(place.run()) else { return true };
        let mut had = false;
        run.spans.add(worker, tier, place.position(), place.position() + 1, |_, _| had = true);
        had
    }

    /// Takes blocks `start..end` of one run out of a worker's tier; tells what became of them, part by part.
    pub(super) fn drop_blocks(
        &self,
        no: RunNo,
        worker: u32,
        tier: u8,
        range: (u32, u32),
        mut outcome: impl FnMut(u32, u32, Dropped),
    ) {
        let Some(mut shard) = self.lock(Self::shard_of(no)) else { return };
        let Some(run) = shard.run_mut(no) else { return };
        run.give_up(worker, tier, range, &mut outcome);
        let freed = shard.trim(no);
        drop(shard);
        self.release(freed.unwrap_or(NO_PLACE));
    }

    /// Takes all that a worker holds of a run in one tier, or in all.
    pub(super) fn drop_run(&self, no: RunNo, worker: u32, tier: Option<u8>) {
        let Some(mut shard) = self.lock(Self::shard_of(no)) else { return };
        let Some(run) = shard.run_mut(no) else { return };
        run.spans.remove_worker(worker, tier);
        let freed = shard.trim(no);
        drop(shard);
        self.release(freed.unwrap_or(NO_PLACE));
    }

    /// The runs that a prompt leads through, with the blocks of each that it has.
    pub(super) fn path(&self, mut chain: &[u64]) -> Vec<(RunNo, u32)> {
        let mut path = Vec::new();
        while let Some(&next) = chain.first() {
            let Some(shard) = self.read_for(next) else { break };
            let Some(no) = shard.head(next) else { break };
            let common = shard.run(no).map_or(0, |run| run.matching(chain));
            if common == 0 {
                break;
            }
            path.push((no, short(common)));
            chain = chain.get(common..).unwrap_or(&[]);
        }
        path
    }

    /// Runs in use and blocks in them, held or not.
    pub(super) fn size(&self) -> (usize, usize) {
        let mut size = (0, 0);
        for shard in &self.shards {
            let shard = shard.read().unwrap_or_else(PoisonError::into_inner);
            for run in shard.runs.iter().filter(|r| !r.blocks.is_empty()) {
                size.0 += 1;
                size.1 += run.blocks.len();
            }
        }
        size
    }
}
