//! Engines coming, going, lying and hanging.

use tandem_engines::{AddError, Added, EngineEvent, EngineState, Engines, EnginesConfig, LoadSource, empty};
use tandem_types::{Adapter, EngineId, EngineKind, LoadReport, WorkerInfo};
use tokio::sync::mpsc;

use crate::net::{Fleet, Mode, Net, Script, VLLM_METRICS, config, millis, secs, spec, worker};

fn up(engine: u32, info: &WorkerInfo) -> EngineEvent {
    EngineEvent::Up { worker: worker(engine, 0), info: info.clone() }
}

fn tiny(kind: EngineKind, kv_capacity_tokens: Option<u64>) -> WorkerInfo {
    WorkerInfo { models: vec!["tiny".to_owned()], kv_capacity_tokens, ..WorkerInfo::new(kind) }
}

fn vllm_info() -> WorkerInfo {
    tiny(EngineKind::Vllm, Some(2_097_152))
}

#[tokio::test(start_paused = true)]
async fn vllm_is_ready_at_once_with_model_capacity_and_load() {
    let net = Net::new();
    let script = Script::vllm();
    net.serve("a:8000", &script);
    let mut fleet = Fleet::start(&net, &["http://a:8000@max_running=64,label.zone=z"]);
    assert_eq!(
        fleet.next().await,
        up(0, &WorkerInfo { max_running: Some(64), labels: vec!["zone=z".to_owned()], ..vllm_info() })
    );
    assert!(net.now() < millis(10), "ready after {:?}", net.now());
    let (of, load) = fleet.next_load().await;
    let idle =
        LoadReport { kv_usage: Some(0.0), kv_capacity_tokens: Some(2_097_152), ..LoadReport::default() };
    assert_eq!((of, load), (worker(0, 0), idle));

    let status = fleet.engines.status(EngineId(0)).expect("registered");
    assert_eq!((status.state, status.version.as_deref()), (EngineState::Ready, Some("0.32.0")));
    assert_eq!((status.kind, status.load_source), (Some(EngineKind::Vllm), LoadSource::Metrics));
    assert_eq!(status.models.first().and_then(|m| m.max_model_len), Some(8192));
    assert_eq!(status.labels.get("zone").map(String::as_str), Some("z"));
    let target = fleet.engines.target(worker(0, 0)).expect("registered");
    assert_eq!((target.kind, target.rank), (EngineKind::Vllm, None));
    assert_eq!(target.base.to_string(), "http://a:8000");
}

#[tokio::test(start_paused = true)]
async fn load_follows_the_engine() {
    let net = Net::new();
    let script = Script::vllm();
    net.serve("a:8000", &script);
    let mut fleet = Fleet::start(&net, &["http://a:8000"]);
    fleet.next_load().await;
    script.set(
        "/metrics",
        200,
        "vllm:num_requests_running{engine=\"0\"} 7\nvllm:num_requests_waiting{engine=\"0\"} 2\n",
    );
    let (_, load) = fleet.next_load().await;
    assert_eq!((load.running, load.waiting), (7, 2));
    assert!(net.now() <= millis(1010), "{:?}", net.now());
}

#[tokio::test(start_paused = true)]
async fn sglang_is_watched_without_making_it_generate() {
    let net = Net::new();
    let script = Script::sglang();
    net.serve("a:30000", &script);
    let mut fleet = Fleet::start(&net, &["http://a:30000"]);
    assert_eq!(fleet.next().await, up(0, &tiny(EngineKind::Sglang, Some(8192))));
    assert_eq!(fleet.during(secs(60)).await, []);
    assert_eq!(script.seen("/health").len(), 0, "/health of sglang runs a generation");
    assert!(script.seen("/model_info").len() >= 29);
    let status = fleet.engines.status(EngineId(0)).expect("registered");
    assert_eq!((status.load_source, status.version.as_deref()), (LoadSource::Loads, Some("0.5.23")));
}

