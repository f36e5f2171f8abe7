//! The crate as its users see it: engines in memory under paused time, and real sockets where those matter.

#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests fail the test by panicking")]

mod client;
mod discovery;
mod doctor;
mod kv_events;
mod kv_peer;
mod kv_store;
mod net;
mod registry;
mod render;
