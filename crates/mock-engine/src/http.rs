//! One request, from its head to its answer.
//!
//! - Purpose: what is common to all routes: reading and recording the body, keys, faults, errors.
//! - Inputs: an HTTP request; output: a response, or the order to break the connection.
//! - Invariants: I-HTP-1 every request is recorded once, whatever becomes of it, unless its body never ends;
//!   I-HTP-2 bodies above [`BODY_MAX`] are refused without being kept.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, SERVER, VARY};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde_json::{Map, Value};

use crate::body::{Body, Emitter};
use crate::config::{MockConfig, MockKind};
use crate::driver::{Driver, lock};
use crate::engine::KvEndpoints;
use crate::error::{Api, ApiError};
use crate::fault::{Fault, FaultPlan, FaultSubject};
use crate::json::{Json, object};
use crate::out::Face;
use crate::pd::Desk;
use crate::record::Recorder;
use crate::script::Chooser;
use crate::{routes, words};

/// Largest request body, in bytes.
pub(crate) const BODY_MAX: usize = 64 << 20;

/// What all requests share.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) config: MockConfig,
    pub(crate) driver: Driver,
    /// Longest prompt plus answer: as configured, but no longer than the pool.
    pub(crate) max_model_len: u32,
    pub(crate) kv: Vec<KvEndpoints>,
    pub(crate) recorder: Recorder,
    pub(crate) faults: Mutex<FaultPlan>,
    pub(crate) script: Mutex<Arc<Chooser>>,
    /// Where it listens.
    pub(crate) addr: SocketAddr,
    /// What other engines may fetch here.
    pub(crate) desk: Desk,
    pub(crate) started: SystemTime,
    /// Requests to generate that are under way, for vLLM's `/load`.
    pub(crate) in_flight: AtomicI64,
    ids: AtomicU64,
    id_seed: u64,
}

impl State {
    pub(crate) fn new(
        config: MockConfig,
        addr: SocketAddr,
        driver: Driver,
        max_model_len: u32,
        kv: Vec<KvEndpoints>,
        recorder: Recorder,
        id_seed: u64,
    ) -> Self {
        let faults = Mutex::new(FaultPlan::new(config.faults.clone()));
        let script = Mutex::new(Arc::new(Chooser::new(config.script.clone())));
        let started = SystemTime::now();
        let (in_flight, ids) = (AtomicI64::new(0), AtomicU64::new(0));
        Self {
            config,
            driver,
            max_model_len,
            kv,
            recorder,
            faults,
            script,
            addr,
            desk: Desk::default(),
            started,
            in_flight,
            ids,
            id_seed,
        }
    }

    pub(crate) fn chooser(&self) -> Arc<Chooser> {
        Arc::clone(&lock(&self.script))
    }

    fn fresh(&self) -> u64 {
        words::next(self.id_seed ^ self.ids.fetch_add(1, Ordering::Relaxed)).1
    }

    /// A face with a seed of its own for the ids of one answer.
    pub(crate) fn face(&self) -> Face {
        Face { kind: self.config.kind, flags: self.config.flags.clone(), ids: self.fresh() }
    }

    /// An id that this engine never gave before.
    pub(crate) fn fresh_id(&self, digits: usize) -> String {
        self.face().hex(0, digits)
    }
}

/// A request whose body has been read.
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// The connection is to be broken without an answer.
#[derive(Debug, thiserror::Error)]
#[error("connection broken on purpose")]
pub(crate) struct Break;

/// Answers one request. `garble` makes the connection write garbage instead of what it is told.
pub(crate) async fn serve(
    state: Arc<State>,
    request: Request<Incoming>,
    garble: Arc<AtomicBool>,
) -> Result<Response<Body>, Break> {
    let id = request.headers().get("x-request-id").cloned();
    let mut response = answer(&state, request, &garble).await?;
    finish(&state, id, &mut response);
    Ok(response)
}

async fn answer(
    state: &Arc<State>,
    request: Request<Incoming>,
    garble: &AtomicBool,
) -> Result<Response<Body>, Break> {
    let (head, body) = request.into_parts();
    let body = match Limited::new(body, BODY_MAX).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => {
            return Ok(plain(413, "Request Entity Too Large"));
        }
        // The client went away in the middle of its request.
        Err(_) => return Err(Break),
    };
    let parsed: Option<Map<String, Value>> = serde_json::from_slice(&body).ok();
    state.recorder.note(&head.method, &head.uri, &head.headers, &body, parsed.as_ref());
    let call = Call {
        method: head.method,
        path: head.uri.path().to_owned(),
        query: head.uri.query().unwrap_or_default().to_owned(),
        headers: head.headers,
        body,
    };
    if !authorised(state, &call) {
        return Ok(json(401, &object! { "error": "Unauthorized" }));
    }
    let api = routes::generates(state.config.kind, &call);
    let fault = fault(state, &call, api.is_some(), parsed.as_ref());
    match &fault {
        Some(Fault::Close) => return Err(Break),
        Some(Fault::Hang) => std::future::pending().await,
        Some(Fault::Garbage) => {
            garble.store(true, Ordering::Relaxed);
            return Ok(plain(200, "garbage"));
        }
        Some(Fault::Status { status, retry_after }) => {
            return Ok(failed(state, api.unwrap_or(Api::Utility), *status, retry_after.as_deref()));
        }
        Some(Fault::Stall) => {
            let (emitter, body) = Emitter::new(fault, String::new());
            tokio::spawn(emitter.end());
            return Ok(respond(200, sse(), body));
        }
        _ => {}
    }
    Ok(match api {
        Some(api) => routes::generate(state, api, &call, parsed, fault).await,
        None => routes::utility(state, &call).await,
    })
}

