//! The trace at a collector. What the file sinks write beside is the measure.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsPartialSuccess, ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use prost::Message as _;
use serde_json::Value;
use tandem_gateway::config::{Config, Span, TraceSink};
use tandem_gateway::{OtlpConfig, Resolved};
use tokio::net::TcpListener;
use tokio::sync::Notify;

use crate::engine::Engine;
use crate::setup::{Setup, chat, start_tuned};

const PATIENCE: Duration = Duration::from_secs(90);

/// What a collector does with its n-th call, from 0.
type Behaviour = fn(usize) -> Response<Full<Bytes>>;

struct Call {
    path: String,
    headers: HeaderMap,
    message: ExportLogsServiceRequest,
    taken: bool,
}

/// An OTLP collector that keeps what it gets.
struct Collector {
    addr: SocketAddr,
    calls: Arc<Mutex<Vec<Call>>>,
    called: Arc<Notify>,
}

struct Row {
    scope: String,
    json: Value,
    attributes: BTreeMap<String, String>,
    record: LogRecord,
}

impl Collector {
    async fn start(behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("an address");
        let calls: Arc<Mutex<Vec<Call>>> = Arc::default();
        let called = Arc::new(Notify::new());
        let (kept, tell) = (Arc::clone(&calls), Arc::clone(&called));
        tokio::spawn(async move {
            while let Ok((io, _)) = listener.accept().await {
                let (kept, tell) = (Arc::clone(&kept), Arc::clone(&tell));
                let service = service_fn(move |request: Request<Incoming>| {
                    let (kept, tell) = (Arc::clone(&kept), Arc::clone(&tell));
                    async move {
                        let (head, body) = request.into_parts();
                        let bytes = body.collect().await.expect("a whole body").to_bytes();
                        let message = ExportLogsServiceRequest::decode(bytes).expect("otlp");
                        let mut kept = kept.lock().expect("not poisoned");
                        let answer = behaviour(kept.len());
                        let (path, headers) = (head.uri.path().to_owned(), head.headers);
                        kept.push(Call { path, headers, message, taken: answer.status().is_success() });
                        tell.notify_waiters();
                        Ok::<_, Infallible>(answer)
                    }
                });
                let served = hyper::server::conn::http1::Builder::new();
                tokio::spawn(served.serve_connection(TokioIo::new(io), service));
            }
        });
        Self { addr, calls, called }
    }

    fn count(&self) -> usize {
        self.calls.lock().expect("not poisoned").len()
    }

