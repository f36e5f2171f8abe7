//! The HTTP surface beside the turns: models, health, counts, probes, upgrades, unknown paths, keys, browsers.

use serde_json::json;

use crate::client::{self, Client};
use crate::engine::{self, Engine};
use crate::setup::{chat, messages, start, start_at, start_with};

#[tokio::test(flavor = "multi_thread")]
async fn models_come_from_the_engines_that_are_well() {
    let (a, b) = (Engine::fine().await, Engine::fine().await);
    let setup = start(&[&a, &b]).await;
    setup.ready().await;
    drop(a);
    for _ in 0..3 {
        let list = setup.get("/v1/models").await.json();
        assert_eq!(list["data"].as_array().map(Vec::len), Some(1), "{list}");
        assert_eq!(
            (list["data"][0]["id"].as_str(), list["data"][0]["max_model_len"].as_u64()),
            (Some("tiny"), Some(4096))
        );
    }
    assert_eq!(setup.get("/v1/models/tiny").await.json()["id"], "tiny");
    assert_eq!(setup.get("/v1/models/other").await.status, 404);
    assert_eq!(setup.get("/health").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_engines_the_list_is_empty_and_health_says_so() {
    let setup = start_at(vec!["http://127.0.0.1:9".to_owned()], |_| {}).await;
    let list = setup.get("/v1/models").await;
    assert_eq!((list.status, list.json()["data"].as_array().map(Vec::len)), (200, Some(0)));
    let health = setup.get("/health").await;
    assert_eq!((health.status, health.retry_after()), (503, 5));
    assert_eq!(setup.get("/liveness").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_and_unknown_paths_get_answers_that_harnesses_understand() {
    let engine = Engine::fine().await;
    let setup = start(&[&engine]).await;
    let addr = setup.addr();
    let hello = client::call(addr, b"HEAD /api/hello HTTP/1.1\r\nhost: t\r\n\r\n");
    // The answer to HEAD has a length and no body.
    let mut client = Client::connect(addr).await;
    client.send(b"HEAD /api/hello HTTP/1.1\r\nhost: t\r\n\r\n").await;
    client.until("\r\n\r\n").await;
    drop(hello);
    for (request, status) in [
        (client::get("/api/show"), 404),
        (client::get("/api/v1/models"), 404),
        (client::get("/v1/responses"), 405),
        (client::get("/v1/responses/resp_1"), 404),
        (client::get("/v1/chat/completions"), 405),
        (client::get("/version"), 200),
        (client::get("/"), 404),
        (client::post("/v1/models", "", b"{}"), 405),
        (client::post("/nothing/here", "", b"{}"), 404),
        (b"BREW /v1/chat/completions HTTP/1.1\r\nhost: t\r\n\r\n".to_vec(), 405),
    ] {
        let answer = client::call(addr, &request).await;
        let line = String::from_utf8_lossy(&request).lines().next().unwrap_or_default().to_owned();
        assert_eq!(answer.status, status, "{line}");
        assert_eq!(answer.header("content-type"), Some("application/json"), "{line}");
        assert!(answer.header("x-request-id").is_some());
        if status == 405 {
            assert!(answer.header("allow").is_some(), "{line}");
        }
    }
    let upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n";
    for path in ["/v1/responses", "/v1/realtime"] {
        let request = format!("GET {path} HTTP/1.1\r\nhost: t\r\n{upgrade}\r\n");
        assert_eq!(client::call(addr, request.as_bytes()).await.status, 426, "{path}");
    }
    assert!(engine.calls().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_are_passed_on_or_estimated_and_never_turns() {
    let engine = Engine::fine().await;
    let setup = start(&[&engine]).await;
    setup.ready().await;
    let body = messages(&"word ".repeat(4000), false);
    let path = "/v1/messages/count_tokens?beta=true";
    assert_eq!(setup.post(path, "", &body).await.json()["input_tokens"], 4242);
    engine.rescript(|call| Box::pin(async move { call.json(404, &json!({"detail": "Not Found"})).await }));
    let estimate = setup.post(path, "", &body).await;
    let tokens = estimate.json()["input_tokens"].as_u64().expect("a number");
    assert!((2000..=12_000).contains(&tokens), "{tokens}");
    assert_eq!(estimate.header("x-tandem-estimate"), Some("true"));
    assert_eq!(setup.admin("/counters").await["scheduler"]["arrived"], 0);
    let metrics = setup.metrics().await;
    assert!(metrics.contains("tandem_count_tokens_total{source=\"estimate\"} 1"), "{metrics}");
    assert!(setup.rows().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn other_calls_pass_and_move_on_from_an_engine_that_fails() {
    let bad = Engine::start(|call| Box::pin(async move { call.hang_up().await })).await;
    let good = Engine::fine().await;
    let setup = start(&[&bad, &good]).await;
    setup.ready().await;
    for _ in 0..4 {
        let answer = setup.post("/v1/embeddings", "", &json!({"model": "tiny", "input": "x"})).await;
        assert_eq!((answer.status, answer.json()["object"].as_str()), (200, Some("list")));
    }
    let answer = setup.post("/v1/rerank", "", &json!({"query": "x"})).await;
    assert_eq!(answer.status, 404, "the engine's own answer where nobody has the route");
    assert_eq!(good.calls().len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_asked_for_where_they_are_configured() {
    let engine = Engine::fine().await;
    let setup = start_with(&[&engine], |config| {
        config.auth = serde_json::from_value(json!({"api_keys": [{"key": "sesame"}]})).expect("valid");
    })
    .await;
    let refused = setup.post("/v1/messages", "x-api-key: open\r\n", &messages("hi", false)).await;
    assert_eq!(
        (refused.status, refused.json()["error"]["type"].as_str()),
        (401, Some("authentication_error"))
    );
    assert_eq!(setup.get("/v1/models").await.status, 401);
    assert_eq!(setup.get("/liveness").await.status, 200);
    let bearer = "authorization: Bearer sesame\r\n";
    assert_eq!(setup.post("/v1/chat/completions", bearer, &chat("hi", false)).await.status, 200);
    assert_eq!(engine.calls()[0].header("authorization"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_for_engines_pass_where_none_are_asked_for_here() {
    let engine = Engine::fine().await;
    let setup = start(&[&engine]).await;
    let headers = "authorization: Bearer for-the-engine\r\n";
    assert_eq!(setup.post("/v1/chat/completions", headers, &chat("hi", false)).await.status, 200);
    assert_eq!(engine.calls()[0].header("authorization"), Some("Bearer for-the-engine"));
}

#[tokio::test(flavor = "multi_thread")]
async fn browsers_are_let_in_only_from_named_origins() {
    let engine = Engine::fine().await;
    let setup = start_with(&[&engine], |config| {
        config.cors.allowed_origins = vec!["https://app.example.com".to_owned()];
    })
    .await;
    let preflight = |origin: &str| {
        format!(
            "OPTIONS /v1/chat/completions HTTP/1.1\r\nhost: t\r\norigin: {origin}\r\n\
             access-control-request-method: POST\r\naccess-control-request-headers: content-type\r\n\r\n"
        )
    };
    let welcome = client::call(setup.addr(), preflight("https://app.example.com").as_bytes()).await;
    assert_eq!(welcome.header("access-control-allow-origin"), Some("https://app.example.com"));
    assert_eq!(welcome.header("access-control-allow-headers"), Some("content-type"));
    let stranger = client::call(setup.addr(), preflight("https://evil.example.com").as_bytes()).await;
    assert_eq!(stranger.header("access-control-allow-origin"), None);
    let origin = "origin: https://app.example.com\r\n";
    let answer = setup.post("/v1/chat/completions", origin, &chat("hi", false)).await;
    assert_eq!(answer.header("access-control-allow-origin"), Some("https://app.example.com"));

    let closed = start(&[&engine]).await;
    let answer = closed.post("/v1/chat/completions", origin, &chat("hi", false)).await;
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_kept_for_the_next_call() {
    let engine = Engine::fine().await;
    let setup = start(&[&engine]).await;
    let mut client = Client::connect(setup.addr()).await;
    for n in 0..3 {
        let body = chat(&format!("turn {n}"), n == 1).to_string();
        client.send(&client::post("/v1/chat/completions", "", body.as_bytes())).await;
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.complete), (200, true));
    }
    // Two requests at once on one connection are answered in order.
    let one = client::post("/v1/chat/completions", "", chat("one", false).to_string().as_bytes());
    client.send(&[one, client::get("/version")].concat()).await;
    assert_eq!(client.answer().await.json()["object"], "chat.completion");
    assert!(client.answer().await.json()["version"].is_string());
    let _ = engine::DONE;
}
