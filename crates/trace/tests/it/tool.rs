//! Tool events as harnesses send them.

use proptest::prelude::*;
use serde_json::{Value, json};
use tandem_trace::record::{EventSource, EventType, ToolStatus};
use tandem_trace::tool::{ToolError, decode_http, decode_json, decode_zmq};
use tandem_types::IdError;

/// The shape of the reference system's 1.6.1 decoder.
fn flat() -> Value {
    json!({
        "schema": "dynamo.request.trace.v1", "event_type": "tool_end", "event_time_unix_ms": 1_789_000_001_800u64,
        "session_id": "S", "parent_session_id": "P",
        "tool": {"tool_call_id": "t1", "tool_class": "bash", "status": "ok", "duration_ms": 300.5,
                 "started_at_unix_ms": 1, "ended_at_unix_ms": 2, "output_bytes": 9}
    })
}

/// The shape of the Pi plugin.
fn full() -> Value {
    let mut event = flat();
    let map = event.as_object_mut().expect("an object");
    map.remove("session_id");
    map.remove("parent_session_id");
    map.insert("event_source".to_owned(), json!("harness"));
    map.insert("agent_context".to_owned(), json!({"session_id": "S", "parent_session_id": "P"}));
    event
}

fn packed(event: &Value) -> Vec<u8> {
    rmp_serde::to_vec_named(event).expect("packs")
}

fn changed(path: &str, value: Value) -> Value {
    let mut event = flat();
    *event.pointer_mut(path).expect("is there") = value;
    event
}

fn refusal(event: &Value) -> ToolError {
    let json = decode_json(event.to_string().as_bytes()).expect_err("refused");
    let frames = [b"t".to_vec(), vec![0; 8], packed(event)];
    assert_eq!(decode_zmq(&frames, None).expect_err("refused"), json, "both ways the same");
    json
}

/// I-TOL-1.
#[test]
fn both_shapes_give_the_same_row_over_both_ways() {
    for event in [flat(), full()] {
        let frames = [b"agent-tool-events".to_vec(), 258u64.to_be_bytes().to_vec(), packed(&event)];
        let got = decode_zmq(&frames, Some("agent-tool-events")).expect("decodes");
        assert_eq!(got.sequence, 258);
        let row = serde_json::to_value(&got.record).expect("encodes");
        assert_eq!(
            row,
            json!({
                "schema": "dynamo.request.trace.v1", "event_type": "tool_end",
                "event_time_unix_ms": 1_789_000_001_800u64, "event_source": "harness",
                "agent_context": {"session_id": "S", "parent_session_id": "P"},
                "tool": {"tool_call_id": "t1", "tool_class": "bash", "started_at_unix_ms": 1,
                         "ended_at_unix_ms": 2, "status": "succeeded", "duration_ms": 300.5, "output_bytes": 9}
            })
        );
        let over_http = decode_json(event.to_string().as_bytes()).expect("decodes");
        assert_eq!(serde_json::to_value(&over_http).expect("encodes"), row);
    }
}

#[test]
fn every_status_word_and_alias_is_known() {
    for (word, status) in [
        ("running", ToolStatus::Running),
        ("succeeded", ToolStatus::Succeeded),
        ("ok", ToolStatus::Succeeded),
        ("success", ToolStatus::Succeeded),
        ("error", ToolStatus::Error),
        ("failed", ToolStatus::Error),
        ("cancelled", ToolStatus::Cancelled),
        ("canceled", ToolStatus::Cancelled),
        ("timeout", ToolStatus::Cancelled),
    ] {
        let event = changed("/tool/status", json!(word)).to_string();
        let record = decode_json(event.as_bytes()).expect("decodes");
        assert_eq!(record.tool.and_then(|tool| tool.status), Some(status), "{word}");
        // Rows of files take the same words.
        let row: ToolStatus = serde_json::from_value(json!(word)).expect("known");
        assert_eq!(row, status);
    }
    assert_eq!(refusal(&changed("/tool/status", json!("done"))), ToolError::Status);
}

#[test]
fn frames_are_checked_before_the_event() {
    let event = packed(&flat());
    let zmq = |frames: &[&[u8]], topic| decode_zmq(frames, topic).map(|got| got.sequence);
    assert_eq!(zmq(&[b"t", &event], None), Err(ToolError::Frames(2)));
    assert_eq!(zmq(&[b"t", &[0; 8], &event], Some("other")), Err(ToolError::Topic));
    assert_eq!(zmq(&[b"t", &[0; 7], &event], Some("t")), Err(ToolError::Sequence(7)));
    assert_eq!(zmq(&[b"", &[0, 0, 0, 0, 0, 0, 0, 3], &event], None), Ok(3));
    let huge = vec![0; 300_000];
    assert!(matches!(zmq(&[b"t", &[0; 8], &huge], None), Err(ToolError::TooLong { .. })));
    assert!(zmq(&[b"t", &[0; 8], &event[..event.len() / 2]], None).is_err());
}

