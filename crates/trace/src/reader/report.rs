//! What reading a trace showed.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Serialize, Serializer};

use crate::record::{EventType, Loss, TraceRow};

/// Most different unknown event types that are counted by name.
const UNKNOWN_TYPES_MAX: usize = 64;

/// Longest text from a file that a report repeats, in bytes.
const QUOTE_BYTES_MAX: usize = 256;

/// Counts and findings.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct ReadReport {
    /// Request rows given out.
    pub request_end_rows: u64,
    /// Tool rows given out.
    pub tool_rows: u64,
    /// Payload rows given out.
    #[serde(skip_serializing_if = "is_zero")]
    pub payload_rows: u64,
    /// Rows of our own given out.
    #[serde(skip_serializing_if = "is_zero")]
    pub own_rows: u64,
    /// Rows stepped over on purpose.
    pub skipped: Skipped,
    /// Rows that the writer says it lost.
    #[serde(skip_serializing_if = "no_loss")]
    pub lost: Loss,
    /// Oddities in the order of their places.
    pub reported: Vec<Finding>,
    /// Oddities beyond the bound of the list.
    #[serde(skip_serializing_if = "is_zero")]
    pub unlisted: u64,
    /// Request rows read when no more ids could be remembered.
    #[serde(skip_serializing_if = "is_zero")]
    pub ids_not_checked: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

fn no_loss(loss: &Loss) -> bool {
    loss.total() == 0
}

impl ReadReport {
    /// Whether nothing was odd and nothing was lost.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.reported.is_empty() && self.unlisted == 0 && no_loss(&self.lost)
    }

    pub(super) fn count(&mut self, row: &TraceRow) {
        *match row {
            TraceRow::Own(_) => &mut self.own_rows,
            TraceRow::V1(record) => match record.event_type {
                EventType::RequestEnd => &mut self.request_end_rows,
                EventType::RequestPayload => &mut self.payload_rows,
                EventType::ToolStart | EventType::ToolEnd | EventType::ToolError => &mut self.tool_rows,
            },
        } += 1;
    }
}

/// Rows stepped over on purpose.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Skipped {
    /// Payload rows.
    pub request_payload: u64,
    /// Rows of types that we do not know, by type; beyond 64 types all others are under `(more)`.
    pub unknown_event_type: BTreeMap<String, u64>,
}

impl Skipped {
    pub(super) fn count_unknown(&mut self, name: &str) {
        let name = shortened(name);
        if let Some(count) = self.unknown_event_type.get_mut(&name) {
            *count += 1;
        } else if self.unknown_event_type.len() < UNKNOWN_TYPES_MAX {
            self.unknown_event_type.insert(name, 1);
        } else {
            *self.unknown_event_type.entry("(more)".to_owned()).or_default() += 1;
        }
    }
}

fn shortened(text: &str) -> String {
    let end = text.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= QUOTE_BYTES_MAX);
    text.get(..end.last().unwrap_or(0)).unwrap_or_default().to_owned()
}

/// Where in a trace.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Place {
    /// File, where the caller named it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Gzip member, from 1; none in plain files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member: Option<u32>,
    /// Line, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        if let Some(file) = &self.file {
            write!(f, "{file}")?;
            separator = ", ";
        }
        if let Some(member) = self.member {
            write!(f, "{separator}member {member}")?;
            separator = ", ";
        }
        if let Some(line) = self.line {
            write!(f, "{separator}line {line}")?;
        }
        Ok(())
    }
}

/// An oddity and its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Where.
    #[serde(flatten)]
    pub place: Place,
    /// What.
    #[serde(serialize_with = "as_text")]
    pub problem: Problem,
}

fn as_text<S: Serializer>(problem: &Problem, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(problem)
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.place.to_string();
        if place.is_empty() { write!(f, "{}", self.problem) } else { write!(f, "{place}: {}", self.problem) }
    }
}

/// What is odd. Never holds content of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// The line is no JSON.
    DamagedJson,
    /// The line has bytes that are no UTF-8.
    NotUtf8,
    /// JSON, but a member is missing or of the wrong kind, at about this byte of the row.
    NotARow {
        /// Byte of the row, from 1; 0 when not known.
        column: usize,
    },
    /// A schema that is none of ours.
    UnknownSchema,
    /// The line is longer than is used.
    LineTooLong {
        /// Its length in bytes.
        bytes: u64,
    },
    /// The same request twice.
    RepeatedId(String),
    /// The replay block contradicts itself; the request is used without it.
    BadReplay,
    /// A time is negative; it is left out.
    BadTime,
    /// The last line has no end and is no whole row.
    CutLine,
    /// The file ends inside a gzip member.
    CutMember,
    /// A gzip member is damaged. Its checksum comes last, so rows from it may already have been given out.
    DamagedMember,
    /// Something that is no gzip member follows the last one.
    TrailingBytes,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DamagedJson => f.write_str("damaged JSON"),
            Self::NotUtf8 => f.write_str("invalid UTF-8"),
            Self::NotARow { column: 0 } => f.write_str("row does not fit the schema"),
            Self::NotARow { column } => write!(f, "row does not fit the schema, near its byte {column}"),
            Self::UnknownSchema => f.write_str("unknown schema"),
            Self::LineTooLong { bytes } => write!(f, "line of {bytes} bytes is too long; it is left out"),
            Self::RepeatedId(id) => {
                write!(f, "request id {} occurs twice; the second is left out", shortened(id))
            }
            Self::BadReplay => f.write_str("replay block contradicts itself; the row is used without it"),
            Self::BadTime => f.write_str("negative or reversed time; the row is used without it"),
            Self::CutLine => f.write_str("the last line is cut"),
            Self::CutMember => f.write_str(
                "the file ends inside a gzip member; rows before the cut are used where they could be read",
            ),
            Self::DamagedMember => f.write_str(
                "damaged gzip data; rows of this member may be wrong or missing, reading goes on at the next",
            ),
            Self::TrailingBytes => f.write_str("bytes after the last gzip member that are no gzip member"),
        }
    }
}
