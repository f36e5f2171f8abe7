//! Hashes of token blocks, as replay tools use them to tell which prompts share a prefix.
//!
//! - Purpose: the `replay` block of a request row.
//! - Invariants:
//!   - I-HSH-1 block hash = XXH3-64, seed 1337, over the block's token ids as little-endian `u32`.
//!   - I-HSH-2 the last block is hashed with the tokens that it has, so `n` tokens give
//!     `ceil(n / block size)` hashes.
//!   - I-HSH-3 sequence hash of block 0 = its block hash; of block i = XXH3-64, seed 1337, over the 16 bytes
//!     `[sequence hash i-1, block hash i]`, both little-endian.
//!   - I-HSH-4 output side: with `q = floor(input length / block size)`, the output hashes are those of blocks
//!     `q, q+1, ...` of input followed by output. The block in which the prompt ends is hashed again, now with
//!     generated tokens in it; `input hashes[..q] ++ output hashes` is the chain over the whole. A next prompt
//!     that extends this turn word for word starts with the whole chain but for a partial last block.
//! - Deliberately absent: salts, LoRA and multimodal keys (the schema has none), engine block hashes.
//! - Sources: dynamo-kv-router 1.6.1 and dynamo-llm 1.6.1; pull request 14636 for the output side.

use std::num::NonZeroU32;

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use crate::record::Replay;

/// Seed of every hash in a trace.
pub const SEED: u64 = 1337;

/// Hash of one block of tokens, whole or partial.
#[must_use]
pub fn block_hash(tokens: &[u32]) -> u64 {
    let mut hasher = Xxh3::with_seed(SEED);
    for chunk in tokens.chunks(64) {
        let mut bytes = [0u8; 256];
        for (slot, token) in bytes.chunks_exact_mut(4).zip(chunk) {
            slot.copy_from_slice(&token.to_le_bytes());
        }
        hasher.update(bytes.get(..chunk.len() * 4).unwrap_or(&[]));
    }
    hasher.digest()
}

/// Hashes of all blocks, each by itself; the last one may be partial.
#[must_use]
pub fn block_hashes(tokens: &[u32], block_size: NonZeroU32) -> Vec<u64> {
    tokens.chunks(width(block_size)).map(block_hash).collect()
}

/// Sequence hash of a block that follows the one with sequence hash `previous` (none: it is the first).
#[must_use]
pub fn chain(previous: Option<u64>, block: u64) -> u64 {
    let Some(previous) = previous else { return block };
    let mut bytes = [0u8; 16];
    let (left, right) = bytes.split_at_mut(8);
    left.copy_from_slice(&previous.to_le_bytes());
    right.copy_from_slice(&block.to_le_bytes());
    xxh3_64_with_seed(&bytes, SEED)
}

/// Chained hashes of all blocks; the last one may be partial.
#[must_use]
pub fn sequence_hashes(tokens: &[u32], block_size: NonZeroU32) -> Vec<u64> {
    let mut hasher = SequenceHasher::new(block_size);
    hasher.extend(tokens);
    hasher.hashes()
}

/// The replay block of a request whose tokens are known. `output` is empty where generated tokens are not
/// known (then no output hashes are written).
#[must_use]
pub fn replay(input: &[u32], output: &[u32], block_size: NonZeroU32) -> Replay {
    let mut hasher = ReplayHasher::new(input, block_size);
    hasher.generated(output);
    hasher.finish()
}

fn width(block_size: NonZeroU32) -> usize {
    usize::try_from(block_size.get()).unwrap_or(usize::MAX)
}

/// Sequence hashes of tokens that arrive piece by piece. Keeps the hashes and at most one unfinished block.
#[derive(Debug, Clone)]
pub struct SequenceHasher {
    width: usize,
    last: Option<u64>,
    done: Vec<u64>,
    unfinished: Vec<u32>,
}

impl SequenceHasher {
    /// An empty sequence.
    #[must_use]
    pub fn new(block_size: NonZeroU32) -> Self {
        Self { width: width(block_size), last: None, done: Vec::new(), unfinished: Vec::new() }
    }

    /// Appends tokens.
    pub fn extend(&mut self, mut tokens: &[u32]) {
        if !self.unfinished.is_empty() {
            let take = tokens.len().min(self.width - self.unfinished.len());
            let (head, rest) = tokens.split_at(take);
            self.unfinished.extend_from_slice(head);
            tokens = rest;
            if self.unfinished.len() == self.width {
                self.close(block_hash(&self.unfinished));
                self.unfinished.clear();
            }
        }
        let mut blocks = tokens.chunks_exact(self.width);
        for block in &mut blocks {
            self.close(block_hash(block));
        }
        self.unfinished.extend_from_slice(blocks.remainder());
    }

    fn close(&mut self, block: u64) {
        let hash = chain(self.last, block);
        self.last = Some(hash);
        self.done.push(hash);
    }

    /// Hashes of the blocks so far, the unfinished one included.
    #[must_use]
    pub fn hashes(&self) -> Vec<u64> {
        let mut all = Vec::with_capacity(self.done.len() + 1);
        all.extend_from_slice(&self.done);
        all.extend(self.partial());
        all
    }

    fn partial(&self) -> Option<u64> {
        (!self.unfinished.is_empty()).then(|| chain(self.last, block_hash(&self.unfinished)))
    }
}

/// Builds a replay block while the answer streams: the prompt first, then generated tokens as they come.
#[derive(Debug, Clone)]
pub struct ReplayHasher {
    block_size: NonZeroU32,
    input_length: usize,
    input: Vec<u64>,
    output: SequenceHasher,
    output_length: u64,
}

impl ReplayHasher {
    /// Hashes the prompt.
    #[must_use]
    pub fn new(input: &[u32], block_size: NonZeroU32) -> Self {
        let mut sequence = SequenceHasher::new(block_size);
        sequence.extend(input);
        let all = sequence.hashes();
        sequence.done.clear();
        Self { block_size, input_length: input.len(), input: all, output: sequence, output_length: 0 }
    }

    /// Takes generated tokens.
    pub fn generated(&mut self, tokens: &[u32]) {
        self.output.extend(tokens);
        self.output_length += u64::try_from(tokens.len()).unwrap_or(u64::MAX);
    }

    /// The replay block.
    #[must_use]
    pub fn finish(self) -> Replay {
        let output_sequence_hashes = if self.output_length == 0 { Vec::new() } else { self.output.hashes() };
        Replay {
            trace_block_size: u64::from(self.block_size.get()),
            input_length: u64::try_from(self.input_length).unwrap_or(u64::MAX),
            input_sequence_hashes: self.input,
            output_sequence_hashes,
            dependencies: Vec::new(),
        }
    }
}
