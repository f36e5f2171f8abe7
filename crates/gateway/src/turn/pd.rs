//! A turn on two workers: one computes its prompt, the other fetches the KV and answers.
//!
//! - Inputs: a call and its two workers, of one make. Output: the answer of the second, as of a call on one worker; and
//!   what became of the first.
//! - vLLM: one after the other. The first gets the same call for one token; what it says of where the KV lies goes,
//!   unread, into the call to the second. A first worker that says nothing of that has cached the prompt for itself
//!   only; the second then computes it, and the answer is the same.
//! - SGLang: both at the same time, with the same body, which names where and under which number they meet. The first
//!   one's answer is read and dropped.
//! - Invariants: I-PD-1 bytes of the body that are none of the fields below are as in the call; I-PD-2 both workers get
//!   the same request id, and each the same priority, where it schedules by one; I-PD-3 whatever ends the turn closes the connections to both, but for a prefill worker whose
//!   prompt is answered already; I-PD-4 a failure is told of the worker at whose it happened; I-PD-5 a rendezvous
//!   number is never used twice by one process, and two processes begin at random.
//! - Deliberately absent: calls for several answers or of several prompts on vLLM: which of them gets the KV, and when
//!   it may go, is not told; the second worker computes such prompts itself. A client's own `kv_transfer_params` in a
//!   call that is split: they are replaced.
//! - Sources: vLLM 0.32 and 0.33 (NIXL connector), SGLang 0.5.23.

use std::pin::Pin;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use serde_json::value::RawValue;
use tandem_dialect::{BodyField, ParsedRequest, apply_edits, observe_body, parse_request};
use tandem_engines::{Bootstrap, Target};
use tandem_scheduler::FailureKind;
use tandem_types::{BodyEdit, Dialect, EngineKind, TurnId, WorkerId};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::flight::{Call, Collected, Obtained, Sent, TryFailed, ask, collect, engine_failure, failed, send};
use crate::app::App;
use crate::metrics::Family;

/// What is known of the leg that computed the prompt, once there is an answer.
#[derive(Default)]
pub(crate) struct PrefillLeg {
    /// Prompt tokens that it had cached; outer `None` = it is not it that tells.
    pub(crate) cached: Option<Option<u64>>,
    running: Option<Running>,
}

/// A prefill leg under way beside the answer. Dropping it ends it.
struct Running {
    /// Taken when it may go on alone.
    task: Option<JoinHandle<()>>,
    /// Gone once it has told: it tells once.
    trouble: Option<oneshot::Receiver<Trouble>>,
}

