//! Request bodies: what a gateway must know, read in one pass, and the edits that it may make.
//!
//! - Inputs: dialect and raw body. Outputs: [`ParsedRequest`] or [`BodyError`].
//! - Invariants: I-DIA-REQ-1 one pass, no tree of values; memory beside the facts is bounded by the nesting.
//!   I-DIA-REQ-2 only a body that cannot be routed is refused (not UTF-8, not JSON, not an object, too deep, a
//!   `model` that is no text). A field of a wrong type elsewhere counts as absent here and reaches the engine
//!   as it is: the engine's refusal is better than ours, and its next release may take what this one does not.
//!   I-DIA-REQ-3 truth values (`stream`, `include_usage`) are read as the engines' validators read them: null is
//!   absent, 1 and "true" are true. I-DIA-REQ-4 of several fields with one name the last one counts, here, in the
//!   digest and in edits, as in the engines. I-DIA-REQ-5 edits are splices: no byte outside of them changes.
//! - Deliberately absent: checking of ranges and combinations; anything of the content.
//! - Sources: vLLM 0.33 and SGLang 0.5.23 request models; `input_trigger` as Dynamo 1.6.1 classifies it.

mod prompt;
mod read;

use std::ops::Range;

use tandem_types::{BodyEdit, Dialect, TurnFacts};

use crate::errors::ErrorKind;
use crate::json::{ScanError, Scanner};
use crate::limits::JSON_DEPTH_MAX;

/// Why a request body cannot be routed. Every other fault is the engine's to refuse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// A byte sequence that is not UTF-8, at this offset.
    #[error("the request body is not valid utf-8 (byte {at})")]
    NotUtf8 {
        /// Offset of the first bad byte.
        at: usize,
    },
    /// Not JSON, at this offset.
    #[error("the request body is not valid json (byte {at})")]
    NotJson {
        /// Offset where reading stopped.
        at: usize,
    },
    /// JSON, but not an object.
    #[error("the request body must be a json object")]
    NotAnObject,
    /// Nested deeper than [`JSON_DEPTH_MAX`].
    #[error("the request body is nested deeper than {JSON_DEPTH_MAX} levels")]
    TooDeep,
    /// A field that routing needs has a type that cannot be read.
    #[error("field `{field}` must be {expected}")]
    WrongType {
        /// Name of the field.
        field: &'static str,
        /// What it should be.
        expected: &'static str,
    },
}

impl BodyError {
    /// The kind of error answer.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        ErrorKind::BadRequest
    }
}

impl From<ScanError> for BodyError {
    fn from(error: ScanError) -> Self {
        match error {
            ScanError::Syntax(at) => Self::NotJson { at },
            ScanError::TooDeep => Self::TooDeep,
        }
    }
}

/// A top-level field that a gateway may set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BodyField {
    /// `model`.
    Model,
    /// `stream_options`.
    StreamOptions,
    /// `cache_salt` (vLLM, SGLang).
    CacheSalt,
    /// `priority` (vLLM: lower is earlier; SGLang: higher is earlier).
    Priority,
    /// `session_id` (vLLM, SGLang).
    SessionId,
    /// `return_token_ids` (vLLM, SGLang).
    ReturnTokenIds,
    /// `stream`.
    Stream,
    /// `max_tokens`.
    MaxTokens,
    /// `max_completion_tokens` (chat).
    MaxCompletionTokens,
    /// `max_output_tokens` (responses).
    MaxOutputTokens,
    /// `min_tokens` (vLLM, SGLang).
    MinTokens,
    /// `kv_transfer_params` (vLLM): where a prompt's KV is to come from or go to.
    KvTransferParams,
    /// `bootstrap_host` (SGLang): where the two workers of a split turn meet.
    BootstrapHost,
    /// `bootstrap_port` (SGLang).
    BootstrapPort,
    /// `bootstrap_room` (SGLang): a number that both of them name.
    BootstrapRoom,
    /// `disagg_prefill_dp_rank` (SGLang): which rank of the prefill worker has the KV.
    DisaggPrefillDpRank,
}

impl BodyField {
    /// Every field, in the order of the enumeration.
    const ALL: [Self; 16] = [
        Self::Model,
        Self::StreamOptions,
        Self::CacheSalt,
        Self::Priority,
        Self::SessionId,
        Self::ReturnTokenIds,
        Self::Stream,
        Self::MaxTokens,
        Self::MaxCompletionTokens,
        Self::MaxOutputTokens,
        Self::MinTokens,
        Self::KvTransferParams,
        Self::BootstrapHost,
        Self::BootstrapPort,
        Self::BootstrapRoom,
        Self::DisaggPrefillDpRank,
    ];
    const COUNT: usize = Self::ALL.len();

