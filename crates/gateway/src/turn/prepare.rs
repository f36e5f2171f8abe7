//! From an HTTP request to a turn in the scheduler's hands: body, identity, edits, arrival.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, header};
use hyper::body::Incoming;
use sha2::{Digest as _, Sha256};
use tandem_dialect::{BodyField, ErrorKind, ParsedRequest, apply_edits, parse_request};
use tandem_identity::{Handling, Identity, RequestHead, hold_tolerance, hygiene, identify};
use tandem_scheduler::TurnArrival;
use tandem_trace::record::HygieneFound;
use tandem_types::{
    AgentContext, Dialect, EngineKind, Harness, IdentitySource, PrefixMatch, RequestClass, RouteWishes,
    TenantId, Time, TurnFacts, TurnId,
};

use super::flight::{Call, engine_path};
use super::pd::PrefillLeg;
use super::prompt::TurnPrompt;
use super::story::{Beginning, Story};
use super::{Turn, wishes};
use crate::app::App;
use crate::body::{Body, ReadError, Reserved};
use crate::clock::unix_ms;
use crate::config::TraceTokens;
use crate::kv::blocks::{self, Query};
use crate::kv::engine_session;
use crate::metrics::Family;
use crate::respond::{self, RequestIdentity};
use crate::trace_log::{Payload, PromptTokens};

/// What a request came to, or the answer that refuses it.
type Prepared = Result<(Turn, Arc<Call>), Box<Response<Body>>>;

pub(super) async fn prepare(
    app: &Arc<App>,
    dialect: Dialect,
    tenant: TenantId,
    ids: &RequestIdentity,
    request: Request<Incoming>,
) -> Prepared {
    let arrived = Instant::now();
    let times = (unix_ms(), app.clock.now());
    let refuse =
        |kind: ErrorKind, message: &str| Box::new(respond::error(app, Some(dialect), kind, message, None));
    let Ok(slot) = Arc::clone(&app.slots).try_acquire_owned() else {
        app.metrics.inc(Family::LimitHits, &[("limit", "max_concurrent_requests")]);
        return Err(refuse(ErrorKind::QueueFull, "too many calls at once"));
    };
    let (head, body) = request.into_parts();
    let (body, memory) =
        read(app, &head.headers, body).await.map_err(|(kind, message)| refuse(kind, &message))?;
    let complete = Instant::now();
    let parsed = parse_request(dialect, &body).map_err(|error| refuse(error.kind(), &error.to_string()))?;
    let turn = app.next_turn();
    let (mut story, call, arrival) =
        make(app, turn, tenant, ids, times, Received { head, body, memory, parsed }).await;
    story.wishes.clone_from(&arrival.wishes);
    app.metrics.lasted(Family::PrepareSeconds, &[], complete.elapsed());
    let Ok((effects, last_word)) = app.owner.arrive(arrival).await else {
        return Err(refuse(ErrorKind::ShuttingDown, "the server is shutting down"));
    };
    app.metrics.shift(Family::TurnsInFlight, 1.0);
    let turn = Turn {
        app: Arc::clone(app),
        id: turn,
        effects,
        last_word: Some(last_word),
        story,
        prefill: PrefillLeg::default(),
        deadline: arrived + app.config.request_timeout,
        _slot: slot,
    };
    Ok((turn, Arc::new(call)))
}

/// A request that was read.
struct Received {
    head: http::request::Parts,
    body: Bytes,
    memory: Reserved,
    parsed: ParsedRequest,
}