impl Running {
    /// Waits for its fault, for ever where it ends well.
    async fn trouble(&mut self) -> Trouble {
        if let Some(trouble) = &mut self.trouble {
            let told = trouble.await;
            self.trouble = None;
            if let Ok(trouble) = told {
                return trouble;
            }
        }
        std::future::pending().await
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// What went wrong with it.
pub(crate) enum Trouble {
    /// A fault of the worker.
    Failed(TryFailed),
    /// The engine refused the call.
    Refused(Box<(Parts, Bytes)>),
}

impl Trouble {
    /// As a failure of the dispatch. A refusal that the other worker did not join in says something of the engine.
    pub(super) const fn kind(&self) -> FailureKind {
        match self {
            Self::Failed(failed) => failed.failure.kind,
            Self::Refused(_) => FailureKind::ServerError,
        }
    }
}

impl PrefillLeg {
    /// Lets it come to its own end: the answer is there, so it is at its end anyway.
    pub(crate) fn detach(&mut self) {
        if let Some(mut running) = self.running.take() {
            running.task = None;
        }
    }

    /// The fault of a leg that is still under way.
    pub(crate) fn poll_trouble(&mut self, cx: &mut Context<'_>) -> Option<Trouble> {
        let running = self.running.as_mut()?;
        match Pin::new(running.trouble.as_mut()?).poll(cx) {
            Poll::Pending => None,
            Poll::Ready(told) => {
                running.trouble = None;
                told.ok()
            }
        }
    }
}

/// Sends the call to both and waits for the beginning of the answer.
pub(super) async fn try_pair(
    app: &App,
    call: &Call,
    turn: TurnId,
    (prefill, worker): (WorkerId, WorkerId),
    priority: i32,
) -> Result<(Obtained, PrefillLeg), TryFailed> {
    let gone = || failed(FailureKind::Connect, "the engine left");
    let first = app.engines.target(prefill).ok_or_else(|| gone().at_prefill())?;
    let second = app.engines.target(worker).ok_or_else(gone)?;
    match second.kind {
        EngineKind::Vllm => in_turn(app, call, turn, (&first, &second), priority).await,
        EngineKind::Sglang => side_by_side(app, call, turn, (&first, &second), priority).await,
        EngineKind::OpenAi => {
            app.owner.prefill_done(turn);
            alone(app, call, &second, priority).await
        }
    }
}

/// The second worker does it all.
async fn alone(
    app: &App,
    call: &Call,
    second: &Target,
    priority: i32,
) -> Result<(Obtained, PrefillLeg), TryFailed> {
    Ok((ask(app, call, second, Sent::plain(call, priority)).await?, PrefillLeg::default()))
}

/// vLLM's way.
async fn in_turn(
    app: &App,
    call: &Call,
    turn: TurnId,
    (first, second): (&Target, &Target),
    priority: i32,
) -> Result<(Obtained, PrefillLeg), TryFailed> {
    let parsed = parse_request(call.dialect, &call.body).ok().filter(|_| call.choices == 1);
    let body = parsed.as_ref().and_then(|parsed| for_one_token(call, parsed));
    let (Some(parsed), Some(body)) = (parsed, body) else {
        app.owner.prefill_done(turn);
        return alone(app, call, second, priority).await;
    };
    let sent = Sent { body, headers: HeaderMap::new(), priority };
    let (parts, bytes) = whole(app, call, first, sent).await.map_err(TryFailed::at_prefill)?;
    if !parts.status.is_success() {
        let facts = observe_body(call.dialect, &bytes);
        return Ok((Obtained::Whole(parts, bytes, Box::new(facts)), PrefillLeg::default()));
    }
    app.owner.prefill_done(turn);
    let told: Answered = serde_json::from_slice(&bytes).unwrap_or_default();
    let Some(params) = told.kv_transfer_params else {
        app.metrics.inc(Family::PrefillLost, &[]);
        tracing::warn!(engine = %first.base, "the engine computed a prompt but says not where its kv lies");
        return alone(app, call, second, priority).await;
    };
    let cached = observe_body(call.dialect, &bytes).usage.and_then(|usage| usage.cached_tokens);
    let body = match parsed.set_field(BodyField::KvTransferParams, params.get().as_bytes()) {
        Some(edit) => Bytes::from(apply_edits(&call.body, &mut [edit])),
        None => call.body.clone(),
    };
    let obtained = ask(app, call, second, Sent { body, headers: HeaderMap::new(), priority }).await?;
    Ok((obtained, PrefillLeg { cached: Some(cached), running: None }))
}

/// What a vLLM prefill worker answers, as far as it matters.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Answered {
    kv_transfer_params: Option<Box<RawValue>>,
}

/// What makes a vLLM worker keep the KV of a prompt for another.
const KEEP_FOR_ANOTHER: &[u8] = b"{\"do_remote_decode\":true,\"do_remote_prefill\":false,\
    \"remote_engine_id\":null,\"remote_block_ids\":null,\"remote_host\":null,\"remote_port\":null}";

/// The call for a vLLM prefill worker: one token, whole, its KV kept.
fn for_one_token(call: &Call, parsed: &ParsedRequest) -> Option<Bytes> {
    let bound = match call.dialect {
        Dialect::Chat | Dialect::Completions | Dialect::Messages => BodyField::MaxTokens,
        Dialect::Responses => BodyField::MaxOutputTokens,
    };
    let mut edits = vec![
        parsed.set_field(BodyField::KvTransferParams, KEEP_FOR_ANOTHER)?,
        parsed.set_field(bound, b"1")?,
    ];
    // Only where the client sent them: engines differ in which of these they take at all.
    for (field, value) in [
        (BodyField::Stream, &b"false"[..]),
        (BodyField::StreamOptions, b"null"),
        (BodyField::MaxCompletionTokens, b"1"),
        (BodyField::MinTokens, b"0"),
    ] {
        edits.extend(parsed.field(field).map(|range| BodyEdit { range, with: value.to_vec() }));
    }
    Some(apply_edits(&call.body, &mut edits).into())
}

/// A whole answer that is no fault of the engine.
async fn whole(app: &App, call: &Call, target: &Target, sent: Sent) -> Result<(Parts, Bytes), TryFailed> {
    let (parts, body) = send(app, call, target, sent).await?;
    let idle = app.config.timeouts.stream_idle.0;
    let collected = collect(body, app.config.limits.answer_buffer.bytes(), idle).await?;
    let Collected::Whole(bytes) = collected else {
        return Err(failed(FailureKind::Garbage, "an endless answer of one token"));
    };
    match engine_failure(parts.status) {
        None => Ok((parts, bytes)),
        Some(kind) => {
            let text = format!("status {}", parts.status.as_u16());
            Err(TryFailed { last: Some(Box::new((parts, bytes))), ..failed(kind, text) })
        }
    }
}

/// SGLang's way.
async fn side_by_side(
    app: &App,
    call: &Call,
    turn: TurnId,
    (first, second): (&Target, &Target),
    priority: i32,
) -> Result<(Obtained, PrefillLeg), TryFailed> {
    let place = Rendezvous { at: &first.bootstrap, room: fresh_room(), rank: first.rank };
    let (body, headers) = place.write(call);
    let sent = Sent { body, headers, priority };
    let (tell, trouble) = oneshot::channel();
    let request =
        super::flight::engine_request(app, call, first, sent.clone()).map_err(TryFailed::at_prefill)?;
    let drain = Drain {
        client: app.engines.client().clone(),
        owner: app.owner.clone(),
        head: app.config.timeouts.response_head.0,
        idle: app.config.timeouts.stream_idle.0,
        turn,
    };
    let task = tokio::spawn(async move {
        if let Some(trouble) = drain.run(request).await {
            let _ = tell.send(trouble);
        }
    });
    let mut running = Running { task: Some(task), trouble: Some(trouble) };
    let obtained = tokio::select! {
        biased;
        trouble = running.trouble() => match trouble {
            Trouble::Failed(failed) => return Err(failed.at_prefill()),
            Trouble::Refused(refusal) => {
                let (parts, bytes) = *refusal;
                let facts = observe_body(call.dialect, &bytes);
                return Ok((Obtained::Whole(parts, bytes, Box::new(facts)), PrefillLeg::default()));
            }
        },
        obtained = ask(app, call, second, sent) => obtained,
    };
    match obtained {
        Ok(obtained) => Ok((obtained, PrefillLeg { cached: None, running: Some(running) })),
        // A worker for answers that fails because the other did is not at fault.
        Err(error) => match running.trouble.as_mut().map(oneshot::Receiver::try_recv) {
            Some(Ok(Trouble::Failed(failed))) => Err(failed.at_prefill()),
            Some(Ok(Trouble::Refused(_)) | Err(_)) | None => Err(error),
        },
    }
}

/// Where the workers of an SGLang pair meet.
struct Rendezvous<'a> {
    at: &'a Bootstrap,
    room: u64,
    /// The prefill worker's rank, where its engine has several.
    rank: Option<u32>,
}