/// Keys guard what real engines guard: vLLM `/v1` and `/inference`, SGLang all but health and metrics.
fn authorised(state: &State, call: &Call) -> bool {
    let Some(key) = &state.config.api_key else { return true };
    let guarded = match state.config.kind {
        MockKind::Vllm => call.path.starts_with("/v1") || call.path.starts_with("/inference"),
        MockKind::Sglang => !call.path.starts_with("/health") && !call.path.starts_with("/metrics"),
    };
    if !guarded || call.method == Method::OPTIONS {
        return true;
    }
    let bearer = call.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|value| value.strip_prefix("Bearer "));
    let plain = call.headers.get("x-api-key").and_then(|value| value.to_str().ok());
    bearer == Some(key) || plain == Some(key)
}

fn fault(state: &State, call: &Call, generates: bool, parsed: Option<&Map<String, Value>>) -> Option<Fault> {
    if state.config.fault_header
        && let Some(header) = call.headers.get("x-mock-fault").and_then(|value| value.to_str().ok())
        && let Some(fault) = Fault::parse(header)
    {
        return Some(fault);
    }
    let body = parsed.and_then(|map| map.get("session_id")).and_then(Value::as_str);
    // SGLang takes a session's id in the body only.
    let header = call.headers.get("x-session-id").filter(|_| state.config.kind == MockKind::Vllm);
    let session = body.or_else(|| header.and_then(|value| value.to_str().ok()));
    lock(&state.faults).next(FaultSubject { path: &call.path, generates, session })
}

/// The answer of [`Fault::Status`].
fn failed(state: &State, api: Api, status: u16, retry_after: Option<&str>) -> Response<Body> {
    let kind = match status {
        429 => "RateLimitError",
        503 => "ServiceUnavailableError",
        400..500 => "BadRequestError",
        _ => "InternalServerError",
    };
    let error = ApiError::new(status, kind, "fault on request");
    let mut response = refuse(state, api, &error);
    if let Some(value) = retry_after.and_then(|value| HeaderValue::from_str(value).ok()) {
        response.headers_mut().insert(RETRY_AFTER, value);
    }
    response
}

/// Headers that the engines' web servers add.
fn finish(state: &State, id: Option<HeaderValue>, response: &mut Response<Body>) {
    let headers = response.headers_mut();
    headers.insert(SERVER, HeaderValue::from_static("uvicorn"));
    if state.config.kind == MockKind::Vllm {
        headers.insert(VARY, HeaderValue::from_static("Origin"));
    }
    if state.config.flags.request_id_headers {
        let fresh = || HeaderValue::from_str(&state.fresh_id(32)).ok();
        if let Some(id) = id.or_else(fresh) {
            headers.insert("x-request-id", id);
        }
    }
}

pub(crate) fn respond(status: u16, content_type: HeaderValue, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

pub(crate) const fn sse() -> HeaderValue {
    HeaderValue::from_static("text/event-stream; charset=utf-8")
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");

pub(crate) fn json(status: u16, body: &Json) -> Response<Body> {
    respond(status, JSON, Body::whole(body.0.clone()))
}

pub(crate) fn plain(status: u16, text: &str) -> Response<Body> {
    respond(status, HeaderValue::from_static("text/plain; charset=utf-8"), Body::whole(text.to_owned()))
}

pub(crate) fn refuse(state: &State, api: Api, error: &ApiError) -> Response<Body> {
    json(error.status, &error.body(state.config.kind, api))
}

/// A whole body that a fault may cut in the middle: it counts as two events, its halves.
pub(crate) fn spoiled(body: Json, fault: Fault) -> Response<Body> {
    let bytes = Bytes::from(body.0);
    let length = bytes.len();
    let (mut emitter, stream) = Emitter::new(Some(fault), String::new());
    tokio::spawn(async move {
        let half = bytes.len() / 2;
        let (head, tail) = (bytes.slice(..half), bytes.slice(half..));
        if emitter.send(head).await.is_ok() && emitter.send(tail).await.is_ok() {
            emitter.end().await;
        }
    });
    let mut response = respond(200, JSON, stream);
    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    response
}
