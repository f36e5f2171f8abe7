//! From a turn in the scheduler's hands to an answer: holding, dispatching, trying again.
//!
//! - Inputs: the turn's effects; the engines. Output: an [`Obtained`].
//! - Invariants: I-FLT-1 at most one try is under way, and it is dropped (which closes its connection) before
//!   the scheduler hears that it failed; I-FLT-2 a refusal of the request by an engine (4xx) passes and is not
//!   tried again; I-FLT-3 dropping the future ends everything.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::response::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::BodyExt as _;
use tandem_dialect::{AnswerFacts, ErrorKind, UsageFilter, observe_body};
use tandem_engines::{AnswerBody, SendError, SendErrorKind, Target, full, request_headers};
use tandem_scheduler::{DispatchFailure, FailureKind, RejectReason};
use tandem_types::{Dialect, EngineKind, RouteWishes, TurnId, WorkerId};
use tokio::sync::mpsc;

use super::Turn;
use super::pd::{self, PrefillLeg};
use super::story::End;
use crate::admission;
use crate::app::{App, UniqueId};
use crate::body::Reserved;
use crate::config::TraceTokens;
use crate::metrics::Family;
use crate::owner::TurnEffect;
use crate::trace_log::PromptTokens;

/// A call as it goes to engines, once or several times.
pub(crate) struct Call {
    pub(crate) dialect: Dialect,
    /// Path and query as the client sent them.
    pub(crate) target: String,
    /// The client's headers.
    pub(crate) headers: HeaderMap,
    /// The body with our edits.
    pub(crate) body: Bytes,
    /// Its share of the body memory.
    pub(crate) _memory: Reserved,
    /// Usage was asked for on the client's behalf and is to be taken out.
    pub(crate) strip_usage: bool,
    pub(crate) choices: u32,
    pub(crate) model: Option<String>,
    /// The request id for engines.
    pub(crate) engine_id: UniqueId,
}

/// How a turn came out of its flight.
pub(crate) enum Obtained {
    /// An event stream begins.
    Stream(Parts, AnswerBody, UsageFilter),
    /// An answer that does not stream, whole.
    Whole(Parts, Bytes, Box<AnswerFacts>),
    /// An answer that only passes, unread: too large to wait for, or a stream in a content coding that was not
    /// asked for. What came so far, and the rest.
    Large(Parts, Bytes, AnswerBody),
    /// No answer: say so in the dialect's form.
    Refused(Refusal),
    /// No answer from us, but an engine said something: pass that on.
    LastAnswer(Parts, Bytes, u64),
}

/// A refusal of ours.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) kind: ErrorKind,
    pub(crate) message: String,
    /// Whole seconds.
    pub(crate) retry_after: Option<u64>,
}

/// A flight under way, with its turn inside.
pub(crate) type Flight = Pin<Box<dyn Future<Output = (Turn, Obtained)> + Send>>;

/// The flight of a turn that just arrived.
pub(crate) fn fly(turn: Turn, call: Arc<Call>) -> Flight {
    Box::pin(obtain(turn, call, String::new()))
}

/// The flight of a turn whose answer broke off before its first byte.
pub(crate) fn fly_again(turn: Turn, call: Arc<Call>, failure: DispatchFailure, at_prefill: bool) -> Flight {
    Box::pin(async move {
        let mut turn = turn;
        turn.app.metrics.inc(Family::DispatchFailures, &[("kind", failure_word(failure.kind))]);
        turn.failed(failure, at_prefill).await;
        obtain(turn, call, "the answer broke off before its first byte".to_owned()).await
    })
}

/// An engine's refusal that may be all that a client gets in the end.
pub(super) type LastAnswer = Option<Box<(Parts, Bytes)>>;

/// Why a try gave no answer.
pub(crate) struct TryFailed {
    pub(super) failure: DispatchFailure,
    pub(super) last: LastAnswer,
    pub(super) text: String,
    /// The fault is the prefill worker's.
    pub(super) at_prefill: bool,
}

impl TryFailed {
    pub(super) fn at_prefill(self) -> Self {
        Self { at_prefill: true, ..self }
    }
}

