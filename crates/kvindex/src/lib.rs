//! Indexes of where the KV is.
//!
//! - [`chain`]: the content hashes that all of them speak;
//! - [`pool`]: which pages of a shared store a worker could load;
//! - [`worker`]: what each worker holds, tier by tier.

pub mod chain;
pub mod pool;
pub mod worker;
