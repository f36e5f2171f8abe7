//! The gateway against scripted engines over real sockets.

#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests fail the test by panicking")]

mod admin;
mod admission;
mod client;
mod config;
mod engine;
mod faults;
mod holds;
mod kv;
mod kv_degrade;
mod kv_local;
mod kv_place;
mod modelled;
#[cfg(feature = "otlp")]
mod otlp;
mod pd;
mod plain;
mod recorded;
mod sessions;
mod setup;
mod shutdown;
mod state;
mod surface;
mod tls;
