//! A Mooncake master by its outside: REST and events as those of 0.3.14, objects that are only names.
//!
//! - Purpose: be the shared store where there is none, for mock engines and for who indexes stores.
//! - Inputs: a [`StoreConfig`]; HTTP. Outputs: answers; event batches on a PUB socket.
//! - Invariants: I-MST-1 sequence numbers and event ids count from 1 without holes; I-MST-2 a batch has at most
//!   64 events; I-MST-3 what 0.3.14 does not publish (evictions, lost clients) is not published here.
//! - Deliberately absent: data, transfers, leases, pins, tenants, high availability, a replay socket (the
//!   master has none).

mod client;
mod objects;
mod rest;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, SERVER};
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tandem_kvwire::message;
use tandem_kvwire::mooncake::event::{StoreLabels, encode};
use tandem_kvwire::mooncake::{ObjectChange, StoreBatch, StoreEvent};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};
use zeromq::{PubSocket, Socket, SocketSend};

use crate::driver::lock;
use crate::engine::StartError;
use crate::http::BODY_MAX;
use crate::{kv, server};

pub(crate) use client::{Names, RemoteStore};
pub(crate) use objects::Object;
use objects::{Limits, Objects};

/// Most events in a batch.
const BATCH_MAX: usize = 64;

/// What a mock store is to be.
#[derive(Debug, Clone, PartialEq)]
pub struct StoreConfig {
    /// Address to listen on, for HTTP and events.
    pub host: IpAddr,
    /// HTTP port; 0 = a free one.
    pub port: u16,
    /// Port of the PUB socket; 0 = a free one; `None` = no events.
    pub events_port: Option<u16>,
    /// Bytes that fit.
    pub capacity: u64,
    /// Part of the capacity beyond which the least recently used objects are evicted.
    pub eviction_watermark: f64,
    /// Part of the objects that then goes.
    pub eviction_ratio: f64,
    /// `--kv_events_backend_id`.
    pub backend: String,
    /// `--kv_events_model_name`.
    pub model: Option<String>,
    /// `--kv_events_block_size`, tokens.
    pub block_size: Option<u32>,
}

impl Default for StoreConfig {
    /// 64 GiB with Mooncake's eviction, on free ports.
    fn default() -> Self {
        Self {
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 0,
            events_port: Some(0),
            capacity: 64 << 30,
            eviction_watermark: 0.95,
            eviction_ratio: 0.05,
            backend: "mc-0".to_owned(),
            model: None,
            block_size: None,
        }
    }
}

/// What the store's connections share.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) objects: Objects,
    backend: Arc<str>,
    /// Batches that were published, and events; both are also the last numbers given.
    pub(crate) batches: u64,
    pub(crate) published: u64,
    pub(crate) events: Option<mpsc::UnboundedSender<(u64, StoreBatch)>>,
}

impl Held {
    /// Publishes changes in order.
    pub(crate) fn publish(&mut self, changes: Vec<ObjectChange>) {
        let Some(events) = &self.events else { return };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let timestamp_ms = i64::try_from(now).unwrap_or(i64::MAX);
        let mut changes = changes.into_iter().peekable();
        while changes.peek().is_some() {
            let mut batch = StoreBatch { timestamp_ms, events: Vec::new() };
            for change in changes.by_ref().take(BATCH_MAX) {
                self.published += 1;
                let group = match &change {
                    ObjectChange::Stored(key) => self.objects.get(key).and_then(|o| o.group.clone()),
                    _ => None,
                };
                batch.events.push(StoreEvent {
                    event_id: self.published,
                    timestamp_ms,
                    change,
                    tenant: Some(Arc::from("default")),
                    backend: Some(Arc::clone(&self.backend)),
                    group,
                    medium: Some(Arc::from("cpu")),
                });
            }
            self.batches += 1;
            // Fails only when the store was stopped.
            let _ = events.send((self.batches, batch));
        }
    }
}

/// A running mock store. Dropping it stops it at once.
#[derive(Debug)]
pub struct MockStore {
    addr: SocketAddr,
    events: Option<String>,
    held: Arc<Mutex<Held>>,
    _kill: DropGuard,
}

impl MockStore {
    /// Binds the sockets and starts serving.
    ///
    /// # Errors
    /// [`StartError`] says what is wrong with the configuration, or what could not be had.
    pub async fn start(config: StoreConfig) -> Result<Self, StartError> {
        let share = |value: f64| value > 0.0 && value <= 1.0;
        if !share(config.eviction_watermark) || !share(config.eviction_ratio) {
            return Err(StartError::Config("eviction watermark and ratio must lie in (0, 1]".to_owned()));
        }
        let (listener, addr) = server::listen(SocketAddr::new(config.host, config.port)).await?;
        let dead = CancellationToken::new();
        let (mut events, mut endpoint) = (None, None);
        if let Some(port) = config.events_port {
            let mut publisher = PubSocket::new();
            endpoint = Some(kv::bind(&mut publisher, config.host, port).await?);
            let (sender, inbox) = mpsc::unbounded_channel();
            events = Some(sender);
            let labels = StoreLabels { model: config.model.clone(), block_size: config.block_size };
            let dead = dead.clone();
            tokio::spawn(async move {
                tokio::select! {
                    () = dead.cancelled() => {}
                    () = publish(publisher, inbox, labels) => {}
                }
            });
        }
        let limits = Limits {
            capacity: config.capacity,
            watermark: config.eviction_watermark,
            ratio: config.eviction_ratio,
        };
        let held = Held {
            objects: Objects::new(limits),
            backend: Arc::from(config.backend),
            batches: 0,
            published: 0,
            events,
        };
        let held = Arc::new(Mutex::new(held));
        tokio::spawn(accept(Arc::clone(&held), listener, dead.clone()));
        Ok(Self { addr, events: endpoint, held, _kill: dead.drop_guard() })
    }

    /// `http://host:port`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// The PUB endpoint, where events are on.
    #[must_use]
    pub fn events_endpoint(&self) -> Option<&str> {
        self.events.as_deref()
    }

    /// Keys of all objects, sorted.
    #[must_use]
    pub fn keys(&self) -> Vec<Arc<str>> {
        lock(&self.held).objects.iter().map(|(key, _)| Arc::clone(key)).collect()
    }
}

async fn publish(
    mut publisher: PubSocket,
    mut inbox: mpsc::UnboundedReceiver<(u64, StoreBatch)>,
    labels: StoreLabels,
) {
    while let Some((seq, batch)) = inbox.recv().await {
        if let Some(message) = kv::frames(message(&[], seq, encode(&batch, &labels))) {
            let _ = publisher.send(message).await;
        }
    }
}

async fn accept(held: Arc<Mutex<Held>>, listener: TcpListener, dead: CancellationToken) {
    loop {
        let accepted = tokio::select! {
            () = dead.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else {
            tokio::task::yield_now().await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let held = Arc::clone(&held);
        let dead = dead.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| serve(Arc::clone(&held), request));
            let connection =
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                () = dead.cancelled() => {}
                _ = connection => {}
            }
        });
    }
}

async fn serve(
    held: Arc<Mutex<Held>>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Box<dyn std::error::Error + Send + Sync>> {
    let (head, body) = request.into_parts();
    let body = Limited::new(body, BODY_MAX).collect().await?.to_bytes();
    let query = head.uri.query().unwrap_or_default();
    let (status, kind, text) = rest::answer(&mut lock(&held), &head.method, head.uri.path(), query, &body);
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(SERVER, HeaderValue::from_static("cinatra"));
    if let Some(kind) = kind {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    }
    Ok(response)
}
