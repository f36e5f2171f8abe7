use serde_json::json;
use tandem_mock_engine::{MockConfig, MockEngine, MockKind, Script};

use crate::client::Client;

#[tokio::test]
async fn smoke() {
    for kind in [MockKind::Vllm, MockKind::Sglang] {
        let engine =
            MockEngine::start(MockConfig { kind, script: Script::agent(1), ..MockConfig::default() })
                .await
                .expect("started");
        let client = Client::new(&engine);
        for path in
            ["/health", "/v1/models", "/metrics", "/kv_event_sources", "/server_info", "/v1/loads", "/nope"]
        {
            let reply = client.get(path).await;
            println!("{path} {} {:?}\n{}", reply.status, reply.headers, reply.text());
        }
        let tools = json!([{"type":"function","function":{"name":"Bash","description":"d","parameters":{"type":"object","properties":{"command":{"type":"string"}},"required":["command"]}}}]);
        let rtools = json!([{"type":"namespace","name":"ns","tools":[{"type":"function","name":"Bash","description":"d","parameters":{"type":"object","properties":{"command":{"type":"string"}},"required":["command"]}}]}]);
        let mtools = json!([{"name":"Bash","description":"d","input_schema":{"type":"object","properties":{"command":{"type":"string"}},"required":["command"]}}]);
        for stream in [false, true] {
            let m = json!([{"role":"user","content":"hello there"}]);
            for (path, body) in [
                ("/v1/chat/completions", json!({"messages": m, "stream": stream, "tools": tools})),
                ("/v1/completions", json!({"prompt": "abc def", "stream": stream, "max_tokens": 5})),
                (
                    "/v1/messages",
                    json!({"messages": m, "stream": stream, "max_tokens": 500, "tools": mtools}),
                ),
                ("/v1/responses", json!({"input": m, "stream": stream, "tools": rtools})),
                (
                    "/generate",
                    json!({"text": "abc", "stream": stream, "sampling_params": {"max_new_tokens": 3}}),
                ),
            ] {
                let reply = client.post(path, &body).await;
                println!("{path} {}\n{}", reply.status, reply.text());
            }
        }
        println!("{:?}", engine.stats());
        engine.stop().await;
    }
}
