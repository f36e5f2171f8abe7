//! The event publisher: a PUB socket and a replay ROUTER per rank.
//!
//! - Purpose: publish the model's cache events as vLLM and SGLang do, and keep the latest batches for replay.
//! - Inputs: events from the driver, replay requests from the ROUTER; outputs: three-frame messages on the
//!   PUB, four-frame answers and an end marker on the ROUTER.
//! - Invariants: I-PUB-1 sequence numbers count from 0 without holes; I-PUB-2 a replay holds the kept batches
//!   from the one asked for, in order, and then the end marker; I-PUB-3 a slow subscriber or replayer holds up
//!   nobody: the PUB drops beyond its high-water mark of 100,000 messages, replays run beside the publishing;
//!   I-PUB-4 a message that is to be lost takes its number like any other, and is never on the PUB.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tandem_kvwire::{Layout, encode, message, parse_replay_request, replay_answer, replay_end};
use tandem_types::{KvBatch, KvEvent};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use zeromq::{PubSocket, RouterSendHalf, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

use crate::config::KvEventsConfig;
use crate::engine::{KvEndpoints, StartError};

/// Batches that may wait for the publisher before the engine waits for it.
const QUEUE_MAX: usize = 1024;

/// Replays that run at once; more are dropped, as malformed ones are.
const REPLAYS_MAX: usize = 16;

/// Messages that each rank's publisher is to lose, as a PUB socket does that is not read fast enough.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    next: AtomicU32,
    unkept: AtomicBool,
}

impl Losses {
    /// The next `messages` are lost; with `kept`, a replay still has them.
    pub(crate) fn set(&self, messages: u32, kept: bool) {
        self.unkept.store(!kept, Ordering::Relaxed);
        self.next.store(messages, Ordering::Release);
    }

    /// Whether the message at hand is lost, and whether a replay will have it.
    fn take(&self) -> (bool, bool) {
        let less = |left: u32| left.checked_sub(1);
        let lost = self.next.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).is_ok();
        (lost, !lost || !self.unkept.load(Ordering::Relaxed))
    }
}

/// Where the driver puts a rank's events.
#[derive(Debug)]
pub(crate) struct EventSink {
    rank: u32,
    batches: Option<mpsc::Sender<KvBatch>>,
}

impl EventSink {
    /// Events go nowhere.
    pub(crate) const fn off(rank: u32) -> Self {
        Self { rank, batches: None }
    }

    /// Publishes a batch, unless there is nothing in it.
    pub(crate) async fn publish(&mut self, events: Vec<KvEvent>) {
        let Some(batches) = self.batches.as_ref().filter(|_| !events.is_empty()) else { return };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let batch = KvBatch { timestamp: now.as_secs_f64(), events, rank: Some(self.rank) };
        // Fails only when the publisher was stopped.
        let _ = batches.send(batch).await;
    }
}

/// Binds a rank's sockets and starts publishing until `stop`.
pub(crate) async fn start(
    config: &KvEventsConfig,
    host: IpAddr,
    rank: u32,
    layout: Layout,
    losses: Arc<Losses>,
    stop: CancellationToken,
) -> Result<(KvEndpoints, EventSink), StartError> {
    let rank_port =
        |base: u16| if base == 0 { 0 } else { base.saturating_add(u16::try_from(rank).unwrap_or(0)) };
    let mut publisher = PubSocket::new();
    let events = bind(&mut publisher, host, rank_port(config.port)).await?;
    let mut router = RouterSocket::new();
    let replay = if config.replay {
        Some(bind(&mut router, host, rank_port(config.replay_port)).await?)
    } else {
        None
    };
    let (batches, inbox) = mpsc::channel(QUEUE_MAX);
    let task = Publisher {
        publisher,
        topic: config.topic.clone().into_bytes(),
        layout,
        kept: VecDeque::new(),
        keep: config.buffer_steps,
        next: 0,
        replays: Arc::new(Semaphore::new(REPLAYS_MAX)),
        losses,
    };
    tokio::spawn(async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = task.run(router, inbox) => {}
        }
    });
    Ok((KvEndpoints { rank, events, replay }, EventSink { rank, batches: Some(batches) }))
}

pub(crate) async fn bind(socket: &mut impl Socket, host: IpAddr, port: u16) -> Result<String, StartError> {
    let host = match host {
        IpAddr::V4(v4) => v4.to_string(),
        IpAddr::V6(v6) => format!("[{v6}]"),
    };
    let wanted = format!("tcp://{host}:{port}");
    match socket.bind(&wanted).await {
        Ok(endpoint) => Ok(endpoint.to_string()),
        Err(error) => Err(StartError::Listen { what: wanted, reason: error.to_string() }),
    }
}

struct Publisher {
    publisher: PubSocket,
    topic: Vec<u8>,
    layout: Layout,
    kept: VecDeque<(u64, Bytes)>,
    keep: usize,
    next: u64,
    replays: Arc<Semaphore>,
    losses: Arc<Losses>,
}

impl Publisher {
    async fn run(mut self, router: RouterSocket, mut inbox: mpsc::Receiver<KvBatch>) {
        let (replies, mut requests) = router.split();
        loop {
            tokio::select! {
                batch = inbox.recv() => match batch {
                    Some(batch) => self.publish(&batch).await,
                    None => return,
                },
                // An error is one peer's; the socket lives on.
                Ok(request) = requests.recv() => self.replay(&request, &replies),
            }
        }
    }

    async fn publish(&mut self, batch: &KvBatch) {
        let payload = encode(batch, self.layout);
        let seq = self.next;
        self.next += 1;
        let (lost, kept) = self.losses.take();
        if self.kept.len() >= self.keep {
            self.kept.pop_front();
        }
        if self.keep > 0 && kept {
            self.kept.push_back((seq, Bytes::from(payload.clone())));
        }
        if lost {
            return;
        }
        if let Some(message) = frames(message(&self.topic, seq, payload)) {
            let _ = self.publisher.send(message).await;
        }
    }

    fn replay(&self, request: &ZmqMessage, replies: &RouterSendHalf) {
        let parts: Vec<&[u8]> = request.iter().map(AsRef::as_ref).collect();
        let Ok((identity, start)) = parse_replay_request(&parts) else { return };
        let Ok(permit) = Arc::clone(&self.replays).try_acquire_owned() else { return };
        let identity = identity.to_vec();
        let topic = self.topic.clone();
        let batches: Vec<(u64, Bytes)> = self.kept.iter().filter(|(seq, _)| *seq >= start).cloned().collect();
        let mut replies = replies.clone();
        tokio::spawn(async move {
            let answers = batches
                .into_iter()
                .map(|(seq, payload)| replay_answer(&topic, seq, payload.to_vec()))
                .chain([replay_end()]);
            for answer in answers {
                let message = frames(std::iter::once(identity.clone()).chain(answer));
                let Some(message) = message else { break };
                if replies.send(message).await.is_err() {
                    break;
                }
            }
            drop(permit);
        });
    }
}

/// A message of frames; there is none without frames.
pub(crate) fn frames(parts: impl IntoIterator<Item = Vec<u8>>) -> Option<ZmqMessage> {
    ZmqMessage::try_from(parts.into_iter().map(Bytes::from).collect::<Vec<Bytes>>()).ok()
}
