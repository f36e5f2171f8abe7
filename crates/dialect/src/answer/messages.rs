//! Answers of Anthropic's Messages.

use tandem_types::FinishReason;

use super::tools::Piece;
use super::{AnswerError, Reading, error_object, has_content, start_of, word};
use crate::json::{Scan, Scanner};

/// What one event or body holds, before its type is known.
#[derive(Debug, Default)]
struct Object {
    kind: Option<String>,
    error: Option<AnswerError>,
    /// Index of a content block.
    index: Option<u64>,
    block: Option<Block>,
    end: End,
}

#[derive(Debug, Default)]
struct Block {
    kind: Option<String>,
    piece: Piece,
    text: Vec<u8>,
}

#[derive(Debug, Default)]
struct End {
    stop_reason: Option<String>,
    stop_sequence: Option<String>,
    text: Vec<u8>,
    reasoned: bool,
}

/// The data of one event.
pub(super) fn event(reading: &mut Reading, data: &[u8]) {
    let mut object = Object::default();
    let mut scan = Scanner::new(data, false);
    if read(reading, &mut object, &mut scan).and_then(|()| scan.end()).is_err() {
        return;
    }
    match object.kind.as_deref() {
        Some("content_block_start") => {
            if let Some(mut block) = object.block {
                block.piece.index = object.index;
                apply_block(reading, block);
            }
        }
        Some("content_block_delta") => {
            reading.facts.first_content = true;
            reading.facts.reasoned |= object.end.reasoned;
            reading.said(&object.end.text);
        }
        Some("message_delta") => apply_end(reading, object.end),
        Some("message_stop") => reading.facts.complete = true,
        Some("error") => reading.fail(object.error.unwrap_or_default()),
        _ => {}
    }
}

/// An answer that is not streamed.
pub(super) fn body(reading: &mut Reading, scan: &mut Scanner<'_>) -> Scan {
    let mut object = Object::default();
    read(reading, &mut object, scan)?;
    match object.kind.as_deref() {
        Some("error") => reading.fail(object.error.unwrap_or_default()),
        Some("message") => {
            apply_end(reading, object.end);
            reading.facts.complete = true;
        }
        _ => {
            if let Some(error) = object.error {
                reading.fail(error);
            }
        }
    }
    Ok(())
}

fn read(reading: &mut Reading, object: &mut Object, scan: &mut Scanner<'_>) -> Scan {
    scan.members(|scan, key| {
        match key {
            b"type" => object.kind = word(scan)?,
            b"id" => reading.id(scan)?,
            b"model" => reading.model(scan)?,
            b"usage" => reading.counts.read(scan)?,
            b"message" => start(reading, scan)?,
            b"index" => object.index = scan.unsigned()?,
            b"content_block" => object.block = Some(block(scan)?),
            b"content" => {
                reading.tools.next_delta();
                scan.items(|scan, place| {
                    let mut block = block(scan)?;
                    block.piece.index = u64::try_from(place).ok();
                    reading.facts.first_content = true;
                    apply_block(reading, block);
                    Ok(())
                })?;
            }
            b"delta" => object.end = end(scan)?,
            b"stop_reason" => object.end.stop_reason = word(scan)?,
            b"stop_sequence" => object.end.stop_sequence = word(scan)?,
            b"error" => object.error = error_object(scan)?,
            _ => scan.skip()?,
        }
        Ok(())
    })
}

/// `message` of `message_start`.
fn start(reading: &mut Reading, scan: &mut Scanner<'_>) -> Scan {
    scan.members(|scan, key| match key {
        b"id" => reading.id(scan),
        b"model" => reading.model(scan),
        b"usage" => reading.counts.read(scan),
        _ => scan.skip(),
    })
}

fn block(scan: &mut Scanner<'_>) -> Scan<Block> {
    let mut block = Block::default();
    scan.members(|scan, key| {
        match key {
            b"type" => block.kind = word(scan)?,
            b"id" => block.piece.id = word(scan)?,
            b"name" => block.piece.name = word(scan)?,
            b"text" => {
                start_of(scan, &mut block.text)?;
            }
            _ => scan.skip()?,
        }
        Ok(())
    })?;
    Ok(block)
}

fn end(scan: &mut Scanner<'_>) -> Scan<End> {
    let mut end = End::default();
    scan.members(|scan, key| {
        match key {
            b"stop_reason" => end.stop_reason = word(scan)?,
            b"stop_sequence" => end.stop_sequence = word(scan)?,
            b"text" => {
                start_of(scan, &mut end.text)?;
            }
            b"thinking" => end.reasoned |= has_content(scan)?,
            _ => scan.skip()?,
        }
        Ok(())
    })?;
    Ok(end)
}

fn apply_block(reading: &mut Reading, block: Block) {
    match block.kind.as_deref() {
        Some("text") => reading.said(&block.text),
        Some("thinking" | "redacted_thinking") => reading.facts.reasoned = true,
        _ => {}
    }
    // Server-side tools (`server_tool_use`) run inside the answer: no tool boundary.
    if block.kind.as_deref() == Some("tool_use") {
        reading.facts.first_content = true;
        reading.tools.piece(&mut reading.facts.tool_calls, 0, block.piece);
    }
}

fn apply_end(reading: &mut Reading, end: End) {
    let Some(word) = end.stop_reason else { return };
    let reason = match word.as_str() {
        "end_turn" | "stop_sequence" => FinishReason::Stop,
        "max_tokens" | "model_context_window_exceeded" => FinishReason::Length,
        "tool_use" => FinishReason::ToolCalls,
        "refusal" => FinishReason::ContentFilter,
        _ => FinishReason::Other(word.clone()),
    };
    reading.end(0, word, reason, end.stop_sequence);
}
