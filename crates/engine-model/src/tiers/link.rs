//! A queue of transfers.

use std::time::Duration;

use tandem_types::Time;

/// One direction of a link: transfers go one after the other at full speed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Link {
    free_at: Time,
}

impl Link {
    /// Queues a transfer at `gb_s` GB/s; returns its end.
    pub(crate) fn transfer(&mut self, now: Time, bytes: u64, gb_s: f64) -> Time {
        // 1 GB/s is a byte per nanosecond; a float to integer cast saturates.
        let nanos = (bytes as f64 / gb_s).round() as u64;
        self.free_at = self.free_at.max(now) + Duration::from_nanos(nanos);
        self.free_at
    }
}
