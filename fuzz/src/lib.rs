//! What each fuzz target checks. A check panics when a promise is broken.

pub mod answer_body;
pub mod headers;
pub mod kv_batch;
pub mod mooncake_event;
pub mod outline;
pub mod prompt_render;
pub mod replay_answer;
pub mod request_body;
pub mod sse;
pub mod trace_reader;
