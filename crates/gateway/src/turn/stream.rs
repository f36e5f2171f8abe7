//! A streamed answer on its way from the engine to the client.
//!
//! - Inputs: the engine's bytes, or a flight that may yet bring them. Outputs: the same bytes at once (save for
//!   the usage chunk that nobody asked for), keep-alive events while there is nothing, an error event when the
//!   engine breaks off.
//! - States: waiting (a head is out, an answer is not there yet), live, over.
//! - Invariants: I-STR-1 bytes are asked of the engine only when the client takes them; I-STR-2 no stream ends
//!   in silence: where the engine breaks off the dialect's error event follows; I-STR-3 an answer that breaks
//!   off before its first byte goes back to the scheduler; I-STR-4 silence and the whole time are bounded.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use tandem_dialect::{ErrorKind, StreamObserver, StreamPosition, UsageFilter, keep_alive, stream_error};
use tandem_engines::AnswerBody;
use tandem_scheduler::{DispatchFailure, FailureKind};
use tandem_types::TurnId;
use tokio::time::Sleep;

use super::flight::{self, Call, Flight, Obtained, Refusal};
use super::pd::Trouble;
use super::{End, Turn};
use crate::body::BodyError;
use crate::clock::unix_ms;
use crate::metrics::Family;
use crate::owner::TurnEffect;
use crate::patience::{Expired, Patience};

type Next = Poll<Option<Result<Bytes, BodyError>>>;

/// Bytes for the client beyond which no more are gathered into one piece.
const PIECE_BYTES: usize = 16 << 10;

/// The body of a turn's answer.
pub(crate) struct StreamBody {
    state: State,
    queue: VecDeque<Bytes>,
    scratch: Vec<Bytes>,
}

enum State {
    Waiting(Box<Waiting>),
    Live(Box<Live>),
    /// An answer that only passes.
    Passing(Box<Passing>),
    Over,
}

struct Waiting {
    call: Arc<Call>,
    flight: Flight,
    position: StreamPosition,
    every: Duration,
    sign_of_life: Pin<Box<Sleep>>,
}

struct Live {
    turn: Turn,
    /// For another try; gone with the first byte.
    call: Option<Arc<Call>>,
    dialect: tandem_types::Dialect,
    upstream: AnswerBody,
    observer: StreamObserver,
    patience: Patience,
    generated: Option<Generated>,
}

/// How long a streamed answer is so far, for admission: engines send an event for each token or for a few.
#[derive(Default)]
struct Generated {
    events: u64,
    told: u64,
}

/// Events between two pieces of news of an answer.
const PROGRESS_EVENTS: u64 = 256;

impl Generated {
    /// Counts the ends of events in a piece; the count when it is time to tell.
    fn push(&mut self, piece: &[u8]) -> Option<u64> {
        let ends = piece.windows(2).filter(|pair| *pair == b"\n\n").count();
        self.events += ends as u64;
        (self.events >= self.told + PROGRESS_EVENTS).then(|| {
            self.told = self.events;
            self.events
        })
    }
}

struct Passing {
    turn: Turn,
    upstream: AnswerBody,
    patience: Patience,
}

/// Why a live stream ends before its end.
enum Break {
    Cut(String),
    Expired(Expired),
    /// The same call came again on another connection.
    Superseded(TurnId),
    /// The worker that was to compute the prompt failed.
    Prefill(Trouble),
}

impl StreamBody {
    fn new(state: State) -> Self {
        Self { state, queue: VecDeque::new(), scratch: Vec::new() }
    }

    /// The head goes out before there is an answer.
    pub(super) fn waiting(every: Duration, call: Arc<Call>, flight: Flight) -> Self {
        let mut body = Self::new(State::Over);
        body.wait_for(every, call, flight);
        // The client learns at once that somebody is there.
        if let State::Waiting(waiting) = &mut body.state {
            body.queue.push_back(waiting.sign());
        }
        body
    }

    /// The engine's stream begins.
    pub(super) fn live(turn: Turn, call: Arc<Call>, upstream: AnswerBody, filter: UsageFilter) -> Self {
        let mut body = Self::new(State::Over);
        body.go_live(turn, call, upstream, filter);
        body
    }

