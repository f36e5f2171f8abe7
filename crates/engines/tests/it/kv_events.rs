//! Event streams of engines: what is told equals what was published, whatever happens on the way.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::Request;
use tandem_engines::{
    Engines, HttpClient, HttpConfig, KvEvents, KvEventsConfig, KvState, KvStatus, KvUpdateKind, full,
    read_body,
};
use tandem_kvwire::{ReplayAnswer, decode, parse_replay_answer, replay_request};
use tandem_mock_engine::{MockConfig, MockEngine};
use tandem_types::{EngineId, KvEvent};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

use crate::kv_peer::{Framing, PATIENCE, Publisher, Streams, quick, short, sources};
use crate::net::{Script, config, millis, secs, spec, worker};

fn fold(resident: &mut BTreeSet<u64>, events: &[KvEvent]) {
    for event in events {
        match event {
            KvEvent::Stored(stored) => resident.extend(&stored.block_hashes),
            KvEvent::Removed(removed) => resident.retain(|hash| !removed.block_hashes.contains(hash)),
            KvEvent::Cleared => resident.clear(),
        }
    }
}

/// All that a publisher ever said, by its own replay socket: last number and blocks that are left.
async fn said(endpoint: &str) -> (Option<u64>, BTreeSet<u64>) {
    let mut socket = DealerSocket::new();
    socket.connect(endpoint).await.expect("connected");
    let frames: Vec<Bytes> = replay_request(0).into_iter().map(Into::into).collect();
    socket.send(ZmqMessage::try_from(frames).expect("frames")).await.expect("sent");
    let (mut last, mut resident) = (None, BTreeSet::new());
    loop {
        let message =
            tokio::time::timeout(PATIENCE, socket.recv()).await.expect("in time").expect("an answer");
        let frames = message.into_vec();
        let parts: Vec<&[u8]> = frames.iter().map(AsRef::as_ref).collect();
        match parse_replay_answer(&parts).expect("an answer") {
            ReplayAnswer::End => return (last, resident),
            ReplayAnswer::Batch { seq, payload } => {
                last = Some(seq);
                fold(&mut resident, &decode(payload).expect("a batch").batch.events);
            }
        }
    }
}

// I-KVE-1: two ranks of a modelled vLLM with evictions; what is told is what its cache holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_told_of_each_rank_is_what_its_cache_holds() {
    let mock =
        MockConfig { dp_ranks: 2, pool_tokens: Some(2048), max_model_len: 1024, ..MockConfig::default() };
    let mock = MockEngine::start(mock).await.expect("started");
    let client = HttpClient::new(&HttpConfig::default()).expect("a client");
    let (tx, _events) = mpsc::channel(1024);
    let engines = Engines::start(config(), client.clone(), vec![spec(&mock.url())], tx);
    let (updates, mut inbox) = mpsc::channel(4);
    let kv = KvEvents::start(&engines, quick(), updates);
    let started = std::time::Instant::now();
    for i in 0..40 {
        let body = serde_json::json!({
            "prompt": format!("{i} {}", "many words ".repeat(60)), "max_tokens": 8, "ignore_eos": true,
        });
        let request = Request::post(format!("{}/v1/completions", mock.url()))
            .header("content-type", "application/json")
            .header("x-data-parallel-rank", (i % 2).to_string())
            .body(full(Bytes::from(body.to_string())))
            .expect("a request");
        let answer = client.send(request).await.expect("an answer");
        assert_eq!(answer.status(), 200);
        read_body(answer.into_body(), 1 << 20).await.expect("a body");
    }
    let mut wanted = Vec::new();
    for endpoints in mock.kv_endpoints() {
        let (last, resident) = said(endpoints.replay.as_deref().expect("a replay socket")).await;
        assert!(!resident.is_empty() && resident.len() <= 128, "{}", resident.len());
        wanted.push((last, resident));
    }
    let mut told: [BTreeSet<u64>; 2] = Default::default();
    let told_all = |kv: &KvEvents| {
        let seq = |rank| kv.worker(worker(0, rank)).and_then(|status| status.last_seq);
        (seq(0), seq(1)) == (wanted[0].0, wanted[1].0)
    };
    loop {
        // The status moves on after the update is sent.
        let next = tokio::time::timeout(millis(20), inbox.recv()).await;
        match next {
            Ok(update) => {
                let update = update.expect("an update");
                if let KvUpdateKind::Batch(batch) = update.kind {
                    fold(&mut told[update.worker.rank as usize], &batch.events);
                }
            }
            Err(_) if told_all(&kv) => break,
            Err(_) => assert!(started.elapsed() < PATIENCE, "{:?}", kv.status()),
        }
    }
    assert_eq!(told, [wanted[0].1.clone(), wanted[1].1.clone()]);
    for status in kv.status() {
        assert_eq!((status.gaps, status.decode_errors, status.skipped_events, status.whole), (0, 0, 0, true));
        assert_eq!(status.state, KvState::Live);
    }
    kv.shutdown().await;
    // I-KVF-3.
    assert_eq!(inbox.try_recv(), Err(mpsc::error::TryRecvError::Disconnected));
    engines.shutdown().await;
}

