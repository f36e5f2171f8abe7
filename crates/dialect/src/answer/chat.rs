//! Answers of chat and completions.

use std::ops::Range;

use tandem_types::FinishReason;

use super::tools::Piece;
use super::{AnswerError, Reading, error_object, has_content, start_of, word};
use crate::json::{Kind, Scan, Scanner};
use crate::limits::TOKEN_IDS_MAX;

/// What the usage filter must know of a chunk.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    /// `choices` is an empty list.
    pub(super) no_choices: bool,
    /// `usage` is an object.
    pub(super) usage: bool,
    /// Where the null of `"usage":null` stands in the data.
    pub(super) usage_null: Option<Range<usize>>,
    /// Where the value of `system_fingerprint` stands in the data.
    pub(super) fingerprint: Option<Range<usize>>,
    /// It ended the last choice that was still open.
    pub(super) ends_all: bool,
    /// The chunk reports an error: it passes whatever else it holds.
    pub(super) error: bool,
    /// `object` is "error": the whole chunk is an error object, as older vLLM versions write it.
    bare_error: bool,
    bare: AnswerError,
}

/// One choice of a chunk or body.
#[derive(Debug, Default)]
struct Choice {
    index: u32,
    content: bool,
    calls: Vec<Piece>,
    finish: Option<String>,
    stop_reason: Option<String>,
    tokens: Option<Vec<u32>>,
    text: Vec<u8>,
    reasoned: bool,
}

/// The data of one event.
pub(super) fn event(reading: &mut Reading, data: &[u8]) -> Chunk {
    if data.trim_ascii() == b"[DONE]" {
        reading.facts.complete = true;
        return Chunk::default();
    }
    let mut chunk = Chunk::default();
    let mut scan = Scanner::new(data, false);
    if object(reading, &mut chunk, &mut scan).and_then(|()| scan.end()).is_err() {
        return Chunk::default();
    }
    let was_complete = reading.facts.complete;
    let ended = reading.facts.choices.iter().filter(|choice| choice.finish_reason.is_some()).count();
    let all = ended == reading.facts.choices.len();
    if all && u32::try_from(ended).is_ok_and(|ended| ended > 0 && ended >= reading.expected) {
        reading.facts.complete = true;
        chunk.ends_all = !was_complete;
    }
    chunk
}

/// An answer that is not streamed.
pub(super) fn body(reading: &mut Reading, scan: &mut Scanner<'_>) -> Scan {
    object(reading, &mut Chunk::default(), scan)?;
    reading.facts.complete |= !reading.facts.choices.is_empty();
    Ok(())
}

fn object(reading: &mut Reading, chunk: &mut Chunk, scan: &mut Scanner<'_>) -> Scan {
    scan.members(|scan, key| {
        match key {
            b"id" => reading.id(scan)?,
            b"model" => reading.model(scan)?,
            b"choices" => {
                chunk.no_choices = scan.peek()? == Kind::Array;
                scan.items(|scan, place| {
                    chunk.no_choices = false;
                    let choice = read_choice(reading, scan, place)?;
                    apply(reading, choice);
                    Ok(())
                })?;
            }
            b"usage" => {
                let kind = scan.peek()?;
                let start = scan.position();
                reading.counts.read(scan)?;
                chunk.usage = kind == Kind::Object;
                chunk.usage_null = (kind == Kind::Null).then(|| start..scan.position());
            }
            b"system_fingerprint" => {
                let start = scan.position();
                scan.skip()?;
                chunk.fingerprint = Some(start..scan.position());
            }
            b"prompt_token_ids" => reading.prompt_tokens(scan)?,
            b"error" => {
                if let Some(error) = error_object(scan)? {
                    chunk.error = true;
                    reading.fail(error);
                }
            }
            b"object" => chunk.bare_error = scan.text_or_skip()?.is_some_and(|kind| *kind == *b"error"),
            b"type" => chunk.bare.kind = word(scan)?,
            b"code" => chunk.bare.code = word(scan)?,
            _ => scan.skip()?,
        }
        Ok(())
    })?;
    if chunk.bare_error {
        chunk.error = true;
        reading.fail(std::mem::take(&mut chunk.bare));
    }
    Ok(())
}

