//! The engine's face: queue in, passes out.
//!
//! - Purpose: hold waiting and running requests and the pool; run passes.
//! - Inputs: `submit`, `abort`, `step` with the caller's time. Outputs: [`Pass`], [`Load`].
//! - Invariants:
//!   - I-MDL-1 every submitted request ends exactly once: refused, finished or aborted.
//!   - I-MDL-2 while a request waits or runs, a step computes at least one token (no request needs more than
//!     the whole pool, and the running batch can always be thinned down to one).
//!   - I-MDL-3 the same calls give the same passes.
//!   - I-MDL-4 what a pass did is visible at its end: the caller holds it back until `ends_at`.
//! - Deliberately absent: clocks, threads, randomness; several ranks (one model is one rank); pipelining of
//!   scheduling and computing.

use std::collections::{BTreeSet, HashMap};
use std::hash::BuildHasherDefault;
use std::time::Duration;

use tandem_types::{KvEvent, Time};

use crate::chain::Chain;
use crate::config::{ConfigError, EngineConfig, Flavor, SchedulingPolicy};
use crate::events;
use crate::pass::{Finish, Load, Pass, TokenOutput};
use crate::pool::{KeyHasher, Pool};
use crate::request::{Namespace, Output, Prompt, Refusal, Request, RequestKey};
use crate::seq::{Handed, Seq};
use crate::sglang::NewTokenRatio;
use crate::tiers::{NoStore, SharedStore, Tiers};
use crate::timing::PassShape;

/// A request's place in the slab.
pub(crate) type Slot = u32;

/// Sorts waiting requests: urgency, arrival (both 0 unless scheduling is by priority), order, place.
type QueueKey = (i32, Time, i64, Slot);

/// What the pass under construction computes of one request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scheduled {
    pub(crate) slot: Slot,
    pub(crate) tokens: u32,
}

/// One modelled engine rank.
#[derive(Debug, Clone)]
pub struct EngineModel {
    pub(crate) config: EngineConfig,
    pub(crate) pool: Pool,
    /// Requests by slot; slots in `vacant` are dead and keep only their buffers.
    pub(crate) seqs: Vec<Seq>,
    vacant: Vec<Slot>,
    by_id: HashMap<RequestKey, Slot, BuildHasherDefault<KeyHasher>>,
    pub(crate) waiting: BTreeSet<QueueKey>,
    /// Requests whose blocks are under way from lower tiers, in the order in which that began.
    pub(crate) loading: Vec<Slot>,
    pub(crate) tiers: Tiers,
    /// Blocks that this pass cached, and evicted.
    pub(crate) fresh: Vec<u64>,
    pub(crate) evicted: Vec<u64>,
    /// The running batch, in order of admission.
    pub(crate) running: Vec<Slot>,
    pub(crate) scheduled: Vec<Scheduled>,
    pub(crate) ratio: NewTokenRatio,
    /// Order of the request submitted last.
    last_order: i64,
    /// Order of the request preempted last: below all others, so that it is resumed first.
    first_order: i64,
    pub(crate) busy_until: Time,
    pending: Vec<KvEvent>,
    /// The counters of [`EngineModel::load`]; its sizes are filled in there.
    pub(crate) counters: Load,
}

