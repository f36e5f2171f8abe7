//! Answers: what they tell about a turn, streamed or not, and the bytes that pass.
//!
//! - Inputs: dialect and the engine's bytes. Outputs: [`AnswerFacts`] and the bytes for the client.
//! - Invariants: I-DIA-ANS-1 with [`UsageFilter::Keep`] every byte passes as it comes; else an event passes at
//!   its end, unchanged, unless it is the one chunk that the client did not ask for. I-DIA-ANS-2 bytes that
//!   cannot be read pass and give no facts. I-DIA-ANS-3 tool calls are told apart by id, then by index: engines
//!   give parallel calls the same index, or the same id on every piece. I-DIA-ANS-4 arguments and texts are
//!   never kept.
//! - What asking for usage changes, by engine: vLLM (Python and Rust frontends), SGLang and llama.cpp add one
//!   chunk with empty `choices` before `[DONE]` and nothing else (vLLM leaves unset fields out, SGLang writes
//!   `"usage":null` on every chunk whether asked or not). Services that follow OpenAI's reference to the letter
//!   write `"usage":null` on the other chunks only when asked: [`UsageFilter::DropChunkAndNulls`]. An engine that
//!   is set to report usage always loses its chunk, too: it cannot be told apart. vLLM 0.32 writes
//!   `system_fingerprint` on its last chunk: where that is the one taken out, the member goes back to the chunk
//!   that ended the answer, which waits for this (engines send the two together).
//! - Deliberately absent: repair of broken streams; assembling text.
//! - Sources: vLLM 0.32.0 streams as recorded; vLLM 0.33 and SGLang 0.5.23 front ends; Anthropic and OpenAI API
//!   references.

mod chat;
mod messages;
mod observer;
mod responses;
mod tools;

use tandem_types::{Dialect, FinishReason, ToolCall, Usage};

pub use observer::{StreamObserver, UsageFilter};

use crate::json::{Kind, Scan, Scanner};
use crate::limits::{ANSWER_START_MAX, CHOICES_MAX, TOKEN_IDS_MAX};
use crate::usage::UsageCounts;
use tools::ToolTracker;

/// How one choice of an answer ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChoiceEnd {
    /// Which of the `n` choices.
    pub index: u32,
    /// In OpenAI's words; `None` = it has not ended. A plain stop after tool calls is a tool boundary here.
    pub finish_reason: Option<FinishReason>,
    /// The engine's own word.
    pub backend_finish_reason: Option<String>,
    /// The stop string or token that ended it, where the engine tells; cut to 256 bytes.
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
    /// How the text of choice 0 begins, unescaped: at most [`ANSWER_START_MAX`] bytes. Empty for completions.
    pub text_start: Vec<u8>,
    /// Reasoning was seen beside the text.
    pub reasoned: bool,
    /// Events that were too large to read.
    pub oversized_events: u64,
}

impl AnswerFacts {
    /// The answer's finish reason as one word: an error, else a tool boundary of any choice, else the reason of
    /// the first choice.
    #[must_use]
    pub fn finish_reason(&self) -> Option<FinishReason> {
        if self.error.is_some() {
            return Some(FinishReason::Error);
        }
        let reasons = || self.choices.iter().filter_map(|choice| choice.finish_reason.as_ref());
        reasons().find(|reason| **reason == FinishReason::ToolCalls).or_else(|| reasons().next()).cloned()
    }

    /// Ended as its dialect says and without an error.
    #[must_use]
    pub const fn succeeded(&self) -> bool {
        self.complete && self.error.is_none()
    }
}

/// Observes an answer that is not streamed. The bytes pass unchanged; bytes that cannot be read give no facts.
#[must_use]
pub fn observe_body(dialect: Dialect, body: &[u8]) -> AnswerFacts {
    let mut reading = Reading::new(dialect, 1);
    let mut scan = Scanner::new(body, false);
    let read = match dialect {
        Dialect::Chat | Dialect::Completions => chat::body(&mut reading, &mut scan),
        Dialect::Responses => responses::body(&mut reading, &mut scan),
        Dialect::Messages => messages::body(&mut reading, &mut scan),
    };
    if read.and_then(|()| scan.end()).is_err() {
        reading.facts.complete = false;
    }
    reading.into_facts()
}

/// An answer while it is read.
#[derive(Debug)]
struct Reading {
    dialect: Dialect,
    facts: AnswerFacts,
    counts: UsageCounts,
    tools: ToolTracker,
    /// Choices that must end.
    expected: u32,
    /// Responses: the `sequence_number` that comes next.
    next_sequence: u64,
    /// More generated token ids came than are kept.
    tokens_spoiled: bool,
}

impl Reading {
    fn new(dialect: Dialect, expected: u32) -> Self {
        Self {
            dialect,
            facts: AnswerFacts::default(),
            counts: UsageCounts::default(),
            tools: ToolTracker::default(),
            expected,
            next_sequence: 0,
            tokens_spoiled: false,
        }
    }

