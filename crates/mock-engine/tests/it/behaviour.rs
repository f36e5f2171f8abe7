//! Sampling fields, usage, ids, records, time, and clients that go away.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tandem_mock_engine::{
    EngineFlags, MockConfig, MockEngine, MockKind, RecordConfig, ReplyItem, Script, Speed, When,
};

use crate::client::Client;

const CHAT: &str = "/v1/chat/completions";

async fn start(config: MockConfig) -> (MockEngine, Client) {
    let engine = MockEngine::start(config).await.expect("started");
    let client = Client::new(&engine);
    (engine, client)
}

fn ask(extra: &Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "hello"}]});
    body.as_object_mut().expect("object").extend(extra.as_object().expect("object").clone());
    body
}

/// Waits for something that will be so within moments.
async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let waited = tokio::time::timeout(Duration::from_secs(10), async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("{what}"));
}

/// I-ANS-4: the same request has the same answer.
#[tokio::test]
async fn limits_stops_and_choices() {
    let text = vec![ReplyItem::Text("one two three four".to_owned())];
    let script =
        Script::default().rule(When { last_contains: Some("hello".to_owned()), ..When::default() }, text);
    let (_engine, client) = start(MockConfig { script, ..MockConfig::default() }).await;
    let first = async |extra: Value| client.post(CHAT, &ask(&extra)).await.json()["choices"][0].clone();
    let whole = first(json!({})).await;
    assert_eq!(
        (&whole["message"]["content"], &whole["finish_reason"]),
        (&json!("one two three four"), &json!("stop"))
    );
    for key in ["max_tokens", "max_completion_tokens"] {
        let mut body = json!({});
        body[key] = json!(2);
        let cut = first(body).await;
        assert_eq!(
            (&cut["message"]["content"], &cut["finish_reason"]),
            (&json!("one two "), &json!("length"))
        );
    }
    let stopped = first(json!({"stop": [" three"]})).await;
    assert_eq!(stopped["message"]["content"], "one two");
    assert_eq!((&stopped["finish_reason"], &stopped["stop_reason"]), (&json!("stop"), &json!(" three")));
    let kept = first(json!({"stop": " three", "include_stop_str_in_output": true})).await;
    assert_eq!(kept["message"]["content"], "one two three");
    let long = client.post(CHAT, &ask(&json!({"min_tokens": 40}))).await.json();
    assert!(long["usage"]["completion_tokens"].as_u64() >= Some(40), "{long}");

    let body = json!({"messages": [{"role": "user", "content": "other"}], "n": 3, "max_tokens": 9, "ignore_eos": true});
    let many = client.post(CHAT, &body).await.json();
    let texts: Vec<&Value> =
        many["choices"].as_array().expect("choices").iter().map(|c| &c["message"]["content"]).collect();
    assert_eq!(texts.len(), 3);
    assert!(texts[0] != texts[1] && texts[1] != texts[2]);
    assert_eq!(many["usage"]["completion_tokens"], 27);
    let again = client.post(CHAT, &body).await.json();
    assert_eq!(again["choices"], many["choices"]);
    let mut seeded = body.clone();
    seeded["seed"] = json!(5);
    assert_ne!(client.post(CHAT, &seeded).await.json()["choices"], many["choices"]);
    let messages = json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 50, "stop_sequences": [" two"]});
    let reply = client.post("/v1/messages", &messages).await.json();
    assert_eq!((&reply["stop_reason"], &reply["stop_sequence"]), (&json!("stop_sequence"), &json!(" two")));
    assert_eq!(reply["content"], json!([{"type": "text", "text": "one"}]));
}

#[tokio::test]
async fn several_prompts_and_echo() {
    let (_engine, client) = start(MockConfig::default()).await;
    let body =
        json!({"prompt": ["alpha", "beta"], "n": 2, "max_tokens": 3, "echo": true, "ignore_eos": true});
    let reply = client.post("/v1/completions", &body).await.json();
    let choices = reply["choices"].as_array().expect("choices");
    let heads: Vec<&str> = choices.iter().map(|c| &c["text"].as_str().expect("text")[..4]).collect();
    assert_eq!(heads, ["alph", "alph", "beta", "beta"]);
    assert_eq!(reply["usage"]["prompt_tokens"], 3);
    let round = client.post("/tokenize", &json!({"prompt": "alpha – beta"})).await.json();
    let text = client.post("/detokenize", &json!({"tokens": round["tokens"]})).await.json();
    assert_eq!(text, json!({"prompt": "alpha – beta"}));
}

