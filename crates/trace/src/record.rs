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

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use tandem_types::{HarnessFacts, InputTrigger, ToolCall};

pub use extras::{Extras, HygieneFound, NotLoadable, OutcomeRecord, OutcomeResult, ToolTime};
pub use own::{
    AdmissionAction, AdmissionEvent, CandidateScore, Loss, LossEvent, OwnEvent, OwnKind, RoutingEvent,
    TraceEnd, TraceStart, WorkerRef,
};

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

/// One request's numbers. All times in milliseconds.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestRecord {
    /// Unique within a trace.
    pub request_id: String,
    /// The client's `x-request-id`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub x_request_id: Option<String>,
    /// Model asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Prompt tokens, cached ones included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    /// Generated tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// Prompt tokens that the engine took from its cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
    /// Arrival, milliseconds since the epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_received_ms: Option<u64>,
    /// Arrival to dispatch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_wait_time_ms: Option<f64>,
    /// Dispatch to first token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_time_ms: Option<f64>,
    /// Arrival to first token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttft_ms: Option<f64>,
    /// Arrival to end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_time_ms: Option<f64>,
    /// Mean time between tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub avg_itl_ms: Option<f64>,
    /// Part of the prompt's blocks found in the cache, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_hit_rate: Option<f64>,
    /// Estimate of a KV transfer; we have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_transfer_estimated_latency_ms: Option<f64>,
    /// Turns held when this one came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_depth: Option<u64>,
    /// Who answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerRecord>,
    /// What a replay needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay: Option<Replay>,
    /// How the answer ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish_reason_metadata: Option<FinishReasonMetadata>,
}

impl RequestRecord {
    /// A request of which only the id is known.
    #[must_use]
    pub fn new(request_id: impl Into<String>) -> Self {
        Self { request_id: request_id.into(), ..Self::default() }
    }

    fn drop_non_finite(&mut self) {
        for time in [
            &mut self.prefill_wait_time_ms,
            &mut self.prefill_time_ms,
            &mut self.ttft_ms,
            &mut self.total_time_ms,
            &mut self.avg_itl_ms,
            &mut self.kv_hit_rate,
            &mut self.kv_transfer_estimated_latency_ms,
        ] {
            *time = time.filter(|value| value.is_finite());
        }
    }
}

/// Which worker answered. With one worker for both phases both pairs are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerRecord {
    /// Engine that prefilled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_worker_id: Option<u64>,
    /// Its rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_dp_rank: Option<u32>,
    /// Engine that decoded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode_worker_id: Option<u64>,
    /// Its rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode_dp_rank: Option<u32>,
}

impl From<tandem_types::WorkerId> for WorkerRecord {
    fn from(worker: tandem_types::WorkerId) -> Self {
        let engine = Some(u64::from(worker.engine.0));
        Self {
            prefill_worker_id: engine,
            prefill_dp_rank: Some(worker.rank),
            decode_worker_id: engine,
            decode_dp_rank: Some(worker.rank),
        }
    }
}

/// What a replay needs to know of a prompt: see [`crate::hash`] for the hashes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replay {
    /// Tokens in a block.
    pub trace_block_size: u64,
    /// Prompt tokens.
    pub input_length: u64,
    /// Chained hashes of the prompt's blocks, the last one maybe partial.
    pub input_sequence_hashes: Vec<u64>,
    /// Chained hashes of prompt and answer, from the block in which the prompt ends; empty when the generated
    /// tokens are not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub output_sequence_hashes: Vec<u64>,
    /// Requests that this one waited for. Only exporters of foreign traces write it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dependencies: Vec<ReplayDependency>,
}

/// An edge to an earlier request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplayDependency {
    /// The earlier request.
    pub request_id: String,
    /// `sequence`, `spawn`, `join` or `replay_barrier`.
    pub relation: String,
    /// `dispatch` or `completion`.
    pub trigger: String,
}

impl Replay {
    /// Whether the number of input hashes fits length and block size, and there is a prompt at all.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        self.trace_block_size > 0
            && self.input_length > 0
            && u64::try_from(self.input_sequence_hashes.len())
                .is_ok_and(|count| count == self.input_length.div_ceil(self.trace_block_size))
    }
}

/// How an answer ended. Never holds arguments of tool calls.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FinishReasonMetadata {
    /// Summary, in OpenAI's words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<String>,
    /// The engine's own word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend_finish_reason: Option<String>,
    /// The stop string or token that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
    /// Tool calls asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCallRecord>,
    /// Each choice by itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<ChoiceRecord>,
}

/// One choice of an answer.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ChoiceRecord {
    /// Its number.
    pub choice_index: u32,
    /// In OpenAI's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<String>,
    /// The engine's own word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend_finish_reason: Option<String>,
    /// The stop string or token that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
}

/// A stop string or a stop token. A stop string comes from the request, so it is not content of ours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum StopReason {
    /// Token id.
    Token(i64),
    /// Text.
    Text(String),
}

/// A tool call that an answer asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCallRecord {
    /// Which choice.
    pub choice_index: u32,
    /// Its place within the choice.
    pub tool_call_index: u32,
    /// Call id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Tool name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl From<&ToolCall> for ToolCallRecord {
    fn from(call: &ToolCall) -> Self {
        Self {
            choice_index: call.choice_index,
            tool_call_index: call.tool_call_index,
            id: call.id.clone(),
            name: call.name.clone(),
        }
    }
}

/// The schema's word for a finish reason.
#[must_use]
pub fn finish_reason_word(reason: &tandem_types::FinishReason) -> &str {
    use tandem_types::FinishReason;
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::ToolCalls => "tool_calls",
        FinishReason::ContentFilter => "content_filter",
        FinishReason::Error => "error",
        FinishReason::Other(word) => word,
    }
}

/// A tool's span. All times in milliseconds.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ToolRecord {
    /// The model's id of the call.
    pub tool_call_id: String,
    /// What kind of tool.
    pub tool_class: String,
    /// Start, since the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at_unix_ms: Option<u64>,
    /// End, since the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at_unix_ms: Option<u64>,
    /// How it stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ToolStatus>,
    /// Run time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<f64>,
    /// Size of its result in tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// Size of its result in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u64>,
    /// Stands for the tool's name where that is secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_name_hash: Option<String>,
    /// Kind of error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_type: Option<String>,
    /// A subagent started by the tool. Only exporters of foreign traces write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claude: Option<ToolSubagent>,
}

/// A subagent started by a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolSubagent {
    /// The request that asked for it.
    pub source_request_id: String,
    /// The request that took its result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumer_request_id: Option<String>,
    /// The subagent's session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child_session_id: Option<String>,
    /// `blocking` or `background`.
    pub execution_mode: String,
}

/// How a tool stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolStatus {
    /// Not over.
    Running,
    /// Over and well.
    #[serde(alias = "ok", alias = "success")]
    Succeeded,
    /// Over with an error.
    #[serde(alias = "failed")]
    Error,
    /// Stopped from outside.
    #[serde(alias = "canceled", alias = "timeout")]
    Cancelled,
}

/// Content of a request and its answer. Written only where payload rows are switched on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PayloadRecord {
    /// As in the request row.
    pub request_id: String,
    /// `openai.chat_completion`, `openai.response`, `openai.completion` or `anthropic.message`.
    pub endpoint: String,
    /// Model asked for.
    pub model: String,
    /// The request body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Box<RawValue>>,
    /// The answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<Box<RawValue>>,
    /// Request headers that the user listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_request_headers: Option<BTreeMap<String, String>>,
    /// Whether nothing is missing.
    pub payload_complete: bool,
    /// Why something is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_drop_reason: Option<String>,
}
