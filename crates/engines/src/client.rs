//! The HTTP hop to the engines.
//!
//! - Purpose: one pooled client for all engines; failures are told apart so that a caller can judge whether a
//!   call may be repeated.
//! - Invariants:
//!   - I-CLI-1 a call whose first byte may have left is never sent a second time by this client. What the
//!     pool repeats on its own is only a call that a reused connection handed back unstarted, because the
//!     engine had closed it meanwhile: nothing of it was written. A call that was
//!     written on a connection that turns out closed is reported ([`SendErrorKind::Disconnected`],
//!     `never_sent` false), not repeated.
//!   - I-CLI-2 `never_sent` is true only when no byte of the call can have reached an engine.
//!   - I-CLI-3 dropping the future of [`HttpClient::send`], or the response body, closes the connection
//!     (HTTP/1.1) or resets the stream (HTTP/2): that is how an engine learns that a client went away.
//!   - I-CLI-4 no redirects, no cookies, no decompression, no proxies from the environment.
//! - Numbers: vLLM's and SGLang's HTTP server closes idle connections after 5 s, so ours are dropped after 4 s,
//!   which makes the race between its closing and our writing rare.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper_util::client::legacy::{Client, Error as LegacyError};
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::connect::{ConnectionUse, Connector, Dial, ServerNames};
use crate::pool::{AnswerBody, Pool};
use crate::tls::{TlsConfig, TlsError, client_config};

/// An error of whatever kind.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A request body.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// A body that is all there.
#[must_use]
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// No body.
#[must_use]
pub fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// How to connect.
#[derive(Debug, Clone)]
pub struct HttpConfig {
    /// Longest time for name resolution, TCP and TLS together.
    pub connect_timeout: Duration,
    /// How long an unused connection is kept.
    pub pool_idle_timeout: Duration,
    /// Most unused connections kept per engine.
    pub pool_max_idle_per_engine: usize,
    /// Interval of TCP keep-alive probes, which find peers that vanished during a long silent prefill.
    pub tcp_keepalive: Duration,
    /// Speak HTTP/2 to `http://` engines without asking (prior knowledge). Stock engines do not.
    pub http2_prior_knowledge: bool,
    /// Offer HTTP/2 to `https://` engines (ALPN).
    pub http2_alpn: bool,
    /// Encryption.
    pub tls: TlsConfig,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            pool_idle_timeout: Duration::from_secs(4),
            pool_max_idle_per_engine: 256,
            tcp_keepalive: Duration::from_secs(30),
            http2_prior_knowledge: false,
            http2_alpn: false,
            tls: TlsConfig::default(),
        }
    }
}

/// What went wrong with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SendErrorKind {
    /// No connection: refused, unreachable, name not found, TLS failed, or not in time.
    Connect,
    /// The connection was lost before a response head.
    Disconnected,
    /// No response head in time.
    Timeout,
    /// The answer was not HTTP.
    Garbage,
    /// The request body, which the caller supplies, failed.
    Body,
    /// The request itself cannot be sent (a URL without host, a version that does not fit): a caller's bug.
    Request,
}

/// Why there is no response.
#[derive(Debug)]
pub struct SendError {
    /// What happened.
    pub kind: SendErrorKind,
    /// No byte of the call can have reached the engine (I-CLI-2): repeating it is safe whatever it does.
    pub never_sent: bool,
    /// The connection had served calls before. A loss right at the start of such a connection mostly means that
    /// the engine closed an idle connection, and says little about its health.
    pub reused_connection: bool,
    source: Option<BoxError>,
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            SendErrorKind::Connect => "cannot connect",
            SendErrorKind::Disconnected => "connection lost before an answer",
            SendErrorKind::Timeout => "no answer in time",
            SendErrorKind::Garbage => "the answer is not http",
            SendErrorKind::Body => "the request body failed",
            SendErrorKind::Request => "the request cannot be sent",
        })?;
        // The innermost cause is the one that names the trouble ("connection refused").
        let mut cause = self.source.as_deref().map(|e| e as &dyn std::error::Error);
        while let Some(inner) = cause.and_then(std::error::Error::source) {
            cause = Some(inner);
        }
        cause.map_or(Ok(()), |cause| write!(f, ": {cause}"))
    }
}

impl std::error::Error for SendError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|e| e as &dyn std::error::Error)
    }
}

impl SendError {
    pub(crate) fn new(kind: SendErrorKind, never_sent: bool) -> Self {
        Self { kind, never_sent, reused_connection: false, source: None }
    }

    pub(crate) fn because(self, source: impl Into<BoxError>) -> Self {
        Self { source: Some(source.into()), ..self }
    }

    /// What became of a call on an open connection. `never_sent`: the connection never started it.
    pub(crate) fn of_hyper(error: hyper::Error, never_sent: bool, reused_connection: bool) -> Self {
        let kind = if never_sent { SendErrorKind::Disconnected } else { kind_of(&error) };
        Self { kind, never_sent, reused_connection, source: Some(Box::new(error)) }
    }

