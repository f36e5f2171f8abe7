//! SGLang's page hashes, computed outside of SGLang.
//!
//! - Purpose: name the pages that HiCache writes to a shared store, and check what events say.
//! - Inputs: token ids (or overlapping pairs), page size, namespace. Outputs: digests, and the ids made of them.
//! - Invariants: I-SGH-1 a page's digest is SHA-256 over the digest before it (or the seed, or nothing) and
//!   the page's tokens as little-endian `u32`; when one token of the page is wider, over `ff` and all of them
//!   as `u64`; I-SGH-2 storage and events have seeds of their own, so that a salted page's event id is not the
//!   start of its object key.
//! - Deliberately absent: LoRA namespaces, for which SGLang draws a random id at each load.
//! - Sources: SGLang 0.5.23 (`sglang/srt/mem_cache/utils.py`, `sglang/srt/disaggregation/kv_events.py`).

use sha2::{Digest as _, Sha256};

/// SHA-256 of a page and of all before it.
pub type PageDigest = [u8; 32];

/// A page's tokens.
#[derive(Debug, Clone, Copy)]
pub enum PageTokens<'a> {
    /// Token ids; stand-ins for media may exceed 32 bits.
    Ids(&'a [u64]),
    /// Each token with the one behind it, as under a drafter that looks one token ahead. One pair per
    /// position.
    Pairs(&'a [(u64, u64)]),
}

/// Digest of one page behind `prior` (a page's digest or a seed).
#[must_use]
pub fn page(prior: Option<&PageDigest>, tokens: PageTokens<'_>) -> PageDigest {
    let mut sha = Sha256::new();
    if let Some(prior) = prior {
        sha.update(prior);
    }
    let ids = || -> Box<dyn Iterator<Item = u64> + '_> {
        match tokens {
            PageTokens::Ids(ids) => Box::new(ids.iter().copied()),
            PageTokens::Pairs(pairs) => Box::new(pairs.iter().flat_map(|&(a, b)| [a, b])),
        }
    };
    let narrow: Option<Vec<u32>> = ids().map(|id| u32::try_from(id).ok()).collect();
    match narrow {
        Some(ids) => ids.iter().for_each(|id| sha.update(id.to_le_bytes())),
        None => {
            sha.update([0xff]);
            ids().for_each(|id| sha.update(id.to_le_bytes()));
        }
    }
    sha.finalize().into()
}

/// Digests of a prompt's full pages. With `bigram`, each position goes in with the token behind it, so a page
/// needs one token more.
#[must_use]
pub fn prompt(seed: Option<PageDigest>, tokens: &[u32], page_size: usize, bigram: bool) -> Vec<PageDigest> {
    let page_size = page_size.max(1);
    let positions = tokens.len().saturating_sub(usize::from(bigram));
    let mut prior = seed;
    (0..positions / page_size)
        .map_while(|at| {
            let mut sha = Sha256::new();
            if let Some(prior) = prior {
                sha.update(prior);
            }
            let start = at * page_size;
            for position in start..start + page_size {
                sha.update(tokens.get(position)?.to_le_bytes());
                if bigram {
                    sha.update(tokens.get(position + 1)?.to_le_bytes());
                }
            }
            let digest: PageDigest = sha.finalize().into();
            prior = Some(digest);
            Some(digest)
        })
        .collect()
}

/// The id in events: the first eight bytes. SGLang writes it as a signed number of the same bits.
#[must_use]
pub fn event_id(digest: &PageDigest) -> u64 {
    digest.iter().take(8).fold(0, |id, &byte| (id << 8) | u64::from(byte))
}

/// The seed of chains in storage (from about 0.5.20 on); `None` without a namespace.
#[must_use]
pub fn storage_seed(extra_key: Option<&str>, cache_salt: Option<&str>) -> Option<PageDigest> {
    namespace_seed(b"sglang-cache-namespace-v1", extra_key, cache_salt)
}

/// The seed of chains in events (from 0.5.18 on); `None` without a salt.
#[must_use]
pub fn event_seed(cache_salt: Option<&str>) -> Option<PageDigest> {
    cache_salt.map(|salt| {
        Sha256::new().chain_update(b"sglang-cache-salt-v1\0").chain_update(salt.as_bytes()).finalize().into()
    })
}

/// The id in events of `format: dynamo`, made of the ordinary one.
#[must_use]
pub fn dynamo_event_id(id: u64, extra_key: Option<&str>, cache_salt: Option<&str>) -> u64 {
    match namespace_seed(b"sglang-kv-event-namespace-v1", extra_key, cache_salt) {
        Some(seed) => {
            event_id(&Sha256::new().chain_update(seed).chain_update(id.to_be_bytes()).finalize().into())
        }
        None => id,
    }
}

fn namespace_seed(tag: &[u8], extra_key: Option<&str>, cache_salt: Option<&str>) -> Option<PageDigest> {
    if extra_key.is_none() && cache_salt.is_none() {
        return None;
    }
    let mut sha = Sha256::new_with_prefix(tag);
    for part in [extra_key, cache_salt] {
        match part {
            None => sha.update([0]),
            Some(text) => {
                sha.update([1]);
                sha.update((text.len() as u64).to_le_bytes());
                sha.update(text.as_bytes());
            }
        }
    }
    Some(sha.finalize().into())
}
