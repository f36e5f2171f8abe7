//! retry.
