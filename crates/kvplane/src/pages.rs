//! How engines name a prompt's pages in a shared store.
//!
//! - SGLang names a page by the SHA-256 of its tokens behind the page before, and vLLM a block by its own prefix
//!   hash: both are computed here where algorithm and seed are known. The work of a prompt that this one continues
//!   is used again, as far as our own hashes say that they are equal.
//! - Where vLLM's hash cannot be reproduced, names are learned: the last eight bytes of the digest in the object's
//!   key are the block's id in vLLM's own events, which tell its content.
//! - All names of vLLM's blocks are those eight bytes, so that both ways lead to the same objects.
//! - No names: adapters of SGLang (their namespace is random at each load) and, where their path goes into the
//!   hash, of vLLM; pages of SGLang from the first media token on.

use std::sync::{PoisonError, RwLock};

use tandem_kvindex::pool::PageHash;
use tandem_kvwire::hash::block::Shape;
use tandem_kvwire::hash::sglang::{self, PageDigest};
use tandem_kvwire::hash::vllm::{VllmDigest, VllmHasher, VllmKey, VllmKeyForm};

use crate::VllmHashing;
use crate::prompt::{PagePart, Prompt};
use crate::recent::Recent;

/// Pages between two digests that are kept to go on from.
const MARK_EVERY: usize = 32;

/// The digest of the last page before a multiple of [`MARK_EVERY`].
#[derive(Debug, Clone, Copy)]
pub(crate) enum Mark {
    Vllm(VllmDigest),
    Sglang(PageDigest),
}

/// A way of naming pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Naming {
    Vllm(VllmHashing),
    Sglang,
    /// Learned from events; the number tells stores apart whose engines hash differently.
    Learned(u32),
}

/// A way of naming pages of one shape.
#[derive(Debug, Clone)]
pub(crate) struct Scheme {
    /// Never used again, so that names in an old chain stay what they are.
    pub(crate) id: u32,
    pub(crate) naming: Naming,
    pub(crate) shape: Shape,
    hasher: Option<VllmHasher>,
}

impl Scheme {
    pub(crate) fn new(id: u32, naming: Naming, shape: Shape) -> Self {
        let hasher = match &naming {
            Naming::Vllm(VllmHashing { algorithm, seed: Some(seed), form }) => {
                Some(VllmHasher::seeded(*algorithm, seed, *form))
            }
            Naming::Vllm(VllmHashing { algorithm, seed: None, form }) => {
                VllmHasher::reproducible(*algorithm, *form)
            }
            Naming::Sglang | Naming::Learned(_) => None,
        };
        Self { id, naming, shape, hasher }
    }

    /// Names of a prompt's pages. `known`: those of another prompt, of which so many pages are the same.
    pub(crate) fn pages(&self, prompt: &Prompt<'_>, known: Option<(&PagePart, usize)>) -> Option<PagePart> {
        let mut pages = PagePart { scheme: self.id, names: Vec::new(), marks: Vec::new() };
        if let Some((known, common)) = known {
            let whole = (common.min(known.names.len()) / MARK_EVERY).min(known.marks.len());
            pages.marks.extend(known.marks.iter().take(whole));
            pages.names.extend(known.names.iter().take(whole * MARK_EVERY));
        }
        match (&self.naming, self.hasher) {
            (Naming::Vllm(hashing), Some(hasher)) => {
                if prompt.lora.is_some() && hashing.form == VllmKeyForm::Tagged {
                    return None;
                }
                self.vllm(&hasher, prompt, &mut pages);
            }
            (Naming::Sglang, _) if prompt.lora.is_none() => self.sglang(prompt, &mut pages),
            _ => return None,
        }
        Some(pages)
    }

    fn vllm(&self, hasher: &VllmHasher, prompt: &Prompt<'_>, pages: &mut PagePart) {
        let size = self.shape.block_size.max(1) as usize;
        let mut parent = match pages.marks.last() {
            Some(Mark::Vllm(digest)) => *digest,
            _ => hasher.root(),
        };
        for (at, tokens) in prompt.tokens.chunks_exact(size).enumerate().skip(pages.names.len()) {
            let (start, end) = (at * size, (at + 1) * size);
            let mut keys: Vec<VllmKey<'_>> = Vec::new();
            keys.extend(prompt.lora.map(|name| VllmKey::Lora { name, path: "" }));
            let within =
                prompt.media.iter().filter(|m| m.start < end && m.start.saturating_add(m.len) > start);
            keys.extend(
                within.map(|m| VllmKey::Media { id: &m.id, offset: signed(m.start) - signed(start) }),
            );
            keys.extend(prompt.salt.filter(|salt| at == 0 && !salt.is_empty()).map(VllmKey::Salt));
            parent = hasher.block(&parent, tokens, &keys, &[]);
            pages.names.push(vllm_page(parent.id()));
            if pages.names.len().is_multiple_of(MARK_EVERY) {
                pages.marks.push(Mark::Vllm(parent));
            }
        }
    }

    fn sglang(&self, prompt: &Prompt<'_>, pages: &mut PagePart) {
        let size = self.shape.block_size.max(1) as usize;
        let prior = match pages.marks.last() {
            Some(Mark::Sglang(digest)) => Some(*digest),
            _ => sglang::storage_seed(None, prompt.salt.filter(|salt| !salt.is_empty())),
        };
        let plain = prompt.media.first().map_or(prompt.tokens.len(), |media| media.start);
        let tokens = prompt.tokens.get(..plain.min(prompt.tokens.len())).unwrap_or(&[]);
        let rest = tokens.get(pages.names.len() * size..).unwrap_or(&[]);
        for digest in sglang::prompt(prior, rest, size, self.shape.lookahead > 0) {
            pages.names.push(PageHash::from_digest(&digest));
            if pages.names.len().is_multiple_of(MARK_EVERY) {
                pages.marks.push(Mark::Sglang(digest));
            }
        }
    }
}