// I-TRK-1 over real sockets, in both framings of the replay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_messages_are_replayed_in_order() {
    for framing in [Framing::WithTopic, Framing::WithoutTopic] {
        let mut publisher = Publisher::start(Some(framing)).await;
        let mut streams = Streams::of(&publisher, quick(), 64);
        assert_eq!(streams.heard(1).await, ["live"]);
        publisher.publish(0, 10).await;
        assert_eq!(streams.heard(1).await, ["[10]"]);
        publisher.keep(1, 11);
        publisher.keep(2, 12);
        publisher.publish(3, 13).await;
        publisher.publish(4, 14).await;
        assert_eq!(streams.heard(4).await, ["[11]", "[12]", "[13]", "[14]"]);
        let status = streams.until(|status| status.last_seq == Some(4)).await;
        assert_eq!((status.gaps, status.lost, status.whole), (0, 0, true), "{framing:?}");
        assert!(status.replays >= 2, "joining and the gap: {}", status.replays);
        streams.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_replayed_clears_the_worker() {
    // The replay's buffer begins behind the gap.
    let mut publisher = Publisher::start(Some(Framing::WithTopic)).await;
    let mut streams = Streams::of(&publisher, quick(), 64);
    assert_eq!(streams.heard(1).await, ["live"]);
    publisher.publish(0, 10).await;
    assert_eq!(streams.heard(1).await, ["[10]"]);
    publisher.kept.lock().expect("lock").clear();
    publisher.keep(5, 15);
    publisher.publish(6, 16).await;
    assert_eq!(streams.heard(3).await, ["lost", "[15]", "[16]"]);
    let status = streams.until(|status| status.last_seq == Some(6)).await;
    assert!(!status.whole && status.gaps + status.restarts == 1, "{status:?}");
    streams.end().await;

    // It takes the question and never answers.
    let mut publisher = Publisher::start(Some(Framing::Silent)).await;
    let mut streams = Streams::of(&publisher, quick(), 64);
    assert_eq!(streams.heard(1).await, ["live"]);
    publisher.publish(0, 10).await;
    publisher.publish(2, 12).await;
    assert_eq!(streams.heard(3).await, ["[10]", "lost", "[12]"]);
    let status = streams.until(|status| status.gaps == 1).await;
    assert_eq!((status.lost, status.whole), (1, false));
    assert!(status.replay_failures >= 3, "{status:?}");
    streams.end().await;
}

/// Publishes `first` until it is heard, as a publisher without a replay socket cannot know who listens.
async fn until_heard(publisher: &mut Publisher, streams: &mut Streams, first: u64) -> u64 {
    for seq in first.. {
        publisher.publish(seq, seq).await;
        if let Ok(update) = tokio::time::timeout(millis(10), streams.updates.recv()).await {
            let kind = update.expect("an update").kind;
            assert_eq!(short(&kind), format!("[{seq}]"));
            return seq + 1;
        }
    }
    unreachable!("an endless range")
}

// I-KVE-5: silence after a return is not `Live`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_replay_socket_a_gap_clears_and_a_silent_return_is_not_trusted() {
    let mut publisher = Publisher::start(None).await;
    let mut streams = Streams::of(&publisher, quick(), 64);
    assert_eq!(streams.heard(1).await, ["live"]);
    let next = until_heard(&mut publisher, &mut streams, 0).await;
    publisher.publish(next + 2, 77).await;
    assert_eq!(streams.heard(2).await, ["lost", "[77]"]);
    let status = streams.until(|status| status.last_seq == Some(next + 2)).await;
    assert_eq!((status.gaps, status.lost, status.replays), (1, 2, 0));

    // The publisher comes back at the same place; nothing tells whether it is the same.
    let at = publisher.events.clone();
    drop(publisher);
    assert_eq!(streams.heard(1).await, ["stale"]);
    let mut publisher = Publisher::bind(&at, None, "").await;
    let status = streams.until(|status| status.connects == 2).await;
    assert_eq!(status.state, KvState::Stale);
    // Sent until heard: the subscription takes effect some time after connecting.
    let mut heard = Vec::new();
    for seq in 0..u64::MAX {
        publisher.send(seq, crate::kv_peer::payload(90 + seq)).await;
        if let Ok(update) = tokio::time::timeout(millis(10), streams.updates.recv()).await {
            heard.push(short(&update.expect("an update").kind));
            break;
        }
    }
    heard.extend(streams.heard(1).await);
    assert_eq!(heard.first().map(String::as_str), Some("restarted"));
    assert_eq!(streams.heard(1).await, ["live"]);
    let status = streams.until_state(KvState::Live).await;
    assert_eq!((status.restarts, status.disconnects), (1, 1));
    streams.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_publisher_replaces_all_that_was_known() {
    let mut publisher = Publisher::start(Some(Framing::WithTopic)).await;
    let mut streams = Streams::of(&publisher, quick(), 64);
    assert_eq!(streams.heard(1).await, ["live"]);
    for seq in 0..3 {
        publisher.publish(seq, 10 + seq).await;
    }
    assert_eq!(streams.heard(3).await, ["[10]", "[11]", "[12]"]);
    let (events, replay) = (publisher.events.clone(), publisher.replay.clone().expect("a replay socket"));
    drop(publisher);
    assert_eq!(streams.heard(1).await, ["stale"]);
    streams.until_state(KvState::Stale).await;
    // Before anybody listens again, the new process has published: only its replay can tell.
    let publisher = Publisher::bind(&events, Some(Framing::WithTopic), &replay).await;
    publisher.keep(0, 20);
    publisher.keep(1, 21);
    let heard = streams.heard(4).await;
    let blocks: Vec<&String> = heard.iter().filter(|what| what.starts_with('[')).collect();
    assert_eq!((heard[0].as_str(), blocks), ("restarted", vec![&"[20]".to_owned(), &"[21]".to_owned()]));
    let status = streams.until(|status| status.last_seq == Some(1) && status.state == KvState::Live).await;
    assert_eq!((status.restarts, status.whole), (1, true));
    streams.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_late_gets_the_history_and_who_is_early_waits() {
    // History from before.
    let publisher = Publisher::start(Some(Framing::WithTopic)).await;
    for seq in 0..100 {
        publisher.keep(seq, seq);
    }
    let mut streams = Streams::of(&publisher, quick(), 8);
    let mut heard = streams.heard(101).await;
    assert_eq!(heard.pop().as_deref(), Some("live"));
    assert_eq!(heard, (0..100).map(|block| format!("[{block}]")).collect::<Vec<_>>());
    assert!(streams.until_state(KvState::Live).await.whole);
    let (events, replay) = (publisher.events.clone(), publisher.replay.clone());
    streams.end().await;
    drop(publisher);

    // The engine is up before its publisher.
    let script = Script::vllm();
    script.set("/kv_event_sources", 200, &sources(&[(&events, replay.as_deref())]));
    let mut streams = Streams::start(script, "127.0.0.1:8000", "", quick(), 8);
    let status = streams.until_state(KvState::Stale).await;
    assert_eq!((status.connects, status.endpoint.as_deref()), (0, Some(events.as_str())));
    let publisher = Publisher::bind(&events, Some(Framing::WithTopic), replay.as_deref().expect("set")).await;
    publisher.keep(0, 1);
    let mut heard = streams.heard(2).await;
    heard.sort();
    assert_eq!(heard, ["[1]", "live"]);
    streams.end().await;
}

// I-KVE-2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_receiver_holds_up_the_reader_and_loses_nothing() {
    const MESSAGES: u64 = 5_000;
    let mut publisher = Publisher::start(Some(Framing::WithTopic)).await;
    let mut streams = Streams::of(&publisher, quick(), 1);
    assert_eq!(streams.heard(1).await, ["live"]);
    for seq in 0..MESSAGES {
        if seq % 97 == 96 {
            // As if dropped at the publisher's high-water mark.
            publisher.keep(seq, seq);
        } else {
            publisher.publish(seq, seq).await;
        }
    }
    let status = streams.until(|status| status.batches >= 1).await;
    assert!(status.batches <= 2, "nobody received, {} were handed on", status.batches);
    let expected: Vec<String> = (0..MESSAGES - 1).map(|block| format!("[{block}]")).collect();
    assert_eq!(streams.heard(expected.len()).await, expected);
    let status = streams.until(|status| status.last_seq >= Some(MESSAGES - 2)).await;
    assert_eq!((status.gaps, status.lost, status.restarts), (0, 0, 0));
    streams.end().await;
}

/// Passes bytes on between whoever connects and `to`; when `frozen`, the connections made before stay open and
/// carry nothing any more.
async fn freezing_proxy(to: String, frozen: Arc<AtomicBool>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let at = format!("tcp://{}", listener.local_addr().expect("an address"));
    tokio::spawn(async move {
        loop {
            let Ok((near, _)) = listener.accept().await else { return };
            let Ok(far) = TcpStream::connect(&to).await else { return };
            let old = !frozen.load(Ordering::SeqCst);
            let (near_read, near_write) = near.into_split();
            let (far_read, far_write) = far.into_split();
            tokio::spawn(carry(near_read, far_write, Arc::clone(&frozen), old));
            tokio::spawn(carry(far_read, near_write, Arc::clone(&frozen), old));
        }
    });
    at
}

async fn carry(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    frozen: Arc<AtomicBool>,
    old: bool,
) {
    let mut buffer = [0; 4096];
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        let pass = !(old && frozen.load(Ordering::SeqCst));
        if pass && to.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
}

// I-KVE-4.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_carries_nothing_any_more_is_built_anew() {
    let mut publisher = Publisher::start(Some(Framing::WithTopic)).await;
    let frozen = Arc::new(AtomicBool::new(false));
    let to = publisher.events.trim_start_matches("tcp://").to_owned();
    let proxy = freezing_proxy(to, Arc::clone(&frozen)).await;
    let script = Script::vllm();
    script.set("/kv_event_sources", 200, &sources(&[(&proxy, publisher.replay.as_deref())]));
    let patient = KvEventsConfig { idle_timeout: millis(400), ..quick() };
    let mut streams = Streams::start(script, "127.0.0.1:8000", "", patient, 64);
    assert_eq!(streams.heard(1).await, ["live"]);
    publisher.publish(0, 1).await;
    assert_eq!(streams.heard(1).await, ["[1]"]);
    frozen.store(true, Ordering::SeqCst);
    publisher.publish(1, 2).await;
    assert_eq!(streams.heard(1).await, ["[2]"], "by way of the replay after the silence");
    publisher.publish(2, 3).await;
    assert_eq!(streams.heard(1).await, ["[3]"]);
    let status = streams.until(|status| status.connects >= 2).await;
    assert_eq!((status.gaps, status.restarts, status.disconnects), (0, 0, 0));
    streams.end().await;
}

