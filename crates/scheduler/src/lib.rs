//! The sans-io core: owns programs, turns and workers; takes inputs, emits effects.

pub mod contract;

pub use contract::{
    Decision, DispatchFailure, Effect, FailureKind, HoldReason, Input, RejectReason, TurnArrival,
    TurnOutcome, TurnResult,
};
