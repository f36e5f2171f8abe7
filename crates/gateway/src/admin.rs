//! The admin API and the Prometheus endpoint, each on its own listener.
//!
//! Decided: no keys here; the listener is on loopback unless told otherwise. Answers are JSON, errors
//! `{"error": {"message": ...}}`. Nothing here shows content, keys or other secrets.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Bytes as AxumBytes;
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{StatusCode, header};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tandem_engines::{AddError, Added, EngineSpec, EngineState, EngineStatus};
use tandem_scheduler::Input;
use tandem_scheduler::view::WorkerView;
use tandem_types::{Dialect, EngineId, ProgramKey, SessionId, TenantId, TurnId, WorkerId};
use tokio::net::TcpListener;

use crate::admission;
use crate::app::App;
use crate::kv::{self, Kv};
use crate::metrics::Family;
use crate::owner::Closed;
use crate::tool_events;

/// Largest body of a call to the admin API.
const BODY_MAX: usize = tandem_trace::tool::BODY_BYTES_MAX + 1024;

/// Most items of a list, unless fewer are asked for.
const LIST_MAX: usize = 1000;

pub(crate) type Shared = State<Arc<App>>;

/// An error answer.
pub(crate) struct Refusal(StatusCode, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, Json(json!({"error": {"message": self.1}}))).into_response()
    }
}

impl From<Closed> for Refusal {
    fn from(_: Closed) -> Self {
        Self(StatusCode::SERVICE_UNAVAILABLE, "the gateway is shutting down".to_owned())
    }
}

pub(crate) fn not_found(what: impl Into<String>) -> Refusal {
    Refusal(StatusCode::NOT_FOUND, what.into())
}

pub(crate) fn bad_request(what: impl Into<String>) -> Refusal {
    Refusal(StatusCode::BAD_REQUEST, what.into())
}

/// Puts what the framework itself says of unreadable paths, queries and bodies into the form of all errors.
async fn in_form(response: Response) -> Response {
    let plain = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"text/plain"));
    if !response.status().is_client_error() || !plain {
        return response;
    }
    let status = response.status();
    let said = axum::body::to_bytes(response.into_body(), ERROR_BYTES_MAX).await.unwrap_or_default();
    Refusal(status, String::from_utf8_lossy(&said).into_owned()).into_response()
}

/// Largest error text of the framework.
const ERROR_BYTES_MAX: usize = 64 << 10;

/// Serves the admin API until dropped.
pub(crate) async fn serve_admin(app: Arc<App>, listener: TcpListener) {
    let prompt_max = app.config.limits.max_payload_size.bytes();
    let router = Router::new()
        .route("/health", get(|| async { Json(json!({"status": "ok"})) }))
        .route("/workers", get(workers).post(add_worker))
        .route("/workers/{id}", delete(remove_worker))
        .route("/workers/{id}/drain", post(drain_worker))
        .route("/workers/{id}/undrain", post(undrain_worker))
        .route("/sessions", get(sessions))
        .route("/sessions/{session}", delete(end_session))
        .route("/sessions/{session}/pause", post(admission::pause))
        .route("/sessions/{session}/resume", post(admission::resume))
        .route("/admission", get(admission::picture))
        .route(
            "/weight-sync",
            get(admission::picture).post(admission::sync_begin).delete(admission::sync_end),
        )
        .route("/turns", get(turns))
        .route("/turns/{id}", get(explain_turn))
        .route("/decisions", get(decisions))
        .route("/counters", get(counters))
        .route("/config", get(config))
        .route("/kv", get(kv_picture))
        .route("/kv/match", post(kv_match).layer(DefaultBodyLimit::max(prompt_max)))
        .route("/kv/store/contains", post(kv_contains))
        .route("/admin/explain/{id}", get(explain_turn))
        .route("/v1/tool_events", post(tool_rows))
        .fallback(|| async { not_found("there is no such path in the admin api") })
        .method_not_allowed_fallback(|| async {
            Refusal(StatusCode::METHOD_NOT_ALLOWED, "this path does not take that method".to_owned())
        })
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .layer(map_response(in_form))
        .with_state(app);
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "the admin api stopped");
    }
}

/// Serves `/metrics` until dropped.
pub(crate) async fn serve_metrics(app: Arc<App>, listener: TcpListener) {
    async fn render(State(app): Shared) -> Response {
        count_workers(&app);
        admission::count(&app).await;
        let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
        (kind, app.metrics.render()).into_response()
    }
    let router = Router::new().route("/metrics", get(render)).with_state(app);
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "the metrics endpoint stopped");
    }
}

