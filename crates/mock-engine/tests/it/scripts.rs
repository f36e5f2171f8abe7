//! Scripted answers and tool calls, streamed and whole.

use serde_json::{Value, json};
use tandem_mock_engine::{MockConfig, MockEngine, ReplyItem, Rule, Script, When};

use crate::client::Client;

async fn start(script: Script) -> (MockEngine, Client) {
    let engine = MockEngine::start(MockConfig { script, ..MockConfig::default() }).await.expect("started");
    let client = Client::new(&engine);
    (engine, client)
}

fn user(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

async fn says(client: &Client, body: &Value) -> String {
    let reply = client.post("/v1/chat/completions", body).await.json();
    reply["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned()
}

/// I-SCR-1.
#[tokio::test]
async fn the_first_rule_that_holds_answers() {
    let toml = r#"
        [[rules]]
        when = { last_contains = "once" }
        reply = [{ text = "first" }]
        times = 1

        [[rules]]
        when = { session = "s-9", turn = 1 }
        reply = [{ text = "second turn of s-9" }]

        [[rules]]
        when = { dialect = "messages" }
        reply = [{ text = "by messages" }]

        [[rules]]
        when = { tool = "f", last_role = "user" }
        reply = [{ text = "calling" }, { tool_call = { name = "f", arguments = { x = 1 } } }]

        [[rules]]
        reply = [{ words = 5 }]
    "#;
    let script: Script = toml::from_str(toml).expect("a script");
    let (engine, client) = start(script).await;
    assert_eq!(says(&client, &json!({"messages": user("once")})).await, "first");
    let words = says(&client, &json!({"messages": user("once")})).await;
    assert_eq!(words.len(), 20, "{words}");
    let turns = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]);
    let session = json!({"messages": turns, "session_id": "s-9"});
    assert_eq!(says(&client, &session).await, "second turn of s-9");
    let messages =
        client.post("/v1/messages", &json!({"messages": user("x"), "max_tokens": 50})).await.json();
    assert_eq!(messages["content"][0]["text"], "by messages");
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let called =
        client.post("/v1/chat/completions", &json!({"messages": user("x"), "tools": tools})).await.json();
    let choice = &called["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&json!("tool_calls"), &json!("calling"))
    );
    assert_eq!(
        choice["message"]["tool_calls"][0]["function"],
        json!({"name": "f", "arguments": "{\"x\":1}"})
    );
    engine.set_script(Script::default().rule(When::default(), vec![ReplyItem::Text("new".to_owned())]));
    assert_eq!(says(&client, &json!({"messages": user("once")})).await, "new");
}

/// Joins a chat stream: text, and (id, name, arguments) of the calls.
fn join_chat(events: &[Value]) -> (String, Vec<(String, String, String)>) {
    let (mut text, mut calls) = (String::new(), Vec::<(String, String, String)>::new());
    for delta in events.iter().map(|e| &e["choices"][0]["delta"]) {
        text.push_str(delta["content"].as_str().unwrap_or_default());
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = usize::try_from(call["index"].as_u64().expect("index")).expect("small");
            if let Some(id) = call["id"].as_str() {
                assert_eq!(index, calls.len());
                let name = call["function"]["name"].as_str().expect("a name");
                calls.push((id.to_owned(), name.to_owned(), String::new()));
            }
            calls[index].2.push_str(call["function"]["arguments"].as_str().expect("arguments"));
        }
    }
    (text, calls)
}

fn two_calls() -> Script {
    let call = |n: u32| ReplyItem::ToolCall {
        name: format!("f{n}"),
        arguments: json!({"text": "ä \"quoted\"", "n": n}),
    };
    Script::default().rule(When::default(), vec![ReplyItem::Text("Now – this.".to_owned()), call(1), call(2)])
}

