//! Encoding of event batches in the layout of current engines.

use rmp::encode as mp;
use tandem_types::{BlockRemoved, BlockStored, ExtraKey, GroupKind, KvBatch, KvEvent, Tier};

/// Whose layout is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// vLLM 0.33: unsigned hashes, cache groups.
    Vllm,
    /// SGLang 0.5.23: signed hashes; groups, media and owners are not written.
    Sglang,
}

/// Encodes one batch. Fields that the engine leaves out when they are unset are left out, and so is what the
/// layout has no field for.
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

const fn kind(kind: GroupKind) -> &'static str {
    match kind {
        GroupKind::Full => "full_attention",
        GroupKind::Window => "sliding_window",
        GroupKind::State => "mamba",
        GroupKind::Other => "unknown",
    }
}

fn count(optional: &[bool]) -> u32 {
    optional.iter().map(|&on| u32::from(on)).sum()
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
        if layout == Layout::Sglang && !stored.lookahead.is_empty() {
            self.pairs(stored);
        } else {
            self.array(stored.tokens.len());
            stored.tokens.iter().for_each(|&token| self.uint(token.into()));
        }
        self.key_uint("block_size", stored.block_size.into());
        self.key_nil("lora_id");
        self.key_text("medium", if stored.echo { "cpu" } else { medium(stored.tier, layout).0 });
    }

    fn stored_vllm(&mut self, stored: &BlockStored) {
        // The block pool always says extra keys and kind; connectors, which own the lower tiers, say the kind
        // only where the group does not tell it.
        let device = stored.tier == Tier::Device;
        let implied = if stored.group == 0 { GroupKind::Full } else { GroupKind::Other };
        let kinded = device || stored.kind != implied;
        let salt = stored.salt.as_ref().filter(|_| stored.parent.is_none());
        let keys = device || !stored.extra_keys.is_empty() || salt.is_some() || stored.lora.is_some();
        let (_, locality) = medium(stored.tier, Layout::Vllm);
        let optional = [
            keys,
            kinded,
            stored.window.is_some(),
            locality.is_some(),
            stored.owner.is_some(),
            stored.session.is_some(),
            !stored.lookahead.is_empty(),
        ];
        self.map(9 + count(&optional));
        self.stored_head(stored, Layout::Vllm);
        match &stored.lora {
            Some(lora) => self.key_text("lora_name", lora),
            None => self.key_nil("lora_name"),
        }
        if keys {
            self.extra_keys(stored, salt.map(|salt| salt.as_ref()));
        }
        self.key_uint("group_idx", stored.group.into());
        if kinded {
            self.key_text("kv_cache_spec_kind", kind(stored.kind));
        }
        if let Some(window) = stored.window {
            self.key_uint("kv_cache_spec_sliding_window", window.into());
        }
        self.optional_text("locality", locality);
        self.optional_text("ownership", stored.owner.as_deref());
        self.optional_text("session_id", stored.session.as_deref());
        if !stored.lookahead.is_empty() {
            self.text("lookahead_token_ids");
            self.array(stored.lookahead.len());
            for tokens in &stored.lookahead {
                self.array(tokens.len());
                tokens.iter().for_each(|&token| self.uint(token.into()));
            }
        }
    }

    /// vLLM's keys of a block: the adapter, media, and in a prompt's first block the salt.
    fn extra_keys(&mut self, stored: &BlockStored, salt: Option<&str>) {
        self.text("extra_keys");
        self.array(stored.block_hashes.len());
        for block in 0..stored.block_hashes.len() {
            let own = stored.extra_keys.get(block).map_or(&[][..], Vec::as_slice);
            let salt = salt.filter(|_| block == 0);
            let len = usize::from(stored.lora.is_some()) + own.len() + usize::from(salt.is_some());
            if len == 0 {
                self.nil();
                continue;
            }
            self.array(len);
            if let Some(lora) = &stored.lora {
                self.text(lora);
            }
            own.iter().for_each(|key| self.extra_key(key));
            if let Some(salt) = salt {
                self.text(salt);
            }
        }
    }

    fn extra_key(&mut self, key: &ExtraKey) {
        match key {
            ExtraKey::Media { id, offset } => {
                self.array(2);
                self.text(id);
                let _ = mp::write_sint(&mut self.0, *offset);
            }
            ExtraKey::Text(text) => self.text(text),
            ExtraKey::Bytes(bytes) => {
                let _ = mp::write_bin(&mut self.0, bytes);
            }
        }
    }

    fn stored_sglang(&mut self, stored: &BlockStored) {
        let optional = [stored.salt.is_some(), stored.session.is_some(), stored.lora.is_some()];
        self.map(7 + count(&optional));
        self.stored_head(stored, Layout::Sglang);
        self.optional_text("cache_salt", stored.salt.as_deref());
        self.optional_text("session_id", stored.session.as_deref());
        self.optional_text("lora_name", stored.lora.as_deref());
    }

    /// SGLang's bigram pages: each token with the one behind it.
    fn pairs(&mut self, stored: &BlockStored) {
        self.array(stored.tokens.len());
        let size = stored.block_size.max(1) as usize;
        for (at, &token) in stored.tokens.iter().enumerate() {
            let page = stored.lookahead.get(at / size).and_then(|tokens| tokens.first());
            let next = if (at + 1) % size == 0 { page } else { stored.tokens.get(at + 1) };
            self.array(2);
            self.uint(token.into());
            self.uint(next.copied().unwrap_or_default().into());
        }
    }

    fn removed(&mut self, removed: &BlockRemoved, layout: Layout) {
        let (medium, locality) = medium(removed.tier, layout);
        let optional = [locality.is_some(), removed.owner.is_some(), !removed.remaining.is_empty()];
        match layout {
            Layout::Vllm => self.map(4 + count(&optional)),
            Layout::Sglang => self.map(3),
        }
        self.key_text("type", "BlockRemoved");
        self.hashes(&removed.block_hashes, layout);
        self.key_text("medium", medium);
        if layout == Layout::Sglang {
            return;
        }
        self.key_uint("group_idx", removed.group.into());
        self.optional_text("locality", locality);
        self.optional_text("ownership", removed.owner.as_deref());
        if !removed.remaining.is_empty() {
            self.text("remaining_copy_counts");
            self.array(removed.remaining.len());
            removed.remaining.iter().for_each(|&copies| self.uint(copies.into()));
        }
    }
}
