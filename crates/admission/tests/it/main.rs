//! Admission policies, driven by hand.

#![expect(clippy::expect_used, clippy::panic, reason = "a helper that fails is a failed test")]

mod article;
mod defects;
mod kin;
mod learning;
mod random;
mod retried;
mod support;
mod tandem;
mod thunderagent;
