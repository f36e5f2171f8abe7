//! Hashes of blocks and pages.
//!
//! - [`block`]: our own, by which blocks are compared across workers and engines;
//! - [`vllm`] and [`sglang`]: the engines' own, where they can be computed outside of the engine. They name
//!   objects in shared stores; across workers they are never compared.

pub mod block;
mod cbor;
mod pickle;
pub mod sglang;
pub mod vllm;
