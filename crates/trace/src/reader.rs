//! Reads trace files, damaged ones too.
//!
//! - Purpose: every row that can be read, and a report of all that was odd, by place and kind.
//! - Inputs: bytes of one file after the other, plain or gzip (told apart by their first bytes); rows bare or
//!   wrapped as `{"timestamp": ..., "event": row}`. Outputs: rows in file order, a [`ReadReport`].
//! - Invariants:
//!   - I-RDR-1 lenient: whatever the bytes, all rows that can be read come out and each oddity is in the
//!     report once. Strict: the first oddity is an error. What a newer writer may well write (event types that
//!     we do not know, members that we do not know) is no oddity; payload rows and unknown types are counted.
//!   - I-RDR-2 a repaired row (a request without its replay block, a tool without its times) is reported.
//!   - I-RDR-3 memory: one line up to its bound, some 24 bytes per request id up to its bound, a bounded number of
//!     findings. Rows that will be stepped over are not held once their type is known.
//!   - I-RDR-4 no row is made up: of a line that was cut, nothing is used unless it is whole JSON.
//! - Deliberately absent: ordering, joins, analysis; opening of files.
//! - Sources: dynamo-llm 1.6.1 (writer), aisimulate-core 0.13.0 (loader rules).

mod lines;
mod members;
mod report;
mod rows;

use std::collections::BTreeSet;
use std::io::{self, BufRead};

use crate::record::TraceRow;
use lines::{Line, Lines, Piece};

pub use report::{Finding, Place, Problem, ReadReport, Skipped};

/// How to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadOptions {
    /// The first oddity is an error.
    pub strict: bool,
    /// Give payload rows out instead of stepping over them.
    pub payloads: bool,
    /// Longest line that is used, in bytes.
    pub line_bytes_max: usize,
    /// Most findings that are listed; more are counted.
    pub findings_max: usize,
    /// Most request ids that are remembered to find repeated ones.
    pub ids_max: usize,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self {
            strict: false,
            payloads: false,
            line_bytes_max: crate::writer::ROW_BYTES_MAX + 1024,
            findings_max: 1_000,
            ids_max: 16_000_000,
        }
    }
}

/// Why reading stopped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The operating system failed.
    #[error("cannot read: {message}")]
    Io {
        /// Kind of failure.
        kind: io::ErrorKind,
        /// The system's words.
        message: String,
    },
    /// Strict reading met an oddity.
    #[error("{0}")]
    Finding(Finding),
}

/// Reads rows of one trace from one or more files.
#[derive(Debug)]
pub struct TraceReader<R> {
    options: ReadOptions,
    input: Option<Lines<R>>,
    file: Option<String>,
    /// Digests of request ids.
    ids: BTreeSet<u128>,
    report: ReadReport,
}

impl<R: BufRead> TraceReader<R> {
    /// Starts with the bytes of one file.
    #[must_use]
    pub fn new(input: R, options: ReadOptions) -> Self {
        Self {
            options,
            input: Some(Lines::new(input, options)),
            file: None,
            ids: BTreeSet::new(),
            report: ReadReport::default(),
        }
    }

    /// Names the file in findings from here on.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.file = Some(name.into());
        self
    }

    /// Goes on with another file of the same trace: ids that occurred before are known.
    pub fn next_file(&mut self, input: R, name: Option<String>) {
        self.input = Some(Lines::new(input, self.options));
        self.file = name;
    }

    /// The next row; `None` at the end of the file.
    ///
    /// # Errors
    /// [`ReadError::Io`] when the input fails; [`ReadError::Finding`] in strict mode. After an error the file
    /// is over.
    pub fn next_row(&mut self) -> Result<Option<TraceRow>, ReadError> {
        let row = self.next_row_of_file();
        if !matches!(row, Ok(Some(_))) {
            self.input = None;
        }
        row
    }

    fn next_row_of_file(&mut self) -> Result<Option<TraceRow>, ReadError> {
        loop {
            let Some(lines) = self.input.as_mut() else { return Ok(None) };
            match lines.next_piece() {
                Ok(Piece::End) => return Ok(None),
                Ok(Piece::Damage { member, problem }) => {
                    self.found(Place { file: None, member, line: None }, problem)?;
                }
                Ok(Piece::Line(line)) => {
                    if let Some(row) = self.take_line(line)? {
                        return Ok(Some(row));
                    }
                }
                Err(error) => {
                    return Err(ReadError::Io { kind: error.kind(), message: error.to_string() });
                }
            }
        }
    }

    fn take_line(&mut self, line: Line) -> Result<Option<TraceRow>, ReadError> {
        let place = Place { file: None, member: line.member, line: Some(line.number) };
        let read = rows::read(&line, self.options.payloads);
        if let Some(lines) = self.input.as_mut() {
            lines.give_back(line);
        }
        match read {
            rows::Read::Blank => Ok(None),
            rows::Read::Payload { lost } => {
                self.report.skipped.request_payload += 1;
                self.report.lost.add(lost);
                Ok(None)
            }
            rows::Read::UnknownType { name, lost } => {
                self.report.lost.add(lost);
                self.report.skipped.count_unknown(&name);
                Ok(None)
            }
            rows::Read::Problem(problem) => self.found(place, problem).map(|()| None),
            rows::Read::Row { row, lost, repairs, request_id } => {
                for repair in repairs {
                    self.found(place.clone(), repair)?;
                }
                if let Some(id) = request_id.filter(|id| self.seen(id)) {
                    return self.found(place, Problem::RepeatedId(id)).map(|()| None);
                }
                self.report.lost.add(lost);
                self.report.count(&row);
                Ok(Some(row))
            }
        }
    }

    /// Whether the id occurred before; remembers it otherwise.
    fn seen(&mut self, id: &str) -> bool {
        let digest = xxhash_rust::xxh3::xxh3_128(id.as_bytes());
        if self.ids.len() >= self.options.ids_max {
            self.report.ids_not_checked += 1;
            return self.ids.contains(&digest);
        }
        !self.ids.insert(digest)
    }

    fn found(&mut self, place: Place, problem: Problem) -> Result<(), ReadError> {
        let finding = Finding { place: Place { file: self.file.clone(), ..place }, problem };
        if self.options.strict {
            return Err(ReadError::Finding(finding));
        }
        if self.report.reported.len() < self.options.findings_max {
            self.report.reported.push(finding);
        } else {
            self.report.unlisted += 1;
        }
        Ok(())
    }

    /// What was read and found so far.
    #[must_use]
    pub const fn report(&self) -> &ReadReport {
        &self.report
    }

    /// The final report.
    #[must_use]
    pub fn into_report(self) -> ReadReport {
        self.report
    }
}

impl<R: BufRead> Iterator for TraceReader<R> {
    type Item = Result<TraceRow, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_row().transpose()
    }
}
