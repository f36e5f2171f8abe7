//! The table of programs: what their answered prompts looked like, and what to expect of the next ones.
//!
//! - Purpose: say of each arriving turn how it relates to its program's earlier ones, where and why it leaves
//!   them, and how many of its tokens the session has in some cache already.
//! - Inputs: outlines, token ids where known, usage reports. Outputs: [`Arrival`], [`Inferred`].
//! - Expectation, best first: token ids of both prompts ([`Basis::Tokens`]); the engine's counts of the last turn,
//!   with its answer where `evidence` says so, when the body only grew; bytes in proportion between the ends of
//!   earlier prompts. Never rounded to blocks. Of a program's first prompt: what another program's prompt has in
//!   common with it.
//! - Bounds of an expectation are told only where nothing but the answer's way back is open: the body only grew, or
//!   is one that was answered before; nothing of the program runs beside it; no other program sent this beginning.
//! - Invariants: I-LTB-1 only answered turns are built on: an open turn is seen only by its repetition, and a
//!   withdrawn one was never there; I-LTB-2 programs, segments, token ids, branches and open turns are bounded by
//!   [`LineageConfig`] and [`OPEN_TURNS_MAX`]: the program that was quiet longest leaves first, token ids are given up
//!   before outlines; I-LTB-3 a ticket that is not known (expired, withdrawn, ended twice) is ignored; I-LTB-4 a side
//!   call is compared and not remembered; I-LTB-5 the index of prompts holds exactly the answered lines; I-LTB-6
//!   `low <= tokens <= high`.
//! - Deliberately absent: which worker holds what.

mod first;
mod infer;
mod judge;
mod program;
mod remembered;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tandem_types::{Harness, ProgramKey, Time, ToolCall, Usage};

use self::infer::Index;
use self::judge::{Judged, judge};
use self::program::{Branch, Line, Program};
use crate::divergence::{Divergence, Relation};
use crate::evidence::{Before, Resends};
use crate::limits::{FAMILIES_MAX, OPEN_TURNS_MAX};
use crate::outline::{Outline, call_id};
use crate::said::Said;

pub use self::infer::Inferred;
pub use self::remembered::{Learned, OUTLINES_VERSION, Remembered};

/// Bounds of the table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LineageConfig {
    /// Most programs remembered; the one that was quiet longest leaves first.
    pub programs_max: usize,
    /// Most segments remembered of all programs together (24 bytes each).
    pub segments_max: usize,
    /// Most token ids remembered of all programs together (4 bytes each, shared with the caller).
    pub tokens_max: usize,
    /// Most lines of conversation remembered under one id.
    pub branches_max: usize,
    /// A program that was quiet this long is forgotten.
    pub idle: Duration,
}

impl Default for LineageConfig {
    fn default() -> Self {
        Self {
            programs_max: 100_000,
            segments_max: 8 * 1024 * 1024,
            tokens_max: 32 * 1024 * 1024,
            branches_max: 8,
            idle: Duration::from_secs(3600),
        }
    }
}

/// A turn as it arrives.
#[derive(Debug, Clone, Copy)]
pub struct Arriving<'a> {
    /// Its body's outline.
    pub outline: &'a Outline,
    /// Its prompt's token ids, where known.
    pub tokens: Option<&'a Arc<[u32]>>,
    /// Who sent it: what is learned of one session helps others of the same harness and model.
    pub harness: Harness,
    /// The harness says that the history was compacted since the last turn.
    pub compacted: bool,
    /// A call beside the chain (compaction, title): compared, not remembered.
    pub side: bool,
}

/// Names one arrived turn until it has ended or was withdrawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(crate) u64);

/// On what an expectation rests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Nothing is known of earlier turns.
    Nothing,
    /// In proportion to bytes.
    Estimated,
    /// The last turn's prompt as the engine counted it; the body only grew.
    Prompt,
    /// The last turn's prompt and answer as the engine counted them: the harness is known to send answers back
    /// so that they become the same tokens.
    PromptAndAnswer,
    /// Token ids of both prompts.
    Tokens,
}

/// Leading prompt tokens that repeat what the session left in the cache, not rounded to blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Expected {
    /// How many.
    pub tokens: u64,
    /// On what that rests.
    pub basis: Basis,
    /// As many at least.
    pub low: u64,
    /// As many at most; `u64::MAX` = not known.
    pub high: u64,
}

