//! Opening connections: TCP, then TLS where the URL says so, within one time limit, and remembering whether a
//! connection has served a call before.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Extensions, Uri};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream, ResolveServerName};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tower_service::Service;

use crate::client::{BoxError, HttpConfig, connect_timed_out};

/// Names against which the certificates of engines found by DNS are checked, by their address.
#[derive(Debug, Default)]
pub(crate) struct ServerNames {
    names: RwLock<BTreeMap<String, String>>,
}

impl ServerNames {
    pub(crate) fn set(&self, authority: &str, name: &str) {
        let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
        names.insert(authority.to_owned(), name.to_owned());
    }

    fn get(&self, authority: &str) -> Option<String> {
        self.names.read().unwrap_or_else(PoisonError::into_inner).get(authority).cloned()
    }
}

struct NameOf(Arc<ServerNames>);

impl ResolveServerName for NameOf {
    fn resolve(&self, uri: &Uri) -> Result<ServerName<'static>, BoxError> {
        let known = uri.authority().and_then(|a| self.0.get(a.as_str()));
        let host = known.as_deref().or_else(|| uri.host()).unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Ok(ServerName::try_from(host.to_owned())?)
    }
}

/// Whether a connection has served a call.
#[derive(Debug, Clone, Default)]
pub(crate) struct ConnectionUse(Arc<AtomicBool>);

impl ConnectionUse {
    pub(crate) fn was_used(info: &Connected) -> bool {
        let mut extensions = Extensions::new();
        info.get_extras(&mut extensions);
        extensions.get::<Self>().is_some_and(|used| used.0.load(Ordering::Relaxed))
    }

    pub(crate) fn mark(extensions: &Extensions) {
        if let Some(used) = extensions.get::<Self>() {
            used.0.store(true, Ordering::Relaxed);
        }
    }
}

/// A connection that a [`Dial`] made.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Io for T {}

/// A connection being made.
pub type Dialing = Pin<Box<dyn Future<Output = io::Result<Box<dyn Io>>> + Send>>;

/// Another way to reach engines than TCP: sockets of the file system, tunnels, memory in tests. Speaks HTTP
/// without TLS, whatever the URL's scheme.
pub trait Dial: Send + Sync + 'static {
    /// Connects to the host and port of `uri`. Dropping the future gives up.
    fn dial(&self, uri: &Uri) -> Dialing;
}

#[derive(Clone)]
enum Way {
    Network(Box<HttpsConnector<HttpConnector>>),
    Dial(Arc<dyn Dial>),
}

/// The connector under the pool.
#[derive(Clone)]
pub(crate) struct Connector {
    way: Way,
    timeout: Duration,
}

impl Connector {
    pub(crate) fn new(config: &HttpConfig, tls: rustls::ClientConfig, names: Arc<ServerNames>) -> Self {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_keepalive(Some(config.tcp_keepalive));
        http.set_connect_timeout(Some(config.connect_timeout));
        let builder = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .with_server_name_resolver(NameOf(names));
        let https = if config.http2_alpn || config.http2_prior_knowledge {
            builder.enable_all_versions().wrap_connector(http)
        } else {
            builder.enable_http1().wrap_connector(http)
        };
        Self { way: Way::Network(Box::new(https)), timeout: config.connect_timeout }
    }

    pub(crate) fn dialing(config: &HttpConfig, dial: Arc<dyn Dial>) -> Self {
        Self { way: Way::Dial(dial), timeout: config.connect_timeout }
    }
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match &mut self.way {
            Way::Network(https) => https.poll_ready(cx),
            Way::Dial(_) => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let limit = self.timeout;
        let connecting: Pin<Box<dyn Future<Output = Result<Wire, BoxError>> + Send>> = match &mut self.way {
            Way::Network(https) => {
                let connecting = https.call(uri);
                Box::pin(async move { Ok(Wire::Network(Box::new(connecting.await?))) })
            }
            Way::Dial(dial) => {
                let connecting = dial.dial(&uri);
                Box::pin(async move { Ok(Wire::Dialled(TokioIo::new(connecting.await?))) })
            }
        };
        Box::pin(async move {
            match tokio::time::timeout(limit, connecting).await {
                Ok(wire) => Ok(Stream { wire: wire?, used: ConnectionUse::default() }),
                Err(_) => Err(connect_timed_out(limit).into()),
            }
        })
    }
}

enum Wire {
    Network(Box<MaybeHttpsStream<TokioIo<TcpStream>>>),
    Dialled(TokioIo<Box<dyn Io>>),
}

/// A connection, whatever carries it.
pub(crate) struct Stream {
    wire: Wire,
    used: ConnectionUse,
}

/// Calls the same method on whichever wire there is.
macro_rules! on_wire {
    ($self:ident, $method:ident $(, $arg:expr)*) => {
        match &mut $self.wire {
            Wire::Network(wire) => Pin::new(wire.as_mut()).$method($($arg),*),
            Wire::Dialled(wire) => Pin::new(wire).$method($($arg),*),
        }
    };
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        let connected = match &self.wire {
            Wire::Network(wire) => wire.connected(),
            Wire::Dialled(_) => Connected::new(),
        };
        connected.extra(self.used.clone())
    }
}

impl Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        on_wire!(self, poll_read, cx, buf)
    }
}

impl Write for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        on_wire!(self, poll_write, cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_wire!(self, poll_flush, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_wire!(self, poll_shutdown, cx)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.wire {
            Wire::Network(wire) => wire.is_write_vectored(),
            Wire::Dialled(wire) => wire.is_write_vectored(),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on_wire!(self, poll_write_vectored, cx, bufs)
    }
}
