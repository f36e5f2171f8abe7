//! Engines and clients that fail, each in its way. Nothing hangs, nothing is lost unaccounted.

use std::time::Duration;

use serde_json::json;
use tandem_gateway::config::Span;

use crate::client::{self, Client};
use crate::engine::{self, Engine, chat_stream};
use crate::setup::{chat, messages, outcome, start, start_with};

/// An engine that does `first` with its first call and answers all others well.
macro_rules! once {
    ($call:ident, $first:block) => {{
        let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        Engine::start(move |$call| {
            let first = !done.swap(true, std::sync::atomic::Ordering::Relaxed);
            Box::pin(async move {
                if first {
                    $first
                } else {
                    engine::fine($call).await;
                }
            })
        })
        .await
    }};
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_hangs_up_before_a_byte_costs_nothing_but_a_retry() {
    let engine = once!(call, { call.hang_up().await });
    let setup = start(&[&engine]).await;
    let answer = setup.chat(&chat("hi", false)).await;
    assert_eq!((answer.status, engine.calls().len()), (200, 2));
    let rows = setup.rows().await;
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["tandem"]["attempts"], 2);
}

/// I-STR-3.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_breaks_before_its_first_byte_begins_again_elsewhere() {
    let engine = once!(call, {
        call.stream_head().await;
        call.hang_up().await;
    });
    let setup = start(&[&engine]).await;
    let answer = setup.chat(&chat("hi", true)).await;
    assert_eq!((answer.status, answer.complete), (200, true));
    assert_eq!(answer.text(), chat_stream(false).concat());
    assert_eq!(engine.calls().len(), 2);
    let rows = setup.rows().await;
    assert_eq!((rows.len(), outcome(&rows[0]).0.as_str()), (1, "finished"));
}

