//! Prompts as chains of content hashes, one chain for each way in which some engine cuts them.

use std::sync::Arc;

use tandem_kvindex::chain;
use tandem_kvindex::pool::PageHash;
use tandem_kvwire::hash::block::{self, Media, Shape};
use tandem_types::{BlockHash, EngineKind, ExtraKey, HEAD_TOKENS};

use crate::pages::Mark;
use crate::view::View;

/// A prompt as an engine will see it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Prompt<'a> {
    /// Token ids.
    pub tokens: &'a [u32],
    /// The adapter.
    pub lora: Option<&'a str>,
    /// The cache salt.
    pub salt: Option<&'a str>,
    /// Pictures and the like, in order of their starts. Only engines that say so in their events match behind them.
    pub media: &'a [Media],
}

/// A prompt's content hashes for every block size in use. Cheap to clone; a few bytes for each block, no tokens.
#[derive(Debug, Clone, Default)]
pub struct PromptChain {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Tokens of the prompt; `None` = only blocks are known, and more may follow.
    tokens: Option<usize>,
    parts: Vec<Part>,
    pages: Vec<PagePart>,
}

/// The prompt in blocks of one shape.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) shape: Shape,
    pub(crate) hashes: Vec<u64>,
}

/// The prompt's pages as some engines name them in a store.
#[derive(Debug)]
pub(crate) struct PagePart {
    /// Which way of naming.
    pub(crate) scheme: u32,
    pub(crate) names: Vec<PageHash>,
    /// Digests here and there, from which a longer prompt's go on.
    pub(crate) marks: Vec<Mark>,
}

/// What keeps blocks of equal tokens apart, for both forms of the hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Space {
    plain: chain::Namespace,
    full: block::Namespace,
}

impl Space {
    pub(crate) fn new(lora: Option<&str>, salt: Option<&str>) -> Self {
        Self { plain: chain::Namespace::new(lora, salt), full: block::Namespace::new(lora, salt) }
    }

    /// Local hash of one block.
    pub(crate) fn local(self, tokens: &[u32], keys: &[ExtraKey], lookahead: &[u32]) -> u64 {
        if keys.is_empty() && lookahead.is_empty() {
            self.plain.local(tokens)
        } else {
            block::local(self.full, tokens, keys, lookahead)
        }
    }
}

impl Part {
    fn of(prompt: &Prompt<'_>, shape: Shape) -> Self {
        let hashes = if prompt.media.is_empty() && shape.lookahead == 0 {
            let space = Space::new(prompt.lora, prompt.salt);
            let blocks = prompt.tokens.chunks_exact(shape.block_size.max(1) as usize);
            let locals: Vec<u64> = blocks.map(|tokens| space.local(tokens, &[], &[])).collect();
            chain::chain(&locals)
        } else {
            let space = block::Namespace::new(prompt.lora, prompt.salt);
            let hashes = block::prompt(space, shape, prompt.tokens, prompt.media);
            hashes.into_iter().map(|BlockHash(hash)| hash).collect()
        };
        Self { shape, hashes }
    }
}

impl PromptChain {
    pub(crate) fn new(view: &View, prompt: &Prompt<'_>, before: Option<&Self>) -> Self {
        let parts: Vec<Part> = view.shapes.iter().map(|shape| Part::of(prompt, *shape)).collect();
        let mut pages = Vec::new();
        for scheme in &view.schemes {
            let mine = parts.iter().find(|part| part.shape == scheme.shape);
            let theirs = before.and_then(|before| before.part(scheme.shape));
            let common = mine.zip(theirs).map_or(0, |(mine, theirs)| {
                mine.hashes.iter().zip(&theirs.hashes).take_while(|(a, b)| a == b).count()
            });
            let known = before.and_then(|before| before.pages(scheme.id)).filter(|_| common > 0);
            pages.extend(scheme.pages(prompt, known.map(|known| (known, common))));
        }
        Self { inner: Arc::new(Inner { tokens: Some(prompt.tokens.len()), parts, pages }) }
    }

    pub(crate) fn of_blocks(shape: Shape, hashes: Vec<u64>) -> Self {
        let parts = vec![Part { shape, hashes }];
        Self { inner: Arc::new(Inner { tokens: None, parts, pages: Vec::new() }) }
    }

    /// The whole blocks within the first `tokens` tokens, of a prompt of which no more is known.
    #[must_use]
    pub fn leading(&self, tokens: u64) -> Self {
        let part = |part: &Part| {
            let blocks = tokens.checked_div(u64::from(part.shape.block_size)).unwrap_or_default();
            let blocks = usize::try_from(blocks).unwrap_or(usize::MAX).min(part.hashes.len());
            Part { shape: part.shape, hashes: part.hashes.iter().take(blocks).copied().collect() }
        };
        let parts = self.inner.parts.iter().map(part).collect();
        Self { inner: Arc::new(Inner { tokens: None, parts, pages: Vec::new() }) }
    }

    /// Names the first [`HEAD_TOKENS`] tokens ([`tandem_types::PrefixMatch::head`]).
    #[must_use]
    pub fn head(&self) -> Option<u64> {
        let part = self.inner.parts.first()?;
        let last = (HEAD_TOKENS / part.shape.block_size.max(1)).checked_sub(1)?;
        part.hashes.get(last as usize).copied()
    }