    /// Waits for the n-th call.
    async fn calls(&self, wanted: usize) {
        let wait = async {
            loop {
                let called = self.called.notified();
                if self.count() >= wanted {
                    return;
                }
                called.await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.expect("calls in time");
    }

    /// Rows of the calls that were answered with success.
    fn rows(&self) -> Vec<Row> {
        let calls = self.calls.lock().expect("not poisoned");
        let logs = calls.iter().filter(|call| call.taken).flat_map(|call| &call.message.resource_logs);
        let scopes = logs.flat_map(|logs| &logs.scope_logs);
        scopes
            .flat_map(|scope| {
                let name = scope.scope.as_ref().expect("a scope").name.clone();
                scope.log_records.iter().map(move |record| Row {
                    scope: name.clone(),
                    json: serde_json::from_str(&text(record.body.as_ref())).expect("a row"),
                    attributes: attributes(&record.attributes),
                    record: record.clone(),
                })
            })
            .collect()
    }
}

fn text(value: Option<&AnyValue>) -> String {
    match value.and_then(|value| value.value.clone()) {
        Some(Any::StringValue(text)) => text,
        Some(Any::BoolValue(flag)) => flag.to_string(),
        other => panic!("neither text nor flag: {other:?}"),
    }
}

fn attributes(list: &[KeyValue]) -> BTreeMap<String, String> {
    list.iter().map(|pair| (pair.key.clone(), text(pair.value.as_ref()))).collect()
}

fn fine(_: usize) -> Response<Full<Bytes>> {
    Response::new(Full::default())
}

fn status(status: u16) -> Response<Full<Bytes>> {
    Response::builder().status(status).header("retry-after", "0").body(Full::default()).expect("valid")
}

/// A gateway whose trace goes to a file and to `collector`.
async fn start(
    collector: SocketAddr,
    change: impl FnOnce(&mut Config),
    tune: impl FnOnce(&mut OtlpConfig),
) -> (Engine, Setup) {
    let engine = Engine::fine().await;
    let change = |config: &mut Config| {
        config.trace.sinks = vec![TraceSink::File, TraceSink::Otel];
        config.trace.otel_endpoint = Some(format!("http://{collector}"));
        change(config);
    };
    let tune = |resolved: &mut Resolved| {
        let otlp = resolved.otlp.as_mut().expect("asked for");
        otlp.retry_pause = Duration::from_millis(1);
        tune(otlp);
    };
    let setup = start_tuned(vec![engine.url.clone()], change, tune).await;
    setup.ready().await;
    (engine, setup)
}

async fn turns(setup: &Setup, count: usize) {
    for turn in 0..count {
        let headers = "x-session-id: session-1\r\n";
        let answer = setup.post("/v1/chat/completions", headers, &chat("secret words", turn % 2 == 0)).await;
        assert_eq!(answer.status, 200);
    }
    setup.idle().await;
}

/// Ends the gateway and returns the rows of both trace files.
async fn end(setup: &Setup) -> Vec<Value> {
    setup.gateway.begin_shutdown();
    tokio::time::timeout(PATIENCE, setup.gateway.wait()).await.expect("ends");
    let mut rows = Vec::new();
    for name in ["trace.jsonl", "trace.jsonl.tandem"] {
        let file = std::fs::read_to_string(setup.folder.path().join(name)).expect("a trace file");
        rows.extend(file.lines().map(|line| {
            let row: Value = serde_json::from_str(line).expect("a row");
            row["event"].clone()
        }));
    }
    rows
}

fn sorted<'a>(rows: impl IntoIterator<Item = &'a Value>) -> Vec<String> {
    let mut rows: Vec<String> = rows.into_iter().map(Value::to_string).collect();
    rows.sort();
    rows
}

/// The value of a metric without labels.
async fn metric(setup: &Setup, name: &str) -> u64 {
    let text = setup.metrics().await;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map_or(0, |value| value.parse().expect("a number"))
}

/// Waits until so many rows count as lost.
async fn lost(setup: &Setup, wanted: u64) {
    let wait = async {
        while metric(setup, "tandem_trace_rows_lost_total").await != wanted {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("losses are counted");
}

fn trace_end(rows: &[Value]) -> &Value {
    rows.iter().find(|row| row["event_type"] == "trace_end").expect("a last row")
}

/// What is in the files is at the collector, each row once, in the scope of its schema.
#[tokio::test(flavor = "multi_thread")]
async fn every_row_arrives_once() {
    let collector = Collector::start(fine).await;
    let (_engine, setup) = start(collector.addr, |_| {}, |_| {}).await;
    turns(&setup, 5).await;
    let files = end(&setup).await;
    let rows = collector.rows();
    assert_eq!(sorted(rows.iter().map(|row| &row.json)), sorted(&files));
    assert!(files.iter().filter(|row| row["event_type"] == "request_end").count() == 5, "{files:?}");
    assert_eq!(trace_end(&files)["lost"], serde_json::json!({}));
    for row in &rows {
        let v1 = row.json["schema"] == "dynamo.request.trace.v1";
        assert_eq!(row.scope, if v1 { "dynamo.request_trace" } else { "tandem.trace" });
        assert_eq!(row.attributes["schema"], row.json["schema"]);
        assert_eq!(row.attributes["event_type"], row.json["event_type"]);
        let at = row.json["event_time_unix_ms"].as_u64().expect("a time");
        assert_eq!(row.record.time_unix_nano, at * 1_000_000);
        assert_eq!((row.record.severity_number, row.record.severity_text.as_str()), (9, "INFO"));
    }
    let ends: Vec<_> = rows.iter().filter(|row| row.attributes["event_type"] == "request_end").collect();
    for row in &ends {
        assert_eq!(row.attributes["session_id"], row.json["agent_context"]["session_id"]);
        assert_eq!(row.attributes["session_id"], "session-1");
        assert_eq!(row.attributes["rid"], row.json["request"]["request_id"]);
        assert_eq!(row.attributes["model"], "tiny");
    }
    let routed = rows.iter().find(|row| row.attributes["event_type"] == "routing").expect("a decision");
    assert_eq!(routed.attributes["rid"], routed.json["request_id"]);
    let calls = collector.calls.lock().expect("not poisoned");
    assert!(!calls.iter().any(|call| format!("{:?}", call.message).contains("secret words")));
    for call in calls.iter() {
        assert_eq!(
            (call.path.as_str(), &call.headers["content-type"]),
            ("/v1/logs", &"application/x-protobuf".parse().expect("a value"))
        );
    }
}

/// I-OTL-4: what no batch took along so far goes when the gateway ends.
#[tokio::test(flavor = "multi_thread")]
async fn shutdown_flushes() {
    let collector = Collector::start(fine).await;
    let (_engine, setup) =
        start(collector.addr, |config| config.trace.flush_interval = Span::secs(3600), |_| {}).await;
    turns(&setup, 3).await;
    assert_eq!(collector.count(), 0);
    let files = end(&setup).await;
    assert_eq!(sorted(collector.rows().iter().map(|row| &row.json)), sorted(&files));
    assert_eq!(collector.count(), 1);
}

/// I-OTL-1: turns and files go on without a collector, and each row that it misses is counted.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_collector_rows_are_counted_as_lost() {
    let nobody = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = nobody.local_addr().expect("an address");
    drop(nobody);
    let (_engine, setup) = start(addr, |_| {}, |_| {}).await;
    turns(&setup, 4).await;
    // The row with which a trace begins is nobody's job and so not in the first number.
    let rows = metric(&setup, "tandem_trace_rows_total").await + 1;
    lost(&setup, rows).await;
    let files = end(&setup).await;
    assert_eq!(files.iter().filter(|row| row["event_type"] == "request_end").count(), 4);
    assert_eq!(trace_end(&files)["lost"]["io"], rows);
}

/// I-OTL-4: a collector that never answers holds up neither turns nor the end.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_collector_holds_up_nothing() {
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = silent.local_addr().expect("an address");
    let tune = |otlp: &mut OtlpConfig| {
        otlp.timeout = Duration::from_secs(3600);
        otlp.close_patience = Duration::from_millis(50);
    };
    let (_engine, setup) = start(addr, |_| {}, tune).await;
    turns(&setup, 4).await;
    let files = end(&setup).await;
    assert_eq!(files.iter().filter(|row| row["event_type"] == "request_end").count(), 4);
    drop(silent);
}

/// I-OTL-2: a collector that asks for another try gets it, and then has each row once.
#[tokio::test(flavor = "multi_thread")]
async fn busy_collectors_are_asked_again() {
    let collector = Collector::start(|call| if call < 2 { status(503) } else { fine(call) }).await;
    let (_engine, setup) = start(collector.addr, |_| {}, |_| {}).await;
    collector.calls(3).await;
    turns(&setup, 2).await;
    let files = end(&setup).await;
    assert_eq!(sorted(collector.rows().iter().map(|row| &row.json)), sorted(&files));
    assert_eq!(metric_lost(&files), 0);
}

fn metric_lost(files: &[Value]) -> u64 {
    trace_end(files)["lost"]["io"].as_u64().unwrap_or(0)
}

/// I-OTL-2, I-OTL-3: a refusal for good is not repeated; the loss is told on the next row.
#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_not_repeated() {
    let collector = Collector::start(|call| if call == 0 { status(400) } else { fine(call) }).await;
    let (_engine, setup) = start(collector.addr, |_| {}, |_| {}).await;
    // The trace's first row.
    lost(&setup, 1).await;
    assert_eq!(collector.count(), 1);
    turns(&setup, 1).await;
    let files = end(&setup).await;
    let rows = collector.rows();
    assert_eq!(rows.len() + 1, files.len());
    let told = rows.iter().filter_map(|row| row.json["tandem_loss"]["io"].as_u64());
    assert_eq!(told.sum::<u64>(), 1);
    assert_eq!(metric_lost(&files), 1);
}

