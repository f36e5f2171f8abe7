//! vLLM's block hashes (`--prefix-caching-hash-algo`), computed outside of vLLM.
//!
//! - Purpose: name the objects that vLLM's store connector writes, and tell from an event's tokens whether
//!   a worker hashes as it says.
//! - Inputs: the algorithm, the seed, the parent's digest, a block's tokens and extra keys. Outputs: the
//!   digest; its last eight bytes are the id in events.
//! - Invariants: I-VLH-1 a digest is the hash of (parent digest, tokens, extra keys or nothing), serialised
//!   by pickle 5 or by canonical CBOR, byte for byte as CPython 3.11 and cbor2 do it; I-VLH-2 without
//!   [`VllmHasher::reproducible`]'s conditions there is no hasher, rather than one that is wrong.
//! - Deliberately absent: the seed of xxhash kinds without `PYTHONHASHSEED` and of all kinds before vLLM
//!   0.29: it is random there and hashes stay opaque. With pickle, two media items in one block whose ids
//!   are one Python object are written differently from what is done here (see `pickle.rs`).
//! - Sources: vLLM 0.11 to 0.33 (`vllm/v1/core/kv_cache_utils.py`, `vllm/utils/hashing.py`); vectors computed
//!   with CPython 3.11, cbor2 and xxhash.

use sha2::{Digest as _, Sha256};
use xxhash_rust::xxh3::xxh3_128;

use crate::hash::cbor::Cbor;
use crate::hash::pickle::Pickle;

/// What is hashed as the seed of chains from vLLM 0.29 on, when `PYTHONHASHSEED` is not set.
pub const DEFAULT_SEED: &str = "vllm-none-hash";

/// `--prefix-caching-hash-algo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VllmAlgorithm {
    /// SHA-256 of the pickle; the default.
    Sha256,
    /// SHA-256 of canonical CBOR.
    Sha256Cbor,
    /// XXH3-128 of the pickle.
    Xxhash,
    /// XXH3-128 of canonical CBOR.
    XxhashCbor,
}

impl VllmAlgorithm {
    /// Reads the option's value.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "sha256" => Self::Sha256,
            "sha256_cbor" => Self::Sha256Cbor,
            "xxhash" => Self::Xxhash,
            "xxhash_cbor" => Self::XxhashCbor,
            _ => return None,
        })
    }

    const fn pickles(self) -> bool {
        matches!(self, Self::Sha256 | Self::Xxhash)
    }

    fn digest(self, bytes: &[u8]) -> VllmDigest {
        match self {
            Self::Sha256 | Self::Sha256Cbor => VllmDigest { bytes: Sha256::digest(bytes).into(), len: 32 },
            Self::Xxhash | Self::XxhashCbor => {
                let mut digest = [0; 32];
                for (slot, byte) in digest.iter_mut().zip(xxh3_128(bytes).to_be_bytes()) {
                    *slot = byte;
                }
                VllmDigest { bytes: digest, len: 16 }
            }
        }
    }
}

/// A block's digest: 32 bytes of SHA-256 or 16 of XXH3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct VllmDigest {
    bytes: [u8; 32],
    len: u8,
}

impl VllmDigest {
    /// The bytes, as events have them with `VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0` and, in hex, object keys.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len.into()).unwrap_or(&self.bytes)
    }

    /// The id in events: the last eight bytes, big-endian.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.bytes().iter().fold(0, |id, &byte| (id << 8) | u64::from(byte))
    }
}

/// Something besides tokens that goes into a block's hash. The order in a block is that of the variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VllmKey<'a> {
    /// The adapter: in each block.
    Lora {
        /// Its name.
        name: &'a str,
        /// Its path, hashed from vLLM 0.31 on and never published.
        path: &'a str,
    },
    /// A media item that lies at least partly in the block.
    Media {
        /// Its content's id.
        id: &'a str,
        /// Tokens from the block's start to the item's; negative when it began before.
        offset: i64,
    },
    /// The request's salt: in the first block.
    Salt(&'a str),
    /// The digest of embeddings given in place of tokens.
    PromptEmbeds(&'a [u8]),
}

/// How extra keys go into the hash; it changed over the versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum VllmKeyForm {
    /// Before 0.21: bare texts, media by their ids alone.
    Ids,
    /// 0.21 to 0.30: bare texts, media as (id, offset).
    Untagged,
    /// From 0.31 on: each as a tuple with its kind.
    #[default]
    Tagged,
}

/// Hashes blocks as one vLLM does.
#[derive(Debug, Clone, Copy)]
pub struct VllmHasher {
    algorithm: VllmAlgorithm,
    form: VllmKeyForm,
    root: VllmDigest,
}

impl VllmHasher {
    /// A hasher for an engine started with `PYTHONHASHSEED` set to `seed`.
    #[must_use]
    pub fn seeded(algorithm: VllmAlgorithm, seed: &str, form: VllmKeyForm) -> Self {
        let bytes = if algorithm.pickles() {
            let mut out = Pickle::new(32 + seed.len());
            out.text(seed);
            out.finish()
        } else {
            let mut out = Cbor(Vec::new());
            out.text(seed);
            out.0
        };
        Self { algorithm, form, root: algorithm.digest(&bytes) }
    }

