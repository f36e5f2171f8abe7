//! From a request to its identity.
//!
//! - Purpose: walks [`crate::table::MAPPINGS`] and puts together what the other modules find.
//! - Inputs: head and body facts of one request, its tenant, switches. Output: [`Identity`].
//! - Invariants: those of the crate; and I-IDE-1 a root never has a parent where agents are marked;
//!   I-IDE-2 an agent mark that cannot be read makes the mapping fail rather than the child pass for the
//!   root; I-IDE-3 group and final marker come with an identity or not at all.
//! - Deliberately absent: state. What must remember earlier requests is named in the crate's head.

use std::time::Duration;

use http::{HeaderMap, Method};
use serde::{Deserialize, Serialize};
use tandem_types::{
    AgentContext, AgentId, GroupId, Harness, HarnessFacts, IdentitySource, ProgramKey, RequestClass,
    RetryKey, SessionId, TenantId, TurnFacts,
};

use crate::facts::{self, CodexTurn};
use crate::hold::Declared;
use crate::read::{Reader, Value, parse_trace_id};
use crate::table::{Agents, GROUP_ID, HOLD_MAX, MAPPINGS, Mapping, Place, SESSION_FINAL, When};
use crate::{class, harness, retry};

/// The head of an HTTP request, as far as identity needs it.
#[derive(Debug, Clone, Copy)]
pub struct RequestHead<'a> {
    /// Method.
    pub method: &'a Method,
    /// Path, with or without a query.
    pub path: &'a str,
    /// Headers as received.
    pub headers: &'a HeaderMap,
}

impl<'a> RequestHead<'a> {
    /// The path without its query.
    pub(crate) fn path_only(&self) -> &'a str {
        self.path.split_once('?').map_or(self.path, |(path, _)| path)
    }
}

/// Which sources of identity are used and what is kept for traces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IdentityConfig {
    /// Use headers that no harness owns (`x-session-id`, `session_id`, `x-session-affinity`, ...).
    pub generic_headers: bool,
    /// Use fields of the body (`prompt_cache_key`, `metadata.user_id`, `session_id`).
    pub body_fields: bool,
    /// Use the W3C trace id for harnesses known to keep one per run.
    pub trace_parent: bool,
    /// Keep harness headers verbatim for the trace.
    pub capture_headers: bool,
    /// Keep also those that describe the user's machine (Codex's turn metadata names paths and commits).
    pub capture_private_headers: bool,
}

impl Default for IdentityConfig {
    fn default() -> Self {
        Self {
            generic_headers: true,
            body_fields: true,
            trace_parent: true,
            capture_headers: true,
            capture_private_headers: false,
        }
    }
}

/// Why a value that should have been an id (or another bounded fact) was not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WarningKind {
    /// Longer than the bound.
    TooLong,
    /// Bytes outside visible ASCII.
    NotVisibleAscii,
    /// Not of the form that the field must have (a boolean, a trace context, durations).
    Malformed,
    /// More opaque headers than are kept.
    TooMany,
}

/// A value that was counted and skipped. Both parts come from small fixed sets: safe as metric labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct IdentityWarning {
    /// The header or body field.
    pub field: &'static str,
    /// What is wrong with it.
    pub kind: WarningKind,
}

/// All that one request tells about its sender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The program and its place in the tree; `None` when the request carries no identity.
    pub context: Option<AgentContext>,
    /// The header or body field that gave the session id.
    pub found_in: Option<&'static str>,
    /// Several agents may speak under this program key, because the harness marks none of them. Prompt
    /// lineage must tell them apart, and an equal body is a repetition only once the first connection is
    /// gone (two siblings may well send equal first prompts at once).
    pub shared: bool,
    /// What the call is for.
    pub class: RequestClass,
    /// The sender's make.
    pub harness: Harness,
    /// What the harness volunteers.
    pub facts: HarnessFacts,
    /// Equal for a call and its repetition; `None` without an identity, and for calls of which equal ones
    /// may rightly run side by side (token counts, probes, auxiliary calls).
    pub retry_key: Option<RetryKey>,
    /// The answer that this request continues (Responses `previous_response_id`), within the bounds of ids.
    pub previous_response: Option<String>,
    /// The client's own read time-out, in whole milliseconds, where its SDK states one.
    pub client_timeout_ms: Option<u64>,
    /// How long the client says that it waits until an answer begins, in whole milliseconds.
    pub hold_max_ms: Option<u64>,
    /// Values that were skipped.
    pub warnings: Vec<IdentityWarning>,
}

