//! Blocks of a prompt where neither its tokens nor engine events are known: the text that an outline reads, cut
//! every so many bytes.
//!
//! - Purpose: an index of routed prompts needs *some* blocks that equal prompts share and that grow with the
//!   prompt. With four bytes to a token and `block_bytes = 4 * block size`, counts of such blocks are about counts
//!   of the engine's blocks, and in proportion for any one tokenizer.
//! - The text: for each segment of the outline, in rendered order, eight bytes for kind and role, then its content:
//!   texts as they are, structured values (tools, calls, parameters) as their digest repeated to their length, so
//!   that the order of their members does not matter.
//! - Invariants: I-TXT-1 a block's hash stands for all bytes up to its end; I-TXT-2 a prompt that only grew has
//!   the former one's blocks as its first ones; I-TXT-3 the forms that give equal outlines give equal blocks;
//!   I-TXT-4 the last block is left out unless it is whole.
//! - Deliberately absent: the engines' own hashes. These blocks match nothing in engine events.

use tandem_types::{Dialect, EngineKind};
use xxhash_rust::xxh3::xxh3_64;

use crate::outline::{Builder, OutlineError, pair, walk};

/// Chain hashes of the whole blocks of `block_bytes` bytes of a prompt's text; none for `block_bytes` 0.
///
/// # Errors
/// [`OutlineError`] when the body is no JSON object or too large.
pub fn text_blocks(
    dialect: Dialect,
    kind: EngineKind,
    body: &[u8],
    block_bytes: usize,
) -> Result<Vec<u64>, OutlineError> {
    let mut builder = Builder::text();
    walk(dialect, kind, body, &mut builder)?;
    if block_bytes == 0 {
        return Ok(Vec::new());
    }
    let text = builder.into_text();
    let mut chain = Vec::with_capacity(text.len() / block_bytes);
    let mut before = block_bytes as u64;
    for block in text.chunks_exact(block_bytes) {
        before = pair(before, xxh3_64(block));
        chain.push(before);
    }
    Ok(chain)
}
