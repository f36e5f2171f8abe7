//! Answers of OpenAI's Responses.

use tandem_types::FinishReason;

use super::tools::Piece;
use super::{AnswerError, Reading, error_object, start_of, word};
use crate::json::{Kind, Scan, Scanner};

/// What one event holds, before its type is known.
#[derive(Debug, Default)]
struct Event {
    kind: Option<String>,
    response: Option<Response>,
    item: Option<Item>,
    output_index: u64,
    error: Option<AnswerError>,
    code: Option<String>,
    delta: Vec<u8>,
}

/// A response object. Its id, model and usage go straight to the facts.
#[derive(Debug, Default)]
struct Response {
    status: Option<String>,
    incomplete: Option<String>,
    error: Option<AnswerError>,
    items: Vec<(u64, Piece)>,
    output: bool,
    text: Vec<u8>,
    reasoned: bool,
}

#[derive(Debug, Default)]
struct Item {
    call: bool,
    reasoned: bool,
    piece: Piece,
    text: Vec<u8>,
}

/// The data of one event.
pub(super) fn event(reading: &mut Reading, data: &[u8]) {
    if data.trim_ascii() == b"[DONE]" {
        return;
    }
    let mut event = Event::default();
    let mut scan = Scanner::new(data, false);
    let read = scan.members(|scan, key| read(reading, &mut event, scan, key));
    if read.and_then(|()| scan.end()).is_err() {
        return;
    }
    match event.kind.as_deref().unwrap_or_default() {
        kind @ ("response.output_item.added" | "response.output_item.done") => {
            reading.facts.reasoned |= event.item.as_ref().is_some_and(|item| item.reasoned);
            if let Some(Item { call: true, piece, .. }) = event.item {
                reading.facts.first_content = true;
                let done = kind.ends_with(".done");
                reading.tools.item(&mut reading.facts.tool_calls, event.output_index, piece, done);
            }
        }
        "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled" => {
            finish(reading, event.response.unwrap_or_default());
            if event.kind.as_deref() == Some("response.failed") {
                reading.fail(AnswerError::default());
            }
        }
        "error" => {
            let bare = AnswerError { kind: None, code: event.code };
            reading.fail(event.error.unwrap_or(bare));
        }
        kind if kind.ends_with(".delta") => {
            reading.facts.first_content = true;
            reading.facts.reasoned |= kind.contains("reasoning");
            if kind == "response.output_text.delta" {
                reading.said(&event.delta);
            }
        }
        _ => {}
    }
}

/// An event that was too large to read: its name tells whether it was the last one.
pub(super) fn unread_event(reading: &mut Reading, name: &[u8]) {
    reading.facts.first_content = true;
    reading.facts.complete |= matches!(
        name,
        b"response.completed" | b"response.incomplete" | b"response.failed" | b"response.cancelled"
    );
}

/// An answer that is not streamed.
pub(super) fn body(reading: &mut Reading, scan: &mut Scanner<'_>) -> Scan {
    let response = read_response(reading, scan)?;
    if response.status.is_some() || response.error.is_some() || response.output {
        reading.facts.first_content = response.output;
        finish(reading, response);
    }
    Ok(())
}

fn read(reading: &mut Reading, event: &mut Event, scan: &mut Scanner<'_>, key: &[u8]) -> Scan {
    match key {
        b"type" => event.kind = word(scan)?,
        b"response" => event.response = Some(read_response(reading, scan)?),
        b"item" => event.item = Some(read_item(scan)?),
        b"delta" => {
            start_of(scan, &mut event.delta)?;
        }
        b"output_index" => event.output_index = scan.unsigned()?.unwrap_or(0),
        b"sequence_number" => {
            if let Some(number) = scan.unsigned()? {
                reading.next_sequence = reading.next_sequence.max(number.saturating_add(1));
            }
        }
        b"error" => event.error = error_object(scan)?,
        b"code" => event.code = word(scan)?,
        _ => scan.skip()?,
    }
    Ok(())
}

fn read_response(reading: &mut Reading, scan: &mut Scanner<'_>) -> Scan<Response> {
    let mut response = Response::default();
    scan.members(|scan, key| {
        match key {
            b"id" => reading.id(scan)?,
            b"model" => reading.model(scan)?,
            b"usage" => reading.counts.read(scan)?,
            b"status" => response.status = word(scan)?,
            b"incomplete_details" => {
                let reason = scan.text_at(&[b"reason"])?;
                response.incomplete = reason.and_then(|reason| String::from_utf8(reason.into_owned()).ok());
            }
            b"error" => response.error = error_object(scan)?,
            b"output" => {
                response.output = scan.peek()? == Kind::Array;
                scan.items(|scan, place| {
                    let item = read_item(scan)?;
                    response.reasoned |= item.reasoned;
                    response.text.extend(item.text);
                    if item.call {
                        response.items.push((u64::try_from(place).unwrap_or(u64::MAX), item.piece));
                    }
                    Ok(())
                })?;
            }
            _ => scan.skip()?,
        }
        Ok(())
    })?;
    Ok(response)
}

fn read_item(scan: &mut Scanner<'_>) -> Scan<Item> {
    let mut item = Item::default();
    let mut id = None;
    scan.members(|scan, key| {
        match key {
            b"type" => {
                let kind = scan.text_or_skip()?;
                item.call = kind.as_deref().is_some_and(is_call);
                item.reasoned = kind.as_deref() == Some(b"reasoning");
            }
            b"content" => scan.items(|scan, _| {
                scan.members(|scan, key| {
                    if key == b"text" {
                        return start_of(scan, &mut item.text).map(|_| ());
                    }
                    scan.skip()
                })
            })?,
            b"call_id" => item.piece.id = word(scan)?,
            b"id" => id = word(scan)?,
            b"name" => item.piece.name = word(scan)?,
            _ => scan.skip()?,
        }
        Ok(())
    })?;
    item.piece.id = item.piece.id.or(id);
    Ok(item)
}

/// Items that the client has to act on. Searches, code and MCP calls run on the server's side.
fn is_call(kind: &[u8]) -> bool {
    matches!(
        kind,
        b"function_call"
            | b"custom_tool_call"
            | b"local_shell_call"
            | b"shell_call"
            | b"apply_patch_call"
            | b"computer_call"
    )
}

fn finish(reading: &mut Reading, response: Response) {
    reading.facts.reasoned |= response.reasoned;
    if reading.facts.text_start.is_empty() && !response.reasoned {
        reading.said(&response.text);
    }
    // The list at the end repeats items that came as events, in some engines under other ids.
    if reading.tools.count() == 0 {
        for (place, piece) in response.items {
            reading.tools.item(&mut reading.facts.tool_calls, place, piece, true);
        }
    }
    let status = response.status.unwrap_or_default();
    let reason = match (status.as_str(), response.incomplete.as_deref()) {
        ("failed" | "cancelled", _) => FinishReason::Error,
        (_, Some("max_output_tokens" | "max_tokens")) => FinishReason::Length,
        (_, Some("content_filter")) => FinishReason::ContentFilter,
        (_, Some(other)) => FinishReason::Other(other.to_owned()),
        ("incomplete", None) => FinishReason::Length,
        ("completed" | "", None) => FinishReason::Stop,
        (other, None) => FinishReason::Other(other.to_owned()),
    };
    if let Some(error) = response.error {
        reading.fail(error);
    } else if status == "failed" {
        reading.fail(AnswerError::default());
    }
    let word = response.incomplete.unwrap_or(status);
    reading.end(0, word, reason, None);
    reading.facts.complete = true;
}
