//! Behaviour of the dialects as users see it. Expected values were read off the recorded bytes by hand.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "helpers of tests fail by panicking"
)]

mod bodies;
mod corpus;
mod digest;
mod errors;
mod request;
mod route;
mod sse;
mod streams;
