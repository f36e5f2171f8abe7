//! Rules of the reference loader, restated and applied to what we write: a row in the main file must pass.

use std::collections::BTreeSet;

use serde_json::Value;
use tandem_trace::record::{Extras, Loss, RequestRecord, Rows};
use tandem_trace::writer::{Fanout, JsonlWriter, Stream, WriterConfig};
use tandem_trace::{Record, TraceRow, files::AppendPath};
use tandem_types::{RequestClass, Time};

use crate::turn;

/// What aisimulate-core 0.13.0 asks of a file, row by row.
fn loads(text: &str) -> Result<usize, String> {
    let mut ids = BTreeSet::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let value: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
        let row = value.get("event").unwrap_or(&value);
        match row["event_type"].as_str() {
            Some("request_payload" | "tool_start") => continue,
            Some("request_end" | "tool_end" | "tool_error") => {}
            other => return Err(format!("event type {other:?}")),
        }
        if row["schema"] != "dynamo.request.trace.v1" || !row["event_time_unix_ms"].is_u64() {
            return Err("envelope".to_owned());
        }
        if row["event_type"] == "request_end" {
            let request = &row["request"];
            let replay = &request["replay"];
            let (Some(size), Some(length)) =
                (replay["trace_block_size"].as_u64(), replay["input_length"].as_u64())
            else {
                return Err("no replay".to_owned());
            };
            let hashes = replay["input_sequence_hashes"].as_array().ok_or("no hashes")?;
            if u64::try_from(hashes.len()) != Ok(length.div_ceil(size)) || length == 0 {
                return Err("number of hashes".to_owned());
            }
            request["output_tokens"].as_u64().filter(|count| *count > 0).ok_or("no output")?;
            let id = request["request_id"].as_str().ok_or("no id")?;
            if !ids.insert(id.to_owned()) {
                return Err("repeated id".to_owned());
            }
        }
    }
    if ids.is_empty() { Err("no requests".to_owned()) } else { Ok(ids.len()) }
}

/// I-TRC-1, I-TRC-2.
#[test]
fn the_main_file_of_mixed_traffic_passes_the_rules_of_the_reference_loader() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.jsonl");
    let mut fanout = Fanout::new(Rows::Loadable);
    let sink = JsonlWriter::new(AppendPath(path.clone()), WriterConfig::default(), Time::ZERO);
    fanout.add(Stream::Main, Box::new(sink));
    let mut rows: Vec<TraceRow> = vec![turn("a").into()];
    for (index, spoil) in [
        |r: &mut RequestRecord| r.replay = None,
        |r: &mut RequestRecord| r.output_tokens = None,
        |r: &mut RequestRecord| r.output_tokens = Some(0),
        |r: &mut RequestRecord| r.request_received_ms = None,
        |r: &mut RequestRecord| r.replay.as_mut().expect("is there").input_sequence_hashes.clear(),
        |r: &mut RequestRecord| r.replay.as_mut().expect("is there").trace_block_size = 0,
    ]
    .into_iter()
    .enumerate()
    {
        let mut record = turn(&format!("spoilt {index}"));
        spoil(record.request.as_mut().expect("a request"));
        rows.push(record.into());
    }
    let title = Extras { class: RequestClass::Title, ..Extras::default() };
    let request = turn("title").request.expect("a request");
    rows.push(Record::request_end(1, None, request, title).into());
    rows.push(turn("b").into());
    for row in rows {
        fanout.record(Time::ZERO, row);
    }
    fanout.lost(2);
    fanout.close(Time::ZERO, 5);
    let text = std::fs::read_to_string(&path).expect("is there");
    assert_eq!(loads(&text), Ok(2), "{text}");
    let lost: Loss = crate::read_all(text.as_bytes()).1.lost;
    assert_eq!(lost.queue_full, 2);
}