    /// A hasher for an engine of vLLM 0.29 or later without `PYTHONHASHSEED`; `None` for the algorithms whose
    /// seed is random then.
    #[must_use]
    pub fn reproducible(algorithm: VllmAlgorithm, form: VllmKeyForm) -> Option<Self> {
        match algorithm {
            VllmAlgorithm::Sha256 | VllmAlgorithm::Sha256Cbor => {
                Some(Self::seeded(algorithm, DEFAULT_SEED, form))
            }
            VllmAlgorithm::Xxhash | VllmAlgorithm::XxhashCbor => None,
        }
    }

    /// The parent of first blocks.
    #[must_use]
    pub const fn root(&self) -> VllmDigest {
        self.root
    }

    /// The digest of a block behind `parent` (or [`VllmHasher::root`]). `lookahead`: the tokens behind the
    /// block that go into its hash with some drafters; empty without.
    #[must_use]
    pub fn block(
        &self,
        parent: &VllmDigest,
        tokens: &[u32],
        keys: &[VllmKey<'_>],
        lookahead: &[u32],
    ) -> VllmDigest {
        let bytes = if self.algorithm.pickles() {
            let mut out = Pickle::new(96 + 5 * tokens.len());
            out.tuple(3, |out| {
                out.bytes(parent.bytes());
                out.tuple(tokens.len(), |out| tokens.iter().for_each(|&t| out.int(t.into())));
                if lookahead.is_empty() {
                    self.pickle_keys(out, keys);
                } else {
                    out.tuple(1 + lookahead.len(), |out| {
                        self.pickle_keys(out, keys);
                        lookahead.iter().for_each(|&t| out.int(t.into()));
                    });
                }
            });
            out.finish()
        } else {
            let mut out = Cbor(Vec::with_capacity(64 + 5 * tokens.len()));
            out.array(3);
            out.bytes(parent.bytes());
            out.array(tokens.len());
            tokens.iter().for_each(|&t| out.int(t.into()));
            if !lookahead.is_empty() {
                out.array(1 + lookahead.len());
            }
            self.cbor_keys(&mut out, keys);
            lookahead.iter().for_each(|&t| out.int(t.into()));
            out.0
        };
        self.algorithm.digest(&bytes)
    }

    /// Digests of a plain prompt's full blocks; `keys(block)` are the extra keys of each.
    pub fn prompt<'k>(
        &self,
        tokens: &[u32],
        block_size: usize,
        mut keys: impl FnMut(usize) -> &'k [VllmKey<'k>],
    ) -> Vec<VllmDigest> {
        let mut parent = self.root;
        tokens
            .chunks_exact(block_size.max(1))
            .enumerate()
            .map(|(block, tokens)| {
                parent = self.block(&parent, tokens, keys(block), &[]);
                parent
            })
            .collect()
    }

    fn pickle_keys(&self, out: &mut Pickle, keys: &[VllmKey<'_>]) {
        if keys.is_empty() {
            out.none();
            return;
        }
        let tagged = self.form == VllmKeyForm::Tagged;
        out.tuple(keys.len(), |out| {
            for key in keys {
                match *key {
                    VllmKey::Lora { name, path } if tagged => out.tuple(3, |out| {
                        out.text("lora");
                        out.text(name);
                        out.text(path);
                    }),
                    VllmKey::Media { id, offset } if tagged => out.tuple(3, |out| {
                        out.shared_text("mm");
                        out.text(id);
                        out.int(offset);
                    }),
                    VllmKey::Salt(salt) if tagged => out.tuple(2, |out| {
                        out.text("cache_salt");
                        out.text(salt);
                    }),
                    VllmKey::PromptEmbeds(digest) if tagged => out.tuple(2, |out| {
                        out.text("prompt_embeds");
                        out.bytes(digest);
                    }),
                    VllmKey::Media { id, offset } if self.form == VllmKeyForm::Untagged => {
                        out.tuple(2, |out| {
                            out.text(id);
                            out.int(offset);
                        });
                    }
                    VllmKey::Lora { name: text, .. }
                    | VllmKey::Media { id: text, .. }
                    | VllmKey::Salt(text) => {
                        out.text(text);
                    }
                    VllmKey::PromptEmbeds(digest) => out.bytes(digest),
                }
            }
        });
    }

    fn cbor_keys(&self, out: &mut Cbor, keys: &[VllmKey<'_>]) {
        if keys.is_empty() {
            out.none();
            return;
        }
        let tagged = self.form == VllmKeyForm::Tagged;
        out.array(keys.len());
        for key in keys {
            let (tag, len) = match (key, self.form) {
                (VllmKey::Media { .. }, VllmKeyForm::Untagged) => (None, 2),
                (_, VllmKeyForm::Ids | VllmKeyForm::Untagged) => (None, 0),
                (VllmKey::Lora { .. }, VllmKeyForm::Tagged) => (Some("lora"), 3),
                (VllmKey::Media { .. }, VllmKeyForm::Tagged) => (Some("mm"), 3),
                (VllmKey::Salt(_), VllmKeyForm::Tagged) => (Some("cache_salt"), 2),
                (VllmKey::PromptEmbeds(_), VllmKeyForm::Tagged) => (Some("prompt_embeds"), 2),
            };
            if len > 0 {
                out.array(len);
            }
            if let Some(tag) = tag {
                out.text(tag);
            }
            match *key {
                VllmKey::Lora { name, path } => {
                    out.text(name);
                    if tagged {
                        out.text(path);
                    }
                }
                VllmKey::Media { id, offset } => {
                    out.text(id);
                    if len > 0 {
                        out.int(offset);
                    }
                }
                VllmKey::Salt(salt) => out.text(salt),
                VllmKey::PromptEmbeds(digest) => out.bytes(digest),
            }
        }
    }
}
