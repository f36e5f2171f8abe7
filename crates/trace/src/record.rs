//! Rows of a trace.
//!
//! Two schemas share one envelope (`schema`, `event_type`, `event_time_unix_ms`):
//! - `dynamo.request.trace.v1` ([`Record`]): `request_end`, `tool_start`, `tool_end`, `tool_error`,
//!   `request_payload`. What we add to a request row is in two extra members, which readers of v1 ignore:
//!   `tandem` beside `request`, and `output_sequence_hashes` inside `replay`.
//! - `tandem.trace.v1` ([`OwnEvent`]): event types of ours. Readers of v1 refuse a file with an event type that
//!   they do not know, so these rows never go to the main file but to its companion.
//!
//! A loader of v1 also refuses a whole file for one request row that it cannot replay. [`Rows`] says what
//! becomes of such rows; [`Record::why_not_loadable`] is the test.

mod extras;
mod own;
mod request;
mod tool;

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use tandem_types::{HarnessFacts, InputTrigger};

pub use extras::{Extras, HygieneFound, NotLoadable, OutcomeRecord, OutcomeResult, ToolTime};
pub use own::{
    AdmissionAction, AdmissionEvent, CandidateScore, DivergenceRecord, Loss, LossEvent, OwnEvent, OwnKind,
    PrefillPlace, PrefillRecord, PrefixEvent, PrefixSeen, RoutingEvent, SEEN_RUNS_MAX, SEEN_WORKERS_MAX,
    ScoreTerms, SplitRecord, TraceEnd, TraceStart, WorkerRef, WorkerSeen,
};
pub use request::{
    ChoiceRecord, FinishReasonMetadata, Replay, ReplayDependency, RequestRecord, StopReason, ToolCallRecord,
    WorkerRecord, finish_reason_word,
};
pub use tool::{PayloadRecord, ToolRecord, ToolStatus, ToolSubagent};

/// Name of the reference schema.
pub const SCHEMA_V1: &str = "dynamo.request.trace.v1";

/// Name of the schema of our own event types.
pub const SCHEMA_OWN: &str = "tandem.trace.v1";

/// The reference schema's name as a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Schema {
    /// `dynamo.request.trace.v1`.
    #[default]
    #[serde(rename = "dynamo.request.trace.v1")]
    V1,
}

/// Event types of the reference schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventType {
    /// A request is over.
    RequestEnd,
    /// Content of a request, where switched on.
    RequestPayload,
    /// A tool began.
    ToolStart,
    /// A tool ended.
    ToolEnd,
    /// A tool failed.
    ToolError,
}

impl EventType {
    /// Whether the row is a tool's.
    #[must_use]
    pub const fn is_tool(self) -> bool {
        matches!(self, Self::ToolStart | Self::ToolEnd | Self::ToolError)
    }
}

/// Who made a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventSource {
    /// The serving side. The schema knows no other word for it.
    Dynamo,
    /// The agent's side.
    Harness,
    /// A word that we do not know.
    #[serde(other)]
    Other,
}

/// One row of the reference schema.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    /// Always v1.
    pub schema: Schema,
    /// What happened.
    pub event_type: EventType,
    /// When, milliseconds since the epoch.
    pub event_time_unix_ms: u64,
    /// Who says so; absent on request rows without identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_source: Option<EventSource>,
    /// The agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_context: Option<AgentContextRecord>,
    /// On `request_end`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<RequestRecord>,
    /// On tool rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<ToolRecord>,
    /// On `request_payload`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<PayloadRecord>,
    /// What only we write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tandem: Option<Box<Extras>>,
    /// Rows lost before this one; set by the writer, see [`crate::writer`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tandem_loss: Option<Loss>,
}

impl Record {
    fn empty(event_type: EventType, event_time_unix_ms: u64) -> Self {
        Self {
            schema: Schema::V1,
            event_type,
            event_time_unix_ms,
            event_source: None,
            agent_context: None,
            request: None,
            tool: None,
            payload: None,
            tandem: None,
            tandem_loss: None,
        }
    }

    /// A request row. As the reference system does, rows without identity name no source, no model, no
    /// `x_request_id` and no finish reasons: those members are taken out of `request` (the model and finish
    /// reason stay in `extras`).
    #[must_use]
    pub fn request_end(
        event_time_unix_ms: u64,
        agent: Option<AgentContextRecord>,
        mut request: RequestRecord,
        mut extras: Extras,
    ) -> Self {
        request.drop_non_finite();
        if agent.is_none() {
            extras.model = request.model.take();
            extras.finish_reason = request.finish_reason_metadata.take().and_then(|m| m.finish_reason);
            request.x_request_id = None;
        }
        Self {
            event_source: agent.as_ref().map(|_| EventSource::Dynamo),
            agent_context: agent,
            request: Some(request),
            tandem: Some(Box::new(extras)),
            ..Self::empty(EventType::RequestEnd, event_time_unix_ms)
        }
    }