/// `trouble`: what went wrong before, for the client in case that nothing comes of it.
async fn obtain(mut turn: Turn, call: Arc<Call>, mut trouble: String) -> (Turn, Obtained) {
    let mut last: LastAnswer = None;
    loop {
        let deadline = turn.deadline;
        let effect = tokio::select! {
            biased;
            effect = turn.effects.recv() => effect,
            () = tokio::time::sleep_until(deadline.into()) => return timed_out(turn),
        };
        match effect {
            None => {
                let refusal = refusal(ErrorKind::ShuttingDown, "the server is shutting down", Some(5));
                turn.end(End::Rejected { reason: "shutdown", kind: ErrorKind::ShuttingDown }, None);
                return (turn, Obtained::Refused(refusal));
            }
            Some(TurnEffect::Hold { reason, position }) => turn.held(reason, position),
            Some(TurnEffect::Decided(decision)) => turn.decided(decision),
            Some(TurnEffect::Reject { reason, retry_after }) => {
                return rejected(turn, reason, retry_after, last, &trouble);
            }
            Some(TurnEffect::Superseded { by }) => return superseded(turn, by),
            Some(TurnEffect::Dispatch { worker, prefill, attempt, delay, priority }) => {
                turn.dispatched(worker, prefill, attempt);
                ask_for_tokens(&mut turn, &call, worker);
                let got = tokio::select! {
                    biased;
                    by = overtaken(&mut turn.effects) => return superseded(turn, by),
                    got = try_workers(&turn.app, &call, turn.id, (worker, prefill), (delay, priority)) => got,
                    () = tokio::time::sleep_until(deadline.into()) => return timed_out(turn),
                };
                match got {
                    Ok((obtained, leg)) => {
                        turn.prefill = leg;
                        turn.app.owner.started(turn.id);
                        return (turn, obtained);
                    }
                    Err(failed) => {
                        let kind = failure_word(failed.failure.kind);
                        turn.app.metrics.inc(Family::DispatchFailures, &[("kind", kind)]);
                        tracing::warn!(turn = turn.id.0, %worker, attempt, kind, error = %failed.text, "try failed");
                        let fault = prefill.filter(|_| failed.at_prefill);
                        turn.app.engines.suspect(fault.unwrap_or(worker).engine);
                        turn.story.failures.push(kind);
                        turn.failed(failed.failure, fault.is_some()).await;
                        last = failed.last.or(last);
                        trouble = failed.text;
                    }
                }
            }
        }
    }
}

/// Has the engine tell the tokens of the prompt, beside the turn itself, where the trace wants them.
fn ask_for_tokens(turn: &mut Turn, call: &Call, worker: WorkerId) {
    let wanted = turn.app.config.trace_tokens == TraceTokens::Render
        && matches!(turn.story.prompt, PromptTokens::Unknown);
    if !wanted {
        return;
    }
    let Some(slot) = turn.app.trace.render_slot() else { return };
    let (answer, asked) = tokio::sync::oneshot::channel();
    turn.story.prompt = PromptTokens::Asked(asked);
    let (app, dialect, body) = (Arc::clone(&turn.app), call.dialect, call.body.clone());
    // Ends by itself: the look-up has a time limit, and the slots bound how many there are.
    tokio::spawn(async move {
        match app.engines.render(worker, dialect, body).await {
            Ok(tokens) => drop(answer.send(tokens)),
            Err(error) => tracing::debug!(%worker, %error, "no tokens for the trace"),
        }
        drop(slot);
    });
}

/// Waits until the turn is superseded. Nothing else can come while a try is under way.
async fn overtaken(effects: &mut mpsc::UnboundedReceiver<TurnEffect>) -> tandem_types::TurnId {
    loop {
        match effects.recv().await {
            Some(TurnEffect::Superseded { by }) => return by,
            Some(_) => {}
            None => std::future::pending().await,
        }
    }
}

/// What the connection is told that a repeated call took its turn from.
pub(super) const SUPERSEDED: &str = "the same call came again on another connection, which gets the answer";

fn refusal(kind: ErrorKind, message: impl Into<String>, retry_after: Option<u64>) -> Refusal {
    Refusal { kind, message: message.into(), retry_after }
}

