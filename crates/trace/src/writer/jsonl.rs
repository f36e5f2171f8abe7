//! Plain sinks: a file that is appended to, and a bare stream.

use std::io::Write;

use tandem_types::Time;

use super::outbox::{Outbox, Sent};
use super::{AppendOpener, EncodedRow, Pushed, Sink, SinkError, SinkReport, Step, WriterConfig};
use crate::record::Loss;

/// Appends wrapped rows to one file and never rolls.
#[derive(Debug)]
pub struct JsonlWriter<O: AppendOpener> {
    opener: O,
    file: Option<O::File>,
    config: WriterConfig,
    started: Time,
    batch: Vec<u8>,
    batch_rows: u64,
    batch_since: Option<Time>,
    outbox: Outbox,
    report: SinkReport,
}

impl<O: AppendOpener> JsonlWriter<O> {
    /// A sink whose row timestamps count from `started`. The file is opened at the first flush, or by
    /// [`Self::open`].
    #[must_use]
    pub fn new(opener: O, config: WriterConfig, started: Time) -> Self {
        Self {
            opener,
            file: None,
            config,
            started,
            batch: Vec::new(),
            batch_rows: 0,
            batch_since: None,
            outbox: Outbox::default(),
            report: SinkReport { name: "jsonl", ..SinkReport::default() },
        }
    }

    /// Opens the file now, so that a path that cannot be written is an error at start.
    ///
    /// # Errors
    /// [`SinkError`] when it cannot be opened.
    pub fn open(&mut self) -> Result<(), SinkError> {
        self.opened().map(|_| ()).map_err(|error| SinkError::new(Step::Open, &error))
    }

    fn opened(&mut self) -> std::io::Result<&mut O::File> {
        let file = match self.file.take() {
            Some(file) => file,
            None => {
                let mut appended = self.opener.open()?;
                if !appended.at_line_start {
                    appended.file.write_all(b"\n")?;
                }
                self.report.files += 1;
                appended.file
            }
        };
        Ok(self.file.insert(file))
    }

    fn flush(&mut self, now: Time) {
        if !self.batch.is_empty() {
            self.outbox.append(&mut self.batch, self.batch_rows);
            (self.batch_rows, self.batch_since) = (0, None);
        }
        if self.outbox.is_empty() || !self.outbox.may_try(now) {
            return;
        }
        if let Err(error) = self.opened() {
            self.outbox.failed(now, Step::Open, &error, &mut self.report);
            return;
        }
        let Some(file) = self.file.as_mut() else { return };
        if self.outbox.send(now, file, &mut self.report) == Sent::Reopen {
            self.outbox.rewind_to_line();
            self.file = None;
        }
    }
}

impl<O: AppendOpener> Sink for JsonlWriter<O> {
    fn push(&mut self, now: Time, row: &EncodedRow, loss: Loss) -> Pushed {
        if self.batch.len() + self.outbox.len() >= self.config.held_bytes_max {
            self.flush(now);
        }
        if self.batch.len() + self.outbox.len() >= self.config.held_bytes_max {
            self.report.lost.io += 1;
            return Pushed::Refused;
        }
        let timestamp = now.since(self.started).as_millis();
        row.append_wrapped(u64::try_from(timestamp).unwrap_or(u64::MAX), loss, &mut self.batch);
        self.batch_rows += 1;
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
        let batch = self.batch_since.map(|since| since + self.config.flush_interval);
        [batch, self.outbox.retry_at()].into_iter().flatten().min()
    }

    fn close(&mut self, now: Time) -> Result<(), SinkError> {
        // The last chance does not wait for the pause to pass.
        let now = self.outbox.retry_at().map_or(now, |at| at.max(now));
        self.flush(now);
        if self.outbox.is_empty() {
            return Ok(());
        }
        self.report.lost.io += self.outbox.give_up_lines(&mut self.report);
        Err(self
            .report
            .last_error
            .clone()
            .unwrap_or_else(|| SinkError::new(Step::Write, &std::io::ErrorKind::Other.into())))
    }

    fn report(&self) -> SinkReport {
        SinkReport { rows_held: self.batch_rows + self.outbox.rows(), ..self.report.clone() }
    }
}

/// Writes bare rows to a stream at once; a row that the stream does not take is lost.
#[derive(Debug)]
pub struct BareWriter<W: Write> {
    stream: W,
    report: SinkReport,
}

impl<W: Write> BareWriter<W> {
    /// A sink on a stream, such as standard error.
    pub fn new(stream: W, name: &'static str) -> Self {
        Self { stream, report: SinkReport { name, ..SinkReport::default() } }
    }

    /// The stream.
    pub fn into_inner(self) -> W {
        self.stream
    }
}

impl<W: Write> Sink for BareWriter<W> {
    fn push(&mut self, _now: Time, row: &EncodedRow, loss: Loss) -> Pushed {
        let mut line = row.bare(loss);
        line.push(b'\n');
        match self.stream.write_all(&line).and_then(|()| self.stream.flush()) {
            Ok(()) => {
                self.report.rows_written += 1;
                self.report.bytes_written += u64::try_from(line.len()).unwrap_or(u64::MAX);
                Pushed::Taken
            }
            Err(error) => {
                self.report.errors += 1;
                self.report.lost.io += 1;
                self.report.last_error = Some(SinkError::new(Step::Write, &error));
                Pushed::Refused
            }
        }
    }

    fn tick(&mut self, _now: Time) {}

    fn next_deadline(&self) -> Option<Time> {
        None
    }

    fn close(&mut self, _now: Time) -> Result<(), SinkError> {
        self.stream.flush().map_err(|error| SinkError::new(Step::Write, &error))
    }

    fn report(&self) -> SinkReport {
        self.report.clone()
    }
}
