//! A new prompt against what its program sent before.

use std::collections::BTreeMap;

use tandem_types::ProgramKey;

use super::infer::calls_fit;
use super::program::{Branch, Line, Program};
use super::{Arriving, Basis, Expected, Open, Ticket};
use crate::compare::{bytes_before, cause, common, displaced_bytes, relation};
use crate::divergence::{Cause, Divergence, Position, Relation};
use crate::evidence::{Before, Resends, Verdict};
use crate::outline::{Outline, Segment, SegmentKind};

/// What was found out of a new prompt.
#[derive(Debug)]
pub(super) struct Judged {
    pub(super) relation: Relation,
    pub(super) forked_from: Option<ProgramKey>,
    /// The branch that it continues; `None` = a new one.
    pub(super) branch: Option<u32>,
    pub(super) divergence: Option<Divergence>,
    pub(super) expected: Expected,
    pub(super) history: u64,
    pub(super) displaced: Option<u64>,
    /// See [`Open::follows`].
    pub(super) follows: Option<(Before, bool)>,
}

impl Judged {
    pub(super) const fn first() -> Self {
        Self::new(Relation::First)
    }

    const fn new(relation: Relation) -> Self {
        Self {
            relation,
            forked_from: None,
            branch: None,
            divergence: None,
            expected: Expected::NOTHING,
            history: 0,
            displaced: None,
            follows: None,
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
            |line| Judged { follows: None, ..against(line, arriving, Relation::Repeat, &learned) },
        );
    }
    let Some((branch, line, shared)) = nearest(program, arriving.outline) else {
        // Nothing was answered yet: another line beside the open ones.
        return Judged::new(if program.branches.is_empty() { Relation::First } else { Relation::Branch });
    };
    let relation = if shared == line.segments.len() {
        if shared == new.len() { Relation::Repeat } else { Relation::Appends }
    } else {
        relation(&line.segments, new, !branch.open.is_empty(), arriving.compacted)
    };
    let mut judged = against(line, arriving, relation, &learned);
    if relation == Relation::Branch {
        // What another line of conversation had is no loss to this one.
        judged.history = judged.expected.tokens;
        judged.displaced = Some(0);
    } else if relation != Relation::Repeat {
        judged.branch = Some(branch.id);
    }
    judged
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

/// What a relation to one line means in tokens.
pub(super) fn against(line: &Line, arriving: &Arriving<'_>, relation: Relation, learned: &Resends) -> Judged {
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
        (Some((prompt, all)), counts) => {
            let answer_unknown = whole == Some(true) && grew && line.answer.is_none();
            match counts {
                Some(counts) if answer_unknown && resend.verdict() == Verdict::Same => {
                    Expected { tokens: counts.reach(), basis: Basis::PromptAndAnswer }
                }
                Some(counts) => Expected { tokens: all.min(counts.reach()), basis: Basis::Tokens },
                None => Expected { tokens: prompt, basis: Basis::Tokens },
            }
        }
        (None, Some(counts)) if grew => match resend.verdict() {
            Verdict::Same => Expected { tokens: counts.reach(), basis: Basis::PromptAndAnswer },
            Verdict::Differs => {
                Expected { tokens: counts.prompt.saturating_sub(resend.trim()), basis: Basis::Prompt }
            }
            Verdict::Unknown => Expected { tokens: counts.prompt, basis: Basis::Prompt },
        },
        (None, _) => {
            estimate.map_or(Expected::NOTHING, |tokens| Expected { tokens, basis: Basis::Estimated })
        }
    };
    let appends = relation == Relation::Appends && divergence.is_none();
    Judged {
        expected,
        divergence: divergence.filter(|_| relation != Relation::Branch),
        history: line.counts.map(Before::reach).or_else(|| line.prompt_tokens()).unwrap_or_default(),
        displaced: displaced(line, new, shared),
        follows: line.counts.filter(|_| appends).map(|counts| (counts, line.called)),
        ..Judged::new(relation)
    }
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

/// Tokens of the first `shared` segments of `line`, in proportion to bytes.
fn estimate(line: &Line, shared: usize) -> Option<u64> {
    let parameters = line.segments.get(shared).is_some_and(|first| first.kind == SegmentKind::Parameter);
    if parameters {
        // Another model, adapter or salt shares nothing; what other parameters change is not known.
        return line.prompt_tokens().map(|_| 0);
    }
    in_tokens(line, bytes_before(&line.segments, shared))
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
