//! Turns whose prompt and answer are computed by different workers: scripted engines for every byte, modelled ones for
//! sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tandem_gateway::config::{Fallback, LocalPrefill, LocalPrefillName, Span};
use tandem_mock_engine::{
    Fault, FaultRule, MockConfig, MockEngine, MockKind, MockModel, MockRole, MockSplit,
};
use tokio::sync::Semaphore;

use crate::client::{self, Client};
use crate::engine::{self, Engine, chat_stream};
use crate::setup::{Setup, chat, messages, outcome, start_at};

/// Where a scripted prefill engine says that the KV lies: opaque, with white space that must survive.
const PARAMS: &str = r#"{"do_remote_prefill": true,  "remote_block_ids":[[1,2]],"remote_port":5600}"#;

/// An answer of one token with these parameters.
fn one_token(params: &str) -> String {
    format!(
        r#"{{"id":"chatcmpl-1","object":"chat.completion","model":"tiny","choices":[{{"index":0,"message":{{"role":"assistant","content":"h"}},"finish_reason":"length"}}],"usage":{{"prompt_tokens":7,"completion_tokens":1,"total_tokens":8,"prompt_tokens_details":{{"cached_tokens":5}}}},"kv_transfer_params":{params}}}"#
    )
}

async fn prefill_engine() -> Engine {
    Engine::start(|call| {
        Box::pin(async move {
            call.respond(200, "content-type: application/json\r\n", one_token(PARAMS).as_bytes()).await;
        })
    })
    .await
}

/// A gateway with one engine for prompts and one for answers.
async fn pair(prefill: &Engine, decode: &Engine) -> Setup {
    let urls = vec![format!("{}@role=prefill", prefill.url), format!("{}@role=decode", decode.url)];
    let setup = start_at(urls, |config| {
        config.pd.local_prefill = LocalPrefill::Named(LocalPrefillName::Off);
        config.retry.max_attempts = 3;
    })
    .await;
    setup.ready().await;
    setup
}