#[tokio::test(start_paused = true)]
async fn old_sglang_has_capacity_from_get_server_info() {
    let net = Net::new();
    let script = Script::sglang();
    for path in ["/v1/loads", "/server_info", "/model_info"] {
        script.unset(path);
    }
    script.set("/get_model_info", 200, "{}");
    script.set("/get_server_info", 200, crate::net::SGLANG_INFO);
    net.serve("a:30000", &script);
    let mut fleet = Fleet::start(&net, &["http://a:30000"]);
    assert_eq!(fleet.next().await, up(0, &tiny(EngineKind::Sglang, Some(8192))));
    let status = fleet.engines.status(EngineId(0)).expect("registered");
    assert_eq!(status.load_source, LoadSource::ServerInfo);
}

// I-SUR-1.
#[tokio::test(start_paused = true)]
async fn an_engine_with_nothing_but_a_model_list_is_used() {
    let net = Net::new();
    net.serve("a:1", &Script::new(&[("/v1/models", 200, r#"{"data":[{"id":"m"},{"id":"b"}]}"#)]));
    let mut fleet = Fleet::start(&net, &["http://a:1/v1"]);
    let info =
        WorkerInfo { models: vec!["b".to_owned(), "m".to_owned()], ..WorkerInfo::new(EngineKind::OpenAi) };
    assert_eq!(fleet.next().await, up(0, &info));
    assert_eq!(fleet.during(secs(120)).await, []);
}

#[tokio::test(start_paused = true)]
async fn an_engine_without_a_model_list_takes_any_name() {
    let net = Net::new();
    net.serve("a:1", &Script::new(&[("/health", 200, "")]));
    let mut fleet = Fleet::start(&net, &["http://a:1"]);
    let EngineEvent::Up { info, .. } = fleet.next().await else { panic!("not up") };
    assert_eq!((info.kind, info.models), (EngineKind::OpenAi, vec![]));
}

// I-ENG-3, I-SUR-2, I-WAT-5.
#[tokio::test(start_paused = true)]
async fn engines_that_say_nothing_useful_are_not_ready_and_disturb_nobody() {
    let net = Net::new();
    net.serve("empty:1", &Script::new(&[]));
    net.set("silent:1", Mode::Silent);
    net.set("hangup:1", Mode::Hangup);
    net.set("garbage:1", Mode::Garbage);
    net.set("far:1", Mode::Unreachable);
    net.set("refused:1", Mode::Refuse);
    net.serve("html:1", &Script::new(&[("/v1/models", 200, "<html>"), ("/health", 200, "")]));
    net.serve("busy:1", &Script::new(&[("/v1/models", 503, "loading"), ("/health", 200, "")]));
    net.serve("huge:1", &Script::new(&[("/v1/models", 200, &"x".repeat(17 << 20))]));
    net.serve("locked:1", &Script::new(&[("/v1/models", 401, "{}"), ("/health", 200, "")]));
    net.serve("good:1", &Script::vllm());
    let hosts = [
        ("empty:1", "is this an inference engine"),
        ("silent:1", "no answer within 5s"),
        ("hangup:1", "connection lost"),
        ("garbage:1", "not http"),
        ("far:1", "within 5s"),
        ("refused:1", "connection refused"),
        ("html:1", "not a list of models"),
        ("busy:1", "status 503"),
        ("huge:1", "larger than"),
        ("locked:1", "set the engine's api_key"),
    ];
    let mut specs: Vec<&str> = hosts.iter().map(|(host, _)| *host).collect();
    specs.push("good:1");
    let mut fleet = Fleet::start(&net, &specs);
    assert_eq!(fleet.next().await, up(10, &vllm_info()));
    assert!(net.now() < millis(10), "the good engine waited for the others: {:?}", net.now());
    assert_eq!(fleet.during(secs(60)).await, []);
    for (status, (host, says)) in fleet.engines.list().iter().zip(hosts) {
        assert_eq!(status.state, EngineState::Starting, "{host}");
        let error = status.last_error.clone().map(|e| e.text).unwrap_or_default();
        assert!(error.contains(says), "{host}: {error:?}");
        assert!(status.failures > 5, "{host}: {}", status.failures);
    }
}

#[tokio::test(start_paused = true)]
async fn a_starting_engine_is_asked_soon_and_then_less_often() {
    let net = Net::new();
    let script = Script::new(&[("/v1/models", 503, "")]);
    net.serve("a:1", &script);
    let mut fleet = Fleet::start(&net, &["http://a:1"]);
    assert_eq!(fleet.during(secs(8)).await, []);
    let at: Vec<u128> = script.seen("/v1/models").iter().map(|s| s.at.as_millis() / 50 * 50).collect();
    assert_eq!(at, [0, 100, 300, 700, 1500, 3100, 5100, 7100], "0.1 s doubling up to 2 s");
}

// I-WAT-1, I-WAT-2.
#[tokio::test(start_paused = true)]
async fn two_bad_probes_are_forgiven_three_are_not() {
    let net = Net::new();
    let script = Script::vllm();
    net.serve("a:1", &script);
    let mut fleet = Fleet::start(&net, &["http://a:1"]);
    fleet.next().await;
    script.set("/health", 503, "");
    let failures = || fleet.engines.status(EngineId(0)).expect("registered").failures;
    while failures() < 2 {
        assert!(net.now() < secs(10), "two failures are never reached");
        tokio::time::sleep(millis(10)).await;
    }
    script.set("/health", 200, "");
    assert_eq!(fleet.during(secs(20)).await, [], "two failures, then well again");

    script.set("/health", 503, "");
    let down = fleet.next().await;
    let EngineEvent::Down { worker: w, reason } = down else { panic!("{down:?}") };
    assert_eq!((w, reason.as_str()), (worker(0, 0), "/health: status 503"));
    let status = fleet.engines.status(EngineId(0)).expect("registered");
    assert_eq!((status.state, status.downs, status.failures), (EngineState::Down, 1, 3));

    script.forget();
    script.set("/health", 200, "");
    assert_eq!(fleet.next().await, up(0, &vllm_info()));
    assert_eq!(script.seen("/v1/models").len(), 2, "back after two good surveys");
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_dies_is_down_within_seconds_and_back_when_it_is_back() {
    let net = Net::new();
    let script = Script::vllm();
    net.serve("a:1", &script);
    let mut fleet = Fleet::start(&net, &["http://a:1"]);
    fleet.next().await;
    for dead in [Mode::Refuse, Mode::Hangup, Mode::Garbage] {
        let died = net.now();
        net.set("a:1", dead);
        assert!(matches!(fleet.next().await, EngineEvent::Down { .. }));
        assert!(net.now() - died < secs(4), "noticed after {:?}", net.now() - died);
        let returned = net.now();
        net.serve("a:1", &script);
        assert_eq!(fleet.next().await, up(0, &vllm_info()));
        assert!(net.now() - returned < secs(3), "back after {:?}", net.now() - returned);
    }
}

#[tokio::test(start_paused = true)]
async fn slow_health_is_health_until_it_is_too_slow() {
    let net = Net::new();
    let script = Script::vllm();
    net.serve("a:1", &script);
    let mut fleet = Fleet::start(&net, &["http://a:1"]);
    fleet.next().await;
    script.set_slow("/health", 200, "", secs(4));
    assert_eq!(fleet.during(secs(60)).await, []);
    script.set_slow("/health", 200, "", secs(6));
    assert!(matches!(fleet.next().await, EngineEvent::Down { .. }));
}

// I-WAT-2.
#[tokio::test(start_paused = true)]
async fn trouble_with_metrics_or_models_does_not_take_an_engine_down() {
    let net = Net::new();
    let script = Script::vllm();
    net.serve("a:1", &script);
    let mut fleet = Fleet::start(&net, &["http://a:1"]);
    fleet.next().await;
    script.set("/v1/models", 500, "");
    for (status, body) in [(500, ""), (200, "\u{0}garbage{{{")] {
        script.set("/metrics", status, body);
        assert_eq!(fleet.during(secs(50)).await, [], "metrics {status}");
    }
}

// I-WAT-4.
#[tokio::test(start_paused = true)]
async fn data_parallel_ranks_are_workers_and_are_pinned() {
    let net = Net::new();
    let script = Script::vllm();
    let two = VLLM_METRICS.to_owned() + &VLLM_METRICS.replace("engine=\"0\"", "engine=\"1\"");
    script.set("/metrics", 200, &two);
    net.serve("a:1", &script);
    let mut fleet = Fleet::start(&net, &["http://a:1"]);
    let rank = |rank| EngineEvent::Up { worker: worker(0, rank), info: vllm_info() };
    assert_eq!([fleet.next().await, fleet.next().await], [rank(0), rank(1)]);
    let mut headers = http::HeaderMap::new();
    fleet.engines.target(worker(0, 1)).expect("registered").apply(&mut headers);
    assert_eq!(headers.get("x-data-parallel-rank").map(|v| v.as_bytes()), Some(&b"1"[..]));

    script.set("/metrics", 200, VLLM_METRICS);
    assert_eq!(fleet.during(secs(20)).await, [], "one poor answer takes no rank away");
    assert_eq!(fleet.next().await, EngineEvent::Removed { worker: worker(0, 1) }, "the next survey does");
    assert_eq!(fleet.engines.target(worker(0, 0)).expect("registered").rank, None);
}

#[tokio::test(start_paused = true)]
async fn a_lone_rank_of_an_external_balancer_is_rank_zero_and_not_pinned() {
    let net = Net::new();
    let script = Script::vllm();
    script.set("/metrics", 200, &VLLM_METRICS.replace("engine=\"0\"", "engine=\"3\""));
    net.serve("a:1", &script);
    let mut fleet = Fleet::start(&net, &["http://a:1"]);
    assert_eq!(fleet.next().await, up(0, &vllm_info()));
    assert_eq!(fleet.next_load().await.0, worker(0, 0));
    assert_eq!(fleet.next_load().await.0, worker(0, 0));
    assert_eq!(fleet.engines.target(worker(0, 0)).expect("registered").rank, None);
}

#[tokio::test(start_paused = true)]
async fn a_loaded_adapter_appears_as_a_model() {
    let net = Net::new();
    let script = Script::vllm();
    net.serve("a:1", &script);
    let mut fleet = Fleet::start(&net, &["http://a:1"]);
    fleet.next().await;
    let list = r#"{"data":[{"id":"tiny","owned_by":"vllm"},{"id":"sql","owned_by":"vllm","parent":"tiny"}]}"#;
    script.set("/v1/models", 200, list);
    let adapters = vec![Adapter { name: "sql".to_owned(), base: "tiny".to_owned() }];
    let models = vec!["sql".to_owned(), "tiny".to_owned()];
    assert_eq!(fleet.next().await, up(0, &WorkerInfo { models, adapters, ..vllm_info() }));
    assert!(net.now() < secs(31), "{:?}", net.now());
    let status = fleet.engines.status(EngineId(0)).expect("registered");
    assert_eq!(status.models.first().and_then(|m| m.parent.as_deref()), Some("tiny"));
}

// I-ENG-1, I-ENG-2.
#[tokio::test(start_paused = true)]
async fn drain_undrain_remove_and_add_again() {
    let net = Net::new();
    let script = Script::vllm();
    net.serve("a:1", &script);
    let mut fleet = Fleet::start(&net, &["http://a:1"]);
    fleet.next().await;
    // Drains are told at once, even while a probe hangs.
    script.set_slow("/health", 200, "", secs(4));
    tokio::time::sleep(millis(2500)).await;
    let asked = net.now();
    assert!(fleet.engines.drain(EngineId(0)));
    assert_eq!(fleet.next().await, EngineEvent::Draining { worker: worker(0, 0) });
    assert_eq!(net.now(), asked);
    assert_eq!(fleet.engines.list().first().map(|s| s.state), Some(EngineState::Draining));
    assert_eq!(fleet.during(secs(60)).await, []);

    assert!(fleet.engines.undrain(EngineId(0)));
    assert_eq!(fleet.next().await, up(0, &vllm_info()));
    assert!(fleet.engines.remove(EngineId(0)));
    assert!(fleet.engines.target(worker(0, 0)).is_none(), "gone at once");
    assert_eq!(fleet.next().await, EngineEvent::Removed { worker: worker(0, 0) });
    assert!(!fleet.engines.remove(EngineId(0)));
    assert!(!fleet.engines.drain(EngineId(0)));
    assert_eq!(fleet.engines.list(), []);

    assert_eq!(fleet.engines.add(spec("a:1")), Ok(Added::Engine(EngineId(1))), "ids are not reused");
    assert_eq!(fleet.next().await, up(1, &vllm_info()));
}

#[tokio::test(start_paused = true)]
async fn a_drained_engine_that_was_never_up_is_not_told_of_until_undrained() {
    let net = Net::new();
    net.set("a:1", Mode::Refuse);
    let mut fleet = Fleet::start(&net, &["http://a:1"]);
    assert!(fleet.engines.drain(EngineId(0)));
    net.serve("a:1", &Script::vllm());
    assert_eq!(fleet.during(secs(30)).await, []);
    assert!(fleet.engines.undrain(EngineId(0)));
    assert_eq!(fleet.next().await, up(0, &vllm_info()));
}

#[tokio::test(start_paused = true)]
async fn the_same_url_is_one_engine() {
    let net = Net::new();
    let fleet = Fleet::start(&net, &["http://a:1", "http://A:1/v1/"]);
    assert_eq!(fleet.engines.list().len(), 1);
    assert_eq!(
        fleet.engines.add(spec("a:1")),
        Err(AddError::Duplicate("http://a:1".to_owned())),
        "scheme and case make no difference"
    );
}

// I-ENG-4.
#[tokio::test(start_paused = true)]
async fn shutdown_ends_every_task_whatever_it_waits_for() {
    let net = Net::new();
    net.set("silent:1", Mode::Silent);
    net.set("far:1", Mode::Unreachable);
    let script = Script::vllm();
    net.serve("good:1", &script);
    let mut fleet = Fleet::start(&net, &["silent:1", "far:1", "good:1", "dns://name.invalid:1"]);
    fleet.next().await;
    let asked = net.now();
    fleet.engines.shutdown().await;
    assert_eq!(net.now(), asked, "shutdown waits for no engine");
    assert_eq!(fleet.engines.add(spec("late:1")), Err(AddError::ShuttingDown));
    assert_eq!(fleet.engines.add(spec("dns://late:1")), Err(AddError::ShuttingDown));
    script.forget();
    assert_eq!(fleet.during(secs(60)).await, []);
    assert_eq!(script.seen("/health").len(), 0);
}

// I-WAT-3.
#[tokio::test(start_paused = true)]
async fn a_slow_receiver_loses_load_reports_and_nothing_else() {
    let net = Net::new();
    let (a, b) = (Script::vllm(), Script::vllm());
    net.serve("a:1", &a);
    net.serve("b:1", &b);
    let (tx, rx) = mpsc::channel(1);
    let engines = Engines::start(config(), net.client(), vec![spec("a:1"), spec("b:1")], tx);
    let mut fleet = Fleet::with(engines, rx);
    // Nobody reads while a dies, comes back and is drained.
    tokio::time::sleep(secs(5)).await;
    net.set("a:1", Mode::Refuse);
    tokio::time::sleep(secs(60)).await;
    let mut phases = Vec::new();
    for event in fleet.during(secs(5)).await {
        phases.push(match event {
            EngineEvent::Up { worker, .. } => format!("up {worker}"),
            EngineEvent::Down { worker, .. } => format!("down {worker}"),
            event => format!("{event:?}"),
        });
    }
    phases.sort();
    assert_eq!(phases, ["down e0r0", "up e0r0", "up e1r0"]);
    fleet.engines.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_receiver_that_left_ends_the_tasks() {
    let net = Net::new();
    net.serve("a:1", &Script::vllm());
    let (tx, rx) = mpsc::channel(1);
    let engines = Engines::start(config(), net.client(), vec![spec("a:1")], tx);
    drop(rx);
    tokio::time::sleep(secs(1)).await;
    assert_eq!(engines.list(), []);
}

#[tokio::test(start_paused = true)]
async fn a_suspected_engine_is_probed_at_once_but_not_without_end() {
    let net = Net::new();
    let script = Script::vllm();
    net.serve("a:1", &script);
    let slow = EnginesConfig { health_interval: secs(60), load_interval: secs(60), ..config() };
    let mut fleet = Fleet::start_with(&net, &["a:1"], slow);
    fleet.next().await;
    tokio::time::sleep(secs(1)).await;
    script.forget();
    script.set("/health", 503, "");
    fleet.engines.suspect(EngineId(0));
    assert!(matches!(fleet.next().await, EngineEvent::Down { .. }));
    assert!(net.now() < secs(3), "{:?}", net.now());

    script.set("/health", 200, "");
    fleet.next().await;
    script.forget();
    for _ in 0..1000 {
        fleet.engines.suspect(EngineId(0));
        tokio::time::sleep(millis(1)).await;
    }
    let probes = script.seen("/health").len();
    assert!((5..=12).contains(&probes), "{probes} probes in a second of suspicion");
}

#[tokio::test(start_paused = true)]
async fn the_engines_key_goes_with_every_question() {
    let net = Net::new();
    let script = Script::vllm();
    net.serve("a:1", &script);
    let mut fleet = Fleet::start(&net, &["http://a:1@api_key=secret"]);
    fleet.next().await;
    for path in ["/v1/models", "/health", "/metrics", "/version"] {
        let seen = script.seen(path);
        let auth = seen.first().and_then(|s| s.headers.get("authorization")).map(|v| v.as_bytes().to_vec());
        assert_eq!(auth.as_deref(), Some(&b"Bearer secret"[..]), "{path}");
    }
    let status = fleet.engines.status(EngineId(0)).expect("registered");
    assert!(!format!("{status:?}").contains("secret"));
}

#[tokio::test(start_paused = true)]
async fn a_hint_overrides_what_the_engine_says() {
    let net = Net::new();
    net.serve("a:1", &Script::vllm());
    let mut fleet = Fleet::start(&net, &["http://a:1@kind=openai"]);
    let EngineEvent::Up { info, .. } = fleet.next().await else { panic!("not up") };
    assert_eq!((info.kind, info.kv_capacity_tokens), (EngineKind::OpenAi, None));
}

#[tokio::test(start_paused = true)]
async fn makes_are_told_apart_without_owned_by() {
    let models = r#"{"data":[{"id":"tiny"}]}"#;
    for (path, body, kind) in [
        ("/version", "{\"version\":\"0.9.0\"}", EngineKind::Vllm),
        ("/server_info", crate::net::SGLANG_INFO, EngineKind::Sglang),
        ("/get_server_info", crate::net::SGLANG_INFO, EngineKind::Sglang),
        ("/info", "{}", EngineKind::OpenAi),
    ] {
        let net = Net::new();
        net.serve("a:1", &Script::new(&[("/v1/models", 200, models), (path, 200, body)]));
        let mut fleet = Fleet::start(&net, &["a:1"]);
        let EngineEvent::Up { info, .. } = fleet.next().await else { panic!("not up") };
        assert_eq!(info.kind, kind, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_target_serves_a_call() {
    let net = Net::new();
    let script = Script::vllm();
    script.set("/v1/chat/completions", 200, "{}");
    net.serve("a:1", &script);
    let mut fleet = Fleet::start(&net, &["a:1"]);
    fleet.next().await;
    let target = fleet.engines.target(worker(0, 0)).expect("registered");
    let mut request = http::Request::new(empty());
    *request.uri_mut() = target.base.uri("/v1/chat/completions?x=1").expect("a url");
    target.apply(request.headers_mut());
    let response = fleet.engines.client().send(request).await.expect("an answer");
    assert_eq!(response.status(), 200);
    let seen = script.seen("/v1/chat/completions");
    assert_eq!(seen.first().and_then(|s| s.headers.get("host")).map(|v| v.as_bytes()), Some(&b"a:1"[..]));
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_was_put_to_sleep_takes_no_turns() {
    let net = Net::new();
    let script = Script::vllm();
    net.serve("a:1", &script);
    let mut fleet = Fleet::start(&net, &["a:1"]);
    fleet.next().await;
    let asleep = VLLM_METRICS
        .replace("sleep_state=\"awake\"} 1.0", "sleep_state=\"awake\"} 0.0")
        .replace("sleep_state=\"weights_offloaded\"} 0.0", "sleep_state=\"weights_offloaded\"} 1.0");
    script.set("/metrics", 200, &asleep);
    let slept = net.now();
    let down = fleet.next().await;
    assert!(matches!(&down, EngineEvent::Down { reason, .. } if reason.contains("sleeps")), "{down:?}");
    assert!(net.now() - slept <= millis(1010));
    assert_eq!(fleet.during(secs(60)).await, []);
    script.set("/metrics", 200, VLLM_METRICS);
    assert_eq!(fleet.next().await, up(0, &vllm_info()));
}

#[tokio::test(start_paused = true)]
async fn absurd_settings_neither_spin_nor_overflow() {
    let net = Net::new();
    let script = Script::vllm();
    net.serve("a:1", &script);
    let zero = EnginesConfig {
        health_interval: secs(0),
        load_interval: secs(0),
        retry_initial: secs(0),
        jitter: f64::NAN,
        render_concurrency: usize::MAX,
        ..config()
    };
    let mut fleet = Fleet::start_with(&net, &["a:1"], zero);
    fleet.next().await;
    script.forget();
    assert_eq!(fleet.during(secs(1)).await, []);
    assert!(script.seen("/health").len() <= 100, "{}", script.seen("/health").len());
    fleet.engines.shutdown().await;

    let endless = EnginesConfig {
        health_interval: std::time::Duration::MAX,
        models_interval: std::time::Duration::MAX,
        load_interval: std::time::Duration::MAX,
        jitter: 9.0,
        ..config()
    };
    let mut fleet = Fleet::start_with(&net, &["a:1"], endless);
    fleet.next().await;
    assert_eq!(fleet.during(secs(3600)).await, []);
}

#[tokio::test(start_paused = true)]
async fn status_is_readable_json() {
    let net = Net::new();
    net.set("a:1", Mode::Refuse);
    let fleet = Fleet::start(&net, &["a:1"]);
    tokio::time::sleep(millis(1500)).await;
    let status = fleet.engines.status(EngineId(0)).expect("registered");
    let json = serde_json::to_value(&status).expect("json");
    assert_eq!(json["since_seconds"], 1.5);
    assert_eq!((&json["state"], &json["url"]), (&"starting".into(), &"http://a:1".into()));
    assert_eq!(json["last_error"]["text"], "/v1/models: cannot connect: connection refused");
    assert!(json["last_error"]["ago_seconds"].is_f64());
}
