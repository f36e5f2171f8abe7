//! Whose turn a request without identity is.
//!
//! - A prompt *continues* an answered line when the line's prompt is its beginning, segment by segment, and the first
//!   thing behind that is the model's. The line must have something of a conversation (a system prompt alone is
//!   everybody's), must have no turn that is not answered yet, and the appended part may have no more runs of the
//!   model's segments than the answer had tool calls (one, if none).
//! - Ids of tool calls are made by the engine for one answer: if the answer had ids, one of them must be among
//!   the appended calls, and no appended call may have another id; an answer without calls is not continued by calls.
//! - A line whose last segment is a user's may also be continued by a prompt in which that segment stands last
//!   again, behind what was appended (OpenClaw). Whole continuations come first.
//! - Of several lines the longest is taken; of equally long ones, which then are identical, one whose tool calls
//!   fit; else the one that arrived last: identical lines can be exchanged, because the one that is not taken stays for
//!   the other's next turn.
//! - I-INF-1 two conversations with one beginning never become one program: a line is continued once, because its
//!   successor takes its place. I-INF-2 a tenant sees only its own.
//! - Raw prompts have no turns, so nothing is inferred from them.

use std::collections::BTreeMap;

use tandem_types::{Dialect, ProgramKey, SessionId, TenantId, Time};
use xxhash_rust::xxh3::xxh3_64;

use super::program::Line;
use super::{Lineage, Ticket};
use crate::compare::is_tail;
use crate::outline::{Outline, Segment, SegmentKind, pair};

/// Beginnings of a prompt that are looked up, longest first.
const BOUNDARIES_MAX: usize = 64;

/// Whose turn a request without identity is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inferred {
    /// The program.
    pub program: ProgramKey,
    /// It was there before; else its id is made up now.
    pub continues: bool,
}

/// Answered lines by the hash of their whole prompt, and by that of all but its last segment where that may move.
#[derive(Debug)]
pub(super) struct Index {
    lines: BTreeMap<u64, Vec<(ProgramKey, u32)>>,
    heads: BTreeMap<u64, Head>,
}

/// System prompt and tools of an answered line: of several lines with the same ones the last.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) program: ProgramKey,
    pub(super) branch: u32,
    ticket: Ticket,
    /// Most tokens that were reported cached for a first prompt with this head.
    pub(super) cached: Option<u64>,
}

impl Head {
    /// Whether this line was the last one with the head.
    pub(super) fn is_of(&self, line: &Line) -> bool {
        self.ticket == line.ticket
    }
}

