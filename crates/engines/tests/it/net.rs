//! A network in memory: hosts by name, each with an engine that does what its test says. Under paused time a
//! whole day of probing runs in no time, and always the same way.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tandem_engines::{
    Dial, Dialing, EngineEvent, EngineSpec, Engines, EnginesConfig, HttpClient, HttpConfig, Io,
};
use tandem_types::{EngineId, WorkerId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(crate) const VLLM_MODELS: &str = include_str!("../fixtures/vllm-0.32.0-models.json");
pub(crate) const VLLM_METRICS: &str = include_str!("../fixtures/vllm-0.32.0-metrics.txt");
pub(crate) const SGLANG_MODELS: &str = include_str!("../fixtures/sglang-0.5.23-models.json");
pub(crate) const SGLANG_LOADS: &str = include_str!("../fixtures/sglang-0.5.23-loads.json");
pub(crate) const SGLANG_INFO: &str = include_str!("../fixtures/sglang-0.5.23-server-info.json");

/// A request that an engine saw.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) at: Duration,
    pub(crate) path: String,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: String,
}

#[derive(Clone)]
struct Route {
    status: u16,
    body: Bytes,
    delay: Duration,
}

/// A scripted engine: unknown paths get 404.
#[derive(Default)]
pub(crate) struct Script {
    routes: Mutex<BTreeMap<String, Route>>,
    seen: Mutex<Vec<Seen>>,
}

impl Script {
    pub(crate) fn new(routes: &[(&str, u16, &str)]) -> Arc<Self> {
        let script = Arc::new(Self::default());
        for (path, status, body) in routes {
            script.set(path, *status, body);
        }
        script
    }

    pub(crate) fn vllm() -> Arc<Self> {
        Self::new(&[
            ("/health", 200, ""),
            ("/version", 200, "{\"version\":\"0.32.0\"}"),
            ("/v1/models", 200, VLLM_MODELS),
            ("/metrics", 200, VLLM_METRICS),
        ])
    }

    pub(crate) fn sglang() -> Arc<Self> {
        Self::new(&[
            ("/health", 200, ""),
            ("/model_info", 200, "{}"),
            ("/v1/models", 200, SGLANG_MODELS),
            ("/v1/loads", 200, SGLANG_LOADS),
            ("/server_info", 200, SGLANG_INFO),
        ])
    }

    pub(crate) fn set(&self, path: &str, status: u16, body: &str) {
        self.set_slow(path, status, body, Duration::ZERO);
    }

    pub(crate) fn set_slow(&self, path: &str, status: u16, body: &str, delay: Duration) {
        let route = Route { status, body: Bytes::from(body.to_owned()), delay };
        self.routes.lock().expect("lock").insert(path.to_owned(), route);
    }

    pub(crate) fn unset(&self, path: &str) {
        self.routes.lock().expect("lock").remove(path);
    }

    pub(crate) fn seen(&self, path: &str) -> Vec<Seen> {
        self.seen.lock().expect("lock").iter().filter(|s| s.path == path).cloned().collect()
    }

    pub(crate) fn forget(&self) {
        self.seen.lock().expect("lock").clear();
    }
}

/// What a host does with connections.
#[derive(Clone)]
pub(crate) enum Mode {
    Refuse,
    /// Never answers the attempt to connect.
    Unreachable,
    /// Accepts and says nothing.
    Silent,
    /// Accepts, reads and hangs up.
    Hangup,
    /// Answers with something that is not HTTP.
    Garbage,
    Serve(Arc<Script>),
}

/// The network.
pub(crate) struct Net {
    start: Instant,
    hosts: Mutex<BTreeMap<String, (Mode, CancellationToken)>>,
}

impl Net {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { start: Instant::now(), hosts: Mutex::default() })
    }

    /// Sets what a host does; its present connections are cut.
    pub(crate) fn set(&self, authority: &str, mode: Mode) {
        let fresh = (mode, CancellationToken::new());
        if let Some((_, old)) = self.hosts.lock().expect("lock").insert(authority.to_owned(), fresh) {
            old.cancel();
        }
    }

    pub(crate) fn serve(&self, authority: &str, script: &Arc<Script>) {
        self.set(authority, Mode::Serve(Arc::clone(script)));
    }

    pub(crate) fn client(self: &Arc<Self>) -> HttpClient {
        HttpClient::with_dial(&HttpConfig::default(), Arc::new(Network(Arc::clone(self))))
    }

    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }
}

struct Network(Arc<Net>);

