//! Settings by name.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use tandem_trace::config::{
    ConfigError, ConfigWarning, FileFormat, Records, Resolved, SinkKind, ToolZmq, TraceConfig, resolve,
    unknown_keys,
};
use tandem_trace::record::Rows;

fn with(settings: &[(&str, &str)]) -> Result<Resolved, ConfigError> {
    let settings: BTreeMap<&str, &str> = settings.iter().copied().collect();
    resolve(|key| settings.get(key).map(|value| (*value).to_owned()))
}

fn clean(settings: &[(&str, &str)]) -> TraceConfig {
    let resolved = with(settings).expect("usable");
    assert_eq!(resolved.warnings, []);
    resolved.trace.expect("on")
}

#[test]
fn off_unless_switched_on() {
    assert_eq!(with(&[]), Ok(Resolved::default()));
    assert_eq!(with(&[("DYN_REQUEST_TRACE", "0")]).map(|r| r.trace), Ok(None));
    assert_eq!(with(&[("TANDEM_TRACE_PATH", "/x")]).map(|r| r.trace), Ok(None));
}

#[test]
fn either_switch_gives_the_reference_defaults() {
    for switch in ["TANDEM_TRACE", "DYN_REQUEST_TRACE"] {
        for value in ["1", "true", " YES ", "on"] {
            let trace = clean(&[(switch, value)]);
            assert_eq!(trace, TraceConfig::default());
        }
    }
    let trace = TraceConfig::default();
    assert_eq!(trace.path, PathBuf::from("/tmp/dynamo-request-trace"));
    assert_eq!((trace.format, trace.capacity), (FileFormat::JsonlGz, 1024));
    assert_eq!((trace.buffer_bytes, trace.flush_interval), (1 << 20, Duration::from_secs(1)));
    assert_eq!((trace.roll_bytes, trace.roll_lines), (256 << 20, None));
    assert!(!trace.records.request_payload, "no content unless asked for by name");
}

#[test]
fn our_switch_set_to_off_wins_over_everything() {
    let off = with(&[
        ("TANDEM_TRACE", "off"),
        ("DYN_REQUEST_TRACE", "1"),
        ("DYN_REQUEST_TRACE_RECORDS", "request_end"),
    ]);
    assert_eq!(off.map(|r| r.trace), Ok(None));
}

#[test]
fn every_reference_setting_is_read() {
    let trace = clean(&[
        ("DYN_REQUEST_TRACE", "1"),
        ("DYN_REQUEST_TRACE_SINKS", "file, stderr,otel"),
        ("DYN_REQUEST_TRACE_FILE_PATH", "/data/t"),
        ("DYN_REQUEST_TRACE_FILE_FORMAT", "JSONL"),
        ("DYN_REQUEST_TRACE_CAPACITY", "7"),
        ("DYN_REQUEST_TRACE_FILE_BUFFER_BYTES", "8"),
        ("DYN_REQUEST_TRACE_FILE_FLUSH_INTERVAL_MS", "9"),
        ("DYN_REQUEST_TRACE_FILE_ROLL_BYTES", "10"),
        ("DYN_REQUEST_TRACE_FILE_ROLL_LINES", "11"),
        ("DYN_REQUEST_TRACE_OTEL_MAX_PAYLOAD_BYTES", "12"),
        ("DYN_REQUEST_TRACE_HTTP_HEADER_CAPTURE_LIST", "X-A, x-b x-a"),
        ("DYN_REQUEST_TRACE_TOOL_EVENTS_ZMQ_ENDPOINT", "tcp://127.0.0.1:5555"),
        ("DYN_REQUEST_TRACE_OUTPUT_SEQUENCE_HASHES", "false"),
    ]);
    assert_eq!(trace.sinks, [SinkKind::File, SinkKind::Stderr, SinkKind::Otel]);
    assert_eq!((trace.path, trace.format), (PathBuf::from("/data/t"), FileFormat::Jsonl));
    assert_eq!((trace.capacity, trace.buffer_bytes), (7, 8));
    assert_eq!((trace.flush_interval, trace.roll_bytes), (Duration::from_millis(9), 10));
    assert_eq!((trace.roll_lines, trace.otel_payload_bytes_max), (Some(11), 12));
    assert_eq!(trace.payload_headers, ["x-a", "x-b"]);
    let zmq = ToolZmq { endpoint: "tcp://127.0.0.1:5555".to_owned(), topic: "agent-tool-events".to_owned() };
    assert_eq!((trace.tool_zmq, trace.output_hashes), (Some(zmq), false));
}

