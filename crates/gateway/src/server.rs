//! Sockets: listening, TLS, one task per connection, and the way down.
//!
//! Invariants: I-SRV-1 connections are bounded: beyond the bound they wait in the kernel's queue; I-SRV-2 a
//! connection that says nothing, or says its request's head too slowly, is closed; I-SRV-3 a connection that
//! is idle at shutdown closes at once, one with a call under way when that is over, and all when the grace is.
//! - Decided: a client that closes its sending side is taken for gone. Half-closed HTTP/1.1 connections are
//!   indistinguishable from abandoned ones, and an abandoned call must not cost GPU time.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use arc_swap::ArcSwap;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::app::App;
use crate::config::{Listen, TlsFiles};
use crate::http_service;
use crate::metrics::Family;

/// What a client that speaks HTTP/2 without asking says first.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Binds `listen`, or a free port of the same address where it says so.
pub(crate) async fn bind(listen: &Listen, what: &'static str) -> io::Result<TcpListener> {
    match TcpListener::bind(listen.addr).await {
        Err(error) if listen.or_free_port && error.kind() == io::ErrorKind::AddrInUse => {
            let listener = TcpListener::bind(SocketAddr::new(listen.addr.ip(), 0)).await?;
            let addr = listener.local_addr()?;
            tracing::warn!(%addr, taken = listen.addr.port(), "{what}: the usual port is taken, using another");
            Ok(listener)
        }
        bound => bound,
    }
}

/// The certificate to show, replaceable while serving.
pub(crate) struct TlsKeys {
    config: ArcSwap<rustls::ServerConfig>,
    files: TlsFiles,
}

impl TlsKeys {
    /// Reads certificate and key.
    pub(crate) fn read(files: TlsFiles) -> Result<Self, TlsKeysError> {
        Ok(Self { config: ArcSwap::from_pointee(server_config(&files)?), files })
    }

    /// Reads them again; new connections get the new ones.
    pub(crate) fn reload(&self) -> Result<(), TlsKeysError> {
        self.config.store(Arc::new(server_config(&self.files)?));
        Ok(())
    }
}

/// Why certificate and key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsKeysError {
    /// A file.
    #[error("cannot read {path}: {reason}")]
    File {
        /// Which.
        path: String,
        /// Why.
        reason: String,
    },
    /// They do not fit.
    #[error("certificate and key cannot be used: {0}")]
    Unfit(#[from] rustls::Error),
}

