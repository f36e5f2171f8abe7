//! Encoding of event batches in the layout of current engines.

use rmp::encode as mp;
use tandem_types::{BlockRemoved, BlockStored, KvBatch, KvEvent, Tier};

/// Whose layout is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// vLLM 0.32: unsigned hashes, one full-attention group.
    Vllm,
    /// SGLang 0.5.23: signed hashes, no group.
    Sglang,
}

/// Encodes one batch. Fields that the engine leaves out when they are unset are left out.
#[must_use]
pub fn encode(batch: &KvBatch, layout: Layout) -> Vec<u8> {
    let mut out = Out(Vec::with_capacity(256));
    out.array(3);
    out.float(batch.timestamp);
    out.array(batch.events.len());
    for event in &batch.events {
        match (event, layout) {
            (KvEvent::Cleared, _) => {
                out.map(1);
                out.key_text("type", "AllBlocksCleared");
            }
            (KvEvent::Removed(removed), _) => out.removed(removed, layout),
            (KvEvent::Stored(stored), Layout::Vllm) => out.stored_vllm(stored),
            (KvEvent::Stored(stored), Layout::Sglang) => out.stored_sglang(stored),
        }
    }
    match batch.rank {
        Some(rank) => out.uint(rank.into()),
        None => out.nil(),
    }
    out.0
}

/// The medium and, for vLLM, the locality that tells a shared store from a local disk.
const fn medium(tier: Tier, layout: Layout) -> (&'static str, Option<&'static str>) {
    match (tier, layout) {
        (Tier::Device, _) => ("GPU", None),
        (Tier::Host, Layout::Vllm) => ("CPU", None),
        (Tier::Disk, Layout::Vllm) => ("STORAGE", None),
        (Tier::Shared, Layout::Vllm) => ("STORAGE", Some("REMOTE")),
        (Tier::Host, Layout::Sglang) => ("CPU_PINNED", None),
        (Tier::Disk, Layout::Sglang) => ("DISK", None),
        (Tier::Shared, Layout::Sglang) => ("EXTERNAL", None),
    }
}

/// Writing to a vector cannot fail, so the results of `rmp` carry no news.
struct Out(Vec<u8>);

impl Out {
    fn array(&mut self, len: usize) {
        let _ = mp::write_array_len(&mut self.0, u32::try_from(len).unwrap_or(u32::MAX));
    }

    fn map(&mut self, len: u32) {
        let _ = mp::write_map_len(&mut self.0, len);
    }

    fn nil(&mut self) {
        let _ = mp::write_nil(&mut self.0);
    }

    fn float(&mut self, value: f64) {
        let _ = mp::write_f64(&mut self.0, value);
    }

    fn uint(&mut self, value: u64) {
        let _ = mp::write_uint(&mut self.0, value);
    }

    fn text(&mut self, text: &str) {
        let _ = mp::write_str(&mut self.0, text);
    }

    fn key_text(&mut self, key: &str, text: &str) {
        self.text(key);
        self.text(text);
    }

    fn key_uint(&mut self, key: &str, value: u64) {
        self.text(key);
        self.uint(value);
    }

    fn key_nil(&mut self, key: &str) {
        self.text(key);
        self.nil();
    }

    fn optional_text(&mut self, key: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.key_text(key, text);
        }
    }

    fn hash(&mut self, hash: u64, layout: Layout) {
        match layout {
            Layout::Vllm => self.uint(hash),
            Layout::Sglang => {
                let _ = mp::write_sint(&mut self.0, hash.cast_signed());
            }
        }
    }

    fn hashes(&mut self, hashes: &[u64], layout: Layout) {
        self.text("block_hashes");
        self.array(hashes.len());
        for &hash in hashes {
            self.hash(hash, layout);
        }
    }

    /// The fields from `type` to `medium`, which both engines write alike.
    fn stored_head(&mut self, stored: &BlockStored, layout: Layout) {
        self.key_text("type", "BlockStored");
        self.hashes(&stored.block_hashes, layout);
        self.text("parent_block_hash");
        match stored.parent {
            Some(parent) => self.hash(parent, layout),
            None => self.nil(),
        }
        self.text("token_ids");
        self.array(stored.tokens.len());
        for &token in &stored.tokens {
            self.uint(token.into());
        }
        self.key_uint("block_size", stored.block_size.into());
        self.key_nil("lora_id");
        self.key_text("medium", medium(stored.tier, layout).0);
    }

    fn stored_vllm(&mut self, stored: &BlockStored) {
        // The block pool always says extra keys and kind; connectors, which own the lower tiers, do not.
        let device = stored.tier == Tier::Device;
        let keys = device || !stored.extra_keys.is_empty();
        let (_, locality) = medium(stored.tier, Layout::Vllm);
        let optional =
            [keys, device, locality.is_some(), stored.session.is_some()].iter().filter(|on| **on).count();
        self.map(9 + u32::try_from(optional).unwrap_or_default());
        self.stored_head(stored, Layout::Vllm);
        match &stored.lora {
            Some(lora) => self.key_text("lora_name", lora),
            None => self.key_nil("lora_name"),
        }
        if keys {
            self.extra_keys(stored);
        }
        self.key_uint("group_idx", 0);
        if device {
            self.key_text("kv_cache_spec_kind", "full_attention");
        }
        self.optional_text("locality", locality);
        self.optional_text("session_id", stored.session.as_deref());
    }

    fn extra_keys(&mut self, stored: &BlockStored) {
        self.text("extra_keys");
        let blocks = stored.block_hashes.len().max(stored.extra_keys.len());
        self.array(blocks);
        for block in 0..blocks {
            match stored.extra_keys.get(block).and_then(Option::as_ref) {
                Some(keys) => {
                    self.array(keys.len());
                    for key in keys {
                        self.text(key);
                    }
                }
                None => self.nil(),
            }
        }
    }

    fn stored_sglang(&mut self, stored: &BlockStored) {
        // SGLang has one salt per event where vLLM has keys per block.
        let salt = stored.extra_keys.first().and_then(Option::as_ref).and_then(|keys| keys.first());
        let optional = [salt.is_some(), stored.session.is_some(), stored.lora.is_some()];
        self.map(7 + u32::try_from(optional.iter().filter(|on| **on).count()).unwrap_or_default());
        self.stored_head(stored, Layout::Sglang);
        self.optional_text("cache_salt", salt.map(String::as_str));
        self.optional_text("session_id", stored.session.as_deref());
        self.optional_text("lora_name", stored.lora.as_deref());
    }

    fn removed(&mut self, removed: &BlockRemoved, layout: Layout) {
        let (medium, locality) = medium(removed.tier, layout);
        let fields = match layout {
            Layout::Vllm => 4 + u32::from(locality.is_some()),
            Layout::Sglang => 3,
        };
        self.map(fields);
        self.key_text("type", "BlockRemoved");
        self.hashes(&removed.block_hashes, layout);
        self.key_text("medium", medium);
        if layout == Layout::Vllm {
            self.key_uint("group_idx", 0);
        }
        self.optional_text("locality", locality);
    }
}