// I-KVE-3: rank 0 stays silent and holds up nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn named_endpoints_count_upwards_with_the_rank() {
    // Two ports in a row that are free.
    let (first, mut second) = loop {
        let first = Publisher::start(None).await;
        let port: u16 = first.events.rsplit(':').next().and_then(|p| p.parse().ok()).expect("a port");
        let mut socket = zeromq::PubSocket::new();
        let Some(next) = port.checked_add(1) else { continue };
        if socket.bind(&format!("tcp://127.0.0.1:{next}")).await.is_ok() {
            break (first, socket);
        }
    };
    let port = first.events.rsplit(':').next().expect("a port");
    let script = Script::vllm();
    let gauge = |rank: u32| format!("vllm:num_requests_running{{engine=\"{rank}\"}} 0\n");
    script.set("/metrics", 200, &(gauge(0) + &gauge(1)));
    let options = format!("@kv_events=tcp://*:{port}");
    let mut streams = Streams::start(script, "127.0.0.1:8000", &options, quick(), 64);
    for _ in 0..2 {
        let (_, kind) = streams.next_of_any().await;
        assert_eq!(kind, KvUpdateKind::Live);
    }
    // Only rank 1 speaks.
    let heard = async {
        for seq in 0.. {
            let frames = tandem_kvwire::message(b"", seq, crate::kv_peer::payload(5));
            let frames: Vec<Bytes> = frames.into_iter().map(Bytes::from).collect();
            second.send(ZmqMessage::try_from(frames).expect("frames")).await.expect("sent");
            if let Ok(update) = tokio::time::timeout(millis(10), streams.updates.recv()).await {
                return update.expect("an update");
            }
        }
        unreachable!("an endless range")
    };
    let update = tokio::time::timeout(secs(20), heard).await.expect("in time");
    assert_eq!((update.worker, short(&update.kind)), (worker(0, 1), "[5]".to_owned()));
    assert_eq!(streams.kv.status().len(), 2);
    streams.end().await;
}

