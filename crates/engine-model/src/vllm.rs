//! vLLM's way to fill a pass.
//!
//! - Purpose: choose what the next pass computes.
//! - Rules: running requests first, in order of admission, each its next chunk or one decoded token, within
//!   the token budget; for want of blocks others are preempted; then, if nobody was preempted, waiting
//!   requests are admitted. Full blocks become findable when they are scheduled, so requests admitted in
//!   the same pass can already share them.
//! - Invariants: I-VLL-1 no pass computes more than `max_num_batched_tokens`; I-VLL-2 no batch exceeds
//!   `max_num_seqs`; I-VLL-3 the queue is never overtaken: the first request that cannot be admitted stops
//!   admission.
//! - Deliberately absent: limits on partial prefills, the long-prefill threshold, watermarks, speculative
//!   tokens, encoder budgets, the attention-DP prefill cadence.
//! - Differences: when the request whose turn it is has to preempt itself, vLLM stops scheduling the rest
//!   of the batch for this pass; here the rest goes on (it matters only under priorities and FIFO).
//! - Source: vLLM 0.32's V1 scheduler.

use crate::config::{PreemptionOrder, SchedulingPolicy};
use crate::engine::{EngineModel, Slot};
use crate::pass::Pass;
use crate::tiers::SharedStore;

impl EngineModel {
    pub(crate) fn schedule_vllm(&mut self, store: &mut dyn SharedStore, pass: &mut Pass) {
        let budget = self.config.max_num_batched_tokens;
        let mut left = self.schedule_running(budget, pass);
        // Only now is it certain that none of them is thrown out of this pass again.
        for i in 0..self.scheduled.len() {
            self.commit_scheduled(i, pass);
        }
        if pass.preempted.is_empty() {
            while left > 0 && self.running.len() < self.config.max_num_seqs as usize {
                let Some(tokens) = self.admit_head(left, store, pass) else { break };
                left -= tokens;
            }
        }
    }

    /// Schedules the running batch; returns what is left of the budget.
    fn schedule_running(&mut self, mut left: u32, pass: &mut Pass) -> u32 {
        let mut at = 0;
        while left > 0 && at < self.running.len() {
            let slot = self.running[at];
            let tokens = self.seqs[slot as usize].remaining().min(left);
            let mut out = false;
            while !out && self.lacking(slot, tokens) > self.pool.free() {
                if self.cancel_load() {
                    continue;
                }
                let victim = self.victim();
                let gone = self.running.remove(victim);
                if let Some(i) = self.scheduled.iter().position(|s| s.slot == gone) {
                    left += self.scheduled.remove(i).tokens;
                }
                if victim < at {
                    at -= 1;
                }
                out = gone == slot;
                self.preempt(gone, pass);
            }
            if !out {
                self.grow(slot, tokens, pass);
                left -= tokens;
                at += 1;
            }
        }
        left
    }

    /// Place in the running batch (which is not empty) of the request to preempt.
    fn victim(&self) -> usize {
        let last = self.running.len() - 1;
        let urgency = |at: usize| {
            let seq = &self.seqs[self.running[at] as usize];
            (seq.priority, seq.arrival)
        };
        match (self.config.policy, self.config.preemption) {
            (SchedulingPolicy::Fcfs, PreemptionOrder::Lifo) => last,
            (SchedulingPolicy::Fcfs, PreemptionOrder::Fifo) => 0,
            // `max_by_key` gives the last of several equals.
            (SchedulingPolicy::Priority, PreemptionOrder::Lifo) => {
                (0..=last).max_by_key(|at| urgency(*at)).unwrap_or(last)
            }
            (SchedulingPolicy::Priority, PreemptionOrder::Fifo) => {
                (0..=last).rev().max_by_key(|at| urgency(*at)).unwrap_or(last)
            }
        }
    }

    /// Admits the head of the queue with as many tokens as the budget allows; returns how many. None go to
    /// one that first waits for lower tiers.
    fn admit_head(&mut self, left: u32, store: &mut dyn SharedStore, pass: &mut Pass) -> Option<u32> {
        let slot = self.head()?;
        let (cached, idle) = self.lookup(slot);
        let total = self.seqs[slot as usize].total();
        let block_size = self.config.block_size;
        let missing = total - cached * block_size;
        if missing > left && !self.config.chunked_prefill {
            return None;
        }
        let tokens = missing.min(left);
        let must_fit = if self.config.reserve_full_prompt { total } else { cached * block_size + tokens };
        // Cached blocks that nobody holds are among the free ones; holding them takes them from there.
        if must_fit.div_ceil(block_size) - cached + idle > self.pool.free() {
            return None;
        }
        if self.start_load(slot, cached, store, pass) {
            return Some(0);
        }
        if !self.admit(slot, cached, tokens, pass) {
            return None;
        }
        self.commit_scheduled(self.scheduled.len() - 1, pass);
        Some(tokens)
    }

    fn commit_scheduled(&mut self, index: usize, pass: &mut Pass) {
        let scheduled = self.scheduled[index];
        let slot: Slot = scheduled.slot;
        let computed = self.seqs[slot as usize].computed + scheduled.tokens;
        self.commit(slot, computed, &mut pass.events);
    }
}