fn read_choice(reading: &mut Reading, scan: &mut Scanner<'_>, place: usize) -> Scan<Choice> {
    let mut choice = Choice { index: u32::try_from(place).unwrap_or(u32::MAX), ..Choice::default() };
    scan.members(|scan, key| {
        match key {
            b"index" => {
                let index = scan.unsigned()?.and_then(|index| u32::try_from(index).ok());
                choice.index = index.unwrap_or(choice.index);
            }
            b"delta" | b"message" => read_message(&mut choice, scan)?,
            b"text" => choice.content |= has_content(scan)?,
            b"finish_reason" => choice.finish = word(scan)?,
            b"stop_reason" | b"matched_stop" => {
                choice.stop_reason = word(scan)?.or(choice.stop_reason.take())
            }
            b"token_ids" => choice.tokens = scan.token_ids(TOKEN_IDS_MAX)?,
            b"prompt_token_ids" => reading.prompt_tokens(scan)?,
            _ => scan.skip()?,
        }
        Ok(())
    })?;
    Ok(choice)
}

fn read_message(choice: &mut Choice, scan: &mut Scanner<'_>) -> Scan {
    scan.members(|scan, key| {
        match key {
            b"content" => choice.content |= start_of(scan, &mut choice.text)?,
            b"reasoning" | b"reasoning_content" => {
                choice.reasoned |= has_content(scan)?;
                choice.content |= choice.reasoned;
            }
            b"refusal" | b"audio" => choice.content |= has_content(scan)?,
            b"tool_calls" => scan.items(|scan, place| {
                let piece = read_call(scan, place)?;
                choice.calls.push(piece);
                Ok(())
            })?,
            b"function_call" => {
                // The old form: one call per message, without id or index.
                if scan.peek()? == Kind::Object {
                    let name = function_name(scan)?;
                    choice.calls.push(Piece { index: Some(0), id: None, name });
                } else {
                    scan.skip()?;
                }
            }
            _ => scan.skip()?,
        }
        Ok(())
    })
}

fn read_call(scan: &mut Scanner<'_>, place: usize) -> Scan<Piece> {
    let mut piece = Piece::default();
    scan.members(|scan, key| {
        match key {
            b"index" => piece.index = scan.unsigned()?,
            b"id" => piece.id = word(scan)?.filter(|id| !id.is_empty()),
            b"function" | b"custom" => piece.name = function_name(scan)?,
            _ => scan.skip()?,
        }
        Ok(())
    })?;
    // Answers that are not streamed number their calls by place.
    piece.index = piece.index.or(u64::try_from(place).ok());
    Ok(piece)
}

fn function_name(scan: &mut Scanner<'_>) -> Scan<Option<String>> {
    let mut name = None;
    scan.members(|scan, key| {
        if key == b"name" {
            name = word(scan)?.filter(|name| !name.is_empty());
            return Ok(());
        }
        scan.skip()
    })?;
    Ok(name)
}

fn apply(reading: &mut Reading, choice: Choice) {
    let index = choice.index;
    reading.choice(index);
    reading.facts.first_content |= choice.content || !choice.calls.is_empty();
    reading.tools.next_delta();
    for piece in choice.calls {
        reading.tools.piece(&mut reading.facts.tool_calls, index, piece);
    }
    if index == 0 {
        reading.said(&choice.text);
        reading.facts.reasoned |= choice.reasoned;
    }
    if index == 0
        && let Some(tokens) = &choice.tokens
    {
        reading.facts.first_content |= !tokens.is_empty();
        reading.output_tokens(tokens);
    }
    if let Some(word) = choice.finish {
        let reason = match word.as_str() {
            "stop" => FinishReason::Stop,
            "length" => FinishReason::Length,
            "tool_calls" | "function_call" => FinishReason::ToolCalls,
            "content_filter" => FinishReason::ContentFilter,
            "abort" | "error" => FinishReason::Error,
            _ => FinishReason::Other(word.clone()),
        };
        reading.end(index, word, reason, choice.stop_reason);
    }
}