fn timed_out(mut turn: Turn) -> (Turn, Obtained) {
    turn.end(End::TimedOut, None);
    let message = "the call took longer than this server allows";
    (turn, Obtained::Refused(refusal(ErrorKind::UpstreamTimeout, message, None)))
}

fn superseded(mut turn: Turn, by: tandem_types::TurnId) -> (Turn, Obtained) {
    turn.app.metrics.inc(Family::Superseded, &[]);
    turn.end(End::Superseded { by }, None);
    // The client has most likely left this connection. One that has not must not try again: each of its two
    // connections would take the turn from the other.
    (turn, Obtained::Refused(refusal(ErrorKind::BadRequest, SUPERSEDED, None)))
}

fn rejected(
    mut turn: Turn,
    reason: RejectReason,
    retry_after: Duration,
    last: LastAnswer,
    trouble: &str,
) -> (Turn, Obtained) {
    let seconds = retry_after.as_secs().clamp(5, 60);
    let (word, kind) = reject_words(reason);
    turn.app.metrics.inc(Family::Rejections, &[("reason", word)]);
    turn.app.trace.rejected(&turn.story, word, seconds);
    let exhausted = matches!(reason, RejectReason::AttemptsExhausted(_));
    if let (true, Some(last)) = (exhausted, last) {
        let (parts, body) = *last;
        turn.story.status = Some(parts.status.as_u16());
        turn.end(End::Rejected { reason: word, kind }, None);
        return (turn, Obtained::LastAnswer(parts, body, seconds));
    }
    let message = match reason {
        RejectReason::QueueFull => "too many turns wait for a worker already".to_owned(),
        RejectReason::HoldExpired => match turn.story.hold {
            Some((reason, place)) => {
                format!("the turn could not start in time ({}, place {place} in the queue)", reason.as_str())
            }
            None => "no worker became free in time".to_owned(),
        },
        RejectReason::NoWorker => "no worker is ready".to_owned(),
        RejectReason::NoneSuits => none_suits(&turn.story.wishes),
        RejectReason::AttemptsExhausted(_) => format!("no engine could answer: {trouble}"),
    };
    turn.end(End::Rejected { reason: word, kind }, None);
    (turn, Obtained::Refused(refusal(kind, message, Some(seconds))))
}

/// Which labels and taints keep a call from every worker.
fn none_suits(wishes: &RouteWishes) -> String {
    let list = |words: &[String]| if words.is_empty() { "none".to_owned() } else { words.join(", ") };
    format!(
        "no worker suits the call: labels required: {}; taints tolerated: {}",
        list(&wishes.require),
        list(&wishes.tolerate)
    )
}

const fn reject_words(reason: RejectReason) -> (&'static str, ErrorKind) {
    match reason {
        RejectReason::QueueFull => ("queue_full", ErrorKind::QueueFull),
        RejectReason::HoldExpired => ("hold_expired", ErrorKind::HoldExpired),
        RejectReason::NoWorker => ("no_worker", ErrorKind::NoWorker),
        RejectReason::NoneSuits => ("none_suits", ErrorKind::BadRequest),
        RejectReason::AttemptsExhausted(FailureKind::Timeout) => {
            ("attempts_exhausted", ErrorKind::UpstreamTimeout)
        }
        RejectReason::AttemptsExhausted(FailureKind::Connect) => ("attempts_exhausted", ErrorKind::NoWorker),
        RejectReason::AttemptsExhausted(_) => ("attempts_exhausted", ErrorKind::UpstreamFailed),
    }
}

pub(super) const fn failure_word(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::Connect => "connect",
        FailureKind::Disconnected => "disconnected",
        FailureKind::Timeout => "timeout",
        FailureKind::ServerError => "server_error",
        FailureKind::Overloaded => "overloaded",
        FailureKind::Garbage => "garbage",
    }
}

pub(super) fn failed(kind: FailureKind, text: impl Into<String>) -> TryFailed {
    TryFailed {
        failure: DispatchFailure { kind, retryable: true },
        last: None,
        text: text.into(),
        at_prefill: false,
    }
}

/// Largest error answer of an engine that is kept.
pub(super) const ERROR_BODY_MAX: usize = 1 << 20;