fn signed(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// The name of a vLLM block by its id in events.
pub(crate) fn vllm_page(id: u64) -> PageHash {
    PageHash::from_digest(&id.to_be_bytes())
}

/// Tables of learned names; a reader waits for one insertion at most.
const PARTS: usize = 64;

/// Learned names: (store's engines, content hash) to the engines' id.
#[derive(Debug)]
pub(crate) struct Names {
    parts: Vec<RwLock<Recent<(u32, u64), u64>>>,
}

impl Names {
    pub(crate) fn new(most: usize) -> Self {
        Self { parts: (0..PARTS).map(|_| RwLock::new(Recent::new(most / PARTS))).collect() }
    }

    fn part(&self, content: u64) -> Option<&RwLock<Recent<(u32, u64), u64>>> {
        self.parts.get((content >> 58) as usize)
    }

    pub(crate) fn learn(&self, scope: u32, content: u64, id: u64) {
        if let Some(part) = self.part(content) {
            part.write().unwrap_or_else(PoisonError::into_inner).insert((scope, content), id);
        }
    }

    /// Names of a prompt's leading pages, as far as they are known without a hole.
    pub(crate) fn pages(&self, scope: u32, contents: &[u64]) -> Vec<PageHash> {
        let name = |content: &u64| {
            let part = self.part(*content)?.read().unwrap_or_else(PoisonError::into_inner);
            part.get(&(scope, *content)).copied().map(vllm_page)
        };
        contents.iter().map_while(name).collect()
    }

    /// Names known, and names forgotten to make room.
    pub(crate) fn counts(&self) -> (usize, u64) {
        let mut counts = (0, 0);
        for part in &self.parts {
            let part = part.read().unwrap_or_else(PoisonError::into_inner);
            counts.0 += part.len();
            counts.1 += part.forgotten();
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use tandem_kvwire::hash::vllm::VllmAlgorithm;

    use super::*;

    fn schemes() -> [Scheme; 3] {
        let hashing = VllmHashing { algorithm: VllmAlgorithm::Sha256, seed: None, form: VllmKeyForm::Tagged };
        let cut = |block_size, lookahead| Shape { block_size, lookahead };
        [
            Scheme::new(0, Naming::Vllm(hashing), cut(16, 0)),
            Scheme::new(1, Naming::Sglang, cut(4, 0)),
            Scheme::new(2, Naming::Sglang, cut(4, 1)),
        ]
    }

    /// Published vectors: ids of vLLM 0.29 and later with its default hash, SGLang's digests.
    #[test]
    fn names_are_the_engines_own() {
        let tokens: Vec<u32> = (1..=40).collect();
        let [vllm, sglang, _] = schemes();
        let named = vllm.pages(&Prompt { tokens: &tokens, ..Prompt::default() }, None).expect("names").names;
        assert_eq!(named, [1_403_909_460_543_360_175, 1_643_945_449_041_937_783].map(vllm_page));
        let of = |salt| {
            let prompt = Prompt { tokens: &tokens, salt, ..Prompt::default() };
            sglang.pages(&prompt, None).expect("names").names
        };
        let digest = |hex: &str| PageHash::from_digest(&hex::decode(hex).expect("hex"));
        assert_eq!(of(None)[0], digest("cf97adeedb59e05bfd73a2b4c2a8885708c4f4f70c84c64b27120e72ab733b72"));
        assert_eq!(of(None)[1], digest("4ebfa8a1f3c341517621838c6e1b9aa350307e3f00b3cbd1a07ef740f54396d6"));
        assert_eq!(
            of(Some("tenant-a"))[0],
            digest("2fd053693d7ef6aeb2f9315a5ca100dfe4b99434c563241ee3243a9163846222")
        );
        assert_eq!(of(Some("")), of(None));
    }

    #[test]
    fn adapters_whose_hash_is_not_known_have_no_names() {
        let tokens: Vec<u32> = (1..=40).collect();
        let prompt = Prompt { tokens: &tokens, lora: Some("a"), ..Prompt::default() };
        assert!(schemes().iter().all(|scheme| scheme.pages(&prompt, None).is_none()));
    }

    /// I-KVP-9.
    #[test]
    fn a_longer_prompt_goes_on_from_the_shorter_ones_work() {
        let tokens: Vec<u32> = (0..3_000).map(|n| n * 31 % 997).collect();
        for scheme in schemes() {
            let size = scheme.shape.block_size as usize;
            for (short, same) in [(1_000, 1_000), (1_000, 700), (2_999, 513), (600, 3), (40, 40)] {
                let mut first = tokens[..short].to_vec();
                if same < short {
                    first[same] += 1;
                }
                let before =
                    scheme.pages(&Prompt { tokens: &first, ..Prompt::default() }, None).expect("names");
                let prompt = Prompt { tokens: &tokens, ..Prompt::default() };
                let common = same.saturating_sub(scheme.shape.lookahead as usize) / size;
                let resumed = scheme.pages(&prompt, Some((&before, common))).expect("names");
                let fresh = scheme.pages(&prompt, None).expect("names");
                assert_eq!(resumed.names, fresh.names, "{short} {same}");
                assert_eq!(resumed.marks.len(), fresh.marks.len());
            }
        }
    }
}
