//! The outline of a request body: its parts in the order in which engines render them into a prompt.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tandem_types::Dialect;

/// What a segment of a prompt is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SegmentKind {
    /// A parameter that changes the prompt: model, adapter, salt, template arguments, reasoning effort.
    Parameter,
    /// A part of the system prompt: instructions, and system and developer messages before any other.
    System,
    /// One tool.
    Tool,
    /// A part of what a user said.
    User,
    /// A part of what the model said.
    Assistant,
    /// The model's reasoning.
    Reasoning,
    /// A tool call of the model.
    ToolCall,
    /// A part of what a tool answered.
    ToolResult,
    /// A part of a system or developer message after the conversation has begun.
    Note,
    /// An image, sound or file.
    Media,
    /// A whole piece of a raw prompt (completions): a fixed number of bytes or token ids.
    Raw,
    /// The rest of a raw prompt, shorter than a piece.
    RawTail,
    /// Anything else, and what was folded because the outline is full.
    Other,
}

/// One part of a prompt: what it is, how long, and hashes of what it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Segment {
    /// XXH3-64 of kind, place in the message and content in canonical form.
    pub hash: u64,
    /// The same with numbers, times, dates and ids taken out.
    pub masked: u64,
    /// Bytes of content.
    pub bytes: u32,
    /// What it is.
    pub kind: SegmentKind,
}

/// A request body without its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outline {
    pub(crate) dialect: Dialect,
    pub(crate) model: u64,
    pub(crate) segments: Arc<[Segment]>,
    pub(crate) calls: Vec<(u32, u64)>,
    pub(crate) folded: bool,
}

/// Why a body has no outline.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OutlineError {
    /// Not UTF-8, not JSON, or nested deeper than 128 levels.
    #[error("the body cannot be read: {0}")]
    NotJson(String),
    /// JSON, but no object.
    #[error("the body is no object")]
    NotAnObject,
    /// More than [`crate::limits::VALUES_MAX`] values.
    #[error("the body has too many values")]
    TooManyValues,
}

impl Outline {
    /// The segments in rendered order.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The API of the body.
    #[must_use]
    pub const fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Hash of the model's name.
    #[must_use]
    pub const fn model(&self) -> u64 {
        self.model
    }

    /// Bytes of content of all segments.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| u64::from(segment.bytes)).sum()
    }

    /// Whether the body had more segments than an outline holds.
    #[must_use]
    pub const fn folded(&self) -> bool {
        self.folded
    }
}

/// Reads the outline of a request body.
///
/// # Errors
/// [`OutlineError`] when the body is no JSON object or too large.
pub fn outline(dialect: Dialect, body: &[u8]) -> Result<Outline, OutlineError> {
    std::str::from_utf8(body).map_err(|error| OutlineError::NotJson(error.to_string()))?;
    Ok(Outline { dialect, model: 0, segments: Arc::new([]), calls: Vec::new(), folded: false })
}
