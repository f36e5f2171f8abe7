//! How much is known of a worker, and how that changes.
//!
//! ```text
//!             live                    stale, lost, behind
//!   Blind ───────────► Exact ◄──────────────► Stale
//!     │                  │ cleared, and silent    │
//!     │ stale_after      ▼ for stale_after        │ stale_after
//!     └────────────► Approximate ◄────────────────┘        (live leads back to Exact from everywhere)
//! ```
//!
//! - *Lost*: messages are gone for good. What the worker held stays held, but nobody knows what that is: it is stale
//!   until its engine says that all is gone, or for `stale_after`; then its events tell what matters again.
//! - *Behind*: events are there and wait to be taken in. All workers with events are stale while the oldest waits
//!   longer than `lag_max`, and as good as without events where it waits longer than `stale_after`.
//! - A worker without events is `Approximate` throughout; where that is switched off, `Blind`.

use std::time::Duration;

use tandem_types::{Time, WorkerId};

/// What is known of one worker now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Knowledge {
    /// Its events arrive.
    Exact,
    /// Its events fell silent a short while ago, some of them were lost, or they wait to be taken in: what they said
    /// is believed, and what was sent there lately.
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
    /// When some of its messages were lost, unless all is known again.
    pub(crate) lost: Option<Time>,
}

impl Stream {
    pub(crate) const fn new(followed: bool, now: Time) -> Self {
        Self { followed, live: false, heard: false, since: now, lost: None }
    }

    /// Whether its events arrive, so that they will tell of what is sent to it now.
    pub(crate) const fn told(self) -> bool {
        self.followed && self.live
    }

    pub(crate) fn knowledge(self, fallback: Knowledge, patience: Duration, now: Time) -> Knowledge {
        let lately = now.since(self.since) < patience;
        match (self.followed, self.live, self.heard) {
            (true, true, _) if self.lost.is_some_and(|lost| now.since(lost) < patience) => Knowledge::Stale,
            (true, true, true) => Knowledge::Exact,
            // All was void a moment ago: a restarted engine holds nothing until it says so.
            (true, true, false) if lately => Knowledge::Exact,
            (true, false, true) if lately => Knowledge::Stale,
            (true, false, false) if lately => Knowledge::Blind,
            _ => fallback,
        }
    }
}

/// How far the owner of a plane is behind with workers' events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Pace {
    /// What is there was taken in lately enough.
    #[default]
    Abreast,
    /// Events wait: what is known is a little old.
    Behind,
    /// They wait for so long that what is known is too old to be believed.
    FarBehind,
}

impl Pace {
    /// The name in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Abreast => "abreast",
            Self::Behind => "behind",
            Self::FarBehind => "far_behind",
        }
    }

    /// The pace after `self` when the oldest event waits for `age`, or so many wait that nobody can tell (`crowded`).
    /// Half of `most` is the way back, so that a wait about the bound is one change and not many.
    pub(crate) fn next(self, age: Duration, crowded: bool, most: Duration, too_old: Duration) -> Self {
        let calm = if self == Self::Abreast { age <= most } else { age <= most / 2 };
        match (calm && !crowded, age > too_old) {
            (true, _) => Self::Abreast,
            (false, true) => Self::FarBehind,
            (false, false) => Self::Behind,
        }
    }

    /// What is known of a worker that would be known as `own` if all its events were taken in.
    pub(crate) fn slows(self, own: Knowledge, fallback: Knowledge) -> Knowledge {
        match (own, self) {
            (Knowledge::Exact, Self::Behind) => Knowledge::Stale,
            (Knowledge::Exact | Knowledge::Stale, Self::FarBehind) => fallback,
            _ => own,
        }
    }
}