    /// The field's name in the body.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::StreamOptions => "stream_options",
            Self::CacheSalt => "cache_salt",
            Self::Priority => "priority",
            Self::SessionId => "session_id",
            Self::ReturnTokenIds => "return_token_ids",
            Self::Stream => "stream",
            Self::MaxTokens => "max_tokens",
            Self::MaxCompletionTokens => "max_completion_tokens",
            Self::MaxOutputTokens => "max_output_tokens",
            Self::MinTokens => "min_tokens",
            Self::KvTransferParams => "kv_transfer_params",
            Self::BootstrapHost => "bootstrap_host",
            Self::BootstrapPort => "bootstrap_port",
            Self::BootstrapRoom => "bootstrap_room",
            Self::DisaggPrefillDpRank => "disagg_prefill_dp_rank",
        }
    }

    fn named(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|field| field.name().as_bytes() == name)
    }

    const fn slot(self) -> usize {
        self as usize
    }
}

/// A request body as far as it was read, with the places where it may be edited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedRequest {
    /// What a gateway must know.
    pub facts: TurnFacts,
    /// Prompts in the body: more than 1 only for a completions call with a list of prompts.
    pub prompts: u32,
    /// Choices asked for per prompt (`n`).
    n: u32,
    anchors: Anchors,
}

/// Where a body may be edited.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Anchors {
    /// Just behind the opening brace.
    start: usize,
    /// The object has no member.
    empty: bool,
    fields: [Option<Range<usize>>; BodyField::COUNT],
    stream_options: StreamOptions,
}

/// `stream_options` as the client wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
enum StreamOptions {
    /// No such field.
    #[default]
    Absent,
    /// `null`.
    Null,
    /// An object.
    Object {
        /// Just behind its opening brace.
        start: usize,
        empty: bool,
        /// Where the value of `include_usage` stands.
        include_usage: Option<Range<usize>>,
        /// `continuous_usage_stats` is on.
        continuous: bool,
    },
    /// Something that no engine takes.
    Wrong,
}

impl ParsedRequest {
    /// Choices that the answer will have: `n` for each prompt.
    #[must_use]
    pub const fn answer_choices(&self) -> u32 {
        self.n.saturating_mul(self.prompts)
    }

    /// The edit that makes the engine report usage when the client did not ask for it: only for streamed chat
    /// and completions calls; `None` when nothing must be changed. When it is made, the answer goes through a
    /// [`crate::StreamObserver`] that takes the extra chunk out again.
    ///
    /// A client that sets `continuous_usage_stats` without `include_usage` is left alone: SGLang then counts on
    /// every chunk anyway, and vLLM would start to, which could not be told apart from what the client wants.
    #[must_use]
    pub fn ask_for_usage(&self) -> Option<BodyEdit> {
        let facts = &self.facts;
        if !facts.stream
            || facts.include_usage
            || !matches!(facts.dialect, Dialect::Chat | Dialect::Completions)
        {
            return None;
        }
        match &self.anchors.stream_options {
            StreamOptions::Absent | StreamOptions::Null => {
                self.set_field(BodyField::StreamOptions, b"{\"include_usage\":true}")
            }
            StreamOptions::Object { continuous: true, .. } | StreamOptions::Wrong => None,
            StreamOptions::Object { include_usage: Some(range), .. } => {
                Some(BodyEdit { range: range.clone(), with: b"true".to_vec() })
            }
            StreamOptions::Object { start, empty, .. } => {
                let with = if *empty {
                    b"\"include_usage\":true".to_vec()
                } else {
                    b"\"include_usage\":true,".to_vec()
                };
                Some(BodyEdit { range: *start..*start, with })
            }
        }
    }

    /// Where the value of `field` stands in the body (its last occurrence); `None` = absent.
    #[must_use]
    pub fn field(&self, field: BodyField) -> Option<Range<usize>> {
        self.anchors.fields[field.slot()].clone()
    }

    /// The edit that sets `field` to `value` (JSON text): its last value is replaced, or the field is put first
    /// in the object. `None` for an object without any member, which no engine takes anyway.
    #[must_use]
    pub fn set_field(&self, field: BodyField, value: &[u8]) -> Option<BodyEdit> {
        if let Some(range) = self.field(field) {
            return Some(BodyEdit { range, with: value.to_vec() });
        }
        if self.anchors.empty {
            return None;
        }
        let start = self.anchors.start;
        let mut with = Vec::with_capacity(field.name().len() + value.len() + 4);
        with.push(b'"');
        with.extend_from_slice(field.name().as_bytes());
        with.extend_from_slice(b"\":");
        with.extend_from_slice(value);
        with.push(b',');
        Some(BodyEdit { range: start..start, with })
    }
}

/// Reads a request body in one pass.
///
/// # Errors
/// [`BodyError`] when the body cannot be routed.
pub fn parse_request(dialect: Dialect, body: &[u8]) -> Result<ParsedRequest, BodyError> {
    std::str::from_utf8(body).map_err(|error| BodyError::NotUtf8 { at: error.valid_up_to() })?;
    let mut scan = Scanner::new(body, true);
    scan.byte_order_mark();
    read::request(dialect, body.len(), &mut scan)
}
