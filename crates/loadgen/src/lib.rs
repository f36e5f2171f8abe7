//! Replays a workload against any OpenAI-compatible endpoint, over HTTP.
//!
//! - Purpose: put a fleet under the load of recorded or made-up agent sessions, live.
//! - Inputs: a [`Workload`](tandem_workload::Workload); [`Options`]: where to, when sessions begin, how much smaller
//!   and faster than recorded. Output: an [`Outcome`] with one [`Record`] for each request.
//! - Prompts are token ids that follow from the workload's block ids: equal blocks, equal tokens. Nothing of a
//!   prompt is known but that.
//! - [`Options::shrink`] makes prompts, answers and pauses so many times smaller. An engine whose work is in
//!   proportion to tokens is then as busy as with the whole workload, for that part of the time, and bodies stay
//!   small.
//! - Invariants:
//!   - I-LDG-1 a request is sent when all that it waits for has come, with the recorded pauses, and not before;
//!   - I-LDG-2 two prompts have exactly those leading whole blocks in common that the workload says, in every lane
//!     and round;
//!   - I-LDG-3 [`Record::ideal`] counts the whole blocks at the head of the prompt that a prompt sent before had,
//!     never its last token: no cache of prompts, however large, serves more;
//!   - I-LDG-4 what runs at once is bounded, and what is abandoned at the end is counted.
//! - An answer's tokens are the engine's; the next prompt has others in their place, so that answers are never
//!   reused, by the ideal cache neither.
//! - Deliberately absent: text, chats and tools (a chat's tokens depend on the model's template), TLS, judging the
//!   records.

mod body;
mod client;
mod ideal;
mod play;
mod record;
mod run;

pub use client::Target;
pub use record::{Outcome, Record};
pub use run::{Arrivals, LoadError, Options, run};
