//! Routes that do not generate.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use http::{HeaderValue, Method, Response};
use tandem_engine_model::Load;

use crate::body::Body;
use crate::config::{MockKind, MockModel};
use crate::driver::lock;
use crate::error::{Api, ApiError};
use crate::generate::begin;
use crate::http::{Call, State, json, plain, respond};
use crate::json::{Json, Null, Object, object};
use crate::out::VLLM_VERSION;
use crate::parse::{self, Body as Fields, Context, object_of};
use crate::{info, metrics_sglang, metrics_vllm, tokenizer};

type Answer = Result<Response<Body>, ApiError>;

const COMMON: [&str; 10] = [
    "/health",
    "/ping",
    "/metrics",
    "/v1/models",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/responses",
    "/tokenize",
];
const DEV: [&str; 2] = ["/server_info", "/reset_prefix_cache"];
const VLLM: [&str; 8] = [
    "/detokenize",
    "/version",
    "/load",
    "/kv_event_sources",
    "/v1/chat/completions/render",
    "/v1/completions/render",
    "/v1/messages/render",
    "/v1/responses/render",
];
const SGLANG: [&str; 13] = [
    "/detokenize",
    "/generate",
    "/model_info",
    "/get_model_info",
    "/server_info",
    "/get_server_info",
    "/v1/loads",
    "/ready",
    "/health_generate",
    "/flush_cache",
    "/abort_request",
    "/v1/tokenize",
    "/v1/detokenize",
];

/// Whether a path exists, whatever the method.
pub(crate) fn known(state: &State, path: &str) -> bool {
    let own = match state.config.kind {
        MockKind::Vllm => VLLM.contains(&path) || (state.config.flags.dev_mode && DEV.contains(&path)),
        MockKind::Sglang => SGLANG.contains(&path),
    };
    own || COMMON.contains(&path)
}

/// The answer; `None` = no such route for this method.
pub(crate) async fn answer(state: &Arc<State>, call: &Call) -> Option<Answer> {
    match common(state, call) {
        None => match state.config.kind {
            MockKind::Vllm => vllm(state, call).await,
            MockKind::Sglang => sglang(state, call).await,
        },
        answer => answer,
    }
}

/// Routes that both engines have.
fn common(state: &State, call: &Call) -> Option<Answer> {
    let get = call.method == Method::GET || call.method == Method::HEAD;
    let post = call.method == Method::POST;
    match call.path.as_str() {
        "/metrics" if get => metrics(state),
        "/v1/models" if get => Some(Ok(json(200, &models(state)))),
        "/v1/messages/count_tokens" if post => Some(count_tokens(state, call)),
        "/tokenize" if post => Some(tokenize(state, call)),
        "/detokenize" if post => Some(detokenize(state, call)),
        path if get && path.starts_with("/v1/responses/") => {
            Some(Err(parse::response_not_found(path.trim_start_matches("/v1/responses/"))))
        }
        path if post && path.starts_with("/v1/responses/") && path.ends_with("/cancel") => {
            let id = path.trim_start_matches("/v1/responses/").trim_end_matches("/cancel");
            Some(Err(parse::response_not_found(id)))
        }
        _ => None,
    }
}

async fn vllm(state: &Arc<State>, call: &Call) -> Option<Answer> {
    let get = call.method == Method::GET || call.method == Method::HEAD;
    let post = call.method == Method::POST;
    let flags = &state.config.flags;
    Some(Ok(match call.path.as_str() {
        "/health" | "/ping" if get || (post && call.path == "/ping") => empty(),
        "/version" if get => json(200, &object! { "version": VLLM_VERSION }),
        "/load" if get => {
            let load = state.in_flight.load(std::sync::atomic::Ordering::Relaxed);
            json(200, &object! { "server_load": if flags.server_load_tracking { load } else { 0 } })
        }
        "/kv_event_sources" if get => json(200, &info::kv_event_sources(state)),
        "/server_info" if get && flags.dev_mode => json(200, &info::vllm_server_info(state)),
        "/reset_prefix_cache" if post && flags.dev_mode => match state.driver.reset().await {
            Ok(success) => json(200, &object! { "success": success }),
            Err(_) => return Some(Err(stopped())),
        },
        path if post && path.ends_with("/render") => return render(state, call),
        _ => return None,
    }))
}

