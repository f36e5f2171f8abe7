//! A shared store: events, and what its REST interface says against them.

use std::sync::Arc;

use tandem_engines::{
    BaseUrl, KvEventsConfig, StoreDoubt, StoreEvents, StoreEventsConfig, StoreSpec, StoreStatus, StoreUpdate,
};
use tandem_kvwire::mooncake::event::{StoreLabels, encode};
use tandem_kvwire::mooncake::{ObjectChange, StoreBatch, StoreEvent};
use tokio::sync::mpsc;

use crate::kv_peer::{PATIENCE, Publisher, quick};
use crate::net::{Net, Script, millis, secs};

const STATUS: &str = "{\"enabled\":true,\"published_batches\":0,\"published_events\":0,\"dropped_events\":0}";

fn payload(key: &str) -> Vec<u8> {
    let event = StoreEvent {
        event_id: 1,
        timestamp_ms: 5,
        change: ObjectChange::Stored(Arc::from(key)),
        tenant: Some(Arc::from("default")),
        backend: None,
        group: None,
        medium: Some(Arc::from("cpu")),
    };
    encode(&StoreBatch { timestamp_ms: 5, events: vec![event] }, &StoreLabels::default())
}

struct Store {
    store: StoreEvents,
    script: Arc<Script>,
    updates: mpsc::Receiver<StoreUpdate>,
}

impl Store {
    fn start(publisher: Option<&Publisher>, keys: &str, config: StoreEventsConfig) -> Self {
        let net = Net::new();
        let script = Script::new(&[("/get_all_keys", 200, keys), ("/kv_events/status", 200, STATUS)]);
        net.serve("127.0.0.1:9003", &script);
        let (tx, updates) = mpsc::channel(4096);
        let spec = StoreSpec {
            events: publisher.map(|publisher| publisher.events.parse().expect("an endpoint")),
            admin: BaseUrl::parse("http://127.0.0.1:9003").expect("a url"),
        };
        Self { store: StoreEvents::start(spec, net.client(), config, tx), script, updates }
    }

    async fn heard(&mut self, count: usize) -> Vec<String> {
        let mut heard = Vec::new();
        while heard.len() < count {
            let update = tokio::time::timeout(PATIENCE, self.updates.recv()).await;
            heard.push(match update.expect("an update in time").expect("an update") {
                StoreUpdate::Batch { seq, batch } => match batch.events.first().map(|event| &event.change) {
                    Some(ObjectChange::Stored(key)) => format!("{seq}: {key}"),
                    other => format!("{other:?}"),
                },
                StoreUpdate::Listed(keys) => format!("listed {}", keys.join(" ")),
                StoreUpdate::Absent(keys) => format!("absent {}", keys.join(" ")),
                StoreUpdate::Doubt(doubt) => format!("{doubt:?}"),
                StoreUpdate::ListingBegins => "begins".to_owned(),
                StoreUpdate::ListingEnds { complete } => format!("ends {complete}"),
            });
        }
        heard
    }

    async fn until(&self, wanted: impl Fn(&StoreStatus) -> bool) -> StoreStatus {
        let look = async {
            let mut ticks = tokio::time::interval(millis(2));
            loop {
                ticks.tick().await;
                let status = self.store.status();
                if wanted(&status) {
                    return status;
                }
            }
        };
        tokio::time::timeout(PATIENCE, look).await.expect("a status as wanted in time")
    }
}

fn config() -> StoreEventsConfig {
    StoreEventsConfig {
        // So long that the listing asked for by connecting is the first one, however slow the machine.
        link: KvEventsConfig { connect_timeout: secs(120), ..quick() },
        listing_pause: millis(10),
        listing_interval: secs(3600),
        status_interval: secs(3600),
        ..StoreEventsConfig::default()
    }
}

// I-STO-1, I-STO-2, I-STO-3, I-STO-4: pages in order, odd keys counted, a gap and a lost connection ask for a listing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gap_and_a_lost_connection_are_settled_by_listings() {
    let mut publisher = Publisher::start(None).await;
    let long = "x".repeat(5000);
    let keys = format!("a\r\nb\n\n{long}\nc");
    let pages = StoreEventsConfig { page_keys: 2, ..config() };
    let mut store = Store::start(Some(&publisher), &keys, pages);
    assert_eq!(store.heard(4).await, ["begins", "listed a b", "listed c", "ends true"]);
    let status = store.until(|status| status.listings == 1 && !status.doubted).await;
    assert_eq!((status.listed_keys, status.odd_keys, status.connected), (3, 1, true));

    let mut next = 1;
    loop {
        publisher.send(next, payload("k")).await;
        next += 1;
        if let Ok(update) = tokio::time::timeout(millis(10), store.updates.recv()).await {
            assert!(matches!(update, Some(StoreUpdate::Batch { seq, .. }) if seq == next - 1), "{update:?}");
            break;
        }
    }
    publisher.send(next + 1, payload("z")).await;
    let mut heard = store.heard(6).await;
    assert_eq!(heard[0], "Gap");
    let batch = heard.iter().position(|what| *what == format!("{}: z", next + 1)).expect("the message");
    heard.remove(batch);
    assert_eq!(heard[1..], ["begins", "listed a b", "listed c", "ends true"]);
    assert_eq!(store.until(|status| status.gaps == 1).await.lost, 1);

    drop(publisher);
    assert_eq!(store.heard(5).await, ["Disconnected", "begins", "listed a b", "listed c", "ends true"]);
    store.store.shutdown().await;
    assert_eq!(store.updates.recv().await, None);
}

