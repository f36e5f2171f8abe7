//! Answers.

use bytes::Bytes;
use tandem_types::{Dialect, FinishReason, ToolCall, Usage};

use crate::errors::ErrorKind;

/// How one choice of an answer ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChoiceEnd {
    /// Which of the `n` choices.
    pub index: u32,
    /// In OpenAI's words; `None` = it has not ended.
    pub finish_reason: Option<FinishReason>,
    /// The engine's own word.
    pub backend_finish_reason: Option<String>,
    /// The stop string or token that ended it, where the engine tells.
    pub stop_reason: Option<String>,
}

/// An error that the engine reported. Its text may hold content and is not kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AnswerError {
    /// `type` of the error object.
    pub kind: Option<String>,
    /// `code` of the error object, numbers as text.
    pub code: Option<String>,
}

/// What is known of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AnswerFacts {
    /// Token counts, where the engine reported them.
    pub usage: Option<Usage>,
    /// Choices that were seen, by index.
    pub choices: Vec<ChoiceEnd>,
    /// Tool calls, at most [`tandem_types::limits::TOOL_CALLS_PER_TURN_MAX`].
    pub tool_calls: Vec<ToolCall>,
    /// All tool calls, those not kept included.
    pub tool_call_count: u64,
    /// The engine's id of the answer.
    pub response_id: Option<String>,
    /// The model that answered.
    pub model: Option<String>,
    /// The engine reported an error: not a success, whatever the status was.
    pub error: Option<AnswerError>,
    /// The answer reached an end that its dialect knows (its error events included): nothing is to be added.
    /// A stream that closes without this was cut.
    pub complete: bool,
    /// Something generated was seen (text, reasoning, a tool call).
    pub first_content: bool,
    /// The prompt's token ids, where the client asked for them.
    pub prompt_token_ids: Option<Vec<u32>>,
    /// Generated token ids of choice 0, where the client asked for them.
    pub output_token_ids: Vec<u32>,
    /// Events that were too large to read.
    pub oversized_events: u64,
}

impl AnswerFacts {
    /// The answer's finish reason as one word: an error, else a tool boundary, else that of the lowest choice.
    #[must_use]
    pub fn finish_reason(&self) -> Option<FinishReason> {
        None
    }

    /// Ended as its dialect says and without an error.
    #[must_use]
    pub const fn succeeded(&self) -> bool {
        self.complete && self.error.is_none()
    }
}

/// What to take out of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum UsageFilter {
    /// Nothing: every byte passes as it comes, undelayed.
    #[default]
    Keep,
    /// The chunk with empty `choices` and usage, for engines that change nothing else when asked for usage
    /// (vLLM, SGLang, llama.cpp). Events pass at their end.
    DropChunk,
    /// Also `"usage":null` on every other chunk, which services that follow OpenAI's reference to the letter
    /// add when asked for usage.
    DropChunkAndNulls,
}

/// Observes a streamed answer and passes its bytes on.
#[derive(Debug)]
pub struct StreamObserver {
    facts: AnswerFacts,
}

impl StreamObserver {
    /// An observer for one stream.
    #[must_use]
    pub fn new(dialect: Dialect, filter: UsageFilter) -> Self {
        let _ = (dialect, filter);
        Self { facts: AnswerFacts::default() }
    }

    /// How many choices the answer will have ([`crate::ParsedRequest::answer_choices`]); 1 unless told.
    #[must_use]
    pub fn expecting(self, choices: u32) -> Self {
        let _ = choices;
        self
    }

    /// Takes the next bytes of the engine's stream and appends what is to be sent to `out`.
    pub fn push(&mut self, chunk: Bytes, out: &mut Vec<Bytes>) {
        out.push(chunk);
    }

    /// The engine's stream is over (closed or cut): appends what was still held back to `out`.
    pub fn finish(&mut self, out: &mut Vec<Bytes>) {
        let _ = out;
    }

    /// What is known so far.
    #[must_use]
    pub const fn facts(&self) -> &AnswerFacts {
        &self.facts
    }

    /// Ends the observation.
    #[must_use]
    pub fn into_facts(self) -> AnswerFacts {
        self.facts
    }

    /// The error event with which this stream is to be ended, fit to what it has sent so far. Call it after
    /// [`Self::finish`] and only when the answer is not complete.
    #[must_use]
    pub fn error_event(
        &self,
        kind: ErrorKind,
        message: &str,
        retry_after_s: Option<u32>,
        now_unix_s: u64,
    ) -> Vec<u8> {
        let _ = (kind, message, retry_after_s, now_unix_s);
        Vec::new()
    }
}

/// Observes an answer that is not streamed. The bytes pass unchanged; bytes that cannot be read give no facts.
#[must_use]
pub fn observe_body(dialect: Dialect, body: &[u8]) -> AnswerFacts {
    let _ = (dialect, body);
    AnswerFacts::default()
}
