//! SGLang's way to fill a pass.
//!
//! - Purpose: choose what the next pass computes.
//! - Rules: a pass either prefills or decodes. It prefills whenever a prompt is under way or the head of the
//!   queue can be admitted, within the token budget; the last prompt may be cut at a page boundary and then
//!   goes on in the next pass. Admission reserves pages for the answers of the batch: what their clients
//!   still allow (at most 4,096 tokens each) times a ratio that sinks while decoding goes well. When decoding
//!   lacks pages all the same, requests are retracted, those with the fewest generated tokens first, and the
//!   ratio is raised to what the batch has shown. Prompt pages become findable at the end of the pass,
//!   generated ones when the request ends; a page of which there is a cached copy is exchanged for that.
//! - Invariants: I-SGL-1 no pass mixes prefill and decode; I-SGL-2 no prefill exceeds the token budget;
//!   I-SGL-3 no batch exceeds `max_num_seqs`; I-SGL-4 a key has one copy.
//! - Deliberately absent: longest-prefix-match ordering (the queue is FCFS or by priority), mixed chunks,
//!   whole-node eviction and eviction by access time of the radix tree (see [`pool`](crate::pool)), overlap
//!   scheduling, the separate `max_prefill_tokens`.
//! - Source: SGLang 0.5.23's scheduler with its defaults (`schedule_conservativeness` 1.0).

use crate::engine::{EngineModel, Slot};
use crate::pass::Pass;
use crate::tiers::SharedStore;

/// Part of the allowed answer lengths that admission reserves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewTokenRatio(f64);

const RATIO_INITIAL: f64 = 0.7;
const RATIO_LEAST: f64 = RATIO_INITIAL * 0.14;
/// Decode passes from the initial ratio to the least.
const RATIO_DECAY_PASSES: f64 = 600.0;
/// Tokens by which each request is expected to grow after a retraction.
const RETRACT_DECODE_STEPS: u32 = 20;
/// Longest answer that admission reserves for.
const CLIP_NEW_TOKENS: u32 = 4_096;

impl Default for NewTokenRatio {
    fn default() -> Self {
        Self(RATIO_INITIAL)
    }
}

impl NewTokenRatio {
    fn decay(&mut self) {
        self.0 = (self.0 - (RATIO_INITIAL - RATIO_LEAST) / RATIO_DECAY_PASSES).max(RATIO_LEAST);
    }
}

impl EngineModel {
    pub(crate) fn schedule_sglang(&mut self, store: &mut dyn SharedStore, pass: &mut Pass) {
        if self.running.is_empty() {
            self.ratio = NewTokenRatio::default();
        }
        self.schedule_prefill(store, pass);
        if self.scheduled.is_empty() {
            self.schedule_decode(pass);
        }
    }

    fn schedule_prefill(&mut self, store: &mut dyn SharedStore, pass: &mut Pass) {
        let mut left = self.config.max_num_batched_tokens;
        // At most one prompt is under way, and it was admitted last.
        if let Some(&slot) = self.running.last().filter(|slot| self.seqs[**slot as usize].prefilling()) {
            let tokens = self.cut(self.seqs[slot as usize].remaining(), left);
            self.make_room(slot, tokens, pass);
            self.grow(slot, tokens, pass);
            left -= tokens;
            if self.seqs[slot as usize].remaining() > tokens {
                return;
            }
        }
        while left > 0 && self.running.len() < self.config.max_num_seqs as usize {
            let Some(slot) = self.head() else { break };
            let (cached, idle) = self.lookup(slot);
            if !self.fits(slot, cached, idle) {
                break;
            }
            if self.start_load(slot, cached, store, pass) {
                continue;
            }
            let missing = self.seqs[slot as usize].total() - cached * self.config.block_size;
            let tokens = self.cut(missing, left);
            if tokens == 0 || !self.admit(slot, cached, tokens, pass) {
                break;
            }
            left -= tokens;
            if tokens < missing {
                break;
            }
        }
    }

    /// Tokens of a prompt of which `missing` tokens are to be computed that go into what is `left` of the
    /// budget: all, or whole pages, or, so that there is progress, what an empty pass can take.
    fn cut(&self, missing: u32, left: u32) -> u32 {
        if missing <= left {
            return missing;
        }
        let whole = left - left % self.config.block_size;
        if whole == 0 && self.scheduled.is_empty() { left } else { whole }
    }

    /// Whether the pool has room for the head of the queue and for the growth of all that run. An empty
    /// batch takes any request: it fits in the pool.
    fn fits(&self, slot: Slot, cached: u32, idle: u32) -> bool {
        if self.running.is_empty() {
            return true;
        }
        let (seq, block_size) = (&self.seqs[slot as usize], self.config.block_size);
        let growth = self.growth(slot);
        let own = u64::from(seq.total().div_ceil(block_size) - cached + idle)
            + u64::from(growth.div_ceil(block_size));
        let reserved: u64 = self.running.iter().map(|slot| u64::from(self.growth(*slot))).sum();
        // Rounded up; a float to integer cast saturates.
        let reserved = (reserved as f64 * self.ratio.0 / f64::from(block_size)).ceil() as u64;
        own + reserved <= u64::from(self.pool.free())
    }

    /// Tokens that the client may still ask of a request, as far as admission reserves for them.
    fn growth(&self, slot: Slot) -> u32 {
        let seq = &self.seqs[slot as usize];
        seq.max_new.saturating_sub(seq.generated).min(CLIP_NEW_TOKENS)
    }

    fn schedule_decode(&mut self, pass: &mut Pass) {
        let lacking = |model: &Self| model.running.iter().map(|slot| model.lacking(*slot, 1)).sum::<u32>();
        let mut retracted = false;
        while lacking(self) > self.pool.free() {
            if self.cancel_load() {
                continue;
            }
            if self.running.len() < 2 {
                break;
            }
            self.retract(None, pass);
            retracted = true;
        }
        if retracted {
            let (mut grown, mut allowed) = (0_u64, 1_u64);
            for slot in &self.running {
                let seq = &self.seqs[*slot as usize];
                grown += u64::from(seq.generated + RETRACT_DECODE_STEPS);
                allowed += u64::from(seq.max_new);
            }
            self.ratio = NewTokenRatio((grown as f64 / allowed as f64).min(1.0));
        } else {
            self.ratio.decay();
        }
        for at in 0..self.running.len() {
            self.grow(self.running[at], 1, pass);
        }
    }

    /// Retracts others until `slot` can grow by `tokens`.
    fn make_room(&mut self, slot: Slot, tokens: u32, pass: &mut Pass) {
        while self.lacking(slot, tokens) > self.pool.free() {
            if self.cancel_load() {
                continue;
            }
            if self.running.len() < 2 {
                break;
            }
            self.retract(Some(slot), pass);
        }
    }

    /// Retracts the running request with the fewest generated tokens, among equals the one with the longest
    /// prompt, sparing `keep`.
    fn retract(&mut self, keep: Option<Slot>, pass: &mut Pass) {
        let victim = (0..self.running.len()).filter(|at| Some(self.running[*at]) != keep).min_by_key(|at| {
            let seq = &self.seqs[self.running[*at] as usize];
            (seq.generated, std::cmp::Reverse(seq.prompt_len))
        });
        if let Some(victim) = victim {
            let slot = self.running.remove(victim);
            self.preempt(slot, pass);
        }
    }
}
