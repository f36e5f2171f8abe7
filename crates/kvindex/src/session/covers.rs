//! Who must keep a run, and where its blocks lie: the forest's counts per worker.

use super::forest::{Forest, NONE};
use super::holds::Hold;

impl Forest {
    /// A branch ends at this run.
    pub(super) fn end_branch(&mut self, run: u32, worker: Option<u32>) {
        if let Some(state) = self.runs.get_mut(run as usize) {
            state.ends += 1;
        }
        if let Some(worker) = worker {
            self.cover(run, worker);
        }
    }

    /// A branch ends here no longer. Call [`Forest::tidy`] after.
    pub(super) fn lift_branch(&mut self, run: u32, worker: Option<u32>) {
        if let Some(state) = self.runs.get_mut(run as usize) {
            state.ends = state.ends.saturating_sub(1);
        }
        if let Some(worker) = worker {
            self.uncover(run, worker);
        }
    }

    /// One thing more at this run that the worker must keep.
    pub(super) fn cover(&mut self, run: u32, worker: u32) {
        let mut at = run;
        while at != NONE {
            let mut hold = self.hold(at, worker);
            hold.covers += 1;
            let first = hold.covers == 1;
            self.set_hold(at, hold);
            if !first {
                return;
            }
            self.workers.add_working_set(worker, self.len(at));
            at = self.parent(at);
        }
    }

    /// One thing less at this run that the worker must keep.
    pub(super) fn uncover(&mut self, run: u32, worker: u32) {
        let mut at = run;
        while at != NONE {
            let mut hold = self.hold(at, worker);
            hold.covers = hold.covers.saturating_sub(1);
            let last = hold.covers == 0;
            self.set_hold(at, hold);
            if !last {
                return;
            }
            self.workers.sub_working_set(worker, self.len(at));
            at = self.parent(at);
        }
    }

    /// What a run is to a worker, as of today.
    pub(super) fn hold(&self, run: u32, worker: u32) -> Hold {
        self.run(run)
            .and_then(|run| {
                let at = run.holds.binary_search_by_key(&worker, |hold| hold.worker).ok()?;
                run.holds.get(at)
            })
            .map_or_else(|| self.workers.fresh(worker), |hold| self.workers.today(*hold))
    }

    fn set_hold(&mut self, run: u32, hold: Hold) {
        let Some(run) = self.runs.get_mut(run as usize) else { return };
        match run.holds.binary_search_by_key(&hold.worker, |known| known.worker) {
            Ok(at) if hold.is_empty() => {
                run.holds.remove(at);
                if run.holds.capacity() > 8 && run.holds.len() < run.holds.capacity() / 4 {
                    run.holds.shrink_to(run.holds.len() * 2);
                }
            }
            Ok(at) => {
                if let Some(known) = run.holds.get_mut(at) {
                    *known = hold;
                }
            }
            Err(at) if !hold.is_empty() => {
                if run.holds.is_empty() {
                    run.holds.reserve_exact(1);
                }
                run.holds.insert(at, hold);
            }
            Err(_) => {}
        }
    }

    pub(super) fn coverers(&self, run: u32) -> Vec<u32> {
        let holds = self.run(run).map_or(&[][..], |run| &run.holds);
        holds
            .iter()
            .map(|hold| self.workers.today(*hold))
            .filter(|hold| hold.covers > 0)
            .map(|hold| hold.worker)
            .collect()
    }

    /// Records that some blocks of a run lie, or no longer lie, in a tier of a worker; whether that was news.
    pub(super) fn set_bits(&mut self, run: u32, worker: u32, tier: usize, mask: u64, there: bool) -> bool {
        let mut hold = self.hold(run, worker);
        let Some(bits) = hold.bits.get_mut(tier) else { return false };
        let old = *bits;
        *bits = if there { old | mask } else { old & !mask };
        let new = *bits;
        if new == old {
            return false;
        }
        self.set_hold(run, hold);
        self.workers.count_resident(worker, tier, new.count_ones(), old.count_ones());
        true
    }
}
