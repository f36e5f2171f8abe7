//! A program's answered lines as a plain value, to be kept beyond the life of the table.
//!
//! - [`Lineage::remembered`] gives it, [`Lineage::remember`] takes it back, in this run or a later one. Prompts are then
//!   compared as before, but for token ids, which are content and stay here.
//! - A line that was remembered says so ([`crate::Arrival::remembered`]) until its next turn was answered: what came
//!   between the last note and the end of the run that made it is not known here, but may be in a cache.
//! - I-REM-1 hashes, lengths and counts only, no text and no token ids. I-REM-2 what this run knows of a program is never
//!   replaced by what an earlier one knew. I-REM-3 the table's bounds hold for what is remembered, too.
//! - Deliberately absent: how and where values are kept.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tandem_types::{Harness, ProgramKey, Time};

use super::program::{Branch, Line, Mark};
use super::{Lineage, Ticket};
use crate::evidence::{Before, Resends};
use crate::limits::{FAMILIES_MAX, MARKS_MAX};
use crate::outline::{Segment, SegmentKind};
use crate::said::Said;

/// Rises when the same body gets another outline than before: outlines of different numbers cannot be compared, and
/// values that were made under another number are of no use.
pub const OUTLINES_VERSION: u32 = 1;

/// Bytes of a segment in a value.
const SEGMENT_BYTES: usize = 21;

/// What is known of a program's prompts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remembered {
    lines: Vec<RememberedLine>,
    resends: Resends,
}

/// A line of conversation: its last answered turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RememberedLine {
    ticket: u64,
    used: u64,
    #[serde(with = "packed")]
    segments: Arc<[Segment]>,
    folded: bool,
    /// Tokens of prompt and answer, as the engine counted them.
    counts: Option<Before>,
    called: bool,
    calls: Vec<u64>,
    said: Option<Said>,
    /// Segments and tokens of earlier prompts.
    marks: Vec<(u32, u64)>,
    shared: bool,
    /// What was reported cached for a first prompt with its head, where it is the last one with that.
    head_cached: Option<u64>,
}

/// What was learned of how answers come back, by harness and kind of template.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Learned(Vec<(u64, Harness, Resends, u64)>);

impl Remembered {
    /// Segments of all its lines.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.lines.iter().map(|line| line.segments.len()).sum()
    }
}

impl Lineage {
    /// What is known of a program's answered turns; `None` = none was.
    #[must_use]
    pub fn remembered(&self, program: &ProgramKey) -> Option<Remembered> {
        let known = self.programs.get(program)?;
        let of = |branch: &Branch| {
            let line = branch.line.as_ref()?;
            let head = self.index.head(&program.tenant, &line.segments);
            Some(RememberedLine {
                ticket: line.ticket.0,
                used: branch.used,
                segments: Arc::clone(&line.segments),
                folded: line.folded,
                counts: line.counts,
                called: line.called,
                calls: line.calls.clone(),
                said: line.said,
                marks: line.marks.iter().map(|mark| (to_u32(mark.segments), mark.tokens)).collect(),
                shared: line.shared,
                head_cached: head.filter(|(head, _)| head.is_of(line)).and_then(|(head, _)| head.cached),
            })
        };
        let lines: Vec<RememberedLine> = known.branches.iter().filter_map(of).collect();
        (!lines.is_empty()).then_some(Remembered { lines, resends: known.resends })
    }

    /// Takes back what was known of a program that had its last sign of life at `last`. To be called for the longest
    /// quiet one first. False where this run knows it already, or has no room.
    pub fn remember(&mut self, program: &ProgramKey, remembered: Remembered, last: Time) -> bool {
        if self.programs.contains_key(program) {
            return false;
        }
        let Remembered { mut lines, resends } = remembered;
        lines.sort_by_key(|line| line.used);
        let surplus = lines.len().saturating_sub(self.config.branches_max.max(1));
        lines.drain(..surplus);
        for line in &lines {
            self.numbers = self.numbers.max(line.ticket).max(line.used);
        }
        self.touch(program, last);
        for line in lines {
            let (used, head_cached) = (line.used, line.head_cached);
            let line = line.into_line();
            let Some(known) = self.programs.get_mut(program) else { return false };
            known.resends = resends;
            let id = known.add_branch(used);
            self.segments += line.segments.len();
            self.index.insert(program, id, &line, head_cached);
            if let Some(branch) = known.branch_mut(id) {
                branch.line = Some(line);
            }
        }
        self.bound(program);
        if self.segments > self.config.segments_max {
            // It is larger than all the room.
            self.end_session(program);
        }
        self.programs.contains_key(program)
    }