/// I-STR-2, I-TRN-3.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_breaks_in_the_middle_ends_with_an_error_event_and_is_not_repeated() {
    let engine = once!(call, {
        call.stream_head().await;
        call.chunk(engine::chunk(&json!({"content": "half"}), None).as_bytes()).await;
        call.chunk(b"data: {\"id\":").await;
        call.hang_up().await;
    });
    let setup = start(&[&engine]).await;
    let answer = setup.chat(&chat("hi", true)).await;
    assert!(answer.complete, "the stream ends in good form");
    let text = answer.text();
    assert!(text.starts_with("data: {") && text.contains("half"), "{text}");
    let last = text.trim_end().rsplit("\n\n").nth(1).expect("an event before [DONE]");
    let error: serde_json::Value = serde_json::from_str(last.trim_start_matches("data: ")).expect(last);
    assert!(error["error"]["message"].as_str().expect("a message").contains("broke off"), "{error}");
    assert_eq!(engine.calls().len(), 1);
    let rows = setup.rows().await;
    assert_eq!(outcome(&rows[0]), ("failed".to_owned(), "cut".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_ends_without_its_end_is_told() {
    let engine = once!(call, { call.stream(&engine::messages_stream()[..3]).await });
    let setup = start(&[&engine]).await;
    let answer = setup.post("/v1/messages", "", &messages("hi", true)).await;
    let text = answer.text();
    assert!(text.starts_with(&engine::messages_stream()[..3].concat()), "{text}");
    assert!(text.contains("event: error\ndata: {\"type\":\"error\""), "{text}");
}

// I-FLT-1.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_never_answers_is_given_up_and_cancelled() {
    let engine = Engine::start(|call| Box::pin(async move { call.gone().await })).await;
    let setup = start_with(&[&engine], |config| {
        config.timeouts.response_head = Span::millis(100);
        config.retry.max_attempts = 2;
    })
    .await;
    let answer = setup.post("/v1/messages", "", &messages("hi", false)).await;
    assert_eq!((answer.status, answer.json()["type"].as_str()), (504, Some("error")));
    engine.wait_gone(2).await;
    assert_eq!(engine.calls().len(), 2);
    let rows = setup.rows().await;
    assert_eq!(outcome(&rows[0]), ("rejected".to_owned(), "attempts_exhausted".to_owned()));
}

/// I-STR-4.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_falls_silent_in_its_answer_is_told_and_cancelled() {
    let engine = Engine::start(|call| {
        Box::pin(async move {
            call.stream_head().await;
            call.chunk(engine::chunk(&json!({"content": "half"}), None).as_bytes()).await;
            call.gone().await;
        })
    })
    .await;
    let setup = start_with(&[&engine], |config| config.timeouts.stream_idle = Span::millis(150)).await;
    let answer = setup.chat(&chat("hi", true)).await;
    assert!(answer.complete && answer.text().contains("fell silent"), "{}", answer.text());
    engine.wait_gone(1).await;
    let rows = setup.rows().await;
    assert_eq!(outcome(&rows[0]), ("failed".to_owned(), "idle".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_whole_time_of_a_call_is_bounded() {
    let engine = Engine::start(|call| Box::pin(async move { call.gone().await })).await;
    let setup = start_with(&[&engine], |config| config.request_timeout = Span::millis(200)).await;
    let answer = setup.chat(&chat("hi", false)).await;
    assert_eq!(answer.status, 504);
    engine.wait_gone(1).await;
    assert_eq!(engine.calls().len(), 1);
    setup.idle().await;
    let rows = setup.rows().await;
    assert_eq!(outcome(&rows[0]), ("failed".to_owned(), "deadline".to_owned()));
}

/// I-GW-5.
#[tokio::test(flavor = "multi_thread")]
async fn garbage_is_retried_and_then_refused_in_the_dialects_form() {
    let engine = Engine::start(|call| {
        Box::pin(async move {
            call.raw(b"SSH-2.0-OpenSSH_9.2\r\n\r\n").await;
            call.hang_up().await;
        })
    })
    .await;
    let setup = start(&[&engine]).await;
    let answer = setup.post("/v1/messages", "", &messages("hi", false)).await;
    assert_eq!((answer.status, answer.json()["error"]["type"].as_str()), (502, Some("api_error")));
    assert!((5..=60).contains(&answer.retry_after()));
    assert_eq!(engine.calls().len(), 3, "three tries");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engines_last_words_pass_when_no_other_had_better_ones() {
    let engine = Engine::start(|call| {
        Box::pin(async move {
            let overloaded = call.seen.json()["messages"][0]["content"] == "overloaded";
            let status = if overloaded { 429 } else { 500 };
            call.json(status, &json!({"error": {"message": "engine words"}})).await;
        })
    })
    .await;
    let setup = start_with(&[&engine], |config| config.breaker.failure_threshold = 0).await;
    for (content, status) in [("x", 500), ("overloaded", 429)] {
        let answer = setup.chat(&chat(content, true)).await;
        assert_eq!(
            (answer.status, answer.json()["error"]["message"].as_str()),
            (status, Some("engine words"))
        );
        assert!((5..=60).contains(&answer.retry_after()), "codex gives up on a 429 without one");
    }
    // An engine that is overloaded is not asked again at once when there is no other.
    assert_eq!(engine.calls().len(), 3 + 1);
}

/// I-FLT-3, I-TRN-1.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_while_its_answer_is_made_costs_no_more() {
    let engine = Engine::start(|call| Box::pin(async move { call.gone().await })).await;
    let setup = start(&[&engine]).await;
    for stream in [false, true] {
        let mut client = Client::connect(setup.addr()).await;
        let body = messages("long", stream).to_string();
        client.send(&client::post("/v1/messages", "", body.as_bytes())).await;
        let calls = engine.wait_calls(1 + usize::from(stream)).await;
        drop(client);
        engine.wait_gone(calls.len()).await;
    }
    setup.idle().await;
    assert_eq!(engine.calls().len(), 2, "nothing is sent again");
    let rows = setup.rows().await;
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|row| outcome(row) == ("cancelled".to_owned(), "client_gone".to_owned())));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_in_the_middle_of_its_answer_stops_the_engine() {
    let engine = Engine::start(|call| {
        Box::pin(async move {
            call.stream_head().await;
            call.chunk(engine::chunk(&json!({"content": "first"}), None).as_bytes()).await;
            call.gone().await;
        })
    })
    .await;
    let setup = start(&[&engine]).await;
    let mut client = Client::connect(setup.addr()).await;
    client.send(&client::post("/v1/chat/completions", "", chat("hi", true).to_string().as_bytes())).await;
    client.until("first").await;
    drop(client);
    engine.wait_gone(1).await;
    setup.idle().await;
    let rows = setup.rows().await;
    assert_eq!((rows.len(), outcome(&rows[0]).1.as_str()), (1, "client_gone"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_closes_after_the_last_event_has_its_answer() {
    let engine = Engine::start(|call| {
        Box::pin(async move {
            call.stream_head().await;
            for piece in chat_stream(true) {
                call.chunk(piece.as_bytes()).await;
            }
            // The end of the transfer never comes.
            call.gone().await;
        })
    })
    .await;
    let setup = start(&[&engine]).await;
    let mut client = Client::connect(setup.addr()).await;
    client.send(&client::post("/v1/chat/completions", "", chat("hi", true).to_string().as_bytes())).await;
    client.until("[DONE]").await;
    drop(client);
    setup.idle().await;
    let rows = setup.rows().await;
    assert_eq!(outcome(&rows[0]).0, "finished");
    assert_eq!(rows[0]["request"]["output_tokens"], 3);
}

/// I-TRN-2: a row for each of the two, and one answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_comes_again_takes_the_place_of_the_first() {
    let engine = once!(call, { call.gone().await });
    let setup = start(&[&engine]).await;
    let headers = "x-claude-code-session-id: 0b0b0b0b-1111-4222-8333-444444444444\r\n";
    let request = client::post("/v1/messages", headers, messages("same", false).to_string().as_bytes());
    let mut first = Client::connect(setup.addr()).await;
    first.send(&request).await;
    engine.wait_calls(1).await;
    let second = client::call(setup.addr(), &request).await;
    assert_eq!(second.status, 200);
    engine.wait_gone(1).await;
    let first = first.answer().await;
    assert!(first.status >= 400, "one answer only: {first:?}");
    let mut ends: Vec<_> = setup.rows().await.iter().map(outcome).collect();
    ends.sort();
    assert_eq!(ends[0], ("cancelled".to_owned(), "superseded".to_owned()));
    assert_eq!(ends[1].0, "finished");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_comes_again_takes_the_place_of_a_stream_without_a_byte() {
    let engine = once!(call, {
        call.stream_head().await;
        call.gone().await;
    });
    let setup = start(&[&engine]).await;
    let headers = "x-claude-code-session-id: 0b0b0b0b-1111-4222-8333-444444444444\r\n";
    let request = client::post("/v1/messages", headers, messages("same", true).to_string().as_bytes());
    let mut first = Client::connect(setup.addr()).await;
    first.send(&request).await;
    first.until("text/event-stream").await;
    let second = client::call(setup.addr(), &request).await;
    assert_eq!(second.text(), engine::messages_stream().concat());
    engine.wait_gone(1).await;
    let first = first.answer().await;
    assert!(first.text().contains("event: error"), "{}", first.text());
    let mut ends: Vec<_> = setup.rows().await.iter().map(outcome).collect();
    ends.sort();
    assert_eq!(ends[0], ("cancelled".to_owned(), "superseded".to_owned()));
    assert_eq!(ends[1].0, "finished");
}

/// I-BODY-2, I-SRV-2.
#[tokio::test(flavor = "multi_thread")]
async fn slow_clients_are_given_up() {
    let engine = Engine::fine().await;
    let setup = start_with(&[&engine], |config| {
        config.timeouts.client_head = Span::millis(200);
        config.timeouts.client_body_idle = Span::millis(200);
    })
    .await;
    let silent = Client::connect(setup.addr()).await;
    assert_eq!(silent.closed().await, b"", "a connection that says nothing");
    let mut slow = Client::connect(setup.addr()).await;
    slow.send(b"P").await;
    let _ = slow.closed().await;
    let mut slow = Client::connect(setup.addr()).await;
    slow.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\nx-a").await;
    let _ = slow.closed().await;
    let mut slow = Client::connect(setup.addr()).await;
    slow.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\ncontent-length: 100\r\n\r\n{\"model\"")
        .await;
    let answer = slow.answer().await;
    assert_eq!(answer.status, 400);
    assert!(answer.json()["error"]["message"].as_str().expect("a message").contains("stopped coming"));
    assert!(engine.calls().is_empty());
    assert_eq!(setup.chat(&chat("hi", false)).await.status, 200, "others are served");
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_up_to_the_limit_pass_and_larger_ones_are_refused_in_form() {
    let engine = Engine::fine().await;
    let setup = start_with(&[&engine], |config| {
        config.limits.max_payload_size = "64MiB".parse().expect("a size");
    })
    .await;
    let mut body = chat("", false);
    body["messages"][0]["content"] = json!("x".repeat((64 << 20) - 200));
    let answer = setup.chat(&body).await;
    assert_eq!(answer.status, 200);
    assert!(engine.calls()[0].body.len() > (63 << 20));

    let mut client = Client::connect(setup.addr()).await;
    let head = format!("POST /v1/messages HTTP/1.1\r\nhost: t\r\ncontent-length: {}\r\n\r\n", (64 << 20) + 1);
    client.send(head.as_bytes()).await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.json()["error"]["type"].as_str()), (413, Some("request_too_large")));

    // A client that looks at the answer only when it has sent all gets it too.
    let mut client = Client::connect(setup.addr()).await;
    client.send(&client::post("/v1/messages", "", &vec![b' '; (64 << 20) + 1])).await;
    assert_eq!(client.answer().await.status, 413);

    // One that waits for our word is told at once and sends nothing.
    let mut client = Client::connect(setup.addr()).await;
    let head = head.replace("\r\n\r\n", "\r\nexpect: 100-continue\r\n\r\n");
    client.send(head.as_bytes()).await;
    assert!(client.closed().await.starts_with(b"HTTP/1.1 413"));

    // Without a length it is refused when the limit is reached.
    let setup = start_with(&[&engine], |config| {
        config.limits.max_payload_size = "4KiB".parse().expect("a size");
    })
    .await;
    let mut client = Client::connect(setup.addr()).await;
    client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n").await;
    for _ in 0..16 {
        client.send_some(&[b"200\r\n".as_slice(), &[b' '; 0x200], b"\r\n"].concat()).await;
    }
    assert_eq!(client.answer().await.status, 413);
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_cannot_be_read_are_refused_in_form() {
    let engine = Engine::fine().await;
    let setup = start(&[&engine]).await;
    for body in [
        b"{\"model\": \"\xff\xfe\"}".as_slice(),
        b"{\"model\": \"tiny\"",
        b"[]",
        b"",
        b"{\"model\": 3}",
        "[".repeat(100_000).as_bytes(),
    ] {
        let answer = client::call(setup.addr(), &client::post("/v1/messages", "", body)).await;
        assert_eq!(answer.status, 400, "{:?}", String::from_utf8_lossy(&body[..body.len().min(40)]));
        assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
        let answer = client::call(setup.addr(), &client::post("/v1/chat/completions", "", body)).await;
        assert_eq!((answer.status, answer.json()["error"]["param"].is_null()), (400, true));
    }
    let gzip = client::post("/v1/messages", "content-encoding: gzip\r\n", b"\x1f\x8b");
    assert_eq!(client::call(setup.addr(), &gzip).await.status, 415);
    assert!(engine.calls().is_empty());
    assert!(setup.rows().await.is_empty(), "what was never accepted has no row");
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_headers_are_refused_or_served_but_never_hang() {
    let engine = Engine::fine().await;
    let setup = start(&[&engine]).await;
    let mut headers = String::new();
    for n in 0..10_000 {
        headers.push_str(&format!("x-h-{n}: {n}\r\n"));
    }
    let mut client = Client::connect(setup.addr()).await;
    client.send_some(&client::post("/v1/chat/completions", &headers, b"{}")).await;
    let answer = String::from_utf8(client.closed().await).expect("ascii");
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    let generous = start_with(&[&engine], |config| {
        config.limits.max_headers = 20_000;
        config.limits.max_header_bytes = "1MiB".parse().expect("a size");
    })
    .await;
    let answer = generous.post("/v1/chat/completions", &headers, &chat("hi", false)).await;
    assert_eq!(answer.status, 200);
    assert_eq!(engine.calls()[0].header("x-h-9999"), Some("9999"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chunked_body_after_expect_continue_is_understood() {
    let engine = Engine::fine().await;
    let setup = start(&[&engine]).await;
    let mut client = Client::connect(setup.addr()).await;
    client
        .send(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\nexpect: 100-continue\r\n\
              transfer-encoding: chunked\r\n\r\n",
        )
        .await;
    client.until("HTTP/1.1 100").await;
    let body = chat("chunked", false).to_string();
    for piece in body.as_bytes().chunks(7) {
        let framed = [format!("{:x};ext=1\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
        client.send(&framed).await;
    }
    client.send(b"0\r\nx-trailer: 1\r\n\r\n").await;
    assert_eq!(client.answer().await.status, 200);
    let sent = &engine.calls()[0];
    assert_eq!(sent.body, body.as_bytes());
    assert_eq!(sent.header("transfer-encoding"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_beyond_the_bound_are_refused_at_once() {
    let engine = Engine::start(|call| Box::pin(async move { call.gone().await })).await;
    let setup = start_with(&[&engine], |config| config.max_concurrent_requests = 1).await;
    let mut first = Client::connect(setup.addr()).await;
    first.send(&client::post("/v1/chat/completions", "", chat("hi", false).to_string().as_bytes())).await;
    engine.wait_calls(1).await;
    let second = setup.chat(&chat("hi", false)).await;
    assert_eq!(second.status, 503);
    assert!((5..=60).contains(&second.retry_after()));
    drop(first);
    engine.wait_gone(1).await;
    engine.rescript(|call| Box::pin(engine::fine(call)));
    setup.idle().await;
    let served = async {
        while setup.chat(&chat("hi", false)).await.status != 200 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), served).await.expect("room again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_with_a_second_request_in_the_pipe_is_noticed() {
    let engine = Engine::start(|call| Box::pin(async move { call.gone().await })).await;
    let setup = start(&[&engine]).await;
    let mut client = Client::connect(setup.addr()).await;
    let request = client::post("/v1/chat/completions", "", chat("hi", false).to_string().as_bytes());
    client.send(&[request.clone(), request].concat()).await;
    engine.wait_calls(1).await;
    drop(client);
    engine.wait_gone(1).await;
    setup.idle().await;
    assert_eq!(engine.calls().len(), 1, "the second request is not begun");
    let rows = setup.rows().await;
    assert_eq!((rows.len(), outcome(&rows[0]).1.as_str()), (1, "client_gone"));
}

/// I-BODY-1, I-GW-4: what does not fit into the memory for bodies waits, and is refused when none is given back.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_share_a_bounded_memory() {
    let engine = Engine::fine().await;
    let setup = start_with(&[&engine], |config| {
        config.limits.max_payload_size = "1MiB".parse().expect("a size");
        config.limits.body_memory = "1MiB".parse().expect("a size");
        config.timeouts.client_body_idle = Span::millis(400);
    })
    .await;
    let mut large = chat("", false);
    large["messages"][0]["content"] = json!("x".repeat(900 << 10));
    let large = large.to_string();
    let request = client::post("/v1/chat/completions", "", large.as_bytes());
    let mut stalled = Client::connect(setup.addr()).await;
    stalled.send(&request[..request.len() - 1]).await;
    let reserved = async {
        while !setup.metrics().await.contains("tandem_body_memory_bytes 9") {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), reserved).await.expect("the first body is in memory");
    let second = client::call(setup.addr(), &request).await;
    assert!(matches!(second.status, 200 | 503), "{}", second.text());
    let first = stalled.answer().await;
    assert_eq!(first.status, 400, "the first one stopped coming");
    // Its memory was given back.
    assert_eq!(client::call(setup.addr(), &request).await.status, 200);
    let metrics = setup.metrics().await;
    assert!(metrics.contains("tandem_body_memory_bytes 0"), "{metrics}");
}

/// I-STR-1: an engine is not read faster than its client reads.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_slows_its_engine_down() {
    const ENOUGH: usize = 256 << 20;
    let (sent, mut progress) = tokio::sync::watch::channel(0_usize);
    let engine = Engine::start(move |call| {
        let sent = sent.clone();
        Box::pin(async move {
            call.stream_head().await;
            let piece = engine::chunk(&json!({"content": "x".repeat(64 << 10)}), None);
            while call.is_open() && *sent.borrow() < ENOUGH {
                call.chunk(piece.as_bytes()).await;
                sent.send_modify(|count| *count += piece.len());
            }
        })
    })
    .await;
    let setup = start(&[&engine]).await;
    let mut client = Client::connect(setup.addr()).await;
    client.send(&client::post("/v1/chat/completions", "", chat("hi", true).to_string().as_bytes())).await;
    // Until nothing moves any more.
    while tokio::time::timeout(Duration::from_millis(500), progress.changed()).await.is_ok() {}
    assert!(*progress.borrow() < ENOUGH / 4, "{} bytes were taken from the engine", *progress.borrow());
    drop(client);
    engine.wait_gone(1).await;
    setup.idle().await;
}

/// I-SRV-1: connections beyond the bound wait for one that ends.
#[tokio::test(flavor = "multi_thread")]
async fn connections_beyond_the_bound_wait() {
    let engine = Engine::fine().await;
    let setup = start_with(&[&engine], |config| config.limits.max_connections = 1).await;
    let mut first = Client::connect(setup.addr()).await;
    first.send(&client::get("/version")).await;
    assert_eq!(first.answer().await.status, 200);
    let mut second = Client::connect(setup.addr()).await;
    second.send(&client::get("/version")).await;
    first.send(&client::get("/version")).await;
    assert_eq!(first.answer().await.status, 200);
    assert!(setup.metrics().await.contains("tandem_connections 1"));
    drop(first);
    assert_eq!(second.answer().await.status, 200);
}

/// A stream in a coding that nobody asked for is nothing to read in, to cut from or to add to.
#[tokio::test(flavor = "multi_thread")]
async fn a_compressed_stream_passes_as_it_came() {
    let bytes: &[u8] = b"\x1f\x8b\x08\x00 not to be read \xff\n\n";
    let engine = Engine::start(move |call| {
        Box::pin(async move {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\n";
            call.raw(format!("{head}transfer-encoding: chunked\r\n\r\n").as_bytes()).await;
            call.chunk(bytes).await;
            call.end().await;
        })
    })
    .await;
    let setup = start(&[&engine]).await;
    let answer = setup.chat(&chat("hi", true)).await;
    assert_eq!(
        (answer.status, answer.complete, answer.header("content-encoding")),
        (200, true, Some("gzip"))
    );
    assert_eq!(answer.body, bytes);
    assert_eq!(engine.calls().len(), 1);
    assert_eq!(outcome(&setup.rows().await[0]).0, "finished");
}

/// Clients follow redirects: one of an engine would take them, and their keys, past the gateway.
#[tokio::test(flavor = "multi_thread")]
async fn statuses_that_answer_nothing_stay_here() {
    for status in [101, 304, 307, 600] {
        let engine = Engine::start(move |call| {
            Box::pin(async move {
                call.respond(status, "location: http://127.0.0.1:9/elsewhere\r\n", b"").await;
                call.hang_up().await;
            })
        })
        .await;
        let setup = start(&[&engine]).await;
        for (path, expected) in [("/v1/chat/completions", 502), ("/v1/embeddings", 503)] {
            let answer = setup.post(path, "", &chat("hi", false)).await;
            assert_eq!((answer.status, answer.header("location")), (expected, None), "{status} {path}");
        }
        let rows = setup.rows().await;
        assert_eq!(outcome(&rows[0]), ("rejected".to_owned(), "attempts_exhausted".to_owned()), "{status}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_never_begins_says_what_was_wrong() {
    let engine = Engine::start(|call| Box::pin(async move { call.stream(&[]).await })).await;
    let setup = start(&[&engine]).await;
    let answer = setup.chat(&chat("hi", true)).await;
    let said = "no engine could answer: the answer broke off before its first byte";
    assert!(answer.complete && answer.text().contains(said), "{}", answer.text());
}