/// I-OUT-1, I-OUT-2.
#[tokio::test]
async fn streams_joined_are_the_whole_answer_in_every_api() {
    let (_engine, client) = start(two_calls()).await;
    let arguments = |n: u32| format!("{{\"n\":{n},\"text\":\"ä \\\"quoted\\\"\"}}");
    let functions: Vec<Value> =
        (1..3).map(|n| json!({"type": "function", "function": {"name": format!("f{n}")}})).collect();
    let chat = json!({"messages": user("x"), "tools": functions, "stream": true});
    let events = client.post("/v1/chat/completions", &chat).await.events();
    let (text, calls) = join_chat(&events);
    assert_eq!(text, "Now – this.");
    let seen: Vec<_> = calls.iter().map(|(_, name, args)| (name.as_str(), args.clone())).collect();
    assert_eq!(seen, [("f1", arguments(1)), ("f2", arguments(2))]);
    assert_ne!(calls[0].0, calls[1].0);
    assert_eq!(events.last().expect("events")["choices"][0]["finish_reason"], "tool_calls");

    let tools: Vec<Value> = (1..3).map(|n| json!({"name": format!("f{n}"), "input_schema": {}})).collect();
    let body = json!({"messages": user("x"), "tools": tools, "max_tokens": 500, "stream": true});
    let reply = client.post("/v1/messages", &body).await;
    let mut names = reply.names();
    names.dedup();
    let block = ["content_block_start", "content_block_delta", "content_block_stop"];
    let wanted =
        [&["message_start"][..], &block, &block, &block, &["message_delta", "message_stop"]].concat();
    assert_eq!(names, wanted);
    let mut partial = [String::new(), String::new(), String::new()];
    for event in reply.events() {
        let index = usize::try_from(event["index"].as_u64().unwrap_or(0)).expect("small");
        let delta = &event["delta"];
        partial[index]
            .push_str(delta["text"].as_str().or(delta["partial_json"].as_str()).unwrap_or_default());
    }
    assert_eq!(partial, ["Now – this.".to_owned(), arguments(1), arguments(2)]);

    let spaced = json!([{"type": "namespace", "name": "ns", "tools": [{"type": "function", "name": "f1"}]},
        {"type": "function", "name": "f2"}]);
    let reply = client.post("/v1/responses", &json!({"input": "x", "tools": spaced, "stream": true})).await;
    let events = reply.events();
    let done: Vec<&Value> =
        events.iter().filter(|e| e["type"] == "response.output_item.done").map(|e| &e["item"]).collect();
    assert_eq!(done.len(), 3);
    assert_eq!((&done[1]["name"], &done[1]["namespace"]), (&json!("f1"), &json!("ns")));
    assert_eq!((&done[2]["name"], &done[2]["namespace"]), (&json!("f2"), &Value::Null));
    assert_eq!(done[2]["arguments"], json!(arguments(2)));
    let deltas: String = events
        .iter()
        .filter(|e| e["type"] == "response.function_call_arguments.delta" && e["output_index"] == 2)
        .map(|e| e["delta"].as_str().expect("text"))
        .collect();
    assert_eq!(deltas, arguments(2));
    let numbers: Vec<u64> = events.iter().map(|e| e["sequence_number"].as_u64().expect("number")).collect();
    assert_eq!(numbers, (0..numbers.len() as u64).collect::<Vec<_>>());
    let last = events.last().expect("events");
    assert_eq!(last["type"], "response.completed");
    assert_eq!(last["response"]["output"].as_array().map(Vec::len), Some(3));
}

/// I-SCR-2.
#[tokio::test]
async fn tool_choice_is_obeyed_whatever_the_script_says() {
    let (_engine, client) = start(two_calls()).await;
    let functions: Vec<Value> = ["f1", "f2", "g"]
        .map(|name| {
            json!({"type": "function", "function": {"name": name, "parameters":
            {"properties": {"q": {"type": "integer"}}, "required": ["q"]}}})
        })
        .to_vec();
    let ask = async |extra: Value| {
        let mut body = json!({"messages": user("x"), "tools": functions});
        body.as_object_mut().expect("object").extend(extra.as_object().expect("object").clone());
        let message =
            client.post("/v1/chat/completions", &body).await.json()["choices"][0]["message"].clone();
        let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
        calls.iter().map(|c| c["function"]["name"].as_str().expect("name").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ask(json!({"tool_choice": "none"})).await, [""; 0]);
    assert_eq!(ask(json!({"tool_choice": "required"})).await, ["f1", "f2"]);
    assert_eq!(ask(json!({"parallel_tool_calls": false})).await, ["f1"]);
    let named = |name: &str| json!({"tool_choice": {"type": "function", "function": {"name": name}}});
    assert_eq!(ask(named("f2")).await, ["f2"]);
    assert_eq!(ask(named("g")).await, ["g"]);
}

#[tokio::test]
async fn the_agent_goes_through_a_harness_session() {
    let (_engine, client) = start(Script::agent(2)).await;
    let tools = json!([{"name": "Bash", "description": "d", "input_schema":
        {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}}]);
    let mut history = vec![json!({"role": "user", "content": "fix the bug"})];
    let mut stops = Vec::new();
    for _ in 0..3 {
        let body = json!({"messages": history, "tools": tools, "max_tokens": 1000});
        let reply = client.post("/v1/messages", &body).await.json();
        stops.push(reply["stop_reason"].as_str().expect("a reason").to_owned());
        history.push(json!({"role": "assistant", "content": reply["content"]}));
        let id = &reply["content"][1]["id"];
        history.push(
            json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": "ok"}]}),
        );
    }
    assert_eq!(stops, ["tool_use", "tool_use", "end_turn"]);
}

#[tokio::test]
async fn thinking_takes_modelled_time() {
    let rule =
        Rule { think_ms: 3_600_000, reply: vec![ReplyItem::Text("deep".to_owned())], ..Rule::default() };
    let (_engine, client) = start(Script { rules: vec![rule], ..Script::default() }).await;
    // An instant engine does not wait.
    assert_eq!(says(&client, &json!({"messages": user("x")})).await, "deep");
}