impl Dial for Network {
    fn dial(&self, uri: &Uri) -> Dialing {
        let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
        let found = self.0.hosts.lock().expect("lock").get(&authority).cloned();
        let start = self.0.start;
        Box::pin(async move {
            let Some((mode, cut)) = found else {
                return Err(io::Error::from(io::ErrorKind::ConnectionRefused));
            };
            let (ours, theirs) = tokio::io::duplex(64 * 1024);
            match mode {
                Mode::Refuse => return Err(io::Error::from(io::ErrorKind::ConnectionRefused)),
                Mode::Unreachable => std::future::pending::<()>().await,
                mode => {
                    tokio::spawn(async move {
                        tokio::select! {
                            () = cut.cancelled() => {}
                            () = behave(theirs, mode, start) => {}
                        }
                    });
                }
            }
            Ok(Box::new(ours) as Box<dyn Io>)
        })
    }
}

async fn behave(mut io: tokio::io::DuplexStream, mode: Mode, start: Instant) {
    let mut buf = [0; 1024];
    match mode {
        Mode::Silent => while io.read(&mut buf).await.is_ok_and(|n| n > 0) {},
        Mode::Garbage => {
            let _ = io.read(&mut buf).await;
            let _ = io.write_all(b"\x16\x03\x01 what is this\r\n\r\n").await;
        }
        Mode::Serve(script) => {
            let service = service_fn(move |request| answer(Arc::clone(&script), start, request));
            let _ =
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(io), service).await;
        }
        Mode::Hangup | Mode::Refuse | Mode::Unreachable => {
            let _ = io.read(&mut buf).await;
        }
    }
}

async fn answer(
    script: Arc<Script>,
    start: Instant,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let body = body.collect().await.map(|b| b.to_bytes()).unwrap_or_default();
    script.seen.lock().expect("lock").push(Seen {
        at: start.elapsed(),
        path: path.clone(),
        headers: parts.headers,
        body: String::from_utf8_lossy(&body).into_owned(),
    });
    let route = script.routes.lock().expect("lock").get(&path).cloned();
    let route = route.unwrap_or(Route {
        status: 404,
        body: Bytes::from_static(b"{\"detail\":\"Not Found\"}"),
        delay: Duration::ZERO,
    });
    tokio::time::sleep(route.delay).await;
    let mut response = Response::new(Full::new(route.body));
    *response.status_mut() = http::StatusCode::from_u16(route.status).expect("a status");
    Ok(response)
}

/// A registry with its events.
pub(crate) struct Fleet {
    pub(crate) engines: Engines,
    events: mpsc::Receiver<EngineEvent>,
}

/// Longest wait for an event: longer than any that a test expects, so that a missing one fails the test.
const PATIENCE: Duration = secs(100);

/// No jitter, so that tests can name times.
pub(crate) fn config() -> EnginesConfig {
    EnginesConfig { jitter: 0.0, ..EnginesConfig::default() }
}

pub(crate) fn spec(text: &str) -> EngineSpec {
    text.parse().expect("a valid spec")
}

pub(crate) const fn worker(engine: u32, rank: u32) -> WorkerId {
    WorkerId { engine: EngineId(engine), rank }
}

impl Fleet {
    pub(crate) fn start(net: &Arc<Net>, specs: &[&str]) -> Self {
        Self::start_with(net, specs, config())
    }

    pub(crate) fn start_with(net: &Arc<Net>, specs: &[&str], config: EnginesConfig) -> Self {
        let (tx, events) = mpsc::channel(1024);
        let specs = specs.iter().map(|s| spec(s)).collect();
        Self { engines: Engines::start(config, net.client(), specs, tx), events }
    }

    pub(crate) const fn with(engines: Engines, events: mpsc::Receiver<EngineEvent>) -> Self {
        Self { engines, events }
    }

    /// The next event that is no load report.
    pub(crate) async fn next(&mut self) -> EngineEvent {
        tokio::time::timeout(PATIENCE, self.change()).await.expect("an event in time")
    }

    async fn change(&mut self) -> EngineEvent {
        loop {
            match self.events.recv().await.expect("an event") {
                EngineEvent::Load { .. } => {}
                event => return event,
            }
        }
    }

    /// The next load report.
    pub(crate) async fn next_load(&mut self) -> (WorkerId, tandem_types::LoadReport) {
        loop {
            if let EngineEvent::Load { worker, load } = self.events.recv().await.expect("an event") {
                return (worker, load);
            }
        }
    }

    /// Whatever happens, load reports left out, within `time`.
    pub(crate) async fn during(&mut self, time: Duration) -> Vec<EngineEvent> {
        let until = Instant::now() + time;
        let mut seen = Vec::new();
        while let Ok(event) = tokio::time::timeout_at(until, self.change()).await {
            seen.push(event);
        }
        seen
    }
}

pub(crate) const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub(crate) const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}
