//! What a state directory gives back after a restart, against modelled engines. Kills are in the tests of the binary.

use std::path::Path;

use serde_json::{Value, json};
use tandem_gateway::config::{ApiKey, Config, PromptSource, Secret, Span};
use tandem_gateway::{Gateway, StartError};
use tandem_mock_engine::{MockEngine, MockKind};

use crate::client;
use crate::sessions::{BLOCK, Session, Turn, engine};
use crate::setup::{Setup, start_at};

async fn start(urls: &[&str], folder: &Path, more: impl FnOnce(&mut Config)) -> Setup {
    let setup = start_at(urls.iter().map(|url| (*url).to_owned()).collect(), |config| {
        "kv".clone_into(&mut config.policy);
        config.kv.sources = vec![PromptSource::Lineage];
        config.state.dir = Some(folder.to_string_lossy().into_owned());
        more(config);
    })
    .await;
    setup.ready().await;
    setup.exact().await;
    setup
}

/// Ends a gateway in order.
async fn end(setup: Setup) {
    setup.idle().await;
    setup.gateway.begin_shutdown();
    setup.gateway.wait().await;
}

async fn sessions(setup: &Setup) -> Vec<Value> {
    setup.admin("/sessions").await["programs"].as_array().expect("a list").clone()
}

fn home(programs: &[Value], tenant: &str, session: &str) -> Option<Value> {
    let ours =
        |program: &&Value| program["program"]["tenant"] == tenant && program["program"]["session"] == session;
    programs.iter().find(ours).map(|program| program["last_worker"].clone())
}

fn keys(config: &mut Config) {
    config.auth.api_keys = ["a", "b"]
        .map(|name| ApiKey { key: Secret::new(format!("key-{name}")), tenant: name.to_owned() })
        .to_vec();
}

/// Turns of sessions, each known before the next one comes.
async fn talk(setup: &Setup, all: &mut [Session], turns: std::ops::Range<usize>) -> Vec<Turn> {
    let mut said = Vec::new();
    for number in turns {
        for session in &mut *all {
            let before = held(&setup.admin("/kv").await);
            let turn = session.turn(setup, &format!("question {number} {}", "and more ".repeat(20))).await;
            setup.admin_until("/kv", |kv| kv["predicted_blocks"] == 0 && held(kv) > before).await;
            said.push(turn);
        }
    }
    said
}

/// Three turns each; after the restart the fourth is judged as it is where there was none, and goes to the same worker.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_is_not_noticed() {
    let (folder, other) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let (a, b) = (engine(MockKind::Vllm).await, engine(MockKind::Vllm).await);
    let (c, d) = (engine(MockKind::Vllm).await, engine(MockKind::Vllm).await);
    let before = start(&[&a.url(), &b.url()], folder.path(), |_| {}).await;
    let steady = start(&[&c.url(), &d.url()], other.path(), |_| {}).await;
    let names = ["one", "two-2", "three-33", "four-444"];
    let (mut all, mut twins) = (names.map(Session::new), names.map(Session::new));
    talk(&before, &mut all, 0..3).await;
    talk(&steady, &mut twins, 0..3).await;
    let known = sessions(&before).await;
    let homes = names.map(|name| home(&known, "default", name).expect("known"));
    end(before).await;
    // The engines in another order: a home is an address, not a number.
    let after = start(&[&b.url(), &a.url()], folder.path(), |_| {}).await;
    let again = sessions(&after).await;
    assert_eq!(again.len(), names.len());
    let (said, expected) = (talk(&after, &mut all, 3..4).await, talk(&steady, &mut twins, 3..4).await);
    for (at, name) in names.iter().enumerate() {
        let now = home(&again, "default", name).expect("restored");
        assert_eq!(now["engine"].as_u64().map(|id| 1 - id), homes[at]["engine"].as_u64(), "{name}");
        let (said, expected) = (&said[at], &expected[at]);
        assert_eq!((said.source.as_str(), &*said.worker), ("lineage", &*format!("e{}r0", now["engine"])));
        assert_eq!(said.predicted, Some(said.cached), "{said:?}");
        assert_eq!(
            (said.cached, said.predicted, &said.claim),
            (expected.cached, expected.predicted, &expected.claim),
            "{name}"
        );
        assert!(said.cached > 0, "{said:?}");
    }
    let metrics = after.metrics().await;
    assert!(metrics.contains("tandem_state_restored_total{outcome=\"home\"} 4"), "{metrics}");
    end(after).await;
    for engine in [a, b, c, d] {
        engine.stop().await;
    }
}

