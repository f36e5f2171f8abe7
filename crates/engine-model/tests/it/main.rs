//! Behaviour of the modelled engine through its public face.
#![expect(clippy::expect_used, reason = "a test says by panicking what went wrong")]

mod fuzz;
mod handed;
mod published;
mod scenarios;
mod sglang;
mod support;
mod tiers;
