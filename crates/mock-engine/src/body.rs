//! Response bodies: whole ones and streams that can be cut.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::sync::mpsc;

use crate::fault::Fault;

/// Events that may wait for a slow client.
const EVENTS_MAX: usize = 16;

/// A response body.
#[derive(Debug)]
pub(crate) enum Body {
    Whole(Option<Bytes>),
    Stream(EventStream),
}

/// Events on their way to the connection.
#[derive(Debug)]
pub(crate) struct EventStream {
    events: mpsc::Receiver<Result<Bytes, std::io::Error>>,
    /// An error that is held back once, so that the connection flushes what came before it.
    error: Option<std::io::Error>,
}

impl Body {
    pub(crate) fn whole(bytes: impl Into<Bytes>) -> Self {
        Self::Whole(Some(bytes.into()))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Stream(stream) => match (stream.error.take(), stream.events.poll_recv(cx)) {
                (Some(error), _) => Poll::Ready(Some(Err(error))),
                (None, Poll::Ready(Some(Err(error)))) => {
                    stream.error = Some(error);
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
                (None, Poll::Ready(Some(Ok(bytes)))) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
                (None, Poll::Ready(None)) => Poll::Ready(None),
                (None, Poll::Pending) => Poll::Pending,
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Stream(_) => SizeHint::default(),
        }
    }
}

/// The client is gone, or a fault ended the answer.
#[derive(Debug)]
pub(crate) struct Ended;

/// Puts events into a stream, committing a fault on the way.
#[derive(Debug)]
pub(crate) struct Emitter {
    events: mpsc::Sender<Result<Bytes, std::io::Error>>,
    fault: Option<Fault>,
    /// The engine's own error event, for [`Fault::ErrorAfter`].
    error: String,
    sent: u32,
}

impl Emitter {
    pub(crate) fn new(fault: Option<Fault>, error: String) -> (Self, Body) {
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let stream = EventStream { events, error: None };
        (Self { events: sender, fault, error, sent: 0 }, Body::Stream(stream))
    }

    /// Completes when the client has gone.
    pub(crate) async fn gone(&self) {
        self.events.closed().await;
    }

    pub(crate) async fn send(&mut self, event: impl Into<Bytes>) -> Result<(), Ended> {
        self.fall().await?;
        self.sent += 1;
        self.put(event.into()).await
    }

    /// The stream ends here; a fault may still spoil its end.
    pub(crate) async fn end(mut self) {
        let _ = self.fall().await;
    }

    async fn put(&self, bytes: Bytes) -> Result<(), Ended> {
        self.events.send(Ok(bytes)).await.map_err(|_| Ended)
    }

    /// Commits the fault, if its moment has come.
    async fn fall(&mut self) -> Result<(), Ended> {
        match &self.fault {
            Some(Fault::CutAfter(n)) if self.sent >= *n => {
                let cut = std::io::Error::new(std::io::ErrorKind::ConnectionAborted, "cut by a fault");
                let _ = self.events.send(Err(cut)).await;
                Err(Ended)
            }
            Some(Fault::ErrorAfter(n)) if self.sent >= *n => {
                let error = Bytes::from(std::mem::take(&mut self.error));
                self.put(error).await?;
                Err(Ended)
            }
            Some(Fault::StallAfter(n)) if self.sent >= *n => {
                self.gone().await;
                Err(Ended)
            }
            Some(Fault::Stall) => {
                self.gone().await;
                Err(Ended)
            }
            Some(Fault::Slow { millis }) => {
                tokio::time::sleep(Duration::from_millis(*millis)).await;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
