//! Trace files: any bytes are read without a panic, how they arrive changes nothing, strict reading agrees
//! with lenient reading, and what is read can be written and read again.

use std::io::BufReader;

use tandem_trace::TraceRow;
use tandem_trace::reader::{Problem, ReadOptions, ReadReport, TraceReader};
use tandem_trace::record::Loss;
use tandem_trace::writer::EncodedRow;

/// The first byte says in which portions the file is read, the rest is the file.
pub fn check(data: &[u8]) {
    let [step, file @ ..] = data else { return };
    let (rows, report) = read(file, file.len().max(1), false);
    // What can be saved of a damaged member depends on the portions in which it is unpacked.
    let damaged = |report: &ReadReport| report.reported.iter().any(|f| f.problem == Problem::DamagedMember);
    for portion in [usize::from(*step) + 1, 1] {
        let other = read(file, portion, false);
        if !damaged(&report) && !damaged(&other.1) {
            assert_eq!(other, (rows.clone(), report.clone()), "read in portions of {portion}");
        }
    }
    let (strict_rows, _) = read(file, file.len().max(1), true);
    assert!(rows.starts_with(&strict_rows), "strict reading gives the rows before the first oddity");
    if report.reported.is_empty() {
        assert_eq!(strict_rows, rows, "nothing is odd");
    }
    for row in &rows {
        let (again, report) = read(row, row.len(), true);
        assert_eq!(again, [row.as_slice()], "{report:?}");
    }
}

/// Rows as the writer encodes them, and the report.
fn read(file: &[u8], portion: usize, strict: bool) -> (Vec<Vec<u8>>, ReadReport) {
    let options = ReadOptions { strict, payloads: true, line_bytes_max: 1 << 20, ..ReadOptions::default() };
    let mut reader = TraceReader::new(BufReader::with_capacity(portion, file), options);
    let mut rows = Vec::new();
    while let Ok(Some(row)) = reader.next_row() {
        rows.push(encoded(&row));
    }
    (rows, reader.into_report())
}

fn encoded(row: &TraceRow) -> Vec<u8> {
    EncodedRow::new(row).map(|row| row.bare(Loss::default())).unwrap_or_default()
}
