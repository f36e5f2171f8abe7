//! The members `tool` and `payload` of a row.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

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
