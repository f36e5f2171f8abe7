//! Ids. Those that come from outside are bounded text; those that we hand out are small integers.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::limits::ID_BYTES_MAX;

/// Why a text is not usable as an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Nothing but white space.
    #[error("empty id")]
    Empty,
    /// Longer than [`ID_BYTES_MAX`] bytes.
    #[error("id longer than {ID_BYTES_MAX} bytes")]
    TooLong,
    /// A byte outside visible ASCII.
    #[error("id has a byte outside visible ascii")]
    NotVisibleAscii,
}

fn checked(text: &str) -> Result<Arc<str>, IdError> {
    let text = text.trim();
    if text.is_empty() {
        return Err(IdError::Empty);
    }
    if text.len() > ID_BYTES_MAX {
        return Err(IdError::TooLong);
    }
    if !text.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(IdError::NotVisibleAscii);
    }
    Ok(Arc::from(text))
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Trims `text` and checks it: 1 to 256 bytes of visible ASCII.
            ///
            /// # Errors
            /// [`IdError`] says which bound is broken.
            pub fn new(text: &str) -> Result<Self, IdError> {
                checked(text).map(Self)
            }

            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;

            fn try_from(text: String) -> Result<Self, IdError> {
                Self::new(&text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0.as_ref().to_owned()
            }
        }
    };
}

text_id!(
    /// Whose traffic this is. Sessions, traces and caches of one tenant are invisible to another.
    TenantId
);
text_id!(
    /// The id that a harness gives to a whole conversation (its tree of agents, where it has several).
    SessionId
);
text_id!(
    /// One agent (subagent, thread) inside a session.
    AgentId
);
text_id!(
    /// Sessions that belong together, such as the rollouts of one prompt in reinforcement learning.
    GroupId
);
text_id!(
    /// The id of one HTTP request, from the client's `x-request-id` or our own.
    RequestId
);

impl Default for TenantId {
    /// The tenant of requests that carry no tenant.
    fn default() -> Self {
        Self(Arc::from("default"))
    }
}

/// One agent's chain of turns: the unit that is scheduled. Programs of one session form a tree.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProgramKey {
    /// Owner.
    pub tenant: TenantId,
    /// The harness's session id (the root's, where agents share it).
    pub session: SessionId,
    /// The agent inside the session; absent for the root agent.
    pub agent: Option<AgentId>,
}

impl ProgramKey {
    /// The root program of a session.
    #[must_use]
    pub const fn root(tenant: TenantId, session: SessionId) -> Self {
        Self { tenant, session, agent: None }
    }

    /// The id under which traces know this program: the agent's where there is one, else the session's.
    /// It is what the reference system writes as `agent_context.session_id`.
    #[must_use]
    pub fn trace_id(&self) -> &str {
        self.agent.as_ref().map_or_else(|| self.session.as_str(), AgentId::as_str)
    }
}

impl fmt::Display for ProgramKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.tenant, self.session)?;
        match &self.agent {
            Some(agent) => write!(f, "/{agent}"),
            None => Ok(()),
        }
    }
}

/// Digest of (program, request body in canonical form): equal for a call and its repetition by a client
/// that timed out, different for any two calls that differ in meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RetryKey(pub u128);

/// One turn (one LLM request), numbered by the gateway in order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TurnId(pub u64);

impl fmt::Display for TurnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{}", self.0)
    }
}

/// One engine (one base URL), numbered in order of registration and never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EngineId(pub u32);

/// The unit of capacity: one data-parallel rank of one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WorkerId {
    /// The engine.
    pub engine: EngineId,
    /// Its data-parallel rank; 0 where there is only one.
    pub rank: u32,
}

impl WorkerId {
    /// Both in one number, the engine first: fleets are searched all the time, and one comparison is less than two.
    #[inline]
    const fn order(self) -> u64 {
        (self.engine.0 as u64) << u32::BITS | self.rank as u64
    }
}

impl Ord for WorkerId {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        self.order().cmp(&other.order())
    }
}

impl PartialOrd for WorkerId {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}r{}", self.engine.0, self.rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// I-TYP-1.
    #[test]
    fn ids_are_trimmed_bounded_visible_ascii() {
        assert_eq!(SessionId::new("  ses_1 ").map(String::from), Ok("ses_1".to_owned()));
        assert_eq!(SessionId::new(" \t"), Err(IdError::Empty));
        assert_eq!(SessionId::new("a b"), Err(IdError::NotVisibleAscii));
        assert_eq!(SessionId::new("é"), Err(IdError::NotVisibleAscii));
        assert!(SessionId::new(&"x".repeat(256)).is_ok());
        assert_eq!(SessionId::new(&"x".repeat(257)), Err(IdError::TooLong));
    }

    #[test]
    fn a_program_is_traced_under_its_agent() {
        let session = SessionId::new("s").expect("valid");
        let mut key = ProgramKey::root(TenantId::default(), session);
        assert_eq!((key.trace_id(), key.to_string().as_str()), ("s", "default/s"));
        key.agent = AgentId::new("a1").ok();
        assert_eq!((key.trace_id(), key.to_string().as_str()), ("a1", "default/s/a1"));
    }

    #[test]
    fn workers_are_in_order_of_engines_then_of_ranks() {
        let id = |engine, rank| WorkerId { engine: EngineId(engine), rank };
        let sorted = [id(0, 0), id(0, u32::MAX), id(1, 0), id(1, 7), id(u32::MAX, 0), id(u32::MAX, u32::MAX)];
        assert!(sorted.is_sorted() && sorted.iter().rev().is_sorted_by(|a, b| a > b));
    }
}
