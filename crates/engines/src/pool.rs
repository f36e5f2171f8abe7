//! Connections to engines over HTTP/1.1, kept between calls.
//!
//! - Purpose: a connection is driven by whoever waits for its answer, not by a task of its own: bytes that came
//!   in one read reach the reader in one go, without a hop between tasks for each piece.
//! - Inputs: a request with an absolute URL. Outputs: the head of its answer, and an [`AnswerBody`] that drives
//!   the rest.
//! - Invariants:
//!   - A connection is in one place: with a call (first its `send`, then its body) or idle.
//!   - I-HOP-1 only a connection whose answer is over on both sides, and which waits for the next call, becomes
//!     idle. Any other is closed when its call is dropped.
//!   - I-HOP-2 idle connections are bounded in number per engine, and in time. The one used last is used next.
//!   - I-HOP-3 a call moves to another connection only when an idle one handed it back unstarted. Each such move
//!     uses up an idle connection, and a fresh one is the last that is tried.
//! - Deliberately absent: waiting for a connection that is in use; connections opened in advance; pipelining.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Method, Request, Response, Uri, Version};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, Connection, SendRequest};
use tokio::time::Instant;
use tower_service::Service as _;

use crate::client::{Body, BoxError, HttpConfig, SendError, SendErrorKind};
use crate::connect::{Connector, Stream};

/// A connection, with whoever waits for its answer.
struct Link {
    sender: SendRequest<Body>,
    connection: Connection<Stream, Body>,
}

impl Link {
    async fn over(stream: Stream) -> hyper::Result<Box<Self>> {
        let (sender, connection) = http1::handshake(stream).await?;
        Ok(Box::new(Self { sender, connection }))
    }

    /// Lets the connection read and write; ready when it is over.
    fn drive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.connection).poll(cx).map(drop)
    }

    /// Whether it is open and waits for a call.
    fn rests(&mut self) -> bool {
        self.drive(&mut Context::from_waker(Waker::noop())).is_pending() && self.sender.is_ready()
    }
}

struct Idle {
    link: Box<Link>,
    since: Instant,
}

/// One engine's idle connections.
struct Host {
    /// Its `host` header.
    name: HeaderValue,
    /// The one used last is at the back.
    idle: Mutex<VecDeque<Idle>>,
    pool: Weak<Shared>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct HostKey {
    scheme: Scheme,
    authority: Authority,
}

struct Shared {
    connector: Connector,
    idle_timeout: Duration,
    idle_max: usize,
    hosts: RwLock<HashMap<HostKey, Arc<Host>>>,
    /// A task looks after idle connections.
    swept: AtomicBool,
}

/// The pool. Clones share it.
#[derive(Clone)]
pub(crate) struct Pool {
    shared: Arc<Shared>,
}

impl Pool {
    pub(crate) fn new(config: &HttpConfig, connector: Connector) -> Self {
        Self {
            shared: Arc::new(Shared {
                connector,
                idle_timeout: config.pool_idle_timeout,
                idle_max: config.pool_max_idle_per_engine,
                hosts: RwLock::default(),
                swept: AtomicBool::new(false),
            }),
        }
    }