/// What a request is to the story, to the engines and to the scheduler.
async fn make(
    app: &App,
    turn: TurnId,
    tenant: TenantId,
    ids: &RequestIdentity,
    (received_unix_ms, received): (u64, Time),
    request: Received,
) -> (Story, Call, TurnArrival) {
    let Received { mut head, body, memory, parsed } = request;
    let target = engine_path(&head.uri);
    let request_head = RequestHead { method: &head.method, path: &target, headers: &head.headers };
    let mut identity = identify(&request_head, Some(&parsed.facts), &tenant, &app.config.identity);
    let payload = app.trace.wants_payload().then(|| {
        Box::new(Payload {
            request_id: ids.own.to_string(),
            endpoint: endpoint(parsed.facts.dialect),
            model: parsed.facts.model.clone().unwrap_or_default(),
            request: body.clone(),
            response: None,
            headers: app.trace.payload_headers(&head.headers),
        })
    });
    let session = session_in_body(app, &identity, &parsed);
    let edited = edit(app, parsed.facts.dialect, &tenant, identity.harness, &parsed, session, body);
    infer(app, &tenant, &mut identity, parsed.facts.dialect, &edited.body).await;
    count_identity(app, &identity);
    app.decisions.name(turn, ids);
    let mut prompt = TurnPrompt::new(app.kv.clone(), turn, wishes::explain(&head.headers));
    let wanted = wishes::wishes(&head.headers, &app.metrics);
    find_blocks(app, &mut prompt, &identity, &parsed, &edited).await;
    engine_headers(app, &mut head.headers, &identity);
    let seen = app.trace.enabled() && app.config.trace_tokens != TraceTokens::Off;
    let known = prompt.found.tokens.as_ref().filter(|_| seen).map(|tokens| tokens.to_vec());
    let known = parsed.facts.prompt_tokens.clone().or(known);
    let mut story = Story::begin(Beginning {
        tenant,
        request_id: ids.own.clone(),
        x_request_id: ids.client.clone(),
        identity: &identity,
        facts: &parsed.facts,
        hygiene: edited.hygiene,
        prompt: known.map_or(PromptTokens::Unknown, PromptTokens::Known),
        queue_depth: app.held.load(Ordering::Relaxed),
        received_unix_ms,
        received,
        kv: prompt,
    });
    story.payload = payload;
    let hold_max = hold(app, &identity, &parsed, &mut story);
    let call = Call {
        dialect: parsed.facts.dialect,
        target,
        headers: head.headers,
        body: edited.body,
        _memory: memory,
        strip_usage: edited.strip_usage,
        choices: parsed.answer_choices(),
        model: parsed.facts.model.clone(),
        engine_id: app.ids.claim(ids.client.as_ref(), &ids.own),
    };
    let found = &story.kv.found;
    let arrival = TurnArrival {
        input_tokens_estimate: found.exact_tokens().unwrap_or_else(|| input_tokens(&parsed.facts)),
        prefix: found.prefix.clone(),
        wishes: wanted,
        ..arrival(turn, &identity, &parsed, hold_max)
    };
    (story, call, arrival)
}

/// Takes a turn without an id for the next one of the session that its prompt extends, where that is wanted.
async fn infer(app: &App, tenant: &TenantId, identity: &mut Identity, dialect: Dialect, body: &Bytes) {
    let Some(kv) = app.kv.as_ref().filter(|_| app.config.infer) else { return };
    if identity.context.is_some() || identity.class != RequestClass::Turn {
        return;
    }
    let program = blocks::infer(kv, tenant, dialect, body).await;
    identity.context = program.map(|program| AgentContext {
        program,
        parent: None,
        group: None,
        session_final: None,
        source: IdentitySource::Inferred,
    });
}

/// Finds a prompt's blocks, where an index is kept.
async fn find_blocks(
    app: &App,
    prompt: &mut TurnPrompt,
    identity: &Identity,
    parsed: &ParsedRequest,
    edited: &Edited,
) {
    let context = identity.context.as_ref();
    prompt.program = context.map(|context| context.program.clone());
    prompt.parent = context.and_then(|context| context.parent.clone());
    prompt.is_turn = identity.class == RequestClass::Turn;
    prompt.last = context.is_some_and(|context| context.session_final == Some(true));
    let Some(kv) = &app.kv else { return };
    let query = Query {
        dialect: parsed.facts.dialect,
        model: parsed.facts.model.as_deref(),
        body: &edited.body,
        client_tokens: parsed.facts.prompt_tokens.as_deref(),
        program: prompt.program.as_ref(),
        is_turn: prompt.is_turn,
        harness: identity.harness,
        compacted: identity.facts.context_compacted.is_some(),
        salt: edited.salt.as_deref().map(Arc::from),
    };
    prompt.found = blocks::find(kv, &query).await;
}

/// Takes out what is for us alone, and names the session for engines that echo it in their events.
fn engine_headers(app: &App, headers: &mut HeaderMap, identity: &Identity) {
    headers.remove(wishes::ROUTE);
    headers.remove(wishes::EXPLAIN);
    let tell = app.kv.as_ref().is_some_and(|kv| kv.settings.tell_sessions);
    let Some(context) = identity.context.as_ref().filter(|_| tell) else { return };
    if let Ok(value) = HeaderValue::try_from(engine_session(&context.program)) {
        headers.insert(X_SESSION_ID, value);
    }
}

