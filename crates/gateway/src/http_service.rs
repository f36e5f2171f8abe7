//! The public HTTP surface: what each request line leads to, and what every answer carries.
//!
//! - Order: websocket refusal, browser preflight, health, authentication, route.
//! - Decided: `/health` and `/readiness` answer 200 while at least one engine is ready and no shutdown has
//!   begun; `/liveness` as long as the process serves. Probes of harnesses for services that we are not
//!   (`/api/show`, `/api/v1/models`, ...) get a JSON 404, never a 5xx. An upgrade to a WebSocket gets 426
//!   anywhere: Codex falls back to HTTP at once on it.
//! - `/v1/responses/{id}` and its cancellation answer 404: engines of a fleet keep stored responses each for
//!   itself, and harnesses send their whole history (`store: false`).

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use serde_json::json;
use tandem_dialect::{ErrorKind, Route};
use tandem_types::Dialect;

use crate::app::App;
use crate::auth;
use crate::body::Body;
use crate::cors;
use crate::metrics::Family;
use crate::respond::{self, RequestIdentity};
use crate::{models, small_calls, turn};

/// Serves one request.
pub(crate) async fn serve(
    app: Arc<App>,
    peer: SocketAddr,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let began = Instant::now();
    let route = route_of(&request);
    let ids = RequestIdentity::of(request.headers());
    let origin = request.headers().get(header::ORIGIN).cloned();
    let line = app.config.log_requests.then(|| (request.method().clone(), request.uri().path().to_owned()));
    let head_only = request.method() == Method::HEAD;
    let name = route.name();
    let turn = matches!(route, Place::Api(Route::Turn(_)));

    let mut response = answer(&app, route, &ids, request).await;

    let headers = response.headers_mut();
    if let Ok(value) = HeaderValue::from_str(ids.shown().as_str()) {
        headers.insert("x-request-id", value);
    }
    cors::allow(&app.config.cors_origins, origin.as_ref(), headers);
    let status = response.status();
    app.metrics.inc(Family::Requests, &[("route", name), ("status", class(status))]);
    if let (Some((method, path)), false) = (line, turn) {
        let (status, ms) = (status.as_u16(), began.elapsed().as_millis() as u64);
        tracing::info!(%peer, %method, path, status, ms, request_id = %ids.own, "request");
    }
    if head_only {
        *response.body_mut() = Body::empty();
    }
    Ok(response)
}

/// Where a request line leads.
enum Place {
    Health,
    Liveness,
    Version,
    Preflight,
    WebSocket(Option<Dialect>),
    Api(Route),
}

impl Place {
    const fn name(&self) -> &'static str {
        match self {
            Self::Health => "health",
            Self::Liveness => "liveness",
            Self::Version => "version",
            Self::Preflight => "preflight",
            Self::WebSocket(_) => "websocket",
            Self::Api(route) => route.name(),
        }
    }
}

fn route_of(request: &Request<Incoming>) -> Place {
    let (method, path) = (request.method(), request.uri().path());
    if wants_websocket(request.headers()) {
        let dialect = if path.starts_with("/v1/responses") { Some(Dialect::Responses) } else { None };
        return Place::WebSocket(dialect);
    }
    if method == Method::OPTIONS && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD) {
        return Place::Preflight;
    }
    if matches!(*method, Method::GET | Method::HEAD) {
        match path {
            "/health" | "/readiness" | "/ready" => return Place::Health,
            "/liveness" | "/ping" => return Place::Liveness,
            "/version" => return Place::Version,
            _ => {}
        }
    }
    Place::Api(Route::of(method.as_str(), path))
}

fn wants_websocket(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::UPGRADE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .any(|text| text.split(',').any(|word| word.trim().eq_ignore_ascii_case("websocket")))
}

async fn answer(
    app: &Arc<App>,
    place: Place,
    ids: &RequestIdentity,
    request: Request<Incoming>,
) -> Response<Body> {
    let route = match place {
        Place::WebSocket(dialect) => {
            let message = "websockets are not offered: use plain http";
            return respond::error(app, dialect, ErrorKind::UpgradeRequired, message, None);
        }
        Place::Preflight => return cors::preflight(&app.config.cors_origins, request.headers()),
        Place::Health => return health(app),
        Place::Liveness => return respond::json(StatusCode::OK, &json!({"status": "alive"})),
        Place::Version => {
            return respond::json(StatusCode::OK, &json!({"version": env!("CARGO_PKG_VERSION")}));
        }
        // A harness looks whether anybody is there, before it has shown a key.
        Place::Api(Route::Hello) => return respond::json(StatusCode::OK, &json!({"status": "ok"})),
        Place::Api(route) => route,
    };
    let tenant = match auth::tenant(&app.config.tenancy, request.headers()) {
        Ok(tenant) => tenant,
        Err(kind) => {
            let message = match kind {
                ErrorKind::Unauthorized => {
                    "no valid api key: send it as `authorization: bearer` or `x-api-key`"
                }
                _ => "the tenant header holds no usable name",
            };
            return respond::error(app, route.dialect(), kind, message, None);
        }
    };
    match route {
        Route::Turn(dialect) => turn::serve(app, dialect, tenant, ids, request).await,
        Route::CountTokens => small_calls::count_tokens(app, ids, request).await,
        Route::Models => models::list(app),
        Route::Model(id) => models::one(app, &id),
        Route::Tokenize | Route::Detokenize | Route::Embeddings | Route::Rerank | Route::Score => {
            small_calls::pass(app, ids, request).await
        }
        Route::ResponsesSocket => not_allowed(app, route.dialect(), "POST"),
        Route::MethodNotAllowed(allow) => not_allowed(app, None, allow),
        Route::Hello | Route::Other => {
            let message = format!("there is no `{} {}`", request.method(), shown_path(request.uri().path()));
            respond::error(app, None, ErrorKind::NotFound, &message, None)
        }
    }
}

/// Enough of a path for an error message.
fn shown_path(path: &str) -> &str {
    path.char_indices().nth(200).map_or(path, |(end, _)| path.get(..end).unwrap_or_default())
}

fn not_allowed(app: &App, dialect: Option<Dialect>, allow: &'static str) -> Response<Body> {
    let message = format!("this path takes only {allow}");
    let mut response = respond::error(app, dialect, ErrorKind::MethodNotAllowed, &message, None);
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allow));
    response
}

fn health(app: &App) -> Response<Body> {
    let ready = models::ready_engines(app);
    let (status, word) = if app.is_draining() {
        (StatusCode::SERVICE_UNAVAILABLE, "draining")
    } else if app.config.state.is_some() && app.settling() {
        (StatusCode::SERVICE_UNAVAILABLE, "engines are asked")
    } else if ready == 0 {
        (StatusCode::SERVICE_UNAVAILABLE, "no engine is ready")
    } else {
        (StatusCode::OK, "ready")
    };
    let mut response = respond::json(status, &json!({"status": word, "engines_ready": ready}));
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
    }
    response
}

const fn class(status: StatusCode) -> &'static str {
    match status.as_u16() / 100 {
        1 => "1xx",
        2 => "2xx",
        3 => "3xx",
        4 => "4xx",
        _ => "5xx",
    }
}
