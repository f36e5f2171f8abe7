//! A request's prompt in the engine's own token ids, computed here.
//!
//! - Purpose: know which KV blocks a request needs before any engine has seen it. What cannot be reproduced
//!   exactly is refused with a reason, never guessed.
//! - Inputs: a model's tokenizer and chat template, a request body with its dialect and the make of engine that
//!   will serve it. Outputs: the rendered prompt and its token ids.
//! - Deliberately absent: clocks (a template that prints the date is handed the time), sockets, media.

mod chat;
mod detect;
mod error;
mod json;
mod model;
mod render;
mod sglang;
mod template;
mod time;
mod tokens;
mod vllm;

pub use error::{LoadError, RenderError};
pub use model::{ContentFormat, LoadOptions, PromptModel};
pub use render::{Prompt, Rendered};
pub use time::LocalTime;
pub use tokens::{Memo, Tokenized};
