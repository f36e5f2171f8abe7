//! What goes into a policy and what comes out.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tandem_types::{GroupId, PrefixMatch, ProgramKey, TurnId, Usage, WorkerId};

/// What a worker can hold, in tokens of KV.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capacity {
    /// Device memory.
    pub device: u64,
    /// Device memory and the tiers below it that are the worker's own; no less than `device`.
    pub resident: u64,
    /// The engine evicts first what it is told is not worth keeping ([`Action::Demote`]).
    pub demotes: bool,
}

impl Capacity {
    /// Device memory alone.
    #[must_use]
    pub const fn device(tokens: u64) -> Self {
        Self { device: tokens, resident: tokens, demotes: false }
    }
}

/// A turn that asks to be admitted.
#[derive(Debug, Clone, Copy)]
pub struct Arrival<'a> {
    /// Fresh id.
    pub turn: TurnId,
    /// The program that it continues; `None` = no identity: it stands for itself.
    pub program: Option<&'a ProgramKey>,
    /// The program that spawned that one.
    pub parent: Option<&'a ProgramKey>,
    /// Sessions that share a fate.
    pub group: Option<&'a GroupId>,
    /// Expected prompt length in tokens.
    pub prompt_tokens: u64,
    /// Where the prompt's KV lies.
    pub prefix: &'a PrefixMatch,
    /// The program ends with this turn.
    pub last: bool,
    /// How long the call has waited before, on connections that broke: it keeps its place.
    pub waited: Duration,
}

/// How a turn ended that was dispatched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct End {
    /// Token counts, where known.
    pub usage: Option<Usage>,
    /// It ended with tool calls, so that the pause behind it is theirs and not a person's.
    pub tools: bool,
}

/// Something that a policy is told.
#[derive(Debug, Clone, Copy)]
pub enum Event<'a> {
    /// A worker takes turns, or its capacity changed.
    WorkerReady {
        /// Which.
        worker: WorkerId,
        /// What it can hold; `None` = it does not tell, so nothing is held back for want of room there.
        capacity: Option<Capacity>,
    },
    /// A worker takes no turns any more; its cache is taken for lost.
    WorkerLost {
        /// Which.
        worker: WorkerId,
    },
    /// A turn asks to be admitted.
    Arrived(Arrival<'a>),
    /// What lies where of the prompt of a turn that waits was looked up anew.
    Found {
        /// Which.
        turn: TurnId,
        /// Where the prompt's KV lies now.
        prefix: &'a PrefixMatch,
    },
    /// A turn goes to a worker, the one asked for or another.
    Dispatched {
        /// Which.
        turn: TurnId,
        /// Where.
        worker: WorkerId,
    },
    /// A turn's dispatch failed: nothing was computed, and what it takes is free.
    Undispatched {
        /// Which.
        turn: TurnId,
        /// It is to be sent again, to none of these, which failed it, while others are ready: it asks anew, before its room
        /// is given to others, and keeps its place among those that wait. `None` = it is over, and `Aborted` follows.
        again: Option<&'a [WorkerId]>,
    },
    /// The first token of a turn's answer is there: its prompt is computed.
    FirstToken {
        /// Which.
        turn: TurnId,
    },
    /// So many tokens of a turn's answer are there.
    Progress {
        /// Which.
        turn: TurnId,
        /// All generated so far.
        generated: u64,
    },
    /// A turn's answer is over.
    Ended {
        /// Which.
        turn: TurnId,
        /// How.
        end: End,
    },
    /// A turn is over without an answer: its client left, or it was refused.
    Aborted {
        /// Which.
        turn: TurnId,
    },
    /// A program will not come back.
    SessionEnd {
        /// Which.
        program: &'a ProgramKey,
    },
}

/// Where an admitted turn is to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// Routing decides.
    Any,
    /// Routing decides; until it has, the turn is charged there.
    Free(WorkerId),
    /// There if that is possible now; else routing decides.
    Prefer(WorkerId),
    /// There, where its room is reserved; elsewhere only when that worker cannot take it.
    Pin(WorkerId),
}

impl Placement {
    /// The worker that is charged.
    #[must_use]
    pub const fn worker(self) -> Option<WorkerId> {
        match self {
            Self::Any => None,
            Self::Free(worker) | Self::Prefer(worker) | Self::Pin(worker) => Some(worker),
        }
    }

    /// The worker that the turn is to go to.
    #[must_use]
    pub const fn kept(self) -> Option<WorkerId> {
        match self {
            Self::Any | Self::Free(_) => None,
            Self::Prefer(worker) | Self::Pin(worker) => Some(worker),
        }
    }
}

/// An admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// Where to.
    pub placement: Placement,
    /// Urgency in the engine's queue: higher is sooner, 0 is usual.
    pub priority: i32,
    /// It went in although there was no room, because it had waited too long.
    pub forced: bool,
}

impl Grant {
    /// A usual one.
    #[must_use]
    pub const fn to(placement: Placement) -> Self {
        Self { placement, priority: 0, forced: false }
    }
}

/// Why a turn is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldReason {
    /// Its program was paused to make room for others.
    Paused,
    /// No worker has room for it.
    NoRoom,
    /// Others wait that come first.
    Behind,
}

/// What follows from an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Let the turn go.
    Admit {
        /// Which.
        turn: TurnId,
        /// How.
        grant: Grant,
    },
    /// Keep the turn until an `Admit` follows.
    Hold {
        /// Which.
        turn: TurnId,
        /// Why.
        reason: HoldReason,
    },
    /// A program lost its place: its cache may go, and before all others.
    Paused {
        /// Which.
        program: ProgramKey,
        /// Where its cache lies.
        worker: WorkerId,
        /// How much that is.
        tokens: u64,
    },
    /// What a program has cached at a worker is not worth keeping: it lost its place, went elsewhere, or is over. An
    /// engine that can evicts it before all else.
    Demote {
        /// Which program.
        program: ProgramKey,
        /// Where the cache lies.
        worker: WorkerId,
        /// How long its context is, in tokens.
        tokens: u64,
    },
}

/// Counts of a policy since its start, and what it keeps now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Stats {
    /// Programs remembered.
    pub programs: u64,
    /// Turns held.
    pub held: u64,
    /// Tokens that held turns will need.
    pub held_tokens: u64,
    /// Turns admitted.
    pub admitted: u64,
    /// Of these, by force.
    pub forced: u64,
    /// Of these, to another worker than their program's last, although that one was there.
    pub moved: u64,
    /// Pauses.
    pub paused: u64,
    /// Running programs marked to be paused at the end of their turn.
    pub marked: u64,
    /// Admissions of paused programs.
    pub resumed: u64,
    /// Programs that expired.
    pub expired: u64,
    /// Turns that were aborted while held.
    pub cancelled: u64,
}