    /// Sends a call and waits for the head of its answer.
    pub(crate) async fn send(&self, mut request: Request<Body>) -> Result<Response<AnswerBody>, SendError> {
        let Some((key, path)) = address(&request) else {
            return Err(SendError::new(SendErrorKind::Request, true));
        };
        let url = std::mem::replace(request.uri_mut(), Uri::from(path));
        let host = self.shared.host(key)?;
        if !request.headers().contains_key(HOST) {
            request.headers_mut().insert(HOST, host.name.clone());
        }
        while let Some(link) = host.take(self.shared.idle_timeout) {
            match exchange(link, request).await {
                Ok((response, link)) => return Ok(host.answer(response, link)),
                Err(error) => request = retry(error, true)?,
            }
        }
        let stream = self.shared.connector.clone().call(url).await.map_err(connect_error)?;
        let link = Link::over(stream).await.map_err(connect_error)?;
        match exchange(link, request).await {
            Ok((response, link)) => Ok(host.answer(response, link)),
            Err(mut error) => {
                let never_sent = error.take_message().is_some();
                Err(SendError::of_hyper(error.into_error(), never_sent, false))
            }
        }
    }
}

fn connect_error(error: impl Into<BoxError>) -> SendError {
    SendError::new(SendErrorKind::Connect, true).because(error)
}

/// The request, where the connection handed it back unstarted.
fn retry(mut error: TrySendError<Request<Body>>, reused: bool) -> Result<Request<Body>, SendError> {
    error.take_message().ok_or_else(|| SendError::of_hyper(error.into_error(), false, reused))
}

/// Where a request goes; `None` when it cannot be sent.
fn address(request: &Request<Body>) -> Option<(HostKey, PathAndQuery)> {
    let uri = request.uri();
    let known = matches!(request.version(), Version::HTTP_10 | Version::HTTP_11);
    if !known || *request.method() == Method::CONNECT {
        return None;
    }
    let key = HostKey { scheme: uri.scheme()?.clone(), authority: uri.authority()?.clone() };
    let path = uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    Some((key, path))
}

/// Makes a call on a connection. The connection comes back with the answer unless it is over.
async fn exchange(
    mut link: Box<Link>,
    request: Request<Body>,
) -> Result<(Response<Incoming>, Option<Box<Link>>), TrySendError<Request<Body>>> {
    let mut answer = pin!(link.sender.try_send_request(request));
    let mut link = Some(link);
    let response = poll_fn(|cx| {
        if let Some(open) = &mut link
            && open.drive(cx).is_ready()
        {
            // Its end tells the waiting call what became of it.
            link = None;
        }
        // Only the connection's work or end brings the answer, and both happen above: nobody needs waking.
        answer.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    })
    .await?;
    Ok((response, link))
}

impl Shared {
    fn host(self: &Arc<Self>, key: HostKey) -> Result<Arc<Host>, SendError> {
        if let Some(host) = self.hosts.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(Arc::clone(host));
        }
        let fresh = Arc::new(Host::new(&key, Arc::downgrade(self))?);
        let mut hosts = self.hosts.write().unwrap_or_else(PoisonError::into_inner);
        Ok(Arc::clone(hosts.entry(key).or_insert(fresh)))
    }

    /// Closes what was idle for too long, and forgets engines without connections.
    fn sweep(&self) {
        let mut hosts = self.hosts.write().unwrap_or_else(PoisonError::into_inner);
        hosts.retain(|_, host| {
            let mut idle = host.idle();
            expire(&mut idle, self.idle_timeout);
            !idle.is_empty() || Arc::strong_count(host) > 1
        });
    }

    /// Has a task look after idle connections, unless one does.
    fn keep_swept(self: &Arc<Self>) {
        if !self.swept.swap(true, Ordering::Relaxed) {
            tokio::spawn(Sweeping(Arc::downgrade(self)).run());
        }
    }
}

/// The task that closes idle connections, as long as the pool lives.
struct Sweeping(Weak<Shared>);

/// Shortest time between two looks at the idle connections.
const SWEEP_MIN: Duration = Duration::from_millis(100);

impl Sweeping {
    async fn run(self) {
        while let Some(pool) = self.0.upgrade() {
            pool.sweep();
            let pause = pool.idle_timeout.max(SWEEP_MIN);
            drop(pool);
            tokio::time::sleep(pause).await;
        }
    }
}

impl Drop for Sweeping {
    /// Where a runtime ends before the pool, the next idle connection starts another task.
    fn drop(&mut self) {
        if let Some(pool) = self.0.upgrade() {
            pool.swept.store(false, Ordering::Relaxed);
        }
    }
}

