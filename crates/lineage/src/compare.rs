//! Two outlines: what they have in common, and the rules by which the cause of a difference is named.
//!
//! Of two outlines, *old* and *new*, segment `c` is the first that differs; `o` and `n` are what each has there. The
//! first rule that holds names the cause:
//!
//! 1. `n` is missing: `truncated_history` (the new prompt is a beginning of the old one).
//! 2. `o` and `n` have one kind and one masked form: `volatile_text`.
//! 3. One of them is a parameter: `parameters_changed`; else a part of the system prompt: `system_changed`; else a
//!    tool: `tools_changed`, by what the two lists have in common.
//! 4. The relation is [`Relation::Compacted`]: `compaction`.
//! 5. One of them stands for what was folded together or for history kept elsewhere: `other`.
//! 6. All that is left of old is at most [`TAIL_SEGMENTS_MAX`] user segments, and new ends with them: `moved_tail`.
//! 7. One of them is reasoning, and without reasoning what is left of old is how the rest of new begins:
//!    `dropped_reasoning`.
//! 8. Some segments of old are left out and what stood behind them goes on in new, or two and more, with one user or
//!    system segment in their place: `truncated_history`.
//! 9. `edited_history`.

use std::collections::BTreeMap;

use crate::divergence::{Cause, Relation, ToolsChange};
use crate::outline::{Segment, SegmentKind, bytes};

/// Longest tail that is looked for at the end of a new prompt.
pub(crate) const TAIL_SEGMENTS_MAX: usize = 16;

/// Places at which the continuation of a truncated history is tried.
const RESUME_TRIES_MAX: usize = 16;

/// Leading segments that two outlines share.
pub(crate) fn common(old: &[Segment], new: &[Segment]) -> usize {
    let count = old.iter().zip(new).take_while(|(old, new)| old.hash == new.hash).count();
    // The last piece of a raw prompt may have become whole: what it says cannot be compared any more.
    match (old.get(count), new.get(count)) {
        (Some(old), Some(new))
            if old.kind == SegmentKind::RawTail
                && matches!(new.kind, SegmentKind::Raw | SegmentKind::RawTail)
                && new.bytes > old.bytes =>
        {
            count + 1
        }
        _ => count,
    }
}

/// How a prompt that does not simply append relates to `old`. `busy`: the line of `old` has a turn that is not
/// answered yet, so that its next turn cannot have come. `told`: the harness says that it compacted.
pub(crate) fn relation(old: &[Segment], new: &[Segment], busy: bool, told: bool) -> Relation {
    let (old_head, old_talk) = halves(old);
    let (new_head, new_talk) = halves(new);
    let shared = Shared::of(old_talk, new_talk);
    let old_answers = old_talk.iter().any(|segment| segment.kind.is_models());
    let new_answers = new_talk.iter().any(|segment| segment.kind.is_models());
    let same_head = old_head.len() == new_head.len()
        && old_head.iter().zip(new_head).all(|(old, new)| old.masked == new.masked);
    if told && !busy {
        Relation::Compacted
    } else if shared.models > 0 {
        Relation::Rewrites
    } else if busy {
        Relation::Branch
    } else if old_answers && same_head && shared.all > 0 {
        Relation::Compacted
    } else if !old_answers && new_answers && shared.all > 0 {
        Relation::Rewrites
    } else {
        Relation::Branch
    }
}

/// What stands before the conversation, and the conversation.
fn halves(segments: &[Segment]) -> (&[Segment], &[Segment]) {
    let head = segments.iter().take_while(|segment| segment.kind.is_head()).count();
    segments.split_at(head)
}

/// Segments of one list that the other has, too, each as often as both have it; by masked form.
struct Shared {
    all: usize,
    models: usize,
    /// Bytes of them in the second list.
    bytes: u64,
}

impl Shared {
    fn of(old: &[Segment], new: &[Segment]) -> Self {
        let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
        for segment in old {
            *counts.entry(segment.masked).or_default() += 1;
        }
        let mut shared = Self { all: 0, models: 0, bytes: 0 };
        for segment in new {
            if let Some(count) = counts.get_mut(&segment.masked).filter(|count| **count > 0) {
                *count -= 1;
                shared.all += 1;
                shared.models += usize::from(segment.kind.is_models());
                shared.bytes += u64::from(segment.bytes);
            }
        }
        shared
    }
}

/// Bytes of `new` that `old` has, too, wherever.
pub(crate) fn displaced_bytes(old: &[Segment], new: &[Segment]) -> u64 {
    Shared::of(old, new).bytes
}

