//! The mock store against captures of the Mooncake master 0.3.14.

use http::Method;
use serde_json::{Value, json};
use tandem_kvwire::mooncake::event::{StoreLabels, decode, encode};
use tandem_kvwire::mooncake::{ObjectChange, StoreEvent};
use tandem_mock_engine::{MockStore, StoreConfig};

use crate::client::{Client, Reply};
use crate::events::{next, subscribe};

async fn start(config: StoreConfig) -> (MockStore, Client) {
    let store = MockStore::start(config).await.expect("started");
    let client = Client::at(store.url());
    (store, client)
}

async fn put(client: &Client, keys: &[&str], segment: &str) -> Value {
    client.post("/mock/put", &json!({"keys": keys, "size": 16384, "segment": segment})).await.json()
}

fn kind(reply: &Reply) -> &str {
    reply.headers.get("content-type").map_or("", |value| value.to_str().expect("text"))
}

const JSON: &str = "application/json; charset=utf-8";

/// What the capture holds of an answer that was no error.
fn body(capture: &str) -> &str {
    capture.trim_end_matches('\n')
}

/// As captured, byte for byte but for addresses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rest_answers_are_the_captured_ones() {
    let (_store, client) = start(StoreConfig { capacity: 67_108_864, ..StoreConfig::default() }).await;
    for (path, wanted, sample) in [
        ("/health", JSON, include_str!("../fixtures/mooncake/health.txt")),
        ("/leader", JSON, include_str!("../fixtures/mooncake/leader.txt")),
        ("/role", "text/plain; charset=utf-8", include_str!("../fixtures/mooncake/role.txt")),
        ("/ha_status", "text/plain; charset=utf-8", include_str!("../fixtures/mooncake/ha_status.txt")),
        (
            "/batch_query_keys?keys=plain-key,soft-key",
            JSON,
            include_str!("../fixtures/mooncake/batch_query_keys.txt"),
        ),
    ] {
        let reply = client.get(path).await;
        assert_eq!(
            (reply.status.as_u16(), kind(&reply), reply.text()),
            (200, wanted, body(sample)),
            "{path}"
        );
        assert_eq!(reply.headers["server"], "cinatra");
    }
    for (path, status, sample) in [
        ("/query_key?key=none", 404, include_str!("../fixtures/mooncake/query_key.txt")),
        ("/api/v1/tenant_quotas", 409, include_str!("../fixtures/mooncake/api_v1_tenant_quotas.txt")),
    ] {
        let reply = client.get(path).await;
        assert_eq!((reply.status.as_u16(), kind(&reply)), (status, JSON), "{path}");
        let captured = sample.split_once("> ").expect("an error").1;
        assert_eq!(reply.text(), body(captured), "{path}");
    }
    let reply = client.get("/nosuch").await;
    assert_eq!((reply.status.as_u16(), kind(&reply), reply.text()), (404, "", "404 Not Found"));
    let reply = client.get("/batch_query_keys").await;
    assert_eq!(reply.status, 400);
    assert_eq!(reply.text(), r#"{"success":false,"error":"No keys provided. Use ?keys=key1,key2,..."}"#);
    assert_eq!(client.call(Method::POST, "/health", &[], Vec::new()).await.status, 404);
}