/// Closes the connections that were idle for too long, which are at the front.
fn expire(idle: &mut VecDeque<Idle>, timeout: Duration) {
    while idle.front().is_some_and(|oldest| oldest.since.elapsed() >= timeout) {
        idle.pop_front();
    }
}

impl Host {
    fn new(key: &HostKey, pool: Weak<Shared>) -> Result<Self, SendError> {
        let usual = if key.scheme == Scheme::HTTPS { 443 } else { 80 };
        let host = key.authority.host();
        let name = match key.authority.port_u16().filter(|port| *port != usual) {
            Some(port) => HeaderValue::try_from(format!("{host}:{port}")),
            None => HeaderValue::from_str(host),
        };
        let name = name.map_err(|error| SendError::new(SendErrorKind::Request, true).because(error))?;
        Ok(Self { name, idle: Mutex::default(), pool })
    }

    fn idle(&self) -> MutexGuard<'_, VecDeque<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An idle connection that is still open as far as anybody can tell.
    fn take(&self, timeout: Duration) -> Option<Box<Link>> {
        loop {
            let mut idle = self.idle();
            expire(&mut idle, timeout);
            let mut link = idle.pop_back()?.link;
            drop(idle);
            if link.rests() {
                return Some(link);
            }
        }
    }

    /// A connection that may be of further use.
    fn give_back(&self, mut link: Box<Link>) {
        let Some(pool) = self.pool.upgrade() else { return };
        if pool.idle_max == 0 || !link.rests() || tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let mut idle = self.idle();
        if idle.len() >= pool.idle_max {
            idle.pop_front();
        }
        idle.push_back(Idle { link, since: Instant::now() });
        drop(idle);
        pool.keep_swept();
    }

    fn answer(
        self: Arc<Self>,
        response: Response<Incoming>,
        link: Option<Box<Link>>,
    ) -> Response<AnswerBody> {
        response.map(|incoming| {
            let mut body = AnswerBody { incoming, driven: link.map(|link| Driven { link, host: self }) };
            body.settle();
            body
        })
    }
}

/// The body of an engine's answer. Dropping it before its end closes the connection (HTTP/1.1) or resets the
/// stream (HTTP/2).
pub struct AnswerBody {
    incoming: Incoming,
    /// The connection on which it comes, for HTTP/1.1; gone when the connection is over or of use to others.
    driven: Option<Driven>,
}

struct Driven {
    link: Box<Link>,
    host: Arc<Host>,
}

impl fmt::Debug for AnswerBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnswerBody").finish_non_exhaustive()
    }
}

impl From<Incoming> for AnswerBody {
    /// A body that something else drives.
    fn from(incoming: Incoming) -> Self {
        Self { incoming, driven: None }
    }
}

impl AnswerBody {
    /// Lets go of the connection when nothing more will come.
    fn settle(&mut self) {
        if self.incoming.is_end_stream()
            && let Some(Driven { link, host }) = self.driven.take()
        {
            host.give_back(link);
        }
    }
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = &mut *self;
        let Some(driven) = &mut this.driven else { return Pin::new(&mut this.incoming).poll_frame(cx) };
        // Only the connection's work or end brings a frame, and both happen here: nobody needs waking.
        let mut quiet = Context::from_waker(Waker::noop());
        let mut next = Pin::new(&mut this.incoming).poll_frame(&mut quiet);
        if next.is_pending() {
            if driven.link.drive(cx).is_ready() {
                this.driven = None;
            }
            next = Pin::new(&mut this.incoming).poll_frame(&mut quiet);
        }
        match &next {
            Poll::Ready(Some(Ok(_))) => this.settle(),
            Poll::Ready(None) => {
                if let Some(Driven { link, host }) = this.driven.take() {
                    host.give_back(link);
                }
            }
            Poll::Ready(Some(Err(_))) => this.driven = None,
            Poll::Pending => {}
        }
        next
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
