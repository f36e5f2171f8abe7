//! The binary as its callers see it: output, errors, exit codes.

#![expect(clippy::expect_used, reason = "a helper that fails is a failed test")]

mod output;
mod replay;
mod restart;
