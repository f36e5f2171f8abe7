//! Answers have the form of the captured ones: the same keys in the same order, of the same types.

use serde_json::{Value, json};
use tandem_mock_engine::{KvEventsConfig, MockConfig, MockEngine, MockKind, MockModel};

use crate::client::Client;
use crate::shape::{of, of_stream};

async fn start(kind: MockKind) -> MockEngine {
    let config = MockConfig {
        kind,
        models: vec![MockModel::base("tiny")],
        max_model_len: 8192,
        kv_events: Some(KvEventsConfig { topic: "kv@w0@tiny".to_owned(), ..KvEventsConfig::default() }),
        ..MockConfig::default()
    };
    MockEngine::start(config).await.expect("started")
}

fn hello() -> Value {
    json!([{"role": "user", "content": "hi"}])
}

#[tokio::test]
async fn vllm_answers() {
    let engine = start(MockKind::Vllm).await;
    let client = Client::new(&engine);
    let m = hello();
    let chat = json!({"model": "tiny", "messages": m, "max_tokens": 8, "ignore_eos": true});
    let ids: Vec<u32> = (10..51).collect();
    let prompt = json!({"prompt": ids, "max_tokens": 30, "ignore_eos": true, "return_token_ids": true});
    for (path, body, sample) in [
        ("/v1/chat/completions", chat, include_str!("../fixtures/vllm/chat-1.json")),
        ("/v1/completions", prompt, include_str!("../fixtures/vllm/completions-1.json")),
        (
            "/v1/messages",
            json!({"model": "tiny", "messages": m, "max_tokens": 6}),
            include_str!("../fixtures/vllm/messages-1.json"),
        ),
        (
            "/v1/responses",
            json!({"model": "tiny", "input": "hi", "max_output_tokens": 16}),
            include_str!("../fixtures/vllm/responses-1.json"),
        ),
        (
            "/v1/messages/count_tokens",
            json!({"model": "tiny", "messages": m}),
            include_str!("../fixtures/vllm/count_tokens.json"),
        ),
        (
            "/tokenize",
            json!({"messages": m, "add_generation_prompt": true, "return_token_strs": true}),
            include_str!("../fixtures/vllm/tokenize-1.json"),
        ),
        (
            "/v1/chat/completions/render",
            json!({"model": "tiny", "messages": m}),
            include_str!("../fixtures/vllm/render-1.json"),
        ),
    ] {
        let reply = client.post(path, &body).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        assert_eq!(reply.headers["content-type"], "application/json");
        assert_eq!(of(reply.text()), of(sample), "{path}");
    }
    for (path, sample) in [
        ("/v1/models", include_str!("../fixtures/vllm/models.json")),
        ("/version", include_str!("../fixtures/vllm/version.json")),
        ("/load", include_str!("../fixtures/vllm/load.json")),
        ("/kv_event_sources", include_str!("../fixtures/vllm/kv_event_sources.json")),
    ] {
        let reply = client.get(path).await;
        assert_eq!((reply.status.as_u16(), of(reply.text())), (200, of(sample)), "{path}");
    }
    assert_eq!(client.get("/version").await.json(), json!({"version": "0.32.0"}));
}

#[tokio::test]
async fn vllm_streams() {
    let engine = start(MockKind::Vllm).await;
    let client = Client::new(&engine);
    for (path, body, sample) in [
        (
            "/v1/chat/completions",
            json!({"messages": hello(), "max_tokens": 4, "stream": true, "stream_options": {"include_usage": true}}),
            include_str!("../fixtures/vllm/chat-4-stream.sse"),
        ),
        (
            "/v1/messages",
            json!({"messages": hello(), "max_tokens": 4, "stream": true}),
            include_str!("../fixtures/vllm/messages-3-stream.sse"),
        ),
        (
            "/v1/responses",
            json!({"input": "hi", "max_output_tokens": 4, "stream": true}),
            include_str!("../fixtures/vllm/responses-2-stream.sse"),
        ),
    ] {
        let reply = client.post(path, &body).await;
        assert_eq!(reply.headers["content-type"], "text/event-stream; charset=utf-8");
        assert_eq!(of_stream(reply.text()), of_stream(sample), "{path}");
    }
}