/// Brings the gauges of workers up to date.
pub(crate) fn count_workers(app: &App) {
    let mut counts = BTreeMap::from([("starting", 0), ("ready", 0), ("draining", 0), ("down", 0)]);
    for engine in app.engines.list() {
        let state = match engine.state {
            EngineState::Starting => "starting",
            EngineState::Ready => "ready",
            EngineState::Draining => "draining",
            EngineState::Down => "down",
        };
        *counts.entry(state).or_insert(0) += engine.workers.len().max(1);
    }
    for (state, count) in counts {
        app.metrics.set(Family::Workers, &[("state", state)], count);
    }
}

#[derive(Serialize)]
struct WorkerList {
    engines: Vec<EngineStatus>,
    workers: Vec<WorkerView>,
}

async fn workers(State(app): Shared) -> Result<Json<WorkerList>, Refusal> {
    let workers = app.owner.look(|scheduler| scheduler.view().workers().collect()).await?;
    Ok(Json(WorkerList { engines: app.engines.list(), workers }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewWorker {
    /// As on the command line: `http://gpu-1:8000@kind=vllm,max_running=64`.
    url: String,
}

async fn add_worker(
    State(app): Shared,
    Json(new): Json<NewWorker>,
) -> Result<(StatusCode, Json<serde_json::Value>), Refusal> {
    let spec: EngineSpec = new.url.parse().map_err(|error| bad_request(format!("url: {error}")))?;
    match app.engines.add(spec) {
        Ok(Added::Engine(id)) => {
            app.owner.tell(Input::WorkerExpected { worker: WorkerId { engine: id, rank: 0 } });
            Ok((StatusCode::CREATED, Json(json!({"id": id}))))
        }
        Ok(Added::Discovery(name)) => Ok((StatusCode::CREATED, Json(json!({"discovery": name})))),
        Err(error @ AddError::Duplicate(_)) => Err(Refusal(StatusCode::CONFLICT, error.to_string())),
        Err(error) => Err(Refusal(StatusCode::SERVICE_UNAVAILABLE, error.to_string())),
    }
}

fn done(app_did: bool, id: u32) -> Result<Json<serde_json::Value>, Refusal> {
    if app_did { Ok(Json(json!({"id": id}))) } else { Err(not_found(format!("there is no engine {id}"))) }
}

async fn remove_worker(State(app): Shared, Path(id): Path<u32>) -> Result<Json<serde_json::Value>, Refusal> {
    done(app.engines.remove(EngineId(id)), id)
}

async fn drain_worker(State(app): Shared, Path(id): Path<u32>) -> Result<Json<serde_json::Value>, Refusal> {
    done(app.engines.drain(EngineId(id)), id)
}

async fn undrain_worker(State(app): Shared, Path(id): Path<u32>) -> Result<Json<serde_json::Value>, Refusal> {
    done(app.engines.undrain(EngineId(id)), id)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Listing {
    limit: Option<usize>,
    tenant: Option<String>,
    /// Where a page begins: the `next` of the page before.
    #[serde(default)]
    offset: usize,
}

impl Listing {
    fn limit(&self) -> usize {
        self.limit.unwrap_or(LIST_MAX).min(LIST_MAX)
    }
}

async fn sessions(
    State(app): Shared,
    Query(listing): Query<Listing>,
) -> Result<Json<serde_json::Value>, Refusal> {
    let found = app
        .owner
        .look(move |scheduler| {
            let view = scheduler.view();
            let wanted = |tenant: &TenantId| listing.tenant.as_deref().is_none_or(|t| t == tenant.as_str());
            let total = view.program_count();
            let mut programs = Vec::new();
            let mut next = listing.offset.min(total);
            for program in view.programs().skip(listing.offset) {
                if programs.len() == listing.limit() {
                    break;
                }
                next += 1;
                programs.extend(Some(program).filter(|program| wanted(&program.program.tenant)));
            }
            (total, programs, Some(next).filter(|next| *next < total))
        })
        .await?;
    Ok(Json(json!({"total": found.0, "programs": found.1, "next": found.2})))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ending {
    tenant: Option<String>,
}

/// Ends all programs of a session.
async fn end_session(
    State(app): Shared,
    Path(session): Path<String>,
    Query(ending): Query<Ending>,
) -> Result<Json<serde_json::Value>, Refusal> {
    let programs = programs_of(&app, &session, ending.tenant.as_deref()).await?;
    if programs.is_empty() {
        return Err(not_found("no program of this session is known"));
    }
    let ended = programs.len();
    for program in programs {
        if let Some(kv) = &app.kv {
            kv.session_end(&program);
        }
        app.owner.session_end(program).await;
    }
    Ok(Json(json!({"ended": ended})))
}

/// The programs of a session that are known.
pub(crate) async fn programs_of(
    app: &App,
    session: &str,
    tenant: Option<&str>,
) -> Result<Vec<ProgramKey>, Refusal> {
    let session = SessionId::new(session).map_err(|error| bad_request(format!("session: {error}")))?;
    let tenant = match tenant {
        Some(name) => TenantId::new(name).map_err(|error| bad_request(format!("tenant: {error}")))?,
        None => TenantId::default(),
    };
    let found = app.owner.look(move |scheduler| {
        let ours = |key: &ProgramKey| key.session == session && key.tenant == tenant;
        scheduler.view().programs().map(|view| view.program).filter(ours).collect()
    });
    Ok(found.await?)
}

async fn turns(
    State(app): Shared,
    Query(listing): Query<Listing>,
) -> Result<Json<serde_json::Value>, Refusal> {
    let limit = listing.limit();
    let found = app
        .owner
        .look(move |scheduler| {
            let view = scheduler.view();
            let turns: Vec<_> = view.turns().take(limit).collect();
            let held: Vec<_> = view.held().take(limit).collect();
            (view.turn_count(), turns, view.held_count(), held)
        })
        .await?;
    Ok(Json(json!({"total": found.0, "turns": found.1, "held_total": found.2, "held": found.3})))
}

/// Why a turn went where it went: by its number (`t12`) or its request id.
async fn explain_turn(
    State(app): Shared,
    Path(id): Path<String>,
) -> Result<Json<serde_json::Value>, Refusal> {
    let decisions = app.decisions.about(&id);
    let prompts = app.decisions.prompts_about(&id);
    let number = id.strip_prefix('t').and_then(|n| n.parse().ok()).map(TurnId);
    let live = match number {
        Some(turn) => app.owner.look(move |scheduler| scheduler.view().turn(turn)).await?,
        None => None,
    };
    if decisions.is_empty() && live.is_none() {
        return Err(not_found("no recent turn has this id"));
    }
    let decisions: Vec<_> = decisions.iter().map(AsRef::as_ref).collect();
    let prompts: Vec<_> = prompts.iter().map(AsRef::as_ref).collect();
    Ok(Json(json!({"decisions": decisions, "live": live, "prompts": prompts})))
}

async fn decisions(State(app): Shared, Query(listing): Query<Listing>) -> Json<serde_json::Value> {
    let latest = app.decisions.latest(listing.limit());
    let latest: Vec<_> = latest.iter().map(AsRef::as_ref).collect();
    Json(json!({"decisions": latest}))
}

async fn counters(State(app): Shared) -> Result<Json<serde_json::Value>, Refusal> {
    let counters = app.owner.look(|scheduler| *scheduler.view().counters()).await?;
    Ok(Json(json!({"scheduler": counters})))
}

async fn config(State(app): Shared) -> Json<crate::config::Config> {
    Json(app.config.written.clone())
}

fn kv_of(app: &App) -> Result<&Arc<Kv>, Refusal> {
    app.kv.as_ref().ok_or_else(|| not_found("no index of caches is kept: set kv.enabled, or policy = \"kv\""))
}

async fn kv_picture(State(app): Shared) -> Result<Json<kv::admin::Picture>, Refusal> {
    Ok(Json(kv::admin::picture(kv_of(&app)?).await.ok_or(Closed)?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Matching {
    /// The API of the body: `chat` (as when absent), `completions`, `responses`, `messages`.
    dialect: Option<Dialect>,
    tenant: Option<String>,
}

/// Where the KV of a request's prompt lies; nothing is sent to an engine but, at most, the prompt to be tokenized.
async fn kv_match(
    State(app): Shared,
    Query(matching): Query<Matching>,
    body: AxumBytes,
) -> Result<Json<kv::admin::Match>, Refusal> {
    let tenant = match matching.tenant {
        Some(name) => TenantId::new(&name).map_err(|error| bad_request(format!("tenant: {error}")))?,
        None => TenantId::default(),
    };
    let dialect = matching.dialect.unwrap_or(Dialect::Chat);
    let found = kv::admin::look_up(&app, kv_of(&app)?, dialect, &tenant, body).await;
    found.map(Json).map_err(bad_request)
}

/// Which of these objects the shared store is known to hold.
async fn kv_contains(State(app): Shared, Json(keys): Json<Vec<String>>) -> Result<Json<Vec<bool>>, Refusal> {
    Ok(Json(kv_of(&app)?.contains(keys).await.ok_or(Closed)?))
}

async fn tool_rows(State(app): Shared, body: AxumBytes) -> Result<Json<serde_json::Value>, Refusal> {
    match tool_events::take_http(&app, &body) {
        Ok(taken) => Ok(Json(json!({"accepted": taken.accepted, "refused": taken.refused}))),
        Err(error) => Err(bad_request(error.to_string())),
    }
}