/// The cause of the difference at segment `at`, and the kind of what differs.
pub(crate) fn cause(old: &[Segment], new: &[Segment], at: usize, relation: Relation) -> (SegmentKind, Cause) {
    let (Some(o), Some(n)) = (old.get(at), new.get(at)) else {
        let kind = old.get(at).or_else(|| new.get(at)).map_or(SegmentKind::Other, |segment| segment.kind);
        return (kind, Cause::TruncatedHistory);
    };
    let either = |kind: SegmentKind| o.kind == kind || n.kind == kind;
    let (old_rest, new_rest) = (old.get(at..).unwrap_or_default(), new.get(at..).unwrap_or_default());
    let cause = if o.masked == n.masked && o.kind == n.kind {
        Cause::VolatileText
    } else if either(SegmentKind::Parameter) {
        Cause::ParametersChanged
    } else if either(SegmentKind::System) {
        Cause::SystemChanged
    } else if either(SegmentKind::Tool) {
        Cause::ToolsChanged(tools_change(old, new))
    } else if relation == Relation::Compacted {
        Cause::Compaction
    } else if either(SegmentKind::Other) {
        Cause::Other
    } else if moved_tail(old_rest, new_rest) {
        Cause::MovedTail
    } else if either(SegmentKind::Reasoning) && dropped_reasoning(old_rest, new_rest) {
        Cause::DroppedReasoning
    } else if truncated(old_rest, new_rest) {
        Cause::TruncatedHistory
    } else {
        Cause::EditedHistory
    };
    (o.kind, cause)
}

fn tools_change(old: &[Segment], new: &[Segment]) -> ToolsChange {
    let tools = |segments: &[Segment]| -> Vec<u64> {
        let mut tools: Vec<u64> = segments
            .iter()
            .filter(|segment| segment.kind == SegmentKind::Tool)
            .map(|segment| segment.masked)
            .collect();
        tools.sort_unstable();
        tools
    };
    let (old, new) = (tools(old), tools(new));
    if old == new {
        ToolsChange::Reordered
    } else if contains(&new, &old) {
        ToolsChange::Added
    } else if contains(&old, &new) {
        ToolsChange::Removed
    } else {
        ToolsChange::Changed
    }
}

/// Whether sorted `all` has every element of sorted `some`, as often.
fn contains(all: &[u64], some: &[u64]) -> bool {
    let mut rest = all.iter();
    some.iter().all(|wanted| rest.by_ref().any(|found| found == wanted))
}

fn alike(one: &Segment, two: &Segment) -> bool {
    one.kind == two.kind && one.masked == two.masked
}

fn moved_tail(old: &[Segment], new: &[Segment]) -> bool {
    let Some(from) = new.len().checked_sub(old.len()) else { return false };
    from > 0
        && old.len() <= TAIL_SEGMENTS_MAX
        && old.iter().all(|segment| is_tail(segment.kind))
        && old.iter().zip(new.get(from..).unwrap_or_default()).all(|(old, new)| alike(old, new))
}

/// What a harness may keep last: its own words in the user's or the system's name.
pub(crate) const fn is_tail(kind: SegmentKind) -> bool {
    matches!(kind, SegmentKind::User | SegmentKind::Note)
}

fn dropped_reasoning(old: &[Segment], new: &[Segment]) -> bool {
    let spoken = |segment: &&Segment| segment.kind != SegmentKind::Reasoning;
    let mut new = new.iter().filter(spoken);
    old.iter().filter(spoken).all(|old| new.next().is_some_and(|new| alike(old, new)))
}

fn truncated(old: &[Segment], new: &[Segment]) -> bool {
    let resumes = |new: &[Segment], dropped: usize| {
        let Some((first, rest)) = new.split_first() else { return false };
        let starts = old.iter().enumerate().skip(dropped).filter(|(_, segment)| alike(segment, first));
        starts.take(RESUME_TRIES_MAX).any(|(at, _)| {
            let kept = old.get(at + 1..).unwrap_or_default();
            kept.len() <= rest.len() && kept.iter().zip(rest).all(|(old, new)| alike(old, new))
        })
    };
    // One segment in the place of one other is an edit, not a mark that others were left out.
    let marked = || matches!(new, [mark, rest @ ..] if is_tail(mark.kind) && resumes(rest, 2));
    resumes(new, 1) || marked()
}

/// Whether chat templates may render the end of `old` otherwise in `new`, which goes on behind it: some leave out what
/// the model thought before the last user's message.
pub(crate) fn may_drop_reasoning(old: &[Segment], new: &[Segment]) -> bool {
    let appended = new.get(old.len()..).unwrap_or_default();
    let since = old.iter().rev().take_while(|segment| segment.kind != SegmentKind::User);
    appended.iter().any(|segment| segment.kind == SegmentKind::User)
        && since.into_iter().any(|segment| segment.kind == SegmentKind::Reasoning)
}

/// Bytes of the first `count` segments.
pub(crate) fn bytes_before(segments: &[Segment], count: usize) -> u64 {
    bytes(segments.get(..count).unwrap_or(segments))
}
