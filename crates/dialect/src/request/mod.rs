//! Request bodies.

use std::ops::Range;

use tandem_types::{BodyEdit, Dialect, TurnFacts};

use crate::errors::ErrorKind;

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
    /// Nested deeper than [`crate::limits::JSON_DEPTH_MAX`].
    #[error("the request body is nested deeper than {} levels", crate::limits::JSON_DEPTH_MAX)]
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
}

/// A request body as far as it was read, with the places where it may be edited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedRequest {
    /// What a gateway must know.
    pub facts: TurnFacts,
    /// Prompts in the body: more than 1 only for a completions call with a list of prompts.
    pub prompts: u32,
}

impl ParsedRequest {
    /// Choices that the answer will have: `n` for each prompt.
    #[must_use]
    pub const fn answer_choices(&self) -> u32 {
        1
    }

    /// The edit that makes the engine report usage when the client did not ask for it: only for streamed chat
    /// and completions calls; `None` when nothing must be changed. When it is made, the answer goes through a
    /// [`crate::StreamObserver`] that takes the extra chunk out again.
    #[must_use]
    pub fn ask_for_usage(&self) -> Option<BodyEdit> {
        None
    }

    /// Where the value of `field` stands in the body (its last occurrence); `None` = absent.
    #[must_use]
    pub fn field(&self, field: BodyField) -> Option<Range<usize>> {
        let _ = field;
        None
    }

    /// The edit that sets `field` to `value` (JSON text). `None` for a body without any field.
    #[must_use]
    pub fn set_field(&self, field: BodyField, value: &[u8]) -> Option<BodyEdit> {
        let _ = (field, value);
        None
    }
}

/// Reads a request body in one pass.
///
/// # Errors
/// [`BodyError`] when the body cannot be routed.
pub fn parse_request(dialect: Dialect, body: &[u8]) -> Result<ParsedRequest, BodyError> {
    let _ = (dialect, body);
    Err(BodyError::NotAnObject)
}
