//! Golden frames of real engines, layouts of older ones, and properties.
#![expect(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod golden;
mod layouts;
mod properties;
