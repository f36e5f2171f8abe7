//! Golden frames of real engines, layouts of older ones, hashes, store keys, lost messages, and properties.
#![expect(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod captured;
mod cases;
mod corpus;
mod golden;
mod hashes;
mod layouts;
mod mooncake;
mod properties;
mod tracker;
mod tracker_model;
