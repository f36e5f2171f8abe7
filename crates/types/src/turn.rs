//! A turn as a gateway needs to know it, whatever its dialect.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::context::InputTrigger;

/// The API in which a request speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// OpenAI `/v1/chat/completions`.
    Chat,
    /// OpenAI `/v1/completions`.
    Completions,
    /// OpenAI `/v1/responses`.
    Responses,
    /// Anthropic `/v1/messages`.
    Messages,
}

/// Token counts of one answered turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// All prompt tokens, cached ones included (Anthropic's three input counts are summed).
    pub input_tokens: u64,
    /// Generated tokens.
    pub output_tokens: u64,
    /// Prompt tokens that the engine took from its cache; `None` when it did not say.
    pub cached_tokens: Option<u64>,
    /// Generated tokens that were reasoning; `None` when the engine did not say.
    pub reasoning_tokens: Option<u64>,
}

/// Why generation stopped, in OpenAI's words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model ended its answer.
    Stop,
    /// The token limit was reached.
    Length,
    /// The model asks for tools: a tool boundary.
    ToolCalls,
    /// A filter cut in.
    ContentFilter,
    /// The engine failed or aborted.
    Error,
    /// A word that we do not know, as the engine wrote it.
    Other(String),
}

/// A tool call that a turn ended with; arguments are content and never kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Which of the `n` choices made it.
    pub choice_index: u32,
    /// Its place within the choice, from 0.
    pub tool_call_index: u32,
    /// Call id.
    pub id: Option<String>,
    /// Tool name.
    pub name: Option<String>,
}

/// Fields of a request body that may carry an identity.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BodyIds {
    /// OpenAI `prompt_cache_key`.
    pub prompt_cache_key: Option<String>,
    /// Anthropic `metadata.user_id` (Claude Code puts a JSON text with `session_id` there).
    pub metadata_user_id: Option<String>,
    /// Responses `previous_response_id`.
    pub previous_response_id: Option<String>,
    /// vLLM's and SGLang's `session_id`.
    pub session_id: Option<String>,
}

/// What the form of a prompt tells about the purpose of the call, without its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PromptShape {
    /// Number of tools offered; `None` when the field is absent.
    pub tools: Option<u32>,
    /// Messages or input items.
    pub messages: u32,
    /// The answer must follow a JSON schema.
    pub json_schema_output: bool,
    /// The client switched thinking off.
    pub thinking_disabled: bool,
    /// Bytes of the body: a rough measure of the prompt.
    pub body_bytes: usize,
}

/// What a gateway must know of a request body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnFacts {
    /// The API spoken.
    pub dialect: Dialect,
    /// The model asked for.
    pub model: Option<String>,
    /// Whether the answer is to be streamed.
    pub stream: bool,
    /// Whether the client asks for the usage chunk of a stream (chat and completions).
    pub include_usage: bool,
    /// Number of choices asked for (`n`, or `best_of` if larger).
    pub choices: u32,
    /// The client's bound on generated tokens.
    pub max_output_tokens: Option<u64>,
    /// Whether the prompt carries images, audio or files.
    pub multimodal: bool,
    /// What made the client send this.
    pub input_trigger: InputTrigger,
    /// Fields that may carry an identity.
    pub ids: BodyIds,
    /// The form of the prompt.
    pub shape: PromptShape,
    /// The prompt's token ids, where the client sent token ids instead of text.
    pub prompt_tokens: Option<Vec<u32>>,
    /// Digest of the body in canonical form: insensitive to key order and white space.
    pub digest: u128,
}

/// A change to a request body that leaves every other byte as the client sent it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BodyEdit {
    /// The bytes of the original body to replace; empty = insert before `range.start`.
    pub range: Range<usize>,
    /// What to put there.
    pub with: Vec<u8>,
}