/// Rows that a collector took apart and rejected are lost.
#[tokio::test(flavor = "multi_thread")]
async fn rejected_rows_are_counted() {
    fn partial(call: usize) -> Response<Full<Bytes>> {
        let rejected = i64::from(call == 0);
        let said = ExportLogsPartialSuccess { rejected_log_records: rejected, ..Default::default() };
        let answer = ExportLogsServiceResponse { partial_success: Some(said) };
        Response::new(Full::from(answer.encode_to_vec()))
    }
    let collector = Collector::start(partial).await;
    let (_engine, setup) = start(collector.addr, |_| {}, |_| {}).await;
    lost(&setup, 1).await;
    turns(&setup, 1).await;
    assert_eq!(metric_lost(&end(&setup).await), 1);
}

fn from_environment(config: &mut Config, variables: &[(&str, &str)]) {
    let lookup =
        |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
    let warnings = tandem_gateway::config::apply_trace_environment(&mut config.trace, lookup);
    assert_eq!(warnings.expect("usable"), []);
}

/// The variables of the specification reach the collector.
#[tokio::test(flavor = "multi_thread")]
async fn the_environment_is_followed() {
    let collector = Collector::start(fine).await;
    let base = format!("http://{}/base/", collector.addr);
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", base.as_str()),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20k"),
        ("OTEL_SERVICE_NAME", "gateway-7"),
    ];
    let (_engine, setup) = start(collector.addr, |config| from_environment(config, &variables), |_| {}).await;
    end(&setup).await;
    let calls = collector.calls.lock().expect("not poisoned");
    assert!(!calls.is_empty());
    for call in calls.iter() {
        assert_eq!(call.path, "/base/v1/logs");
        assert_eq!(call.headers["authorization"], "Bearer k");
        let resource = call.message.resource_logs[0].resource.as_ref().expect("a resource");
        assert_eq!(attributes(&resource.attributes)["service.name"], "gateway-7");
    }
}

