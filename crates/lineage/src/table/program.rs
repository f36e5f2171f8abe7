//! One program: its lines of conversation and what it taught.

use std::sync::Arc;

use tandem_types::Time;

use super::Ticket;
use crate::evidence::{Before, Resends};
use crate::limits::MARKS_MAX;
use crate::outline::{Outline, Segment, SegmentKind, bytes};
use crate::said::Said;

/// Where an earlier prompt of a line ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    /// Its segments: so many of the line's leading ones.
    pub(super) segments: usize,
    /// Its tokens, as the engine counted them.
    pub(super) tokens: u64,
}

/// A prompt, and what is known of the turn that it belongs to.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) ticket: Ticket,
    pub(super) segments: Arc<[Segment]>,
    pub(super) bytes: u64,
    pub(super) folded: bool,
    pub(super) tokens: Option<Arc<[u32]>>,
    pub(super) answer: Option<Arc<[u32]>>,
    pub(super) counts: Option<Before>,
    /// The answer called tools.
    pub(super) called: bool,
    /// Ids of its tool calls, hashed.
    pub(super) calls: Vec<u64>,
    /// How its answer begins, where that was a text and nothing but it.
    pub(super) said: Option<Said>,
    /// Where earlier prompts ended within it, ascending; at most [`MARKS_MAX`].
    pub(super) marks: Vec<Mark>,
    /// Another program sent this beginning, too: what follows may be in the cache already.
    pub(super) shared: bool,
    /// An earlier run noted it.
    pub(super) remembered: bool,
}

impl Line {
    pub(super) fn new(outline: &Outline, tokens: Option<&Arc<[u32]>>) -> Self {
        Self {
            ticket: Ticket(0),
            segments: Arc::clone(&outline.segments),
            bytes: bytes(&outline.segments),
            folded: outline.folded,
            tokens: tokens.cloned(),
            answer: None,
            counts: None,
            called: false,
            calls: Vec::new(),
            said: None,
            marks: Vec::new(),
            shared: false,
            remembered: false,
        }
    }

    /// The marks of a line that has the first `common` segments of this one.
    pub(super) fn marks_within(&self, common: usize) -> Vec<Mark> {
        // Where a raw prompt ends within a piece, a longer one has as many.
        let ends = self.segments.last().is_some_and(|last| last.kind != SegmentKind::RawTail);
        let own = self.counts.filter(|_| ends);
        let own = own.map(|counts| Mark { segments: self.segments.len(), tokens: counts.prompt });
        let within = self.marks.iter().copied().chain(own).filter(|mark| mark.segments <= common);
        let mut marks: Vec<Mark> = within.collect();
        let surplus = marks.len().saturating_sub(MARKS_MAX);
        marks.drain(..surplus);
        marks
    }

    pub(super) fn tokens_held(&self) -> usize {
        let length = |tokens: &Option<Arc<[u32]>>| tokens.as_ref().map_or(0, |tokens| tokens.len());
        length(&self.tokens) + length(&self.answer)
    }

    /// Tokens of the prompt.
    pub(super) fn prompt_tokens(&self) -> Option<u64> {
        self.counts.map(|counts| counts.prompt).or_else(|| self.tokens.as_ref().map(|ids| ids.len() as u64))
    }
}

/// One line of conversation.
#[derive(Debug)]
pub(super) struct Branch {
    pub(super) id: u32,
    /// Its last answered turn.
    pub(super) line: Option<Line>,
    /// Turns of it that are not answered yet.
    pub(super) open: Vec<Ticket>,
    /// Rises with each use.
    pub(super) used: u64,
}

/// One program.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) branches: Vec<Branch>,
    pub(super) quiet: (Time, u64),
    pub(super) resends: Resends,
    next_branch: u32,
}

impl Program {
    pub(super) fn new(quiet: (Time, u64)) -> Self {
        Self { branches: Vec::new(), quiet, resends: Resends::default(), next_branch: 0 }
    }

    pub(super) fn branch(&self, id: u32) -> Option<&Branch> {
        self.branches.iter().find(|branch| branch.id == id)
    }

    pub(super) fn branch_mut(&mut self, id: u32) -> Option<&mut Branch> {
        self.branches.iter_mut().find(|branch| branch.id == id)
    }

    pub(super) fn add_branch(&mut self, used: u64) -> u32 {
        let id = self.next_branch;
        self.next_branch = self.next_branch.wrapping_add(1);
        self.branches.push(Branch { id, line: None, open: Vec::new(), used });
        id
    }

    /// Whether nothing of a branch runs, and it is the one used last: what its last turn left is all that is new.
    pub(super) fn settled(&self, id: u32) -> bool {
        let last = self.branches.iter().max_by_key(|branch| branch.used);
        last.is_some_and(|branch| branch.id == id && branch.open.is_empty())
    }

    pub(super) fn open_turns(&self) -> usize {
        self.branches.iter().map(|branch| branch.open.len()).sum()
    }

    /// The branch that was used least recently, those without open turns first; never `keep`.
    pub(super) fn least_used(&self, keep: u32) -> Option<u32> {
        let others = self.branches.iter().filter(|branch| branch.id != keep);
        others.min_by_key(|branch| (!branch.open.is_empty(), branch.used)).map(|branch| branch.id)
    }
}