// I-STO-3, I-STO-5: more keys than may be listed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listings_that_fail_are_not_complete_and_are_repeated() {
    let small = StoreEventsConfig { keys_max: 2, ..config() };
    let mut store = Store::start(None, "a\nb\nc\n", small);
    assert_eq!(store.heard(2).await, ["begins", "ends false"]);
    store.script.set("/get_all_keys", 503, "");
    store.until(|status| status.last_error.as_deref() == Some("/get_all_keys: status 503")).await;
    store.script.set("/get_all_keys", 200, "a\nb\n");
    let status = store.until(|status| status.listings == 1).await;
    assert!(status.failed_listings >= 2 && !status.doubted, "{status:?}");
    loop {
        let heard = store.heard(1).await;
        if heard == ["ends true"] {
            break;
        }
    }

    // I-STO-3: too slow.
    let hasty = StoreEventsConfig { listing_timeout: millis(30), ..config() };
    let mut store = Store::start(None, "", hasty);
    store.script.set_slow("/get_all_keys", 200, "a\n", secs(60));
    store.store.reconcile();
    loop {
        if store.heard(1).await == ["ends false"] {
            break;
        }
    }
}

// I-STO-6: what the master counts as published when a connection begins is in the listing that follows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_after_connecting_waits_for_the_masters_counts() {
    let publisher = Publisher::start(None).await;
    let net = Net::new();
    let script = Script::new(&[("/get_all_keys", 200, "a\n")]);
    script.set_slow("/kv_events/status", 200, STATUS, millis(400));
    net.serve("127.0.0.1:9003", &script);
    let (tx, updates) = mpsc::channel(4096);
    let spec = StoreSpec {
        events: Some(publisher.events.parse().expect("an endpoint")),
        admin: BaseUrl::parse("http://127.0.0.1:9003").expect("a url"),
    };
    let before = std::time::Instant::now();
    let mut store = Store { store: StoreEvents::start(spec, net.client(), config(), tx), script, updates };
    assert_eq!(store.heard(3).await, ["begins", "listed a", "ends true"]);
    assert!(before.elapsed() >= millis(400), "listed before the counts were there");
    assert!(!store.script.seen("/kv_events/status").is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_keys_are_checked_and_lost_events_found_by_the_masters_counts() {
    let publisher = Publisher::start(None).await;
    let nosy = StoreEventsConfig { status_interval: millis(20), ..config() };
    let mut store = Store::start(Some(&publisher), "a\n", nosy);
    assert_eq!(store.heard(3).await, ["begins", "listed a", "ends true"]);
    // As Mooncake 0.3.14 answers.
    let answer = "{\"success\":true,\"data\":{\"a b\":{\"ok\":true,\"values\":[{}]},\
                  \"gone\":{\"ok\":false,\"error\":\"OBJECT_NOT_FOUND\",\"values\":null},\
                  \"busy\":{\"ok\":false,\"error\":\"REPLICA_IS_NOT_READY\",\"values\":null}}}";
    store.script.set("/batch_query_keys", 200, answer);
    let keys = ["a b", "gone", "busy", "no,comma"];
    assert!(store.store.check(keys.iter().map(|key| Arc::from(*key)).collect()));
    assert_eq!(store.heard(4).await, ["begins", "listed a b", "absent gone", "ends false"]);
    let status = store.until(|status| status.checks == 1).await;
    assert_eq!(status.odd_keys, 1);

    // The master has published three batches, and none came.
    store.until(|status| status.publishes == Some(true)).await;
    store.script.set(
        "/kv_events/status",
        200,
        "{\"enabled\":true,\"published_batches\":3,\"dropped_events\":0}",
    );
    assert_eq!(
        store.heard(4).await,
        [format!("{:?}", StoreDoubt::Dropped).as_str(), "begins", "listed a", "ends true"]
    );
    // A master that counts anew is another one.
    store.script.set(
        "/kv_events/status",
        200,
        "{\"enabled\":false,\"published_batches\":0,\"dropped_events\":0}",
    );
    assert_eq!(store.heard(4).await, ["Restart", "begins", "listed a", "ends true"]);
    store.until(|status| status.publishes == Some(false)).await;
}