#[tokio::test]
async fn usage_comes_when_asked_for_and_ids_with_it() {
    let (_engine, client) = start(MockConfig::default()).await;
    let stream = async |extra: Value| {
        let mut body = ask(&extra);
        body["stream"] = json!(true);
        body["max_tokens"] = json!(5);
        client.post(CHAT, &body).await.events()
    };
    let plain = stream(json!({})).await;
    assert!(plain.iter().all(|e| e.get("usage").is_none()));
    let last = stream(json!({"stream_options": {"include_usage": true}})).await;
    let (usage, rest) = last.split_last().expect("events");
    assert_eq!((&usage["choices"], &usage["usage"]["completion_tokens"]), (&json!([]), &json!(5)));
    assert!(rest.iter().all(|e| e.get("usage").is_none()));
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let always = stream(json!({"stream_options": options, "return_token_ids": true})).await;
    let counts: Vec<u64> =
        always.iter().map(|e| e["usage"]["completion_tokens"].as_u64().expect("usage")).collect();
    assert_eq!(counts, [0, 1, 2, 3, 4, 5, 5]);
    assert!(always[0]["prompt_token_ids"].as_array().is_some_and(|ids| !ids.is_empty()));
    let ids: Vec<u64> = always[1..6]
        .iter()
        .flat_map(|e| e["choices"][0]["token_ids"].as_array().expect("ids").clone())
        .map(|id| id.as_u64().expect("id"))
        .collect();
    assert_eq!(ids.len(), 5);

    let flags =
        EngineFlags { prompt_tokens_details: false, force_include_usage: true, ..EngineFlags::default() };
    let (_engine, client) = start(MockConfig { flags, ..MockConfig::default() }).await;
    let events = client.post(CHAT, &ask(&json!({"stream": true, "max_tokens": 2}))).await.events();
    let usage = &events.last().expect("events")["usage"];
    assert_eq!((&usage["completion_tokens"], usage.get("prompt_tokens_details")), (&json!(2), None));
    let whole = client.post(CHAT, &ask(&json!({}))).await.json();
    assert_eq!(whole["usage"]["prompt_tokens_details"], Value::Null);
}

/// I-MCK-1.
#[tokio::test]
async fn request_ids_are_taken_over_and_echoed_when_the_flag_is_set() {
    let flags = EngineFlags { request_id_headers: true, ..EngineFlags::default() };
    let (_engine, client) = start(MockConfig { flags, ..MockConfig::default() }).await;
    let reply = client.post_with(CHAT, &[("x-request-id", "req-1")], &ask(&json!({}))).await;
    assert_eq!(
        (&reply.headers["x-request-id"], &reply.json()["id"]),
        (&http::HeaderValue::from_static("req-1"), &json!("chatcmpl-req-1"))
    );
    assert_eq!(client.get("/health").await.headers["x-request-id"].len(), 32);
    let (_engine, other) = start(MockConfig::default()).await;
    let silent = other.post_with(CHAT, &[("x-request-id", "req-1")], &ask(&json!({}))).await;
    assert!(silent.headers.get("x-request-id").is_none());
    // Equal engines say the same under different ids.
    let (_third, third) = start(MockConfig::default()).await;
    let (a, b) =
        (other.post(CHAT, &ask(&json!({}))).await.json(), third.post(CHAT, &ask(&json!({}))).await.json());
    assert_eq!(a["choices"], b["choices"]);
    assert_ne!(a["id"], b["id"]);
}

/// I-HTP-1.
#[tokio::test]
async fn requests_are_recorded_as_they_came() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("seen.jsonl");
    let record = RecordConfig { file: Some(file.clone()), bodies: false };
    let (engine, client) = start(MockConfig { record, ..MockConfig::default() }).await;
    let body = ask(&json!({"tools": [{"type": "function", "function": {"name": "f"}}], "stream": false}));
    client.post_with("/v1/chat/completions?beta=true", &[("X-Session-ID", "s-1")], &body).await;
    client.get("/health").await;
    let records = engine.records();
    assert_eq!(
        records.iter().map(|r| r.path.as_str()).collect::<Vec<_>>(),
        ["/v1/chat/completions?beta=true", "/health"]
    );
    let first = &records[0];
    assert!(first.headers.contains(&("x-session-id".to_owned(), "s-1".to_owned())));
    assert_eq!((first.body_bytes, first.tools, first.messages), (body.to_string().len(), Some(1), Some(1)));
    assert_eq!((first.stream, first.body.as_ref()), (Some(false), None));
    let lines = std::fs::read_to_string(&file).expect("a file");
    assert_eq!(lines.lines().count(), 2);
    let line: Value = serde_json::from_str(lines.lines().next().expect("a line")).expect("JSON");
    assert_eq!(line["body_xxh3"], json!(first.body_xxh3));
}

