//! A gateway over scripted engines, with its trace in a temporary folder.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tandem_gateway::Gateway;
use tandem_gateway::config::{Config, Resolved, Span, Trace, TraceFormat, TraceRows};

use crate::client;
use crate::engine::Engine;

pub(crate) struct Setup {
    pub(crate) gateway: Gateway,
    pub(crate) folder: tempfile::TempDir,
}

/// Starts a gateway in front of `engines`.
pub(crate) async fn start(engines: &[&Engine]) -> Setup {
    start_with(engines, |_| {}).await
}

pub(crate) async fn start_with(engines: &[&Engine], change: impl FnOnce(&mut Config)) -> Setup {
    start_at(engines.iter().map(|engine| engine.url.clone()).collect(), change).await
}

pub(crate) async fn start_at(urls: Vec<String>, change: impl FnOnce(&mut Config)) -> Setup {
    start_tuned(urls, change, |_| {}).await
}

/// As [`start_at`], with changes to what no key reaches.
pub(crate) async fn start_tuned(
    urls: Vec<String>,
    change: impl FnOnce(&mut Config),
    tune: impl FnOnce(&mut Resolved),
) -> Setup {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut config = Config {
        worker_urls: urls,
        host: "127.0.0.1".to_owned(),
        port: 0,
        admin_port: Some(0),
        prometheus_host: "127.0.0.1".to_owned(),
        prometheus_port: Some(0),
        trace: Trace {
            enabled: true,
            path: folder.path().join("trace.jsonl").to_string_lossy().into_owned(),
            format: TraceFormat::Jsonl,
            rows: TraceRows::All,
            flush_interval: Span::millis(20),
            ..Trace::default()
        },
        ..Config::default()
    };
    config.health.interval = Span::millis(100);
    config.retry.initial_backoff = Span::millis(1);
    config.retry.max_backoff = Span::millis(5);
    change(&mut config);
    let mut resolved = config.resolve().expect("a valid configuration");
    tune(&mut resolved);
    let gateway = Box::pin(Gateway::start(resolved)).await.expect("starts");
    Setup { gateway, folder }
}

impl Setup {
    pub(crate) fn addr(&self) -> SocketAddr {
        self.gateway.addr()
    }

    /// Sends a chat call and reads its answer.
    pub(crate) async fn chat(&self, body: &Value) -> client::Answer {
        self.post("/v1/chat/completions", "", body).await
    }

    pub(crate) async fn post(&self, path: &str, headers: &str, body: &Value) -> client::Answer {
        client::call(self.addr(), &client::post(path, headers, body.to_string().as_bytes())).await
    }

    pub(crate) async fn get(&self, path: &str) -> client::Answer {
        client::call(self.addr(), &client::get(path)).await
    }

    pub(crate) async fn admin(&self, path: &str) -> Value {
        client::call(self.gateway.admin_addr(), &client::get(path)).await.json()
    }

    pub(crate) async fn metrics(&self) -> String {
        client::call(self.gateway.metrics_addr(), &client::get("/metrics")).await.text()
    }

    /// Waits until `wanted` holds for the answer of an admin path.
    pub(crate) async fn admin_until(&self, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let found = async {
            loop {
                let value = self.admin(path).await;
                if wanted(&value) {
                    return value;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(90), found).await.unwrap_or_else(|_| panic!("{path}"))
    }

    /// Waits until every engine is ready.
    pub(crate) async fn ready(&self) {
        self.admin_until("/workers", |workers| {
            let engines = workers["engines"].as_array().expect("a list");
            engines.iter().all(|engine| engine["state"] == "ready")
        })
        .await;
    }

    /// Nothing of a turn is left.
    pub(crate) async fn idle(&self) {
        self.admin_until("/turns", |turns| turns["total"] == 0 && turns["held_total"] == 0).await;
    }

    /// Ends the gateway in order and returns the request rows of its trace.
    pub(crate) async fn rows(self) -> Vec<Value> {
        self.gateway.begin_shutdown();
        tokio::time::timeout(Duration::from_secs(20), self.gateway.wait()).await.expect("ends");
        self.read_rows()
    }

    pub(crate) fn read_rows(&self) -> Vec<Value> {
        self.events().into_iter().filter(|event| event["event_type"] == "request_end").collect()
    }

    /// All rows of the trace and of its companion.
    pub(crate) fn events(&self) -> Vec<Value> {
        let mut events = Vec::new();
        for name in ["trace.jsonl", "trace.jsonl.tandem"] {
            let Ok(text) = std::fs::read_to_string(self.folder.path().join(name)) else { continue };
            for line in text.lines() {
                let row: Value = serde_json::from_str(line).expect("a row");
                events.push(row["event"].clone());
            }
        }
        events
    }
}

pub(crate) fn chat(content: &str, stream: bool) -> Value {
    json!({"model": "tiny", "stream": stream, "messages": [{"role": "user", "content": content}]})
}

pub(crate) fn messages(content: &str, stream: bool) -> Value {
    json!({"model": "tiny", "max_tokens": 9, "stream": stream, "messages": [{"role": "user", "content": content}]})
}

/// `(result, reason)` of a row's outcome.
pub(crate) fn outcome(row: &Value) -> (String, String) {
    let outcome = &row["tandem"]["outcome"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (text(&outcome["result"]), text(&outcome["reason"]))
}