impl Identity {
    /// Where the session id was found.
    #[must_use]
    pub fn source(&self) -> Option<IdentitySource> {
        self.context.as_ref().map(|c| c.source)
    }

    /// What the client says of its patience.
    #[must_use]
    pub fn declared(&self) -> Declared {
        let time = |ms: Option<u64>| ms.map(Duration::from_millis);
        Declared { read_timeout: time(self.client_timeout_ms), hold_max: time(self.hold_max_ms) }
    }
}

/// Finds out who sent a request and what for.
///
/// `facts` is `None` for requests without a parsed body (probes, token counts answered unparsed, socket
/// upgrades): headers alone then decide. Never fails: what cannot be used is in
/// [`Identity::warnings`].
#[must_use]
pub fn identify(
    head: &RequestHead<'_>,
    facts: Option<&TurnFacts>,
    tenant: &TenantId,
    config: &IdentityConfig,
) -> Identity {
    let mut reader = Reader::new(head.headers);
    let harness = harness::detect(head, facts);
    let found = MAPPINGS.iter().find_map(|mapping| {
        let used = enabled(mapping, config) && applies(mapping, harness, &reader);
        if used { apply(mapping, facts, tenant, &mut reader) } else { None }
    });
    let shared = found.as_ref().is_some_and(|f| may_be_shared(f.mapping, harness));
    let found_in = found.as_ref().map(|f| f.found_in);
    let context = found.map(|found| AgentContext {
        program: found.program,
        parent: found.parent,
        group: reader.first_id(GROUP_ID, GroupId::new).map(|(id, _)| id),
        session_final: reader.first_bool(SESSION_FINAL),
        source: found.mapping.source,
    });
    let codex = CodexTurn::read(&mut reader);
    let class = class::classify(head, facts, harness, &codex, &mut reader);
    let retry_key = match (&context, facts) {
        (Some(context), Some(facts)) => retry::key(&context.program, class, facts.digest),
        _ => None,
    };
    let previous_response = facts
        .and_then(|f| f.ids.previous_response_id.as_deref())
        .and_then(|id| reader.check("previous_response_id", SessionId::new(id)).usable())
        .map(String::from);
    let harness_facts = facts::read(&mut reader, codex, config);
    let client_timeout_ms = client_timeout_ms(&mut reader);
    let hold_max_ms = hold_max_ms(&mut reader);
    Identity {
        context,
        found_in,
        shared,
        class,
        harness,
        facts: harness_facts,
        retry_key,
        previous_response,
        client_timeout_ms,
        hold_max_ms,
        warnings: reader.into_warnings(),
    }
}

/// What a mapping gave.
struct Match {
    mapping: &'static Mapping,
    found_in: &'static str,
    program: ProgramKey,
    parent: Option<ProgramKey>,
}

const fn enabled(mapping: &Mapping, config: &IdentityConfig) -> bool {
    match mapping.source {
        IdentitySource::GenericHeader => config.generic_headers,
        IdentitySource::BodyField => config.body_fields,
        IdentitySource::TraceParent => config.trace_parent,
        IdentitySource::Canonical
        | IdentitySource::ClaudeCode
        | IdentitySource::Codex
        | IdentitySource::OpenCode => true,
        // Needs memory: never found in a request alone.
        IdentitySource::Inferred => false,
    }
}

fn applies(mapping: &Mapping, harness: Harness, reader: &Reader<'_>) -> bool {
    match mapping.when {
        When::Always => true,
        When::HarnessOrHeader(h, names) => harness == h || names.iter().any(|n| reader.has(n)),
        When::Harness(list) => list.contains(&harness),
    }
}

