//! Cache events over real ZeroMQ sockets.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use tandem_kvwire::{ReplayAnswer, decode, parse_message, parse_replay_answer, replay_request};
use tandem_mock_engine::{KvEventsConfig, MockConfig, MockEngine, MockKind};
use tandem_types::{BlockStored, KvEvent};
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

use crate::client::Client;

fn parts(message: &ZmqMessage) -> Vec<Vec<u8>> {
    message.iter().map(|frame| frame.to_vec()).collect()
}

fn slices(parts: &[Vec<u8>]) -> Vec<&[u8]> {
    parts.iter().map(Vec::as_slice).collect()
}

pub(crate) async fn subscribe(endpoint: &str) -> SubSocket {
    let mut socket = SubSocket::new();
    socket.connect(endpoint).await.expect("connected");
    socket.subscribe("").await.expect("subscribed");
    socket
}

/// The next message: topic, sequence number, payload.
pub(crate) async fn next(socket: &mut SubSocket) -> (Vec<u8>, u64, Vec<u8>) {
    let message = tokio::time::timeout(Duration::from_secs(10), socket.recv()).await.expect("in time");
    let parts = parts(&message.expect("a message"));
    let frames = slices(&parts);
    let parsed = parse_message(&frames).expect("three frames");
    (parsed.topic.to_vec(), parsed.seq, parsed.payload.to_vec())
}

/// All kept batches from `start` on.
pub(crate) async fn replay(endpoint: &str, start: u64) -> BTreeMap<u64, Vec<u8>> {
    let mut socket = DealerSocket::new();
    socket.connect(endpoint).await.expect("connected");
    let frames: Vec<bytes::Bytes> = replay_request(start).into_iter().map(Into::into).collect();
    socket.send(ZmqMessage::try_from(frames).expect("frames")).await.expect("sent");
    let mut batches = BTreeMap::new();
    loop {
        let message = tokio::time::timeout(Duration::from_secs(10), socket.recv()).await.expect("in time");
        let parts = parts(&message.expect("a message"));
        assert_eq!(parts.len(), 4);
        match parse_replay_answer(&slices(&parts)).expect("an answer") {
            ReplayAnswer::End => return batches,
            ReplayAnswer::Batch { seq, payload } => {
                assert!(batches.last_key_value().is_none_or(|(last, _)| last + 1 == seq));
                batches.insert(seq, payload.to_vec());
            }
        }
    }
}

pub(crate) fn events(payload: &[u8]) -> Vec<KvEvent> {
    let decoded = decode(payload).expect("a batch");
    assert_eq!((decoded.skipped.total(), decoded.batch.rank), (0, Some(0)));
    decoded.batch.events
}

/// Stores in order, each checked to continue what is known.
pub(crate) fn stored(payloads: &BTreeMap<u64, Vec<u8>>) -> Vec<BlockStored> {
    payloads
        .values()
        .flat_map(|payload| events(payload))
        .filter_map(|event| match event {
            KvEvent::Stored(stored) => Some(stored),
            _ => None,
        })
        .collect()
}

/// Waits until the subscription has reached the publisher, by making events until one comes.
async fn until_heard(client: &Client, path: &str, socket: &mut SubSocket) -> (Vec<u8>, u64, Vec<u8>) {
    for attempt in 0..500 {
        let body = json!({"prompt": format!("{attempt:04} {}", "filler text ".repeat(8)), "max_tokens": 1});
        assert_eq!(client.post(path, &body).await.status, 200);
        if let Ok(message) = tokio::time::timeout(Duration::from_millis(20), socket.recv()).await {
            let parts = parts(&message.expect("a message"));
            let frames = slices(&parts);
            let parsed = parse_message(&frames).expect("three frames");
            return (parsed.topic.to_vec(), parsed.seq, parsed.payload.to_vec());
        }
    }
    panic!("no event was heard");
}

