//! Sinks of a trace and the fan-out to them.
//!
//! - Purpose: take rows one by one from one thread and bring them to files or a stream, in batches.
//! - Inputs: rows, counts of rows that the caller had to drop, the time. Outputs: bytes, a report per sink.
//! - Invariants:
//!   - I-WRT-1 a row that a sink has taken is written exactly once, or counted as lost when the sink closes;
//!     after a failed write the rest follows at the next try. Only a file that had to be opened anew can hold
//!     a row twice or a cut line, which readers repair.
//!   - I-WRT-2 rows lost are told on the next row written (`tandem_loss`), and where none follows, in a last
//!     row: `trace_loss` in the companion, and in the main file a `request_payload` row without content
//!     (readers of v1 step over that type).
//!   - I-WRT-3 an error of the operating system stops nothing: it is counted, kept for the report, and tried
//!     again with growing pauses. Memory is bounded: a sink that holds its most rows refuses more.
//!   - I-WRT-4 lines are JSON on one line each, ending in a line feed; each flush of a gzip sink ends a gzip
//!     member, so what was flushed can be read whatever happens after.
//! - Deliberately absent: threads and queues (the caller's), fsync, deletion of old segments.

mod fanout;
mod gz;
mod jsonl;
mod outbox;

use std::fmt;
use std::io;
use std::time::Duration;

use serde::Serialize;
use tandem_types::Time;

use crate::record::{Loss, TraceRow};

pub use fanout::{CloseReport, Fanout, Stream};
pub use gz::GzSegmentWriter;
pub use jsonl::{BareWriter, JsonlWriter};

/// Longest encoded row, in bytes. A row of a million-token prompt at block size 16 has about 1.5 MB.
pub const ROW_BYTES_MAX: usize = 32 * 1024 * 1024;

/// First pause after a failed write; it doubles up to [`RETRY_MAX`].
pub const RETRY_MIN: Duration = Duration::from_millis(100);

/// Longest pause after a failed write.
pub const RETRY_MAX: Duration = Duration::from_secs(5);

/// Failed writes in a row after which a file is opened anew.
pub const FAILURES_BEFORE_REOPEN: u32 = 3;

/// Opens the file of a plain sink.
pub trait AppendOpener {
    /// What it opens.
    type File: io::Write;

    /// Opens for appending, making the file if it is not there.
    ///
    /// # Errors
    /// Whatever the operating system says.
    fn open(&mut self) -> io::Result<Appended<Self::File>>;
}

/// A file opened for appending.
#[derive(Debug)]
pub struct Appended<F> {
    /// The file.
    pub file: F,
    /// Whether it is empty or ends in a line feed. Otherwise a writer was cut off, and a new line is begun.
    pub at_line_start: bool,
}

/// Makes the segments of a gzip sink.
pub trait SegmentFactory {
    /// What it makes.
    type File: io::Write;

    /// The index after the highest one in use, 0 when there is none.
    ///
    /// # Errors
    /// Whatever the operating system says.
    fn first_free(&mut self) -> io::Result<u64>;

    /// Makes segment `index`.
    ///
    /// # Errors
    /// `AlreadyExists` when it is there already (the next index is tried); else whatever the system says.
    fn create_new(&mut self, index: u64) -> io::Result<Self::File>;
}

/// When a sink writes and rolls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriterConfig {
    /// Bytes (before compression) that make a batch.
    pub buffer_bytes: usize,
    /// Longest time that a row waits for its batch.
    pub flush_interval: Duration,
    /// Bytes (before compression) in a gzip segment.
    pub roll_bytes: u64,
    /// Lines in a gzip segment.
    pub roll_lines: Option<u64>,
    /// Most bytes held while a file cannot be written; rows beyond are lost and counted.
    pub held_bytes_max: usize,
}

impl Default for WriterConfig {
    fn default() -> Self {
        Self {
            buffer_bytes: 1 << 20,
            flush_interval: Duration::from_secs(1),
            roll_bytes: 256 << 20,
            roll_lines: None,
            held_bytes_max: 64 << 20,
        }
    }
}

/// A row as JSON, made once for all sinks.
#[derive(Debug, Clone)]
pub struct EncodedRow {
    json: Vec<u8>,
}

impl EncodedRow {
    /// Encodes a row on one line.
    ///
    /// # Errors
    /// [`Unfit`] when the row is longer than [`ROW_BYTES_MAX`] or serde refuses it.
    pub fn new(row: &TraceRow) -> Result<Self, Unfit> {
        match row {
            TraceRow::V1(record) => Self::encode(record),
            TraceRow::Own(event) => Self::encode(event),
        }
    }

