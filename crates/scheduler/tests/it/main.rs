//! Behaviour of the scheduler as its drivers see it.

#![expect(clippy::expect_used, clippy::panic, reason = "a failed expectation is a failed test")]

mod chaos;
mod limits;
mod replay;
mod routing_load;
mod scenarios;
mod support;