/// Sends the call to its worker, or to its two, and waits for the beginning of an answer.
async fn try_workers(
    app: &App,
    call: &Call,
    turn: TurnId,
    (worker, prefill): (WorkerId, Option<WorkerId>),
    (delay, priority): (Duration, i32),
) -> Result<(Obtained, PrefillLeg), TryFailed> {
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
    if let Some(prefill) = prefill {
        return pd::try_pair(app, call, turn, (prefill, worker), priority).await;
    }
    let Some(target) = app.engines.target(worker) else {
        return Err(failed(FailureKind::Connect, "the engine left"));
    };
    let obtained = ask(app, call, &target, Sent::plain(call, priority)).await?;
    Ok((obtained, PrefillLeg::default()))
}

/// What an engine is sent in the name of a call.
#[derive(Clone)]
pub(crate) struct Sent {
    pub(crate) body: Bytes,
    /// Beside the client's own.
    pub(crate) headers: HeaderMap,
    /// Higher is sooner. An engine that does not schedule by it gets none.
    pub(crate) priority: i32,
}

impl Sent {
    /// The call as it is.
    pub(super) fn plain(call: &Call, priority: i32) -> Self {
        Self { body: call.body.clone(), headers: HeaderMap::new(), priority }
    }
}

/// Sends something in the name of the call, and waits for the head of the answer.
pub(super) async fn send(
    app: &App,
    call: &Call,
    target: &Target,
    sent: Sent,
) -> Result<(Parts, AnswerBody), TryFailed> {
    let request = engine_request(app, call, target, sent)?;
    let head_timeout = app.config.timeouts.response_head.0;
    let response = app.engines.client().send_within(request, head_timeout).await.map_err(|e| unsent(&e))?;
    Ok(response.into_parts())
}

/// [`send`], and the beginning of the answer.
pub(super) async fn ask(app: &App, call: &Call, target: &Target, sent: Sent) -> Result<Obtained, TryFailed> {
    let (parts, body) = send(app, call, target, sent).await?;
    let idle = app.config.timeouts.stream_idle.0;
    if let Some(kind) = engine_failure(parts.status) {
        let text = format!("status {}", parts.status.as_u16());
        if kind == FailureKind::Garbage {
            return Err(failed(kind, text));
        }
        let last = match collect(body, ERROR_BODY_MAX, app.config.timeouts.small_call.0).await {
            Ok(Collected::Whole(bytes)) => Some(Box::new((parts, bytes))),
            Ok(Collected::Large(..)) | Err(_) => None,
        };
        return Err(TryFailed { last, ..failed(kind, text) });
    }
    if parts.status.is_success() && is_event_stream(&parts.headers) {
        if is_encoded(&parts.headers) {
            return Ok(Obtained::Large(parts, Bytes::new(), body));
        }
        return Ok(Obtained::Stream(parts, body, usage_filter(call, target)));
    }
    match collect(body, app.config.limits.answer_buffer.bytes(), idle).await {
        Ok(Collected::Whole(bytes)) => {
            let facts = observe_body(call.dialect, &bytes);
            Ok(Obtained::Whole(parts, bytes, Box::new(facts)))
        }
        Ok(Collected::Large(bytes, rest)) => Ok(Obtained::Large(parts, bytes, rest)),
        Err(failed) => Err(failed),
    }
}

fn usage_filter(call: &Call, target: &Target) -> UsageFilter {
    match (call.strip_usage, target.kind) {
        (false, _) => UsageFilter::Keep,
        (true, EngineKind::Vllm | EngineKind::Sglang) => UsageFilter::DropChunk,
        (true, EngineKind::OpenAi) => UsageFilter::DropChunkAndNulls,
    }
}

pub(super) fn unsent(error: &SendError) -> TryFailed {
    let kind = match error.kind {
        SendErrorKind::Connect | SendErrorKind::Request | SendErrorKind::Body => FailureKind::Connect,
        SendErrorKind::Disconnected => FailureKind::Disconnected,
        SendErrorKind::Timeout => FailureKind::Timeout,
        SendErrorKind::Garbage => FailureKind::Garbage,
    };
    failed(kind, error.to_string())
}

