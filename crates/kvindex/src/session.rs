//! The session-prefix index: which blocks each session's next turn builds on, and what that makes a worker
//! keep.
//!
//! - Purpose: know a session's lineage without tokenizing, what of it lies where, and the *working set*: how
//!   many different blocks a worker must keep so that none of its sessions prefills again.
//! - Inputs: content hashes of blocks (see [`crate::chain`]; equal hash = equal whole prefix), as
//!   - what we know ourselves of a session's prompt and answer ([`SessionIndex::told`]), with what a routed
//!     match says of residency;
//!   - engines' stores with a session id ([`SessionIndex::stored`]), and removals; reference counts of several
//!     physical copies are the worker index's business: feed the first store and the last removal;
//!   - begin, parent, end and silence of sessions; time as an argument.
//! - Outputs: lineage, branches, residency per tier, unique blocks per session and per worker, what a session
//!   alone makes a worker keep ([`SessionIndex::exclusive`]), what it would add to another
//!   ([`SessionIndex::added`]); published for readers ([`SessionReader`]); changes to be drained.
//! - Structure: a forest of runs of at most [`RUN_BLOCKS`] blocks. A run ends at a fork, at a branch end of a
//!   session, at its size, or where nothing follows. Each run counts, per worker, the branch ends at it and the
//!   runs below it that the worker must keep; so a worker's working set changes exactly by the runs whose count
//!   leaves or reaches zero.
//! - Invariants:
//!   - I-SES-1 only blocks on the path of some session's branch are kept; what no branch needs goes at once;
//!   - I-SES-2 a run and its only child, where no branch ends between them, are longer than one run together:
//!     what a fork split is merged again when the fork goes, and there are at most twice as many runs as
//!     branch ends, forks and full runs;
//!   - I-SES-3 working set of a worker = number of different blocks on the paths of branches at home there; of
//!     a session = on the paths of its branches; a block shared by several counts once;
//!   - I-SES-4 no branch of a session lies on the path of another of the same session;
//!   - I-SES-5 residency follows events and never moves lineage: an evicted block stays in the working set,
//!     because the next turn needs it;
//!   - I-SES-6 what we were told wins over what engines echo: an echo may only lengthen a told branch, so that
//!     late events of an answer that the harness rewrote do not bring it back, and neither does one of a
//!     session that has ended;
//!   - work is proportional to the blocks that join or leave a session or a worker, in units of one
//!     run. Only a branch that moves sideways walks its session's paths (at most
//!     [`BRANCHES_MAX`] x path / [`RUN_BLOCKS`] runs), and a told chain whose end is known is recognised by
//!     that alone. Clearing or dropping a worker is one step; stale counts go when next touched;
//!   - I-SES-8 memory is bounded by [`SessionLimits`]; the least recently active sessions make room.
//! - Concurrency: one owner writes, without any lock on its own data: the same owner applies events in order
//!   anyway, and a change is some hundred nanoseconds per run. Readers never touch the forest: each session and
//!   each worker has a cell of atomics. Finding a cell takes one of 64 read locks, which the writer takes only
//!   when a session comes or goes; so no reader waits for an update, and no update for a reader.
//! - Deliberately absent: residency of blocks that no session needs and the choice of a worker (the worker
//!   index), the shared pool, tokens, block sizes (one index per block size), learned idle times.
//! - Where this goes beyond dynamo-kv-router 1.6.1 `session_prefix_index.rs`: parent edges, end and idle
//!   expiry, tiers, working sets, no lock over the whole, removals that cost what they remove, and pruning and
//!   merging at once instead of leaf pruning every 300 s.

mod advance;
mod covers;
mod forest;
mod holds;
mod index;
mod published;
mod query;
mod records;

pub use forest::RUN_BLOCKS;
pub use index::{Advance, Change, Counters, Relation, SessionIndex, SessionLimits, StoredBlocks, Told};
pub use published::{SessionReader, SessionSummary, WorkerSummary};
pub use query::{Branch, Resident};

/// Most sessions, by default.
pub const SESSIONS_MAX: usize = 131_072;
/// Most different blocks on sessions' paths, by default: about 400 MB.
pub const BLOCKS_MAX: usize = 8_000_000;
/// Most branches of one session, by default; the least recently used one gives way.
pub const BRANCHES_MAX: usize = 16;
/// Most workers with something at home or resident, by default.
pub const WORKERS_MAX: usize = 4_096;
/// Most generations of parents above a session; a deeper edge is not kept.
pub const ANCESTORS_MAX: usize = 64;
/// How many ended sessions are remembered, so that late events do not revive them.
pub const ENDED_MAX: usize = 4_096;