/// I-TOL-2.
#[test]
fn what_would_break_a_loader_is_refused_with_its_reason() {
    assert_eq!(refusal(&changed("/schema", json!("v2"))), ToolError::Schema);
    assert_eq!(refusal(&changed("/event_type", json!("request_end"))), ToolError::EventType);
    assert_eq!(refusal(&changed("/session_id", json!("a b"))), ToolError::Session(IdError::NotVisibleAscii));
    assert_eq!(refusal(&changed("/session_id", json!(" "))), ToolError::Session(IdError::Empty));
    assert_eq!(
        refusal(&changed("/session_id", json!("x".repeat(257)))),
        ToolError::Session(IdError::TooLong)
    );
    assert_eq!(refusal(&changed("/session_id", Value::Null)), ToolError::NoSession);
    assert_eq!(refusal(&changed("/tool", Value::Null)), ToolError::NoTool);
    assert_eq!(refusal(&changed("/tool/tool_call_id", json!(" "))), ToolError::Text("tool_call_id"));
    assert_eq!(refusal(&changed("/tool/tool_class", json!("c".repeat(257)))), ToolError::Text("tool_class"));
    assert_eq!(refusal(&changed("/tool/duration_ms", json!(-0.5))), ToolError::Duration);
    assert_eq!(refusal(&changed("/tool/started_at_unix_ms", json!(3))), ToolError::Span);
    let mut event = full();
    event["event_source"] = json!("dynamo");
    assert_eq!(refusal(&event), ToolError::Source);
    let mut event = flat();
    event["request"] = json!({"request_id": "r"});
    assert_eq!(refusal(&event), ToolError::Foreign);
    // Only msgpack can say that a number is none.
    let mut bytes = packed(&flat());
    let at = bytes.windows(8).position(|w| w == 300.5f64.to_be_bytes()).expect("is there");
    bytes[at..at + 8].copy_from_slice(&f64::NAN.to_be_bytes());
    let frames = [b"t".to_vec(), vec![0; 8], bytes];
    assert_eq!(decode_zmq(&frames, None).expect_err("refused"), ToolError::Duration);
}

#[test]
fn a_session_is_not_its_own_parent_and_a_blank_parent_is_none() {
    for parent in ["S", " "] {
        let event = changed("/parent_session_id", json!(parent)).to_string();
        let record = decode_json(event.as_bytes()).expect("decodes");
        assert_eq!(record.agent_context.and_then(|agent| agent.parent_session_id), None);
        assert_eq!(
            (record.event_source, record.event_type),
            (Some(EventSource::Harness), EventType::ToolEnd)
        );
    }
}

#[test]
fn a_body_is_one_event_or_an_array_or_lines() {
    let one = flat().to_string();
    let pretty = serde_json::to_string_pretty(&flat()).expect("encodes");
    for (body, count) in [
        (one.clone(), 1),
        (pretty, 1),
        (format!(" [{one},{one}]"), 2),
        (format!("{one}\r\n\n{one}\n"), 2),
        (format!("\u{feff}{one}"), 1),
    ] {
        let events = decode_http(body.as_bytes()).expect("decodes");
        assert_eq!((events.accepted.len(), events.refused.as_slice()), (count, &[][..]), "{body}");
    }
    assert_eq!(decode_http(b" \n").err(), Some(ToolError::Empty));
    assert_eq!(decode_http(b"[]").err(), Some(ToolError::Empty));
    assert_eq!(decode_http(b"[{]").err(), Some(ToolError::Syntax));
    assert!(matches!(decode_http(&vec![b' '; 5 << 20]).err(), Some(ToolError::TooLong { .. })));
    assert_eq!(decode_http("{} ".repeat(10_001).as_bytes()).err(), Some(ToolError::TooMany));
}

/// I-TOL-3.
#[test]
fn one_bad_event_costs_no_other() {
    let one = flat().to_string();
    let body = format!("{one}\n{{oops\n{one}\n{{}}\n{one}");
    let events = decode_http(body.as_bytes()).expect("decodes");
    assert_eq!(events.accepted.len(), 3);
    assert_eq!(events.refused, [(1, ToolError::Syntax), (3, ToolError::Shape)]);
    let body = format!("[{one},{{}},{one}]");
    let events = decode_http(body.as_bytes()).expect("decodes");
    assert_eq!((events.accepted.len(), events.refused), (2, vec![(1, ToolError::Shape)]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn arbitrary_bytes_never_panic(
        mut noise in prop::collection::vec(any::<u8>(), 0..400),
        flip in 0usize..400,
        byte in any::<u8>(),
    ) {
        let _ = decode_http(&noise);
        let _ = decode_zmq(&[b"t".to_vec(), vec![0; 8], noise.clone()], None);
        noise.clear();
        let mut event = packed(&full());
        let at = flip % event.len();
        event[at] = byte;
        let _ = decode_zmq(&[b"t".to_vec(), vec![0; 8], event], None);
    }
}