/// I-PD-1, I-PD-2.
#[tokio::test(flavor = "multi_thread")]
async fn both_workers_get_the_call_and_the_client_the_second_ones_answer() {
    let (prefill, decode) = (prefill_engine().await, Engine::fine().await);
    let setup = pair(&prefill, &decode).await;
    let body = r#"{ "model":"tiny", "max_completion_tokens" : 50,"stream":true,"min_tokens":4,"messages":[{"role":"user","content":"h\u00e4llo"}],"unknown": [1, 2]}"#;
    let call = client::post("/v1/chat/completions", "x-request-id: mine\r\n", body.as_bytes());
    let answer = client::call(setup.addr(), &call).await;
    assert_eq!((answer.status, answer.complete), (200, true));
    assert_eq!(answer.text(), chat_stream(false).concat());
    let (first, second) = (&prefill.calls()[0], &decode.calls()[0]);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("utf-8");
    let keep = r#"{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}"#;
    assert_eq!(
        text(&first.body),
        format!(
            r#"{{"kv_transfer_params":{keep},"max_tokens":1,"stream_options":null, "model":"tiny", "max_completion_tokens" : 1,"stream":false,"min_tokens":0,"messages":[{{"role":"user","content":"h\u00e4llo"}}],"unknown": [1, 2]}}"#
        ),
    );
    assert_eq!(
        text(&second.body),
        format!(
            r#"{{"kv_transfer_params":{PARAMS},"stream_options":{{"include_usage":true}}, "model":"tiny", "max_completion_tokens" : 50,"stream":true,"min_tokens":4,"messages":[{{"role":"user","content":"h\u00e4llo"}}],"unknown": [1, 2]}}"#
        ),
    );
    assert_eq!(first.header("x-request-id"), second.header("x-request-id"));
    let rows = setup.rows().await;
    assert_eq!(outcome(&rows[0]).0, "finished");
    let worker = &rows[0]["request"]["worker"];
    assert_eq!((&worker["prefill_worker_id"], &worker["decode_worker_id"]), (&json!(0), &json!(1)));
    // What the prefill worker had cached, not the four that the other reports.
    assert_eq!(rows[0]["request"]["cached_tokens"], 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_dialect_is_split() {
    let (prefill, decode) = (prefill_engine().await, Engine::fine().await);
    let setup = pair(&prefill, &decode).await;
    for stream in [false, true] {
        let answer = setup.post("/v1/messages", "", &messages("hi", stream)).await;
        assert_eq!((answer.status, answer.complete), (200, true));
    }
    for seen in prefill.calls() {
        let body = seen.json();
        assert_eq!(
            (&body["max_tokens"], &body["kv_transfer_params"]["do_remote_decode"]),
            (&json!(1), &json!(true))
        );
    }
    for seen in decode.calls() {
        assert_eq!(seen.json()["kv_transfer_params"]["remote_port"], 5600);
    }
    assert_eq!((prefill.calls().len(), decode.calls().len()), (2, 2));
    // Several answers to one prompt are the second worker's alone.
    let mut two = chat("hi", false);
    two["n"] = json!(2);
    assert_eq!(setup.chat(&two).await.status, 200);
    assert_eq!((prefill.calls().len(), decode.calls().len()), (2, 3));
}

/// The priorities that both workers got for a turn that `thunderagent` held, which raises it by 1.
async fn priorities(prefill_options: &str, decode_options: &str) -> [Value; 2] {
    let (prefill, decode) = (prefill_engine().await, Engine::fine().await);
    decode.holds(4096);
    let urls = vec![
        format!("{}@role=prefill,{prefill_options}", prefill.url),
        format!("{}@role=decode,{decode_options}", decode.url),
    ];
    let setup = start_at(urls, |config| {
        config.pd.local_prefill = LocalPrefill::Named(LocalPrefillName::Off);
        config.admission.policy = "thunderagent".to_owned();
        config.admission.thunderagent.tick = Span::millis(20);
    })
    .await;
    setup.ready().await;
    let told =
        |seen: &Value| seen["workers"].as_array().is_some_and(|w| w.iter().any(|w| w["device"] == 4096));
    setup.admin_until("/admission", told).await;
    // The first session has more than half of the room until its answer may go on.
    let gate = Arc::new(Semaphore::new(0));
    let waits = Arc::clone(&gate);
    decode.rescript(move |call| {
        let waits = Arc::clone(&waits);
        Box::pin(async move {
            drop(waits.acquire().await);
            engine::fine(call).await;
        })
    });
    let post = |session: &str| {
        let headers = format!("x-dynamo-session-id: {session}\r\nx-dynamo-session-final: true\r\n");
        client::post(
            "/v1/chat/completions",
            &headers,
            chat(&"word ".repeat(2400), true).to_string().as_bytes(),
        )
    };
    let mut first = Client::connect(setup.addr()).await;
    first.send(&post("a")).await;
    decode.wait_calls(1).await;
    let mut second = Client::connect(setup.addr()).await;
    second.send(&post("b")).await;
    setup.admin_until("/turns", |turns| turns["held_total"] == 1).await;
    gate.add_permits(1);
    assert_eq!((first.answer().await.status, second.answer().await.status), (200, 200));
    let priority = |engine: &Engine| {
        let calls = engine.calls();
        assert_eq!((calls.len(), calls[0].json().get("priority")), (2, None), "the first waited for nothing");
        calls[1].json()["priority"].clone()
    };
    [priority(&prefill), priority(&decode)]
}

/// I-PD-2. vLLM: lower is sooner. SGLang: higher is sooner.
#[tokio::test(flavor = "multi_thread")]
async fn both_workers_get_the_priority_where_they_schedule_by_it() {
    assert_eq!(priorities("priority=on", "priority=on").await, [json!(-1), json!(-1)]);
    assert_eq!(priorities("priority=on", "priority=off").await, [json!(-1), json!(null)]);
    assert_eq!(priorities("priority=off", "priority=on").await, [json!(null), json!(-1)]);
    let sglang = "kind=sglang,priority=on";
    assert_eq!(priorities(sglang, sglang).await, [json!(1), json!(1)]);
}

/// I-PD-4.
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_of_either_leg_is_tried_again_and_told_of_the_right_worker() {
    let tries = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&tries);
    let prefill = Engine::start(move |call| {
        let nth = count.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            match nth {
                0 => call.json(500, &json!({"error": {"message": "no"}})).await,
                _ => {
                    let answer = one_token(PARAMS);
                    call.respond(200, "content-type: application/json\r\n", answer.as_bytes()).await;
                }
            }
        })
    })
    .await;
    let failed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&failed);
    let decode = Engine::start(move |call| {
        let nth = count.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            match nth {
                0 => call.hang_up().await,
                _ => engine::fine(call).await,
            }
        })
    })
    .await;
    let setup = pair(&prefill, &decode).await;
    let answer = setup.chat(&chat("hi", true)).await;
    assert_eq!((answer.status, answer.text()), (200, chat_stream(false).concat()));
    assert_eq!((prefill.calls().len(), decode.calls().len()), (3, 2));
    setup.idle().await;
    let workers = setup.admin("/workers").await;
    for worker in workers["workers"].as_array().expect("a list") {
        assert_eq!((&worker["calls_running"], &worker["queued_prefill"]), (&json!(0), &json!(0)), "{worker}");
        assert_eq!(worker["breaker"]["closed"]["failures"], 0, "{worker}");
    }
    let rows = setup.rows().await;
    assert_eq!((outcome(&rows[0]).0.as_str(), &rows[0]["tandem"]["attempts"]), ("finished", &json!(3)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_by_the_prefill_worker_passes_and_the_other_never_hears_of_it() {
    let error = json!({"error": {"message": "too long", "type": "BadRequestError", "code": 400}});
    let said = error.clone();
    let prefill = Engine::start(move |call| {
        let said = said.clone();
        Box::pin(async move { call.json(400, &said).await })
    })
    .await;
    let decode = Engine::fine().await;
    let setup = pair(&prefill, &decode).await;
    let answer = setup.chat(&chat("hi", true)).await;
    assert_eq!((answer.status, answer.json()), (400, error));
    assert_eq!((prefill.calls().len(), decode.calls().len()), (1, 0));
    let rows = setup.rows().await;
    assert_eq!(outcome(&rows[0]), ("failed".to_owned(), "refused".to_owned()));
}

/// I-PD-3.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_ends_whichever_leg_is_under_way() {
    let prefill = Engine::start(|call| Box::pin(async move { call.gone().await })).await;
    let decode = Engine::start(|call| Box::pin(async move { call.gone().await })).await;
    let setup = pair(&prefill, &decode).await;
    let post = |body: &Value| client::post("/v1/chat/completions", "", body.to_string().as_bytes());
    let mut client = Client::connect(setup.addr()).await;
    client.send(&post(&chat("hi", true))).await;
    prefill.wait_calls(1).await;
    drop(client);
    prefill.wait_gone(1).await;
    setup.idle().await;
    prefill.rescript(|call| {
        Box::pin(async move {
            call.respond(200, "content-type: application/json\r\n", one_token(PARAMS).as_bytes()).await;
        })
    });
    let mut client = Client::connect(setup.addr()).await;
    client.send(&post(&chat("hi", true))).await;
    decode.wait_calls(1).await;
    drop(client);
    decode.wait_gone(1).await;
    setup.idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_worker_that_says_nothing_of_its_kv_costs_time_and_no_answer() {
    let prefill = Engine::start(|call| {
        Box::pin(async move {
            call.respond(200, "content-type: application/json\r\n", one_token("null").as_bytes()).await;
        })
    })
    .await;
    let decode = Engine::fine().await;
    let setup = pair(&prefill, &decode).await;
    assert_eq!(setup.chat(&chat("hi", true)).await.text(), chat_stream(false).concat());
    assert!(decode.calls()[0].json().get("kv_transfer_params").is_none());
    assert!(setup.metrics().await.contains("tandem_prefill_lost_total 1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_pool_makes_calls_wait_for_a_bounded_time_and_is_named() {
    let decode = Engine::fine().await;
    let url = format!("{}@role=decode", decode.url);
    let setup = start_at(vec![url.clone()], |config| {
        config.hold.max = Span::millis(50);
    })
    .await;
    setup.ready().await;
    let answer = setup.chat(&chat("hi", false)).await;
    assert!([429, 503].contains(&answer.status));
    assert!(answer.text().contains("no_prefill_worker"), "{}", answer.text());
    assert_eq!(decode.calls().len(), 0);
    // Where that is wanted, a worker for answers does it all.
    let setup = start_at(vec![url], |config| config.pd.fallback = Fallback::Alone).await;
    setup.ready().await;
    assert_eq!(setup.chat(&chat("hi", true)).await.text(), chat_stream(false).concat());
    assert_eq!(decode.calls().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_that_no_worker_has_are_named_in_the_refusal() {
    let engine = Engine::fine().await;
    let setup = start_at(vec![format!("{}@labels=big,taints=batch", engine.url)], |_| {}).await;
    setup.ready().await;
    let post = |wishes: &str| {
        let headers = format!("x-tandem-route: {wishes}\r\n");
        client::post("/v1/chat/completions", &headers, chat("hi", false).to_string().as_bytes())
    };
    let answer = client::call(setup.addr(), &post("require=big,huge; tolerate=batch")).await;
    assert_eq!(answer.status, 400);
    let said = answer.text();
    assert!(said.contains("labels required: big, huge; taints tolerated: batch"), "{said}");
    let answer = client::call(setup.addr(), &post("require=big; tolerate=batch")).await;
    assert_eq!(answer.status, 200);
}

/// Two modelled engines for prompts and two for answers.
async fn fleet(kind: MockKind, change: impl Fn(&mut MockSplit)) -> (Vec<MockEngine>, Setup) {
    let (mut engines, mut urls) = (Vec::new(), Vec::new());
    for n in 0..4 {
        let role = if n < 2 { MockRole::Prefill } else { MockRole::Decode };
        let mut split = MockSplit { role, ..MockSplit::default() };
        change(&mut split);
        let config = MockConfig {
            kind,
            models: vec![MockModel::base("tiny")],
            split: Some(split),
            ..MockConfig::default()
        };
        let engine = MockEngine::start(config).await.expect("starts");
        let word = if n < 2 { "prefill" } else { "decode" };
        urls.push(format!("{}@role={word},bootstrap_port={}", engine.url(), engine.addr().port()));
        engines.push(engine);
    }
    let setup = start_at(urls, |config| {
        config.pd.local_prefill = LocalPrefill::Named(LocalPrefillName::Off);
    })
    .await;
    setup.ready().await;
    (engines, setup)
}

/// Sessions of several turns at once through the fleet; the rows of its trace.
async fn sessions(kind: MockKind) -> Vec<Value> {
    let (engines, setup) = fleet(kind, |_| {}).await;
    let setup = Arc::new(setup);
    let mut running = tokio::task::JoinSet::new();
    for session in 0..6 {
        let setup = Arc::clone(&setup);
        running.spawn(async move {
            let mut history = vec![json!({"role": "system", "content": "long instructions ".repeat(60)})];
            for turn in 0..3 {
                history.push(json!({"role": "user", "content": format!("session {session} turn {turn}")}));
                let body =
                    json!({"model": "tiny", "stream": turn % 2 == 0, "max_tokens": 16, "messages": history});
                let headers = format!("x-session-id: session-{session}\r\n");
                let answer = setup.post("/v1/chat/completions", &headers, &body).await;
                assert_eq!((answer.status, answer.complete), (200, true), "{}", answer.text());
                history.push(json!({"role": "assistant", "content": "noted"}));
            }
        });
    }
    while let Some(done) = running.join_next().await {
        done.expect("no session fails");
    }
    let computed = |engine: &MockEngine| engine.stats().generated_tokens;
    // One token for each prompt at the engines for prompts, the answers at the others.
    assert_eq!(engines[..2].iter().map(computed).sum::<u64>(), 18);
    assert!(engines[2..].iter().map(computed).sum::<u64>() > 100);
    let setup = Arc::into_inner(setup).expect("all sessions are over");
    setup.gateway.begin_shutdown();
    setup.gateway.wait().await;
    for engine in engines {
        engine.stop().await;
    }
    routed_to_pairs(&setup.events());
    setup.read_rows()
}

/// Each decision tells of both workers.
fn routed_to_pairs(events: &[Value]) {
    let routed: Vec<&Value> = events.iter().filter(|event| event["event_type"] == "routing").collect();
    assert_eq!(routed.len(), 18);
    for event in routed {
        let prefill = &event["prefill"];
        assert_eq!(prefill["place"], "remote", "{event}");
        assert!(prefill["worker"]["worker_id"].as_u64() < Some(2), "{event}");
        assert!(event["worker"]["worker_id"].as_u64() >= Some(2), "{event}");
        assert!(prefill["reason"].is_string() && prefill["candidates"][0]["score"].is_number(), "{event}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_run_on_pairs_of_vllm_engines() {
    let rows = sessions(MockKind::Vllm).await;
    assert_eq!(rows.len(), 18);
    let mut later = 0;
    for row in &rows {
        assert_eq!(outcome(row).0, "finished");
        let worker = &row["request"]["worker"];
        assert!(
            worker["prefill_worker_id"].as_u64() < Some(2) && worker["decode_worker_id"].as_u64() >= Some(2)
        );
        later += usize::from(row["request"]["kv_hit_rate"].as_f64().is_some_and(|rate| rate > 0.5));
    }
    assert!(later >= 10, "{later} of 12 later turns found most of their prompt at their prefill worker");
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_run_on_pairs_of_sglang_engines() {
    let rows = sessions(MockKind::Sglang).await;
    assert_eq!(rows.len(), 18);
    assert!(rows.iter().all(|row| outcome(row).0 == "finished"));
}

/// The worker for answers never comes: the one for prompts gives up (I-MPD-1), and the turn is tried elsewhere, in
/// bounded time.
#[tokio::test(flavor = "multi_thread")]
async fn an_sglang_worker_that_waits_alone_gives_up_and_the_turn_goes_on() {
    let (engines, setup) = fleet(MockKind::Sglang, |split| split.patience_ms = 100).await;
    // Its calls hang, so that nobody meets the prefill worker there.
    let hang = FaultRule::next(Fault::Hang, 1);
    engines[2].set_faults(vec![hang.clone()]);
    engines[3].set_faults(vec![hang]);
    for stream in [true, false] {
        let answer = setup.chat(&chat("hi", stream)).await;
        assert_eq!((answer.status, answer.complete), (200, true), "{}", answer.text());
    }
    setup.idle().await;
    for engine in engines {
        engine.stop().await;
    }
}
