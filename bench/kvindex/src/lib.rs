//! Worker indexes side by side: Tandem's, Dynamo's concurrent tree and positional index, and a naive map.
//!
//! `speed` applies and matches a trace's operations and prints rates and latencies; `memory` counts the bytes
//! that each index asks the allocator for, and again after the caches were filled anew ten times over.

pub mod candidate;
pub mod options;
pub mod workload;
