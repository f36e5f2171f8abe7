//! What a modelled engine reports.

use tandem_types::{KvEvent, Time};

use crate::request::RequestKey;

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Finish {
    /// The output was generated to its end.
    Stop,
    /// Cut at `max_output_tokens` or at the context length.
    Length,
}

/// One generated token, delivered at the pass's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenOutput {
    /// The request.
    pub id: RequestKey,
    /// The token's place in the answer; 0 = first token.
    pub index: u32,
    /// Token id.
    pub token: u32,
    /// Prompt tokens taken from the cache at first admission.
    pub cached_tokens: u32,
    /// Set on the last token.
    pub finish: Option<Finish>,
}

/// A request that joined the running batch in this pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    /// The request.
    pub id: RequestKey,
    /// Tokens (of prompt, and of answer when resumed) taken from the cache at this admission.
    pub cached_tokens: u32,
    /// Of these, tokens that were read from tiers below the device for it.
    pub loaded: Loaded,
    /// Whether it had been admitted before and was preempted.
    pub resumed: bool,
}

/// Tokens by the tier that they were read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Loaded {
    /// Host memory.
    pub host: u32,
    /// Local disk.
    pub disk: u32,
    /// The shared store.
    pub shared: u32,
}

impl Loaded {
    /// All of them.
    #[must_use]
    pub const fn tokens(self) -> u32 {
        self.host + self.disk + self.shared
    }
}

/// One pass of the engine. Everything in it becomes visible at `ends_at`. With tiers below the device there are
/// passes that compute nothing and carry events only.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pass {
    /// When the pass started.
    pub starts_at: Time,
    /// When its outputs and events become visible.
    pub ends_at: Time,
    /// Generated tokens, in batch order; at most one per request.
    pub outputs: Vec<TokenOutput>,
    /// Requests that joined the batch, in order.
    pub admitted: Vec<Admission>,
    /// Requests thrown out of the batch for want of blocks; they wait and are computed again.
    pub preempted: Vec<RequestKey>,
    /// Cache changes in order, when the engine emits events.
    pub events: Vec<KvEvent>,
    /// Prompt tokens (and, after preemption, answer tokens) computed in this pass.
    pub prefill_tokens: u32,
    /// Requests that decoded one token.
    pub decode_requests: u32,
}

impl Pass {
    /// Empties the pass and keeps its buffers.
    pub fn clear(&mut self) {
        self.starts_at = Time::ZERO;
        self.ends_at = Time::ZERO;
        self.outputs.clear();
        self.admitted.clear();
        self.preempted.clear();
        self.events.clear();
        self.prefill_tokens = 0;
        self.decode_requests = 0;
    }
}

/// State and counters of one engine rank, enough for the `/metrics` of vLLM and SGLang. After
/// [`EngineModel::step`](crate::EngineModel::step) it is the state at that pass's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// Requests in the running batch.
    pub running: u32,
    /// Requests waiting for admission, preempted ones included.
    pub waiting: u32,
    /// Prompt tokens of waiting requests (recompute of preempted ones included), cached or not.
    pub waiting_tokens: u64,
    /// Blocks held by running requests. vLLM's `kv_cache_usage_perc` is `used / total`.
    pub used_blocks: u32,
    /// Blocks that no request holds but that could be reused (SGLang's evictable).
    pub cached_blocks: u32,
    /// Blocks in the pool; `total - used - cached` are empty.
    pub total_blocks: u32,
    /// Tokens in a block.
    pub block_size: u32,
    /// Tokens held by running requests, computed ones only.
    pub context_tokens: u64,
    /// Blocks in host memory.
    pub host_blocks: u32,
    /// Room there, in blocks.
    pub host_total_blocks: u32,
    /// Blocks on disk.
    pub disk_blocks: u32,
    /// Room there, in blocks.
    pub disk_total_blocks: u32,
    /// Tokens looked up in the prefix cache, counted at each first admission.
    pub prefix_cache_queries: u64,
    /// Of those, tokens found on the device.
    pub prefix_cache_hits: u64,
    /// Tokens looked up in tiers below the device: what the device did not have.
    pub lower_queries: u64,
    /// Of those, tokens read from host memory.
    pub host_hits: u64,
    /// ... from disk.
    pub disk_hits: u64,
    /// ... from the shared store.
    pub shared_hits: u64,
    /// Preemptions (SGLang: retractions).
    pub preemptions: u64,
    /// Prompt tokens of requests that produced their first token.
    pub prompt_tokens: u64,
    /// Of those, tokens that came from the cache.
    pub cached_prompt_tokens: u64,
    /// Generated tokens.
    pub generation_tokens: u64,
    /// Tokens computed in prefill, recomputation included.
    pub prefill_tokens: u64,
    /// Passes run.
    pub passes: u64,
    /// Requests refused at submission.
    pub refused: u64,
    /// Requests that ended by [`Finish::Stop`].
    pub finished_stop: u64,
    /// Requests that ended by [`Finish::Length`].
    pub finished_length: u64,
    /// Requests aborted.
    pub aborted: u64,
}
