//! Admission as operators see it: metrics, the calls of the admin API, the priority that engines get.
//!
//! - Inputs: the scheduler's counts, calls of the admin API, a turn's urgency. Outputs: gauges and counters, inputs for
//!   the scheduler, a field of a request's body.
//! - Counters are brought up to date when somebody scrapes, and every few seconds: the scheduler counts, this tells the
//!   difference.
//! - Polarity: here as in the scheduler a higher number is sooner; vLLM takes a lower one for sooner, SGLang a higher one.
//! - A client's own `priority` stands. Engines get one only where their operator says that they schedule by it
//!   (`priority=on`): vLLM refuses calls with a priority otherwise.
//! - Deliberately absent: priorities of calls that two workers share, and of Messages calls to SGLang, which has no such
//!   field there.
//! - Sources: vLLM 0.32, SGLang 0.5.23.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Json;
use axum::body::Bytes as AxumBytes;
use axum::extract::{Path, Query, State};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tandem_dialect::{BodyField, apply_edits, parse_request};
use tandem_scheduler::admission::Stats;
use tandem_scheduler::view::{AdmissionView, ChargedView};
use tandem_scheduler::{Input, Scheduler};
use tandem_types::{Dialect, EngineKind, ProgramKey, WorkerId};

use crate::admin::{Refusal, Shared, bad_request, not_found, programs_of};
use crate::app::App;
use crate::config::Span;
use crate::metrics::Family;

/// What the scheduler had counted when somebody looked last.
#[derive(Default)]
pub(crate) struct Seen(Mutex<(Stats, u64, u64)>);

/// A look at admission.
#[derive(Serialize)]
pub(crate) struct Picture {
    #[serde(flatten)]
    admission: AdmissionView,
    workers: Vec<Charged>,
    /// Turns at workers: after an exchange of weights began it may go ahead when there are none.
    running: usize,
    #[serde(skip)]
    syncs: (u64, u64),
}

#[derive(Serialize)]
struct Charged {
    worker: WorkerId,
    #[serde(flatten)]
    charged: ChargedView,
}

fn look(scheduler: &Scheduler) -> Picture {
    let view = scheduler.view();
    let workers = view.workers().filter_map(|w| Some(Charged { worker: w.worker, charged: w.charged? }));
    let counters = view.counters();
    Picture {
        admission: view.admission(),
        workers: workers.collect(),
        running: view.turn_count().saturating_sub(view.held_count()),
        syncs: (counters.syncs, counters.syncs_expired),
    }
}

/// Brings the metrics of admission up to date.
pub(crate) async fn count(app: &App) {
    let Ok(picture) = app.owner.look(look).await else { return };
    let metrics = &app.metrics;
    let stats = picture.admission.stats;
    let whole = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    metrics.set(Family::AdmissionHeld, &[], whole(stats.held));
    metrics.set(Family::AdmissionHeldTokens, &[], whole(stats.held_tokens));
    metrics.set(Family::AdmissionPrograms, &[], whole(stats.programs));
    metrics.set(Family::WeightSync, &[], usize::from(picture.admission.sync_until.is_some()));
    for Charged { worker, charged } in &picture.workers {
        let worker = worker.to_string();
        let parts = [
            ("running", Some(charged.running)),
            ("idle", Some(charged.idle)),
            ("capacity", charged.resident),
        ];
        for (of, tokens) in parts {
            if let Some(tokens) = tokens {
                metrics.set(Family::AdmissionTokens, &[("worker", &worker), ("of", of)], whole(tokens));
            }
        }
    }
    let mut seen = app.admission.0.lock().unwrap_or_else(PoisonError::into_inner);
    let (before, syncs, expired) = *seen;
    for (event, now, then) in [
        ("admitted", stats.admitted, before.admitted),
        ("forced", stats.forced, before.forced),
        ("moved", stats.moved, before.moved),
        ("paused", stats.paused, before.paused),
        ("marked", stats.marked, before.marked),
        ("resumed", stats.resumed, before.resumed),
        ("expired", stats.expired, before.expired),
        ("left", stats.cancelled, before.cancelled),
    ] {
        metrics.count(Family::AdmissionEvents, &[("event", event)], now.saturating_sub(then));
    }
    metrics.count(Family::WeightSyncs, &[], picture.syncs.0.saturating_sub(syncs));
    metrics.count(Family::WeightSyncsExpired, &[], picture.syncs.1.saturating_sub(expired));
    *seen = (stats, picture.syncs.0, picture.syncs.1);
}

/// The header with which vLLM takes a priority on every route.
const X_VLLM_PRIORITY: HeaderName = HeaderName::from_static("x-vllm-priority");

/// A call's body and further headers with a priority (higher is sooner) for an engine of this make.
pub(crate) fn with_priority(
    dialect: Dialect,
    body: &Bytes,
    kind: EngineKind,
    priority: i32,
) -> (Bytes, HeaderMap) {
    let plain = || (body.clone(), HeaderMap::new());
    if priority == 0 {
        return plain();
    }
    let theirs = match kind {
        EngineKind::Vllm => priority.saturating_neg(),
        EngineKind::Sglang => priority,
        EngineKind::OpenAi => return plain(),
    };
    let Ok(parsed) = parse_request(dialect, body) else { return plain() };
    if parsed.field(BodyField::Priority).is_some() {
        return plain();
    }
    match (dialect, kind) {
        (Dialect::Messages, EngineKind::Vllm) => {
            let headers = HeaderMap::from_iter([(X_VLLM_PRIORITY, HeaderValue::from(theirs))]);
            (body.clone(), headers)
        }
        (Dialect::Messages, _) => plain(),
        (Dialect::Chat | Dialect::Completions | Dialect::Responses, _) => {
            match parsed.set_field(BodyField::Priority, theirs.to_string().as_bytes()) {
                Some(edit) => (apply_edits(body, &mut [edit]).into(), HeaderMap::new()),
                None => plain(),
            }
        }
    }
}

