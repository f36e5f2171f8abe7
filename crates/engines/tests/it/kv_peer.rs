//! Publishers and a fleet for the tests of event streams: real ZeroMQ sockets on free loopback ports, HTTP in
//! memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tandem_engines::{
    EngineEvent, Engines, KvEvents, KvEventsConfig, KvState, KvStatus, KvUpdate, KvUpdateKind,
};
use tandem_kvwire::{Layout, encode, message, parse_replay_request, replay_answer, replay_end};
use tandem_types::{BlockStored, KvBatch, KvEvent, WorkerId};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

use crate::net::{Net, Script, config, millis, secs, spec, worker};

/// Longest wait for anything; a missing event fails the test.
pub(crate) const PATIENCE: Duration = secs(90);

/// Waits short enough for tests.
pub(crate) fn quick() -> KvEventsConfig {
    KvEventsConfig {
        recheck: millis(50),
        backoff_initial: millis(10),
        backoff_max: millis(50),
        discover_retry: millis(20),
        replay_timeout: millis(300),
        ..KvEventsConfig::default()
    }
}

/// How a publisher answers replays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// vLLM from 0.26, SGLang from 0.5.22.
    WithTopic,
    /// Before.
    WithoutTopic,
    /// Takes the question and says nothing.
    Silent,
}

pub(crate) type Kept = Arc<Mutex<BTreeMap<u64, Vec<u8>>>>;

/// A publisher that does what its test says. Dropping it closes its sockets.
pub(crate) struct Publisher {
    socket: PubSocket,
    pub(crate) events: String,
    pub(crate) replay: Option<String>,
    pub(crate) kept: Kept,
    _router: Option<AbortOnDropHandle<()>>,
}

fn zmq(parts: impl IntoIterator<Item = Vec<u8>>) -> ZmqMessage {
    ZmqMessage::try_from(parts.into_iter().map(Bytes::from).collect::<Vec<_>>()).expect("frames")
}

/// A batch that stores one block, told apart by its number.
pub(crate) fn batch(block: u64) -> KvBatch {
    let stored = BlockStored {
        block_hashes: vec![block],
        tokens: vec![7; 4],
        block_size: 4,
        ..BlockStored::default()
    };
    KvBatch { timestamp: 1.5, events: vec![KvEvent::Stored(stored)], rank: Some(0) }
}

pub(crate) fn payload(block: u64) -> Vec<u8> {
    encode(&batch(block), Layout::Vllm)
}

impl Publisher {
    pub(crate) async fn start(framing: Option<Framing>) -> Self {
        Self::bind("tcp://127.0.0.1:0", framing, "tcp://127.0.0.1:0").await
    }

    pub(crate) async fn bind(events: &str, framing: Option<Framing>, replay: &str) -> Self {
        let mut socket = PubSocket::new();
        let events = socket.bind(events).await.expect("bound").to_string();
        let kept = Kept::default();
        let (mut at, mut task) = (None, None);
        if let Some(framing) = framing {
            let mut router = RouterSocket::new();
            at = Some(router.bind(replay).await.expect("bound").to_string());
            task = Some(AbortOnDropHandle::new(tokio::spawn(answer(router, framing, Arc::clone(&kept)))));
        }
        Self { socket, events, replay: at, kept, _router: task }
    }

    /// Keeps a batch for replays without sending it: the subscriber lost it.
    pub(crate) fn keep(&self, seq: u64, block: u64) {
        self.kept.lock().expect("lock").insert(seq, payload(block));
    }

    pub(crate) async fn send(&mut self, seq: u64, bytes: Vec<u8>) {
        self.socket.send(zmq(message(b"kv", seq, bytes))).await.expect("sent");
    }

    pub(crate) async fn publish(&mut self, seq: u64, block: u64) {
        self.keep(seq, block);
        self.send(seq, payload(block)).await;
    }
}

async fn answer(mut router: RouterSocket, framing: Framing, kept: Kept) {
    loop {
        let Ok(request) = router.recv().await else { continue };
        let parts = request.into_vec();
        let slices: Vec<&[u8]> = parts.iter().map(AsRef::as_ref).collect();
        let (identity, start) = parse_replay_request(&slices).expect("a request as engines take it");
        if framing == Framing::Silent {
            continue;
        }
        let batches: Vec<(u64, Vec<u8>)> =
            kept.lock().expect("lock").range(start..).map(|(seq, bytes)| (*seq, bytes.clone())).collect();
        let answers = batches.into_iter().map(|(seq, bytes)| replay_answer(b"kv", seq, bytes));
        for answer in answers.chain([replay_end()]) {
            let mut frames = vec![identity.to_vec()];
            frames.extend(answer);
            if framing == Framing::WithoutTopic {
                frames.remove(2);
            }
            if router.send(zmq(frames)).await.is_err() {
                break;
            }
        }
    }
}

