//! Workloads: trace files and seeded generators as one graph of requests.
//!
//! - Purpose: everything that can be replayed, offline or live, in one form: sessions, their turns, what each turn
//!   waits for, and which part of its prompt repeats earlier ones.
//! - Inputs: bytes of trace files in the field's formats ([`Format`]), plain or gzip; or a generator's parameters
//!   and a seed ([`synth`]). Outputs: a [`Workload`] with the [`Repairs`] that were needed to make sense of it.
//! - Invariants:
//!   - I-WKL-1 equal input gives an equal workload, and strict import of a file that needs no repair gives the same
//!     as lenient import;
//!   - I-WKL-2 nodes of a session are one after the other in the order of their turns; a node depends only on
//!     nodes that were recorded to start before it, so there is no circle;
//!   - I-WKL-3 a recorded pause is kept relative to the last thing that a turn waited for; no pause is negative;
//!   - I-WKL-4 two prompts share a leading block exactly if the source says so: block ids of scope `local` are kept
//!     apart between sessions, but for a shared head of tools and system prompt where the format tells its length.
//! - Deliberately absent: clocks and drivers (who starts what when is the simulator's and the load generator's
//!   business), text of prompts, opening of files.
//! - Sources: the formats' own documentation and readers: Mooncake FAST'25, aisimulate-core 0.13, kv-cache-tester,
//!   dynamo-llm 1.6.1, Applied Compute's agentic rows, Bailian's usage traces, ATIF 1.8.

mod build;
mod graph;
mod ids;
mod import;
mod repair;
pub mod synth;

pub use graph::{Dep, Node, NodeNo, Play, Prompts, Session, SessionNo, Trigger, Workload};
pub use ids::mix;
pub use import::{Format, ImportError, ImportOptions, import, sniff};
pub use repair::{Repair, Repairs};