/// The session for engines that take its id in the body only (SGLang, on its OpenAI routes); the client's own stays.
fn session_in_body(app: &App, identity: &Identity, parsed: &ParsedRequest) -> Option<String> {
    let kv = app.kv.as_ref().filter(|kv| kv.settings.tell_sessions)?;
    let context = identity.context.as_ref()?;
    if parsed.facts.dialect == Dialect::Messages || parsed.field(BodyField::SessionId).is_some() {
        return None;
    }
    let serving = kv.fleet.serving(parsed.facts.model.as_deref(), &kv.engines);
    let takes = !serving.is_empty() && serving.iter().all(|seen| seen.kind == EngineKind::Sglang);
    takes.then(|| engine_session(&context.program))
}

/// The header in which vLLM takes a session's id.
const X_SESSION_ID: HeaderName = HeaderName::from_static("x-session-id");

/// A dialect as payload rows name it.
const fn endpoint(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Chat => "openai.chat_completion",
        Dialect::Completions => "openai.completion",
        Dialect::Responses => "openai.response",
        Dialect::Messages => "anthropic.message",
    }
}

/// Reads the body, or says why not.
pub(crate) async fn read(
    app: &App,
    headers: &HeaderMap,
    body: Incoming,
) -> Result<(Bytes, Reserved), (ErrorKind, String)> {
    let encoded = headers
        .get(header::CONTENT_ENCODING)
        .is_some_and(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity"));
    if encoded {
        let message = "compressed request bodies are not read here: send it without content-encoding";
        return Err((ErrorKind::UnsupportedMedia, message.to_owned()));
    }
    match app.reading.read(body, headers.contains_key(header::EXPECT)).await {
        Ok(read) => Ok(read),
        Err(error) => {
            app.metrics.inc(Family::LimitHits, &[("limit", error.name())]);
            Err(match error {
                ReadError::TooLarge => {
                    let max = app.config.limits.max_payload_size;
                    (ErrorKind::TooLarge, format!("the request body is larger than {max}"))
                }
                ReadError::NoMemory => {
                    (ErrorKind::QueueFull, "the memory for request bodies is full".to_owned())
                }
                ReadError::TooSlow => (ErrorKind::BadRequest, "the request body stopped coming".to_owned()),
                ReadError::Broken => (ErrorKind::BadRequest, "the request body broke off".to_owned()),
            })
        }
    }
}

fn count_identity(app: &App, identity: &Identity) {
    let source = identity.source().map_or("none", source_word);
    app.metrics.inc(Family::Identity, &[("source", source)]);
    for warning in &identity.warnings {
        let kind = match warning.kind {
            tandem_identity::WarningKind::TooLong => "too_long",
            tandem_identity::WarningKind::NotVisibleAscii => "not_visible_ascii",
            tandem_identity::WarningKind::Malformed => "malformed",
            tandem_identity::WarningKind::TooMany => "too_many",
        };
        app.metrics.inc(Family::IdentityWarnings, &[("field", warning.field), ("kind", kind)]);
    }
}

const fn source_word(source: tandem_types::IdentitySource) -> &'static str {
    use tandem_types::IdentitySource as Source;
    match source {
        Source::Canonical => "canonical",
        Source::ClaudeCode => "claude_code",
        Source::Codex => "codex",
        Source::OpenCode => "open_code",
        Source::GenericHeader => "generic_header",
        Source::BodyField => "body_field",
        Source::TraceParent => "trace_parent",
        Source::Inferred => "inferred",
    }
}

/// A body with our edits.
pub(crate) struct Edited {
    pub(crate) body: Bytes,
    strip_usage: bool,
    hygiene: Vec<HygieneFound>,
    /// The salt under which engines cache it.
    pub(crate) salt: Option<String>,
}

