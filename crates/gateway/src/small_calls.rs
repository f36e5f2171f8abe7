//! Calls that are no turns: token counts, tokenizing, embeddings, reranking, scoring. They are passed to an
//! engine that is ready, taken in rotation, and on to the next one when an engine cannot be reached.
//!
//! Decided: only failures to reach an engine (and its 5xx) go on to the next; an engine that lacks the route
//! (404, 405, 501) is passed over once more, because engines of a fleet may differ, and its answer is kept for
//! the case that all lack it. A token count that nobody can make is estimated.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use tandem_dialect::{ErrorKind, count_tokens_body, estimate_tokens};
use tandem_engines::{AnswerBody, EngineState, full, response_headers};
use tandem_types::{Dialect, WorkerId};

use crate::app::App;
use crate::body::{Body, Proxied, Reserved};
use crate::metrics::Family;
use crate::patience::Patience;
use crate::respond::{self, RequestIdentity};
use crate::turn::flight::{X_REQUEST_ID, engine_headers, engine_path, is_no_answer};
use crate::turn::prepare;

/// Most engines that are asked for one call.
const TRIES_MAX: usize = 3;

struct SmallCall {
    target: String,
    headers: HeaderMap,
    body: Bytes,
    _memory: Reserved,
}

/// What the engines said.
enum Said {
    /// An answer to pass on.
    Answer(Parts, AnswerBody),
    /// Nobody has the route; an engine's words for it.
    NoRoute(Parts, AnswerBody),
    /// Nobody is ready or can be reached.
    Nobody,
}

/// `POST /v1/messages/count_tokens`.
pub(crate) async fn count_tokens(
    app: &Arc<App>,
    ids: &RequestIdentity,
    request: Request<Incoming>,
) -> Response<Body> {
    let call = match receive(app, Some(Dialect::Messages), request).await {
        Ok(call) => call,
        Err(refused) => return *refused,
    };
    match ask(app, ids, &call).await {
        Said::Answer(parts, body) => {
            app.metrics.inc(Family::CountTokens, &[("source", "engine")]);
            passed(app, &parts, body)
        }
        Said::NoRoute(..) | Said::Nobody => {
            app.metrics.inc(Family::CountTokens, &[("source", "estimate")]);
            let mut response = Response::new(Body::full(count_tokens_body(estimate_tokens(&call.body))));
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            headers.insert("x-tandem-estimate", HeaderValue::from_static("true"));
            response
        }
    }
}

/// Any other call that is passed on as it is.
pub(crate) async fn pass(
    app: &Arc<App>,
    ids: &RequestIdentity,
    request: Request<Incoming>,
) -> Response<Body> {
    let call = match receive(app, None, request).await {
        Ok(call) => call,
        Err(refused) => return *refused,
    };
    match ask(app, ids, &call).await {
        Said::Answer(parts, body) | Said::NoRoute(parts, body) => passed(app, &parts, body),
        Said::Nobody => {
            let message = "no engine is ready for this call";
            respond::error(app, None, ErrorKind::NoWorker, message, Some(5))
        }
    }
}

async fn receive(
    app: &Arc<App>,
    dialect: Option<Dialect>,
    request: Request<Incoming>,
) -> Result<SmallCall, Box<Response<Body>>> {
    let (head, body) = request.into_parts();
    let target = engine_path(&head.uri);
    match prepare::read(app, &head.headers, body).await {
        Ok((body, memory)) => Ok(SmallCall { target, headers: head.headers, body, _memory: memory }),
        Err((kind, message)) => Err(Box::new(respond::error(app, dialect, kind, &message, None))),
    }
}

async fn ask(app: &Arc<App>, ids: &RequestIdentity, call: &SmallCall) -> Said {
    let ready: Vec<WorkerId> = app
        .engines
        .list()
        .iter()
        .filter(|engine| engine.state == EngineState::Ready)
        .map(|engine| WorkerId { engine: engine.id, rank: 0 })
        .collect();
    let first = app.next_small_call.fetch_add(1, Ordering::Relaxed);
    let mut no_route = None;
    for offset in 0..ready.len().min(TRIES_MAX) {
        let Some(worker) = ready.get((first.wrapping_add(offset)) % ready.len()) else { break };
        match ask_one(app, ids, call, *worker).await {
            Some(Said::NoRoute(parts, body)) => no_route = Some((parts, body)),
            Some(said) => return said,
            None => app.engines.suspect(worker.engine),
        }
    }
    no_route.map_or(Said::Nobody, |(parts, body)| Said::NoRoute(parts, body))
}

/// `None`: not reached, or failed.
async fn ask_one(app: &Arc<App>, ids: &RequestIdentity, call: &SmallCall, worker: WorkerId) -> Option<Said> {
    let mut target = app.engines.target(worker)?;
    // No rank is better than another for these.
    target.rank = None;
    let mut request = Request::new(full(call.body.clone()));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = target.base.uri(&call.target).ok()?;
    *request.headers_mut() = engine_headers(app, &call.headers, &target);
    if let Ok(id) = HeaderValue::from_str(ids.own.as_str()) {
        request.headers_mut().insert(X_REQUEST_ID, id);
    }
    let sent = app.engines.client().send_within(request, app.config.timeouts.small_call.0).await;
    let (parts, body) = sent.ok()?.into_parts();
    match parts.status {
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED => {
            Some(Said::NoRoute(parts, body))
        }
        status if status.is_server_error() || is_no_answer(status) => None,
        _ => Some(Said::Answer(parts, body)),
    }
}

fn passed(app: &App, parts: &Parts, body: AnswerBody) -> Response<Body> {
    let idle = app.config.timeouts.small_call.0;
    let patience = Patience::new(idle, Instant::now() + app.config.request_timeout);
    let mut response = Response::new(Body::Proxy(Box::new(Proxied { body, patience })));
    *response.status_mut() = parts.status;
    *response.headers_mut() = response_headers(&parts.headers);
    response
}
