//! KV cache events in neutral form, as engines publish them.

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

/// Blocks that became resident, in chain order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockStored {
    /// The engine's own ids of the blocks, opaque to us, as unsigned 64-bit numbers.
    pub block_hashes: Vec<u64>,
    /// The block that the first one continues; `None` = start of a prompt.
    pub parent: Option<u64>,
    /// Tokens of all blocks, `block_hashes.len() * block_size` of them.
    pub tokens: Vec<u32>,
    /// Tokens in a block.
    pub block_size: u32,
    /// Where the blocks lie.
    pub tier: Tier,
    /// LoRA adapter that computed them.
    pub lora: Option<Arc<str>>,
    /// Per block: texts mixed into its hash (`cache_salt`, multimodal ids); empty = none at all.
    pub extra_keys: Vec<Option<Vec<String>>>,
    /// The session that computed them, where the engine echoes it.
    pub session: Option<Arc<str>>,
}

/// Blocks that are no longer resident.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockRemoved {
    /// The engine's own ids of the blocks.
    pub block_hashes: Vec<u64>,
    /// The tier that they left.
    pub tier: Tier,
}

/// One change of a worker's cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvEvent {
    /// Blocks became resident.
    Stored(BlockStored),
    /// Blocks left.
    Removed(BlockRemoved),
    /// The whole cache was dropped.
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
