//! Behaviour of the identity crate, against recorded requests and against its rules.

#![expect(clippy::expect_used, clippy::panic, reason = "a helper that fails is a failed test")]

mod corpus;
mod explaining;
mod hygiene;
mod recorded;
mod rules;
mod support;
mod waiting;
