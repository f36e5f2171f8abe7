//! The member `request` of a request row.

use serde::{Deserialize, Serialize};
use tandem_types::ToolCall;

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

    pub(super) fn drop_non_finite(&mut self) {
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
        Self::of_legs(worker, worker)
    }
}

impl WorkerRecord {
    /// With a worker for each phase.
    #[must_use]
    pub fn of_legs(prefill: tandem_types::WorkerId, decode: tandem_types::WorkerId) -> Self {
        Self {
            prefill_worker_id: Some(u64::from(prefill.engine.0)),
            prefill_dp_rank: Some(prefill.rank),
            decode_worker_id: Some(u64::from(decode.engine.0)),
            decode_dp_rank: Some(decode.rank),
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
