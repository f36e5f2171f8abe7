//! What was recognised of one request, and how it could be recognised better.
//!
//! - Purpose: a person who put the gateway before a harness asks why its sessions are not seen, or are seen
//!   as one. The answer names the header that decided and the setting that would help.
//! - Inputs: the request head and what [`crate::identify()`] and [`crate::hygiene::plan`] made of it.
//!   Output: [`Explanation`], to print or to send as JSON.
//! - Invariants: I-EXP-1 it repeats ids and names of headers, never prompt text or credentials; I-EXP-2 it
//!   recomputes nothing: what it says is what was used.
//! - Sources of the settings: documentation and configuration files of the versions in the tables.

use serde::Serialize;
use tandem_types::{Harness, IdentitySource, RequestClass, TurnFacts};

use crate::hold::hold_tolerance;
use crate::hygiene::{Handling, HygienePlan, VolatileKind};
use crate::identify::{Identity, RequestHead, WarningKind};
use crate::table::{Agents, MAPPINGS, Mapping, Place};

/// A report on one request, for people; also JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The sender's make.
    pub harness: Harness,
    /// What the call is for.
    pub class: RequestClass,
    /// Where the identity was found.
    pub source: Option<IdentitySource>,
    /// The header or field that gave it.
    pub found_in: Option<&'static str>,
    /// The program, as `tenant/session` or `tenant/session/agent`.
    pub program: Option<String>,
    /// Its parent, likewise.
    pub parent: Option<String>,
    /// What was found, where, and what was made of it. One sentence each.
    pub findings: Vec<String>,
    /// What to set so that more is recognised. One sentence each.
    pub advice: Vec<String>,
}

/// Explains what became of a request.
#[must_use]
pub fn explain(
    head: &RequestHead<'_>,
    facts: Option<&TurnFacts>,
    identity: &Identity,
    plan: Option<&HygienePlan>,
) -> Explanation {
    let context = identity.context.as_ref();
    let mut findings = vec![format!("the sender looks like {}", name(identity.harness))];
    describe_identity(identity, &mut findings);
    describe_others(head, identity, &mut findings);
    for warning in &identity.warnings {
        let why = match warning.kind {
            WarningKind::TooLong => "is longer than allowed",
            WarningKind::NotVisibleAscii => "has bytes outside visible ascii",
            WarningKind::Malformed => "is malformed",
            WarningKind::TooMany => "has more values than are kept",
        };
        findings.push(format!("{} {why} and was skipped", warning.field));
    }
    for found in plan.map(|p| p.found.as_slice()).unwrap_or_default() {
        let (what, done) = (volatile_name(found.kind), handling_name(found.handling));
        findings.push(format!("{what} in the system prompt ({} bytes) is {done}", found.bytes));
    }
    if let Some(facts) = facts {
        describe_hold(identity, facts.stream, &mut findings);
    }
    Explanation {
        harness: identity.harness,
        class: identity.class,
        source: identity.source(),
        found_in: identity.found_in,
        program: context.map(|c| c.program.to_string()),
        parent: context.and_then(|c| c.parent.as_ref()).map(ToString::to_string),
        findings,
        advice: advice(identity, plan),
    }
}

fn describe_identity(identity: &Identity, findings: &mut Vec<String>) {
    let (Some(context), Some(field)) = (&identity.context, identity.found_in) else {
        findings.push("no header or body field carries a session id".to_owned());
        return;
    };
    findings.push(format!("{field} gives the program {}", context.program));
    if let Some(parent) = &context.parent {
        findings.push(format!("it is a child of {parent}"));
    }
    if identity.shared {
        findings.push("several agents may share this id; only their prompts tell them apart".to_owned());
    }
    if let Some(group) = &context.group {
        findings.push(format!("it belongs to the group {group}"));
    }
    if !identity.class.is_turn() {
        findings.push("the call is no turn: it is not held and moves no state".to_owned());
    }
}

/// Names the headers that told agent and parent, and identity headers that lost to an earlier mapping.
fn describe_others(head: &RequestHead<'_>, identity: &Identity, findings: &mut Vec<String>) {
    let (Some(context), Some(found_in)) = (&identity.context, identity.found_in) else { return };
    let there = |name: &&'static str| head.headers.contains_key(*name) && *name != found_in;
    // The mapping that decided, or one that would have decided the same.
    let used = MAPPINGS.iter().find(|m| m.source == context.source && header_names(m).any(|n| n == found_in));
    let marks: Vec<&str> = used.map(agent_names).unwrap_or_default().into_iter().filter(there).collect();
    if !marks.is_empty() {
        findings.push(format!("agent and parent are told by {}", marks.join(", ")));
    }
    let names = MAPPINGS.iter().flat_map(header_names);
    let mut unused: Vec<&str> = names.filter(there).filter(|name| !marks.contains(name)).collect();
    unused.sort_unstable();
    unused.dedup();
    if !unused.is_empty() {
        findings.push(format!("also there, but not used for the session: {}", unused.join(", ")));
    }
}

/// The headers that tell a mapping's agents apart.
fn agent_names(mapping: &Mapping) -> Vec<&'static str> {
    match mapping.agents {
        Agents::OwnSession { parent } => parent.to_vec(),
        Agents::Marked { agent, parent, .. } => vec![agent, parent],
        Agents::Unmarked => Vec::new(),
    }
}

fn header_names(mapping: &Mapping) -> impl Iterator<Item = &'static str> + use<> {
    let sessions = match mapping.session {
        Place::Headers(names) => names,
        Place::PromptCacheKey | Place::MetadataUserId | Place::BodySessionId => &[],
        Place::TraceParent => &["traceparent"],
    };
    sessions.iter().copied()
}