fn held(kv: &Value) -> u64 {
    let workers = kv["workers"].as_array().expect("a list");
    workers.iter().filter_map(|worker| worker["blocks"].as_u64()).sum()
}

/// I-STA-2, I-STA-4: what ended stays ended, tenants keep theirs apart, a worker that is gone is nobody's home.
#[tokio::test(flavor = "multi_thread")]
async fn what_ended_is_not_brought_back_and_tenants_stay_apart() {
    let folder = tempfile::tempdir().expect("a folder");
    let (a, b) = (engine(MockKind::Vllm).await, engine(MockKind::Vllm).await);
    let before = start(&[&a.url()], folder.path(), keys).await;
    let as_tenant = |name: &'static str, id: &'static str| {
        let mut session = Session::new(id);
        (session.tenant, session.headers) = (name, format!("authorization: Bearer key-{name}\r\n"));
        session
    };
    let mut talks = [as_tenant("a", "same"), as_tenant("b", "same"), as_tenant("a", "over")];
    for session in &mut talks {
        session.turn(&before, "hello").await;
    }
    before.idle().await;
    let paused = before.post_admin("/sessions/same/pause?tenant=b", &json!({})).await;
    assert_eq!(paused.status, 200, "{}", paused.text());
    let delete = b"DELETE /sessions/over?tenant=a HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let ended = client::call(before.gateway.admin_addr(), delete).await;
    assert_eq!(ended.status, 200, "{}", ended.text());
    end(before).await;

    let after = start(&[&b.url()], folder.path(), keys).await;
    let known = sessions(&after).await;
    assert_eq!(known.len(), 2, "{known:?}");
    assert_eq!(home(&known, "a", "same"), Some(Value::Null), "its worker is gone");
    assert_eq!(home(&known, "b", "same"), Some(Value::Null));
    let paused: Vec<bool> = known.iter().map(|program| program["paused_by_operator"] == true).collect();
    let tenants: Vec<bool> = known.iter().map(|program| program["program"]["tenant"] == "b").collect();
    assert_eq!(paused, tenants, "an operator's pause is kept");
    let said = talks[0].turn(&after, "again").await;
    assert_eq!(said.cached, 0, "another engine has nothing of it: {said:?}");
    a.stop().await;
    b.stop().await;
}

/// A home whose engine is known only later (found by DNS, added by hand) is one from then on.
#[tokio::test(flavor = "multi_thread")]
async fn a_home_may_be_found_later() {
    let folder = tempfile::tempdir().expect("a folder");
    let (a, b) = (engine(MockKind::Vllm).await, engine(MockKind::Vllm).await);
    let before = start(&[&a.url()], folder.path(), |_| {}).await;
    let mut session = Session::new("s");
    session.turn(&before, "hello").await;
    Session::new("over").turn(&before, "hello").await;
    end(before).await;
    let after = start(&[&b.url()], folder.path(), |_| {}).await;
    assert_eq!(home(&sessions(&after).await, "default", "s"), Some(Value::Null));
    let delete = b"DELETE /sessions/over HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    assert_eq!(client::call(after.gateway.admin_addr(), delete).await.status, 200);
    let added = after.post_admin("/workers", &json!({"url": a.url()})).await;
    assert_eq!(added.status, 201, "{}", added.text());
    let id = added.json()["id"].clone();
    after.admin_until("/sessions", |sessions| sessions["programs"][0]["last_worker"]["engine"] == id).await;
    assert_eq!(sessions(&after).await.len(), 1, "who left meanwhile does not come back");
    after.ready().await;
    assert_eq!(session.turn(&after, "again").await.worker, format!("e{id}r0"));
    a.stop().await;
    b.stop().await;
}

