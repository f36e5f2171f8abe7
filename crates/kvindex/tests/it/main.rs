//! Tests of the indexes against naive oracles.

#![allow(clippy::expect_used, reason = "helpers of tests may fail a test")]

mod pool;
mod session;
mod worker;
