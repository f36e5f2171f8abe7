//! What each fuzz target checks. A check panics when a promise is broken.

pub mod answer_body;
pub mod request_body;
pub mod sse;
pub mod trace_reader;
