//! Indexes of where the KV is.
//!
//! - [`chain`]: the content hashes that all of them speak;
//! - [`worker`]: what each worker holds, tier by tier.

pub mod chain;
pub mod worker;
