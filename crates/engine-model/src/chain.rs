//! Block keys: what makes two blocks the same.
//!
//! - Purpose: name each full block of a request so that equal prefixes get equal names.
//! - Inputs: prompt, answer, namespace. Output: [`Chain`].
//! - Invariants: I-CHN-1 a key stands for everything from the start of the prompt to the end of its block,
//!   and for the namespace; I-CHN-2 keys depend on nothing but these, so engines and runs agree.
//! - Deliberately absent: the digests of real engines. These keys are our own; consumers of events treat
//!   them as opaque, as they must those of any engine.
//! - Source: chaining (parent, tokens, extra keys) is what vLLM and SGLang do.

use std::sync::Arc;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::request::{Namespace, Output, Prompt};

/// Keys of a request's blocks, in order.
#[derive(Debug, Clone)]
pub(crate) enum Chain {
    /// Hashed from tokens.
    Hashed(Vec<u64>),
    /// The caller's ids, in a namespace.
    Given { ids: Arc<[u64]>, namespace: Option<u64> },
}

impl Chain {
    /// A chain without keys: none of the blocks can be reused.
    pub(crate) const fn none() -> Self {
        Self::Hashed(Vec::new())
    }

    /// Keys of all full blocks among the first `tokens` tokens of prompt and answer.
    pub(crate) fn new(
        prompt: &Prompt,
        output: &Output,
        namespace: &Namespace,
        block_size: u32,
        tokens: u32,
    ) -> Self {
        match prompt {
            Prompt::Tokens(prompt) => Self::Hashed(hash(prompt, output, namespace, block_size, tokens)),
            Prompt::Named { ids, .. } => Self::Given { ids: Arc::clone(ids), namespace: None },
            Prompt::Blocks { ids, .. } => Self::Given {
                ids: Arc::clone(ids),
                namespace: (*namespace != Namespace::default()).then(|| namespace_key(namespace)),
            },
        }
    }

    /// Number of keys.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Hashed(keys) => keys.len(),
            Self::Given { ids, .. } => ids.len(),
        }
    }

    /// Key of the `index`-th block; `None` for blocks that cannot be reused.
    pub(crate) fn get(&self, index: usize) -> Option<u64> {
        match self {
            Self::Hashed(keys) => keys.get(index).copied(),
            Self::Given { ids, namespace: None } => ids.get(index).copied(),
            Self::Given { ids, namespace: Some(key) } => {
                ids.get(index).map(|id| xxh3_64_with_seed(&id.to_le_bytes(), *key))
            }
        }
    }
}

fn hash(prompt: &[u32], output: &Output, namespace: &Namespace, block_size: u32, tokens: u32) -> Vec<u64> {
    let blocks = (tokens / block_size.max(1)) as usize;
    let mut keys = Vec::with_capacity(blocks);
    let mut bytes = Vec::with_capacity(block_size as usize * 4);
    let mut parent = namespace_key(namespace);
    let mut text = prompt.iter().copied().chain((0..).map_while(|index| output.token(index)));
    for _ in 0..blocks {
        bytes.clear();
        text.by_ref()
            .take(block_size as usize)
            .for_each(|token: u32| bytes.extend_from_slice(&token.to_le_bytes()));
        parent = xxh3_64_with_seed(&bytes, parent);
        keys.push(parent);
    }
    keys
}

/// Each text goes in with its length, so that no two namespaces spell the same bytes.
fn namespace_key(namespace: &Namespace) -> u64 {
    let mut bytes = Vec::new();
    for text in [&namespace.lora, &namespace.salt] {
        match text {
            None => bytes.push(0),
            Some(text) => {
                bytes.push(1);
                bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
                bytes.extend_from_slice(text.as_bytes());
            }
        }
    }
    xxh3_64(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(prompt: &[u32], output: &[u32], namespace: &Namespace) -> Vec<u64> {
        let tokens = u32::try_from(prompt.len() + output.len()).expect("small");
        let prompt = Prompt::Tokens(prompt.into());
        let chain = Chain::new(&prompt, &Output::Tokens(output.into()), namespace, 2, tokens);
        (0..).map_while(|i| chain.get(i)).collect()
    }

    /// I-CHN-1, I-CHN-2.
    #[test]
    fn keys_name_the_whole_prefix() {
        let none = Namespace::default();
        let a = chain(&[1, 2, 3, 4, 5], &[], &none);
        assert_eq!(a.len(), 2);
        assert_eq!(chain(&[1, 2, 3], &[4, 5, 6], &none)[..2], a[..], "where the prompt ends is irrelevant");
        let b = chain(&[9, 2, 3, 4], &[], &none);
        assert_ne!(a[1], b[1], "same tokens after another start");
        // Fixed for good: xxh3-64 of the tokens' little-endian bytes, seeded with the parent's key.
        assert_eq!(a[0], xxh3_64_with_seed(&[1, 0, 0, 0, 2, 0, 0, 0], xxh3_64(&[0, 0])));
    }

    /// I-CHN-1.
    #[test]
    fn namespaces_keep_blocks_apart() {
        let space = |lora: Option<&str>, salt: Option<&str>| Namespace {
            lora: lora.map(Arc::from),
            salt: salt.map(Arc::from),
        };
        let spaces =
            [space(None, None), space(Some("a"), None), space(None, Some("a")), space(Some(""), None)];
        let mut seen = std::collections::BTreeSet::new();
        for namespace in &spaces {
            assert!(seen.insert(chain(&[1, 2], &[], namespace)));
            let prompt = Prompt::Blocks { ids: [7].into(), tokens: 2 };
            let given = Chain::new(&prompt, &Output::Seeded { seed: 0, tokens: 1 }, namespace, 2, 2);
            assert!(seen.insert(given.get(0).into_iter().collect()));
            assert_eq!(given.get(0) == Some(7), *namespace == Namespace::default());
        }
    }
}