/// Slow enough that an answer never ends within a test.
fn slow() -> MockConfig {
    MockConfig { speed: Speed::Times(0.05), ..MockConfig::default() }
}

/// I-DRV-1, I-MCK-3.
#[tokio::test]
async fn a_client_that_goes_away_ends_its_sequences() {
    let (engine, client) = start(slow()).await;
    let long = json!({"max_tokens": 4000, "ignore_eos": true, "n": 2});
    let mut streaming = long.clone();
    streaming["stream"] = json!(true);
    for (body, aborted) in [(&streaming, 2), (&long, 4)] {
        let sent = ask(body).to_string().into_bytes();
        let request = client.send(Method::POST, CHAT, &[], sent);
        let held = tokio::time::timeout(Duration::from_millis(300), request).await;
        // The stream's head came, the whole answer did not.
        assert_eq!(held.is_ok(), body.get("stream").is_some());
        eventually("both sequences run", || engine.stats().running == 2).await;
        assert!(engine.stats().kv_usage > 0.0);
        drop(held);
        eventually("both are aborted", || engine.stats().aborted == aborted).await;
        assert_eq!((engine.stats().running, engine.stats().waiting), (0, 0));
    }
}

#[tokio::test]
async fn load_is_told_while_requests_run_and_a_request_can_be_aborted_by_id() {
    let (engine, client) = start(MockConfig { kind: MockKind::Sglang, ..slow() }).await;
    let body = ask(&json!({"max_tokens": 4000, "ignore_eos": true, "rid": "mine"}));
    let other = Client::new(&engine);
    let asked = tokio::spawn(async move { client.post(CHAT, &body).await });
    eventually("it runs", || engine.stats().running == 1).await;
    let load = other.get("/v1/loads").await.json()["loads"][0].clone();
    assert_eq!((&load["num_running_reqs"], &load["num_waiting_reqs"]), (&json!(1), &json!(0)));
    let page = other.get("/metrics").await;
    assert!(page.text().lines().any(|l| l.starts_with("sglang:num_running_reqs{") && l.ends_with(" 1.0")));
    assert_eq!(other.post("/flush_cache", &json!({})).await.status, 400);
    assert_eq!(other.post("/abort_request", &json!({"rid": "mine"})).await.status, 200);
    let reply = asked.await.expect("joined").json();
    assert_eq!(reply["choices"][0]["finish_reason"], "abort");
    assert_eq!(other.get("/health_generate").await.status, 200);
}

/// I-DRV-2.
#[tokio::test]
async fn answers_take_the_modelled_time() {
    let (_engine, client) = start(MockConfig { speed: Speed::Times(1.0), ..MockConfig::default() }).await;
    let begun = std::time::Instant::now();
    let reply = client.post(CHAT, &ask(&json!({"max_tokens": 20, "ignore_eos": true}))).await;
    assert_eq!(reply.status, 200);
    // The profile's decode step is 4.6 ms for one sequence, and its prefill 9.4 ms at least.
    assert!(begun.elapsed() >= Duration::from_millis(9 + 19 * 4), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn urgent_requests_overtake_under_priority_scheduling() {
    let flags = EngineFlags { priority_scheduling: true, ..EngineFlags::default() };
    // vLLM serves low numbers first, SGLang high ones.
    for (kind, urgent, patient) in [(MockKind::Vllm, -5, 5), (MockKind::Sglang, 5, -5)] {
        let config = MockConfig {
            kind,
            max_num_seqs: 1,
            flags: flags.clone(),
            speed: Speed::Times(1.0),
            ..MockConfig::default()
        };
        let (engine, client) = start(config).await;
        let client = std::sync::Arc::new(client);
        let (order, mut ends) = tokio::sync::mpsc::unbounded_channel();
        for (queued, (name, priority, tokens)) in
            [("running", 0, 40), ("patient", patient, 2), ("urgent", urgent, 2)]
                .into_iter()
                .zip(1..)
                .map(|(one, n)| (n, one))
        {
            let (client, order) = (std::sync::Arc::clone(&client), order.clone());
            tokio::spawn(async move {
                let body = ask(&json!({"max_tokens": tokens, "ignore_eos": true, "priority": priority}));
                assert_eq!(client.post(CHAT, &body).await.status, 200);
                let _ = order.send(name);
            });
            eventually("it is queued", || {
                let stats = engine.stats();
                stats.running + stats.waiting + stats.finished >= queued
            })
            .await;
        }
        drop(order);
        let mut seen = Vec::new();
        while let Some(name) = ends.recv().await {
            seen.push(name);
        }
        assert_eq!(seen, ["running", "urgent", "patient"], "{kind:?}");
    }
}
