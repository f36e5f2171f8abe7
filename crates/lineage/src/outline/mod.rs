//! The outline of a request body: its parts in the order in which engines render them into a prompt.
//!
//! - Purpose: two bodies can be compared part by part when neither is there any more.
//! - Inputs: dialect and raw body, as the engine gets it. Output: [`Outline`]: for each part its kind, its length
//!   and two hashes.
//! - Order: parameters that change the prompt, system prompt, tools, then each message or input item with its
//!   parts as the body has them. Some chat templates render tools before the system prompt; which of the two
//!   is found to differ first then changes, and nothing else.
//! - No content is kept, and a field of a wrong type counts as absent.
//! - Invariants: I-OLN-2 equal segments for bodies that differ only in white space, escapes, order of members,
//!   `cache_control` marks, item ids and states, and in whether a lone text stands in a list; I-OLN-3 what reaches
//!   the prompt counts exactly; I-OLN-4 at most [`SEGMENTS_MAX`] segments, the last of which stands for all that was
//!   folded into it.
//! - Parameters: those that select another cache (model, adapter, salt) or that templates read (template
//!   arguments, reasoning effort, thinking). Sampling parameters, output bounds and output schemas are no part of a
//!   prompt.
//! - `tool_choice`: SGLang shows no tool for "none" and only the named one where one is forced, and so does the outline;
//!   vLLM shows all whichever is forced, and for "none" as it was started. Where what is shown is not known, the choice is
//!   a parameter.
//! - Raw prompts (completions) are cut into pieces of [`RAW_BYTES`] bytes or [`RAW_IDS`] token ids.
//! - Deliberately absent: media (a hash of the reference stands for what it shows), the text of
//!   stored answers (`previous_response_id`).
//! - Sources: request models of vLLM 0.33 and SGLang 0.5.23; the recorded requests.

mod build;
mod chat;
mod messages;
mod raw;
mod responses;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tandem_types::{Dialect, EngineKind};

use self::build::Shown;
pub(crate) use self::build::{Builder, call_id, pair};
use crate::json::{Node, parse, without_lone_surrogates};
use crate::limits::SEGMENTS_MAX;
use crate::said::Said;

pub use self::raw::{RAW_BYTES, RAW_IDS};

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

impl SegmentKind {
    /// Stands before the conversation.
    #[must_use]
    pub const fn is_head(self) -> bool {
        matches!(self, Self::Parameter | Self::System | Self::Tool)
    }

    /// Written by the model.
    #[must_use]
    pub const fn is_models(self) -> bool {
        matches!(self, Self::Assistant | Self::Reasoning | Self::ToolCall)
    }
}

/// One part of a prompt: what it is, how long, and hashes of what it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Segment {
    /// XXH3-64 of kind, role, place in the message (first or not) and content in canonical form.
    pub hash: u64,
    /// XXH3-64 of kind, role and content with numbers, times, dates and ids taken out (of texts only those that
    /// neither the model nor a tool said).
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
    /// Hash of what decides how a template writes answers: model, dialect, parameters that templates read.
    pub(crate) style: u64,
    pub(crate) segments: Arc<[Segment]>,
    /// Tool calls with an id: index of the segment, hash of the id.
    pub(crate) calls: Vec<(u32, u64)>,
    /// How the last [`SAID_MAX`] texts of the model begin: index of the segment, hashes.
    pub(crate) said: Vec<(u32, Said)>,
    pub(crate) folded: bool,
}

/// Why a body has no outline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OutlineError {
    /// A byte sequence that is not UTF-8, at this offset.
    #[error("the body is not valid utf-8 (byte {at})")]
    NotUtf8 {
        /// Offset of the first bad byte.
        at: usize,
    },
    /// Not JSON, or nested deeper than 127 levels.
    #[error("the body is not valid json (line {line}, column {column})")]
    NotJson {
        /// Where reading stopped, from 1.
        line: usize,
        /// Where in the line, in bytes from 1.
        column: usize,
    },
    /// JSON, but no object.
    #[error("the body is not a json object")]
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
        bytes(&self.segments)
    }

    /// Whether the body had more segments than [`SEGMENTS_MAX`].
    #[must_use]
    pub const fn folded(&self) -> bool {
        self.folded
    }
}

