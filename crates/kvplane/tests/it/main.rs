//! The plane from outside: rules one by one, histories against a naive oracle, streams of real engines.

#![expect(clippy::expect_used, reason = "helpers of tests may fail a test")]

mod captured;
mod model;
mod pool;
mod rules;
mod sessions;
mod states;
mod told;