    /// What was learned of harnesses and models.
    #[must_use]
    pub fn learned(&self) -> Learned {
        let of = |((style, harness), (resends, used)): (&(u64, Harness), &(Resends, u64))| {
            (*style, *harness, *resends, *used)
        };
        Learned(self.families.iter().map(of).collect())
    }

    /// Takes that back, where this run has learned nothing itself.
    pub fn relearn(&mut self, learned: Learned) {
        for (style, harness, resends, used) in learned.0.into_iter().take(FAMILIES_MAX) {
            self.numbers = self.numbers.max(used);
            self.families.entry((style, harness)).or_insert((resends, used));
        }
    }
}

impl RememberedLine {
    fn into_line(self) -> Line {
        let end = self.segments.len();
        let marks = self
            .marks
            .iter()
            .map(|(segments, tokens)| Mark { segments: (*segments as usize).min(end), tokens: *tokens });
        Line {
            ticket: Ticket(self.ticket),
            bytes: crate::outline::bytes(&self.segments),
            folded: self.folded,
            tokens: None,
            answer: None,
            counts: self.counts,
            called: self.called,
            said: self.said,
            marks: marks.take(MARKS_MAX).collect(),
            shared: self.shared,
            remembered: true,
            calls: self.calls,
            segments: self.segments,
        }
    }
}

fn to_u32(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

/// Segments as bytes, 21 each: hash, masked hash, length, kind.
mod packed {
    use serde::de::{Error, Visitor};
    use serde::{Deserializer, Serializer};

    use super::{Arc, SEGMENT_BYTES, Segment, SegmentKind};

    const KINDS: [SegmentKind; 13] = [
        SegmentKind::Parameter,
        SegmentKind::System,
        SegmentKind::Tool,
        SegmentKind::User,
        SegmentKind::Assistant,
        SegmentKind::Reasoning,
        SegmentKind::ToolCall,
        SegmentKind::ToolResult,
        SegmentKind::Note,
        SegmentKind::Media,
        SegmentKind::Raw,
        SegmentKind::RawTail,
        SegmentKind::Other,
    ];

    pub(super) fn serialize<S: Serializer>(
        segments: &Arc<[Segment]>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let mut bytes = Vec::with_capacity(segments.len() * SEGMENT_BYTES);
        for segment in segments.iter() {
            bytes.extend_from_slice(&segment.hash.to_le_bytes());
            bytes.extend_from_slice(&segment.masked.to_le_bytes());
            bytes.extend_from_slice(&segment.bytes.to_le_bytes());
            let kind = KINDS.iter().position(|kind| *kind == segment.kind);
            bytes.push(kind.and_then(|kind| u8::try_from(kind).ok()).unwrap_or(u8::MAX));
        }
        serializer.serialize_bytes(&bytes)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Arc<[Segment]>, D::Error> {
        deserializer.deserialize_bytes(Packed)
    }

    fn segment(bytes: &[u8; SEGMENT_BYTES]) -> Option<Segment> {
        let (hash, rest) = bytes.split_first_chunk::<8>()?;
        let (masked, rest) = rest.split_first_chunk::<8>()?;
        let (length, kind) = rest.split_first_chunk::<4>()?;
        Some(Segment {
            hash: u64::from_le_bytes(*hash),
            masked: u64::from_le_bytes(*masked),
            bytes: u32::from_le_bytes(*length),
            kind: *KINDS.get(usize::from(*kind.first()?))?,
        })
    }

    struct Packed;

    impl Visitor<'_> for Packed {
        type Value = Arc<[Segment]>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "segments of {SEGMENT_BYTES} bytes each")
        }

        fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Self::Value, E> {
            let (segments, rest) = bytes.as_chunks::<SEGMENT_BYTES>();
            let read = segments.iter().map(segment).collect::<Option<Arc<[Segment]>>>();
            read.filter(|_| rest.is_empty()).ok_or_else(|| E::invalid_length(bytes.len(), &self))
        }
    }
}