    fn encode(row: &impl Serialize) -> Result<Self, Unfit> {
        let mut json = serde_json::to_vec(row).map_err(|_| Unfit::NotEncodable)?;
        if json.len() > ROW_BYTES_MAX {
            return Err(Unfit::TooLong { bytes: json.len() });
        }
        // A raw payload may be laid out over several lines; outside of strings, where alone JSON permits it,
        // a line break means no more than a space.
        for byte in json.iter_mut().filter(|byte| matches!(byte, b'\n' | b'\r')) {
            *byte = b' ';
        }
        Ok(Self { json })
    }

    /// The row by itself, without line feed; `loss` is written into it if there is any.
    #[must_use]
    pub fn bare(&self, loss: Loss) -> Vec<u8> {
        let mut line = Vec::with_capacity(self.json.len() + 64);
        self.append_to(loss, &mut line);
        line
    }

    /// Appends `{"timestamp": ms, "event": row}` and a line feed.
    pub fn append_wrapped(&self, timestamp_ms: u64, loss: Loss, line: &mut Vec<u8>) {
        line.extend_from_slice(b"{\"timestamp\":");
        line.extend_from_slice(timestamp_ms.to_string().as_bytes());
        line.extend_from_slice(b",\"event\":");
        self.append_to(loss, line);
        line.extend_from_slice(b"}\n");
    }

    /// The loss goes before everything else, where readers see it that do not hold long rows.
    fn append_to(&self, loss: Loss, line: &mut Vec<u8>) {
        let loss = (loss.total() > 0).then(|| serde_json::to_vec(&loss).ok()).flatten();
        match (loss, self.json.split_first()) {
            (Some(loss), Some((b'{', body))) => {
                line.extend_from_slice(b"{\"tandem_loss\":");
                line.extend_from_slice(&loss);
                line.push(b',');
                line.extend_from_slice(body);
            }
            _ => line.extend_from_slice(&self.json),
        }
    }

    /// Length of the row in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.json.len()
    }

    /// Never; a row is at least `{}`.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.json.is_empty()
    }
}

/// Why a row cannot be written anywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// Longer than [`ROW_BYTES_MAX`].
    #[error("row of {bytes} bytes is longer than {ROW_BYTES_MAX} bytes")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// The serializer refused it.
    #[error("row cannot be encoded")]
    NotEncodable,
}

/// Whether a sink took a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Pushed {
    /// It will be written.
    Taken,
    /// The sink holds as much as it may; the row is lost to it.
    Refused,
}

/// Somewhere that rows go to. The gateway implements it for an exporter of its own.
pub trait Sink {
    /// Takes a row. `loss`, if any, is to be written into the row.
    fn push(&mut self, now: Time, row: &EncodedRow, loss: Loss) -> Pushed;

    /// Writes what is due.
    fn tick(&mut self, now: Time);

    /// When `tick` should be called next; `None` = not before the next `push`.
    fn next_deadline(&self) -> Option<Time>;

    /// Writes all that is held and closes.
    ///
    /// # Errors
    /// [`SinkError`] of the last try; rows that did not get out are in the report as lost.
    fn close(&mut self, now: Time) -> Result<(), SinkError>;

    /// What it did so far.
    fn report(&self) -> SinkReport;
}

/// What a sink did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SinkReport {
    /// Its name in configuration: `jsonl`, `jsonl_gz`, `stderr`, `otel`.
    pub name: &'static str,
    /// Rows written to the operating system.
    pub rows_written: u64,
    /// Bytes written to the operating system.
    pub bytes_written: u64,
    /// Rows taken but not written yet.
    pub rows_held: u64,
    /// Rows refused, or given up at closing.
    pub lost: Loss,
    /// Files opened.
    pub files: u64,
    /// Failed calls to the operating system.
    pub errors: u64,
    /// The last failure.
    pub last_error: Option<SinkError>,
}

/// A failed call to the operating system or to a collector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot {step}: {message}")]
pub struct SinkError {
    /// While doing what.
    pub step: Step,
    /// Kind of failure.
    pub kind: io::ErrorKind,
    /// The system's words.
    pub message: String,
}

impl SinkError {
    pub(crate) fn new(step: Step, error: &io::Error) -> Self {
        Self { step, kind: error.kind(), message: error.to_string() }
    }
}

/// What a sink was doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Opening or making a file.
    Open,
    /// Writing or flushing.
    Write,
    /// Sending to a collector.
    Send,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open trace file",
            Self::Write => "write trace file",
            Self::Send => "send trace rows",
        })
    }
}
