//! Tests of the indexes against naive oracles.

#![allow(clippy::expect_used, reason = "helpers of tests may fail a test")]

mod pool;
mod routed;
mod session;
mod worker;
mod worker_threads;