/// Statuses that say something about the engine and not about the request.
pub(super) fn engine_failure(status: StatusCode) -> Option<FailureKind> {
    match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Some(FailureKind::Overloaded),
        StatusCode::NOT_IMPLEMENTED | StatusCode::HTTP_VERSION_NOT_SUPPORTED => None,
        _ if is_no_answer(status) => Some(FailureKind::Garbage),
        _ => status.is_server_error().then_some(FailureKind::ServerError),
    }
}

/// Statuses that answer no call of ours: interim ones of their own accord, numbers that mean nothing, and
/// redirects, which would lead a client past this gateway with its key in hand.
pub(crate) fn is_no_answer(status: StatusCode) -> bool {
    status.is_informational() || status.is_redirection() || status.as_u16() >= 600
}

/// A coding that was not asked for (I-HDR-3): its bytes are not events, so nothing may be read in them, taken
/// out, or put behind them.
fn is_encoded(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_ENCODING)
        .is_some_and(|coding| !coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity"))
}

pub(super) fn is_event_stream(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|text| text.trim_start().to_ascii_lowercase().starts_with("text/event-stream"))
}

/// The request that carries it.
pub(super) fn engine_request(
    app: &App,
    call: &Call,
    target: &Target,
    mut sent: Sent,
) -> Result<Request<tandem_engines::Body>, TryFailed> {
    let uri = target.base.uri(&call.target).map_err(|e| failed(FailureKind::Connect, e.to_string()))?;
    if target.priority {
        admission::set_priority(call.dialect, target.kind, &call.headers, &mut sent);
    }
    let mut request = Request::new(full(sent.body));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = uri;
    *request.headers_mut() = engine_headers(app, &call.headers, target);
    for (name, value) in &sent.headers {
        request.headers_mut().insert(name, value.clone());
    }
    if let Ok(id) = HeaderValue::from_str(call.engine_id.as_str()) {
        request.headers_mut().insert(X_REQUEST_ID, id);
    }
    Ok(request)
}

/// The header of request ids.
pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Path and query for engines: as the client sent them, but for a slash at the end of the path, which engines
/// answer with a redirect to themselves.
pub(crate) fn engine_path(uri: &http::Uri) -> String {
    let path = uri.path();
    let path = path.strip_suffix('/').unwrap_or(path);
    match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    }
}

/// A client's headers as `target` gets them.
pub(crate) fn engine_headers(app: &App, from: &HeaderMap, target: &Target) -> HeaderMap {
    let mut headers = request_headers(from, target.authorization());
    if target.authorization().is_none() && !app.config.forward_authorization {
        headers.remove(header::AUTHORIZATION);
        headers.remove("x-api-key");
    }
    if let Some(trusted) = &app.config.tenancy.trusted_header {
        headers.remove(trusted);
    }
    target.apply(&mut headers);
    headers
}

pub(super) enum Collected {
    Whole(Bytes),
    Large(Bytes, AnswerBody),
}

/// Reads an answer up to `max` bytes, with at most `idle` of silence.
pub(super) async fn collect(
    mut body: AnswerBody,
    max: usize,
    idle: Duration,
) -> Result<Collected, TryFailed> {
    let mut first: Option<Bytes> = None;
    let mut all = BytesMut::new();
    loop {
        let frame = match tokio::time::timeout(idle, body.frame()).await {
            Err(_) => return Err(failed(FailureKind::Timeout, "the answer stopped")),
            Ok(None) => break,
            Ok(Some(Err(error))) => {
                return Err(failed(FailureKind::Disconnected, format!("the answer broke off: {error}")));
            }
            Ok(Some(Ok(frame))) => frame,
        };
        let Ok(data) = frame.into_data() else { continue };
        match first.take() {
            None if all.is_empty() => first = Some(data),
            None => all.extend_from_slice(&data),
            Some(head) => {
                all.extend_from_slice(&head);
                all.extend_from_slice(&data);
            }
        }
        if all.len() + first.as_ref().map_or(0, Bytes::len) > max {
            return Ok(Collected::Large(first.unwrap_or_else(|| all.freeze()), body));
        }
    }
    Ok(Collected::Whole(first.unwrap_or_else(|| all.freeze())))
}
