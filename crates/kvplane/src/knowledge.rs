//! How much is known of a worker, and how that changes.
//!
//! ```text
//!             live                    stale
//!   Blind ───────────► Exact ◄──────────────► Stale
//!     │                  │ cleared, and silent    │
//!     │ stale_after      ▼ for stale_after        │ stale_after
//!     └────────────► Approximate ◄────────────────┘        (live leads back to Exact from everywhere)
//! ```
//!
//! A worker without events is `Approximate` throughout; where that is switched off, `Blind`.

use std::time::Duration;

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

/// What a worker's event stream is like.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stream {
    /// A publisher is followed.
    pub(crate) followed: bool,
    /// It is up to date.
    pub(crate) live: bool,
    /// It was up to date before, and something was heard since all was void last.
    pub(crate) heard: bool,
    /// The last change of these.
    pub(crate) since: Time,
}

impl Stream {
    pub(crate) const fn new(followed: bool, now: Time) -> Self {
        Self { followed, live: false, heard: false, since: now }
    }

    pub(crate) fn knowledge(self, fallback: Knowledge, patience: Duration, now: Time) -> Knowledge {
        let lately = now.since(self.since) < patience;
        match (self.followed, self.live, self.heard) {
            (true, true, true) => Knowledge::Exact,
            // All was void a moment ago: a restarted engine holds nothing until it says so.
            (true, true, false) if lately => Knowledge::Exact,
            (true, false, true) if lately => Knowledge::Stale,
            (true, false, false) if lately => Knowledge::Blind,
            _ => fallback,
        }
    }
}
