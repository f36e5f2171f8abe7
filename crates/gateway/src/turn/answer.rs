//! The response to a turn: head now or early, body as it comes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Response, header};
use tandem_engines::response_headers;

use super::flight::{self, Call, Obtained, Refusal};
use super::stream::StreamBody;
use super::{End, Turn};
use crate::body::Body;
use crate::metrics::Family;
use crate::respond;

/// Waits for the turn's answer, or answers early when the client cannot be kept waiting in silence.
pub(super) async fn answer(turn: Turn, call: Arc<Call>) -> Response<Body> {
    let (silent, every) = (turn.story.early_200_after, turn.story.keep_alive);
    let app = Arc::clone(&turn.app);
    let mut flight = flight::fly(turn, Arc::clone(&call));
    let obtained = tokio::select! {
        biased;
        obtained = &mut flight => Some(obtained),
        () = silence(silent) => None,
    };
    match obtained {
        Some((turn, obtained)) => respond_with(turn, call, obtained),
        None => {
            app.metrics.inc(Family::Early200, &[("dialect", super::story::dialect_word(call.dialect))]);
            early_200(StreamBody::waiting(every, call, flight))
        }
    }
}

async fn silence(longest: Option<Duration>) {
    match longest {
        Some(longest) => tokio::time::sleep(longest).await,
        None => std::future::pending().await,
    }
}

fn early_200(body: StreamBody) -> Response<Body> {
    let mut response = Response::new(Body::Stream(Box::new(body)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Tells nginx not to collect the stream.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

fn respond_with(mut turn: Turn, call: Arc<Call>, obtained: Obtained) -> Response<Body> {
    let worker = turn.app.config.worker_header.then_some(turn.story.worker).flatten();
    let held_ms = u64::try_from(turn.story.held.as_millis()).ok();
    let explained = turn.story.kv.explain.then(|| explained(&turn));
    let mut response = match obtained {
        Obtained::Stream(parts, upstream, filter) => {
            turn.story.status = Some(parts.status.as_u16());
            let head = engine_head(&parts);
            let body = StreamBody::live(turn, call, upstream, filter);
            with_body(head, Body::Stream(Box::new(body)))
        }
        Obtained::Whole(parts, bytes, facts) => {
            turn.story.status = Some(parts.status.as_u16());
            turn.first_byte();
            if let Some(payload) = &mut turn.story.payload {
                payload.response = Some(bytes.clone());
            }
            let end = if !parts.status.is_success() {
                End::Refused
            } else if facts.error.is_some() {
                End::Failed { reason: "engine_error" }
            } else {
                End::Finished
            };
            turn.end(end, Some(&facts));
            with_body(engine_head(&parts), Body::full(bytes))
        }
        Obtained::Large(parts, bytes, upstream) => {
            turn.story.status = Some(parts.status.as_u16());
            let mut head = engine_head(&parts);
            if let Some(length) = parts.headers.get(header::CONTENT_LENGTH) {
                head.headers.insert(header::CONTENT_LENGTH, length.clone());
            }
            with_body(head, Body::Stream(Box::new(StreamBody::passing(turn, bytes, upstream))))
        }
        Obtained::LastAnswer(parts, bytes, retry_after) => last_answer(&parts, bytes, retry_after),
        Obtained::Refused(Refusal { kind, message, retry_after }) => {
            respond::error(&turn.app, Some(call.dialect), kind, &message, retry_after)
        }
    };
    if let Some(value) = worker.and_then(|worker| HeaderValue::try_from(worker.to_string()).ok()) {
        response.headers_mut().insert("x-tandem-worker", value);
    }
    response.headers_mut().extend(explained.unwrap_or_default());
    if let Some(held_ms) = held_ms.filter(|ms| *ms > 0) {
        response.headers_mut().insert("x-tandem-held-ms", HeaderValue::from(held_ms));
    }
    response
}

/// Why the turn went where it went, for a client that asked.
fn explained(turn: &Turn) -> HeaderMap {
    let (story, kv) = (&turn.story, &turn.story.kv);
    let decision = story.decision.as_ref();
    let promised = kv.promise.and_then(|promise| Some((promise.tokens?, promise.claim)));
    let values: [(&'static str, Option<String>); 7] = [
        ("x-tandem-request-id", Some(story.request_id.to_string())),
        ("x-tandem-worker", story.worker.map(|worker| worker.to_string())),
        ("x-tandem-route-reason", decision.map(|decision| decision.reason.clone())),
        ("x-tandem-prompt-source", Some(kv.found.source.word().to_owned())),
        ("x-tandem-prompt-tokens", kv.found.exact_tokens().map(|tokens| tokens.to_string())),
        ("x-tandem-predicted-cached-tokens", promised.map(|(tokens, _)| tokens.to_string())),
        ("x-tandem-prediction", promised.map(|(_, claim)| claim.word().to_owned())),
    ];
    let header = |(name, value): (&'static str, Option<String>)| {
        Some((HeaderName::from_static(name), HeaderValue::try_from(value?).ok()?))
    };
    values.into_iter().filter_map(header).collect()
}

/// What an engine said last, when no other had an answer either.
fn last_answer(parts: &Parts, bytes: Bytes, retry_after: u64) -> Response<Body> {
    let mut head = engine_head(parts);
    // Codex gives up on a 429 without one, and no client knows better when to come again.
    let whole_seconds = head
        .headers
        .get(header::RETRY_AFTER)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|text| text.trim().parse::<u64>().is_ok());
    if !whole_seconds {
        head.headers.insert(header::RETRY_AFTER, HeaderValue::from(retry_after));
    }
    with_body(head, Body::full(bytes))
}

struct Head {
    status: http::StatusCode,
    headers: http::HeaderMap,
}

fn engine_head(parts: &Parts) -> Head {
    Head { status: parts.status, headers: response_headers(&parts.headers) }
}

fn with_body(head: Head, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = head.status;
    *response.headers_mut() = head.headers;
    response
}