impl Expected {
    /// Nothing is known.
    pub(crate) const NOTHING: Self = Self::open(0, Basis::Nothing);

    /// A number without bounds.
    pub(crate) const fn open(tokens: u64, basis: Basis) -> Self {
        Self { tokens, basis, low: 0, high: u64::MAX }
    }

    /// So many and no other number.
    pub(crate) const fn exact(tokens: u64, basis: Basis) -> Self {
        Self { tokens, basis, low: tokens, high: tokens }
    }
}

/// What a new prompt has to do with those before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// To hand back in [`Lineage::ended`] or [`Lineage::withdrawn`].
    pub ticket: Ticket,
    /// How it relates to the program's earlier prompts.
    pub relation: Relation,
    /// For a program's first prompt: the program whose whole prompt it begins with (a forked session).
    pub forked_from: Option<ProgramKey>,
    /// For a program's first prompt: the program with whose prompt it has the expected tokens in common.
    pub alike: Option<ProgramKey>,
    /// Where it leaves the last prompt before that one's end.
    pub divergence: Option<Divergence>,
    /// How many of its tokens repeat what the last turn left.
    pub expected: Expected,
    /// Tokens that the session had in all before this turn: the last prompt and its answer; 0 = none known.
    pub history: u64,
    /// It was compared with what an earlier run noted. Turns that came after that note are not known.
    pub remembered: bool,
    /// Tokens behind the divergence that the session had before at another place, estimated from bytes; `None`
    /// where the last prompt's length is not known.
    pub displaced: Option<u64>,
}

/// A turn's end.
#[derive(Debug, Clone, Copy)]
pub struct Ended<'a> {
    /// What the engine counted; `None` = it did not say.
    pub usage: Option<Usage>,
    /// The tools that the answer called.
    pub tool_calls: &'a [ToolCall],
    /// The answer's token ids, where known.
    pub answer: Option<&'a Arc<[u32]>>,
    /// Block size of the engine that answered, where known: how far its cached count is rounded down.
    pub block_size: Option<u32>,
    /// How the answer's text begins (64 bytes are enough), where it was that and no reasoning.
    pub text: Option<&'a [u8]>,
    /// The engine was known to have lost a part of what was expected to repeat: that it did not reuse it teaches
    /// nothing.
    pub lost: bool,
}

/// What is kept of a turn until it ends.
#[derive(Debug)]
struct Open {
    program: ProgramKey,
    branch: u32,
    line: Line,
    family: (u64, Harness),
    /// What its prompt follows, where its body only grew, and whether that answer called tools.
    follows: Option<(Before, bool)>,
    /// What was reported cached for it, where it is a program's first prompt and repeats no other whole one.
    head_cached: Option<u64>,
    starts: bool,
}

/// What was learned of programs from their prompts. One owner; bounded by its [`LineageConfig`].
#[derive(Debug)]
pub struct Lineage {
    config: LineageConfig,
    programs: BTreeMap<ProgramKey, Program>,
    /// Programs by the time of their last sign of life and a number that makes the key unique.
    quiet: BTreeMap<(Time, u64), ProgramKey>,
    opens: BTreeMap<Ticket, Open>,
    index: Index,
    /// Answered lines with token ids, oldest first.
    with_tokens: BTreeMap<Ticket, (ProgramKey, u32)>,
    families: BTreeMap<(u64, Harness), (Resends, u64)>,
    segments: usize,
    tokens: usize,
    numbers: u64,
}

impl Lineage {
    /// An empty table.
    #[must_use]
    pub const fn new(config: LineageConfig) -> Self {
        Self {
            config,
            programs: BTreeMap::new(),
            quiet: BTreeMap::new(),
            opens: BTreeMap::new(),
            index: Index::new(),
            with_tokens: BTreeMap::new(),
            families: BTreeMap::new(),
            segments: 0,
            tokens: 0,
            numbers: 0,
        }
    }