impl Index {
    pub(super) const fn new() -> Self {
        Self { lines: BTreeMap::new(), heads: BTreeMap::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.heads.is_empty()
    }

    /// Takes in an answered line. `cached`: what was reported for it, where it was its program's first prompt.
    pub(super) fn insert(&mut self, program: &ProgramKey, branch: u32, line: &Line, cached: Option<u64>) {
        if let Some((head, _)) = head(&program.tenant, &line.segments) {
            let known = self.heads.get(&head).and_then(|known| known.cached);
            let cached = known.max(cached);
            let program = program.clone();
            self.heads.insert(head, Head { program, branch, ticket: line.ticket, cached });
        }
        for key in keys(&program.tenant, &line.segments) {
            self.lines.entry(key).or_default().push((program.clone(), branch));
        }
    }

    /// The head of a prompt, where an answered line has it, and how many segments it is.
    pub(super) fn head(&self, tenant: &TenantId, segments: &[Segment]) -> Option<(&Head, usize)> {
        let (key, length) = head(tenant, segments)?;
        Some((self.heads.get(&key)?, length))
    }

    /// Whether an answered line has this very prompt.
    pub(super) fn same(&self, tenant: &TenantId, segments: &[Segment]) -> Option<&[(ProgramKey, u32)]> {
        let key = segments.iter().fold(start(tenant), |chain, segment| pair(chain, segment.hash));
        self.lines.get(&key).map(Vec::as_slice)
    }

    pub(super) fn remove(&mut self, program: &ProgramKey, branch: u32, line: &Line) {
        if let Some((key, _)) = head(&program.tenant, &line.segments)
            && self.heads.get(&key).is_some_and(|known| known.ticket == line.ticket)
        {
            self.heads.remove(&key);
        }
        for key in keys(&program.tenant, &line.segments) {
            let Some(lines) = self.lines.get_mut(&key) else { continue };
            if let Some(at) = lines.iter().position(|(known, id)| known == program && *id == branch) {
                lines.swap_remove(at);
            }
            if lines.is_empty() {
                self.lines.remove(&key);
            }
        }
    }
}

/// The key of a prompt's head, and its segments; `None` for prompts without system prompt and tools.
fn head(tenant: &TenantId, segments: &[Segment]) -> Option<(u64, usize)> {
    let head = segments.iter().take_while(|segment| segment.kind.is_head());
    let mut told = false;
    let (key, length) = head.fold((!start(tenant), 0), |(chain, length), segment| {
        told |= segment.kind != SegmentKind::Parameter;
        (pair(chain, segment.hash), length + 1)
    });
    told.then_some((key, length))
}

/// The keys of a line: its whole prompt, and all but a last segment that may move.
fn keys(tenant: &TenantId, segments: &[Segment]) -> impl Iterator<Item = u64> {
    let mut chain = start(tenant);
    let mut before = chain;
    for segment in segments {
        before = chain;
        chain = pair(chain, segment.hash);
    }
    let moves = moves_last(segments).then_some(!before);
    std::iter::once(chain).chain(moves)
}

fn start(tenant: &TenantId) -> u64 {
    xxh3_64(tenant.as_str().as_bytes())
}

/// Whether the last segment may be one that a harness keeps last.
fn moves_last(segments: &[Segment]) -> bool {
    matches!(segments, [.., before, last] if is_tail(last.kind) && !before.kind.is_head())
}

/// A place in a new prompt where an answered prompt may end.
struct Boundary {
    /// Segments before it.
    at: usize,
    chain: u64,
    /// Runs of the model's segments behind it.
    runs: usize,
}

fn boundaries(tenant: &TenantId, outline: &Outline) -> Vec<Boundary> {
    let mut found = Vec::new();
    let mut chain = start(tenant);
    let mut before: Option<SegmentKind> = None;
    let mut talk = false;
    for (at, segment) in outline.segments.iter().enumerate() {
        let answer = segment.kind.is_models() && before.is_some_and(|kind| !kind.is_models());
        if answer && talk {
            found.push(Boundary { at, chain, runs: 0 });
        }
        talk |= !segment.kind.is_head();
        chain = pair(chain, segment.hash);
        before = Some(segment.kind);
    }
    for (behind, boundary) in found.iter_mut().rev().enumerate() {
        boundary.runs = behind + 1;
    }
    found.reverse();
    found.truncate(BOUNDARIES_MAX);
    found
}

impl Lineage {
    /// The live program whose next turn this is; `None` = none, or it cannot be told.
    #[must_use]
    pub fn infer(&self, tenant: &TenantId, outline: &Outline, now: Time) -> Option<ProgramKey> {
        if outline.dialect == Dialect::Completions || outline.folded {
            return None;
        }
        let boundaries = boundaries(tenant, outline);
        let whole = boundaries.iter().map(|boundary| (boundary, false));
        let moved = boundaries.iter().map(|boundary| (boundary, true));
        whole.chain(moved).find_map(|(boundary, moved)| self.continued(outline, boundary, moved, now))
    }