impl Rendezvous<'_> {
    /// The call for both: in the body, or in headers for the dialect whose body has no such fields.
    fn write(&self, call: &Call) -> (Bytes, HeaderMap) {
        let host = serde_json::to_string(&self.at.host).unwrap_or_default();
        let port = self.at.port.unwrap_or(Bootstrap::PORT);
        let fields = [
            (BodyField::BootstrapHost, "x-override-bootstrap-host", Some((host, self.at.host.clone()))),
            (BodyField::BootstrapPort, "x-override-bootstrap-port", both(Some(port))),
            (BodyField::BootstrapRoom, "x-override-bootstrap-room", both(Some(self.room))),
            (BodyField::DisaggPrefillDpRank, "x-override-disagg-prefill-dp-rank", both(self.rank)),
        ];
        let fields = fields.into_iter().filter_map(|(field, name, value)| Some((field, name, value?)));
        let parsed = match call.dialect {
            Dialect::Responses => None,
            Dialect::Chat | Dialect::Completions | Dialect::Messages => {
                parse_request(call.dialect, &call.body).ok()
            }
        };
        let Some(parsed) = parsed else {
            let headers = fields.filter_map(|(_, name, (_, value))| {
                Some((HeaderName::from_static(name), HeaderValue::try_from(value).ok()?))
            });
            return (call.body.clone(), headers.collect());
        };
        let edits = fields.filter_map(|(field, _, (json, _))| parsed.set_field(field, json.as_bytes()));
        let mut edits: Vec<BodyEdit> = edits.collect();
        (apply_edits(&call.body, &mut edits).into(), HeaderMap::new())
    }
}

