//! Admission: what a request takes from caches when its turn comes.
//!
//! - Purpose: look a prompt up, on the device and below it; read what lies below; join the batch.
//! - Inputs: the head of the queue, the shared store. Outputs: admissions, events of blocks that came back.
//! - Invariants:
//!   - I-EAD-1 a request reads from lower tiers at most once for each admission; it waits for that outside of
//!     the batch and holds its place in the queue, and requests behind it may overtake it meanwhile.
//!   - I-EAD-2 cached tokens are those that nobody computes: what was read from lower tiers counts.
//!   - I-EAD-3 when blocks are short, reads under way are given up before running requests are thrown out.
//! - Differences: SGLang reads layer by layer while the prefill is under way; here both flavours wait for it.
//!   vLLM never takes blocks from a read under way.

use tandem_types::Time;

use crate::chain::Chain;
use crate::engine::{EngineModel, Slot};
use crate::pass::{Admission, Loaded, Pass};
use crate::request::Request;
use crate::seq::Handed;
use crate::tiers::{Found, SharedStore};

impl EngineModel {
    /// Leading blocks of a waiting request that are cached, sparing its last token, which must be computed
    /// for there to be a next one; and how many of these nobody holds.
    pub(crate) fn lookup(&self, slot: Slot) -> (u32, u32) {
        let seq = &self.seqs[slot as usize];
        let limit = (seq.total() - 1) / self.config.block_size;
        let cached = self.pool.cached_prefix(&seq.chain, limit as usize);
        let held = self.pool.held_prefix(&seq.chain, cached);
        // Bounded by `limit`.
        (cached as u32, (cached - held) as u32)
    }

    /// Leading blocks of a prompt that lie here, at most all but the one with its last token: on the device; there
    /// or in host memory; there, in host memory or on disk. Each figure includes the one before. Copies on their
    /// way count as nothing, and nothing counts as used by being looked up.
    #[must_use]
    pub fn resident_prefix(&self, request: &Request) -> [u32; 3] {
        let Request { prompt, output, namespace, .. } = request;
        let (tokens, block_size) = (prompt.len(), self.config.block_size);
        if tokens == 0 || !self.config.prefix_caching {
            return [0; 3];
        }
        let chain = Chain::new(prompt, output, namespace, block_size, tokens);
        let limit = ((tokens - 1) / block_size) as usize;
        let device = self.pool.cached_prefix(&chain, limit) as u32;
        if !self.tiers.any() {
            return [device; 3];
        }
        let below = |from: u32, disk: bool| {
            let lies = |key: &u64| self.pool.contains(*key) || self.tiers.holds(*key, disk);
            let rest = (from as usize..limit).map_while(|i| chain.get(i)).take_while(lies).count();
            // Bounded by `limit`.
            from + rest as u32
        };
        let host = below(device, false);
        [device, host, below(host, true)]
    }

    /// Moves the head of the queue, of which `cached` leading blocks are cached, into the batch and
    /// schedules `tokens` tokens of it. The caller has checked that the blocks are there; yet block ids that
    /// are not prefix-chained, against their contract, mislead lookups, and then this returns `false` and
    /// changes nothing.
    pub(crate) fn admit(&mut self, slot: Slot, cached: u32, tokens: u32, pass: &mut Pass) -> bool {
        let seq = &mut self.seqs[slot as usize];
        let found = self.pool.hold_prefix(&seq.chain, cached as usize, &mut seq.blocks);
        // At most `cached`.
        seq.computed = found as u32 * self.config.block_size;
        let limit = (seq.total() - 1) / self.config.block_size;
        let handed = seq.handed == Handed::Fetched && found as u32 == limit;
        let tokens = if handed {
            // The part of a block behind the whole ones came too; what is left is the token that is decoded upon.
            seq.computed = seq.total() - 1;
            1
        } else {
            tokens
        };
        if self.lacking(slot, tokens) > self.pool.free() {
            self.drop_blocks(slot);
            return false;
        }
        let key = self.queue_key(slot);
        self.waiting.remove(&key);
        let seq = &mut self.seqs[slot as usize];
        self.counters.waiting_tokens -= u64::from(seq.total());
        seq.committed = found;
        seq.target = if handed { seq.computed } else { seq.total() };
        let loaded = loaded(seq.loaded.unwrap_or_default(), seq.computed, self.config.block_size);
        let on_device = seq.computed - loaded.tokens();
        let resumed = seq.first_cached.is_some();
        if !resumed {
            seq.first_cached = Some(seq.computed);
            self.counters.prefix_cache_queries += u64::from(seq.total());
            self.counters.prefix_cache_hits += u64::from(on_device);
            if self.tiers.any() {
                self.counters.lower_queries += u64::from(seq.total() - on_device);
                self.counters.host_hits += u64::from(loaded.host);
                self.counters.disk_hits += u64::from(loaded.disk);
                self.counters.shared_hits += u64::from(loaded.shared);
            }
        }
        self.counters.context_tokens += u64::from(seq.computed);
        pass.admitted.push(Admission { id: seq.id, cached_tokens: seq.computed, loaded, resumed });
        self.running.push(slot);
        self.grow(slot, tokens, pass);
        true
    }