pub(crate) fn edit(
    app: &App,
    dialect: Dialect,
    tenant: &TenantId,
    harness: Harness,
    parsed: &ParsedRequest,
    session: Option<String>,
    body: Bytes,
) -> Edited {
    let plan = hygiene::plan(dialect, harness, &body, &app.config.hygiene);
    let mut found = Vec::with_capacity(plan.found.len());
    for item in &plan.found {
        let kind = volatile_word(item.kind);
        app.metrics.inc(Family::Hygiene, &[("kind", kind)]);
        app.metrics.count(Family::HygieneBytes, &[], item.bytes as u64);
        let edited = item.handling != Handling::Keep;
        found.push(HygieneFound { kind: kind.to_owned(), bytes: item.bytes as u64, edited });
    }
    let mut edits = plan.edits;
    let usage = if app.config.ask_for_usage { parsed.ask_for_usage() } else { None };
    let strip_usage = usage.is_some();
    edits.extend(usage);
    let mut in_force = parsed
        .field(BodyField::CacheSalt)
        .and_then(|range| serde_json::from_slice::<String>(body.get(range)?).ok())
        .filter(|salt| !salt.is_empty());
    if app.config.tenancy.salt_caches {
        let ours = salt(tenant, parsed, &body);
        edits.extend(parsed.set_field(BodyField::CacheSalt, format!("\"{ours}\"").as_bytes()));
        in_force = Some(ours);
    }
    let session = session.and_then(|session| serde_json::to_vec(&session).ok());
    edits.extend(session.and_then(|session| parsed.set_field(BodyField::SessionId, &session)));
    let body = if edits.is_empty() { body } else { apply_edits(&body, &mut edits).into() };
    Edited { body, strip_usage, hygiene: found, salt: in_force }
}

const fn volatile_word(kind: tandem_identity::VolatileKind) -> &'static str {
    match kind {
        tandem_identity::VolatileKind::BillingLine => "billing_line",
        tandem_identity::VolatileKind::TokenBudget => "token_budget",
        tandem_identity::VolatileKind::DateTime => "date_time",
    }
}

/// What keeps a tenant's cached prompts apart: a salt made of the tenant and of the client's own salt, if it has
/// one, so that no client can name another tenant's.
fn salt(tenant: &TenantId, parsed: &ParsedRequest, body: &[u8]) -> String {
    let mut hash = Sha256::new();
    hash.update(tenant.as_str().as_bytes());
    hash.update([0]);
    if let Some(own) = parsed.field(BodyField::CacheSalt).and_then(|range| body.get(range)) {
        hash.update(own);
    }
    let digest = hash.finalize();
    digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// How long the turn may be held, and when its client must see something.
fn hold(app: &App, identity: &Identity, parsed: &ParsedRequest, story: &mut Story) -> Duration {
    let hold = &app.config.hold;
    let tolerance = hold_tolerance(identity.harness, parsed.facts.stream, identity.declared());
    let early = tolerance.early_200.filter(|_| hold.early_200 && parsed.facts.stream);
    story.early_200_after = early.map(|_| tolerance.early_200_after);
    story.keep_alive = early.map_or(hold.keep_alive.0, |keep_alive| keep_alive.every.min(hold.keep_alive.0));
    let longest = if early.is_some() { tolerance.longest() } else { tolerance.silent };
    longest.min(hold.max.0).min(app.config.request_timeout)
}

fn arrival(turn: TurnId, identity: &Identity, parsed: &ParsedRequest, hold_max: Duration) -> TurnArrival {
    let context = identity.context.as_ref();
    TurnArrival {
        turn,
        program: context.map(|context| context.program.clone()),
        parent: context.and_then(|context| context.parent.clone()),
        group: context.and_then(|context| context.group.clone()),
        session_final: context.is_some_and(|context| context.session_final == Some(true)),
        class: identity.class,
        // Agents that share a key may rightly send equal calls at once; a client that really left has ended
        // its first call already.
        retry_key: identity.retry_key.filter(|_| !identity.shared),
        model: parsed.facts.model.clone(),
        input_tokens_estimate: input_tokens(&parsed.facts),
        prefix: PrefixMatch::unknown(),
        wishes: RouteWishes::none(),
        max_output_tokens: parsed.facts.max_output_tokens,
        hold_max,
    }
}

/// Expected prompt length: what the client counted itself, or four bytes of body to a token.
fn input_tokens(facts: &TurnFacts) -> u64 {
    facts.prompt_tokens.as_ref().map_or(facts.shape.body_bytes as u64 / 4, |tokens| tokens.len() as u64)
}