fn describe_hold(identity: &Identity, stream: bool, findings: &mut Vec<String>) {
    let hold = hold_tolerance(identity.harness, stream, identity.declared());
    findings.push(match hold.early_200 {
        Some(_) => format!(
            "it may be held silently for {} s, and for {} s with keep-alive events from second {} on",
            hold.silent.as_secs(),
            hold.longest().as_secs(),
            hold.early_200_after.as_secs()
        ),
        None => format!("it may be held silently for {} s", hold.silent.as_secs()),
    });
}

fn advice(identity: &Identity, plan: Option<&HygienePlan>) -> Vec<String> {
    let mut advice: Vec<&str> = Vec::new();
    match identity.source() {
        None => advice.push(without_identity(identity.harness)),
        Some(IdentitySource::Canonical) if identity.shared => advice.push(
            "take the x-dynamo-session-id or x-tandem-session-id header out of the harness's settings: its own \
             headers tell its subagents apart, a fixed header merges them",
        ),
        Some(IdentitySource::BodyField) if identity.harness == Harness::ClaudeCode => advice
            .push("let the proxy in between pass the x-claude-code-* headers on: they mark the subagents"),
        Some(IdentitySource::GenericHeader | IdentitySource::BodyField)
            if identity.shared && identity.harness == Harness::Unknown =>
        {
            advice.push(
                "if this client runs several agents, give each an x-tandem-session-id of its own and name its \
                 parent in x-tandem-parent-session-id",
            );
        }
        Some(_) => {}
    }
    if identity.found_in == Some("session_id") {
        advice.push(
            "some reverse proxies drop headers with underscores: allow them (nginx: underscores_in_headers on) or \
             send session-id",
        );
    }
    if identity.found_in == Some("thread-id") {
        advice.push("let the proxy in between pass session-id on: it ties the threads of one run together");
    }
    if identity.harness == Harness::ClaudeCode && !hinted(identity) {
        advice.push(
            "set CLAUDE_CODE_GATEWAY_HINT_HEADERS=1 in Claude Code: it then tells tool run times, the class of each \
             call and compaction",
        );
    }
    for found in plan.map(|p| p.found.as_slice()).unwrap_or_default() {
        match (found.kind, found.handling) {
            (VolatileKind::BillingLine, Handling::Keep) => advice.push(
                "set CLAUDE_CODE_ATTRIBUTION_HEADER=0 in Claude Code, or remove the billing line here: no two sessions \
                 share a prefix with it",
            ),
            (VolatileKind::DateTime, Handling::Keep) => advice.push(
                "freeze the start time if the model's chat template puts tools after the system prompt: sessions then \
                 share them",
            ),
            _ => {}
        }
    }
    advice.into_iter().map(str::to_owned).collect()
}

/// Whether Claude Code's hint headers are on.
fn hinted(identity: &Identity) -> bool {
    let facts = &identity.facts;
    facts.prompt_id.is_some()
        || facts.agent_type.is_some()
        || facts.compaction.is_some()
        || identity.class == RequestClass::Auxiliary
        || facts.agent_headers.contains_key("x-claude-code-request-class")
}

const fn without_identity(harness: Harness) -> &'static str {
    match harness {
        Harness::Pi => {
            "set compat.sendSessionAffinityHeaders to true for the provider in Pi's models.json: it then sends its \
             session id"
        }
        Harness::Hermes | Harness::OpenClaw => {
            "install the harness's session header plugin, or add an x-tandem-session-id header per session: it sends no \
             session id by itself"
        }
        Harness::MiniSweAgent | Harness::Aider => {
            "add an x-tandem-session-id header per run through litellm's extra_headers: it sends no session id by itself"
        }
        Harness::QwenCode | Harness::Cline | Harness::GeminiCli => {
            "no setting of this harness sends a session id: its sessions are followed by their prompts alone"
        }
        Harness::ClaudeCode | Harness::Codex | Harness::OpenCode => {
            "this harness sends its session in headers: find out which proxy drops them"
        }
        Harness::KimiCode | Harness::OpenHands => {
            "this harness sends prompt_cache_key in the body: find out what drops it, and whether body fields are \
             switched off here"
        }
        Harness::Unknown => {
            "send x-tandem-session-id with one id per agent run, and x-tandem-parent-session-id from its subagents"
        }
    }
}

const fn name(harness: Harness) -> &'static str {
    match harness {
        Harness::ClaudeCode => "Claude Code",
        Harness::Codex => "Codex",
        Harness::OpenCode => "OpenCode",
        Harness::Pi => "Pi",
        Harness::KimiCode => "Kimi Code",
        Harness::QwenCode => "Qwen Code",
        Harness::Cline => "Cline",
        Harness::Hermes => "Hermes",
        Harness::OpenClaw => "OpenClaw",
        Harness::OpenHands => "OpenHands",
        Harness::MiniSweAgent => "mini-swe-agent",
        Harness::GeminiCli => "Gemini CLI",
        Harness::Aider => "Aider",
        Harness::Unknown => "no known harness",
    }
}

const fn volatile_name(kind: VolatileKind) -> &'static str {
    match kind {
        VolatileKind::BillingLine => "the billing line",
        VolatileKind::TokenBudget => "a token budget marker",
        VolatileKind::DateTime => "a start time",
    }
}

const fn handling_name(handling: Handling) -> &'static str {
    match handling {
        Handling::Remove => "removed",
        Handling::Freeze => "frozen",
        Handling::Keep => "kept",
    }
}
