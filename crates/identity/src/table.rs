//! The header table: which header or body field carries which part of an identity, harness by harness.
//!
//! - Purpose: identity rules as data, one entry per mapping, so that a new harness (or a header that a
//!   harness renamed, which happens between releases) is one entry and no code.
//! - Invariants: I-TAB-1 entries stand in order of trust, and [`crate::identify()`] takes the first one with
//!   a usable session value; I-TAB-2 header names are lower case; I-TAB-3 underscore and hyphen spellings
//!   of names that reverse proxies drop or rewrite are both listed.
//! - Deliberately absent: per-request ids (`x-request-id`, `x-client-request-id`, trace spans). They change
//!   with every call, or repeat a session id that is listed already; they join nothing.
//! - Sources: the versions named in each entry's `measured_with`; `dynamo-llm` 1.6.1 for the canonical and
//!   the native headers and their precedence.

use tandem_types::{Harness, IdentitySource};

/// Where a mapping finds the session id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The first of these headers that has a usable value.
    Headers(&'static [&'static str]),
    /// Body field `prompt_cache_key`.
    PromptCacheKey,
    /// The session id inside body field `metadata.user_id`: either a JSON text with `session_id`, or the
    /// older `user_..._account_..._session_<id>`. A plain user name there is no session.
    MetadataUserId,
    /// Body field `session_id`.
    BodySessionId,
    /// The trace id of the W3C `traceparent` header.
    TraceParent,
}

/// How a harness tells the agents of one session apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agents {
    /// Every agent has a session id of its own; a child names its parent's in one of these headers.
    OwnSession {
        /// Headers with the parent's session id.
        parent: &'static [&'static str],
    },
    /// All agents send the session id of the root, and this header marks which agent it is.
    Marked {
        /// Header with the agent's id. Equal to the session id (or absent): the root itself.
        agent: &'static str,
        /// The mapping applies only when the agent header is there.
        required: bool,
        /// Header with the parent agent's id. Equal to the session id: the root.
        parent: &'static str,
        /// A child without the parent header is a child of the root.
        root_by_default: bool,
    },
    /// Nothing marks agents: several may share the id.
    Unmarked,
}

/// When a mapping applies at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Always.
    Always,
    /// The harness is this one, or one of these headers is there.
    HarnessOrHeader(Harness, &'static [&'static str]),
    /// The harness is one of these.
    Harness(&'static [Harness]),
}

/// One way to find an identity.
#[derive(Debug, Clone, Copy)]
pub struct Mapping {
    /// How it is recorded.
    pub source: IdentitySource,
    /// Where the session id is.
    pub session: Place,
    /// How agents are told apart.
    pub agents: Agents,
    /// When it applies.
    pub when: When,
    /// Harness and version with which it was seen.
    pub measured_with: &'static str,
}

/// Says that this is, or is not, the last request of its session; goes with any identity.
pub const SESSION_FINAL: &[&str] = &["x-dynamo-session-final", "x-tandem-session-final"];

/// Sessions that share a fate, such as the rollouts of one prompt; goes with any identity.
pub const GROUP_ID: &[&str] = &["x-tandem-group-id"];

/// How long the client means to wait until an answer begins, in whole or decimal seconds: for clients of one's own, of
/// whom nothing was measured.
pub const HOLD_MAX: &str = "x-tandem-hold-max";

