//! One request inside the engine.

use std::sync::Arc;

use tandem_types::Time;

use crate::chain::Chain;
use crate::pass::Finish;
use crate::pool::BlockIx;
use crate::request::{Namespace, Output, Prompt, RequestKey};
use crate::tiers::Found;

/// Where the KV of a prompt stands that another engine computed.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) enum Handed {
    /// No other engine did, or what it did is lost.
    #[default]
    No,
    /// It lies there and is to be fetched with so many GB/s.
    There(f64),
    /// It is under way, or has arrived and waits for its admission.
    Fetched,
}

/// One request that is waiting or running.
#[derive(Debug, Clone)]
pub(crate) struct Seq {
    pub(crate) id: RequestKey,
    pub(crate) prompt: Prompt,
    pub(crate) prompt_len: u32,
    pub(crate) output: Output,
    /// Tokens that will be generated.
    pub(crate) out_len: u32,
    /// How it will end.
    pub(crate) finish: Finish,
    /// Tokens that the client allows, as far as the context length does.
    pub(crate) max_new: u32,
    pub(crate) priority: i32,
    pub(crate) arrival: Time,
    pub(crate) namespace: Namespace,
    pub(crate) session: Option<Arc<str>>,
    pub(crate) chain: Chain,
    /// Place in the queue among requests of equal urgency.
    pub(crate) order: i64,
    /// Physical blocks, in order.
    pub(crate) blocks: Vec<BlockIx>,
    /// Leading blocks that are findable by others.
    pub(crate) committed: usize,
    /// Tokens of which the KV is there.
    pub(crate) computed: u32,
    /// Tokens that were to be there for decoding to start when the request was last admitted.
    pub(crate) target: u32,
    pub(crate) generated: u32,
    /// Tokens found in the cache at first admission.
    pub(crate) first_cached: Option<u32>,
    /// What was read from lower tiers for the next admission; `None` = not looked there yet.
    pub(crate) loaded: Option<Found>,
    /// How its prompt's KV, which another engine computed, comes here.
    pub(crate) handed: Handed,
    /// When the blocks under way from lower tiers are there.
    pub(crate) ready_at: Time,
}

impl Seq {
    /// Tokens so far: prompt and generated ones.
    pub(crate) const fn total(&self) -> u32 {
        self.prompt_len + self.generated
    }

    /// Tokens to compute before the next token can be generated.
    pub(crate) const fn remaining(&self) -> u32 {
        self.total() - self.computed
    }

    /// Whether the next pass computes prompt (or recomputes), rather than decodes.
    pub(crate) const fn prefilling(&self) -> bool {
        self.computed < self.target
    }

    /// Token ids at `from ..`, `count` of them; empty when only block ids are known.
    pub(crate) fn tokens(&self, from: usize, count: usize) -> Vec<u32> {
        let (Prompt::Tokens(prompt) | Prompt::Named { tokens: prompt, .. }) = &self.prompt else {
            return Vec::new();
        };
        let mut tokens = Vec::with_capacity(count);
        let in_prompt = prompt.get(from..).unwrap_or_default();
        tokens.extend_from_slice(in_prompt.get(..count).unwrap_or(in_prompt));
        // Both are below 2^32: admission checks that prompt and answer fit in the pool.
        let start = from.saturating_sub(prompt.len()) as u32;
        let missing = (count - tokens.len()) as u32;
        tokens.extend((start..start + missing).map_while(|i| self.output.token(i)));
        tokens
    }
}
