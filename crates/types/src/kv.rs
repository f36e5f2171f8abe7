//! KV cache events in neutral form, as engines publish them.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Where a block lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// GPU memory (engines write `GPU`, on CPU-only builds too).
    #[default]
    Device,
    /// Host memory of the same machine.
    Host,
    /// Local disk.
    Disk,
    /// A store shared by several workers.
    Shared,
}

/// Our own name of a block: a hash of its tokens and of all that lies before it. Equal on every worker,
/// unlike the engines' own ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BlockHash(pub u64);

/// What the blocks of a cache group are good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupKind {
    /// Each block is needed for a hit behind it (full, MLA and sink attention): these groups bound the
    /// prefix that can be reused.
    #[default]
    Full,
    /// Only the blocks of a trailing window are needed (sliding window, chunked local attention).
    Window,
    /// Only a checkpoint at the end is needed (Mamba and other recurrent state).
    State,
    /// Not part of the prompt's prefix (encoder, cross attention), or of a kind that we do not know.
    Other,
}

/// Something besides tokens that a block's content depends on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExtraKey {
    /// A picture, sound or the like that covers a part of the block.
    Media {
        /// Its content's id.
        id: Arc<str>,
        /// Tokens from the block's start to its own; negative when it began in an earlier block.
        offset: i64,
    },
    /// A text whose meaning the engine does not tell; older vLLM writes media ids so.
    Text(Arc<str>),
    /// A digest, such as that of embeddings given in place of tokens.
    Bytes(Arc<[u8]>),
}

/// The text that goes into our own block hash: `id@offset`, the text, or the bytes in hex.
impl fmt::Display for ExtraKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Media { id, offset } => write!(f, "{id}@{offset}"),
            Self::Text(text) => f.write_str(text),
            Self::Bytes(bytes) => bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
        }
    }
}

/// Blocks that became resident, in chain order.
///
/// Not every store describes content. Where [`BlockStored::describes`] is false, hashes may already be known
/// from another store and then lie in one more tier; else there is nothing to do with them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BlockStored {
    /// The engine's own ids of the blocks, opaque to us, as unsigned 64-bit numbers.
    pub block_hashes: Vec<u64>,
    /// The block that the first one continues; `None` = start of a prompt.
    pub parent: Option<u64>,
    /// Tokens of all blocks, `block_hashes.len() * block_size` of them in a store that describes content.
    pub tokens: Vec<u32>,
    /// Tokens in a block; 0 = not told. May be smaller than the worker's block: engines with a finer match
    /// unit publish parts of blocks.
    pub block_size: u32,
    /// Where the blocks lie.
    pub tier: Tier,
    /// LoRA adapter that computed them.
    pub lora: Option<Arc<str>>,
    /// The request's cache salt. SGLang says it with every store, vLLM only with one that starts a prompt
    /// (blocks further on inherit it from their parents). Never empty.
    pub salt: Option<Arc<str>>,
    /// Per block: what its content depends on besides tokens, adapter and salt; empty = nothing at all.
    pub extra_keys: Vec<Vec<ExtraKey>>,
    /// Per block: the tokens right behind it that its identity depends on (speculative drafters; one token
    /// for SGLang's bigram pages); empty = nothing at all.
    pub lookahead: Vec<Vec<u32>>,
    /// The engine's cache group. The same hash may lie in several groups of a hybrid model.
    pub group: u32,
    /// What that group is good for.
    pub kind: GroupKind,
    /// Tokens of the group's sliding window, where the engine tells.
    pub window: Option<u32>,
    /// The session that computed them, where the engine echoes it.
    pub session: Option<Arc<str>>,
    /// The offload tier that holds them, where it is not the engine's own (`kvcr`).
    pub owner: Option<Arc<str>>,
    /// Announced by a connector that wrote them to a store it does not watch: no removal will follow.
    pub echo: bool,
}

impl BlockStored {
    /// True if tokens, size and hashes say what the blocks hold and a prefix hit depends on them: the stores
    /// from which an index of prefixes is built.
    #[must_use]
    pub fn describes(&self) -> bool {
        self.kind == GroupKind::Full
            && self.block_size > 0
            && !self.tokens.is_empty()
            && self.tokens.len() == self.block_hashes.len() * self.block_size as usize
    }
}

/// Blocks that are no longer resident.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BlockRemoved {
    /// The engine's own ids of the blocks. One physical copy of each is gone; vLLM may have more of them.
    pub block_hashes: Vec<u64>,
    /// The tier that they left.
    pub tier: Tier,
    /// The engine's cache group.
    pub group: u32,
    /// Per block: how many copies remain, where the engine tells; empty = it does not.
    pub remaining: Vec<u32>,
    /// The offload tier that held them, where it is not the engine's own.
    pub owner: Option<Arc<str>>,
}

/// One change of a worker's cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvEvent {
    /// Blocks became resident.
    Stored(BlockStored),
    /// Blocks left.
    Removed(BlockRemoved),
    /// The engine's own cache was dropped ([`Tier::Device`]; other tiers that it owns may survive).
    Cleared,
}

/// One message of an engine's event stream.
#[derive(Debug, Clone, PartialEq)]
pub struct KvBatch {
    /// The engine's wall clock, seconds since the epoch.
    pub timestamp: f64,
    /// Changes in order.
    pub events: Vec<KvEvent>,
    /// Data-parallel rank, where the engine tells.
    pub rank: Option<u32>,
}
