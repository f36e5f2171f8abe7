//! The shared store.

use std::sync::Arc;

use tandem_kvwire::mooncake::StoreBatch;

/// A change of what a store is known to hold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum StoreChange<'a> {
    /// Objects came and went.
    Batch {
        /// The batch's number.
        seq: u64,
        /// What happened.
        batch: &'a StoreBatch,
    },
    /// Something may have been missed. What is known stands until the next listing.
    Doubt(StoreDoubt),
    /// A listing is about to be asked for.
    ListingBegins,
    /// These objects are there. Only within a listing.
    Listed(&'a [Arc<str>]),
    /// These objects are not there. Only within a listing.
    Absent(&'a [Arc<str>]),
    /// The listing is over.
    ListingEnds {
        /// Every key was listed: what was not mentioned is not there.
        complete: bool,
    },
}

/// Why something may have been missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreDoubt {
    /// Messages were lost.
    Gap,
    /// The master is another process than before.
    Restart,
    /// The connection was lost.
    Disconnected,
    /// The master dropped events, or published some that did not arrive.
    Dropped,
}