/// I-TCF-1.
#[test]
fn older_names_are_read_last() {
    let trace = clean(&[
        ("DYN_REQUEST_TRACE", "1"),
        ("DYN_AUDIT_SINKS", "jsonl"),
        ("DYN_AUDIT_OUTPUT_PATH", "/old"),
        ("DYN_REQUEST_TRACE_JSONL_BUFFER_BYTES", "5"),
        ("DYN_AUDIT_JSONL_GZ_ROLL_LINES", "6"),
    ]);
    assert_eq!((trace.path, trace.format), (PathBuf::from("/old"), FileFormat::Jsonl));
    assert_eq!((trace.buffer_bytes, trace.roll_lines), (5, Some(6)));
    let resolved = with(&[
        ("DYN_REQUEST_TRACE", "1"),
        ("TANDEM_TRACE_PATH", "/ours"),
        ("DYN_REQUEST_TRACE_OUTPUT_PATH", "/theirs"),
    ])
    .expect("usable");
    assert_eq!(resolved.trace.map(|trace| trace.path), Some(PathBuf::from("/ours")));
    let told = ConfigWarning::Overridden {
        by: "TANDEM_TRACE_PATH".to_owned(),
        key: "DYN_REQUEST_TRACE_OUTPUT_PATH".to_owned(),
    };
    assert_eq!(resolved.warnings, [told]);
}

#[test]
fn the_old_audit_switch_traces_content_only() {
    let trace = clean(&[("DYN_AUDIT_FORCE_LOGGING", "1")]);
    let payload = Records { request_end: false, tool: false, decision: false, request_payload: true };
    assert_eq!(trace.records, payload);
    let both = clean(&[("TANDEM_TRACE", "1"), ("DYN_AUDIT_FORCE_LOGGING", "1")]);
    assert_eq!(both.records, Records { request_payload: true, ..Records::default() });
}

#[test]
fn a_list_of_records_switches_on_by_itself_and_replaces_the_default() {
    let trace = clean(&[("DYN_REQUEST_TRACE_RECORDS", "tool_start, request_payload")]);
    assert_eq!(
        trace.records,
        Records { request_end: false, tool: true, decision: false, request_payload: true }
    );
    let resolved = with(&[("TANDEM_TRACE_RECORDS", "request_end,nonsense")]).expect("usable");
    assert_eq!(resolved.warnings.len(), 1);
    assert!(matches!(with(&[("TANDEM_TRACE_RECORDS", "nonsense")]), Err(ConfigError::NoUsableRecord { .. })));
}

#[test]
fn legacy_sink_names_choose_the_format_and_gzip_wins() {
    let format = |sinks| clean(&[("TANDEM_TRACE", "1"), ("TANDEM_TRACE_SINKS", sinks)]).format;
    assert_eq!(format("jsonl"), FileFormat::Jsonl);
    assert_eq!(format("jsonl,jsonl_gz"), FileFormat::JsonlGz);
    assert_eq!(format("jsonl_gz,jsonl"), FileFormat::JsonlGz);
    let explicit =
        clean(&[("TANDEM_TRACE", "1"), ("TANDEM_TRACE_SINKS", "jsonl_gz"), ("TANDEM_TRACE_FORMAT", "jsonl")]);
    assert_eq!(explicit.format, FileFormat::Jsonl);
}

/// I-TCF-3.
#[test]
fn sinks_that_do_not_exist_are_told_and_never_replaced() {
    let resolved = with(&[("TANDEM_TRACE", "1"), ("TANDEM_TRACE_SINKS", "s3,stderr,disk")]).expect("usable");
    assert_eq!(resolved.trace.map(|trace| trace.sinks), Some(vec![SinkKind::Stderr]));
    let told: Vec<String> = resolved.warnings.iter().map(ToString::to_string).collect();
    assert!(told[0].contains("no \"s3\" sink") && told[1].contains("\"disk\" is not known"), "{told:?}");
    for sinks in ["nats", "s3,nats", "disk"] {
        let error = with(&[("DYN_REQUEST_TRACE", "1"), ("DYN_REQUEST_TRACE_SINKS", sinks)]);
        assert!(matches!(error, Err(ConfigError::NoUsableSink { .. })), "{error:?}");
    }
}

/// I-TCF-2.
#[test]
fn numbers_that_make_no_sense_give_the_next_name_or_the_default_and_a_warning() {
    let resolved = with(&[
        ("TANDEM_TRACE", "1"),
        ("TANDEM_TRACE_CAPACITY", "many"),
        ("DYN_REQUEST_TRACE_CAPACITY", "9"),
        ("TANDEM_TRACE_ROLL_BYTES", "0"),
        ("TANDEM_TRACE_FLUSH_INTERVAL_MS", "-1"),
        ("TANDEM_TRACE_ROWS", "some"),
    ])
    .expect("usable");
    let trace = resolved.trace.expect("on");
    assert_eq!((trace.capacity, trace.roll_bytes), (9, 256 << 20));
    assert_eq!((trace.flush_interval, trace.rows), (Duration::from_secs(1), Rows::Loadable));
    assert_eq!(resolved.warnings.len(), 4);
}

#[test]
fn misspelt_names_are_found_among_all_names() {
    let names = ["TANDEM_TRACE", "TANDEM_TRACE_PAHT", "DYN_REQUEST_TRACE_S3_BUCKET", "PATH", "DYN_AUDIT_X"];
    let told: Vec<String> = unknown_keys(names).iter().map(ToString::to_string).collect();
    assert_eq!(told, ["TANDEM_TRACE_PAHT is not a setting", "DYN_AUDIT_X is not a setting"]);
}
