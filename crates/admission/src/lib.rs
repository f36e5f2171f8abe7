//! Which turns may run now, so that the caches of those that do are not thrashed by the others.
//!
//! - Purpose: an agent's session comes back again and again with a longer prompt. When more sessions are let in than
//!   the workers' KV pools hold, each turn finds its prefix evicted and computes it anew, and throughput collapses. A
//!   policy here admits or holds turns so that the working sets of those admitted fit.
//! - Input: [`Event`]s with their times. Output: [`Action`]s. A policy is chosen by name ([`registry`]).
//! - I-GAT-1 every `Arrived`, and every `Undispatched` of an admitted turn that is to be sent again, is answered in the same
//!   call by one `Admit` or `Hold` of that turn; a `Hold` is followed by at most one `Admit`, and by none once the turn was
//!   aborted.
//! - I-GAT-2 what is admitted is charged at once to the worker named, before it is dispatched there; the charge grows
//!   with the answer, moves when the turn is dispatched elsewhere, and is gone when the dispatch fails or the turn ends.
//!   Forced admissions are charged like others.
//! - I-GAT-3 actions are a function of (configuration, events with their times): no clock, no chance, no order of hashes.
//! - I-GAT-4 bounded: programs without a live turn expire, and at most `programs_max` are remembered; of a program that
//!   never ran nothing is left when its last turn is aborted.
//! - I-GAT-5 events that make no sense (unknown turns, second arrivals) are ignored.
//! - Deliberately absent: workers' health and slots, clients' patience (the scheduler's), the engines' caches themselves:
//!   what lies where comes with the turn, and again while it waits.
//!
//! A new policy is one file here and one line in [`registry`].

mod config;
mod contract;
mod gap;
mod gauges;
mod idle_lease;
mod kin;
mod lies;
mod none;
mod rate;
pub mod registry;
mod rooms;
mod table;
mod tandem;
mod thunderagent;

pub use config::{AdmissionConfig, AdmissionError};
pub use contract::{Action, Arrival, Capacity, End, Event, Grant, HoldReason, Placement, Stats};
pub use gap::GapModel;
pub use idle_lease::IdleLeaseConfig;
pub use registry::{NONE, POLICIES, PolicyEntry, by_name};
pub use tandem::TandemConfig;
pub use thunderagent::ThunderAgentConfig;

use std::fmt;

use tandem_types::{Time, WorkerId};

/// A way to admit turns.
pub trait AdmissionPolicy: fmt::Debug + Send {
    /// The policy's name in the registry.
    fn name(&self) -> &'static str;
    /// Takes in one event and appends what follows from it.
    fn on(&mut self, now: Time, event: &Event<'_>, out: &mut Vec<Action>);
    /// When [`AdmissionPolicy::on_time`] wants to be called next; may be in the past.
    fn next_deadline(&self) -> Option<Time>;
    /// Deals with what the passing of time alone brings about. Harmless when there is nothing.
    fn on_time(&mut self, now: Time, out: &mut Vec<Action>);
    /// Counts, for metrics and tests.
    fn stats(&self) -> Stats;
    /// Tokens charged to a worker: those of running turns, and those of idle programs at full weight.
    fn charged(&self, worker: WorkerId) -> (u64, u64);
    /// For how many times as long as computing them again takes idle programs are kept now; `None` = the policy does not
    /// reckon so.
    fn patience(&self) -> Option<f64> {
        None
    }
    /// Checks the policy's state against a recount. Costs time in proportion to the whole of it.
    ///
    /// # Errors
    /// What does not add up.
    fn check(&self) -> Result<(), String>;
}