/// Objects show up in every answer that tells of them, in the captured form.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_are_told_of_as_captured() {
    let (_store, client) = start(StoreConfig { capacity: 67_108_864, ..StoreConfig::default() }).await;
    assert_eq!(client.get("/get_all_keys").await.text(), "");
    let segment = "127.0.0.1:13622";
    assert_eq!(put(&client, &["a b", "k,"], segment).await, json!({"stored": [true, true]}));
    assert_eq!(put(&client, &["a b"], segment).await, json!({"stored": [false]}), "there already");
    let reply = client.get("/get_all_keys").await;
    assert_eq!((kind(&reply), reply.text()), ("text/plain; version=0.0.4", "a b\nk,\n"));
    let reply = client.get("/query_key?key=a%20b").await;
    assert_eq!(reply.text(), body(include_str!("../fixtures/mooncake/query_key_ok.txt")));
    let found = client.get("/batch_query_keys?keys=a%20b,zz").await.json();
    assert_eq!(found["data"]["a b"]["values"][0]["size_"], 16384);
    assert_eq!((&found["data"]["a b"]["ok"], &found["data"]["zz"]["ok"]), (&json!(true), &json!(false)));
    assert_eq!(client.get("/get_all_segments").await.text(), "127.0.0.1:13622\n");
    let told = client.get("/query_segment?segment=127.0.0.1:13622").await;
    let sample = include_str!("../fixtures/mooncake/query_segment.txt");
    let expected = sample.replace("56627200", "32768").replace("127.0.0.1:17810", segment);
    assert_eq!(told.text().trim_end(), expected.trim_end());
    let shape = |text: &str| crate::shape::of(text);
    let detail = client.get("/get_segments_detail").await;
    assert_eq!(shape(detail.text()), shape(include_str!("../fixtures/mooncake/get_segments_detail.txt")));
    let status = client.get("/kv_events/status").await;
    let sample = include_str!("../fixtures/mooncake/kv_events_status.txt");
    assert_eq!(status.text(), body(&sample.replace("74", "1").replace(r#"events":1"#, r#"events":2"#)));
    assert!(client.get("/metrics").await.text().contains("\nmaster_key_count 2\n"));
    let reply = client.call(Method::POST, "/api/v1/remove_all", &[], Vec::new()).await;
    assert_eq!((kind(&reply), reply.text()), (JSON, r#"{"success":true,"removed_count":2}"#));
    assert_eq!(client.get("/get_all_keys").await.text(), "");
}

/// The next batch's sequence number and events, which encode to the bytes that came.
async fn heard(socket: &mut zeromq::SubSocket) -> (u64, Vec<StoreEvent>) {
    let (topic, seq, payload) = next(socket).await;
    let decoded = decode(&payload).expect("a batch");
    assert_eq!((topic.len(), decoded.skipped.total()), (0, 0));
    assert_eq!(encode(&decoded.batch, &StoreLabels::default()), payload);
    (seq, decoded.batch.events)
}

/// I-MST-1, I-MST-2, I-MST-3: what is published, and that evictions and lost clients are not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_tell_what_the_master_tells() {
    let (store, client) = start(StoreConfig { capacity: 16384 * 200, ..StoreConfig::default() }).await;
    let mut socket = subscribe(store.events_endpoint().expect("events")).await;
    // Until the subscription is there nothing is heard.
    let mut puts = 0_u64;
    let (mut seq, events) = loop {
        put(&client, &[&format!("first-{puts}")], "s").await;
        puts += 1;
        let message = tokio::time::timeout(std::time::Duration::from_millis(50), heard(&mut socket)).await;
        if let Ok(heard) = message {
            break heard;
        }
    };
    assert!(seq >= 1 && seq <= puts && events[0].event_id == seq);
    while seq < puts {
        seq = heard(&mut socket).await.0;
    }
    let keys: Vec<String> = (0..100).map(|i| format!("key-{i:03}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    put(&client, &keys, "s").await;
    for count in [64, 36] {
        let (next, events) = heard(&mut socket).await;
        assert_eq!((next, events.len()), (seq + 1, count));
        let one = &events[0];
        assert_eq!((one.tenant.as_deref(), one.medium.as_deref()), (Some("default"), Some("cpu")));
        seq = next;
    }
    let lost = client.post("/mock/evict", &json!({"count": 3})).await.json();
    assert_eq!(lost, json!({"lost": 3}));
    put(&client, &["elsewhere"], "t").await;
    assert_eq!(heard(&mut socket).await.0, seq + 1);
    client.post("/mock/unmount", &json!({"segment": "s"})).await;
    assert_eq!(store.keys().iter().map(|key| &**key).collect::<Vec<_>>(), ["elsewhere"]);
    client.post("/mock/remove", &json!({"keys": ["elsewhere", "key-001"]})).await;
    let (next, events) = heard(&mut socket).await;
    assert_eq!(next, seq + 2, "nothing was said of what was lost");
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].change, ObjectChange::Removed("elsewhere".into()));
    client.call(Method::POST, "/api/v1/remove_all", &[], Vec::new()).await;
    assert_eq!(heard(&mut socket).await.1[0].change, ObjectChange::Cleared);
}
