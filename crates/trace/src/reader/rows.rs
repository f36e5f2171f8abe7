//! From one line to one row.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::error::Category;
use serde_json::value::RawValue;

use super::lines::{Held, Line};
use super::report::Problem;
use crate::record::{Loss, OwnEvent, Record, SCHEMA_OWN, SCHEMA_V1, TraceRow};

/// Event types of v1 that become rows.
const V1_TYPES: [&str; 4] = ["request_end", "tool_start", "tool_end", "tool_error"];

/// Event types of ours.
const OWN_TYPES: [&str; 5] = ["trace_start", "trace_end", "trace_loss", "admission", "routing"];

const PAYLOAD: &str = "request_payload";

/// What a line held.
#[derive(Debug)]
pub(super) enum Read {
    Blank,
    Payload { lost: Loss },
    UnknownType { name: String, lost: Loss },
    Problem(Problem),
    Row { row: TraceRow, lost: Loss, repairs: Vec<Problem>, request_id: Option<String> },
}

/// The members that tell what a row is.
#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow)]
    event: Option<&'a RawValue>,
    #[serde(borrow)]
    schema: Option<Cow<'a, str>>,
    #[serde(borrow)]
    event_type: Option<Cow<'a, str>>,
    tandem_loss: Option<Loss>,
}

pub(super) fn read(line: &Line, payloads: bool) -> Read {
    match line.held {
        Held::TooLong => return Read::Problem(Problem::LineTooLong { bytes: line.length }),
        Held::SteppedOver => return stepped_over(line),
        Held::Whole => {}
    }
    let bytes = line.bytes.trim_ascii();
    if bytes.is_empty() {
        return Read::Blank;
    }
    read_whole(bytes, payloads).unwrap_or_else(|problem| match problem {
        Problem::DamagedJson | Problem::NotUtf8 if line.unended => Read::Problem(Problem::CutLine),
        problem => Read::Problem(problem),
    })
}

fn stepped_over(line: &Line) -> Read {
    if line.unended {
        return Read::Problem(Problem::CutLine);
    }
    let Peeked { event_type, lost } = peek(&line.bytes);
    match event_type {
        Some(name) if name != PAYLOAD => Read::UnknownType { name, lost },
        _ => Read::Payload { lost },
    }
}

fn read_whole(bytes: &[u8], payloads: bool) -> Result<Read, Problem> {
    let text = std::str::from_utf8(bytes).map_err(|_| Problem::NotUtf8)?;
    let outer: Head<'_> = parse(text)?;
    let (body, head) = match outer.event {
        Some(event) => (event.get(), parse::<Head<'_>>(event.get())?),
        None => (text, outer),
    };
    let Some(event_type) = head.event_type else { return Err(Problem::NotARow { column: 0 }) };
    let lost = head.tandem_loss.unwrap_or_default();
    match head.schema.as_deref() {
        Some(SCHEMA_OWN) if OWN_TYPES.contains(&&*event_type) => {
            let event: OwnEvent = parse(body)?;
            Ok(Read::Row { row: event.into(), lost, repairs: Vec::new(), request_id: None })
        }
        Some(SCHEMA_V1 | SCHEMA_OWN) if event_type == PAYLOAD && !payloads => Ok(Read::Payload { lost }),
        Some(SCHEMA_V1) if event_type == PAYLOAD || V1_TYPES.contains(&&*event_type) => {
            let mut record: Record = parse(body)?;
            let mut repairs = Vec::new();
            let request_id = check(&mut record, &mut repairs)?;
            Ok(Read::Row { row: record.into(), lost, repairs, request_id })
        }
        Some(SCHEMA_V1 | SCHEMA_OWN) => Ok(Read::UnknownType { name: event_type.into_owned(), lost }),
        Some(_) => Err(Problem::UnknownSchema),
        None => Err(Problem::NotARow { column: 0 }),
    }
}

fn parse<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Problem> {
    serde_json::from_str(text).map_err(|error| match error.classify() {
        Category::Data => Problem::NotARow { column: error.column() },
        Category::Syntax | Category::Eof | Category::Io => Problem::DamagedJson,
    })
}

/// Checks what the schema asks for; takes out what contradicts itself. Gives the id of a request row.
fn check(record: &mut Record, repairs: &mut Vec<Problem>) -> Result<Option<String>, Problem> {
    use crate::record::EventType;
    const MISSING: Problem = Problem::NotARow { column: 0 };
    match record.event_type {
        EventType::RequestEnd => {
            let request = record.request.as_mut().ok_or(MISSING)?;
            if request.request_id.trim().is_empty() {
                return Err(MISSING);
            }
            if request.replay.take_if(|replay| !replay.is_consistent() && replay.input_length > 0).is_some() {
                repairs.push(Problem::BadReplay);
            }
            let times = [
                &mut request.prefill_wait_time_ms,
                &mut request.prefill_time_ms,
                &mut request.ttft_ms,
                &mut request.total_time_ms,
                &mut request.avg_itl_ms,
            ];
            let bad = times.into_iter().filter_map(|time| time.take_if(|ms| *ms < 0.0)).count();
            if bad > 0 {
                repairs.push(Problem::BadTime);
            }
            Ok(Some(request.request_id.clone()))
        }
        EventType::RequestPayload => record.payload.as_ref().map(|_| None).ok_or(MISSING),
        EventType::ToolStart | EventType::ToolEnd | EventType::ToolError => {
            let tool = record.tool.as_mut().ok_or(MISSING)?;
            if record.agent_context.is_none() || tool.tool_call_id.trim().is_empty() {
                return Err(MISSING);
            }
            let negative = tool.duration_ms.take_if(|ms| *ms < 0.0).is_some();
            let span = tool.started_at_unix_ms.zip(tool.ended_at_unix_ms);
            let reversed = span.is_some_and(|(start, end)| end < start);
            if reversed {
                (tool.started_at_unix_ms, tool.ended_at_unix_ms) = (None, None);
            }
            if negative || reversed {
                repairs.push(Problem::BadTime);
            }
            Ok(None)
        }
    }
}

/// Whether the head of a long line shows that the row will be stepped over.
pub(super) fn is_stepped_over(head: &[u8], payloads: bool) -> bool {
    peek(head).event_type.is_some_and(|name| {
        (name == PAYLOAD && !payloads)
            || !(name == PAYLOAD || V1_TYPES.contains(&&*name) || OWN_TYPES.contains(&&*name))
    })
}

/// What the head of a line tells, as far as it goes.
#[derive(Default)]
struct Peeked {
    event_type: Option<String>,
    lost: Loss,
}

fn peek(head: &[u8]) -> Peeked {
    let mut found = Peeked::default();
    let mut from = serde_json::Deserializer::from_slice(head.trim_ascii_start());
    // The head is cut somewhere, so an error is no surprise; what counts is what was met before.
    let _ = Peek(&mut found).deserialize(&mut from);
    found
}

struct Peek<'f>(&'f mut Peeked);

impl<'de> DeserializeSeed<'de> for Peek<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Peek<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a row")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        while let Some(name) = map.next_key::<Cow<'de, str>>()? {
            match &*name {
                "event_type" => self.0.event_type = Some(map.next_value()?),
                "tandem_loss" => self.0.lost = map.next_value()?,
                "event" => map.next_value_seed(Peek(&mut *self.0))?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}
