//! The scheduler and modelled engines over a workload, in virtual time.
//!
//! - Purpose: say what a policy would do to a fleet, with the very scheduler that runs live.
//! - Inputs: a [`Workload`](tandem_workload::Workload), a [`SimConfig`]. Output: a [`Report`].
//! - Invariants:
//!   - I-SIM-1 equal inputs give an equal report: one event queue, ordered by time and then by age;
//!   - I-SIM-2 tokens are conserved: what engines computed and took from caches is what requests asked for;
//!   - I-SIM-3 every request that was sent ends, or is counted as unserved at the end of the run;
//!   - I-SIM-4 a turn is sent when all that it waits for has come, with the recorded pauses, and not before.
//! - What is simulated: engines pass by pass (batching, chunked prefill, paged cache, preemption, tiers), clients
//!   that wait for their tools and come back after a refusal, the scheduler's every decision.
//! - Deliberately absent: networks, tokenizing, engines' own overheads between passes, failures.
//! - Sources: the pass model and metric names of aisimulate-core 0.13 and AIPerf 0.13.

mod clients;
mod config;
mod drive;
mod fleet;
mod late;
mod measure;
mod oracle;
mod policy;
mod predicted;
mod report;
mod waiting;

pub use config::{Arrivals, PlayOrder, SimConfig, SimError};
pub use drive::{Progress, run};
pub use policy::scheduler_for;
pub use report::{Report, Stats};
