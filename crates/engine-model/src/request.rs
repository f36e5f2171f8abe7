//! What is asked of a modelled engine.

use std::sync::Arc;

use tandem_types::Time;

/// A request's id, chosen by the caller, unique among the requests that are not finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestKey(pub u64);

/// A prompt in one of three forms. Requests of all forms may share an engine, but never share blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// Token ids.
    Tokens(Arc<[u32]>),
    /// Opaque block ids, for drivers that know lengths and reuse but no tokens.
    Blocks {
        /// `ids[i]` stands for the tokens `0 .. (i + 1) * block_size` of prompt *and answer*: equal ids
        /// mean equal text from the start on (prefix-chained). The sequence may go on beyond the
        /// prompt, into the answer, which is how the next turn comes to reuse the answer's blocks.
        /// Blocks without an id are computed but never reused.
        ids: Arc<[u64]>,
        /// Prompt length in tokens.
        tokens: u32,
    },
    /// Token ids, and the caller's own names of the blocks, for drivers that hash as a real engine does.
    Named {
        /// The prompt.
        tokens: Arc<[u32]>,
        /// As in [`Prompt::Blocks`]; adapter and salt are in these names already.
        ids: Arc<[u64]>,
    },
}

impl Prompt {
    /// Length in tokens; more than `u32::MAX` tokens count as `u32::MAX` and are refused.
    #[must_use]
    pub fn len(&self) -> u32 {
        match self {
            Self::Tokens(tokens) | Self::Named { tokens, .. } => {
                u32::try_from(tokens.len()).unwrap_or(u32::MAX)
            }
            Self::Blocks { tokens, .. } => *tokens,
        }
    }

    /// Whether there is nothing to compute.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The answer that the engine will give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Exactly these tokens.
    Tokens(Arc<[u32]>),
    /// That many tokens drawn from a seed: the same seed gives the same tokens.
    Seeded {
        /// Seed.
        seed: u64,
        /// Tokens to generate.
        tokens: u32,
    },
}

/// Ids of [`Output::Seeded`] tokens lie in `0 .. SEEDED_VOCABULARY`.
pub const SEEDED_VOCABULARY: u32 = 32_000;

impl Output {
    /// Length in tokens.
    #[must_use]
    pub fn len(&self) -> u32 {
        match self {
            Self::Tokens(tokens) => u32::try_from(tokens.len()).unwrap_or(u32::MAX),
            Self::Seeded { tokens, .. } => *tokens,
        }
    }

    /// Whether the model has nothing to say.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The `index`-th token (from 0); `None` at and beyond [`Output::len`].
    #[must_use]
    pub fn token(&self, index: u32) -> Option<u32> {
        match self {
            Self::Tokens(tokens) => tokens.get(index as usize).copied(),
            Self::Seeded { seed, tokens } => (index < *tokens).then(|| seeded_token(*seed, index)),
        }
    }
}

/// SplitMix64's output function over (seed, index), reduced to the vocabulary.
fn seeded_token(seed: u64, index: u32) -> u32 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(u64::from(index) + 1));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    // The multiply-shift of a 32-bit value by the vocabulary is below the vocabulary.
    (((z >> 32) * u64::from(SEEDED_VOCABULARY)) >> 32) as u32
}

/// What keeps blocks of equal tokens apart: requests share blocks only within one namespace.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Namespace {
    /// LoRA adapter.
    pub lora: Option<Arc<str>>,
    /// `cache_salt` of the request.
    pub salt: Option<Arc<str>>,
}

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Its id.
    pub id: RequestKey,
    /// What to read.
    pub prompt: Prompt,
    /// What to answer; cut at `max_output_tokens`.
    pub output: Output,
    /// Bound on the answer, at least 1.
    pub max_output_tokens: u32,
    /// Urgency under [`SchedulingPolicy::Priority`](crate::SchedulingPolicy::Priority): lower is sooner
    /// (vLLM's convention, whatever the flavour; SGLang's faces negate).
    pub priority: i32,
    /// Cache namespace.
    pub namespace: Namespace,
    /// The session, echoed in KV events.
    pub session: Option<Arc<str>>,
    /// When it arrived: orders the queue; may lie before the submission.
    pub arrival: Time,
}

/// Why a request is refused at submission. A refused request leaves no trace but in the counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A request of that id is not finished yet.
    #[error("request id is in use")]
    DuplicateId,
    /// No prompt tokens.
    #[error("prompt is empty")]
    EmptyPrompt,
    /// The answer is empty or `max_output_tokens` is 0.
    #[error("no output tokens are asked for")]
    EmptyOutput,
    /// The prompt leaves no room for an answer within `max_model_len`.
    #[error("prompt of {tokens} tokens leaves no room for output within the context of {max_model_len}")]
    ContextLength {
        /// Prompt length.
        tokens: u32,
        /// The engine's limit.
        max_model_len: u32,
    },
    /// Prompt and answer together need more blocks than the pool has.
    #[error("request needs {needed} kv blocks, the pool has {total}")]
    ExceedsPool {
        /// Blocks needed.
        needed: u32,
        /// Blocks in the pool.
        total: u32,
    },
    /// Without chunked prefill a request must fit in one pass.
    #[error("request of {tokens} tokens exceeds the pass budget of {budget} and chunked prefill is off")]
    ExceedsBudget {
        /// Prompt and answer length.
        tokens: u32,
        /// `max_num_batched_tokens`.
        budget: u32,
    },
}