    /// Passes a large answer on whose beginning is there already.
    pub(super) fn passing(mut turn: Turn, first: Bytes, upstream: AnswerBody) -> Self {
        turn.first_byte();
        let patience = Patience::new(turn.app.config.timeouts.stream_idle.0, turn.deadline);
        let mut body = Self::new(State::Passing(Box::new(Passing { turn, upstream, patience })));
        body.queue.push_back(first);
        body
    }

    fn wait_for(&mut self, every: Duration, call: Arc<Call>, flight: Flight) {
        let position = StreamPosition {
            model: call.model.clone(),
            created_unix_s: unix_ms() / 1000,
            ..StreamPosition::default()
        };
        let sign_of_life = Box::pin(tokio::time::sleep(every));
        self.state = State::Waiting(Box::new(Waiting { call, flight, position, every, sign_of_life }));
    }

    fn go_live(&mut self, turn: Turn, call: Arc<Call>, upstream: AnswerBody, filter: UsageFilter) {
        let observer = StreamObserver::new(call.dialect, filter).expecting(call.choices);
        let patience = Patience::new(turn.app.config.timeouts.stream_idle.0, turn.deadline);
        let dialect = call.dialect;
        let generated = turn.app.config.admits().then(Generated::default);
        self.state = State::Live(Box::new(Live {
            turn,
            call: Some(call),
            dialect,
            upstream,
            observer,
            patience,
            generated,
        }));
    }

