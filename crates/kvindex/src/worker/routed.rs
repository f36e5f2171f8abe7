//! What workers probably hold, because prompts were sent there.
//!
//! - Purpose: overlap for engines that publish no events, and between a dispatch and the events that confirm it.
//! - Inputs: each dispatch, as (worker, prompt's content hashes, time); the time passing. Outputs: [`Matches`]
//!   as the worker index gives them, all of it in `device`.
//! - Invariants:
//!   - I-RTD-1 with [`Keep::For`], a block counts until that long after the last dispatch that contained it, no
//!     longer and no shorter, as far as [`RoutedIndex::expire`] was told of the time;
//!   - I-RTD-2 with [`Keep::Blocks`], no worker is credited with more blocks than its bound, what was sent last
//!     is credited whole, and of a dispatch the end goes before the beginning;
//!   - I-RTD-3 a dispatch that was withdrawn counts no longer; what other dispatches share with it may go too
//!     where it covered all of theirs.
//! - Deliberately absent: generated tokens (the next dispatch brings them), the engines' evictions.
//! - Sources: dynamo-kv-router 1.6.1 for the default of 120 s.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tandem_types::{Time, WorkerId};

use super::matching::Matches;
use super::roster::Roster;
use super::runs::{Forest, Piece, RunNo};

/// How long a dispatched prompt is believed to be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// For this time after it was last sent.
    For(Duration),
    /// While it is among the last so many blocks that were sent to the worker.
    Blocks(usize),
}

impl Default for Keep {
    fn default() -> Self {
        Self::For(Duration::from_secs(120))
    }
}

/// A dispatch, to withdraw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route(u64);

/// Leading blocks of a run, and until when.
#[derive(Debug, Clone, Copy)]
struct Step {
    len: u32,
    until: u64,
}

/// One worker's dispatches.
#[derive(Debug)]
struct Routes {
    number: u32,
    /// Of each run: ever shorter beginnings that last ever longer.
    steps: BTreeMap<RunNo, Vec<Step>>,
    /// What ends next; some of it was renewed since.
    queue: VecDeque<(u64, RunNo)>,
    blocks: usize,
    /// Most blocks that the worker is credited with, besides what is to be kept at all.
    most: usize,
    last: u64,
    pieces: Vec<Piece>,
}

impl From<u32> for Routes {
    fn from(number: u32) -> Self {
        Self {
            number,
            steps: BTreeMap::new(),
            queue: VecDeque::new(),
            blocks: 0,
            most: usize::MAX,
            last: 0,
            pieces: Vec::new(),
        }
    }
}

/// What workers probably hold. All methods take `&self`, from any thread.
#[derive(Debug)]
pub struct RoutedIndex {
    forest: Forest,
    roster: Roster<Routes>,
    keep: Keep,
}

impl Default for RoutedIndex {
    fn default() -> Self {
        Self::new(Keep::default())
    }
}

impl RoutedIndex {
    /// An empty index.
    #[must_use]
    pub fn new(keep: Keep) -> Self {
        Self { forest: Forest::new(), roster: Roster::new(), keep }
    }

    /// A prompt was sent to a worker. `chain` = content hashes of its whole blocks, from the first. `None` = a
    /// bound is reached and nothing was noted.
    pub fn routed(&self, worker: WorkerId, chain: &[u64], now: Time) -> Option<Route> {
        self.roster
            .with(worker, |routes| {
                let (until, most) = match self.keep {
                    Keep::For(time) => ((now + time).0.max(routes.last), routes.most),
                    Keep::Blocks(blocks) => (routes.last + 1, blocks.min(routes.most)),
                };
                routes.last = until;
                let chain = chain.get(..chain.len().min(most)).unwrap_or(chain);
                let stored = routes.add(&self.forest, chain, until);
                let over = matches!(self.keep, Keep::For(_));
                routes.end(&self.forest, |end, blocks| over && end <= now.0 || blocks > most && end < until);
                stored.then_some(Route(until))
            })
            .flatten()
    }

    /// A worker's cache has room for so many blocks: it is never credited with more, but for dispatches of the same
    /// instant. Holds until the worker is removed.
    pub fn bound(&self, worker: WorkerId, blocks: usize) {
        self.roster.with(worker, |routes| routes.most = blocks);
    }

    /// A dispatch did not come about, or events tell better now what it left behind.
    pub fn withdraw(&self, worker: WorkerId, chain: &[u64], route: Route) {
        self.roster.with_known(worker, |routes| {
            for (run, len) in self.forest.path(chain) {
                routes.drop_step(&self.forest, run, |step| step.until == route.0 && step.len <= len);
            }
        });
    }

    /// Time has come to `now`: forgets what has ended ([`Keep::For`]).
    pub fn expire(&self, now: Time) {
        if matches!(self.keep, Keep::For(_)) {
            self.roster.each(|routes| routes.end(&self.forest, |end, _| end <= now.0));
        }
    }

    /// A worker's cache was dropped, or the worker is gone.
    pub fn remove_worker(&self, worker: WorkerId) {
        self.roster.remove(worker, |routes| {
            for run in routes.steps.keys() {
                self.forest.drop_run(*run, routes.number, None);
            }
        });
    }

    /// How much of a prompt each worker probably holds.
    pub fn find(&self, chain: &[u64], out: &mut Matches) {
        let names = self.roster.names();
        out.walk(&self.forest, chain, |number| names.get(number));
    }

    /// Blocks with which workers are credited, summed over workers.
    #[must_use]
    pub fn credited(&self) -> usize {
        let mut blocks = 0;
        self.roster.each(|routes| blocks += routes.blocks);
        blocks
    }
}

impl Routes {
    fn add(&mut self, forest: &Forest, chain: &[u64], until: u64) -> bool {
        let mut pieces = std::mem::take(&mut self.pieces);
        pieces.clear();
        let stored = forest.store(None, chain, self.number, 0, |piece| pieces.push(piece)).is_ok();
        // The end of the prompt is queued first, so that it goes first.
        for piece in pieces.iter().rev() {
            let steps = self.steps.entry(piece.run).or_default();
            let before = steps.first().map_or(0, |s| s.len);
            steps.retain(|s| s.len > piece.end);
            steps.push(Step { len: piece.end, until });
            self.blocks += (steps.first().map_or(0, |s| s.len) - before) as usize;
            self.queue.push_back((until, piece.run));
        }
        self.pieces = pieces;
        stored
    }

    /// Ends what is first in the queue while `due` says so, by its end and the blocks now credited.
    fn end(&mut self, forest: &Forest, due: impl Fn(u64, usize) -> bool) {
        while let Some(&(until, run)) = self.queue.front() {
            if !due(until, self.blocks) {
                break;
            }
            self.queue.pop_front();
            self.drop_step(forest, run, |step| step.until == until);
        }
    }

    fn drop_step(&mut self, forest: &Forest, run: RunNo, which: impl Fn(&Step) -> bool) {
        let Some(steps) = self.steps.get_mut(&run) else { return };
        let before = steps.first().map_or(0, |s| s.len);
        steps.retain(|s| !which(s));
        let after = steps.first().map_or(0, |s| s.len);
        if steps.is_empty() {
            self.steps.remove(&run);
        }
        if after < before {
            self.blocks -= (before - after) as usize;
            forest.drop_blocks(run, self.number, 0, (after, before), |_, _, _| {});
        }
    }
}
