//! What the real engines refuse, in their words.

use http::Method;
use serde_json::{Value, json};
use tandem_mock_engine::{EngineFlags, MockConfig, MockEngine, MockKind, MockModel};

use crate::client::Client;

async fn tiny(kind: MockKind) -> MockEngine {
    let config = MockConfig {
        kind,
        models: vec![MockModel::base("tiny")],
        max_model_len: 1024,
        ..MockConfig::default()
    };
    MockEngine::start(config).await.expect("started")
}

fn sample(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

#[tokio::test]
async fn vllm_refuses_in_the_captured_words() {
    let engine = tiny(MockKind::Vllm).await;
    let client = Client::new(&engine);
    let m = json!([{"role": "user", "content": "hi"}]);
    let reply = client.post("/v1/chat/completions", &json!({"model": "nope", "messages": m})).await;
    assert_eq!(
        (reply.status.as_u16(), reply.json()),
        (404, sample(include_str!("../fixtures/vllm/err-model.json")))
    );
    let reply = client.post("/v1/messages", &json!({"model": "nope", "messages": m, "max_tokens": 1})).await;
    let anthropic = sample(include_str!("../fixtures/vllm/err-anthropic.json"));
    assert_eq!((reply.status.as_u16(), reply.json()), (404, anthropic));
    let ids = vec![7; 1100];
    let reply = client.post("/v1/completions", &json!({"prompt": ids})).await;
    let long = sample(include_str!("../fixtures/vllm/err-toolong.json"));
    assert_eq!((reply.status.as_u16(), reply.json()), (400, long));
    let reply = client.post("/v1/completions", &json!({"prompt": vec![7; 1000], "max_tokens": 25})).await;
    let message = "This model's maximum context length is 1024 tokens. However, you requested 25 output tokens \
                   and your prompt contains at least 1000 input tokens, for a total of at least 1025 tokens. \
                   Please reduce the length of the input prompt or the number of requested output tokens. \
                   (parameter=input_tokens, value=1000)";
    assert_eq!((reply.status.as_u16(), reply.json()["error"]["message"].as_str()), (400, Some(message)));
    assert_eq!(engine.stats().prompt_tokens, 0);
}

/// I-PRS-2.
#[tokio::test]
async fn wrong_bodies_get_a_400_in_the_form_of_their_api() {
    let m = json!([{"role": "user", "content": "hi"}]);
    let chat = "/v1/chat/completions";
    let messages = "/v1/messages";
    let choice = json!({"type": "function", "function": {"name": "absent"}});
    let tool = json!([{"type": "function", "function": {"name": "f"}}]);
    for kind in [MockKind::Vllm, MockKind::Sglang] {
        let engine = tiny(kind).await;
        let client = Client::new(&engine);
        for (path, body) in [
            (chat, json!([1])),
            (chat, json!({})),
            (chat, json!({"messages": []})),
            (chat, json!({"messages": "hi"})),
            (chat, json!({"messages": [{"content": "no role"}]})),
            (chat, json!({"messages": [{"role": "user", "content": 5}]})),
            (chat, json!({"messages": [{"role": "user", "content": [{"type": "smell"}]}]})),
            (chat, json!({"messages": m, "n": 0})),
            (chat, json!({"messages": m, "max_tokens": 0})),
            (chat, json!({"messages": m, "max_tokens": "many"})),
            (chat, json!({"messages": m, "temperature": -1})),
            (chat, json!({"messages": m, "stream": "yes"})),
            (chat, json!({"messages": m, "tool_choice": "auto"})),
            (chat, json!({"messages": m, "tools": tool, "tool_choice": choice})),
            (chat, json!({"messages": m, "cache_salt": ""})),
            ("/v1/completions", json!({"prompt": ""})),
            ("/v1/completions", json!({"prompt": {"no": 1}})),
            ("/v1/responses", json!({"input": []})),
            ("/v1/responses", json!({"input": [5]})),
            (messages, json!({"messages": m})),
            (messages, json!({"messages": [], "max_tokens": 5})),
            (messages, json!({"messages": m, "max_tokens": 5, "tool_choice": {"type": "any"}})),
        ] {
            let reply = client.post(path, &body).await;
            assert_eq!(reply.status, 400, "{path} {body}: {}", reply.text());
            let answer = reply.json();
            let message = match (path, kind) {
                (p, _) if p == messages => {
                    assert_eq!(answer["type"], "error");
                    &answer["error"]["message"]
                }
                (_, MockKind::Vllm) | ("/v1/responses", _) => {
                    assert_eq!(answer["error"]["code"], 400);
                    &answer["error"]["message"]
                }
                (_, MockKind::Sglang) => {
                    assert_eq!(answer["object"], "error");
                    &answer["message"]
                }
            };
            assert!(message.as_str().is_some_and(|m| !m.is_empty()), "{answer}");
        }
        let broken = client.call(Method::POST, chat, &[], b"{\"messages\": [".to_vec()).await;
        assert_eq!(broken.status, 400);
        assert!(broken.text().contains("JSON decode error"), "{}", broken.text());
        assert_eq!(engine.stats().prompt_tokens, 0);
    }
}

#[tokio::test]
async fn flags_and_ranks_are_checked_as_the_engines_do() {
    let flags =
        EngineFlags { auto_tool_choice: false, scale_out: false, dev_mode: false, ..EngineFlags::default() };
    let engine = MockEngine::start(MockConfig { flags, ..MockConfig::default() }).await.expect("started");
    let client = Client::new(&engine);
    let m = json!([{"role": "user", "content": "hi"}]);
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let says = |reply: crate::client::Reply| {
        (reply.status.as_u16(), reply.json()["error"]["message"].as_str().unwrap_or_default().to_owned())
    };
    let chat = "/v1/chat/completions";
    let auto = says(client.post(chat, &json!({"messages": m, "tools": tools})).await);
    let wanted = "\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set";
    assert_eq!(auto, (400, wanted.to_owned()));
    let priority = says(client.post(chat, &json!({"messages": m, "priority": 3})).await);
    assert_eq!(priority, (400, "Got priority 3 but Priority scheduling is not enabled.".to_owned()));
    assert_eq!(client.post(chat, &json!({"messages": m, "priority": 0})).await.status, 200);
    let options = says(client.post(chat, &json!({"messages": m, "stream_options": {}})).await);
    assert_eq!(options, (400, "Stream options can only be defined when `stream=True`.".to_owned()));
    let body = json!({"messages": m});
    let rank = says(client.post_with(chat, &[("x-data-parallel-rank", "1")], &body).await);
    assert_eq!(rank, (400, "data_parallel_rank 1 is out of range [0, 1).".to_owned()));
    assert_eq!(client.post("/v1/chat/completions/render", &body).await.status, 403);
    assert_eq!(client.post("/reset_prefix_cache", &json!({})).await.status, 404);
    let id = client.get("/v1/responses/resp_x").await;
    assert_eq!(says(id), (404, "Response with id 'resp_x' not found.".to_owned()));
    let cancel = client.post("/v1/responses/resp_x/cancel", &json!({})).await;
    assert_eq!(says(cancel), (404, "Response with id 'resp_x' not found.".to_owned()));
    let wrong = client.get(chat).await;
    assert_eq!((wrong.status.as_u16(), wrong.json()), (405, json!({"detail": "Method Not Allowed"})));
    let absent = client.get("/nope").await;
    assert_eq!((absent.status.as_u16(), absent.json()), (404, json!({"detail": "Not Found"})));
}

#[tokio::test]
async fn keys_guard_what_the_engines_guard() {
    for (kind, open, shut) in
        [(MockKind::Vllm, "/metrics", "/v1/models"), (MockKind::Sglang, "/health", "/server_info")]
    {
        let config = MockConfig { kind, api_key: Some("secret".to_owned()), ..MockConfig::default() };
        let engine = MockEngine::start(config).await.expect("started");
        let client = Client::new(&engine);
        assert_eq!(client.get(open).await.status, 200);
        let denied = client.get(shut).await;
        assert_eq!((denied.status.as_u16(), denied.json()), (401, json!({"error": "Unauthorized"})));
        for (header, status) in [("Bearer secret", 200), ("Bearer wrong", 401)] {
            let reply = client.call(Method::GET, shut, &[("authorization", header)], Vec::new()).await;
            assert_eq!(reply.status, status);
        }
        let key = client.call(Method::GET, shut, &[("x-api-key", "secret")], Vec::new()).await;
        assert_eq!(key.status, 200);
    }
}

#[tokio::test]
async fn sglang_has_words_of_its_own() {
    let engine = tiny(MockKind::Sglang).await;
    let client = Client::new(&engine);
    let m = json!([{"role": "user", "content": "hi"}]);
    // It answers under any name.
    let any = client.post("/v1/chat/completions", &json!({"model": "whatever", "messages": m})).await;
    assert_eq!((any.status.as_u16(), &any.json()["model"]), (200, &json!("whatever")));
    let long = client.post("/generate", &json!({"input_ids": vec![7; 1100]})).await;
    let message = "The input (1100 tokens) is longer than the model's context length (1024 tokens).";
    assert_eq!((long.status.as_u16(), long.json()), (400, json!({"error": {"message": message}})));
    let both = json!({"messages": m, "session_id": "a", "session_params": {"id": "a"}});
    assert_eq!(client.post("/v1/chat/completions", &both).await.status, 400);
    let hints = |action: Value| json!({"text": "abc", "kv_hints": {"protocol_version": "0.1", "message_id": "m", "actions": [action]}});
    let good = json!({"action_id": "a", "action_type": "kv.fetch", "action_version": "1.0", "payload": {}});
    assert_eq!(client.post("/generate", &hints(good)).await.status, 200);
    let bad = client.post("/generate", &hints(json!({"action_id": "a"}))).await;
    let message = "Malformed kv_hints envelope: Object missing required field `action_type`";
    assert_eq!((bad.status.as_u16(), bad.json()), (400, json!({"error": {"message": message}})));
}

/// I-HTP-2, I-MCK-4.
#[tokio::test]
async fn bodies_beyond_the_bound_are_refused() {
    let engine = tiny(MockKind::Vllm).await;
    let client = Client::new(&engine);
    let sent = client.send(Method::POST, "/v1/completions", &[], vec![b' '; (64 << 20) + 1]).await;
    // The refusal may come while the body is still being written, which some clients take for an error.
    if let Ok(response) = sent {
        assert_eq!(response.status(), 413);
    }
    assert_eq!(engine.records().len(), 0);
    assert_eq!(client.get("/health").await.status, 200);
}
