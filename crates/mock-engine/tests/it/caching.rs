//! Prefix caching as a client sees it: turn by turn, in every API.

use serde_json::{Value, json};
use tandem_mock_engine::{
    KvEventsConfig, MockConfig, MockEngine, MockKind, MockModel, ReplyItem, Script, When,
};

use crate::client::Client;

const BLOCK: u64 = 16;

/// The full blocks that one sequence leaves behind: its last token is never computed upon.
fn left(prompt: u64, output: u64) -> u64 {
    (prompt + output - 1) / BLOCK * BLOCK
}

struct Seen {
    prompt: u64,
    output: u64,
    cached: u64,
    /// What the client puts into its history.
    history: Vec<Value>,
}

fn chat(reply: &Value) -> Seen {
    let usage = &reply["usage"];
    let message = &reply["choices"][0]["message"];
    let calls = message["tool_calls"].clone();
    let id = calls[0]["id"].clone();
    Seen {
        prompt: usage["prompt_tokens"].as_u64().expect("count"),
        output: usage["completion_tokens"].as_u64().expect("count"),
        cached: usage["prompt_tokens_details"]["cached_tokens"].as_u64().expect("count"),
        history: vec![
            json!({"role": "assistant", "content": message["content"], "tool_calls": calls}),
            json!({"role": "tool", "tool_call_id": id, "content": "a.txt b.txt and some more files"}),
        ],
    }
}

fn messages(reply: &Value) -> Seen {
    let usage = &reply["usage"];
    let count = |key: &str| usage[key].as_u64().expect("count");
    let cached = count("cache_read_input_tokens");
    let id = reply["content"][1]["id"].clone();
    Seen {
        prompt: count("input_tokens") + cached + count("cache_creation_input_tokens"),
        output: count("output_tokens"),
        cached,
        history: vec![
            json!({"role": "assistant", "content": reply["content"]}),
            json!({"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": id, "content": "a.txt b.txt and some more files"}]}),
        ],
    }
}

fn responses(reply: &Value) -> Seen {
    let usage = &reply["usage"];
    let mut history = reply["output"].as_array().expect("items").clone();
    let id = history[1]["call_id"].clone();
    let output = "a.txt b.txt and some more files";
    history.push(json!({"type": "function_call_output", "call_id": id, "output": output}));
    Seen {
        prompt: usage["input_tokens"].as_u64().expect("count"),
        output: usage["output_tokens"].as_u64().expect("count"),
        cached: usage["input_tokens_details"]["cached_tokens"].as_u64().expect("count"),
        history,
    }
}

fn script() -> Script {
    let call = ReplyItem::ToolCall {
        name: "Bash".to_owned(),
        arguments: json!({"command": "ls -la /tmp", "description": "list the files there"}),
    };
    Script::default().rule(When::default(), vec![ReplyItem::Words(40), call])
}

/// I-TPL-3, I-MCK-2.
#[tokio::test]
async fn each_turn_finds_what_the_turn_before_left() {
    let schema = json!({"type": "object", "properties": {"command": {"type": "string"}}});
    let function = json!({"name": "Bash", "description": "runs a command", "parameters": schema});
    let mut prompts = Vec::new();
    for kind in [MockKind::Vllm, MockKind::Sglang] {
        type Read = fn(&Value) -> Seen;
        let apis: [(&str, &str, Value, Read); 3] = [
            ("/v1/chat/completions", "messages", json!([{"type": "function", "function": function}]), chat),
            (
                "/v1/messages",
                "messages",
                json!([{"name": "Bash", "description": "runs a command", "input_schema": schema}]),
                messages,
            ),
            (
                "/v1/responses",
                "input",
                json!([{"type": "function", "name": "Bash", "description": "runs a command", "parameters": schema}]),
                responses,
            ),
        ];
        for (path, key, tools, read) in apis {
            // SGLang's Messages say nothing of caches.
            if kind == MockKind::Sglang && path == "/v1/messages" {
                continue;
            }
            let engine = MockEngine::start(MockConfig { kind, script: script(), ..MockConfig::default() });
            let engine = engine.await.expect("started");
            let client = Client::new(&engine);
            let mut history =
                vec![json!({"role": "user", "content": "please list the files of this folder for me"})];
            let mut before = 0;
            for turn in 0..4 {
                let mut body = json!({"tools": tools, "max_tokens": 4096});
                body[key] = json!(history);
                let reply = client.post(path, &body).await;
                let seen = read(&reply.json());
                assert_eq!(seen.cached, before, "{kind:?} {path} turn {turn}");
                assert!(turn == 0 || seen.cached > 0);
                before = left(seen.prompt, seen.output);
                history.extend(seen.history);
                prompts.push((turn, seen.prompt));
            }
            let stats = engine.stats();
            assert_eq!((stats.finished, stats.running, stats.aborted), (4, 0, 0));
        }
    }
    // The same conversation is the same prompt in every API and engine.
    prompts.sort_unstable();
    prompts.dedup();
    assert_eq!(prompts.len(), 4, "{prompts:?}");
}

#[tokio::test]
async fn salts_and_adapters_keep_caches_apart() {
    let models = vec![MockModel::base("base"), MockModel::base("alias"), MockModel::lora("adapter", "base")];
    let engine = MockEngine::start(MockConfig { models, ..MockConfig::default() }).await.expect("started");
    let client = Client::new(&engine);
    let text = "a prompt that is long enough to fill several blocks of sixteen tokens each. ".repeat(4);
    let ask = async |extra: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": text}], "max_tokens": 2});
        body.as_object_mut().expect("object").extend(extra.as_object().expect("object").clone());
        chat_cached(&client.post("/v1/chat/completions", &body).await.json())
    };
    assert_eq!(ask(json!({"model": "base"})).await, 0);
    assert!(ask(json!({"model": "alias"})).await > 0);
    assert_eq!(ask(json!({"model": "adapter"})).await, 0);
    assert!(ask(json!({"model": "adapter"})).await > 0);
    assert_eq!(ask(json!({"cache_salt": "tenant-a"})).await, 0);
    assert!(ask(json!({"cache_salt": "tenant-a"})).await > 0);
    assert_eq!(ask(json!({"cache_salt": "tenant-b"})).await, 0);
}

fn chat_cached(reply: &Value) -> u64 {
    reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("count")
}

#[tokio::test]
async fn ranks_have_caches_of_their_own_and_a_reset_empties_them() {
    let config =
        MockConfig { dp_ranks: 2, kv_events: Some(KvEventsConfig::default()), ..MockConfig::default() };
    let engine = MockEngine::start(config).await.expect("started");
    assert_eq!(engine.kv_endpoints().len(), 2);
    let client = Client::new(&engine);
    let text = "words and words and more of them. ".repeat(8);
    let body = json!({"messages": [{"role": "user", "content": text}], "max_tokens": 2});
    let ask = async |rank: &str| {
        let headers = [("x-data-parallel-rank", rank)];
        chat_cached(&client.post_with("/v1/chat/completions", &headers, &body).await.json())
    };
    assert_eq!(ask("1").await, 0);
    assert_eq!(ask("0").await, 0);
    assert!(ask("1").await > 0);
    let reset = client.post("/reset_prefix_cache", &json!({})).await;
    assert_eq!(reset.json(), json!({"success": true}));
    assert_eq!(ask("1").await, 0);
}
