//! Recognising a repeated call.
//!
//! - Purpose: a client that waited too long closes its connection and sends the same body again on a new
//!   one, without any mark. Such a call must take the place of the first, not stand beside it.
//! - Output: a key equal for a call and its repetition. It covers the program and the body in canonical
//!   form ([`tandem_types::TurnFacts::digest`]); nothing else of the request. Left out on purpose: the
//!   connection, per-request ids and trace headers (new in each repetition, or equal across different
//!   calls), retry counters (Claude Code leaves its at 0), and the order of keys (Codex shuffles them).
//! - Invariants: I-RTY-1 no identity, no key: equal prompts of unknown senders are different turns; I-RTY-2
//!   no key for calls of which equal ones may run side by side (token counts come in bursts; probes and
//!   auxiliary calls are never held).
//! - Deliberately absent: when to use the key. It joins only while the first call is unanswered, and for a
//!   [`crate::Identity::shared`] program only once the first connection is gone: two siblings spawned with
//!   one prompt send equal bodies at the same time (seen with Kimi Code).
//! - Known limit: OpenClaw's repetition differs in its last message and gets another key.

use tandem_types::{ProgramKey, RequestClass, RetryKey};
use xxhash_rust::xxh3::Xxh3Default;

pub(crate) fn key(program: &ProgramKey, class: RequestClass, digest: u128) -> Option<RetryKey> {
    match class {
        RequestClass::Turn | RequestClass::Title | RequestClass::Compaction => {}
        RequestClass::CountTokens | RequestClass::Probe | RequestClass::Auxiliary => return None,
    }
    let mut hasher = Xxh3Default::new();
    // Ids are visible ASCII, so a zero byte cannot be part of one and separates them.
    for part in [program.tenant.as_str(), program.session.as_str()] {
        hasher.update(part.as_bytes());
        hasher.update(&[0]);
    }
    if let Some(agent) = &program.agent {
        hasher.update(agent.as_str().as_bytes());
    }
    // Of fixed length, so nothing need separate it.
    hasher.update(&digest.to_le_bytes());
    Some(RetryKey(hasher.digest128()))
}
