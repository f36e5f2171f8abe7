//! The four API dialects: what a gateway must know of a request and of its answer, and how to say no.
//!
//! - Purpose: read OpenAI chat, completions and responses and Anthropic messages as far as scheduling, tracing
//!   and accounting need, without ever translating or re-serialising what passes through.
//! - Inputs: raw bytes of requests, answers and event streams. Outputs: facts ([`tandem_types::TurnFacts`],
//!   [`AnswerFacts`]), byte-exact edits ([`tandem_types::BodyEdit`]), error bodies and events.
//! - Invariants: I-DIA-1 bytes that are passed on are the bytes that came in, save for a named edit or the one
//!   usage chunk that the client did not ask for. I-DIA-2 a body is read once, without a tree of values, and
//!   memory beside the body is bounded ([`limits`]). I-DIA-3 how a stream is cut into pieces changes neither
//!   facts nor forwarded bytes. I-DIA-4 nothing from outside panics or recurses without bound.
//! - Deliberately absent: content (prompts, answers, tool arguments are never kept), validation of fields that
//!   do not decide where or how a call goes (the engine refuses those itself), sockets, clocks.

mod answer;
mod edit;
mod errors;
mod estimate;
mod events;
mod json;
pub mod limits;
mod request;
mod route;
mod sse;
mod usage;

pub use answer::{AnswerError, AnswerFacts, ChoiceEnd, StreamObserver, UsageFilter, observe_body};
pub use edit::apply_edits;
pub use errors::{ErrorAnswer, ErrorKind, error_body};
pub use estimate::{count_tokens_body, estimate_tokens};
pub use events::{StreamPosition, keep_alive, stream_error};
pub use request::{BodyError, BodyField, ParsedRequest, parse_request};
pub use route::Route;
pub use sse::{SseEvent, SseParser};