    /// The next bytes for the client: all that is there, in one piece unless that is large. What came alone
    /// goes alone, at once.
    pub(crate) fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Next {
        loop {
            let ready: usize = self.queue.iter().map(Bytes::len).sum();
            let more = matches!(self.state, State::Live(_)) && ready < PIECE_BYTES;
            if ready > 0 && !more {
                return Poll::Ready(self.take_queued().map(Ok));
            }
            let step = match &mut self.state {
                State::Waiting(_) => self.poll_waiting(cx),
                State::Live(_) => self.poll_live(cx),
                State::Passing(_) => self.poll_passing(cx),
                State::Over => return Poll::Ready(None),
            };
            match step {
                Poll::Pending if ready > 0 => return Poll::Ready(self.take_queued().map(Ok)),
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    self.state = State::Over;
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
    }

    /// What is queued, in one piece.
    fn take_queued(&mut self) -> Option<Bytes> {
        if self.queue.len() < 2 {
            return self.queue.pop_front();
        }
        let mut piece = BytesMut::with_capacity(self.queue.iter().map(Bytes::len).sum());
        self.queue.drain(..).for_each(|part| piece.extend_from_slice(&part));
        Some(piece.freeze())
    }

    fn poll_waiting(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        let State::Waiting(waiting) = &mut self.state else { return Poll::Ready(Ok(())) };
        let Poll::Ready((turn, obtained)) = waiting.flight.as_mut().poll(cx) else {
            if waiting.sign_of_life.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            let next = Instant::now() + waiting.every;
            waiting.sign_of_life.as_mut().reset(next.into());
            self.queue.push_back(waiting.sign());
            return Poll::Ready(Ok(()));
        };
        let call = Arc::clone(&waiting.call);
        let position = waiting.position.clone();
        let refusal = match obtained {
            Obtained::Stream(_, upstream, filter) => {
                self.go_live(turn, call, upstream, filter);
                return Poll::Ready(Ok(()));
            }
            Obtained::Refused(refusal) => refusal,
            Obtained::LastAnswer(parts, bytes, seconds) => after_head(parts.status, &bytes, Some(seconds)),
            Obtained::Whole(parts, bytes, facts) => {
                let mut turn = turn;
                turn.story.status = Some(parts.status.as_u16());
                let refused = !parts.status.is_success();
                turn.end(
                    if refused { End::Refused } else { End::Failed { reason: "not_a_stream" } },
                    Some(&facts),
                );
                after_head(parts.status, &bytes, None)
            }
            Obtained::Large(parts, bytes, _) => {
                let mut turn = turn;
                turn.end(End::Failed { reason: "not_a_stream" }, None);
                after_head(parts.status, &bytes, None)
            }
        };
        let seconds = refusal.retry_after.and_then(|s| u32::try_from(s).ok());
        let event = stream_error(call.dialect, refusal.kind, &refusal.message, seconds, &position);
        self.queue.push_back(event.into());
        self.state = State::Over;
        Poll::Ready(Ok(()))
    }

    fn poll_live(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        let State::Live(live) = &mut self.state else { return Poll::Ready(Ok(())) };
        if let Some(by) = live.superseded(cx) {
            self.end_live(Some(Break::Superseded(by)));
            return Poll::Ready(Ok(()));
        }
        if let Some(trouble) = live.prefill_trouble(cx) {
            self.end_live(Some(Break::Prefill(trouble)));
            return Poll::Ready(Ok(()));
        }
        let broken = match Pin::new(&mut live.upstream).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                let Ok(data) = frame.into_data() else { return Poll::Ready(Ok(())) };
                live.patience.heard();
                if let Some(tokens) = live.generated.as_mut().and_then(|generated| generated.push(&data)) {
                    live.turn.app.owner.progress(live.turn.id, tokens);
                }
                live.observer.push(data, &mut self.scratch);
                if live.call.is_some() && !self.scratch.is_empty() {
                    live.call = None;
                    live.turn.first_byte();
                }
                self.queue.extend(self.scratch.drain(..));
                return Poll::Ready(Ok(()));
            }
            Poll::Ready(None) => None,
            Poll::Ready(Some(Err(error))) => Some(Break::Cut(error.to_string())),
            Poll::Pending => match live.patience.poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(expired) => Some(Break::Expired(expired)),
            },
        };
        self.end_live(broken);
        Poll::Ready(Ok(()))
    }

    /// The engine's stream is over, well (`None`) or not.
    fn end_live(&mut self, broken: Option<Break>) {
        let State::Live(live) = std::mem::replace(&mut self.state, State::Over) else { return };
        let Live { mut turn, call, dialect, upstream, mut observer, .. } = *live;
        // Closes the connection where the engine is still at it.
        drop(upstream);
        let again = match &broken {
            Some(Break::Expired(Expired::Deadline) | Break::Superseded(_)) => None,
            Some(Break::Expired(Expired::Idle)) => Some(FailureKind::Timeout),
            Some(Break::Prefill(trouble)) => Some(trouble.kind()),
            Some(Break::Cut(_)) | None => Some(FailureKind::Disconnected),
        };
        if let (Some(call), Some(kind), false) = (call, again, observer.facts().complete) {
            tracing::warn!(turn = turn.id.0, "the engine broke off before the first byte of its answer");
            turn.story.failures.push(flight::failure_word(kind));
            let every = turn.story.keep_alive;
            let failure = DispatchFailure { kind, retryable: true };
            let at_prefill = matches!(broken, Some(Break::Prefill(_)));
            let flight = flight::fly_again(turn, Arc::clone(&call), failure, at_prefill);
            self.wait_for(every, call, flight);
            return;
        }
        observer.finish(&mut self.scratch);
        self.queue.extend(self.scratch.drain(..));
        let facts = observer.facts();
        if facts.complete {
            let end =
                if facts.error.is_some() { End::Failed { reason: "engine_error" } } else { End::Finished };
            turn.end(end, Some(facts));
            return;
        }
        let (cause, kind, message) = match &broken {
            Some(Break::Superseded(by)) => {
                turn.end(End::Superseded { by: *by }, Some(facts));
                ("superseded", ErrorKind::BadRequest, flight::SUPERSEDED)
            }
            Some(Break::Expired(Expired::Deadline)) => {
                ("deadline", ErrorKind::UpstreamTimeout, "the call took longer than this server allows")
            }
            Some(Break::Expired(Expired::Idle)) => {
                ("idle", ErrorKind::UpstreamTimeout, "the engine fell silent in the middle of its answer")
            }
            Some(Break::Prefill(_)) => {
                ("prefill", ErrorKind::UpstreamFailed, "the engine that computes prompts failed")
            }
            Some(Break::Cut(_)) => {
                ("cut", ErrorKind::UpstreamFailed, "the engine broke off in the middle of its answer")
            }
            None => ("unfinished", ErrorKind::UpstreamFailed, "the engine ended its answer too early"),
        };
        if let Some(Break::Cut(error)) = &broken {
            tracing::warn!(
                turn = turn.id.0,
                dialect = super::story::dialect_word(dialect),
                error,
                "stream cut"
            );
        }
        if let Some(Break::Superseded(_)) = &broken {
            turn.app.metrics.inc(Family::Superseded, &[]);
        } else {
            turn.app.metrics.inc(Family::StreamsCut, &[("cause", cause)]);
        }
        if let (Some(worker), Some(_)) = (turn.story.worker, again) {
            turn.app.engines.suspect(worker.engine);
        }
        let event = observer.error_event(kind, message, None, unix_ms() / 1000);
        self.queue.push_back(event.into());
        turn.end(End::Failed { reason: cause }, Some(facts));
    }

    fn poll_passing(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        let State::Passing(passing) = &mut self.state else { return Poll::Ready(Ok(())) };
        let trouble: BodyError = match Pin::new(&mut passing.upstream).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                passing.patience.heard();
                self.queue.extend(frame.into_data().ok());
                return Poll::Ready(Ok(()));
            }
            Poll::Ready(None) => {
                passing.turn.end(End::Finished, None);
                self.state = State::Over;
                return Poll::Ready(Ok(()));
            }
            Poll::Ready(Some(Err(error))) => error.into(),
            Poll::Pending => match passing.patience.poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(_) => "the engine fell silent".into(),
            },
        };
        passing.turn.app.metrics.inc(Family::StreamsCut, &[("cause", "cut")]);
        passing.turn.end(End::Failed { reason: "cut" }, None);
        Poll::Ready(Err(trouble))
    }
}

