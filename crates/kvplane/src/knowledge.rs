//! How much is known of a worker.

use tandem_types::{Time, WorkerId};

/// What is known of one worker now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Knowledge {
    /// Its events arrive.
    Exact,
    /// Its events fell silent a short while ago: what they said is believed, and what was sent there since.
    Stale,
    /// No events: what was sent there lately is believed to be there.
    Approximate,
    /// Nothing is known.
    Blind,
}

impl Knowledge {
    /// The name in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Stale => "stale",
            Self::Approximate => "approximate",
            Self::Blind => "blind",
        }
    }
}

/// What is known of a worker changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transition {
    /// Which worker.
    pub worker: WorkerId,
    /// What was known; `None` = it is new.
    pub from: Option<Knowledge>,
    /// What is known; `None` = it is gone.
    pub to: Option<Knowledge>,
    /// When.
    pub at: Time,
}
