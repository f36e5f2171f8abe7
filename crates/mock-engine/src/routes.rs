//! The routes: what generates, and what does not.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::{Method, Response};
use serde_json::{Map, Value};

use crate::asked::Sampling;
use crate::body::{Body, Emitter, Ended};
use crate::config::MockKind;
use crate::error::{Api, ApiError};
use crate::fault::Fault;
use crate::generate::{Counts, Generation, begin};
use crate::http::{Call, State, json, refuse, respond, spoiled, sse};
use crate::json::object;
use crate::out::{self, Render};
use crate::parse::{self, Context, object_of};
use crate::pd;
use crate::utility;

/// The API of a route that generates.
pub(crate) fn generates(kind: MockKind, call: &Call) -> Option<Api> {
    let api = match call.path.as_str() {
        "/v1/chat/completions" => Api::Chat,
        "/v1/completions" => Api::Completions,
        "/v1/responses" => Api::Responses,
        "/v1/messages" => Api::Messages,
        "/generate" if kind == MockKind::Sglang => Api::Generate,
        _ => return None,
    };
    (call.method == Method::POST).then_some(api)
}

/// Counts a request to generate while it is under way.
struct InFlight(Arc<State>);

impl InFlight {
    fn new(state: &Arc<State>) -> Self {
        state.in_flight.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(state))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Answers a request to generate.
pub(crate) async fn generate(
    state: &Arc<State>,
    api: Api,
    call: &Call,
    parsed: Option<Map<String, Value>>,
    fault: Option<Fault>,
) -> Response<Body> {
    let guard = InFlight::new(state);
    let begun = async {
        let part = pd::part(state, call, parsed.as_ref()).await?;
        let mut asked = read(state, api, call, parsed)?;
        asked.fetched = part.fetched();
        if part.one_token() {
            asked.sampling = Sampling { max_tokens: Some(1), min_tokens: 0, ..asked.sampling };
        }
        let mut generation = begin(state, asked).await?;
        generation.asked.kv_transfer = part.hand_over(state, &generation).await?;
        Ok::<_, ApiError>(generation)
    };
    let generation = match begun.await {
        Ok(generation) => generation,
        Err(error) => return refuse(state, api, &error),
    };
    let face = state.face();
    if generation.asked.stream {
        let error = ApiError::new(500, "InternalServerError", "fault on request");
        let (emitter, body) = Emitter::new(fault, error.in_stream(state.config.kind, api));
        let render = out::stream(api, face, &generation);
        tokio::spawn(async move {
            // Whoever ends it early is gone; dropping the generation aborts its sequences.
            let _ = stream(generation, render, emitter).await;
            drop(guard);
        });
        return respond(200, sse(), body);
    }
    let progress = generation.group.finished().await;
    let counts = generation.counts(&progress);
    let aborted: Vec<bool> = progress
        .iter()
        .zip(&generation.runs)
        .map(|(progress, run)| (progress.tokens as usize) < run.answer.tokens.len())
        .collect();
    let body = out::whole(api, &face, &generation, counts, &aborted);
    drop(guard);
    match fault {
        Some(Fault::ErrorAfter(_)) => {
            refuse(state, api, &ApiError::new(500, "InternalServerError", "fault on request"))
        }
        Some(fault) => spoiled(body, fault),
        None => json(200, &body),
    }
}

fn read(
    state: &State,
    api: Api,
    call: &Call,
    parsed: Option<Map<String, Value>>,
) -> Result<crate::asked::Asked, ApiError> {
    let map = match parsed {
        Some(map) => map,
        None => object_of(&call.body)?,
    };
    let context = Context { config: &state.config, headers: &call.headers };
    parse::parse(api, parse::Body(&map), context)
}

/// Writes a stream until its end or its client's.
async fn stream(g: Generation, mut render: Box<dyn Render>, mut emitter: Emitter) -> Result<(), Ended> {
    let mut out = Vec::new();
    let mut shown = vec![0_u32; g.runs.len()];
    let mut headed = false;
    if render.eager() {
        render.head(&g, g.counts(&g.group.progress()), &mut out);
        headed = true;
    }
    let last = loop {
        let progress = g.group.progress();
        let mut counts: Counts = g.counts(&progress);
        counts.completion = shown.iter().sum();
        for (run, (progress, shown)) in progress.iter().zip(&mut shown).enumerate() {
            while *shown < progress.tokens {
                if !headed {
                    render.head(&g, counts, &mut out);
                    headed = true;
                }
                counts.completion += 1;
                render.token(&g, run, *shown as usize, counts, &mut out);
                *shown += 1;
                for event in out.drain(..) {
                    emitter.send(event).await?;
                }
            }
        }
        for event in out.drain(..) {
            emitter.send(event).await?;
        }
        if progress.iter().all(|p| p.done) {
            break progress;
        }
        tokio::select! {
            () = g.group.changed() => {}
            () = emitter.gone() => return Err(Ended),
        }
    };
    let counts = g.counts(&last);
    if !headed {
        render.head(&g, counts, &mut out);
    }
    for (run, (progress, r)) in last.iter().zip(&g.runs).enumerate() {
        if (progress.tokens as usize) < r.answer.tokens.len() {
            render.aborted(&g, run, counts, &mut out);
        }
    }
    render.end(&g, counts, &mut out);
    for event in out {
        emitter.send(event).await?;
    }
    emitter.end().await;
    Ok(())
}

/// Answers everything else.
pub(crate) async fn utility(state: &Arc<State>, call: &Call) -> Response<Body> {
    if let Some(response) = pd::answer(state, call).await {
        return response;
    }
    match utility::answer(state, call).await {
        Some(Ok(response)) => response,
        Some(Err(error)) => {
            let api = if call.path.starts_with("/v1/messages") { Api::Messages } else { Api::Utility };
            refuse(state, api, &error)
        }
        None if utility::known(state, &call.path) => json(405, &object! { "detail": "Method Not Allowed" }),
        None => json(404, &object! { "detail": "Not Found" }),
    }
}