async fn sglang(state: &Arc<State>, call: &Call) -> Option<Answer> {
    let get = call.method == Method::GET || call.method == Method::HEAD;
    let post = call.method == Method::POST;
    Some(Ok(match call.path.as_str() {
        "/health" | "/ready" | "/ping" if get => empty(),
        "/health_generate" if get => return Some(probe(state).await),
        "/model_info" | "/get_model_info" if get => json(200, &info::model_info(state)),
        "/server_info" | "/get_server_info" if get => json(200, &info::sglang_server_info(state)),
        "/v1/loads" if get => json(200, &info::loads(state, &call.query)),
        "/flush_cache" if get || post => match state.driver.reset().await {
            Ok(true) => plain(
                200,
                "Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting requests, the operation will not be performed.)\n",
            ),
            Ok(false) => plain(400, "Cache not flushed: requests are running or waiting.\n"),
            Err(_) => return Some(Err(stopped())),
        },
        "/close_session" if post => empty(),
        "/abort_request" if post => return Some(abort(state, call).await),
        path if get && path.starts_with("/v1/models/") => {
            return Some(model(state, path.trim_start_matches("/v1/models/")));
        }
        "/v1/tokenize" if post => return Some(tokenize(state, call)),
        "/v1/detokenize" if post => return Some(detokenize(state, call)),
        _ => return None,
    }))
}

fn stopped() -> ApiError {
    ApiError::new(503, "ServiceUnavailableError", "engine is shutting down")
}

fn empty() -> Response<Body> {
    let mut response = plain(200, "");
    response.headers_mut().remove(http::header::CONTENT_TYPE);
    response
}

fn metrics(state: &State) -> Option<Answer> {
    let loads: Vec<Load> = lock(&state.driver.shared.loads).clone();
    let observed = lock(&state.driver.shared.observed);
    let text = match state.config.kind {
        MockKind::Vllm => metrics_vllm::text(state, &loads, &observed.ranks),
        MockKind::Sglang if state.config.flags.metrics => {
            metrics_sglang::text(state, &loads, &observed.ranks)
        }
        MockKind::Sglang => return None,
    };
    let kind = HeaderValue::from_static("text/plain; version=1.0.0; charset=utf-8");
    Some(Ok(respond(200, kind, Body::whole(text))))
}

fn models(state: &State) -> Json {
    let data: Vec<Json> = state.config.models.iter().map(|model| card(state, model)).collect();
    object! { "object": "list", "data": data }
}

/// SGLang's card of one model.
fn model(state: &State, id: &str) -> Answer {
    match state.config.models.iter().find(|model| model.id == id) {
        Some(model) => Ok(json(200, &card(state, model))),
        None => Err(ApiError::new(404, "NotFoundError", format!("The model '{id}' does not exist"))),
    }
}

fn card(state: &State, model: &MockModel) -> Json {
    let created = state.started.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let vllm = state.config.kind == MockKind::Vllm;
    let base = state.config.models.first().map(|first| first.id.as_str()).unwrap_or_default();
    let root = if model.parent.is_some() { model.id.as_str() } else { base };
    let mut body = Object::default();
    body.put("id", &model.id);
    body.put("object", "model");
    body.put("created", &created);
    body.put("owned_by", if vllm { "vllm" } else { "sglang" });
    body.put("root", root);
    body.put("parent", &model.parent);
    // Adapters have the limit of their base and do not repeat it.
    body.put("max_model_len", &model.parent.is_none().then_some(state.max_model_len));
    if vllm {
        body.put("permission", &[permission(state, created)]);
    }
    body.end()
}

fn permission(state: &State, created: u64) -> Json {
    object! {
        "id": format!("modelperm-{}", state.fresh_id(16)),
        "object": "model_permission",
        "created": created,
        "allow_create_engine": false,
        "allow_sampling": true,
        "allow_logprobs": true,
        "allow_search_indices": false,
        "allow_view": true,
        "allow_fine_tuning": false,
        "organization": "*",
        "group": Null,
        "is_blocking": false,
    }
}

fn context<'a>(state: &'a State, call: &'a Call) -> Context<'a> {
    Context { config: &state.config, headers: &call.headers }
}

