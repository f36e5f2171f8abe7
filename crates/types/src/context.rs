//! What is known of the agent behind a request.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{GroupId, ProgramKey};

/// A request's place in the world of agents. Only requests with an identity have one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentContext {
    /// The program that this request continues.
    pub program: ProgramKey,
    /// The program that spawned it.
    pub parent: Option<ProgramKey>,
    /// Sessions that share a fate, if the client says so.
    pub group: Option<GroupId>,
    /// The client's word that this is (`Some(true)`) or is not the session's last request.
    pub session_final: Option<bool>,
    /// Where the identity was found.
    pub source: IdentitySource,
}

/// Where an identity was found, in order of trust.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdentitySource {
    /// `x-dynamo-session-id`.
    Canonical,
    /// Claude Code's headers.
    ClaudeCode,
    /// Codex's headers.
    Codex,
    /// OpenCode's headers.
    OpenCode,
    /// A generic session header (`x-session-id`, `session_id`, `x-session-affinity`, `x-smg-routing-key`).
    GenericHeader,
    /// A field of the request body (`prompt_cache_key`, `metadata.user_id`, `session_id`, ...).
    BodyField,
    /// The W3C trace id, for harnesses known to use one per run.
    TraceParent,
    /// None of these: the prompt extends what one live program has seen, or begins a program of its own.
    Inferred,
}

/// The program that sent the request, as far as its headers tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Harness {
    /// Claude Code.
    ClaudeCode,
    /// Codex CLI.
    Codex,
    /// OpenCode.
    OpenCode,
    /// Pi.
    Pi,
    /// Kimi Code.
    KimiCode,
    /// Qwen Code.
    QwenCode,
    /// Cline.
    Cline,
    /// Hermes.
    Hermes,
    /// OpenClaw.
    OpenClaw,
    /// OpenHands.
    OpenHands,
    /// mini-swe-agent.
    MiniSweAgent,
    /// Gemini CLI.
    GeminiCli,
    /// Aider.
    Aider,
    /// Anything else.
    #[default]
    Unknown,
}

/// What a call is for. Only [`RequestClass::Turn`] moves a program's state or may be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestClass {
    /// A step of the agent's reasoning/tool chain.
    #[default]
    Turn,
    /// Makes a title for the conversation.
    Title,
    /// Summarises the history so that the next turn can start short.
    Compaction,
    /// Asks for a token count only.
    CountTokens,
    /// Checks quota, a model or the connection.
    Probe,
    /// Any other helper call that the harness marks as such.
    Auxiliary,
}

impl RequestClass {
    /// Whether the call is a step of the agent's own chain.
    #[must_use]
    pub const fn is_turn(self) -> bool {
        matches!(self, Self::Turn)
    }
}

/// What made the client send this request: its last input item decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputTrigger {
    /// A person (or a notification in their name) said something.
    UserMessage,
    /// A tool came back.
    ToolResult,
    /// Anything else.
    #[default]
    Other,
}

/// One tool's run time as the harness measured it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolDuration {
    /// Tool name.
    pub tool: String,
    /// Wall time.
    pub duration: Duration,
}

/// Facts that a harness volunteers and that policies and traces use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HarnessFacts {
    /// Run times of the tools whose results this request carries.
    pub prev_tool_durations: Vec<ToolDuration>,
    /// What kind of agent sends this (`general-purpose`, ...).
    pub agent_type: Option<String>,
    /// Whether a subagent blocks its parent (`Some(true)`) or runs beside it.
    pub blocking_subagent: Option<bool>,
    /// The request compacts the history: what triggered it (`manual`, `auto`, ...).
    pub compaction: Option<String>,
    /// The history was compacted since the last turn: what triggered it.
    pub context_compacted: Option<String>,
    /// The user prompt to which this turn belongs.
    pub prompt_id: Option<String>,
    /// How many compactions this program has seen.
    pub window: Option<u64>,
    /// Harness headers kept verbatim for the trace: lower-case name to values in order.
    pub agent_headers: BTreeMap<String, Vec<String>>,
}