/// `GET /admission`.
pub(crate) async fn picture(State(app): Shared) -> Result<Json<Picture>, Refusal> {
    Ok(Json(app.owner.look(look).await?))
}

/// Whose session.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Whose {
    tenant: Option<String>,
}

/// `POST /sessions/{session}/pause`: holds all its programs' turns that are not dispatched yet.
pub(crate) async fn pause(
    State(app): Shared,
    Path(session): Path<String>,
    Query(whose): Query<Whose>,
) -> Result<Json<serde_json::Value>, Refusal> {
    let count = tell_all(&app, &session, &whose, |program| Input::ProgramPause { program }).await?;
    Ok(Json(json!({"paused": count})))
}

/// `POST /sessions/{session}/resume`.
pub(crate) async fn resume(
    State(app): Shared,
    Path(session): Path<String>,
    Query(whose): Query<Whose>,
) -> Result<Json<serde_json::Value>, Refusal> {
    let count = tell_all(&app, &session, &whose, |program| Input::ProgramResume { program }).await?;
    Ok(Json(json!({"resumed": count})))
}

/// Tells the scheduler something of each program of a session; how many there are.
async fn tell_all(
    app: &Arc<App>,
    session: &str,
    whose: &Whose,
    input: fn(ProgramKey) -> Input,
) -> Result<usize, Refusal> {
    let programs = programs_of(app, session, whose.tenant.as_deref()).await?;
    if programs.is_empty() {
        return Err(not_found("no program of this session is known"));
    }
    let count = programs.len();
    for program in programs {
        app.owner.operator(input(program)).await;
    }
    Ok(count)
}

/// How weights are to be exchanged.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Exchange {
    at_most: Span,
}

impl Default for Exchange {
    fn default() -> Self {
        Self { at_most: Span::secs(300) }
    }
}

/// Longest time for which an exchange of weights may stop everything.
const SYNC_MAX: Duration = Duration::from_secs(3600);

/// `POST /weight-sync`: no turn is dispatched from here on, until the exchange is over or takes longer than said.
pub(crate) async fn sync_begin(State(app): Shared, body: AxumBytes) -> Result<Json<Picture>, Refusal> {
    let exchange: Exchange = if body.trim_ascii().is_empty() {
        Exchange::default()
    } else {
        serde_json::from_slice(&body).map_err(|error| bad_request(error.to_string()))?
    };
    let at_most = exchange.at_most.0;
    if at_most.is_zero() || at_most > SYNC_MAX {
        return Err(bad_request("at_most must be above 0 and at most 1h"));
    }
    app.owner.operator(Input::SyncBegin { at_most }).await;
    tracing::info!(seconds = at_most.as_secs(), "dispatching stops for an exchange of weights");
    picture(State(app)).await
}

/// `DELETE /weight-sync`.
pub(crate) async fn sync_end(State(app): Shared) -> Result<Json<Picture>, Refusal> {
    let running = app.owner.look(|scheduler| scheduler.view().admission().sync_until.is_some()).await?;
    if !running {
        return Err(not_found(
            "no exchange of weights is under way: it was ended, or took longer than was said",
        ));
    }
    app.owner.operator(Input::SyncEnd).await;
    tracing::info!("dispatching goes on after an exchange of weights");
    picture(State(app)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(
        dialect: Dialect,
        kind: EngineKind,
        priority: i32,
        body: &'static str,
    ) -> (String, Option<String>) {
        let (body, headers) = with_priority(dialect, &Bytes::from_static(body.as_bytes()), kind, priority);
        let header = headers.get(X_VLLM_PRIORITY).map(|value| value.to_str().expect("ascii").to_owned());
        (String::from_utf8(body.to_vec()).expect("text"), header)
    }

    /// vLLM: lower is sooner. SGLang: higher is sooner.
    #[test]
    fn priorities_reach_engines_in_their_own_polarity() {
        let chat = r#"{"model":"m","messages":[]}"#;
        let (vllm, _) = sent(Dialect::Chat, EngineKind::Vllm, 1, chat);
        let (sglang, _) = sent(Dialect::Chat, EngineKind::Sglang, -2, chat);
        let value =
            |body: &str| serde_json::from_str::<serde_json::Value>(body).expect("json")["priority"].as_i64();
        assert_eq!((value(&vllm), value(&sglang)), (Some(-1), Some(-2)));
        let messages = r#"{"model":"m","max_tokens":1,"messages":[]}"#;
        let (same, header) = sent(Dialect::Messages, EngineKind::Vllm, -2, messages);
        assert_eq!((same.as_str(), header.as_deref()), (messages, Some("2")));
        assert_eq!(sent(Dialect::Messages, EngineKind::Sglang, 1, messages), (messages.to_owned(), None));
    }

    #[test]
    fn a_body_stays_as_it_is_where_nothing_is_urgent_or_the_client_says_how_urgent() {
        let own = r#"{"model":"m","priority":7,"messages":[]}"#;
        assert_eq!(sent(Dialect::Chat, EngineKind::Vllm, 1, own).0, own);
        let plain = r#"{"model":"m","messages":[]}"#;
        assert_eq!(sent(Dialect::Chat, EngineKind::Vllm, 0, plain).0, plain);
        assert_eq!(sent(Dialect::Chat, EngineKind::OpenAi, 1, plain).0, plain);
    }
}
