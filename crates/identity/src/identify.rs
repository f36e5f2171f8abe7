//! From a request to its identity.

use http::{HeaderMap, Method};
use serde::{Deserialize, Serialize};
use tandem_types::{
    AgentContext, Harness, HarnessFacts, IdentitySource, RequestClass, RetryKey, TenantId, TurnFacts,
};

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
    /// Values that were skipped.
    pub warnings: Vec<IdentityWarning>,
}

impl Identity {
    /// Where the session id was found.
    #[must_use]
    pub fn source(&self) -> Option<IdentitySource> {
        self.context.as_ref().map(|c| c.source)
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
    let _ = (head, facts, tenant, config);
    Identity {
        context: None,
        found_in: None,
        shared: false,
        class: RequestClass::Turn,
        harness: Harness::Unknown,
        facts: HarnessFacts::default(),
        retry_key: None,
        previous_response: None,
        client_timeout_ms: None,
        warnings: Vec::new(),
    }
}