/// That answers come back as they were generated is seen in the second turns of one session, and helps a new one after
/// the restart: its second turn is expected to reuse prompt and answer, where a gateway that learned nothing expects less.
#[tokio::test(flavor = "multi_thread")]
async fn how_answers_come_back_is_known_after_a_restart() {
    let (folder, empty) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let (a, b) = (engine(MockKind::Vllm).await, engine(MockKind::Vllm).await);
    let before = start(&[&a.url()], folder.path(), |_| {}).await;
    talk(&before, &mut [Session::new("first")], 0..4).await;
    end(before).await;
    let after = start(&[&a.url()], folder.path(), |_| {}).await;
    let fresh = start(&[&b.url()], empty.path(), |_| {}).await;
    let said = talk(&after, &mut [Session::new("second")], 0..2).await;
    let control = talk(&fresh, &mut [Session::new("second")], 0..2).await;
    assert_eq!(said[1].cached, said[0].blocks() * BLOCK, "{said:?}");
    assert_eq!(said[1].predicted, Some(said[1].cached), "{said:?}");
    assert_eq!((control[1].cached, &*control[1].source), (said[1].cached, "lineage"), "{control:?}");
    assert!(control[1].predicted < Some(control[1].cached), "{control:?}");
    for engine in [a, b] {
        engine.stop().await;
    }
}

fn config(engine: &MockEngine, folder: &Path) -> Config {
    let mut config = Config {
        worker_urls: vec![engine.url()],
        host: "127.0.0.1".to_owned(),
        port: 0,
        admin_port: Some(0),
        prometheus_host: "127.0.0.1".to_owned(),
        prometheus_port: Some(0),
        ..Config::default()
    };
    config.state.dir = Some(folder.to_string_lossy().into_owned());
    config
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_gateway_on_the_directory_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine(MockKind::Vllm).await;
    let first = start(&[&engine.url()], folder.path(), |_| {}).await;
    let second = Gateway::start(config(&engine, folder.path()).resolve().expect("valid")).await;
    let Err(error) = second else { panic!("a second gateway has the directory") };
    assert!(matches!(error, StartError::State(_)), "{error}");
    assert!(error.to_string().contains("in use by another process"), "{error}");
    end(first).await;
    let third = Gateway::start(config(&engine, folder.path()).resolve().expect("valid")).await;
    assert!(third.is_ok());
    engine.stop().await;
}

/// The gateway starts, without any session.
#[tokio::test(flavor = "multi_thread")]
async fn a_spoilt_file_costs_the_sessions_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine(MockKind::Vllm).await;
    let before = start(&[&engine.url()], folder.path(), |_| {}).await;
    Session::new("s").turn(&before, "hello").await;
    end(before).await;
    let file = folder.path().join("sessions.redb");
    let bytes = std::fs::read(&file).expect("there");
    std::fs::write(&file, &bytes[..bytes.len() / 2]).expect("written");
    let after = start(&[&engine.url()], folder.path(), |_| {}).await;
    assert!(sessions(&after).await.is_empty());
    assert!(folder.path().join("sessions.redb.aside").exists());
    Session::new("t").turn(&after, "hello").await;
    end(after).await;
    let third = start(&[&engine.url()], folder.path(), |_| {}).await;
    assert!(home(&sessions(&third).await, "default", "t").is_some());
    engine.stop().await;
}

/// What was idle for too long is not brought back; without an index of caches homes alone are.
#[tokio::test(flavor = "multi_thread")]
async fn idle_sessions_expire_across_restarts() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine(MockKind::Vllm).await;
    let start = |idle: Span| {
        let mut config = config(&engine, folder.path());
        config.sessions.idle_timeout = idle;
        Gateway::start(config.resolve().expect("valid"))
    };
    let setup = |gateway| Setup { gateway, folder: tempfile::tempdir().expect("a folder") };
    let before = setup(start(Span::secs(3600)).await.expect("starts"));
    before.ready().await;
    let answer = before.post("/v1/chat/completions", "x-session-id: s\r\n", &Session::new("s").body()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    end(before).await;
    let after = setup(start(Span::secs(3600)).await.expect("starts"));
    assert!(home(&sessions(&after).await, "default", "s").is_some_and(|home| home["rank"] == 0));
    end(after).await;
    let late = setup(start(Span::millis(1)).await.expect("starts"));
    assert!(sessions(&late).await.is_empty());
    engine.stop().await;
}
