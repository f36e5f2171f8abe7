//! What users of traces depend on, against files of the reference system and independent values.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests may fail a test"
)]

mod config;
mod corpus;
mod files;
mod hashes;
mod loading;
mod rows;
mod salvage;
mod tool;
mod writing;

use tandem_trace::reader::{ReadOptions, ReadReport, TraceReader};
use tandem_trace::record::{AgentContextRecord, Extras, Replay, RequestRecord};
use tandem_trace::{Record, TraceRow};

/// Reads all there is, leniently.
fn read_all(bytes: &[u8]) -> (Vec<TraceRow>, ReadReport) {
    let mut reader = TraceReader::new(bytes, ReadOptions::default());
    let rows: Result<Vec<_>, _> = reader.by_ref().collect();
    (rows.expect("lenient reading of memory fails never"), reader.into_report())
}

/// Ids of request rows, in order.
fn ids(rows: &[TraceRow]) -> Vec<String> {
    rows.iter()
        .filter_map(|row| match row {
            TraceRow::V1(record) => record.request.as_ref().map(|request| request.request_id.clone()),
            TraceRow::Own(_) => None,
        })
        .collect()
}

/// A turn that a v1 loader takes.
fn turn(id: &str) -> Record {
    let request = RequestRecord {
        model: Some("tiny".to_owned()),
        input_tokens: Some(20),
        output_tokens: Some(3),
        request_received_ms: Some(1_789_000_000_000),
        total_time_ms: Some(500.0),
        replay: Some(Replay {
            trace_block_size: 16,
            input_length: 20,
            input_sequence_hashes: vec![11, 12],
            output_sequence_hashes: vec![13],
            dependencies: Vec::new(),
        }),
        ..RequestRecord::new(id)
    };
    let agent = AgentContextRecord { session_id: "s".to_owned(), ..AgentContextRecord::default() };
    Record::request_end(1_789_000_000_500, Some(agent), request, Extras::default())
}
