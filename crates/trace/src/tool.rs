//! Tool events from harnesses, over ZMQ and HTTP.
//!
//! - Purpose: turn what a harness pushes into a tool row of a trace, or say why not.
//! - Inputs: three ZMQ frames (topic, sequence number as big-endian `u64`, msgpack map), or an HTTP body (one
//!   JSON object, an array of them, or one per line).
//! - Invariants:
//!   - I-TOL-1 two shapes are taken: `session_id` (and `parent_session_id`) at the top, as the reference
//!     system's 1.6.1 decoder wants it, and a full record with `agent_context`, as the Pi plugin (commit
//!     c1998bb) sends it. `agent_context` wins where both are there.
//!   - I-TOL-2 a row that gets through has schema v1, a tool event type, source `harness`, a usable session
//!     id, ids and class that are not blank, finite times that are not negative, an end not before its start,
//!     and neither request nor payload: v1 loaders refuse whole files for less.
//!   - I-TOL-3 one bad event of a body costs no other.
//! - Deliberately absent: sockets; checks of the sequence number (producers restart and share a socket).
//! - Sources: dynamo-llm 1.6.1 (`request_trace/tool_relay`, `types`); agent-plugins commit c1998bb.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use tandem_types::{IdError, SessionId, limits};

use crate::record::{AgentContextRecord, EventType, Record, SCHEMA_V1, ToolRecord, ToolStatus};

/// Longest msgpack frame, in bytes.
pub const FRAME_BYTES_MAX: usize = 256 * 1024;

/// Longest HTTP body, in bytes.
pub const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Most events of one HTTP body.
pub const BODY_EVENTS_MAX: usize = 10_000;

/// A tool event that came over ZMQ.
#[derive(Debug, Clone)]
pub struct ZmqToolEvent {
    /// The producer's number; informative.
    pub sequence: u64,
    /// The row.
    pub record: Record,
}

/// What an HTTP body held.
#[derive(Debug, Clone, Default)]
pub struct HttpToolEvents {
    /// Rows, in order.
    pub accepted: Vec<Record>,
    /// Place in the body (from 0) and reason of those that were refused.
    pub refused: Vec<(usize, ToolError)>,
}

/// Why a tool event is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ToolError {
    /// Not three frames.
    #[error("{0} frames instead of topic, sequence number and event")]
    Frames(usize),
    /// Another topic.
    #[error("not the topic that is listened to")]
    Topic,
    /// The second frame is not eight bytes.
    #[error("sequence number of {0} bytes instead of 8")]
    Sequence(usize),
    /// Too long.
    #[error("{bytes} bytes where at most {most} are taken")]
    TooLong {
        /// Length.
        bytes: usize,
        /// Bound.
        most: usize,
    },
    /// More events than one body may hold.
    #[error("more than {BODY_EVENTS_MAX} events in one body")]
    TooMany,
    /// Nothing in the body.
    #[error("no event in the body")]
    Empty,
    /// Not msgpack, or not JSON.
    #[error("event cannot be parsed")]
    Syntax,
    /// Parsed, but a member is missing or of the wrong kind.
    #[error("event does not fit the schema")]
    Shape,
    /// Another schema.
    #[error("schema is not {SCHEMA_V1}")]
    Schema,
    /// Another source.
    #[error("event_source is not harness")]
    Source,
    /// Not a tool event.
    #[error("event_type is not tool_start, tool_end or tool_error")]
    EventType,
    /// No session, or one that cannot be used.
    #[error("session_id: {0}")]
    Session(IdError),
    /// No session.
    #[error("no session_id and no agent_context")]
    NoSession,
    /// No tool.
    #[error("no tool")]
    NoTool,
    /// `tool_call_id` or `tool_class` is blank or too long.
    #[error("tool.{0} is blank or longer than {max} bytes", max = limits::ID_BYTES_MAX)]
    Text(&'static str),
    /// A word that is none of the known ones or their aliases.
    #[error("tool.status is not known")]
    Status,
    /// Negative or not finite.
    #[error("tool.duration_ms is negative or not finite")]
    Duration,
    /// Ends before it starts.
    #[error("tool.ended_at_unix_ms is before tool.started_at_unix_ms")]
    Span,
    /// A tool event must not carry a request or payload.
    #[error("a tool event must not carry request or payload")]
    Foreign,
}