impl Live {
    /// Whether the same call came again. Possible only before the first byte.
    fn superseded(&mut self, cx: &mut Context<'_>) -> Option<TurnId> {
        self.call.as_ref()?;
        while let Poll::Ready(Some(effect)) = self.turn.effects.poll_recv(cx) {
            if let TurnEffect::Superseded { by } = effect {
                return Some(by);
            }
        }
        None
    }
}

impl Live {
    /// Whether the worker that was to compute the prompt failed. After the first byte that is the other one's affair.
    fn prefill_trouble(&mut self, cx: &mut Context<'_>) -> Option<Trouble> {
        self.call.as_ref()?;
        self.turn.prefill.poll_trouble(cx)
    }
}

impl Waiting {
    /// The next keep-alive event.
    fn sign(&mut self) -> Bytes {
        let event = keep_alive(self.call.dialect, &self.position);
        self.position.next_sequence += 1;
        event.into()
    }
}

impl Drop for StreamBody {
    /// The client is gone, or has all that it wants: many close right after the last event.
    fn drop(&mut self) {
        if let State::Live(live) = &mut self.state {
            let facts = live.observer.facts();
            let end = match (facts.complete, &facts.error) {
                (true, None) => End::Finished,
                (true, Some(_)) => End::Failed { reason: "engine_error" },
                (false, _) => End::ClientGone,
            };
            live.turn.end(end, Some(facts));
        }
    }
}

/// Longest text of an engine's refusal that is passed on inside a stream.
const MESSAGE_BYTES_MAX: usize = 4096;

/// An engine's refusal when a 200 went out already: its status and its words, as an event.
fn after_head(status: http::StatusCode, body: &[u8], retry_after: Option<u64>) -> Refusal {
    let kind = match status.as_u16() {
        400 | 405 | 409 | 422 => ErrorKind::BadRequest,
        401 => ErrorKind::Unauthorized,
        403 => ErrorKind::Forbidden,
        404 => ErrorKind::NotFound,
        413 => ErrorKind::TooLarge,
        415 => ErrorKind::UnsupportedMedia,
        429 => ErrorKind::RateLimited,
        503 => ErrorKind::NoWorker,
        _ => ErrorKind::UpstreamFailed,
    };
    let message =
        engine_words(body).unwrap_or_else(|| format!("the engine answered with status {}", status.as_u16()));
    Refusal { kind, message, retry_after }
}

/// The message of an engine's error body, in any of the forms that engines write.
fn engine_words(body: &[u8]) -> Option<String> {
    let value: serde_json::Value = serde_json::from_slice(body.get(..body.len().min(1 << 20))?).ok()?;
    let text = ["/error/message", "/message", "/detail", "/error"]
        .iter()
        .find_map(|at| value.pointer(at).and_then(serde_json::Value::as_str))?;
    (text.len() <= MESSAGE_BYTES_MAX).then(|| text.to_owned())
}
