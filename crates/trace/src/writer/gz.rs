//! Gzip segments: every flush is one whole gzip member, every segment a file of its own.

use std::io::{self, Write};

use flate2::{Compression, GzBuilder};
use tandem_types::Time;

use super::outbox::{Outbox, Sent};
use super::{EncodedRow, Pushed, SegmentFactory, Sink, SinkError, SinkReport, Step, WriterConfig};
use crate::record::Loss;

/// Indexes tried in a row when other writers take them first.
const INDEX_TRIES_MAX: u64 = 1024;

/// Writes wrapped rows to numbered gzip segments.
#[derive(Debug)]
pub struct GzSegmentWriter<F: SegmentFactory> {
    factory: F,
    file: Option<F::File>,
    next_index: Option<u64>,
    config: WriterConfig,
    started: Time,
    batch: Vec<u8>,
    batch_rows: u64,
    batch_since: Option<Time>,
    segment_lines: u64,
    segment_bytes: u64,
    outbox: Outbox,
    report: SinkReport,
}

impl<F: SegmentFactory> GzSegmentWriter<F> {
    /// A sink whose row timestamps count from `started`. A segment is made when there is something to write
    /// into it, or by [`Self::open`].
    #[must_use]
    pub fn new(factory: F, config: WriterConfig, started: Time) -> Self {
        Self {
            factory,
            file: None,
            next_index: None,
            config,
            started,
            batch: Vec::new(),
            batch_rows: 0,
            batch_since: None,
            segment_lines: 0,
            segment_bytes: 0,
            outbox: Outbox::default(),
            report: SinkReport { name: "jsonl_gz", ..SinkReport::default() },
        }
    }

    /// Makes the first segment now, so that a folder that cannot be written is an error at start.
    ///
    /// # Errors
    /// [`SinkError`] when it cannot be made.
    pub fn open(&mut self) -> Result<(), SinkError> {
        let begun = self.opened().and_then(|()| {
            // An empty file is no gzip file; an empty member is one, whenever a reader comes.
            let empty = member(&[])?;
            self.file.as_mut().map_or(Ok(()), |file| file.write_all(&empty))
        });
        begun.map_err(|error| SinkError::new(Step::Open, &error))
    }

    fn opened(&mut self) -> io::Result<()> {
        if self.file.is_some() {
            return Ok(());
        }
        let first = match self.next_index {
            Some(index) => index,
            None => self.factory.first_free()?,
        };
        for index in first..first.saturating_add(INDEX_TRIES_MAX) {
            match self.factory.create_new(index) {
                Ok(file) => {
                    self.file = Some(file);
                    self.next_index = Some(index + 1);
                    self.report.files += 1;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    fn flush(&mut self, now: Time) {
        self.send(now);
        if self.outbox.is_empty() && !self.batch.is_empty() {
            match member(&self.batch) {
                Ok(mut bytes) => self.outbox.append(&mut bytes, self.batch_rows),
                Err(_) => self.report.lost.unfit += self.batch_rows,
            }
            self.batch.clear();
            self.batch.shrink_to(self.config.buffer_bytes.saturating_mul(2));
            (self.batch_rows, self.batch_since) = (0, None);
            self.send(now);
        }
    }

    fn send(&mut self, now: Time) {
        if self.outbox.is_empty() || !self.outbox.may_try(now) {
            return;
        }
        if let Err(error) = self.opened() {
            self.outbox.failed(now, Step::Open, &error, &mut self.report);
            return;
        }
        let Some(file) = self.file.as_mut() else { return };
        if self.outbox.send(now, file, &mut self.report) == Sent::Reopen {
            self.outbox.rewind_to_start();
            self.file = None;
            (self.segment_lines, self.segment_bytes) = (self.batch_rows + self.outbox.rows(), 0);
        }
    }

    fn roll_before(&mut self, now: Time, line_bytes: u64) {
        let too_many = self.config.roll_lines.is_some_and(|most| self.segment_lines >= most);
        let too_long = self.segment_bytes.saturating_add(line_bytes) > self.config.roll_bytes;
        if self.segment_lines == 0 || !(too_many || too_long) {
            return;
        }
        self.flush(now);
        // While the file cannot be written the segment grows beyond its size instead of losing its place.
        if self.outbox.is_empty() {
            self.file = None;
            (self.segment_lines, self.segment_bytes) = (0, 0);
        }
    }
}

/// One gzip member with `bytes` in it. Fast compression: most of a row is hashes, which do not compress.
fn member(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let room = Vec::with_capacity(bytes.len() / 2 + 64);
    let mut encoder = GzBuilder::new().mtime(0).write(room, Compression::fast());
    encoder.write_all(bytes)?;
    encoder.finish()
}

impl<F: SegmentFactory> Sink for GzSegmentWriter<F> {
    fn push(&mut self, now: Time, row: &EncodedRow, loss: Loss) -> Pushed {
        let line_bytes = u64::try_from(row.len()).unwrap_or(u64::MAX).saturating_add(40);
        self.roll_before(now, line_bytes);
        if self.batch.len() + self.outbox.len() >= self.config.held_bytes_max {
            self.flush(now);
        }
        if self.batch.len() + self.outbox.len() >= self.config.held_bytes_max {
            self.report.lost.io += 1;
            return Pushed::Refused;
        }
        let before = self.batch.len();
        let timestamp = now.since(self.started).as_millis();
        row.append_wrapped(u64::try_from(timestamp).unwrap_or(u64::MAX), loss, &mut self.batch);
        self.batch_rows += 1;
        self.segment_lines += 1;
        self.segment_bytes += u64::try_from(self.batch.len() - before).unwrap_or(u64::MAX);
        self.batch_since.get_or_insert(now);
        if self.batch.len() >= self.config.buffer_bytes {
            self.flush(now);
        }
        Pushed::Taken
    }

    fn tick(&mut self, now: Time) {
        let due = self.batch_since.is_some_and(|since| now >= since + self.config.flush_interval);
        if due || !self.outbox.is_empty() {
            self.flush(now);
        }
    }

    fn next_deadline(&self) -> Option<Time> {
        // A batch cannot go before the member that failed.
        self.outbox.retry_at().or_else(|| self.batch_since.map(|since| since + self.config.flush_interval))
    }

    fn close(&mut self, now: Time) -> Result<(), SinkError> {
        // The last chance does not wait for the pause to pass.
        let now = self.outbox.retry_at().map_or(now, |at| at.max(now));
        self.flush(now);
        self.file = None;
        let left = self.batch_rows + self.outbox.give_up();
        if left == 0 {
            return Ok(());
        }
        self.batch.clear();
        (self.batch_rows, self.batch_since) = (0, None);
        self.report.lost.io += left;
        Err(self
            .report
            .last_error
            .clone()
            .unwrap_or_else(|| SinkError::new(Step::Write, &io::ErrorKind::Other.into())))
    }

    fn report(&self) -> SinkReport {
        SinkReport { rows_held: self.batch_rows + self.outbox.rows(), ..self.report.clone() }
    }
}