/// Captured from SGLang 0.5.23 on a CPU, with the requests given here.
#[tokio::test]
async fn sglang_streams() {
    let engine = start(MockKind::Sglang).await;
    let client = Client::new(&engine);
    let chat = |usage: Value| json!({"messages": hello(), "max_tokens": 4, "ignore_eos": true, "stream": true, "stream_options": usage});
    for (path, body, sample) in [
        (
            "/v1/chat/completions",
            chat(json!({"include_usage": true})),
            include_str!("../fixtures/sglang/chat-stream-usage.sse"),
        ),
        (
            "/v1/chat/completions",
            chat(json!({"include_usage": true, "continuous_usage_stats": true})),
            include_str!("../fixtures/sglang/chat-stream-continuous.sse"),
        ),
        (
            "/v1/messages",
            json!({"messages": hello(), "max_tokens": 6, "stream": true}),
            include_str!("../fixtures/sglang/messages-stream.sse"),
        ),
    ] {
        let reply = client.post(path, &body).await;
        assert_eq!(reply.headers["content-type"], "text/event-stream; charset=utf-8");
        assert_eq!(of_stream(reply.text()), of_stream(sample), "{path}");
    }
    let long = json!({"input": "word ".repeat(12_000), "max_output_tokens": 4});
    let reply = client.post("/v1/responses", &long).await;
    let sample = include_str!("../fixtures/sglang/err-responses-toolong.json");
    assert_eq!((reply.status.as_u16(), of(reply.text())), (400, of(sample)));
}

#[tokio::test]
async fn sglang_answers() {
    let engine = start(MockKind::Sglang).await;
    let client = Client::new(&engine);
    let m = hello();
    for (path, body, sample) in [
        (
            "/v1/chat/completions",
            json!({"model": "tiny", "messages": m, "max_tokens": 8, "ignore_eos": true}),
            include_str!("../fixtures/sglang/chat-1.json"),
        ),
        (
            "/generate",
            json!({"input_ids": [10, 11, 12], "sampling_params": {"max_new_tokens": 24, "ignore_eos": true}}),
            include_str!("../fixtures/sglang/generate-1.json"),
        ),
        (
            "/v1/messages",
            json!({"model": "tiny", "messages": m, "max_tokens": 4}),
            include_str!("../fixtures/sglang/messages-1.json"),
        ),
        (
            "/v1/responses",
            json!({"model": "tiny", "input": "hi", "max_output_tokens": 4}),
            include_str!("../fixtures/sglang/responses-1.json"),
        ),
    ] {
        let reply = client.post(path, &body).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        assert_eq!(of(reply.text()), of(sample), "{path}");
    }
    for (path, sample) in [
        ("/v1/models", include_str!("../fixtures/sglang/models.json")),
        ("/v1/loads?include=core", include_str!("../fixtures/sglang/loads.json")),
    ] {
        assert_eq!(of(client.get(path).await.text()), of(sample), "{path}");
    }
    let info = client.get("/server_info").await.json();
    assert_eq!((&info["page_size"], &info["version"]), (&json!(16), &json!("0.5.23")));
    assert_eq!(info["internal_states"][0]["memory_usage"]["token_capacity"], json!(262_144));
    let port =
        engine.events_endpoint().and_then(|e| e.rsplit(':').next()).and_then(|p| p.parse::<u16>().ok());
    assert_eq!(info["kv_events"]["endpoint_port_base"], json!(port));
}

/// Names, types, label keys and bucket bounds of a metrics page, in order.
fn metric_lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for line in text.lines() {
        let line = if let Some(kind) = line.strip_prefix("# TYPE ") {
            kind.to_owned()
        } else if line.starts_with('#') || line.is_empty() {
            continue;
        } else if let Some((name, rest)) = line.split_once('{') {
            let (labels, _) = rest.rsplit_once('}').expect("closed");
            let mut keys = Vec::new();
            for part in labels.split("\",") {
                let (key, value) = part.split_once("=\"").expect("label");
                let value = value.trim_end_matches('"');
                keys.push(if key == "le" { format!("le={value}") } else { key.to_owned() });
            }
            format!("{name}{{{}}}", keys.join(","))
        } else {
            line.split(' ').next().map(|name| format!("{name}{{}}")).expect("name")
        };
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

#[tokio::test]
async fn metrics_have_the_names_types_labels_and_buckets_of_the_engines() {
    let engine = start(MockKind::Vllm).await;
    let page = Client::new(&engine).get("/metrics").await;
    assert_eq!(page.headers["content-type"], "text/plain; version=1.0.0; charset=utf-8");
    let wanted: Vec<&str> = include_str!("../fixtures/vllm/metrics-shape.txt")
        .lines()
        .filter(|line| !line.starts_with("vllm:tool_call_parser"))
        .collect();
    assert_eq!(metric_lines(page.text()), wanted);

    let engine = start(MockKind::Sglang).await;
    let page = Client::new(&engine).get("/metrics").await;
    let known: Vec<&str> = include_str!("../fixtures/sglang/metrics-shape.txt").lines().collect();
    let unknown: Vec<String> =
        metric_lines(page.text()).into_iter().filter(|line| !known.contains(&line.as_str())).collect();
    assert_eq!(unknown, [""; 0]);
}