/// One engine with its event streams.
pub(crate) struct Streams {
    pub(crate) engines: Engines,
    pub(crate) kv: KvEvents,
    pub(crate) script: Arc<Script>,
    pub(crate) updates: mpsc::Receiver<KvUpdate>,
    _events: mpsc::Receiver<EngineEvent>,
}

/// `/kv_event_sources` of an engine with these publishers.
pub(crate) fn sources(publishers: &[(&str, Option<&str>)]) -> String {
    let entries: BTreeMap<String, serde_json::Value> = publishers
        .iter()
        .enumerate()
        .map(|(rank, (endpoint, replay))| {
            let source = serde_json::json!({
                "enable_kv_cache_events": true, "publisher": "zmq", "endpoint": endpoint,
                "replay_endpoint": replay, "topic": "kv",
            });
            (rank.to_string(), source)
        })
        .collect();
    serde_json::to_string(&entries).expect("json")
}

impl Streams {
    /// A vLLM that tells of `publisher`.
    pub(crate) fn of(publisher: &Publisher, config: KvEventsConfig, room: usize) -> Self {
        let script = Script::vllm();
        let told = sources(&[(&publisher.events, publisher.replay.as_deref())]);
        script.set("/kv_event_sources", 200, &told);
        Self::start(script, "127.0.0.1:8000", "", config, room)
    }

    pub(crate) fn start(
        script: Arc<Script>,
        host: &str,
        options: &str,
        kv: KvEventsConfig,
        room: usize,
    ) -> Self {
        let net = Net::new();
        net.serve(host, &script);
        let (tx, events) = mpsc::channel(1024);
        let specs = vec![spec(&format!("http://{host}{options}"))];
        let engines = Engines::start(config(), net.client(), specs, tx);
        let (updates_tx, updates) = mpsc::channel(room);
        let kv = KvEvents::start(&engines, kv, updates_tx);
        Self { engines, kv, script, updates, _events: events }
    }

    pub(crate) async fn next(&mut self) -> KvUpdateKind {
        self.next_of_any().await.1
    }

    pub(crate) async fn next_of_any(&mut self) -> (WorkerId, KvUpdateKind) {
        let update = tokio::time::timeout(PATIENCE, self.updates.recv()).await.expect("an update in time");
        let update = update.expect("an update");
        (update.worker, update.kind)
    }

    /// The next updates in short: blocks stored, `live`, `stale`, `cleared`.
    pub(crate) async fn heard(&mut self, count: usize) -> Vec<String> {
        let mut heard = Vec::new();
        while heard.len() < count {
            heard.push(short(&self.next().await));
        }
        heard
    }

    pub(crate) fn status(&self) -> KvStatus {
        self.kv.worker(worker(0, 0)).expect("a status")
    }

    /// Waits until rank 0's status is as wanted.
    pub(crate) async fn until(&self, wanted: impl Fn(&KvStatus) -> bool) -> KvStatus {
        let look = async {
            let mut ticks = tokio::time::interval(millis(2));
            loop {
                ticks.tick().await;
                if let Some(status) = self.kv.worker(worker(0, 0)).filter(|status| wanted(status)) {
                    return status;
                }
            }
        };
        match tokio::time::timeout(PATIENCE, look).await {
            Ok(status) => status,
            Err(_) => panic!("never so: {:?}", self.kv.status()),
        }
    }

    pub(crate) async fn until_state(&self, state: KvState) -> KvStatus {
        self.until(|status| status.state == state).await
    }

    pub(crate) async fn end(self) {
        self.kv.shutdown().await;
        self.engines.shutdown().await;
    }
}

pub(crate) fn short(kind: &KvUpdateKind) -> String {
    match kind {
        KvUpdateKind::Batch(batch) => match batch.events.first() {
            Some(KvEvent::Stored(stored)) => format!("{:?}", stored.block_hashes),
            other => format!("{other:?}"),
        },
        KvUpdateKind::Cleared(cause) => cause.as_str().to_owned(),
        KvUpdateKind::Stale => "stale".to_owned(),
        KvUpdateKind::Live => "live".to_owned(),
    }
}
