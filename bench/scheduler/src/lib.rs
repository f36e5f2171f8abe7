//! A fleet and its sessions in a closed loop, in virtual time, around a scheduler that is measured from outside.

pub mod fleet;
pub mod options;
pub mod run;
pub mod sessions;

/// What a call of the scheduler is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A turn arrives.
    Arrival,
    /// A turn's first token is there.
    FirstToken,
    /// Some of a turn's answer is there.
    Progress,
    /// A turn's answer is over.
    End,
    /// A client leaves.
    Gone,
    /// A worker reports its load.
    Load,
    /// A deadline has come.
    Timeout,
    /// When is the next deadline?
    Deadline,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Arrival,
        Self::FirstToken,
        Self::Progress,
        Self::End,
        Self::Gone,
        Self::Load,
        Self::Timeout,
        Self::Deadline,
    ];

    /// Its name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Arrival => "arrival",
            Self::FirstToken => "first token",
            Self::Progress => "progress",
            Self::End => "end",
            Self::Gone => "client gone",
            Self::Load => "load report",
            Self::Timeout => "timeout",
            Self::Deadline => "next deadline?",
        }
    }
}

/// Looks at calls of the scheduler.
pub trait Probe {
    /// Makes one call.
    fn call<T>(&mut self, kind: Kind, call: impl FnOnce() -> T) -> T;
    /// Makes an input, or drops effects: memory that changes hands.
    fn hand_over<T>(&mut self, give: impl FnOnce() -> T) -> T {
        give()
    }
}
