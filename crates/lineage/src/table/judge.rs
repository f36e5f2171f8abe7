//! A new prompt against what its program sent before.

use std::collections::BTreeMap;

use tandem_types::{Dialect, ProgramKey};

use super::infer::calls_fit;
use super::program::{Branch, Line, Mark, Program};
use super::{Arriving, Basis, Expected, Open, Ticket};
use crate::compare::{bytes_before, cause, common, displaced_bytes, may_drop_reasoning, relation};
use crate::divergence::{Cause, Divergence, Position, Relation};
use crate::evidence::{Before, Resend, Resends, Verdict};
use crate::limits::OPENING_TOKENS_MAX;
use crate::outline::{Outline, Segment, SegmentKind};

/// What was found out of a new prompt.
#[derive(Debug)]
pub(super) struct Judged {
    pub(super) relation: Relation,
    pub(super) forked_from: Option<ProgramKey>,
    pub(super) alike: Option<ProgramKey>,
    /// The branch that it continues; `None` = a new one.
    pub(super) branch: Option<u32>,
    pub(super) divergence: Option<Divergence>,
    pub(super) expected: Expected,
    pub(super) history: u64,
    pub(super) displaced: Option<u64>,
    /// The line that it was compared with is an earlier run's.
    pub(super) remembered: bool,
    /// See [`Open::follows`].
    pub(super) follows: Option<(Before, bool)>,
    /// Ends of earlier prompts within this one.
    pub(super) marks: Vec<Mark>,
    /// Another program sent this beginning, too.
    pub(super) shared: bool,
}

impl Judged {
    pub(super) const fn first() -> Self {
        Self::new(Relation::First)
    }

    const fn new(relation: Relation) -> Self {
        Self {
            relation,
            forked_from: None,
            alike: None,
            branch: None,
            divergence: None,
            expected: Expected::NOTHING,
            history: 0,
            displaced: None,
            remembered: false,
            follows: None,
            marks: Vec::new(),
            shared: false,
        }
    }
}

/// Compares with all branches and picks the one that the prompt continues or is nearest to.
pub(super) fn judge(
    program: &Program,
    opens: &BTreeMap<Ticket, Open>,
    arriving: &Arriving<'_>,
    learned: &Resends,
) -> Judged {
    let new = arriving.outline.segments();
    let learned = Resends::first_of(&program.resends, learned);
    if let Some(branch) = repeated_open(program, opens, new) {
        // A sibling with the same task, or a client that sends again: its line is one of its own until it grows.
        let line = branch.line.as_ref();
        return line.map_or_else(
            || Judged::new(Relation::Repeat),
            |line| Judged { follows: None, ..against(line, arriving, Relation::Repeat, &learned, false) },
        );
    }
    let Some((branch, line, shared)) = nearest(program, arriving.outline) else {
        // Nothing was answered yet: another line beside the open ones.
        return Judged::new(if program.branches.is_empty() { Relation::First } else { Relation::Branch });
    };
    let relation = if shared == line.segments.len() {
        if repeats(line, new) { Relation::Repeat } else { Relation::Appends }
    } else {
        relation(&line.segments, new, !branch.open.is_empty(), arriving.compacted)
    };
    let settled = program.settled(branch.id);
    let mut judged = against(line, arriving, relation, &learned, settled);
    if relation == Relation::Branch {
        // What another line of conversation had is no loss to this one.
        judged.history = judged.expected.tokens;
        judged.displaced = Some(0);
    } else if relation != Relation::Repeat && !other_parameters(line, new, shared) {
        // A line with other parameters stays: clients change between them and come back.
        judged.branch = Some(branch.id);
    }
    judged
}

/// Whether a prompt is that of a line once more. A raw one may have grown within its last piece.
fn repeats(line: &Line, new: &[Segment]) -> bool {
    let last = |segments: &[Segment]| segments.last().map(|segment| segment.hash);
    line.segments.len() == new.len()
        && common(&line.segments, new) == new.len()
        && last(&line.segments) == last(new)
}

/// Whether a prompt leaves a line in the parameters that come before everything else.
fn other_parameters(line: &Line, new: &[Segment], shared: usize) -> bool {
    let parameter = |segments: &[Segment]| {
        segments.get(shared).is_some_and(|segment| segment.kind == SegmentKind::Parameter)
    };
    parameter(&line.segments) || parameter(new)
}

/// A branch with an open turn of this very prompt.
fn repeated_open<'a>(
    program: &'a Program,
    opens: &BTreeMap<Ticket, Open>,
    new: &[Segment],
) -> Option<&'a Branch> {
    let same = |ticket: &Ticket| opens.get(ticket).is_some_and(|open| *open.line.segments == *new);
    program.branches.iter().find(|branch| branch.open.iter().any(same))
}