/// I-PUB-1, I-PUB-2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_published_with_tokens_session_and_salt_and_replayed_alike() {
    let kv = KvEventsConfig { topic: "kv@w0".to_owned(), ..KvEventsConfig::default() };
    let engine = MockEngine::start(MockConfig { kv_events: Some(kv), ..MockConfig::default() });
    let engine = engine.await.expect("started");
    let client = Client::new(&engine);
    let mut socket = subscribe(engine.events_endpoint().expect("events")).await;
    let first = until_heard(&client, "/v1/completions", &mut socket).await;
    assert_eq!(first.0, b"kv@w0");

    let body = json!({
        "messages": [{"role": "user", "content": "tell me about blocks. ".repeat(10)}],
        "max_tokens": 40, "ignore_eos": true, "cache_salt": "tenant-a", "session_id": "s-1",
        "return_token_ids": true,
    });
    let answer = client.post("/v1/chat/completions", &body).await.json();
    let rendered = client.post("/v1/chat/completions/render", &body).await.json();
    assert_eq!(answer["prompt_token_ids"], rendered["token_ids"]);
    let ids =
        |value: &serde_json::Value| -> Vec<u32> { serde_json::from_value(value.clone()).expect("token ids") };
    let mut sequence = ids(&rendered["token_ids"]);
    sequence.extend(ids(&answer["choices"][0]["token_ids"]));
    // All but the last token were computed; full blocks of these are cached.
    let full = (sequence.len() - 1) / 16 * 16;

    let mut heard = BTreeMap::from([(first.1, first.2)]);
    let mut mine: Vec<BlockStored> = Vec::new();
    while mine.iter().map(|e| e.tokens.len()).sum::<usize>() < full {
        let (_, seq, payload) = next(&mut socket).await;
        assert_eq!(heard.last_key_value().map(|(last, _)| last + 1), Some(seq));
        heard.insert(seq, payload);
        mine = stored(&heard).into_iter().filter(|e| e.session.as_deref() == Some("s-1")).collect();
    }
    let tokens: Vec<u32> = mine.iter().flat_map(|e| e.tokens.clone()).collect();
    assert_eq!(tokens, &sequence[..full]);
    let mut parent = None;
    for event in &mine {
        assert_eq!((event.parent, event.block_size), (parent, 16));
        parent = event.block_hashes.last().copied();
        let salt = event.parent.is_none().then_some("tenant-a");
        assert_eq!(event.salt.as_deref(), salt);
    }

    // The header names the session where the body has no field for it.
    let body =
        json!({"messages": [{"role": "user", "content": "another one. ".repeat(12)}], "max_tokens": 2});
    client.post_with("/v1/messages", &[("X-Session-ID", "s-2")], &body).await;
    let sessions = stored(&replay(engine.replay_endpoint().expect("replay"), 0).await);
    assert!(sessions.iter().any(|e| e.session.as_deref() == Some("s-2") && e.extra_keys.is_empty()));

    let replayed = replay(engine.replay_endpoint().expect("replay"), 0).await;
    assert_eq!(replayed.first_key_value().map(|(seq, _)| *seq), Some(0));
    assert!(heard.iter().all(|(seq, payload)| replayed.get(seq) == Some(payload)));
    let last = *heard.last_key_value().expect("heard").0;
    let tail = replay(engine.replay_endpoint().expect("replay"), last).await;
    assert_eq!(tail.get(&last), heard.get(&last));
    assert_eq!(replay(engine.replay_endpoint().expect("replay"), last + 1000).await, BTreeMap::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn evictions_are_announced_and_sglang_says_at_once_that_it_is_empty() {
    let config = MockConfig { pool_tokens: Some(1024), kind: MockKind::Sglang, ..MockConfig::default() };
    let engine = MockEngine::start(config).await.expect("started");
    let client = Client::new(&engine);
    // At its start SGLang announces an empty cache.
    let begun = replay(engine.replay_endpoint().expect("replay"), 0).await;
    assert_eq!(begun.values().map(|p| events(p)).collect::<Vec<_>>(), [vec![KvEvent::Cleared]]);
    for i in 0..6 {
        let prompt = format!("{i} {}", "an unshared prompt ".repeat(60));
        let reply = client.post("/v1/completions", &json!({"prompt": prompt, "max_tokens": 4})).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    assert_eq!(client.post("/flush_cache", &json!({})).await.status, 200);
    let batches = replay(engine.replay_endpoint().expect("replay"), 0).await;
    let mut resident = std::collections::BTreeSet::new();
    let mut most = 0;
    let mut removed = 0;
    for event in batches.values().flat_map(|p| events(p)) {
        match event {
            KvEvent::Stored(e) => resident.extend(e.block_hashes),
            KvEvent::Removed(e) => {
                removed += e.block_hashes.len();
                assert!(e.block_hashes.iter().all(|hash| resident.remove(hash)));
            }
            KvEvent::Cleared => resident.clear(),
        }
        most = most.max(resident.len());
    }
    assert!(removed > 0);
    assert!(most <= 1024 / 16, "{most} blocks in a pool of 64");
    assert_eq!(resident.len(), 0);
}

/// I-DRV-3, I-PUB-3: neither a client that does not read its stream nor a subscriber that does not read its
/// events holds up anybody else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_read_holds_up_nobody() {
    use tokio::io::AsyncWriteExt;

    let engine = MockEngine::start(MockConfig::default()).await.expect("started");
    let client = Client::new(&engine);
    let mut deaf = subscribe(engine.events_endpoint().expect("events")).await;
    until_heard(&client, "/v1/completions", &mut deaf).await;
    let body = json!({"prompt": "x", "max_tokens": 20_000, "ignore_eos": true, "stream": true}).to_string();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    let mut idle = tokio::net::TcpStream::connect(engine.addr()).await.expect("connected");
    idle.write_all((head + &body).as_bytes()).await.expect("sent");
    let finished = engine.stats().finished;
    for i in 0..20 {
        let body = json!({"prompt": format!("{i} {}", "other words ".repeat(20)), "max_tokens": 32, "ignore_eos": true});
        assert_eq!(client.post("/v1/completions", &body).await.status, 200);
    }
    assert!(engine.stats().finished >= finished + 20);
}