    fn continued(
        &self,
        outline: &Outline,
        boundary: &Boundary,
        moved: bool,
        now: Time,
    ) -> Option<ProgramKey> {
        let key = if moved { !boundary.chain } else { boundary.chain };
        let candidates = self.index.lines.get(&key)?;
        let fits = candidates.iter().filter_map(|(program, id)| {
            let known = self.programs.get(program)?;
            let branch = known.branch(*id)?;
            let line = branch.line.as_ref()?;
            let alive = now.since(known.quiet.0) < self.config.idle;
            let fits = alive
                && branch.open.is_empty()
                && continues(line, outline, boundary, moved)
                && boundary.runs <= line.calls.len().max(1);
            fits.then_some((!line.calls.is_empty(), line.ticket, program))
        });
        fits.max().map(|(_, _, program)| program.clone())
    }

    /// The program of a request without identity: [`Self::infer`], else a made-up id that no other program has.
    /// `None` for what no turn can follow: a raw prompt, or nothing of a conversation. To be followed by
    /// [`Self::arrived`] before the table is used for anything else, or two turns may get one program.
    #[must_use]
    pub fn identify(&mut self, tenant: &TenantId, outline: &Outline, now: Time) -> Option<Inferred> {
        if let Some(program) = self.infer(tenant, outline, now) {
            return Some(Inferred { program, continues: true });
        }
        let talk = outline.segments.iter().any(|segment| !segment.kind.is_head());
        if outline.dialect == Dialect::Completions || !talk {
            return None;
        }
        let prompt = outline.segments.iter().fold(start(tenant), |chain, segment| pair(chain, segment.hash));
        let session = SessionId::new(&format!("inferred-{prompt:016x}-{}", self.number())).ok()?;
        Some(Inferred { program: ProgramKey::root(tenant.clone(), session), continues: false })
    }

    /// The branch of another program whose last answered prompt is this one, or its beginning.
    pub(super) fn fork_of(&self, program: &ProgramKey, outline: &Outline) -> Option<(ProgramKey, u32)> {
        let tenant = &program.tenant;
        let twin = self.index.same(tenant, &outline.segments).and_then(|lines| {
            self.last_of(lines, |line| begins(&line.segments, outline, outline.segments.len()))
        });
        twin.or_else(|| {
            boundaries(tenant, outline).iter().find_map(|boundary| {
                let lines = self.index.lines.get(&boundary.chain)?;
                self.last_of(lines, |line| begins(&line.segments, outline, boundary.at))
            })
        })
    }

    /// Of lines that fit the one that arrived last.
    fn last_of(
        &self,
        lines: &[(ProgramKey, u32)],
        fits: impl Fn(&Line) -> bool,
    ) -> Option<(ProgramKey, u32)> {
        let found = lines.iter().filter_map(|(known, id)| {
            let line = self.programs.get(known)?.branch(*id)?.line.as_ref()?;
            fits(line).then_some((line.ticket, known, *id))
        });
        found.max_by_key(|(ticket, ..)| *ticket).map(|(_, known, id)| (known.clone(), id))
    }
}

/// Whether the first `at` segments are these, given that their chain hashes are equal.
fn begins(segments: &[Segment], outline: &Outline, at: usize) -> bool {
    let last = |segments: &[Segment]| segments.last().map(|segment| segment.hash);
    segments.len() == at && outline.segments.get(..at).and_then(last) == last(segments)
}

fn continues(line: &Line, outline: &Outline, boundary: &Boundary, moved: bool) -> bool {
    let new = &outline.segments;
    let prompt = if moved {
        let (Some((last, rest)), Some(end)) = (line.segments.split_last(), new.last()) else { return false };
        if last.kind != end.kind || last.masked != end.masked {
            return false;
        }
        rest
    } else {
        &line.segments
    };
    begins(prompt, outline, boundary.at) && calls_fit(line, outline, boundary.at)
}

/// Whether the tool calls behind `at` are those of the line's answer.
pub(super) fn calls_fit(line: &Line, outline: &Outline, at: usize) -> bool {
    let appended = || outline.calls.iter().filter(|(segment, _)| *segment as usize >= at).map(|(_, id)| *id);
    if line.called && line.calls.is_empty() {
        // It called tools, and the engine gave no ids.
        return true;
    }
    appended().all(|id| line.calls.contains(&id)) && line.called == appended().next().is_some()
}
