//! Who sent this request: harness headers and body fields to agent context, request class and retry key;
//! and what volatile text stands at the head of its prompt.
//!
//! - Purpose: every other part of the system schedules *programs* (one agent's chain of turns), while
//!   clients send requests. This crate finds the program of a request, says what the request is for, and
//!   tells how long its harness can be kept waiting.
//! - Inputs: the head of an HTTP request ([`RequestHead`]), the facts of its body
//!   ([`tandem_types::TurnFacts`]) and, for hygiene alone, the raw body. Outputs: [`Identity`],
//!   [`hygiene::HygienePlan`], [`hold::HoldTolerance`], [`explain::Explanation`].
//! - Invariants: I-IDN-1 the first mapping of [`table::MAPPINGS`] with a usable session value wins, and
//!   nothing of a later mapping is mixed into it; I-IDN-2 an unusable value (too long, not visible ASCII)
//!   is a warning and is then treated as absent, never an error; I-IDN-3 a program never is its own
//!   parent; I-IDN-4 an identity never crosses tenants, because the tenant is part of every key;
//!   I-IDN-5 no input, however odd, panics; I-IDN-6 the same input gives the same answer (no state, no
//!   clock, no randomness).
//! - Deliberately absent: identity that needs memory. Two cases are left to the session-prefix index,
//!   which holds the lineage of prompts: a request without any id may be *inferred* to be the next turn of
//!   the one live program whose prompt it extends ([`Identity::context`] is `None` here), and agents that
//!   share one id without a marker (Kimi Code, OpenHands) are told apart by which branch their prompt
//!   extends ([`Identity::shared`] is true here). Likewise `previous_response_id` is a link to an answer
//!   and no id of its own: it is handed on in [`Identity::previous_response`] for whoever remembers which
//!   program got that answer.
//! - Sources: recorded requests of the harness versions named in the tables; the header rules of
//!   `dynamo-llm` 1.6.1 (`protocols/agents.rs`); W3C Trace Context level 1.

mod class;
mod facts;
mod harness;
mod identify;
mod read;
mod retry;

pub mod explain;
pub mod hold;
pub mod hygiene;
pub mod table;

pub use explain::{Explanation, explain};
pub use hold::{Declared, HoldTolerance, KeepAlive, hold_tolerance};
pub use hygiene::{Handling, HygieneConfig, HygienePlan, VolatileKind};
pub use identify::{Identity, IdentityConfig, IdentityWarning, RequestHead, WarningKind, identify};
