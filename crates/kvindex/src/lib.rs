//! Indexes of where the KV is.
//!
//! - [`chain`]: the content hashes that all of them speak;
//! - [`pool`]: which pages of a shared store a worker could load;
//! - [`session`]: which blocks each session builds on, and what that makes a worker keep;
//! - [`worker`]: what each worker holds, tier by tier.

pub mod chain;
pub mod pool;
pub mod session;
mod spread;
pub mod worker;