/// I-OTL-5: content beyond the limit stays away, and the row says so; what fits goes whole.
#[tokio::test(flavor = "multi_thread")]
async fn content_above_the_limit_is_left_out() {
    let collector = Collector::start(fine).await;
    let change = |config: &mut Config| {
        let path = config.trace.path.clone();
        let variables = [
            ("TANDEM_TRACE_RECORDS", "request_end,request_payload"),
            ("TANDEM_TRACE_SINKS", "file,otel"),
            ("TANDEM_TRACE_FORMAT", "jsonl"),
            ("TANDEM_TRACE_PATH", path.as_str()),
            ("TANDEM_TRACE_OTEL_MAX_PAYLOAD_BYTES", "4096"),
        ];
        from_environment(config, &variables);
    };
    let (_engine, setup) = start(collector.addr, change, |_| {}).await;
    for prompt in ["short".to_owned(), "long ".repeat(1000)] {
        assert_eq!(setup.chat(&chat(&prompt, false)).await.status, 200);
    }
    let files = end(&setup).await;
    let rows = collector.rows();
    assert_eq!(rows.len(), files.len());
    let payloads: Vec<_> = rows.iter().filter(|row| row.json["event_type"] == "request_payload").collect();
    let [short, long] = payloads[..] else { panic!("two rows, not {}", payloads.len()) };
    assert_eq!(short.attributes["payload_complete"], "true");
    assert_eq!(short.json["payload"]["request"]["messages"][0]["content"], "short");
    assert_eq!(long.attributes["payload_complete"], "false");
    let payload = &long.json["payload"];
    assert!(payload["request"].is_null() && payload["response"].is_null(), "{payload}");
    let reason = payload["payload_drop_reason"].as_str().expect("a reason");
    assert!(reason.starts_with("otel_payload_too_large:max_bytes=4096:actual_bytes="), "{reason}");
    assert_eq!(long.attributes["payload_drop_reason"], reason);
}
