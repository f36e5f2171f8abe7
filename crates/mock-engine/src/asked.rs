//! What a request asks for, in neutral form.

use crate::conversation::Conversation;
use crate::error::Api;

/// Which tool the client wants called.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum ToolChoice {
    #[default]
    Auto,
    None,
    /// Any tool, but one.
    Required,
    Named(String),
}

/// One prompt of a request. `/v1/completions` and `/generate` take several at once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct PromptIn {
    pub(crate) tokens: Vec<u32>,
    /// Its text, where it came as text.
    pub(crate) text: Option<String>,
}

/// How long and how the answer is generated.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sampling {
    /// The client's bound; `None` = what the context leaves.
    pub(crate) max_tokens: Option<u32>,
    pub(crate) min_tokens: u32,
    pub(crate) ignore_eos: bool,
    pub(crate) stop: Vec<String>,
    pub(crate) include_stop: bool,
    pub(crate) n: u32,
    pub(crate) seed: Option<i64>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            max_tokens: None,
            min_tokens: 0,
            ignore_eos: false,
            stop: Vec::new(),
            include_stop: false,
            n: 1,
            seed: None,
        }
    }
}

/// A request that passed all checks but the length of its prompt.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Asked {
    pub(crate) api: Api,
    /// The name asked for, which answers repeat.
    pub(crate) model: String,
    /// The adapter behind that name.
    pub(crate) lora: Option<String>,
    pub(crate) stream: bool,
    /// The stream ends with a usage chunk.
    pub(crate) include_usage: bool,
    /// Every chunk carries usage.
    pub(crate) continuous_usage: bool,
    pub(crate) prompts: Vec<PromptIn>,
    /// Where the prompt is a conversation.
    pub(crate) conversation: Option<Conversation>,
    pub(crate) choice: ToolChoice,
    /// Several tools may be called at once.
    pub(crate) parallel_calls: bool,
    pub(crate) sampling: Sampling,
    /// Prompt and answer are reported as token ids too.
    pub(crate) return_token_ids: bool,
    /// The prompt is repeated before the answer.
    pub(crate) echo: bool,
    pub(crate) session: Option<String>,
    pub(crate) salt: Option<String>,
    /// As the client wrote it; engines differ in its direction.
    pub(crate) priority: i32,
    pub(crate) rank: Option<u32>,
    pub(crate) request_id: Option<String>,
    /// Prompt tokens that another engine computed.
    pub(crate) fetched: u32,
    /// What the answer tells of where the prompt's KV lies.
    pub(crate) kv_transfer: Option<serde_json::Value>,
}
