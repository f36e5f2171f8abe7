//! Tests of the indexes against naive oracles.
mod worker;

mod pool;
mod session;