fn server_config(files: &TlsFiles) -> Result<rustls::ServerConfig, TlsKeysError> {
    let error = |path: &Path, reason: &dyn std::fmt::Display| TlsKeysError::File {
        path: path.display().to_string(),
        reason: reason.to_string(),
    };
    let certs: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(&files.cert)
        .and_then(Iterator::collect)
        .map_err(|e| error(&files.cert, &e))?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|e| error(&files.key, &e))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(certs, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// The public listener.
pub(crate) struct Server {
    pub(crate) app: Arc<App>,
    pub(crate) listener: TcpListener,
    pub(crate) tls: Option<Arc<TlsKeys>>,
    /// Cancelled to stop accepting.
    pub(crate) stop: CancellationToken,
}

impl Server {
    /// Accepts until told to stop; returns when all connections are closed.
    pub(crate) async fn run(self) {
        let connections = TaskTracker::new();
        let slots =
            Arc::new(Semaphore::new(self.app.config.limits.max_connections.min(Semaphore::MAX_PERMITS)));
        loop {
            let slot = tokio::select! {
                () = self.stop.cancelled() => break,
                slot = Arc::clone(&slots).acquire_owned() => slot,
            };
            let Ok(slot) = slot else { break };
            let accepted = tokio::select! {
                () = self.stop.cancelled() => break,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let connection = Connection { app: Arc::clone(&self.app), peer, stop: self.stop.clone() };
                    let tls = self.tls.clone();
                    connections.spawn(async move {
                        connection.app.metrics.shift(Family::Connections, 1.0);
                        tokio::select! {
                            () = connection.serve(stream, tls.as_deref()) => {}
                            () = connection.app.aborting.cancelled() => {}
                        }
                        connection.app.metrics.shift(Family::Connections, -1.0);
                        drop(slot);
                    });
                }
                // Out of descriptors or a connection that died in the queue: go on, but not in a hot loop.
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        drop(self.listener);
        connections.close();
        connections.wait().await;
    }
}

struct Connection {
    app: Arc<App>,
    peer: SocketAddr,
    stop: CancellationToken,
}

impl Connection {
    async fn serve(&self, stream: TcpStream, tls: Option<&TlsKeys>) {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot set nodelay");
        }
        let patience = self.app.config.timeouts.client_head.0;
        let watched = Arc::new(stream);
        let stream = Socket { stream: Arc::clone(&watched) };
        tokio::select! {
            () = self.converse(stream, tls, patience) => {}
            () = Socket::gone(&watched) => {}
        }
    }

    async fn converse(&self, stream: Socket, tls: Option<&TlsKeys>, patience: Duration) {
        match tls {
            None => {
                let opening = tokio::time::timeout(patience, Opened::read(stream));
                let opened = tokio::select! {
                    opened = opening => opened,
                    () = self.stop.cancelled() => return,
                };
                if let Ok(Ok(opened)) = opened {
                    let http2 = opened.speaks_http2();
                    self.speak(opened, http2).await;
                }
            }
            Some(keys) => {
                let acceptor = tokio_rustls::TlsAcceptor::from(keys.config.load_full());
                if let Ok(Ok(stream)) = tokio::time::timeout(patience, acceptor.accept(stream)).await {
                    let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                    self.speak(stream, http2).await;
                }
            }
        }
    }

    async fn speak<I: AsyncRead + AsyncWrite + Unpin + Send + 'static>(&self, io: I, http2: bool) {
        let (app, peer) = (Arc::clone(&self.app), self.peer);
        let service = service_fn(move |request: http::Request<Incoming>| {
            http_service::serve(Arc::clone(&app), peer, request)
        });
        let limits = &self.app.config.limits;
        let head_bytes = limits.max_header_bytes.bytes();
        if http2 {
            let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            builder
                .timer(TokioTimer::new())
                .max_header_list_size(u32::try_from(head_bytes).unwrap_or(u32::MAX))
                .max_concurrent_streams(1024)
                .keep_alive_interval(Duration::from_secs(30))
                .keep_alive_timeout(Duration::from_secs(30));
            let mut connection = pin!(builder.serve_connection(TokioIo::new(io), service));
            tokio::select! {
                _ = connection.as_mut() => return,
                () = self.stop.cancelled() => connection.as_mut().graceful_shutdown(),
            }
            let _ = connection.await;
        } else {
            let mut builder = hyper::server::conn::http1::Builder::new();
            builder
                .timer(TokioTimer::new())
                .header_read_timeout(self.app.config.timeouts.client_head.0)
                .max_headers(limits.max_headers)
                .max_buf_size(head_bytes);
            let mut connection = pin!(builder.serve_connection(TokioIo::new(io), service));
            tokio::select! {
                _ = connection.as_mut() => return,
                () = self.stop.cancelled() => connection.as_mut().graceful_shutdown(),
            }
            let _ = connection.await;
        }
    }
}

/// A client's socket that can be watched while somebody else reads and writes it: an HTTP/1.1 connection with
/// a further request already in its buffer does not notice by itself that the client left.
struct Socket {
    stream: Arc<TcpStream>,
}

impl Socket {
    /// Waits until the client has closed its sending side or the connection is broken.
    async fn gone(stream: &TcpStream) {
        // Priority is the one interest that wakes for a closed peer and not for ordinary bytes.
        match stream.ready(Interest::PRIORITY).await {
            Ok(ready) if !ready.is_read_closed() => std::future::pending().await,
            Ok(_) | Err(_) => {}
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            ready!(self.stream.poll_read_ready(cx))?;
            match self.stream.try_read_buf(buf) {
                Ok(_) => return Poll::Ready(Ok(())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream.poll_write_ready(cx))?;
            match self.stream.try_write(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream.poll_write_ready(cx))?;
            match self.stream.try_write_vectored(bufs) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(&*self.stream).shutdown(Shutdown::Write))
    }
}

/// A connection of which the first bytes were read to learn what it speaks.
struct Opened {
    first: [u8; HTTP2_PREFACE.len()],
    filled: usize,
    given: usize,
    stream: Socket,
}

impl Opened {
    async fn read(stream: Socket) -> io::Result<Self> {
        let mut opened = Self { first: [0; HTTP2_PREFACE.len()], filled: 0, given: 0, stream };
        while opened.may_be_http2() && opened.filled < HTTP2_PREFACE.len() {
            let Some(room) = opened.first.get_mut(opened.filled..) else { break };
            let count = opened.stream.read(room).await?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            opened.filled += count;
        }
        Ok(opened)
    }

    fn may_be_http2(&self) -> bool {
        self.first.get(..self.filled) == HTTP2_PREFACE.get(..self.filled)
    }

    fn speaks_http2(&self) -> bool {
        self.filled == HTTP2_PREFACE.len() && self.may_be_http2()
    }
}

impl AsyncRead for Opened {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.given < self.filled {
            let ready = self.first.get(self.given..self.filled).unwrap_or_default();
            let count = ready.len().min(buf.remaining());
            buf.put_slice(ready.get(..count).unwrap_or_default());
            self.given += count;
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Opened {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
