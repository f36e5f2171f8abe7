//! Object keys of vLLM's store connector.
//!
//! - Purpose: tell from a key which block of which model and rank it holds, and name the objects of a block.
//! - Invariants: I-MKV-1 a parsed key is written again to the same text; I-MKV-2 the last eight bytes of the
//!   digest are the block's id in vLLM's own events.
//! - Sources: vLLM 0.32 and 0.33 (`MooncakeStoreConnector`), captured keys.
//!
//! `[cache_prefix@]{model}{namespace}@tp_rank:{t}@pcp{p}@dcp{d}@pp_rank:{r}@group:{g}@{digest}`

use std::fmt;

use crate::mooncake::push_hex;

/// A key in its parts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VllmKey {
    /// Cache prefix, model's directory and namespace, which run together.
    pub head: String,
    /// Tensor-parallel rank.
    pub tp_rank: u32,
    /// Prefill-context-parallel rank.
    pub pcp_rank: u32,
    /// Decode-context-parallel rank.
    pub dcp_rank: u32,
    /// Pipeline stage.
    pub pp_rank: u32,
    /// Cache group.
    pub group: u32,
    /// The block's digest: 32 bytes of SHA-256 or 16 of XXH3.
    pub digest: Vec<u8>,
}

impl VllmKey {
    /// Reads a key; `None` = not of this form.
    #[must_use]
    pub fn parse(key: &str) -> Option<Self> {
        let mut parts = key.rsplitn(7, '@');
        let digest = hex(parts.next()?)?;
        let mut rank = |name: &str| number(parts.next()?.strip_prefix(name)?);
        let group = rank("group:")?;
        let pp_rank = rank("pp_rank:")?;
        let dcp_rank = rank("dcp")?;
        let pcp_rank = rank("pcp")?;
        let tp_rank = rank("tp_rank:")?;
        let head = parts.next().filter(|head| !head.is_empty())?.to_owned();
        Some(Self { head, tp_rank, pcp_rank, dcp_rank, pp_rank, group, digest })
    }

    /// The block's id in vLLM's own events: the digest's last eight bytes.
    #[must_use]
    pub fn block_id(&self) -> u64 {
        self.digest.iter().fold(0, |id, &byte| (id << 8) | u64::from(byte))
    }
}

impl fmt::Display for VllmKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut digest = String::with_capacity(2 * self.digest.len());
        push_hex(&mut digest, &self.digest);
        let Self { head, tp_rank, pcp_rank, dcp_rank, pp_rank, group, .. } = self;
        write!(
            f,
            "{head}@tp_rank:{tp_rank}@pcp{pcp_rank}@dcp{dcp_rank}@pp_rank:{pp_rank}@group:{group}@{digest}"
        )
    }
}

/// How a worker's blocks are spread over objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VllmLayout {
    /// See [`VllmKey::head`].
    pub head: String,
    /// Tensor-parallel ranks that store their own share.
    pub tp_size: u32,
    /// Prefill-context-parallel size.
    pub pcp_size: u32,
    /// Decode-context-parallel size.
    pub dcp_size: u32,
    /// Pipeline stages.
    pub pp_size: u32,
    /// Cache groups.
    pub groups: u32,
}

impl VllmLayout {
    /// One model on one GPU.
    #[must_use]
    pub fn single(head: &str) -> Self {
        Self { head: head.to_owned(), tp_size: 1, pcp_size: 1, dcp_size: 1, pp_size: 1, groups: 1 }
    }

    /// Keys of all objects that together hold the block.
    pub fn keys<'a>(&'a self, digest: &'a [u8]) -> impl Iterator<Item = VllmKey> + 'a {
        let Self { tp_size, pcp_size, dcp_size, pp_size, groups, .. } = *self;
        let product = [pcp_size, dcp_size, pp_size, groups]
            .iter()
            .fold(u64::from(tp_size), |n, &size| n.saturating_mul(size.into()));
        (0..product).map(move |index| {
            let mut rest = index;
            let mut rank = |size: u32| {
                let rank = rest % u64::from(size.max(1));
                rest /= u64::from(size.max(1));
                u32::try_from(rank).unwrap_or_default()
            };
            VllmKey {
                tp_rank: rank(tp_size),
                pcp_rank: rank(pcp_size),
                dcp_rank: rank(dcp_size),
                pp_rank: rank(pp_size),
                group: rank(groups),
                head: self.head.clone(),
                digest: digest.to_vec(),
            }
        })
    }

    /// The group under which the block's objects are evicted together.
    #[must_use]
    pub fn group_id(&self, digest: &[u8]) -> String {
        let mut id = format!("vllm-mooncake-store:{}@", self.head);
        push_hex(&mut id, digest);
        id
    }
}

/// Decimal without sign or leading zeros, so that writing it again gives the same text.
pub(crate) fn number(text: &str) -> Option<u32> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text.len() == 1 || !text.starts_with('0'));
    if plain { text.parse().ok() } else { None }
}

/// A digest of either algorithm.
fn hex(text: &str) -> Option<Vec<u8>> {
    match text.len() {
        64 => super::digest(text).map(|digest| digest.to_vec()),
        32 => super::digest(&format!("{text}{text}")).and_then(|twice| twice.get(..16).map(<[u8]>::to_vec)),
        _ => None,
    }
}