fn apply(
    mapping: &'static Mapping,
    facts: Option<&TurnFacts>,
    tenant: &TenantId,
    reader: &mut Reader<'_>,
) -> Option<Match> {
    let (session, found_in) = session(mapping.session, facts, reader)?;
    let root = ProgramKey::root(tenant.clone(), session);
    let agent_program = |id: AgentId| ProgramKey {
        agent: (id.as_str() != root.session.as_str()).then_some(id),
        ..root.clone()
    };
    let (program, parent) = match mapping.agents {
        Agents::Unmarked => (root, None),
        Agents::OwnSession { parent } => {
            let parent = reader.first_id(parent, SessionId::new);
            (root, parent.map(|(id, _)| ProgramKey::root(tenant.clone(), id)))
        }
        Agents::Marked { agent, required, parent, root_by_default } => {
            // A marked agent whose mark cannot be read must not pass for the root: the mapping fails, and
            // a later one may still find the session.
            let program = match reader.id(agent, AgentId::new) {
                Value::Usable(id) => agent_program(id),
                Value::Absent if !required => root.clone(),
                Value::Absent | Value::Unusable => return None,
            };
            let parent = match &program.agent {
                None => None,
                Some(_) => match reader.id(parent, AgentId::new).usable() {
                    Some(id) => Some(agent_program(id)),
                    None => root_by_default.then(|| root.clone()),
                },
            };
            (program, parent)
        }
    };
    let parent = parent.filter(|p| *p != program);
    Some(Match { mapping, found_in, program, parent })
}

fn session(
    place: Place,
    facts: Option<&TurnFacts>,
    reader: &mut Reader<'_>,
) -> Option<(SessionId, &'static str)> {
    let (text, field): (&str, _) = match place {
        Place::Headers(names) => return reader.first_id(names, SessionId::new),
        Place::PromptCacheKey => (facts?.ids.prompt_cache_key.as_deref()?, "prompt_cache_key"),
        Place::BodySessionId => (facts?.ids.session_id.as_deref()?, "session_id (body)"),
        Place::MetadataUserId => {
            let id = session_in_user_id(facts?.ids.metadata_user_id.as_deref()?)?;
            return reader.check(USER_ID, SessionId::new(&id)).usable().map(|id| (id, USER_ID));
        }
        Place::TraceParent => {
            let value = reader.text(TRACE_PARENT).usable()?;
            let Some(trace) = parse_trace_id(value) else {
                reader.warn(TRACE_PARENT, WarningKind::Malformed);
                return None;
            };
            (trace, TRACE_PARENT)
        }
    };
    reader.check(field, SessionId::new(text)).usable().map(|id| (id, field))
}

const USER_ID: &str = "metadata.user_id";
const TRACE_PARENT: &str = "traceparent";

/// The session inside Claude Code's `metadata.user_id`; `None` for a plain user name.
fn session_in_user_id(user_id: &str) -> Option<String> {
    /// No id that we accept comes in a longer text; a longer one is not worth parsing.
    const BYTES_MAX: usize = 4096;
    if user_id.len() > BYTES_MAX {
        return None;
    }
    if user_id.trim_start().starts_with('{') {
        let fields: serde_json::Map<String, serde_json::Value> = serde_json::from_str(user_id).ok()?;
        return fields.get("session_id")?.as_str().map(str::to_owned);
    }
    user_id.rsplit_once("_session_").map(|(_, id)| id.to_owned())
}

/// Whether several agents may speak under the program that a mapping gave.
fn may_be_shared(mapping: &Mapping, harness: Harness) -> bool {
    match (mapping.source, mapping.agents) {
        // These two put one and the same foreign header on the requests of all their agents.
        (IdentitySource::Canonical | IdentitySource::GenericHeader, Agents::OwnSession { .. }) => {
            matches!(harness, Harness::ClaudeCode | Harness::Codex)
        }
        // Pi has no subagents, and those of OpenCode have sessions of their own.
        (_, Agents::Unmarked) => !matches!(harness, Harness::Pi | Harness::OpenCode),
        (_, Agents::OwnSession { .. } | Agents::Marked { .. }) => false,
    }
}

/// The SDK's own read time-out: whole or decimal seconds.
fn client_timeout_ms(reader: &mut Reader<'_>) -> Option<u64> {
    const FIELDS: [&str; 2] = ["x-stainless-read-timeout", "x-stainless-timeout"];
    // SDKs write a word here when there is no time-out: not a defect.
    FIELDS.iter().find_map(|field| millis(reader.text(field).usable()?))
}

/// What the client says itself; here a word is a defect.
fn hold_max_ms(reader: &mut Reader<'_>) -> Option<u64> {
    let text = reader.text(HOLD_MAX).usable()?;
    let ms = millis(text);
    if ms.is_none() {
        reader.warn(HOLD_MAX, WarningKind::Malformed);
    }
    ms
}

/// Whole or decimal seconds above 0, in milliseconds.
fn millis(text: &str) -> Option<u64> {
    let time = Duration::try_from_secs_f64(text.parse().ok()?).ok()?;
    u64::try_from(time.as_millis()).ok().filter(|ms| *ms > 0)
}