/// Both shapes of an event at once.
#[derive(Deserialize)]
struct Ingress {
    schema: String,
    event_type: String,
    event_time_unix_ms: u64,
    event_source: Option<String>,
    session_id: Option<String>,
    parent_session_id: Option<String>,
    agent_context: Option<AgentContextRecord>,
    tool: Option<IngressTool>,
    request: Option<IgnoredAny>,
    payload: Option<IgnoredAny>,
}

/// A tool with its status still a word, so that an unknown one is told apart from a broken event.
#[derive(Deserialize)]
struct IngressTool {
    tool_call_id: String,
    tool_class: String,
    started_at_unix_ms: Option<u64>,
    ended_at_unix_ms: Option<u64>,
    status: Option<String>,
    duration_ms: Option<f64>,
    output_tokens: Option<u64>,
    output_bytes: Option<u64>,
    tool_name_hash: Option<String>,
    error_type: Option<String>,
}

/// Decodes one ZMQ message. `topic` is what the first frame must be; `None` takes any.
///
/// # Errors
/// [`ToolError`] says what is wrong with it.
pub fn decode_zmq<F: AsRef<[u8]>>(frames: &[F], topic: Option<&str>) -> Result<ZmqToolEvent, ToolError> {
    let [first, second, third] = frames else { return Err(ToolError::Frames(frames.len())) };
    if topic.is_some_and(|topic| topic.as_bytes() != first.as_ref()) {
        return Err(ToolError::Topic);
    }
    let number = second.as_ref();
    let number: [u8; 8] = number.try_into().map_err(|_| ToolError::Sequence(number.len()))?;
    let event = third.as_ref();
    if event.len() > FRAME_BYTES_MAX {
        return Err(ToolError::TooLong { bytes: event.len(), most: FRAME_BYTES_MAX });
    }
    let ingress: Ingress = rmp_serde::from_slice(event).map_err(|error| match error {
        rmp_serde::decode::Error::Syntax(_)
        | rmp_serde::decode::Error::TypeMismatch(_)
        | rmp_serde::decode::Error::OutOfRange => ToolError::Shape,
        _ => ToolError::Syntax,
    })?;
    Ok(ZmqToolEvent { sequence: u64::from_be_bytes(number), record: ingress.check()? })
}

/// Decodes an HTTP body: an object, an array of objects, or objects one after the other (NDJSON).
///
/// # Errors
/// [`ToolError`] when the body as a whole is of no use; single bad events are listed in the result instead.
pub fn decode_http(body: &[u8]) -> Result<HttpToolEvents, ToolError> {
    if body.len() > BODY_BYTES_MAX {
        return Err(ToolError::TooLong { bytes: body.len(), most: BODY_BYTES_MAX });
    }
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    let mut events = HttpToolEvents::default();
    let start = body.iter().position(|byte| !byte.is_ascii_whitespace()).ok_or(ToolError::Empty)?;
    if body.get(start) == Some(&b'[') {
        let array: Vec<&RawValue> = serde_json::from_slice(body).map_err(|_| ToolError::Syntax)?;
        for event in array {
            events.take(decode_json(event.get().as_bytes()))?;
        }
    } else {
        events.take_stream(body)?;
    }
    if events.accepted.is_empty() && events.refused.is_empty() {
        return Err(ToolError::Empty);
    }
    Ok(events)
}

/// Decodes one JSON object.
///
/// # Errors
/// [`ToolError`] says what is wrong with it.
pub fn decode_json(event: &[u8]) -> Result<Record, ToolError> {
    let ingress: Ingress = serde_json::from_slice(event).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => ToolError::Shape,
        _ => ToolError::Syntax,
    })?;
    ingress.check()
}

impl HttpToolEvents {
    fn take(&mut self, event: Result<Record, ToolError>) -> Result<(), ToolError> {
        let place = self.accepted.len() + self.refused.len();
        if place >= BODY_EVENTS_MAX {
            return Err(ToolError::TooMany);
        }
        match event {
            Ok(record) => self.accepted.push(record),
            Err(error) => self.refused.push((place, error)),
        }
        Ok(())
    }

