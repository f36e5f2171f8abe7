//! Rows against those that the reference system wrote.

use serde_json::Value;
use tandem_trace::record::{
    AdmissionAction, AdmissionEvent, AgentContextRecord, ChoiceRecord, EventSource, Extras,
    FinishReasonMetadata, OwnEvent, OwnKind, RequestRecord,
};
use tandem_trace::{Record, TraceRow};
use tandem_types::{
    AgentContext, AgentId, Dialect, Harness, HarnessFacts, IdentitySource, InputTrigger, ProgramKey,
    RequestClass, SessionId, TenantId, TurnFacts,
};

use crate::{ids, read_all};

const SAMPLE: &str = include_str!("../fixtures/dynamo-1.6.1-request-trace.jsonl");

/// The text of the row inside its wrapper.
fn inner(line: &str) -> &str {
    let start = line.find("\"event\":").expect("wrapped") + "\"event\":".len();
    &line[start..line.len() - 1]
}

#[test]
fn rows_of_the_reference_system_come_out_byte_for_byte() {
    for line in SAMPLE.lines() {
        let record: Record = serde_json::from_str(inner(line)).expect("a row of v1");
        assert_eq!(serde_json::to_string(&record).expect("encodes"), inner(line));
    }
}

#[test]
fn the_reader_takes_them_and_finds_nothing_odd() {
    let (rows, report) = read_all(SAMPLE.as_bytes());
    assert_eq!((rows.len(), report.request_end_rows), (5, 5));
    assert!(report.is_clean(), "{report:?}");
    assert!(rows.iter().all(|row| matches!(row, TraceRow::V1(r) if r.why_not_loadable().is_none())));
    assert_eq!(ids(&rows)[4], "9ea33b43-2b4f-4819-be3c-4726b9ddcf4f");
}

#[test]
fn a_row_of_ours_has_the_same_members_in_the_same_order_and_one_more() {
    let sample: Record = serde_json::from_str(inner(SAMPLE.lines().next().expect("a row"))).expect("v1");
    let ours = Record::request_end(
        sample.event_time_unix_ms,
        sample.agent_context.clone(),
        sample.request.clone().expect("a request"),
        Extras::default(),
    );
    let text = serde_json::to_string(&ours).expect("encodes");
    let reference = serde_json::to_string(&sample).expect("encodes");
    let shared = text.strip_suffix('}').and_then(|t| t.rsplit_once(",\"tandem\":")).expect("has our member");
    assert_eq!(format!("{}}}", shared.0), reference);
}

#[test]
fn a_row_without_identity_names_no_model_and_no_finish_reason_outside_of_our_member() {
    let request = RequestRecord {
        x_request_id: Some("x".to_owned()),
        model: Some("tiny".to_owned()),
        ttft_ms: Some(f64::NAN),
        total_time_ms: Some(f64::INFINITY),
        finish_reason_metadata: Some(FinishReasonMetadata {
            finish_reason: Some("stop".to_owned()),
            choices: vec![ChoiceRecord::default()],
            ..FinishReasonMetadata::default()
        }),
        ..RequestRecord::new("r")
    };
    let row = Record::request_end(7, None, request, Extras::default());
    let json: Value = serde_json::to_value(&row).expect("encodes");
    assert_eq!(json["request"], serde_json::json!({"request_id": "r"}));
    assert_eq!(
        (&json["tandem"]["model"], &json["tandem"]["finish_reason"]),
        (&"tiny".into(), &"stop".into())
    );
    assert!(json.get("event_source").is_none() && json.get("agent_context").is_none());
}

#[test]
fn identity_of_a_subagent_is_written_the_way_v1_readers_expect() {
    let tenant = TenantId::default();
    let session = SessionId::new("root").expect("valid");
    let program =
        ProgramKey { agent: AgentId::new("child").ok(), ..ProgramKey::root(tenant.clone(), session.clone()) };
    let agent = AgentContext {
        program,
        parent: Some(ProgramKey::root(tenant, session)),
        group: None,
        session_final: Some(true),
        source: IdentitySource::ClaudeCode,
    };
    let facts = HarnessFacts { agent_type: Some("explore".to_owned()), ..HarnessFacts::default() };
    let context = AgentContextRecord::new(&agent, &facts, InputTrigger::ToolResult);
    assert_eq!(
        serde_json::to_string(&context).expect("encodes"),
        r#"{"session_id":"child","parent_session_id":"root","session_final":true,"input_trigger":"tool_result"}"#
    );
    let turn = TurnFacts {
        dialect: Dialect::Messages,
        model: None,
        stream: true,
        include_usage: false,
        choices: 2,
        max_output_tokens: Some(9),
        multimodal: true,
        input_trigger: InputTrigger::ToolResult,
        ids: tandem_types::BodyIds::default(),
        shape: tandem_types::PromptShape::default(),
        prompt_tokens: None,
        digest: 0,
    };
    let extras = Extras::arrived(Some(&agent), RequestClass::Turn, Harness::ClaudeCode, &facts, &turn);
    assert_eq!(
        serde_json::to_value(&extras).expect("encodes"),
        serde_json::json!({
            "tenant": "default", "root_session": "root", "agent": "child", "identity_source": "claude_code",
            "class": "turn", "harness": "claude_code", "agent_type": "explore", "dialect": "messages",
            "stream": true, "choices": 2, "multimodal": true, "max_output_tokens": 9,
            "outcome": {"result": "finished"}, "attempts": 0,
        })
    );
}

#[test]
fn words_that_only_newer_writers_know_cost_no_row() {
    let line = r#"{"schema":"dynamo.request.trace.v1","event_type":"request_end","event_time_unix_ms":1,
        "event_source":"router","agent_context":{"session_id":"s","input_trigger":"cron","more":{}},
        "request":{"request_id":"r","brand_new":[1]},"future":true}"#
        .replace('\n', " ");
    let (rows, report) = read_all(line.as_bytes());
    assert!(report.is_clean(), "{report:?}");
    let Some(TraceRow::V1(record)) = rows.first() else { panic!("one row of v1") };
    assert_eq!(record.event_source, Some(EventSource::Other));
    assert_eq!(record.agent_context.as_ref().map(|agent| agent.input_trigger), Some(None));
}

#[test]
fn rows_of_ours_come_back_as_they_were() {
    let event = OwnEvent::new(
        5,
        OwnKind::Admission(AdmissionEvent {
            session_id: Some("s".to_owned()),
            reason: Some("queue_full".to_owned()),
            retry_after_s: Some(5),
            ..AdmissionEvent::new("r".to_owned(), AdmissionAction::Rejected)
        }),
    );
    let text = serde_json::to_string(&event).expect("encodes");
    assert!(
        text.starts_with(r#"{"schema":"tandem.trace.v1","event_time_unix_ms":5,"event_type":"admission""#)
    );
    let (rows, report) = read_all(text.as_bytes());
    assert_eq!(report.own_rows, 1);
    assert!(matches!(rows.first(), Some(TraceRow::Own(back)) if **back == event));
}
