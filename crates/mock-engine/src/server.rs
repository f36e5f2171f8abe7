//! The HTTP server: connections, and how they are broken.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::engine::StartError;
use crate::http::{State, serve};

/// What a connection writes when it is to write garbage.
const GARBAGE: &[u8] = b"\x16\x03\x01 these are not the bytes of an http answer\r\n\0\xff\xfe";

/// Orders to the server.
#[derive(Debug)]
pub(crate) enum Listening {
    /// Close or open the listening socket.
    Set(bool, oneshot::Sender<Result<(), StartError>>),
    /// Close it, wait for running answers, and end.
    End(oneshot::Sender<()>),
}

pub(crate) async fn listen(addr: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |error: io::Error| StartError::Listen { what: addr.to_string(), reason: error.to_string() };
    let listener = TcpListener::bind(addr).await.map_err(failed)?;
    let addr = listener.local_addr().map_err(failed)?;
    Ok((listener, addr))
}

/// Takes connections until told to end, or `dead`.
pub(crate) async fn run(
    state: Arc<State>,
    listener: TcpListener,
    addr: SocketAddr,
    mut orders: mpsc::Receiver<Listening>,
    dead: CancellationToken,
) {
    let mut listener = Some(listener);
    let graceful = GracefulShutdown::new();
    let end = loop {
        let accept = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = dead.cancelled() => return,
            order = orders.recv() => match order {
                None => return,
                Some(Listening::End(reply)) => break reply,
                Some(Listening::Set(false, reply)) => {
                    listener = None;
                    let _ = reply.send(Ok(()));
                }
                Some(Listening::Set(true, reply)) => {
                    let outcome = match listener {
                        Some(_) => Ok(()),
                        None => listen(addr).await.map(|(bound, _)| listener = Some(bound)),
                    };
                    let _ = reply.send(outcome);
                }
            },
            accepted = accept => match accepted {
                Ok((stream, _)) => connection(&state, stream, &graceful, &dead),
                // Out of file descriptors, or a connection that was reset before it was taken.
                Err(error) => {
                    tracing::warn!(%error, "cannot take connection");
                    tokio::task::yield_now().await;
                }
            },
        }
    };
    drop(listener);
    tokio::select! {
        () = dead.cancelled() => {}
        () = graceful.shutdown() => {
            let _ = end.send(());
        }
    }
}

fn connection(state: &Arc<State>, stream: TcpStream, graceful: &GracefulShutdown, dead: &CancellationToken) {
    // Tokens are small packets that must not wait for one another.
    let _ = stream.set_nodelay(true);
    let garble = Arc::new(AtomicBool::new(false));
    let io = TokioIo::new(Garbling { stream, garble: Arc::clone(&garble), garbled: false });
    let state = Arc::clone(state);
    let service = service_fn(move |request| serve(Arc::clone(&state), request, Arc::clone(&garble)));
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().half_close(false);
    let connection = graceful.watch(builder.serve_connection(io, service).into_owned());
    let dead = dead.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = dead.cancelled() => {}
            // Broken connections are what the mock is for; clients tell their own errors.
            _ = connection => {}
        }
    });
}

/// A connection that can be made to write garbage and close.
struct Garbling {
    stream: TcpStream,
    garble: Arc<AtomicBool>,
    garbled: bool,
}

impl AsyncRead for Garbling {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Garbling {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.garbled {
            return Poll::Ready(Err(io::Error::from(io::ErrorKind::ConnectionAborted)));
        }
        if this.garble.load(Ordering::Relaxed) {
            return Pin::new(&mut this.stream).poll_write(cx, GARBAGE).map_ok(|_| {
                this.garbled = true;
                // What hyper wanted to write counts as written; its next write fails and ends it.
                buf.len().min(1)
            });
        }
        Pin::new(&mut this.stream).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