/// All mappings in order of trust.
pub const MAPPINGS: &[Mapping] = &[
    // Whoever sets a canonical header has decided what a session is: native agent markers and parents
    // are then not consulted. The `x-tandem-*` spellings are our own aliases.
    Mapping {
        source: IdentitySource::Canonical,
        session: Place::Headers(&["x-dynamo-session-id", "x-tandem-session-id"]),
        agents: Agents::OwnSession { parent: &["x-dynamo-parent-session-id", "x-tandem-parent-session-id"] },
        when: When::Always,
        measured_with: "dynamo 1.6.1; pi plugin 0.72.1; hermes plugin 0.17.0; openclaw plugin 2026.6.8",
    },
    Mapping {
        source: IdentitySource::ClaudeCode,
        session: Place::Headers(&["x-claude-code-session-id"]),
        agents: Agents::Marked {
            agent: "x-claude-code-agent-id",
            required: false,
            parent: "x-claude-code-parent-agent-id",
            root_by_default: true,
        },
        when: When::Always,
        measured_with: "claude code 2.1.332",
    },
    // The header named `session-id` is the root of the tree in all agents. Without `thread-id` it is not
    // Codex (Pi sends `session-id` alone) and falls to the generic entry.
    Mapping {
        source: IdentitySource::Codex,
        session: Place::Headers(&["session-id"]),
        agents: Agents::Marked {
            agent: "thread-id",
            required: true,
            parent: "x-codex-parent-thread-id",
            root_by_default: false,
        },
        when: When::Always,
        measured_with: "codex 0.171.0",
    },
    // A proxy kept `thread-id` and lost `session-id`: every thread is then a session of its own.
    Mapping {
        source: IdentitySource::Codex,
        session: Place::Headers(&["thread-id"]),
        agents: Agents::OwnSession { parent: &["x-codex-parent-thread-id"] },
        when: When::Always,
        measured_with: "dynamo 1.6.1",
    },
    Mapping {
        source: IdentitySource::OpenCode,
        session: Place::Headers(&["x-opencode-session-id"]),
        agents: Agents::OwnSession { parent: &["x-opencode-parent-session-id"] },
        when: When::Always,
        measured_with: "named in the article; not sent by opencode 1.18.33",
    },
    // `x-session-id` is OpenCode's when OpenCode sends it or a parent comes with it; alone it is generic.
    Mapping {
        source: IdentitySource::OpenCode,
        session: Place::Headers(&["x-session-id"]),
        agents: Agents::OwnSession { parent: &["x-parent-session-id"] },
        when: When::HarnessOrHeader(Harness::OpenCode, &["x-parent-session-id"]),
        measured_with: "opencode 1.18.33",
    },
    Mapping {
        source: IdentitySource::GenericHeader,
        session: Place::Headers(&[
            "x-session-id",
            "x_session_id",
            "session_id",
            "session-id",
            "x-session-affinity",
            "x_session_affinity",
        ]),
        agents: Agents::OwnSession { parent: &[] },
        when: When::Always,
        measured_with: "pi 1.6.0 (session_id, session-id, x-session-affinity); vllm-router 0.1.17",
    },
    // A key for placement: whoever sets it may put many sessions under one.
    Mapping {
        source: IdentitySource::GenericHeader,
        session: Place::Headers(&["x-smg-routing-key", "x_smg_routing_key"]),
        agents: Agents::Unmarked,
        when: When::Always,
        measured_with: "sglang-router 0.3.2",
    },
    Mapping {
        source: IdentitySource::BodyField,
        session: Place::PromptCacheKey,
        agents: Agents::Unmarked,
        when: When::Always,
        measured_with: "kimi code 2.1.0; openhands 1.16.0; pi 1.6.0; opencode 1.18.33",
    },
    Mapping {
        source: IdentitySource::BodyField,
        session: Place::MetadataUserId,
        agents: Agents::Unmarked,
        when: When::Always,
        measured_with: "claude code 2.1.332",
    },
    Mapping {
        source: IdentitySource::BodyField,
        session: Place::BodySessionId,
        agents: Agents::OwnSession { parent: &[] },
        when: When::Always,
        measured_with: "vllm-router 0.1.17 body fields",
    },
    // One trace id per agent run. Others that send a trace context change it per call or share it over
    // unrelated calls, hence the list.
    Mapping {
        source: IdentitySource::TraceParent,
        session: Place::TraceParent,
        agents: Agents::Unmarked,
        when: When::Harness(&[Harness::OpenClaw]),
        measured_with: "openclaw 2026.9.6",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// I-TAB-1, I-TAB-2
    #[test]
    fn entries_stand_in_order_of_trust_and_names_are_lower_case() {
        assert!(MAPPINGS.is_sorted_by_key(|m| m.source));
        for mapping in MAPPINGS {
            if let Place::Headers(names) = mapping.session {
                for name in names {
                    assert_eq!(name.to_ascii_lowercase(), **name);
                }
            }
        }
    }
}