/// The answered line that the new prompt continues (of several the one whose tool calls fit and that waits for its
/// next turn), else the one with which it shares the longest beginning; of equals the one used last.
fn nearest<'a>(program: &'a Program, outline: &Outline) -> Option<(&'a Branch, &'a Line, usize)> {
    let lines = program.branches.iter().filter_map(|branch| branch.line.as_ref().map(|line| (branch, line)));
    let shared = lines.map(|(branch, line)| (branch, line, common(&line.segments, &outline.segments)));
    shared.max_by_key(|(branch, line, shared)| {
        let whole = *shared == line.segments.len();
        let fits = whole && calls_fit(line, outline, *shared) && branch.open.is_empty();
        (whole, bytes_before(&line.segments, *shared), fits, branch.used)
    })
}

/// What a relation to one line means in tokens. `settled`: nothing of the line's program came since.
pub(super) fn against(
    line: &Line,
    arriving: &Arriving<'_>,
    relation: Relation,
    learned: &Resends,
    settled: bool,
) -> Judged {
    let new = arriving.outline.segments();
    let shared = common(&line.segments, new);
    let grew = shared == line.segments.len();
    let estimate = estimate(line, shared);
    let counted = count_common(line, arriving);
    let position = match counted {
        Some((prompt, _)) => Some(Position { tokens: prompt, exact: true }),
        None => estimate.map(|tokens| Position { tokens, exact: false }),
    };
    let whole = counted.map(|(prompt, _)| line.tokens.as_ref().is_some_and(|ids| ids.len() as u64 == prompt));
    let divergence = match (grew, whole) {
        (_, Some(true)) | (true, None) => None,
        (true, Some(false)) => line.segments.last().map(|last| Divergence {
            segment: to_u32(shared.saturating_sub(1)),
            kind: last.kind,
            position,
            cause: Cause::TemplateArtefact,
        }),
        (false, _) => Some(diverged(line, arriving, shared, relation, position)),
    };
    let resend = learned.get(line.called);
    let expected = match (counted, line.counts) {
        (Some(counted), counts) => by_tokens(line, counted, counts, whole == Some(true) && grew, resend),
        (None, Some(counts)) if grew && repeats(line, new) => of_repetition(counts.prompt),
        (None, Some(counts)) if grew => {
            let raw = arriving.outline.dialect == Dialect::Completions;
            let expected = after(counts, resend, raw, otherwise(line, arriving.outline));
            let sure = settled && !line.shared && !may_drop_reasoning(&line.segments, new);
            if sure { expected } else { Expected::open(expected.tokens, expected.basis) }
        }
        (None, _) => match line.marks.iter().find(|mark| mark.segments == new.len() && shared == new.len()) {
            Some(mark) => of_repetition(mark.tokens),
            None => estimate.map_or(Expected::NOTHING, |tokens| Expected::open(tokens, Basis::Estimated)),
        },
    };
    let appends = relation == Relation::Appends && divergence.is_none();
    Judged {
        expected,
        divergence: divergence.filter(|_| relation != Relation::Branch),
        history: line.counts.map(Before::reach).or_else(|| line.prompt_tokens()).unwrap_or_default(),
        displaced: displaced(line, new, shared),
        follows: line.counts.filter(|_| appends).map(|counts| (counts, line.called)),
        marks: line.marks_within(shared),
        shared: line.shared,
        remembered: line.remembered,
        ..Judged::new(relation)
    }
}

/// What is expected where the token ids of both prompts are known.
fn by_tokens(
    line: &Line,
    (prompt, all): (u64, u64),
    counts: Option<Before>,
    grew: bool,
    resend: Resend,
) -> Expected {
    match counts {
        Some(counts) if grew && line.answer.is_none() => {
            let (tokens, basis) = match resend.verdict() {
                Verdict::Same => (counts.reach(), Basis::PromptAndAnswer),
                Verdict::Differs | Verdict::Unknown => (prompt.min(counts.reach()), Basis::Tokens),
            };
            Expected { tokens, basis, low: prompt.min(tokens), high: counts.reach().max(tokens) }
        }
        Some(counts) => Expected::exact(all.min(counts.reach()), Basis::Tokens),
        None => Expected::exact(prompt, Basis::Tokens),
    }
}

/// A prompt that was answered before: all but its last token, which is always computed.
const fn of_repetition(tokens: u64) -> Expected {
    Expected::exact(tokens.saturating_sub(1), Basis::Prompt)
}