    /// A tool row from a harness. Use [`crate::tool`] for rows that come over the wire.
    #[must_use]
    pub fn tool(
        event_type: EventType,
        event_time_unix_ms: u64,
        agent: AgentContextRecord,
        tool: ToolRecord,
    ) -> Self {
        Self {
            event_source: Some(EventSource::Harness),
            agent_context: Some(agent),
            tool: Some(tool),
            ..Self::empty(event_type, event_time_unix_ms)
        }
    }

    /// A payload row: content. Only where the user switched payloads on.
    #[must_use]
    pub fn request_payload(event_time_unix_ms: u64, payload: PayloadRecord) -> Self {
        Self {
            event_source: Some(EventSource::Dynamo),
            payload: Some(payload),
            ..Self::empty(EventType::RequestPayload, event_time_unix_ms)
        }
    }

    /// Why a v1 loader would refuse a file for the sake of this request row; `None` for rows that it takes.
    #[must_use]
    pub fn why_not_loadable(&self) -> Option<NotLoadable> {
        let request = self.request.as_ref()?;
        if self.tandem.as_ref().is_some_and(|extras| !extras.class.is_turn()) {
            return Some(NotLoadable::NotATurn);
        }
        let Some(replay) = &request.replay else { return Some(NotLoadable::NoTokens) };
        if !replay.is_consistent() {
            return Some(NotLoadable::BadReplay);
        }
        match request.output_tokens {
            None => Some(NotLoadable::NoOutputCount),
            Some(0) => Some(NotLoadable::NoOutput),
            Some(_) => request.request_received_ms.is_none().then_some(NotLoadable::NoArrival),
        }
    }
}

/// Which request rows go to the main file; all others go to the companion, as the same rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rows {
    /// Rows that a v1 loader can replay: turns with known tokens and at least one generated token.
    #[default]
    Loadable,
    /// As `Loadable`, and only those with an identity: v1 loaders refuse a file that mixes both kinds.
    Agentic,
    /// Every request row, for readers that want all in one file.
    All,
}

impl Rows {
    /// Whether the row belongs in the main file. Tool and payload rows always do.
    #[must_use]
    pub fn in_main(self, record: &Record) -> bool {
        if record.event_type != EventType::RequestEnd {
            return true;
        }
        match self {
            Self::All => true,
            Self::Loadable => record.why_not_loadable().is_none(),
            Self::Agentic => record.agent_context.is_some() && record.why_not_loadable().is_none(),
        }
    }
}

/// A row of either schema.
#[derive(Debug, Clone)]
pub enum TraceRow {
    /// `dynamo.request.trace.v1`.
    V1(Box<Record>),
    /// `tandem.trace.v1`.
    Own(Box<OwnEvent>),
}

impl From<Record> for TraceRow {
    fn from(record: Record) -> Self {
        Self::V1(Box::new(record))
    }
}

impl From<OwnEvent> for TraceRow {
    fn from(event: OwnEvent) -> Self {
        Self::Own(Box::new(event))
    }
}

/// Who sent a request, as v1 writes it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AgentContextRecord {
    /// The program (`ProgramKey::trace_id`): the agent's id where there is one, else the session's.
    pub session_id: String,
    /// The program that spawned it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_session_id: Option<String>,
    /// The client's word that this is its last request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_final: Option<bool>,
    /// Harness headers, verbatim.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub agent_headers: BTreeMap<String, Vec<String>>,
    /// What made the client send the request. A word that we do not know is dropped.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "known_or_none")]
    pub input_trigger: Option<InputTrigger>,
}

impl AgentContextRecord {
    /// From what identity and dialect found.
    #[must_use]
    pub fn new(
        agent: &tandem_types::AgentContext,
        facts: &HarnessFacts,
        input_trigger: InputTrigger,
    ) -> Self {
        Self {
            session_id: agent.program.trace_id().to_owned(),
            parent_session_id: agent.parent.as_ref().map(|parent| parent.trace_id().to_owned()),
            session_final: agent.session_final,
            agent_headers: facts.agent_headers.clone(),
            input_trigger: Some(input_trigger),
        }
    }
}

fn known_or_none<'de, D: Deserializer<'de>>(from: D) -> Result<Option<InputTrigger>, D::Error> {
    let word = Option::<Cow<'de, str>>::deserialize(from)?;
    Ok(match word.as_deref() {
        Some("user_message") => Some(InputTrigger::UserMessage),
        Some("tool_result") => Some(InputTrigger::ToolResult),
        Some("other") => Some(InputTrigger::Other),
        _ => None,
    })
}