// I-KEP-2, I-KVD-1, I-KVF-1, I-KVF-2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn absent_publishers_are_seen_as_such_and_leaving_ones_are_cleared() {
    // No such route; switched off by the user; an endpoint of the engine's own machine, which is not ours.
    let publisher = Publisher::start(None).await;
    let told = sources(&[(&publisher.events, None)]);
    for (host, options, told, says) in [
        ("127.0.0.1:8000", "", None, None),
        ("127.0.0.1:8000", "@kv_events=off", Some(&told), None),
        ("10.1.2.3:8000", "", Some(&told), Some("can be reached only on the engine's machine")),
    ] {
        let script = Script::vllm();
        if let Some(told) = told {
            script.set("/kv_event_sources", 200, told);
        }
        let streams = Streams::start(script, host, options, quick(), 64);
        let status = streams.until_state(KvState::Absent).await;
        let text = status.last_error.map(|error| error.text).unwrap_or_default();
        assert!(says.map_or(text.is_empty(), |says| text.contains(says)), "{text}");
        streams.end().await;
    }

    let mut publisher = Publisher::start(Some(Framing::WithTopic)).await;
    let mut streams = Streams::of(&publisher, quick(), 64);
    publisher.publish(0, 1).await;
    let mut heard = streams.heard(2).await;
    heard.sort();
    assert_eq!(heard, ["[1]", "live"]);
    assert!(streams.engines.remove(EngineId(0)));
    assert_eq!(streams.heard(1).await, ["ended"]);
    streams.end().await;

    // An engine that moves its publisher (seen at the next look-up).
    let mut publisher = Publisher::start(Some(Framing::WithTopic)).await;
    let config = KvEventsConfig { discover_interval: millis(20), ..quick() };
    let mut streams = Streams::of(&publisher, config, 64);
    assert_eq!(streams.heard(1).await, ["live"]);
    publisher.publish(0, 1).await;
    assert_eq!(streams.heard(1).await, ["[1]"]);
    let moved = Publisher::start(Some(Framing::WithTopic)).await;
    moved.keep(0, 2);
    let told = sources(&[(&moved.events, moved.replay.as_deref())]);
    streams.script.set("/kv_event_sources", 200, &told);
    let heard = streams.heard(3).await;
    assert_eq!((heard[0].as_str(), heard.contains(&"[2]".to_owned())), ("ended", true));
    assert_eq!(streams.status().endpoint.as_deref(), Some(moved.events.as_str()));
    // An engine that cannot be asked keeps its publisher.
    streams.script.set("/kv_event_sources", 500, "");
    let failed =
        |status: &KvStatus| status.last_error.as_ref().is_some_and(|e| e.text.contains("status 500"));
    let status = streams.until(failed).await;
    assert_eq!(status.endpoint.as_deref(), Some(moved.events.as_str()));
    assert_ne!(status.state, KvState::Absent);
    streams.end().await;
}

// I-KVE-6: what is left out is counted (what is held back is the tracker's, I-TRK-4).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_is_counted_and_stepped_over() {
    let mut publisher = Publisher::start(Some(Framing::WithTopic)).await;
    let mut streams = Streams::of(&publisher, quick(), 64);
    assert_eq!(streams.heard(1).await, ["live"]);
    publisher.publish(0, 1).await;
    assert_eq!(streams.heard(1).await, ["[1]"]);
    publisher.send(1, b"\xc1 no msgpack".to_vec()).await;
    publisher.publish(2, 3).await;
    assert_eq!(streams.heard(1).await, ["[3]"]);
    let status = streams.until(|status| status.last_seq == Some(2)).await;
    assert_eq!((status.decode_errors, status.gaps), (1, 0));
    assert!(status.last_error.is_some_and(|error| error.text.starts_with("message 1: ")));
    streams.end().await;
}
