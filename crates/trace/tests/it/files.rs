//! The real file system.

use std::fs;

use tandem_trace::config::{FileFormat, SinkKind, TraceConfig};
use tandem_trace::files::{existing_files, open_sinks};
use tandem_trace::record::TraceStart;
use tandem_types::Time;

use crate::{ids, read_all, turn};

fn trace(config: &TraceConfig, id: &str) {
    let mut fanout = open_sinks(config, Time::ZERO, Box::new(std::io::sink())).expect("opens");
    fanout.start(Time::ZERO, 1, TraceStart::default());
    fanout.record(Time::ZERO, turn(id).into());
    assert!(fanout.close(Time::ZERO, 2).iter().all(|close| close.error.is_none()));
}

/// I-FIL-1, I-FIL-2.
#[test]
fn segments_are_numbered_on_and_never_appended_to() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("made/later/trace");
    let config = TraceConfig { path: path.clone(), ..TraceConfig::default() };
    trace(&config, "a");
    let first = fs::read(path.with_file_name("trace.000000.jsonl.gz")).expect("the first segment");
    fs::write(path.with_file_name("trace.000041.jsonl.gz"), b"theirs").expect("writes");
    fs::write(path.with_file_name("trace.x.jsonl.gz"), b"no segment").expect("writes");
    trace(&config, "b");
    assert_eq!(fs::read(path.with_file_name("trace.000000.jsonl.gz")).expect("is there"), first);
    let last = fs::read(path.with_file_name("trace.000042.jsonl.gz")).expect("the next segment");
    assert_eq!(ids(&read_all(&last).0), ["b"]);
    let names: Vec<String> = existing_files(&path, FileFormat::JsonlGz)
        .expect("lists")
        .iter()
        .filter_map(|file| Some(file.file_name()?.to_str()?.to_owned()))
        .collect();
    assert_eq!(
        names,
        [
            "trace.000000.jsonl.gz",
            "trace.000041.jsonl.gz",
            "trace.000042.jsonl.gz",
            "trace.000000.jsonl.tandem.gz",
            "trace.000001.jsonl.tandem.gz",
        ]
    );
}

#[test]
fn a_plain_file_is_appended_to_and_a_cut_line_is_ended_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace.jsonl");
    let config = TraceConfig { path: path.clone(), format: FileFormat::Jsonl, ..TraceConfig::default() };
    trace(&config, "a");
    let mut text = fs::read(&path).expect("is there");
    text.extend_from_slice(b"{\"timestamp\":1,\"ev");
    fs::write(&path, text).expect("writes");
    trace(&config, "b");
    let (rows, report) = read_all(&fs::read(&path).expect("is there"));
    assert_eq!(ids(&rows), ["a", "b"]);
    assert_eq!(report.reported.len(), 1);
    let companion = read_all(&fs::read(folder.path().join("trace.jsonl.tandem")).expect("the companion"));
    assert_eq!(companion.1.own_rows, 4, "two starts and two ends");
    assert_eq!(existing_files(&path, FileFormat::Jsonl).expect("lists").len(), 2);
}

#[test]
fn a_path_that_cannot_be_written_is_an_error_at_start_that_names_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let blocker = folder.path().join("file");
    fs::write(&blocker, b"").expect("writes");
    for format in [FileFormat::Jsonl, FileFormat::JsonlGz] {
        let config = TraceConfig { path: blocker.join("trace"), format, ..TraceConfig::default() };
        let error = open_sinks(&config, Time::ZERO, Box::new(std::io::sink())).err().expect("an error");
        assert!(error.to_string().starts_with("cannot open trace file: "), "{error}");
        assert!(error.to_string().contains("file/trace"), "{error}");
    }
}

#[test]
fn without_a_file_sink_no_file_is_made() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = TraceConfig {
        path: folder.path().join("trace"),
        sinks: vec![SinkKind::Stderr],
        ..TraceConfig::default()
    };
    trace(&config, "a");
    assert_eq!(fs::read_dir(folder.path()).expect("lists").count(), 0);
}