    /// Compares a turn with its program's earlier ones and remembers it.
    pub fn arrived(&mut self, program: &ProgramKey, arriving: &Arriving<'_>, now: Time) -> Arrival {
        let outline = arriving.outline;
        let family = (outline.style, arriving.harness);
        let learned = self.families.get(&family).map(|(resends, _)| *resends).unwrap_or_default();
        let judged = match self.programs.get(program) {
            Some(known) => judge(known, &self.opens, arriving, &learned),
            None => self.first(program, arriving, &learned),
        };
        let ticket = Ticket(self.number());
        if !arriving.side {
            self.open(ticket, program, arriving, &judged, now);
        }
        Arrival {
            ticket,
            relation: judged.relation,
            forked_from: judged.forked_from,
            alike: judged.alike,
            divergence: judged.divergence,
            expected: judged.expected,
            history: judged.history,
            remembered: judged.remembered,
            displaced: judged.displaced,
        }
    }

    fn open(
        &mut self,
        ticket: Ticket,
        program: &ProgramKey,
        arriving: &Arriving<'_>,
        judged: &Judged,
        now: Time,
    ) {
        self.touch(program, now);
        let number = self.numbers;
        let branches_max = self.config.branches_max.max(1);
        let Some(known) = self.programs.get_mut(program) else { return };
        if known.open_turns() >= OPEN_TURNS_MAX {
            return;
        }
        let branch = match judged.branch.filter(|id| known.branch(*id).is_some()) {
            Some(branch) => branch,
            None => known.add_branch(number),
        };
        if let Some(branch) = known.branch_mut(branch) {
            branch.open.push(ticket);
            branch.used = number;
        }
        let surplus = if known.branches.len() > branches_max { known.least_used(branch) } else { None };
        let mut line = Line::new(arriving.outline, arriving.tokens);
        (line.marks, line.shared) = (judged.marks.clone(), judged.shared);
        self.segments += line.segments.len();
        self.tokens += line.tokens_held();
        let family = (arriving.outline.style, arriving.harness);
        let starts = judged.relation == Relation::First && !judged.shared;
        let (program_key, follows) = (program.clone(), judged.follows);
        let open = Open { program: program_key, branch, line, family, follows, head_cached: None, starts };
        self.opens.insert(ticket, open);
        if let Some(surplus) = surplus {
            self.remove_branch(program, surplus);
        }
        self.bound(program);
    }

    /// The engine answered: its counts make the next turn's expectation exact.
    pub fn ended(&mut self, ticket: Ticket, ended: &Ended<'_>, now: Time) {
        let Some(mut open) = self.opens.remove(&ticket) else { return };
        self.learn(&open, ended);
        open.head_cached = ended.usage.and_then(|usage| usage.cached_tokens).filter(|_| open.starts);
        let line = &mut open.line;
        if let Some(usage) = ended.usage {
            line.counts = Some(Before { prompt: usage.input_tokens, answer: usage.output_tokens });
        }
        if let (Some(answer), true) = (ended.answer, line.tokens.is_some()) {
            line.answer = Some(Arc::clone(answer));
            self.tokens += answer.len();
        }
        line.calls = ended.tool_calls.iter().filter_map(|call| call.id.as_deref()).map(call_id).collect();
        line.called = !ended.tool_calls.is_empty();
        line.said = ended.text.filter(|text| !text.is_empty() && !line.called).map(Said::new);
        line.ticket = ticket;
        self.settle(open, now);
    }

    /// Puts an answered line in the place of the one before.
    fn settle(&mut self, open: Open, now: Time) {
        let Open { program, branch: id, line, head_cached, .. } = open;
        self.touch(&program, now);
        let number = self.numbers;
        let Some(branch) = self.programs.get_mut(&program).and_then(|known| known.branch_mut(id)) else {
            self.release(&line);
            return;
        };
        branch.open.retain(|ticket| *ticket != line.ticket);
        branch.used = number;
        if branch.line.as_ref().is_some_and(|known| known.ticket > line.ticket) {
            // A later turn of the same line was answered first.
            self.release(&line);
            return;
        }
        if line.tokens.is_some() {
            self.with_tokens.insert(line.ticket, (program.clone(), id));
        }
        self.index.insert(&program, id, &line, head_cached);
        let before = branch.line.replace(line);
        if let Some(before) = before {
            self.forget_line(&program, id, &before);
        }
        self.bound(&program);
    }

    /// The turn was rejected, failed or cancelled: as if it had never come.
    pub fn withdrawn(&mut self, ticket: Ticket) {
        let Some(open) = self.opens.remove(&ticket) else { return };
        self.release(&open.line);
        let Some(known) = self.programs.get_mut(&open.program) else { return };
        if let Some(branch) = known.branch_mut(open.branch) {
            branch.open.retain(|known| *known != ticket);
        }
        known.branches.retain(|branch| branch.line.is_some() || !branch.open.is_empty());
        if known.branches.is_empty() {
            self.end_session(&open.program);
        }
    }

