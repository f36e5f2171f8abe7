//! What the passing of time alone brings about.

use tandem_types::Time;

use crate::Scheduler;
use crate::contract::{Effect, RejectReason};
use crate::workers::Worker;

/// Most programs forgotten in one call, so that a decision never waits for a long clean-up.
const EXPIRE_PER_CALL_MAX: usize = 64;

impl Scheduler {
    /// Brings the state to `now`: breakers half-open, old load reports and idle programs are forgotten, held turns
    /// expire, admission looks again.
    pub(crate) fn advance(&mut self, now: Time, out: &mut Vec<Effect>) {
        if now < self.now {
            self.counters.anomalies.time_backwards += 1;
        }
        self.now = self.now.max(now);
        let now = self.now;
        while let Some((_, id)) = self.workers.next_half_open().filter(|&(at, _)| at <= now) {
            self.workers.change(id, |worker| worker.breaker.advance(now));
            self.room_changed = true;
        }
        while let Some((_, id)) = self.workers.next_stale_report().filter(|&(at, _)| at <= now) {
            self.workers.change(id, Worker::forget_report);
        }
        while let Some((_, turn)) = self.queue.next_deadline().filter(|&(at, _)| at <= now) {
            self.reject(turn, RejectReason::HoldExpired, out);
        }
        self.gate_on_time();
        for _ in 0..EXPIRE_PER_CALL_MAX {
            if !self.programs.expire_one(now, self.config.program_idle_ttl) {
                break;
            }
            self.counters.programs_expired += 1;
        }
    }
}