fn count_tokens(state: &State, call: &Call) -> Answer {
    let map = object_of(&call.body)?;
    let (conversation, _) = parse::messages_conversation(Fields(&map))?;
    let tokens = conversation.render(true).len();
    Ok(json(
        200,
        &match state.config.kind {
            MockKind::Vllm => object! {
                "input_tokens": tokens,
                "context_management": object! { "original_input_tokens": tokens },
            },
            MockKind::Sglang => object! { "input_tokens": tokens },
        },
    ))
}

fn tokenize(state: &State, call: &Call) -> Answer {
    let map = object_of(&call.body)?;
    let tokens = parse::parse_tokenize(Fields(&map), context(state, call))?;
    if state.config.kind == MockKind::Sglang {
        let body = object! {
            "tokens": tokens,
            "count": tokens.len(),
            "max_model_len": state.max_model_len,
        };
        return Ok(json(200, &body));
    }
    let shown = Fields(&map).flag("return_token_strs")?;
    let texts: Option<Vec<String>> = shown.then(|| tokens.iter().map(|id| tokenizer::show(*id)).collect());
    let body = object! {
        "count": tokens.len(),
        "max_model_len": state.max_model_len,
        "tokens": tokens,
        "token_strs": texts,
    };
    Ok(json(200, &body))
}

fn detokenize(state: &State, call: &Call) -> Answer {
    let map = object_of(&call.body)?;
    let prompt = parse::parse_detokenize(Fields(&map), context(state, call))?;
    let text = tokenizer::decode(&prompt.tokens);
    let key = if state.config.kind == MockKind::Vllm { "prompt" } else { "text" };
    let mut body = Object::default();
    body.put(key, &text);
    Ok(json(200, &body.end()))
}

/// vLLM's `*/render`: the request's tokens without generating.
fn render(state: &State, call: &Call) -> Option<Answer> {
    let (api, prefix) = match call.path.as_str() {
        "/v1/chat/completions/render" => (Api::Chat, "chatcmpl"),
        "/v1/completions/render" => (Api::Completions, "cmpl"),
        "/v1/messages/render" => (Api::Messages, "chatcmpl"),
        "/v1/responses/render" => (Api::Responses, "resp"),
        _ => return None,
    };
    if !state.config.flags.scale_out {
        return Some(Err(ApiError::new(403, "Forbidden", "this endpoint requires --enable-scale-out")));
    }
    Some(rendered(state, call, api, prefix))
}

fn rendered(state: &State, call: &Call, api: Api, prefix: &str) -> Answer {
    let map = object_of(&call.body)?;
    let asked = parse::parse(api, Fields(&map), context(state, call))?;
    let bodies: Vec<Json> = asked
        .prompts
        .iter()
        .map(|prompt| {
            let id = asked.request_id.clone().unwrap_or_else(|| state.fresh_id(16));
            info::rendered(state, &asked, prompt, &format!("{prefix}-{id}"))
        })
        .collect();
    Ok(match (api, bodies.as_slice()) {
        // Completions may have several prompts and always answers with a list.
        (Api::Completions, _) => {
            let mut text = String::new();
            crate::json::ToJson::write(&bodies, &mut text);
            json(200, &Json(text))
        }
        (_, [one, ..]) => json(200, one),
        (_, []) => json(200, &object! {}),
    })
}

/// SGLang's deep health check generates a token.
async fn probe(state: &Arc<State>) -> Answer {
    let map = object_of(b"{\"input_ids\":[10,11,12],\"sampling_params\":{\"max_new_tokens\":1}}")?;
    let headers = http::HeaderMap::new();
    let context = Context { config: &state.config, headers: &headers };
    let asked = parse::parse(Api::Generate, Fields(&map), context)?;
    let generation = begin(state, asked).await?;
    generation.group.finished().await;
    Ok(empty())
}

async fn abort(state: &State, call: &Call) -> Answer {
    let map = object_of(&call.body)?;
    let body = Fields(&map);
    if body.flag("abort_all")? {
        state.driver.abort("").await.map_err(|_| stopped())?;
    } else if let Some(rid) = body.text("rid")?.filter(|rid| !rid.is_empty()) {
        state.driver.abort(rid).await.map_err(|_| stopped())?;
    }
    Ok(empty())
}
