//! Where turns go by what caches hold, how busy workers are, and what calls ask for.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tandem_gateway::config::PromptSource;
use tandem_mock_engine::{Fault, FaultRule, MockEngine, MockKind};

use crate::client::{self, Client};
use crate::sessions::{Session, engine, gateway};
use crate::setup::{Setup, start_at};

async fn fleet(count: usize) -> Vec<MockEngine> {
    let mut engines = Vec::new();
    for _ in 0..count {
        engines.push(engine(MockKind::Vllm).await);
    }
    engines
}

/// Turns under way, by worker.
fn by_worker(turns: &Value) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for turn in turns["turns"].as_array().expect("a list") {
        *found.entry(turn["worker"].to_string()).or_default() += 1;
    }
    found
}

/// Sends so many equal prompts of new sessions at once to engines that never answer.
async fn burst(setup: &Setup, words: usize, calls: u64) -> (Vec<Client>, BTreeMap<String, usize>) {
    let body = json!({"model": "tiny", "messages": [{"role": "user", "content": "the same ".repeat(words)}]});
    let mut clients = Vec::new();
    for call in 0..calls {
        let mut client = Client::connect(setup.addr()).await;
        let headers = format!("x-session-id: burst-{call}\r\n");
        client.send(&client::post("/v1/chat/completions", &headers, body.to_string().as_bytes())).await;
        clients.push(client);
    }
    let dispatched = |turns: &Value| {
        turns["total"] == calls
            && by_worker(turns).values().sum::<usize>() as u64 == calls
            && !by_worker(turns).contains_key("null")
    };
    let turns = setup.admin_until("/turns", dispatched).await;
    (clients, by_worker(&turns))
}

/// What was just dispatched counts at once, as KV and as load: a burst of equal prompts goes to all workers, and what
/// its clients gave up is taken back.
#[tokio::test(flavor = "multi_thread")]
async fn equal_prompts_at_once_do_not_run_to_one_worker() {
    for words in [4, 400] {
        let engines = fleet(4).await;
        let setup = gateway(&engines.iter().collect::<Vec<_>>(), &[PromptSource::Engine], |_| {}).await;
        setup.exact().await;
        for engine in &engines {
            engine.set_faults(vec![FaultRule::always(Fault::Hang)]);
        }
        let (clients, spread) = burst(&setup, words, 32).await;
        assert_eq!(spread.len(), 4, "{words} words: {spread:?}");
        assert!(spread.values().all(|turns| (5..=11).contains(turns)), "{words} words: {spread:?}");
        let known = setup.admin("/kv").await;
        assert!(words < 100 || known["predicted_blocks"].as_u64() > Some(0), "{known}");
        drop(clients);
        setup.idle().await;
        setup.admin_until("/kv", |kv| kv["predicted_blocks"] == 0 && kv["believed_blocks"] == 0).await;
        for engine in engines {
            engine.kill();
        }
    }
}

/// A session's call with these wishes: status, and who answered.
async fn ask(setup: &Setup, session: &Session, id: &str, wishes: &str) -> (u16, Option<String>) {
    let headers = format!("x-session-id: {}\r\nx-request-id: {id}\r\n{wishes}", session.id);
    let answer = setup.post("/v1/chat/completions", &headers, &session.body()).await;
    (answer.status, answer.header("x-tandem-worker").map(str::to_owned))
}

/// Labels and taints decide who may take a call, whatever the caches hold; the explanation shows who was compared.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_goes_where_its_labels_and_taints_allow() {
    let engines = fleet(3).await;
    let marks = ["@labels=gold", "@labels=cheap,taints=batch", ""];
    let urls = engines.iter().zip(marks).map(|(engine, marks)| format!("{}{marks}", engine.url())).collect();
    let setup = start_at(urls, |config| {
        "kv".clone_into(&mut config.policy);
        config.kv.sources = vec![PromptSource::Engine];
    })
    .await;
    setup.ready().await;
    setup.exact().await;
    let mut session = Session::new("s");
    // Its cache is at the only worker without marks that it may use by default and with its label.
    session.headers = "x-tandem-route: require=cheap; tolerate=batch\r\n".to_owned();
    let first = session.turn(&setup, "one").await;
    assert_eq!(first.worker, "e1r0");
    session.known(&setup, &first).await;
    session.history.push(json!({"role": "user", "content": "two"}));
    let found = setup.post_admin("/kv/match", &session.body()).await.json();
    let held = found["match"]["workers"].as_array().expect("a list");
    assert_eq!((held.len(), &held[0]["worker"]["engine"]), (1, &json!(1)), "{found}");
    for (id, wishes, status, worker) in [
        ("home", "x-tandem-route: tolerate=batch\r\n", 200, Some("e1r0")),
        ("gold", "x-tandem-route: require=gold\r\n", 200, Some("e0r0")),
        ("refused", "x-tandem-route: require=cheap\r\n", 400, None),
    ] {
        let got = ask(&setup, &session, id, wishes).await;
        assert_eq!((got.0, got.1.as_deref()), (status, worker), "{wishes}");
    }
    let (status, worker) = ask(&setup, &session, "plain", "").await;
    assert_eq!(status, 200);
    assert_ne!(worker.as_deref(), Some("e1r0"), "a taint keeps away who does not tolerate it");
    let compared = async |id: &str| {
        let told = setup.admin(&format!("/admin/explain/{id}")).await;
        let decision = &told["decisions"][0];
        let mut engines: Vec<u64> = (decision["candidates"].as_array().expect("a list").iter())
            .filter_map(|candidate| candidate[0]["engine"].as_u64())
            .collect();
        engines.sort_unstable();
        (decision["policy"].clone(), engines)
    };
    assert_eq!(compared("home").await, (json!("kv"), vec![0, 1, 2]));
    assert_eq!(compared("gold").await, (json!("kv"), vec![0]));
    assert_eq!(compared("plain").await, (json!("kv"), vec![0, 2]));
    let told = setup.admin_until("/admin/explain/home", |told| told["prompts"][0].is_object()).await;
    assert_eq!(told["prompts"][0]["predicted_tokens"], told["prompts"][0]["cached_tokens"], "{told}");
    for engine in engines {
        engine.stop().await;
    }
}

/// Of a worker that an operator removes nothing is left in what is known of caches.
#[tokio::test(flavor = "multi_thread")]
async fn a_removed_worker_is_in_no_picture() {
    let engines = fleet(1).await;
    let setup = gateway(&engines.iter().collect::<Vec<_>>(), &[PromptSource::Engine], |_| {}).await;
    setup.exact().await;
    Session::new("s").turn(&setup, &"hello again ".repeat(20)).await;
    let held = |kv: &Value| kv["workers"][0]["blocks"].as_u64().is_some_and(|blocks| blocks > 0);
    setup.admin_until("/kv", held).await;
    let delete = b"DELETE /workers/0 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    assert_eq!(client::call(setup.gateway.admin_addr(), delete).await.status, 200);
    setup.admin_until("/kv", |kv| kv["workers"].as_array().is_some_and(Vec::is_empty)).await;
    for engine in engines {
        engine.stop().await;
    }
}
