//! What we know of a request beyond the reference schema: the member `tandem` of a request row.

use serde::{Deserialize, Serialize};
use tandem_types::{AgentContext, Dialect, Harness, HarnessFacts, IdentitySource, RequestClass, TurnFacts};

/// Our own facts of a request. Absent means not known or not so.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Extras {
    /// Whose traffic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The id of the whole conversation; `agent_context.session_id` is one agent's in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root_session: Option<String>,
    /// The agent inside the conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Sessions that share a fate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Where the identity was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity_source: Option<IdentitySource>,
    /// What the call was for.
    pub class: RequestClass,
    /// Which program sent it.
    pub harness: Harness,
    /// Kind of agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_type: Option<String>,
    /// Whether the subagent blocks its parent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocking_subagent: Option<bool>,
    /// The API spoken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dialect: Option<Dialect>,
    /// Model asked for, on rows without identity (v1 names it only on the others).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Finish reason, on rows without identity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<String>,
    /// Whether the answer was to be streamed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// Number of choices, where more than one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub choices: Option<u32>,
    /// The prompt carried images, audio or files.
    #[serde(skip_serializing_if = "is_false")]
    pub multimodal: bool,
    /// The client's bound on generated tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<u64>,
    /// Generated tokens that were reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_tokens: Option<u64>,
    /// How it ended.
    pub outcome: OutcomeRecord,
    /// Time held in our queue, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_ms: Option<f64>,
    /// Dispatches made; 0 when it never left.
    pub attempts: u32,
    /// Run times of the tools whose results this request carried, from the harness.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prev_tool_durations: Vec<ToolTime>,
    /// The request compacts the history: what triggered it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compaction: Option<String>,
    /// The history was compacted since the last turn: what triggered it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_compacted: Option<String>,
    /// The user prompt to which this turn belongs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_id: Option<String>,
    /// Compactions seen by this program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
    /// Volatile text found at the head of the prompt.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hygiene: Vec<HygieneFound>,
    /// Tool calls asked for, where more than the row names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<u32>,
    /// Why the row is not in the main file. Set by the writer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_loadable: Option<NotLoadable>,
}

impl Extras {
    /// What identity and dialect know when the request comes; the outcome is still to be set.
    #[must_use]
    pub fn arrived(
        agent: Option<&AgentContext>,
        class: RequestClass,
        harness: Harness,
        facts: &HarnessFacts,
        turn: &TurnFacts,
    ) -> Self {
        let id = |text: &str| Some(text.to_owned());
        Self {
            tenant: agent.and_then(|a| id(a.program.tenant.as_str())),
            root_session: agent.and_then(|a| id(a.program.session.as_str())),
            agent: agent.and_then(|a| a.program.agent.as_ref()).and_then(|a| id(a.as_str())),
            group: agent.and_then(|a| a.group.as_ref()).and_then(|g| id(g.as_str())),
            identity_source: agent.map(|a| a.source),
            class,
            harness,
            agent_type: facts.agent_type.clone(),
            blocking_subagent: facts.blocking_subagent,
            dialect: Some(turn.dialect),
            stream: Some(turn.stream),
            choices: (turn.choices > 1).then_some(turn.choices),
            multimodal: turn.multimodal,
            max_output_tokens: turn.max_output_tokens,
            prev_tool_durations: facts
                .prev_tool_durations
                .iter()
                .map(|tool| ToolTime { tool: tool.tool.clone(), ms: tool.duration.as_secs_f64() * 1e3 })
                .collect(),
            compaction: facts.compaction.clone(),
            context_compacted: facts.context_compacted.clone(),
            prompt_id: facts.prompt_id.clone(),
            window: facts.window,
            ..Self::default()
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn is_false(value: &bool) -> bool {
    !*value
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OutcomeRecord {
    /// In one word.
    pub result: OutcomeResult,
    /// Closer: a hold or reject reason, a failure kind, `client_gone`, `superseded`, `shutdown`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// HTTP status that the client got.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Type of the error that the client got.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_type: Option<String>,
}

/// Every accepted request ends in exactly one of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeResult {
    /// Answered.
    #[default]
    Finished,
    /// Ended by an error of the engine or of the request.
    Failed,
    /// The client left, or its repetition took over.
    Cancelled,
    /// Refused by us.
    Rejected,
}

/// A tool's run time as the harness measured it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolTime {
    /// Tool name.
    pub tool: String,
    /// Milliseconds.
    pub ms: f64,
}

/// Volatile text at the head of a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HygieneFound {
    /// Which.
    pub kind: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Whether it was taken out or frozen.
    pub edited: bool,
}

/// Why a loader of v1 cannot take a request row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NotLoadable {
    /// A helper call (title, compaction, probe): it runs beside the session's turns, and loaders refuse turns
    /// of one session that overlap.
    NotATurn,
    /// The prompt's tokens are not known.
    NoTokens,
    /// The replay block does not fit itself.
    BadReplay,
    /// The number of generated tokens is not known.
    NoOutputCount,
    /// Nothing was generated.
    NoOutput,
    /// No arrival time.
    NoArrival,
    /// No identity, where only agents' rows are wanted.
    NoIdentity,
}