    /// The block sizes for which this has hashes.
    pub fn block_sizes(&self) -> impl Iterator<Item = u32> + '_ {
        self.inner.parts.iter().map(|part| part.shape.block_size)
    }

    /// Content hashes of the whole blocks of a size; empty where this has none of it.
    #[must_use]
    pub fn blocks(&self, block_size: u32) -> &[u64] {
        let part = self.inner.parts.iter().find(|part| part.shape.block_size == block_size);
        part.map_or(&[], |part| &part.hashes)
    }

    /// Tokens of the prompt; of one of which only blocks are known, those that they cover.
    #[must_use]
    pub fn tokens(&self) -> usize {
        let covered = |part: &Part| part.hashes.len() * part.shape.block_size as usize;
        self.inner.tokens.unwrap_or_else(|| self.inner.parts.iter().map(covered).max().unwrap_or_default())
    }

    pub(crate) fn parts(&self) -> &[Part] {
        &self.inner.parts
    }

    pub(crate) fn part(&self, shape: Shape) -> Option<&Part> {
        self.inner.parts.iter().find(|part| part.shape == shape)
    }

    pub(crate) fn pages(&self, scheme: u32) -> Option<&PagePart> {
        self.inner.pages.iter().find(|pages| pages.scheme == scheme)
    }

    /// Tokens of the greatest block that divides all block sizes; 0 without any.
    pub(crate) fn unit(&self) -> u32 {
        u32::try_from(self.block_sizes().map(u64::from).fold(0, gcd)).unwrap_or_default()
    }

    /// How many leading tokens an engine may take from its caches. All of them compute at least the last token, and
    /// take whole blocks only; SGLang looks up what is before the last token, as pairs where it keeps pairs.
    pub(crate) fn usable(&self, kind: EngineKind, shape: Shape) -> u64 {
        let Some(tokens) = self.inner.tokens else { return u64::MAX };
        let ahead = if kind == EngineKind::Sglang { shape.lookahead as usize } else { 0 };
        let size = (shape.block_size as usize).max(1);
        (tokens.saturating_sub(1 + ahead) / size * size) as u64
    }
}

/// Greatest common divisor; 0 is the neutral element.
pub(crate) const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The two crates that hash blocks agree, whichever of them a block goes through.
    #[test]
    fn both_forms_of_the_hash_are_one() {
        let tokens: Vec<u32> = (0..64).map(|n| n * 7_919).collect();
        for (lora, salt) in
            [(None, None), (Some("a"), None), (None, Some("s")), (Some("a"), Some("s")), (Some(""), Some(""))]
        {
            let (plain, full) = (chain::Namespace::new(lora, salt), block::Namespace::new(lora, salt));
            let locals: Vec<u64> = tokens.chunks(16).map(|block| plain.local(block)).collect();
            let others: Vec<u64> =
                tokens.chunks(16).map(|tokens| block::local(full, tokens, &[], &[])).collect();
            assert_eq!(locals, others);
            let shape = Shape { block_size: 16, lookahead: 0 };
            let chained: Vec<u64> = block::prompt(full, shape, &tokens, &[]).iter().map(|h| h.0).collect();
            assert_eq!(chain::chain(&locals), chained);
            let keyed = plain.local_with(&tokens, &["x@3", "+5"]);
            let media = ExtraKey::Media { id: "x".into(), offset: 3 };
            assert_eq!(block::local(full, &tokens, &[media], &[5]), keyed);
        }
    }

    #[test]
    fn the_last_token_is_always_computed() {
        let chain = |tokens: usize| PromptChain {
            inner: Arc::new(Inner { tokens: Some(tokens), parts: Vec::new(), pages: Vec::new() }),
        };
        let (plain, pairs) = (Shape { block_size: 4, lookahead: 0 }, Shape { block_size: 4, lookahead: 1 });
        let of = |kind, shape| [0, 1, 4, 5, 6, 8, 9, 10].map(|tokens| chain(tokens).usable(kind, shape));
        assert_eq!(of(EngineKind::Vllm, plain), [0, 0, 0, 4, 4, 4, 8, 8]);
        assert_eq!(of(EngineKind::Sglang, plain), [0, 0, 0, 4, 4, 4, 8, 8]);
        assert_eq!(of(EngineKind::Sglang, pairs), [0, 0, 0, 0, 4, 4, 4, 8]);
        assert_eq!(of(EngineKind::Vllm, pairs), [0, 0, 0, 4, 4, 4, 8, 8]);
    }

    #[test]
    fn the_leading_blocks_of_every_size() {
        let shape = |block_size| Shape { block_size, lookahead: 0 };
        let parts = vec![
            Part { shape: shape(4), hashes: vec![1, 2, 3, 4] },
            Part { shape: shape(8), hashes: vec![5, 6] },
        ];
        let whole = PromptChain { inner: Arc::new(Inner { tokens: Some(17), parts, pages: Vec::new() }) };
        let blocks = |tokens| {
            let leading = whole.leading(tokens);
            (leading.blocks(4).to_vec(), leading.blocks(8).to_vec())
        };
        assert_eq!(blocks(3), (vec![], vec![]));
        assert_eq!(blocks(13), (vec![1, 2, 3], vec![5]));
        assert_eq!(blocks(u64::MAX), (vec![1, 2, 3, 4], vec![5, 6]));
        assert_eq!(whole.leading(13).usable(EngineKind::Vllm, shape(4)), u64::MAX);
    }

    #[test]
    fn the_unit_divides_all_sizes() {
        assert_eq!([16, 24, 64].into_iter().fold(0, gcd), 8);
        assert_eq!(gcd(0, 0), 0);
    }
}
