//! Admission as operators see it: metrics, the calls of the admin API, the priority that engines get.
//!
//! - Inputs: the scheduler's counts, calls of the admin API, a turn's urgency. Outputs: gauges and counters, inputs for
//!   the scheduler, a field of a request's body.
//! - Counters are brought up to date when somebody scrapes, and every few seconds: the scheduler counts, this tells the
//!   difference.
//! - Polarity: here as in the scheduler a higher number is sooner; vLLM takes a lower one for sooner, SGLang a higher one.
//! - A client's own priority, in the body or in the engine's header, stands. Engines get one only where their operator
//!   says that they schedule by it (`priority=on`): vLLM refuses calls with a priority otherwise.
//! - Messages calls have no field for it: both makes read a header (vLLM since 0.28, SGLang since 0.5.21).
//! - Sources: vLLM 0.32, SGLang 0.5.23.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Json;
use axum::body::Bytes as AxumBytes;
use axum::extract::{Path, Query, State};
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
use crate::turn::flight::Sent;

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
        if let Some(patience) = charged.patience {
            metrics.gauge(Family::AdmissionPatience, &[("worker", &worker)], patience);
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

/// Sets the priority of what goes to an engine of this make that schedules by it: in the body, or in the header that
/// such engines read where that body has no such field. What the client says of it itself stands.
pub(crate) fn set_priority(dialect: Dialect, kind: EngineKind, from_client: &HeaderMap, sent: &mut Sent) {
    if sent.priority == 0 {
        return;
    }
    let (theirs, header) = match kind {
        EngineKind::Vllm => (sent.priority.saturating_neg(), HeaderName::from_static("x-vllm-priority")),
        EngineKind::Sglang => (sent.priority, HeaderName::from_static("x-override-priority")),
        EngineKind::OpenAi => return,
    };
    let Ok(parsed) = parse_request(dialect, &sent.body) else { return };
    if from_client.contains_key(&header) || parsed.field(BodyField::Priority).is_some() {
        return;
    }
    match dialect {
        Dialect::Messages => {
            sent.headers.insert(header, HeaderValue::from(theirs));
        }
        Dialect::Chat | Dialect::Completions | Dialect::Responses => {
            if let Some(edit) = parsed.set_field(BodyField::Priority, theirs.to_string().as_bytes()) {
                sent.body = apply_edits(&sent.body, &mut [edit]).into();
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
    use bytes::Bytes;

    use super::*;

    fn sent(
        (dialect, kind): (Dialect, EngineKind),
        priority: i32,
        body: &'static str,
        client: &[(&'static str, &'static str)],
    ) -> (String, Vec<(String, String)>) {
        let client = client
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        let mut sent =
            Sent { body: Bytes::from_static(body.as_bytes()), headers: HeaderMap::new(), priority };
        set_priority(dialect, kind, &client.collect(), &mut sent);
        let text = |value: &HeaderValue| value.to_str().expect("ascii").to_owned();
        let headers = sent.headers.iter().map(|(name, value)| (name.to_string(), text(value)));
        (String::from_utf8(sent.body.to_vec()).expect("text"), headers.collect())
    }

    const CHAT: &str = r#"{"model":"m","messages":[]}"#;
    const MESSAGES: &str = r#"{"model":"m","max_tokens":1,"messages":[]}"#;

    /// vLLM: lower is sooner. SGLang: higher is sooner.
    #[test]
    fn priorities_reach_engines_in_their_own_polarity() {
        let value =
            |body: &str| serde_json::from_str::<serde_json::Value>(body).expect("json")["priority"].as_i64();
        for (kind, priority, theirs) in [
            (EngineKind::Vllm, 1, -1_i64),
            (EngineKind::Vllm, -2, 2),
            (EngineKind::Sglang, 1, 1),
            (EngineKind::Sglang, -2, -2),
        ] {
            let (chat, none) = sent((Dialect::Chat, kind), priority, CHAT, &[]);
            assert_eq!((value(&chat), none), (Some(theirs), vec![]), "{kind:?}");
            let header = match kind {
                EngineKind::Vllm => "x-vllm-priority",
                EngineKind::Sglang | EngineKind::OpenAi => "x-override-priority",
            };
            let messages = sent((Dialect::Messages, kind), priority, MESSAGES, &[]);
            assert_eq!(messages, (MESSAGES.to_owned(), vec![(header.to_owned(), theirs.to_string())]));
        }
    }

    #[test]
    fn a_call_stays_as_it_is_where_nothing_is_urgent_or_the_client_says_how_urgent() {
        let unchanged = |of, priority, body: &'static str, client: &[(&'static str, &'static str)]| {
            assert_eq!(sent(of, priority, body, client), (body.to_owned(), vec![]), "{of:?} {client:?}");
        };
        unchanged((Dialect::Chat, EngineKind::Vllm), 1, r#"{"model":"m","priority":7,"messages":[]}"#, &[]);
        unchanged((Dialect::Chat, EngineKind::Vllm), 0, CHAT, &[]);
        unchanged((Dialect::Chat, EngineKind::OpenAi), 1, CHAT, &[]);
        for dialect in [Dialect::Chat, Dialect::Messages] {
            let body = if dialect == Dialect::Chat { CHAT } else { MESSAGES };
            unchanged((dialect, EngineKind::Vllm), 1, body, &[("x-vllm-priority", "5")]);
            unchanged((dialect, EngineKind::Sglang), 1, body, &[("x-override-priority", "5")]);
        }
    }
}