/// A number as JSON and as a header has it.
fn both<T: ToString>(number: Option<T>) -> Option<(String, String)> {
    number.map(|number| (number.to_string(), number.to_string()))
}

/// Below 2^63, which is what engines take; an odd step visits every number once before it begins again.
fn fresh_room() -> u64 {
    static SEED: LazyLock<u64> = LazyLock::new(|| Uuid::new_v4().as_u64_pair().1);
    static COUNT: AtomicU64 = AtomicU64::new(0);
    const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    SEED.wrapping_add(count.wrapping_mul(STEP)) & (u64::MAX >> 1)
}

/// Reads the answer of an SGLang prefill worker to its end.
struct Drain {
    client: tandem_engines::HttpClient,
    owner: crate::owner::Owner,
    head: std::time::Duration,
    idle: std::time::Duration,
    turn: TurnId,
}

impl Drain {
    async fn run(self, request: http::Request<tandem_engines::Body>) -> Option<Trouble> {
        let response = match self.client.send_within(request, self.head).await {
            Ok(response) => response,
            Err(error) => return Some(Trouble::Failed(super::flight::unsent(&error))),
        };
        let (parts, mut body) = response.into_parts();
        if parts.status.is_success() {
            // Its tokens are nobody's; only that it ends matters, and in the middle of nothing is kept.
            loop {
                match tokio::time::timeout(self.idle, http_body_util::BodyExt::frame(&mut body)).await {
                    Err(_) => return Some(trouble(FailureKind::Timeout, "the answer stopped")),
                    Ok(Some(Err(error))) => {
                        return Some(trouble(FailureKind::Disconnected, &error.to_string()));
                    }
                    Ok(Some(Ok(_))) => {}
                    Ok(None) => break,
                }
            }
            self.owner.prefill_done(self.turn);
            return None;
        }
        let text = format!("status {}", parts.status.as_u16());
        let bytes = match collect(body, super::flight::ERROR_BODY_MAX, self.idle).await {
            Ok(Collected::Whole(bytes)) => bytes,
            Ok(Collected::Large(..)) | Err(_) => Bytes::new(),
        };
        Some(match engine_failure(parts.status) {
            None => Trouble::Refused(Box::new((parts, bytes))),
            Some(kind) => {
                Trouble::Failed(TryFailed { last: Some(Box::new((parts, bytes))), ..failed(kind, text) })
            }
        })
    }
}

fn trouble(kind: FailureKind, text: &str) -> Trouble {
    Trouble::Failed(failed(kind, text))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// I-PD-5.
    #[test]
    fn rooms_are_below_two_to_the_63_and_never_the_same() {
        let rooms: HashSet<u64> = (0..100_000).map(|_| fresh_room()).collect();
        assert_eq!(rooms.len(), 100_000);
        assert!(rooms.iter().all(|room| *room < 1 << 63));
    }
}
