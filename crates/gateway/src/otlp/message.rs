//! From a row to a log record.

use std::borrow::Cow;

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs, SeverityNumber};
use opentelemetry_proto::tonic::resource::v1::Resource;
use serde::Deserialize;
use tandem_trace::Record;
use tandem_trace::record::{Loss, SCHEMA_V1};
use tandem_trace::writer::EncodedRow;

/// Scope of rows of the reference schema; the reference system uses it.
const SCOPE_V1: &str = "dynamo.request_trace";
/// Scope of our own rows.
const SCOPE_OWN: &str = "tandem.trace";

/// A row as a log record.
pub(super) struct Made {
    /// Of the reference schema.
    pub(super) v1: bool,
    pub(super) record: LogRecord,
}

/// What is told of a row beside its text.
#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow)]
    schema: Cow<'a, str>,
    #[serde(borrow)]
    event_type: Cow<'a, str>,
    event_time_unix_ms: u64,
    agent_context: Option<Agent>,
    request: Option<About>,
    payload: Option<About>,
    // Rows of ours carry them at the top.
    session_id: Option<String>,
    request_id: Option<String>,
}

#[derive(Deserialize)]
struct Agent {
    session_id: String,
}

#[derive(Deserialize)]
struct About {
    request_id: String,
    model: Option<String>,
    endpoint: Option<String>,
    payload_complete: Option<bool>,
    payload_drop_reason: Option<String>,
}

/// Makes a record of a row; `loss` is written into it. `None` when the row is longer than `bytes_max` and not
/// because of content, which can be left out.
pub(super) fn record(row: &EncodedRow, loss: Loss, bytes_max: usize, observed_ms: u64) -> Option<Made> {
    let text = String::from_utf8(row.bare(loss)).ok()?;
    let text = if row.len() > bytes_max { without_content(&text, row.len(), bytes_max)? } else { text };
    let head: Head<'_> = serde_json::from_str(&text).ok()?;
    let v1 = head.schema == SCHEMA_V1;
    let time_unix_nano = nanos(head.event_time_unix_ms);
    let attributes = attributes(head);
    let record = LogRecord {
        time_unix_nano,
        observed_time_unix_nano: nanos(observed_ms),
        severity_number: SeverityNumber::Info.into(),
        severity_text: "INFO".to_owned(),
        attributes,
        body: Some(text_value(text)),
        ..LogRecord::default()
    };
    Some(Made { v1, record })
}

fn attributes(head: Head<'_>) -> Vec<KeyValue> {
    let about = head.request.or(head.payload);
    let session = head.agent_context.map(|agent| agent.session_id).or(head.session_id);
    let mut list = vec![
        attribute("schema", text_value(head.schema.into_owned())),
        attribute("event_type", text_value(head.event_type.into_owned())),
    ];
    let mut add = |name: &str, value: Option<String>| {
        list.extend(value.map(|value| attribute(name, text_value(value))));
    };
    add("session_id", session);
    let Some(about) = about else {
        add("rid", head.request_id);
        return list;
    };
    add("rid", Some(about.request_id));
    add("model", about.model);
    add("endpoint", about.endpoint);
    add("payload_drop_reason", about.payload_drop_reason);
    list.extend(
        about.payload_complete.map(|complete| {
            attribute("payload_complete", AnyValue { value: Some(Value::BoolValue(complete)) })
        }),
    );
    list
}

/// The row without request and response, where these made it long.
fn without_content(text: &str, bytes: usize, bytes_max: usize) -> Option<String> {
    let mut record: Record = serde_json::from_str(text).ok()?;
    let payload = record.payload.as_mut()?;
    (payload.request, payload.response, payload.http_request_headers) = (None, None, None);
    payload.payload_complete = false;
    payload.payload_drop_reason =
        Some(format!("otel_payload_too_large:max_bytes={bytes_max}:actual_bytes={bytes}"));
    serde_json::to_string(&record).ok()
}

/// One call's message. Leaves both lists empty.
pub(super) fn request(
    resource: &Resource,
    v1: &mut Vec<LogRecord>,
    own: &mut Vec<LogRecord>,
) -> ExportLogsServiceRequest {
    let scope_logs = [(SCOPE_V1, v1), (SCOPE_OWN, own)]
        .into_iter()
        .filter(|(_, records)| !records.is_empty())
        .map(|(scope, records)| ScopeLogs {
            scope: Some(InstrumentationScope {
                name: scope.to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                ..InstrumentationScope::default()
            }),
            log_records: std::mem::take(records),
            schema_url: String::new(),
        })
        .collect();
    let logs = ResourceLogs { resource: Some(resource.clone()), scope_logs, schema_url: String::new() };
    ExportLogsServiceRequest { resource_logs: vec![logs] }
}

/// The resource with these attributes.
pub(super) fn resource<'a>(attributes: impl IntoIterator<Item = (&'a String, &'a String)>) -> Resource {
    let attributes =
        attributes.into_iter().map(|(name, value)| attribute(name, text_value(value.clone()))).collect();
    Resource { attributes, ..Resource::default() }
}

fn attribute(name: &str, value: AnyValue) -> KeyValue {
    KeyValue { key: name.to_owned(), value: Some(value), ..KeyValue::default() }
}

fn text_value(text: String) -> AnyValue {
    AnyValue { value: Some(Value::StringValue(text)) }
}

const fn nanos(unix_ms: u64) -> u64 {
    unix_ms.saturating_mul(1_000_000)
}
