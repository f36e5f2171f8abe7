//! Numbers for metrics and people.

use tandem_types::WorkerId;

use crate::Knowledge;

/// A plane's numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PlaneStats {
    /// Each worker's, sorted by id.
    pub workers: Vec<WorkerStats>,
}

/// A worker's numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerStats {
    /// Which.
    pub worker: WorkerId,
    /// What is known of it.
    pub knowledge: Knowledge,
    /// Tokens in a block; 0 = not known.
    pub block_size: u32,
}
