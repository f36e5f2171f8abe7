//! Bodies of answers to clients, and of requests from them.
//!
//! Invariants: I-BODY-1 all request bodies in memory together stay within one bound: a body reserves its
//! bytes before it is read on; I-BODY-2 a body that does not come, or comes too slowly, is given up after a
//! bounded silence.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tandem_dialect::ErrorKind;
use tandem_engines::AnswerBody;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::metrics::{Family, Metrics};
use crate::patience::Patience;
use crate::turn::StreamBody;

/// Why an answer breaks off. Only ends up in hyper's log: the client sees a cut connection.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// An answer's body.
pub(crate) enum Body {
    /// All there.
    Full(Option<Bytes>),
    /// The answer of a turn as it comes.
    Stream(Box<StreamBody>),
    /// Another answer of an engine, as it comes.
    Proxy(Box<Proxied>),
}

/// An answer of an engine that only passes.
pub(crate) struct Proxied {
    pub(crate) body: AnswerBody,
    pub(crate) patience: Patience,
}

impl Proxied {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Pending => self.patience.poll(cx).map(|_| Some(Err("the engine fell silent".into()))),
            ready => {
                self.patience.heard();
                ready.map_err(Into::into)
            }
        }
    }
}

impl Body {
    /// Nothing.
    pub(crate) const fn empty() -> Self {
        Self::Full(None)
    }

    /// These bytes.
    pub(crate) fn full(bytes: impl Into<Bytes>) -> Self {
        let bytes: Bytes = bytes.into();
        Self::Full((!bytes.is_empty()).then_some(bytes))
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut *self {
            Self::Full(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Stream(stream) => {
                stream.poll_bytes(cx).map(|next| next.map(|bytes| bytes.map(Frame::data)))
            }
            Self::Proxy(proxied) => proxied.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Full(bytes) => bytes.is_none(),
            Self::Stream(_) => false,
            Self::Proxy(proxied) => proxied.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            Self::Stream(_) => SizeHint::default(),
            Self::Proxy(proxied) => proxied.body.size_hint(),
        }
    }
}

/// Bytes of a semaphore permit. Permits are counted in u32, so large memories need a coarser unit.
const UNIT: u64 = 1024;

/// The memory for request bodies. Cheap to clone.
#[derive(Clone)]
pub(crate) struct BodyMemory {
    units: Arc<Semaphore>,
    all: usize,
    metrics: Metrics,
}

/// A piece of the memory, given back on drop.
pub(crate) struct Reserved {
    permit: Option<OwnedSemaphorePermit>,
    memory: BodyMemory,
}

impl BodyMemory {
    /// Room for `bytes`.
    pub(crate) fn new(bytes: u64, metrics: Metrics) -> Self {
        let all = usize::try_from(bytes.div_ceil(UNIT)).unwrap_or(Semaphore::MAX_PERMITS);
        Self { units: Arc::new(Semaphore::new(all)), all, metrics }
    }

    fn nothing(&self) -> Reserved {
        Reserved { permit: None, memory: self.clone() }
    }

    fn show(&self) {
        let used = self.all.saturating_sub(self.units.available_permits());
        self.metrics.set(Family::BodyMemory, &[], used.saturating_mul(UNIT as usize));
    }
}

impl Reserved {
    fn units(&self) -> usize {
        self.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
    }

    /// Makes it at least `bytes` large, waiting for others to give back at most `patience`.
    async fn grow(&mut self, bytes: usize, patience: Duration) -> Result<(), ErrorKind> {
        let wanted = u32::try_from((bytes as u64).div_ceil(UNIT)).map_err(|_| ErrorKind::TooLarge)?;
        let more = wanted.saturating_sub(u32::try_from(self.units()).unwrap_or(u32::MAX));
        if more == 0 {
            return Ok(());
        }
        let units = Arc::clone(&self.memory.units);
        let got = match tokio::time::timeout(patience, units.acquire_many_owned(more)).await {
            Ok(Ok(got)) => got,
            Ok(Err(_)) | Err(_) => return Err(ErrorKind::QueueFull),
        };
        match &mut self.permit {
            Some(permit) => permit.merge(got),
            None => self.permit = Some(got),
        }
        self.memory.show();
        Ok(())
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if self.permit.take().is_some() {
            self.memory.show();
        }
    }
}

/// Why a request body could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadError {
    /// More than allowed.
    TooLarge,
    /// No memory for it.
    NoMemory,
    /// Silence for too long.
    TooSlow,
    /// The connection broke or the framing is wrong.
    Broken,
}

impl ReadError {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::TooLarge => "body_size",
            Self::NoMemory => "body_memory",
            Self::TooSlow => "body_idle",
            Self::Broken => "body_broken",
        }
    }
}

/// How bodies are read.
pub(crate) struct Reading {
    pub(crate) memory: BodyMemory,
    pub(crate) max: usize,
    pub(crate) idle: Duration,
}

/// Bodies of unknown length reserve in steps, so that a slow one does not hold what it may never send.
const STEP: usize = 256 << 10;

impl Reading {
    /// Reads a request body whole. One that is too large is read on for a while and thrown away, because many
    /// clients look at the answer only when they have sent all. Not so those that wait (`waits`) for our word
    /// before they send it.
    pub(crate) async fn read(&self, mut body: Incoming, waits: bool) -> Result<(Bytes, Reserved), ReadError> {
        let read = self.read_from(&mut body).await;
        if matches!(read, Err(ReadError::TooLarge)) && !waits {
            // Ends by itself: both time and size are bounded.
            tokio::spawn(tokio::time::timeout(DISCARD_TIME, discard(body)));
        }
        read
    }

    async fn read_from(&self, body: &mut Incoming) -> Result<(Bytes, Reserved), ReadError> {
        let mut reserved = self.memory.nothing();
        let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        if announced > self.max {
            return Err(ReadError::TooLarge);
        }
        let mut first: Option<Bytes> = None;
        let mut all = BytesMut::new();
        loop {
            let frame = match tokio::time::timeout(self.idle, body.frame()).await {
                Err(_) => return Err(ReadError::TooSlow),
                Ok(None) => break,
                Ok(Some(Err(_))) => return Err(ReadError::Broken),
                Ok(Some(Ok(frame))) => frame,
            };
            let Ok(data) = frame.into_data() else { continue };
            let have = all.len() + first.as_ref().map_or(0, Bytes::len) + data.len();
            if have > self.max {
                return Err(ReadError::TooLarge);
            }
            // A body shorter than a step, as most are, reserves once and exactly.
            let wanted = have.next_multiple_of(STEP).min(announced.max(have));
            reserved.grow(wanted, self.idle).await.map_err(|_| ReadError::NoMemory)?;
            match first.take() {
                None if all.is_empty() => first = Some(data),
                None => all.extend_from_slice(&data),
                Some(head) => {
                    all.reserve(announced.max(have));
                    all.extend_from_slice(&head);
                    all.extend_from_slice(&data);
                }
            }
        }
        Ok((first.unwrap_or_else(|| all.freeze()), reserved))
    }
}

/// Longest time for which the rest of a body that is too large is read.
const DISCARD_TIME: Duration = Duration::from_secs(5);

/// Most bytes of it.
const DISCARD_BYTES: usize = 256 << 20;

async fn discard(mut body: Incoming) {
    let mut count = 0;
    while let Some(Ok(frame)) = body.frame().await {
        count += frame.data_ref().map_or(0, Bytes::len);
        if count > DISCARD_BYTES {
            return;
        }
    }
}
