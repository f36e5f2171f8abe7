//! Whole engines over real sockets.
#![expect(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod behaviour;
mod caching;
mod client;
mod events;
mod faults;
mod refusals;
mod scripts;
mod shape;
mod shapes;
mod store;
mod tiers;