    /// Objects one after the other. After one that is no JSON, goes on with the next line.
    fn take_stream(&mut self, mut rest: &[u8]) -> Result<(), ToolError> {
        loop {
            let mut stream = serde_json::Deserializer::from_slice(rest).into_iter::<&RawValue>();
            for event in &mut stream {
                let Ok(event) = event else { break };
                self.take(decode_json(event.get().as_bytes()))?;
            }
            rest = rest.get(stream.byte_offset()..).unwrap_or(&[]);
            let Some(start) = rest.iter().position(|byte| !byte.is_ascii_whitespace()) else { return Ok(()) };
            self.take(Err(ToolError::Syntax))?;
            rest = rest.get(start..).unwrap_or(&[]);
            let line = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
            rest = rest.get(line..).unwrap_or(&[]);
        }
    }
}

impl Ingress {
    fn check(self) -> Result<Record, ToolError> {
        if self.schema != SCHEMA_V1 {
            return Err(ToolError::Schema);
        }
        if self.event_source.as_deref().is_some_and(|source| source != "harness") {
            return Err(ToolError::Source);
        }
        let event_type = match self.event_type.as_str() {
            "tool_start" => EventType::ToolStart,
            "tool_end" => EventType::ToolEnd,
            "tool_error" => EventType::ToolError,
            _ => return Err(ToolError::EventType),
        };
        if self.request.is_some() || self.payload.is_some() {
            return Err(ToolError::Foreign);
        }
        let mut agent = match (self.agent_context, self.session_id) {
            (Some(agent), _) => agent,
            (None, Some(session_id)) => AgentContextRecord {
                session_id,
                parent_session_id: self.parent_session_id,
                ..AgentContextRecord::default()
            },
            (None, None) => return Err(ToolError::NoSession),
        };
        agent.session_id = usable(&agent.session_id).map_err(ToolError::Session)?;
        agent.parent_session_id = match agent.parent_session_id.as_deref().map(usable).transpose() {
            Ok(parent) => parent.filter(|parent| *parent != agent.session_id),
            Err(IdError::Empty) => None,
            Err(error) => return Err(ToolError::Session(error)),
        };
        // Headers of a harness event were never seen by us and could hold anything.
        agent.agent_headers.clear();
        let tool = self.tool.ok_or(ToolError::NoTool)?.check()?;
        Ok(Record::tool(event_type, self.event_time_unix_ms, agent, tool))
    }
}

fn usable(id: &str) -> Result<String, IdError> {
    SessionId::new(id).map(String::from)
}

impl IngressTool {
    fn check(self) -> Result<ToolRecord, ToolError> {
        for (name, text) in [("tool_call_id", &self.tool_call_id), ("tool_class", &self.tool_class)] {
            if text.trim().is_empty() || text.len() > limits::ID_BYTES_MAX {
                return Err(ToolError::Text(name));
            }
        }
        for (name, text) in [("tool_name_hash", &self.tool_name_hash), ("error_type", &self.error_type)] {
            if text.as_ref().is_some_and(|text| text.len() > limits::ID_BYTES_MAX) {
                return Err(ToolError::Text(name));
            }
        }
        if self.duration_ms.is_some_and(|ms| !ms.is_finite() || ms < 0.0) {
            return Err(ToolError::Duration);
        }
        if self.started_at_unix_ms.zip(self.ended_at_unix_ms).is_some_and(|(start, end)| end < start) {
            return Err(ToolError::Span);
        }
        let status = match self.status.as_deref() {
            None => None,
            Some("running") => Some(ToolStatus::Running),
            Some("succeeded" | "ok" | "success") => Some(ToolStatus::Succeeded),
            Some("error" | "failed") => Some(ToolStatus::Error),
            Some("cancelled" | "canceled" | "timeout") => Some(ToolStatus::Cancelled),
            Some(_) => return Err(ToolError::Status),
        };
        Ok(ToolRecord {
            tool_call_id: self.tool_call_id,
            tool_class: self.tool_class,
            started_at_unix_ms: self.started_at_unix_ms,
            ended_at_unix_ms: self.ended_at_unix_ms,
            status,
            duration_ms: self.duration_ms,
            output_tokens: self.output_tokens,
            output_bytes: self.output_bytes,
            tool_name_hash: self.tool_name_hash,
            error_type: self.error_type,
            claude: None,
        })
    }
}