    fn into_facts(mut self) -> AnswerFacts {
        self.refresh();
        self.facts
    }

    /// Brings the facts that are derived from counters up to date.
    fn refresh(&mut self) {
        self.facts.usage = self.counts.usage(self.dialect);
        self.facts.tool_call_count = self.tools.count();
    }

    fn id(&mut self, scan: &mut Scanner<'_>) -> Scan {
        keep_first(&mut self.facts.response_id, scan)
    }

    fn model(&mut self, scan: &mut Scanner<'_>) -> Scan {
        keep_first(&mut self.facts.model, scan)
    }

    fn fail(&mut self, error: AnswerError) {
        self.facts.error.get_or_insert(error);
        self.facts.complete = true;
    }

    /// The choice of this index; `None` when there are too many.
    fn choice(&mut self, index: u32) -> Option<&mut ChoiceEnd> {
        let choices = &mut self.facts.choices;
        let at = match choices.binary_search_by_key(&index, |choice| choice.index) {
            Ok(at) => at,
            Err(_) if choices.len() >= CHOICES_MAX => return None,
            Err(at) => {
                choices.insert(at, ChoiceEnd { index, ..ChoiceEnd::default() });
                at
            }
        };
        choices.get_mut(at)
    }

    /// A choice ended with the engine's word `word`, which means `reason`.
    fn end(&mut self, index: u32, word: String, reason: FinishReason, stop_reason: Option<String>) {
        let reason = match reason {
            FinishReason::Stop if self.tools.of_choice(index) > 0 => FinishReason::ToolCalls,
            reason => reason,
        };
        if let Some(choice) = self.choice(index) {
            choice.finish_reason = Some(reason);
            choice.backend_finish_reason = Some(word);
            choice.stop_reason = stop_reason.or(choice.stop_reason.take());
        }
    }

    fn prompt_tokens(&mut self, scan: &mut Scanner<'_>) -> Scan {
        let tokens = scan.token_ids(TOKEN_IDS_MAX)?;
        if self.facts.prompt_token_ids.is_none() {
            self.facts.prompt_token_ids = tokens;
        }
        Ok(())
    }

    fn output_tokens(&mut self, tokens: &[u32]) {
        let kept = &mut self.facts.output_token_ids;
        if self.tokens_spoiled || kept.len() + tokens.len() > TOKEN_IDS_MAX {
            self.tokens_spoiled = true;
            *kept = Vec::new();
        } else {
            kept.extend_from_slice(tokens);
        }
    }
}

impl Reading {
    /// The answer's text goes on with this.
    fn said(&mut self, text: &[u8]) {
        let kept = &mut self.facts.text_start;
        let room = ANSWER_START_MAX.saturating_sub(kept.len());
        kept.extend_from_slice(text.get(..room).unwrap_or(text));
    }
}

/// Reads a text and keeps how it begins; what is no text is skipped. Whether there was anything in it.
fn start_of(scan: &mut Scanner<'_>, start: &mut Vec<u8>) -> Scan<bool> {
    if scan.peek()? != Kind::Text {
        return has_content(scan);
    }
    let text = scan.text()?;
    let room = ANSWER_START_MAX.saturating_sub(start.len());
    start.extend_from_slice(text.get(..room).unwrap_or(&text));
    Ok(!text.is_empty())
}

/// Longest word or id kept of an answer, in bytes.
const WORD_BYTES_MAX: usize = 256;

fn keep_first(slot: &mut Option<String>, scan: &mut Scanner<'_>) -> Scan {
    if slot.is_some() {
        return scan.skip();
    }
    *slot = word(scan)?;
    Ok(())
}

/// A short text or a number as text; `None` for anything else.
fn word(scan: &mut Scanner<'_>) -> Scan<Option<String>> {
    let bytes = match scan.peek()? {
        Kind::Text => scan.text()?.into_owned(),
        Kind::Number => scan.number()?.to_vec(),
        _ => {
            scan.skip()?;
            return Ok(None);
        }
    };
    let Ok(mut text) = String::from_utf8(bytes) else { return Ok(None) };
    let mut end = text.len().min(WORD_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    Ok(Some(text))
}

/// Reads a value and tells whether it is a text, list or object with something in it.
fn has_content(scan: &mut Scanner<'_>) -> Scan<bool> {
    let kind = scan.peek()?;
    let start = scan.position();
    scan.skip()?;
    Ok(matches!(kind, Kind::Text | Kind::Array | Kind::Object) && scan.position() - start > 2)
}

/// An error object (or its plain text); `None` for null.
fn error_object(scan: &mut Scanner<'_>) -> Scan<Option<AnswerError>> {
    let kind = scan.peek()?;
    let mut error = AnswerError::default();
    scan.members(|scan, key| {
        match key {
            b"type" => error.kind = word(scan)?,
            b"code" => error.code = word(scan)?,
            _ => scan.skip()?,
        }
        Ok(())
    })?;
    Ok((kind != Kind::Null).then_some(error))
}