    /// Forgets a program.
    pub fn end_session(&mut self, program: &ProgramKey) {
        let Some(known) = self.programs.remove(program) else { return };
        self.quiet.remove(&known.quiet);
        for branch in known.branches {
            self.drop_branch(program, branch);
        }
    }

    /// Forgets programs that were quiet too long.
    pub fn expire(&mut self, now: Time) {
        while let Some(((last, _), program)) = self.quiet.first_key_value() {
            if now.since(*last) < self.config.idle {
                return;
            }
            let program = program.clone();
            self.end_session(&program);
        }
    }

    /// Programs remembered.
    #[must_use]
    pub fn programs(&self) -> usize {
        self.programs.len()
    }

    /// Nothing is remembered but what was learned of harnesses and models.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.programs.is_empty()
            && self.quiet.is_empty()
            && self.opens.is_empty()
            && self.index.is_empty()
            && self.with_tokens.is_empty()
    }

    /// Segments remembered of all programs together.
    #[must_use]
    pub const fn segments(&self) -> usize {
        self.segments
    }

    /// Token ids remembered of all programs together.
    #[must_use]
    pub const fn tokens(&self) -> usize {
        self.tokens
    }

    fn learn(&mut self, open: &Open, ended: &Ended<'_>) {
        let Some((before, called)) = open.follows else { return };
        let Some(cached) = ended.usage.and_then(|usage| usage.cached_tokens) else { return };
        if let Some(known) = self.programs.get_mut(&open.program) {
            known.resends.of(called).observe(before, cached, ended.block_size, ended.lost);
        }
        let number = self.number();
        if self.families.len() >= FAMILIES_MAX && !self.families.contains_key(&open.family) {
            let oldest = self.families.iter().min_by_key(|(_, (_, used))| *used).map(|(family, _)| *family);
            if let Some(oldest) = oldest {
                self.families.remove(&oldest);
            }
        }
        let (resends, used) = self.families.entry(open.family).or_default();
        resends.of(called).observe(before, cached, ended.block_size, ended.lost);
        *used = number;
    }

    const fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// A sign of life.
    fn touch(&mut self, program: &ProgramKey, now: Time) {
        let quiet = (now, self.number());
        let known = self.programs.entry(program.clone()).or_insert_with(|| Program::new(quiet));
        self.quiet.remove(&known.quiet);
        known.quiet = quiet;
        self.quiet.insert(quiet, program.clone());
    }

    /// Makes room, never at the cost of `program`.
    fn bound(&mut self, program: &ProgramKey) {
        while self.tokens > self.config.tokens_max {
            let Some((_, (owner, id))) = self.with_tokens.pop_first() else { break };
            let branch = self.programs.get_mut(&owner).and_then(|known| known.branch_mut(id));
            if let Some(line) = branch.and_then(|branch| branch.line.as_mut()) {
                self.tokens -= line.tokens_held();
                (line.tokens, line.answer) = (None, None);
            }
        }
        while self.programs.len() > self.config.programs_max.max(1)
            || self.segments > self.config.segments_max
        {
            let Some(oldest) = self.quiet.values().find(|known| *known != program).cloned() else { return };
            self.end_session(&oldest);
        }
    }

    fn remove_branch(&mut self, program: &ProgramKey, id: u32) {
        let Some(known) = self.programs.get_mut(program) else { return };
        if let Some(at) = known.branches.iter().position(|branch| branch.id == id) {
            let branch = known.branches.remove(at);
            self.drop_branch(program, branch);
        }
    }

    fn drop_branch(&mut self, program: &ProgramKey, branch: Branch) {
        for ticket in branch.open {
            if let Some(open) = self.opens.remove(&ticket) {
                self.release(&open.line);
            }
        }
        if let Some(line) = branch.line {
            self.forget_line(program, branch.id, &line);
        }
    }

    fn forget_line(&mut self, program: &ProgramKey, id: u32, line: &Line) {
        self.index.remove(program, id, line);
        self.with_tokens.remove(&line.ticket);
        self.release(line);
    }

    fn release(&mut self, line: &Line) {
        self.segments -= line.segments.len();
        self.tokens -= line.tokens_held();
    }
}