pub(crate) fn bytes(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| u64::from(segment.bytes)).sum()
}

/// Reads the outline of a request body, as engines of `kind` render it.
///
/// # Errors
/// [`OutlineError`] when the body is no JSON object or too large.
pub fn outline(dialect: Dialect, kind: EngineKind, body: &[u8]) -> Result<Outline, OutlineError> {
    let mut builder = Builder::segments(SEGMENTS_MAX);
    let model = walk(dialect, kind, body, &mut builder)?;
    Ok(builder.into_outline(dialect, model))
}

/// Hands all parts of a body to `builder` in rendered order; the hash of the model's name comes back.
pub(crate) fn walk(
    dialect: Dialect,
    kind: EngineKind,
    body: &[u8],
    builder: &mut Builder,
) -> Result<u64, OutlineError> {
    let text =
        std::str::from_utf8(body).map_err(|error| OutlineError::NotUtf8 { at: error.valid_up_to() })?;
    match parse(text) {
        Err(OutlineError::NotJson { line, column }) => match without_lone_surrogates(text) {
            Some(repaired) => top(dialect, kind, &parse(&repaired)?, builder),
            None => Err(OutlineError::NotJson { line, column }),
        },
        read => top(dialect, kind, &read?, builder),
    }
}

fn top(
    dialect: Dialect,
    kind: EngineKind,
    body: &Node<'_>,
    builder: &mut Builder,
) -> Result<u64, OutlineError> {
    if !matches!(body, Node::Object(_)) {
        return Err(OutlineError::NotAnObject);
    }
    parameters(body, kind, builder);
    match dialect {
        Dialect::Chat => chat::body(body, builder),
        Dialect::Responses => responses::body(body, builder),
        Dialect::Messages => messages::body(body, builder),
        Dialect::Completions => raw::body(body, builder),
    }
    Ok(xxhash_rust::xxh3::xxh3_64(body.text_of("model").unwrap_or_default().as_bytes()))
}

/// The name of a tool, or of the one that is forced.
fn tool_name<'a>(tool: &'a Node<'_>) -> Option<&'a str> {
    tool.text_of("name").or_else(|| tool.get("function")?.text_of("name"))
}

/// Parameters of any dialect that change the prompt or select another cache.
const PARAMETERS: &[&str] = &[
    "model",
    "lora_path",
    "cache_salt",
    "extra_key",
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "truncate_prompt_tokens",
    "mm_processor_kwargs",
    "reasoning_effort",
];

/// Those of them that select a cache and change no text.
const SALTS: &[&str] = &["cache_salt", "extra_key"];

fn parameters(body: &Node<'_>, kind: EngineKind, builder: &mut Builder) {
    for name in PARAMETERS {
        if let Some(value) = body.get(name) {
            builder.parameter(name, value, !SALTS.contains(name));
        }
    }
    // Of these objects only one member reaches a prompt.
    for (object, member) in
        [("reasoning", "effort"), ("output_config", "effort"), ("thinking", "type"), ("thinking", "keep")]
    {
        if let Some(value) = body.get(object).and_then(|object| object.get(member)) {
            builder.parameter(object, value, true);
        }
    }
    if let Some(choice) = body.get("tool_choice") {
        let word = choice.as_text().or_else(|| choice.text_of("type")).unwrap_or_default();
        match (word, kind) {
            ("" | "auto" | "any" | "required", _) => {}
            ("none", EngineKind::Sglang) => builder.show(Shown::None),
            ("none", _) | (_, EngineKind::OpenAi) => builder.parameter("tool_choice", choice, false),
            (_, EngineKind::Vllm) => {}
            (_, EngineKind::Sglang) => {
                if let Some(name) = tool_name(choice) {
                    builder.show(Shown::Only(name.to_owned()));
                }
            }
        }
    }
}
