//! Our own block hash: the identity by which blocks of all engines are compared.
//!
//! - Purpose: one 64-bit name for "this block after exactly these", computed from what events say of their
//!   blocks and from what a prompt holds, so that the engines' ids stay opaque and never meet each other.
//! - Inputs: token ids, adapter, salt, media, tokens looked ahead at. Outputs: [`BlockHash`]es.
//! - The choice: a chain of XXH3-64. It costs a few nanoseconds per block, 64 bits make a chance collision in
//!   100 million blocks less likely than one in 3,000, and a collision costs one wrong guess at a cache hit,
//!   never a wrong answer. The formula is that of `dynamo-kv-router`, so that hashes of the plain namespace
//!   equal the `input_sequence_hashes` of request traces.
//! - Invariants:
//!   - I-BID-1 a block's local hash is XXH3-64 over its token ids as little-endian `u32` and then, for each
//!     text it depends on, the text's length as `u64` and its bytes; seeded by the namespace;
//!   - I-BID-2 the hash of a first block is its local hash; of another one XXH3-64, seed 1337, over the hash
//!     before it and its local hash;
//!   - I-BID-3 the seed is 1337 plus XXH3(adapter, 0) plus XXH3(salt, 1); an empty text counts as none. Blocks
//!     of one namespace are never blocks of another;
//!   - I-BID-4 [`prompt`] and [`stored`] give the same hashes for the same content, whichever engine told it.
//! - Deliberately absent: partial last blocks; the model's name and the block size: an index holds blocks of
//!   one model, and blocks of two sizes differ in their tokens.
//! - Sources: dynamo-kv-router 1.6.1 (`compute_block_hash_for_seq`, `compute_seq_hash_for_block`).

use tandem_types::{BlockHash, BlockStored, ExtraKey};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Seed of the plain namespace and of chains.
pub const SEED: u64 = 1337;

/// What keeps blocks of equal tokens apart: the adapter that computed them and the salt of their tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace(u64);

impl Default for Namespace {
    fn default() -> Self {
        Self(SEED)
    }
}

impl Namespace {
    /// The namespace of an adapter and a salt.
    #[must_use]
    pub fn new(lora: Option<&str>, salt: Option<&str>) -> Self {
        let adapter = lora.filter(|name| !name.is_empty()).map_or(0, |name| xxh3_64(name.as_bytes()));
        let salt =
            salt.filter(|salt| !salt.is_empty()).map_or(0, |salt| xxh3_64_with_seed(salt.as_bytes(), 1));
        Self(SEED.wrapping_add(adapter).wrapping_add(salt))
    }
}

/// A media item in a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Media {
    /// Its content's id.
    pub id: std::sync::Arc<str>,
    /// Its first token's position.
    pub start: usize,
    /// Its tokens.
    pub len: usize,
}

/// How an engine cuts prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shape {
    /// Tokens in a block.
    pub block_size: u32,
    /// Tokens behind a block that its identity depends on: 1 with SGLang's bigram pages, else mostly 0.
    pub lookahead: u32,
}

/// Hash of a block by itself.
#[must_use]
pub fn local(namespace: Namespace, tokens: &[u32], keys: &[ExtraKey], lookahead: &[u32]) -> u64 {
    let mut bytes = Vec::with_capacity(4 * tokens.len());
    tokens.iter().for_each(|token| bytes.extend(token.to_le_bytes()));
    let mut text = |text: &str| {
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.as_bytes());
    };
    keys.iter().for_each(|key| text(&key.to_string()));
    lookahead.iter().for_each(|token| text(&format!("+{token}")));
    xxh3_64_with_seed(&bytes, namespace.0)
}

/// Hash of a block that follows the one with hash `previous`; `None` = it is the first.
#[must_use]
pub fn next(previous: Option<BlockHash>, local: u64) -> BlockHash {
    let Some(BlockHash(previous)) = previous else { return BlockHash(local) };
    let mut bytes = [0; 16];
    let (left, right) = bytes.split_at_mut(8);
    left.copy_from_slice(&previous.to_le_bytes());
    right.copy_from_slice(&local.to_le_bytes());
    BlockHash(xxh3_64_with_seed(&bytes, SEED))
}

/// Hashes of a prompt's full blocks. `media` in order of their starts.
#[must_use]
pub fn prompt(namespace: Namespace, shape: Shape, tokens: &[u32], media: &[Media]) -> Vec<BlockHash> {
    let size = shape.block_size.max(1) as usize;
    let ahead = shape.lookahead as usize;
    let mut previous = None;
    let mut hashes = Vec::with_capacity(tokens.len() / size);
    for (block, of_block) in tokens.chunks_exact(size).enumerate() {
        let start = block * size;
        let end = start + size;
        let Some(lookahead) = tokens.get(end..end + ahead) else { break };
        let keys: Vec<ExtraKey> = media
            .iter()
            .filter(|item| item.start < end && item.start.saturating_add(item.len) > start)
            .map(|item| ExtraKey::Media { id: item.id.clone(), offset: difference(item.start, start) })
            .collect();
        let hash = next(previous, local(namespace, of_block, &keys, lookahead));
        previous = Some(hash);
        hashes.push(hash);
    }
    hashes
}

fn difference(left: usize, right: usize) -> i64 {
    let signed = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    signed(left) - signed(right)
}

/// Where a store's blocks hang.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parent {
    /// They start a prompt.
    Root,
    /// They follow this block. `namespace` is that of the block's own store.
    Block {
        /// Its hash.
        hash: BlockHash,
        /// Its namespace.
        namespace: Namespace,
    },
}

/// Hashes of a store's blocks, and their namespace: the parent's where there is one, since vLLM says the salt
/// with a prompt's first block only. Nothing when the store does not describe content
/// ([`BlockStored::describes`]).
#[must_use]
pub fn stored(parent: Parent, event: &BlockStored) -> (Namespace, Vec<BlockHash>) {
    let (mut previous, namespace) = match parent {
        Parent::Root => (None, Namespace::new(event.lora.as_deref(), event.salt.as_deref())),
        Parent::Block { hash, namespace } => (Some(hash), namespace),
    };
    if !event.describes() {
        return (namespace, Vec::new());
    }
    let blocks = event.tokens.chunks_exact(event.block_size as usize).enumerate();
    let hashes = blocks
        .map(|(block, tokens)| {
            let keys = event.extra_keys.get(block).map_or(&[][..], Vec::as_slice);
            let ahead = event.lookahead.get(block).map_or(&[][..], Vec::as_slice);
            let hash = next(previous, local(namespace, tokens, keys, ahead));
            previous = Some(hash);
            hash
        })
        .collect();
    (namespace, hashes)
}