impl EngineModel {
    /// An idle engine with an empty cache.
    ///
    /// # Errors
    /// [`ConfigError`] when the set-up is unusable.
    pub fn new(config: EngineConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            pool: Pool::new(config.pool_blocks, config.flavor == Flavor::Sglang),
            tiers: Tiers::new(&config),
            config,
            seqs: Vec::new(),
            vacant: Vec::new(),
            by_id: HashMap::default(),
            waiting: BTreeSet::new(),
            loading: Vec::new(),
            fresh: Vec::new(),
            evicted: Vec::new(),
            running: Vec::new(),
            scheduled: Vec::new(),
            ratio: NewTokenRatio::default(),
            last_order: 0,
            first_order: 0,
            busy_until: Time::ZERO,
            pending: Vec::new(),
            counters: Load::default(),
        })
    }

    /// The set-up.
    #[must_use]
    pub const fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Puts a request into the queue; the next [`step`](Self::step) sees it.
    ///
    /// # Errors
    /// [`Refusal`] when it can never run.
    pub fn submit(&mut self, request: Request) -> Result<(), Refusal> {
        self.submit_from(request, Handed::No)
    }

    /// As [`submit`](Self::submit), for a request whose prompt another engine has computed: what of it is not cached
    /// here is fetched from there with `gb_s` GB/s (above 0; infinite = at once) before the request is admitted, and
    /// its first pass decodes. Transfers of several requests do not slow each other down.
    ///
    /// # Errors
    /// [`Refusal`] when it can never run.
    pub fn submit_computed(&mut self, request: Request, gb_s: f64) -> Result<(), Refusal> {
        self.submit_from(request, Handed::There(gb_s))
    }

    fn submit_from(&mut self, request: Request, handed: Handed) -> Result<(), Refusal> {
        let seq = self.accept(request).inspect_err(|_| self.counters.refused += 1)?;
        let seq = Seq { handed, ..seq };
        let id = seq.id;
        let slot = match self.vacant.pop() {
            Some(slot) => {
                let place = &mut self.seqs[slot as usize];
                let blocks = std::mem::take(&mut place.blocks);
                *place = Seq { blocks, ..seq };
                slot
            }
            None => {
                self.seqs.push(seq);
                // Fewer requests than fit in memory.
                (self.seqs.len() - 1) as Slot
            }
        };
        self.by_id.insert(id, slot);
        self.enqueue(slot);
        Ok(())
    }

    /// Checks a request and makes it ready to run.
    fn accept(&mut self, request: Request) -> Result<Seq, Refusal> {
        let Request { id, prompt, output, max_output_tokens, priority, namespace, session, arrival } =
            request;
        if self.by_id.contains_key(&id) {
            return Err(Refusal::DuplicateId);
        }
        let prompt_len = prompt.len();
        if prompt_len == 0 {
            return Err(Refusal::EmptyPrompt);
        }
        if output.is_empty() || max_output_tokens == 0 {
            return Err(Refusal::EmptyOutput);
        }
        let mut max_new = max_output_tokens;
        if let Some(max_model_len) = self.config.max_model_len {
            if prompt_len >= max_model_len {
                return Err(Refusal::ContextLength { tokens: prompt_len, max_model_len });
            }
            max_new = max_new.min(max_model_len - prompt_len);
        }
        let out_len = output.len().min(max_new);
        // The last generated token is never computed upon.
        let Some(footprint) = prompt_len.checked_add(out_len - 1) else {
            return Err(Refusal::ExceedsPool { needed: u32::MAX, total: self.config.pool_blocks });
        };
        let (needed, total) = (footprint.div_ceil(self.config.block_size), self.config.pool_blocks);
        if needed > total {
            return Err(Refusal::ExceedsPool { needed, total });
        }
        let budget = self.config.max_num_batched_tokens;
        if self.config.flavor == Flavor::Vllm && !self.config.chunked_prefill && footprint > budget {
            return Err(Refusal::ExceedsBudget { tokens: footprint, budget });
        }
        let chain = if self.config.prefix_caching {
            Chain::new(&prompt, &output, &namespace, self.config.block_size, footprint)
        } else {
            Chain::none()
        };
        self.last_order += 1;
        Ok(Seq {
            id,
            prompt,
            prompt_len,
            finish: if output.len() <= out_len { Finish::Stop } else { Finish::Length },
            output,
            out_len,
            max_new,
            priority,
            arrival,
            namespace,
            session,
            chain,
            order: self.last_order,
            blocks: Vec::new(),
            committed: 0,
            computed: 0,
            target: prompt_len,
            generated: 0,
            first_cached: None,
            loaded: None,
            handed: Handed::No,
            ready_at: Time::ZERO,
        })
    }

    /// Ends a request and frees its blocks (they stay cached). Returns whether it was there: `false` for
    /// one that is unknown or whose last token is in a pass already computed; the caller then drops what
    /// that pass still holds of it.
    pub fn abort(&mut self, id: RequestKey) -> bool {
        let Some(&slot) = self.by_id.get(&id) else { return false };
        let key = self.queue_key(slot);
        let loading = self.loading.iter().position(|loading| *loading == slot);
        if let Some(at) = loading {
            self.loading.remove(at);
        }
        if loading.is_some() || self.waiting.remove(&key) {
            self.counters.waiting_tokens -= u64::from(self.seqs[slot as usize].total());
        } else {
            self.running.retain(|running| *running != slot);
        }
        let mut pending = std::mem::take(&mut self.pending);
        self.retire(slot, &mut pending);
        self.pending = pending;
        self.counters.aborted += 1;
        true
    }

    /// Computes the next pass into `pass` (cleared first) and returns `true`, or returns `false` when
    /// there is nothing to compute. The pass starts at `now`, or at the end of the previous pass if that
    /// is later. The caller delivers its content at `pass.ends_at` and calls again then.
    pub fn step(&mut self, now: Time, pass: &mut Pass) -> bool {
        self.step_with(now, &mut NoStore, pass)
    }

    /// As [`step`](Self::step), with the store that this engine shares with others.
    pub fn step_with(&mut self, now: Time, store: &mut dyn SharedStore, pass: &mut Pass) -> bool {
        pass.clear();
        if !self.has_work() && self.tiers.next_arrival().is_none() {
            return false;
        }
        pass.starts_at = now.max(self.busy_until);
        self.scheduled.clear();
        loop {
            self.settle(store, pass);
            match self.config.flavor {
                Flavor::Vllm => self.schedule_vllm(store, pass),
                Flavor::Sglang => self.schedule_sglang(store, pass),
            }
            self.copy_evicted(pass.starts_at);
            // Reads that take no time are over at once.
            if !self.scheduled.is_empty() || !self.load_arrived(pass.starts_at) {
                break;
            }
        }
        if self.scheduled.is_empty() {
            debug_assert!(self.waiting.is_empty() || !self.loading.is_empty(), "work without progress");
            pass.ends_at = pass.starts_at;
            if pass.events.is_empty() {
                return false;
            }
        }
        pass.events.splice(..0, self.pending.drain(..));
        if self.scheduled.is_empty() {
            return true;
        }
        pass.ends_at = pass.starts_at + self.pass_time(pass);
        self.busy_until = pass.ends_at;
        self.conclude(pass);
        self.copy_fresh(pass.ends_at);
        self.counters.passes += 1;
        true
    }

    /// Whether requests wait or run. Unless all of them wait for lower tiers, a [`step`](Self::step) computes
    /// something.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !(self.running.is_empty() && self.waiting.is_empty() && self.loading.is_empty())
    }

    /// State and counters.
    #[must_use]
    pub fn load(&self) -> Load {
        let [(host_blocks, host_total_blocks), (disk_blocks, disk_total_blocks)] = self.tiers.sizes();
        Load {
            // Both are bounded by the number of slots.
            running: self.running.len() as u32,
            waiting: (self.waiting.len() + self.loading.len()) as u32,
            host_blocks,
            host_total_blocks,
            disk_blocks,
            disk_total_blocks,
            used_blocks: self.pool.used(),
            cached_blocks: self.pool.cached_free(),
            total_blocks: self.pool.total(),
            block_size: self.config.block_size,
            ..self.counters
        }
    }

    /// Prompt tokens that this request would find cached if it were admitted now: whole blocks, and at most
    /// all tokens but the last.
    #[must_use]
    pub fn cached_prefix(&self, request: &Request) -> u32 {
        let Request { prompt, output, namespace, .. } = request;
        let (tokens, block_size) = (prompt.len(), self.config.block_size);
        if tokens == 0 || !self.config.prefix_caching {
            return 0;
        }
        let chain = Chain::new(prompt, output, namespace, block_size, tokens);
        self.pool.cached_prefix(&chain, ((tokens - 1) / block_size) as usize) as u32 * block_size
    }

    /// What is cached of this request's prompt and answer is evicted before all else, as far as nobody uses it and nothing
    /// else goes on from it. Returns the number of blocks. Released engines have no such order; it stands for those that
    /// will.
    pub fn demote(&mut self, request: &Request) -> u32 {
        if !self.config.prefix_caching {
            return 0;
        }
        let Request { prompt, output, namespace, .. } = request;
        let (block_size, tokens) = (self.config.block_size, prompt.len().saturating_add(output.len()));
        let chain = Chain::new(prompt, output, namespace, block_size, tokens);
        self.pool.demote(&chain)
    }

    /// Forgets all cached blocks, in vLLM's way those of the device only. Returns `false`, and changes nothing, while requests hold blocks.
    /// The event goes out with the next pass (as vLLM does it), or at once through
    /// [`take_events`](Self::take_events) (as SGLang does).
    pub fn reset_prefix_cache(&mut self) -> bool {
        let cleared = self.pool.clear();
        if cleared {
            // What was about to be copied down is gone before its copy began.
            self.fresh.clear();
            self.evicted.clear();
            self.tiers.device_cleared(self.config.flavor == Flavor::Sglang);
        }
        if cleared && self.config.emit_events {
            self.pending.push(KvEvent::Cleared);
        }
        cleared
    }

    /// Takes the events that would go out with the next pass: a cleared cache, and what SGLang caches of
    /// an aborted request.
    pub fn take_events(&mut self) -> Vec<KvEvent> {
        std::mem::take(&mut self.pending)
    }

    pub(crate) fn queue_key(&self, slot: Slot) -> QueueKey {
        let seq = &self.seqs[slot as usize];
        match self.config.policy {
            SchedulingPolicy::Fcfs => (0, Time::ZERO, seq.order, slot),
            SchedulingPolicy::Priority => (seq.priority, seq.arrival, seq.order, slot),
        }
    }

    fn enqueue(&mut self, slot: Slot) {
        let key = self.queue_key(slot);
        self.waiting.insert(key);
        self.counters.waiting_tokens += u64::from(self.seqs[slot as usize].total());
    }

    /// The request to admit next.
    pub(crate) fn head(&self) -> Option<Slot> {
        self.waiting.first().map(|key| key.3)
    }

    /// Blocks that a running request lacks for `tokens` more tokens.
    pub(crate) fn lacking(&self, slot: Slot, tokens: u32) -> u32 {
        let seq = &self.seqs[slot as usize];
        (seq.computed + tokens).div_ceil(self.config.block_size) - seq.blocks.len() as u32
    }

    /// Takes the blocks for `tokens` more tokens of a running request and schedules these.
    pub(crate) fn grow(&mut self, slot: Slot, tokens: u32, pass: &mut Pass) {
        let lacking = self.lacking(slot, tokens);
        let taken = self.take_blocks(slot, lacking, pass);
        debug_assert!(taken, "scheduled without blocks");
        self.scheduled.push(Scheduled { slot, tokens });
    }

    /// Takes empty blocks for a request, if there are so many.
    pub(crate) fn take_blocks(&mut self, slot: Slot, count: u32, pass: &mut Pass) -> bool {
        let (emit, flavor, tiers) = (self.config.emit_events, self.config.flavor, self.tiers.any());
        self.pool.take(count, &mut self.seqs[slot as usize].blocks, |key| {
            if emit {
                events::removed(&mut pass.events, flavor, key);
            }
            if tiers {
                self.evicted.push(key);
            }
        })
    }

    /// Makes the full blocks among a request's first `tokens` tokens findable.
    pub(crate) fn commit(&mut self, slot: Slot, tokens: u32, events: &mut Vec<KvEvent>) {
        let EngineConfig { flavor, block_size, emit_events, .. } = self.config;
        let seq = &mut self.seqs[slot as usize];
        let full = ((tokens / block_size) as usize).min(seq.chain.len());
        // Start of the run of blocks that are news to the cache.
        let mut from = seq.committed;
        while seq.committed < full {
            let at = seq.committed;
            let (Some(key), block) = (seq.chain.get(at), seq.blocks[at]) else { break };
            seq.committed += 1;
            let known = if flavor == Flavor::Sglang { self.pool.deduplicate(block, key) } else { None };
            match known {
                None => {
                    if self.tiers.any() {
                        if !self.pool.contains(key) {
                            self.fresh.push(key);
                        }
                        self.tiers.describe(key, || events::text(flavor, seq, block_size, at));
                    }
                    let parent = at.checked_sub(1).and_then(|before| seq.blocks.get(before).copied());
                    self.pool.publish(block, parent, key);
                }
                Some(known) => {
                    seq.blocks[at] = known;
                    if emit_events && at > from {
                        events::stored(events, flavor, seq, block_size, from, at);
                    }
                    from = at + 1;
                }
            }
        }
        if emit_events && seq.committed > from {
            events::stored(events, flavor, seq, block_size, from, seq.committed);
        }
    }

    /// Throws a request (already out of `running`) back into the queue. It is computed again.
    pub(crate) fn preempt(&mut self, slot: Slot, pass: &mut Pass) {
        self.first_order -= 1;
        let order = self.first_order;
        self.counters.context_tokens -= u64::from(self.seqs[slot as usize].computed);
        self.drop_blocks(slot);
        let seq = &mut self.seqs[slot as usize];
        seq.order = order;
        seq.loaded = None;
        seq.handed = Handed::No;
        pass.preempted.push(seq.id);
        self.counters.preemptions += 1;
        self.enqueue(slot);
    }

    /// Frees a request's blocks tail first, so that the head of its prefix is evicted last.
    pub(crate) fn drop_blocks(&mut self, slot: Slot) {
        let seq = &mut self.seqs[slot as usize];
        while let Some(block) = seq.blocks.pop() {
            self.pool.release(block);
        }
        seq.computed = 0;
        seq.committed = 0;
    }

    /// Takes leave of a request that is in no queue any more.
    fn retire(&mut self, slot: Slot, events: &mut Vec<KvEvent>) {
        if self.config.flavor == Flavor::Sglang {
            let computed = self.seqs[slot as usize].computed;
            self.commit(slot, computed, events);
        }
        self.counters.context_tokens -= u64::from(self.seqs[slot as usize].computed);
        self.drop_blocks(slot);
        let seq = &mut self.seqs[slot as usize];
        self.by_id.remove(&seq.id);
        // Shared texts need not outlive the request.
        seq.chain = Chain::none();
        seq.prompt = Prompt::Blocks { ids: [].into(), tokens: 0 };
        seq.output = Output::Seeded { seed: 0, tokens: 0 };
        seq.namespace = Namespace::default();
        seq.session = None;
        self.vacant.push(slot);
    }

    /// Time that the scheduled work takes; also counts it in the pass.
    fn pass_time(&mut self, pass: &mut Pass) -> Duration {
        let mut shape =
            PassShape { pool_tokens: u64::from(self.config.pool_tokens()), ..PassShape::default() };
        for Scheduled { slot, tokens } in &self.scheduled {
            let seq = &self.seqs[*slot as usize];
            if seq.prefilling() {
                shape.add_prefill(*tokens, seq.computed);
                pass.prefill_tokens += tokens;
            } else {
                shape.add_decode(seq.computed + tokens);
                pass.decode_requests += 1;
            }
        }
        let nanos = self.config.timing.pass_ms(&shape) * 1e6 / self.config.speedup;
        // A float to integer cast saturates.
        Duration::from_nanos(nanos.round() as u64)
    }

    /// Applies what the pass computed: contexts grow, tokens come out, requests end.
    fn conclude(&mut self, pass: &mut Pass) {
        self.counters.prefill_tokens += u64::from(pass.prefill_tokens);
        let scheduled = std::mem::take(&mut self.scheduled);
        let mut ended = false;
        for Scheduled { slot, tokens } in &scheduled {
            let seq = &mut self.seqs[*slot as usize];
            let prefilled = seq.prefilling();
            seq.computed += tokens;
            self.counters.context_tokens += u64::from(*tokens);
            let complete = seq.computed == seq.total();
            if prefilled && self.config.flavor == Flavor::Sglang {
                let computed = seq.computed;
                self.commit(*slot, computed, &mut pass.events);
            }
            if complete && self.generate(*slot, pass) {
                self.retire(*slot, &mut pass.events);
                ended = true;
            }
        }
        self.scheduled = scheduled;
        if ended {
            let (seqs, by_id) = (&self.seqs, &self.by_id);
            self.running.retain(|slot| by_id.get(&seqs[*slot as usize].id) == Some(slot));
        }
    }

    /// Generates a request's next token; returns whether it was the last one.
    fn generate(&mut self, slot: Slot, pass: &mut Pass) -> bool {
        let seq = &mut self.seqs[slot as usize];
        let index = seq.generated;
        seq.generated += 1;
        let cached_tokens = seq.first_cached.unwrap_or(0);
        let finish = (seq.generated == seq.out_len).then_some(seq.finish);
        let token = seq.output.token(index).unwrap_or(0);
        pass.outputs.push(TokenOutput { id: seq.id, index, token, cached_tokens, finish });
        let counters = &mut self.counters;
        counters.generation_tokens += 1;
        if index == 0 {
            counters.prompt_tokens += u64::from(seq.prompt_len);
            counters.cached_prompt_tokens += u64::from(cached_tokens);
        }
        match finish {
            Some(Finish::Stop) => counters.finished_stop += 1,
            Some(Finish::Length) => counters.finished_length += 1,
            None => {}
        }
        finish.is_some()
    }
}