    /// Begins to read what lower tiers hold of the head of the queue beyond its `cached` leading blocks;
    /// returns whether it now waits for that.
    pub(crate) fn start_load(
        &mut self,
        slot: Slot,
        cached: u32,
        store: &mut dyn SharedStore,
        pass: &mut Pass,
    ) -> bool {
        let seq = &mut self.seqs[slot as usize];
        let handed = std::mem::take(&mut seq.handed);
        if handed == Handed::Fetched {
            seq.handed = handed;
            return false;
        }
        if let Handed::There(gb_s) = handed {
            return self.start_fetch(slot, cached, gb_s, pass);
        }
        if !self.tiers.any() || seq.loaded.is_some() {
            return false;
        }
        let limit = ((seq.total() - 1) / self.config.block_size) as usize;
        let keys: Vec<u64> = (0..limit).map_while(|i| seq.chain.get(i)).collect();
        let found = self.tiers.find(keys.get(cached as usize..).unwrap_or_default(), store, pass.starts_at);
        let used = (cached + found.blocks()) as usize;
        self.tiers.touch(keys.get(..used).unwrap_or_default());
        seq.loaded = Some(Found::default());
        if found.blocks() == 0 {
            return false;
        }
        if !self.set_aside(slot, cached, found.blocks(), pass) {
            return false;
        }
        let ready_at = self.tiers.read(found, store, pass.starts_at);
        let seq = &mut self.seqs[slot as usize];
        (seq.loaded, seq.ready_at) = (Some(found), ready_at);
        true
    }

    /// Begins to fetch what is not cached of a prompt that another engine computed; returns whether the request now
    /// waits for that.
    fn start_fetch(&mut self, slot: Slot, cached: u32, gb_s: f64, pass: &mut Pass) -> bool {
        let seq = &mut self.seqs[slot as usize];
        // Blocks without a name could not be found again when they are there.
        let named = seq.chain.len() as u32;
        let missing = ((seq.total() - 1) / self.config.block_size).min(named) - cached.min(named);
        (seq.handed, seq.loaded) = (Handed::Fetched, Some(Found::default()));
        if missing == 0 || !self.set_aside(slot, cached, missing, pass) {
            return false;
        }
        let ready_at = self.tiers.fetched_at(missing, gb_s, pass.starts_at);
        self.seqs[slot as usize].ready_at = ready_at;
        true
    }

    /// Takes hold of `cached` blocks of the head of the queue and of `more` empty ones, and moves it to where it
    /// waits for these to be filled; or changes nothing and returns `false`.
    fn set_aside(&mut self, slot: Slot, cached: u32, more: u32, pass: &mut Pass) -> bool {
        let seq = &mut self.seqs[slot as usize];
        let held = self.pool.hold_prefix(&seq.chain, cached as usize, &mut seq.blocks);
        if held < cached as usize || !self.take_blocks(slot, more, pass) {
            self.drop_blocks(slot);
            return false;
        }
        self.seqs[slot as usize].committed = held;
        let key = self.queue_key(slot);
        self.waiting.remove(&key);
        self.loading.push(slot);
        true
    }

    /// Gives up the read that began last, for its blocks; returns whether there was one.
    pub(crate) fn cancel_load(&mut self) -> bool {
        let Some(slot) = self.loading.pop() else { return false };
        self.drop_blocks(slot);
        let seq = &mut self.seqs[slot as usize];
        (seq.loaded, seq.handed) = (Some(Found::default()), Handed::No);
        let key = self.queue_key(slot);
        self.waiting.insert(key);
        true
    }

    /// Takes in what has arrived, below the device and on it.
    pub(crate) fn settle(&mut self, store: &mut dyn SharedStore, pass: &mut Pass) {
        let now = pass.starts_at;
        self.tiers.settle(now, &self.pool, store, &mut pass.events);
        let mut at = 0;
        while let Some(&slot) = self.loading.get(at) {
            let seq = &self.seqs[slot as usize];
            if seq.ready_at > now {
                at += 1;
                continue;
            }
            self.loading.remove(at);
            // Blocks of one request: fewer than the pool has.
            let tokens = seq.blocks.len() as u32 * self.config.block_size;
            self.commit(slot, tokens, &mut pass.events);
            // They stay as cached blocks, which the request takes at its admission.
            self.drop_blocks(slot);
            let key = self.queue_key(slot);
            self.waiting.insert(key);
        }
        let promoted = std::mem::take(&mut self.fresh);
        self.tiers.came_back(&promoted, now);
    }

    /// Whether a read is over that [`settle`](Self::settle) has not taken in.
    pub(crate) fn load_arrived(&self, now: Time) -> bool {
        self.loading.iter().any(|slot| self.seqs[*slot as usize].ready_at <= now)
    }

    /// Begins to copy down what the device evicted.
    pub(crate) fn copy_evicted(&mut self, now: Time) {
        let mut keys = std::mem::take(&mut self.evicted);
        self.tiers.evicted(&keys, now, &self.pool);
        keys.clear();
        self.evicted = keys;
    }

    /// Begins to copy down what the pass cached.
    pub(crate) fn copy_fresh(&mut self, now: Time) {
        let mut keys = std::mem::take(&mut self.fresh);
        self.tiers.cached(&keys, now);
        keys.clear();
        self.fresh = keys;
        self.copy_evicted(now);
    }

    /// When an engine of which [`step`](Self::step) said `false` has news without being asked anything: a
    /// transfer between its tiers ends. `None` = never. Step it again then.
    #[must_use]
    pub fn wakes_at(&self) -> Option<Time> {
        let loads = self.loading.iter().map(|slot| self.seqs[*slot as usize].ready_at).min();
        let next = [loads, self.tiers.next_arrival()].into_iter().flatten().min()?;
        Some(next.max(self.busy_until))
    }
}

/// Tokens of what was read that an admission with `computed` cached tokens took over: all, unless blocks were
/// evicted in between, and then the last ones are missing.
fn loaded(found: Found, computed: u32, block_size: u32) -> Loaded {
    let mut left = computed;
    let mut part = |blocks: u32| {
        let tokens = (blocks * block_size).min(left);
        left -= tokens;
        tokens
    };
    Loaded { host: part(found.host), disk: part(found.disk), shared: part(found.shared) }
}
