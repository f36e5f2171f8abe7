//! Whole engines over real sockets.
#![expect(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod client;
mod smoke;
