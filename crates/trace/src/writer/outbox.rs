//! Bytes on their way into a file that may fail: what is left after a failed write, when to try again.

use std::io::{self, Write};
use std::time::Duration;

use tandem_types::Time;

use super::{FAILURES_BEFORE_REOPEN, RETRY_MAX, RETRY_MIN, SinkError, SinkReport, Step};

/// Batches under way. `rows` are counted as written when their whole batch is.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
    rows: u64,
    failures: u32,
    pause: Duration,
    retry_at: Option<Time>,
}

/// What came of a try to send.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// Nothing is left.
    All,
    /// Some is left; try again when `retry_at` comes.
    Failed,
    /// Some is left, and the file should be opened anew before the next try.
    Reopen,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) const fn rows(&self) -> u64 {
        self.rows
    }

    /// Adds bytes that hold `rows` rows; the box takes `bytes` empty.
    pub(super) fn append(&mut self, bytes: &mut Vec<u8>, rows: u64) {
        if self.bytes.is_empty() {
            std::mem::swap(&mut self.bytes, bytes);
        } else {
            self.bytes.append(bytes);
        }
        self.rows += rows;
    }

    /// When the next try is due after a failure.
    pub(super) const fn retry_at(&self) -> Option<Time> {
        self.retry_at
    }

    /// Whether a try is permitted now.
    pub(super) fn may_try(&self, now: Time) -> bool {
        self.retry_at.is_none_or(|at| now >= at)
    }

    /// Writes all that is left.
    pub(super) fn send(&mut self, now: Time, file: &mut dyn Write, report: &mut SinkReport) -> Sent {
        match self.write_rest(file, report).and_then(|()| file.flush()) {
            Ok(()) => {
                report.rows_written += self.rows;
                self.bytes.clear();
                self.bytes.shrink_to(4 << 20);
                (self.sent, self.rows, self.failures, self.retry_at) = (0, 0, 0, None);
                Sent::All
            }
            Err(error) => {
                self.failed(now, Step::Write, &error, report);
                if self.failures.is_multiple_of(FAILURES_BEFORE_REOPEN) { Sent::Reopen } else { Sent::Failed }
            }
        }
    }

    fn write_rest(&mut self, file: &mut dyn Write, report: &mut SinkReport) -> io::Result<()> {
        while let Some(rest) = self.bytes.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match file.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.sent += count.min(rest.len());
                    report.bytes_written += u64::try_from(count).unwrap_or(u64::MAX);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Notes a failure and sets the next try.
    pub(super) fn failed(&mut self, now: Time, step: Step, error: &io::Error, report: &mut SinkReport) {
        report.errors += 1;
        report.last_error = Some(SinkError::new(step, error));
        self.failures = self.failures.saturating_add(1);
        self.pause = if self.retry_at.is_none() { RETRY_MIN } else { (self.pause * 2).min(RETRY_MAX) };
        self.retry_at = Some(now + self.pause);
    }

    /// The file is a new handle on the same plain file: goes back to the start of the line that was cut, if
    /// one was, and begins on a fresh line.
    pub(super) fn rewind_to_line(&mut self) {
        let done = self.bytes.get(..self.sent).unwrap_or(&[]);
        self.sent = done.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    }

    /// The file is another file: everything goes there.
    pub(super) const fn rewind_to_start(&mut self) {
        self.sent = 0;
    }

    /// Gives up what is left of lines; those that got out whole are written, the others are returned.
    pub(super) fn give_up_lines(&mut self, report: &mut SinkReport) -> u64 {
        let rest = self.bytes.get(self.sent..).unwrap_or(&[]);
        let lost = u64::try_from(rest.iter().filter(|byte| **byte == b'\n').count()).unwrap_or(u64::MAX);
        report.rows_written += self.give_up().saturating_sub(lost);
        lost
    }

    /// Gives up what is left; returns the number of rows.
    pub(super) fn give_up(&mut self) -> u64 {
        self.bytes.clear();
        self.sent = 0;
        std::mem::take(&mut self.rows)
    }
}