    fn from_legacy(error: LegacyError) -> Self {
        let reused_connection = error.connect_info().is_some_and(ConnectionUse::was_used);
        let hyper = std::error::Error::source(&error).and_then(|e| e.downcast_ref::<hyper::Error>());
        let (kind, never_sent) = match hyper {
            _ if error.is_connect() => (SendErrorKind::Connect, true),
            // hyper hands a call back as cancelled only when its connection never started it.
            Some(hyper) if hyper.is_canceled() => (SendErrorKind::Disconnected, true),
            Some(hyper) => (kind_of(hyper), false),
            // Neither a connection was tried nor a call written: the request was refused beforehand.
            None => (SendErrorKind::Request, true),
        };
        Self { kind, never_sent, reused_connection, source: Some(Box::new(error)) }
    }
}

fn kind_of(error: &hyper::Error) -> SendErrorKind {
    if error.is_parse() || error.is_parse_status() {
        SendErrorKind::Garbage
    } else if error.is_user() {
        SendErrorKind::Body
    } else if error.is_timeout() {
        SendErrorKind::Timeout
    } else {
        SendErrorKind::Disconnected
    }
}

/// Who carries the calls.
#[derive(Clone)]
enum Carrier {
    /// HTTP/1.1.
    Pool(Pool),
    /// Where HTTP/2 may be spoken.
    Either(Box<Client<Connector, Body>>),
}

/// The client for all engines. Clones share the pool.
#[derive(Clone)]
pub struct HttpClient {
    carrier: Carrier,
    names: Arc<ServerNames>,
}

impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClient").finish_non_exhaustive()
    }
}

impl HttpClient {
    /// Builds a client. Building needs no tokio runtime, sending does.
    ///
    /// # Errors
    /// When certificates or keys of the TLS configuration cannot be used.
    pub fn new(config: &HttpConfig) -> Result<Self, TlsError> {
        let names = Arc::new(ServerNames::default());
        let tls = client_config(&config.tls)?;
        let connector = Connector::new(config, tls, Arc::clone(&names));
        Ok(Self::over(config, connector, names))
    }

    /// A client that reaches engines another way than by TCP; `config.tls` is not used.
    #[must_use]
    pub fn with_dial(config: &HttpConfig, dial: Arc<dyn Dial>) -> Self {
        Self::over(config, Connector::dialing(config, dial), Arc::default())
    }

    fn over(config: &HttpConfig, connector: Connector, names: Arc<ServerNames>) -> Self {
        if !config.http2_prior_knowledge && !config.http2_alpn {
            return Self { carrier: Carrier::Pool(Pool::new(config, connector)), names };
        }
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .pool_idle_timeout(config.pool_idle_timeout)
            .pool_max_idle_per_host(config.pool_max_idle_per_engine)
            .http2_only(config.http2_prior_knowledge)
            .retry_canceled_requests(true)
            .build(connector);
        Self { carrier: Carrier::Either(Box::new(client)), names }
    }

    /// Sends a call and waits for the head of its answer. `request` has an absolute URL.
    ///
    /// # Errors
    /// [`SendError`]; a response with any status is not an error.
    pub async fn send(&self, request: Request<Body>) -> Result<Response<AnswerBody>, SendError> {
        match &self.carrier {
            Carrier::Pool(pool) => pool.send(request).await,
            Carrier::Either(client) => {
                let response = client.request(request).await.map_err(SendError::from_legacy)?;
                ConnectionUse::mark(response.extensions());
                Ok(response.map(AnswerBody::from))
            }
        }
    }

    /// [`send`](Self::send), giving up when there is no response head within `head_timeout`.
    ///
    /// # Errors
    /// As `send`, and [`SendErrorKind::Timeout`].
    pub async fn send_within(
        &self,
        request: Request<Body>,
        head_timeout: Duration,
    ) -> Result<Response<AnswerBody>, SendError> {
        match tokio::time::timeout(head_timeout, self.send(request)).await {
            Ok(result) => result,
            Err(_) => Err(SendError::new(SendErrorKind::Timeout, false)),
        }
    }

    /// Checks certificates of `authority` (an address) against `name`.
    pub(crate) fn set_server_name(&self, authority: &str, name: &str) {
        self.names.set(authority, name);
    }
}

/// Why a body could not be read whole.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// More bytes than allowed.
    #[error("answer larger than {0} bytes")]
    TooLarge(usize),
    /// The stream broke.
    #[error("answer cut short: {0}")]
    Cut(#[source] hyper::Error),
}

/// Reads a whole body of at most `max` bytes.
///
/// # Errors
/// [`ReadError`].
pub async fn read_body(mut body: AnswerBody, max: usize) -> Result<Bytes, ReadError> {
    let mut first: Option<Bytes> = None;
    let mut all = bytes::BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(ReadError::Cut)?.into_data() else { continue };
        if all.len() + first.as_ref().map_or(0, Bytes::len) + data.len() > max {
            return Err(ReadError::TooLarge(max));
        }
        match first.take() {
            None if all.is_empty() => first = Some(data),
            None => all.extend_from_slice(&data),
            Some(head) => {
                all.extend_from_slice(&head);
                all.extend_from_slice(&data);
            }
        }
    }
    Ok(first.unwrap_or_else(|| all.freeze()))
}

/// An I/O error that says that connecting took too long.
pub(crate) fn connect_timed_out(after: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {after:?}"))
}