/// What a turn with these counts leaves to one whose body only grew. At least the prompt but for the opening of its
/// answer (which the next prompt need not repeat, nor the token before it, that may have become one with what
/// follows); at most the answer, too, or of one that reads otherwise now what both may have in common. A raw prompt
/// may become other tokens anywhere near its end.
fn after(counts: Before, resend: Resend, raw: bool, otherwise: Option<u64>) -> Expected {
    let prompt = (counts.prompt.saturating_sub(resend.trim()), Basis::Prompt);
    let (tokens, basis) = match resend.verdict() {
        _ if otherwise.is_some() => prompt,
        Verdict::Same => (counts.reach(), Basis::PromptAndAnswer),
        Verdict::Differs => prompt,
        Verdict::Unknown => (counts.prompt, Basis::Prompt),
    };
    let opening = resend.trim_max().filter(|_| !raw).unwrap_or(OPENING_TOKENS_MAX).max(1);
    let low = counts.prompt.saturating_sub(opening).min(tokens);
    let common = otherwise.map(|common| counts.prompt.saturating_add(common));
    Expected { tokens, basis, low, high: common.unwrap_or(u64::MAX).min(counts.reach()).max(tokens) }
}

/// Where another text stands now in the place of the line's answer: the most tokens with which both begin.
fn otherwise(line: &Line, outline: &Outline) -> Option<u64> {
    let at = to_u32(line.segments.len());
    let (_, now) = outline.said.iter().find(|(segment, _)| *segment == at)?;
    line.said?.common_max(now)
}

fn diverged(
    line: &Line,
    arriving: &Arriving<'_>,
    shared: usize,
    relation: Relation,
    position: Option<Position>,
) -> Divergence {
    let new = arriving.outline.segments();
    let (kind, mut why) = cause(&line.segments, new, shared, relation);
    let folded_at = |segments: &[Segment], folded: bool| folded && shared + 1 >= segments.len();
    if folded_at(&line.segments, line.folded) || folded_at(new, arriving.outline.folded) {
        why = Cause::Other;
    }
    Divergence { segment: to_u32(shared), kind, position, cause: why }
}

/// Tokens of the first `shared` segments of `line`: between the ends of earlier prompts in proportion to bytes.
pub(super) fn estimate(line: &Line, shared: usize) -> Option<u64> {
    let end = Mark { segments: line.segments.len(), tokens: line.prompt_tokens()? };
    if line.segments.get(shared).is_some_and(|first| first.kind == SegmentKind::Parameter) {
        // Another model, adapter or salt shares nothing; what other parameters change is not known.
        return Some(0);
    }
    let marks = || line.marks.iter().copied();
    let start = Mark { segments: 0, tokens: 0 };
    let before = marks().rev().find(|mark| mark.segments <= shared).unwrap_or(start);
    let behind = marks().find(|mark| mark.segments > shared).unwrap_or(end);
    let bytes_to = |count| bytes_before(&line.segments, count);
    let from = bytes_to(before.segments);
    let (part, all) = (bytes_to(shared) - from, bytes_to(behind.segments).saturating_sub(from).max(1));
    let tokens = u128::from(behind.tokens.saturating_sub(before.tokens));
    let share = u64::try_from(tokens * u128::from(part.min(all)) / u128::from(all)).ok()?;
    Some(before.tokens.saturating_add(share))
}

fn displaced(line: &Line, new: &[Segment], shared: usize) -> Option<u64> {
    match (line.segments.get(shared..), new.get(shared..)) {
        (Some(old), Some(new)) if !old.is_empty() => in_tokens(line, displaced_bytes(old, new)),
        _ => Some(0),
    }
}

/// Tokens of so many bytes of a prompt like that of `line`.
fn in_tokens(line: &Line, bytes: u64) -> Option<u64> {
    let tokens = u128::from(line.prompt_tokens()?);
    let share = tokens * u128::from(bytes) / u128::from(line.bytes.max(1));
    u64::try_from(share).ok()
}

/// Leading tokens that the new prompt shares with the old prompt, and with the old prompt and its answer.
fn count_common(line: &Line, arriving: &Arriving<'_>) -> Option<(u64, u64)> {
    let (old, new) = (line.tokens.as_ref()?, arriving.tokens?);
    let same = |one: &[u32], two: &[u32]| one.iter().zip(two).take_while(|(one, two)| one == two).count();
    let prompt = same(old, new);
    let answer = match &line.answer {
        Some(answer) if prompt == old.len() => same(answer, new.get(prompt..).unwrap_or_default()),
        _ => 0,
    };
    Some((prompt as u64, (prompt + answer) as u64))
}

fn to_u32(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}
