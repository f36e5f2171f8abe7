//! A worker's load: what we sent and is not finished, plus what others have running there.
//!
//! - Purpose: a load that is true between two reports of the engine and does not count a request twice when the
//!   next report shows it too.
//! - `load = ours + foreign`, in requests. `ours` = turns and side calls dispatched to the worker and not yet
//!   over, counted from the moment of the decision. `foreign = max(0, running + waiting - ours)`, taken when a
//!   report arrives and kept until the next: whatever the engine has beyond what we sent is somebody else's.
//! - I-LOAD-1 a dispatch raises the load by one at once; its end lowers it by one at once.
//! - I-LOAD-2 a report that shows exactly what we sent changes nothing.
//! - A request that starts or ends while a report travels is misjudged by one until the next report.
//! - Deliberately absent: token counts. Lengths of answers are not known beforehand, and a request count is what
//!   every engine reports.

use tandem_types::LoadReport;

/// Keeps one worker's load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LoadMeter {
    ours: u64,
    foreign: u64,
}

impl LoadMeter {
    /// Nothing sent, nothing reported.
    #[must_use]
    pub const fn new() -> Self {
        Self { ours: 0, foreign: 0 }
    }

    /// A request was sent (or is about to be).
    pub const fn dispatched(&mut self) {
        self.ours = self.ours.saturating_add(1);
    }

    /// A request of ours is over.
    pub const fn finished(&mut self) {
        self.ours = self.ours.saturating_sub(1);
    }

    /// The engine reported.
    pub const fn reported(&mut self, report: &LoadReport) {
        self.foreign = report.running.saturating_add(report.waiting).saturating_sub(self.ours);
    }

    /// What others have there is no longer known (the engine restarted).
    pub const fn forget_foreign(&mut self) {
        self.foreign = 0;
    }

    /// Our requests there.
    #[must_use]
    pub const fn ours(&self) -> u64 {
        self.ours
    }

    /// Other people's requests there, by the last report.
    #[must_use]
    pub const fn foreign(&self) -> u64 {
        self.foreign
    }

    /// The load.
    #[must_use]
    pub const fn load(&self) -> u64 {
        self.ours.saturating_add(self.foreign)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(running: u64, waiting: u64) -> LoadReport {
        LoadReport { running, waiting, ..LoadReport::default() }
    }

    /// I-LOAD-1, I-LOAD-2.
    #[test]
    fn dispatches_count_at_once_and_only_once() {
        let mut meter = LoadMeter::default();
        meter.reported(&report(2, 1));
        assert_eq!(meter.load(), 3);
        for _ in 0..4 {
            meter.dispatched();
        }
        assert_eq!(meter.load(), 7);
        // The next report shows our four beside the other three.
        meter.reported(&report(5, 2));
        assert_eq!((meter.ours(), meter.foreign(), meter.load()), (4, 3, 7));
        // Ours end; the report is old but the others are still there.
        for _ in 0..4 {
            meter.finished();
        }
        assert_eq!(meter.load(), 3);
    }

    #[test]
    fn an_engine_that_reports_less_than_we_sent_does_not_hide_our_load() {
        let mut meter = LoadMeter::default();
        for _ in 0..8 {
            meter.dispatched();
        }
        meter.reported(&report(0, 0));
        assert_eq!(meter.load(), 8);
    }
}
