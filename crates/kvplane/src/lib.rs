//! One picture of where the KV lies: engines' events, dispatches, sessions and a shared store, joined.
//!
//! - Purpose: say of a prompt how much of it each worker could reuse, from its own tiers and from the store, exactly
//!   where engines tell and as well as can be where they do not.
//! - Inputs: workers ([`WorkerSpec`]), their decoded events ([`Plane::batch`]) and what became of the streams
//!   ([`Plane::live`], [`Plane::stale`], [`Plane::cleared`], [`Plane::lost`]), and how long events waited
//!   ([`Plane::waited`]); the store's events and listings ([`Plane::store`]);
//!   dispatches ([`PlaneReader::dispatched`]); what sessions ask ([`Plane::told`]); time as an argument.
//! - Outputs: [`tandem_types::PrefixMatch`] for a prompt ([`PlaneReader::find`]); what is known of each worker
//!   ([`Knowledge`]) and every change of that ([`Transition`]); a session's path ([`PlaneReader::session_path`]) and
//!   what sessions make workers keep ([`Sessions`]); numbers ([`PlaneStats`]).
//! - Parts: [`prompt`] hashes prompts in the shapes in use; [`lane`] and [`events`] take in events; [`find`] puts the
//!   indexes of `kvindex` together; [`predict`] waits for the events of dispatches; [`store`] and [`pages`] name objects
//!   in the store; [`view`] is what readers know of workers.
//! - Invariants:
//!   - I-KVP-1 what a connector wrote to a store without watching it (`echo`) is no tier of the worker;
//!   - I-KVP-2 a store that does not describe its blocks moves those that are known, and nothing else;
//!   - I-KVP-3 only cache groups of full attention bound a prefix, and where there are several a block counts when
//!     all of them have it, in the slowest tier in which one has it;
//!   - I-KVP-4 adapters, salts and media never share a block; a salt that was told at a prompt's start holds for what
//!     follows, and one that was forgotten costs a match but gives none away;
//!   - I-KVP-5 of a prompt's tokens the last one is never counted, so of one that is cached whole the last block is
//!     not: engines compute at least one token;
//!   - I-KVP-6 workers of several block sizes are told in one unit, the greatest that divides all sizes;
//!   - I-KVP-7 each worker is exact, stale, approximate or blind, each change of that is reported once, and any worker
//!     whose events arrive again is exact again without anybody's help;
//!   - I-KVP-8 every table has a named bound, and what does not fit is counted;
//!   - I-KVP-9 the names of a prompt's pages are the same whether or not work of an earlier prompt was used;
//!   - I-KVP-10 what is dispatched counts at once, until the event that confirms it, its failure or its time; then only
//!     what events say counts, so that an eviction is never hidden;
//!   - I-KVP-11 what an engine echoes of a session lengthens the path that the session was told to have;
//!   - I-KVP-12 a block that device, connector and store tell of is credited once: where the worker has it itself, or
//!     else as what it could load, and never behind a hole;
//!   - I-KVP-13 while events wait, and for a while after some were lost, a worker is stale, and it is exact again without
//!     anybody's help.
//! - Concurrency: one owner writes. A look-up takes the view (one pointer), then the locks of single shards that
//!   `kvindex` takes; it never waits for a batch. [`PlaneReader::session_path`] alone waits for one event of the session
//!   forest.
//! - One worker index, one of each routed index and one session forest serve all block sizes: content hashes of blocks
//!   of two sizes differ, so chains of several sizes live side by side. Hashing a prompt again costs no more than
//!   comparing it with the last one; what is carried over between turns is the SHA-256 work of page names.
//! - Deliberately absent: parts of blocks (the last part of a prompt that only a finer match unit would find); blocks
//!   that a drafter of vLLM makes it drop from the end of a hit; residency of what was stored before its parent was
//!   known, in the session forest; the choice of a worker (routing).
//! - Bounds of exactness: a stream that was joined late is exact only for what it told since. As soon as it tells of
//!   blocks behind unknown ones, what was dispatched there lately is believed besides.
//! - Sources: vLLM 0.11 to 0.33, SGLang 0.5.5 to 0.5.23, Mooncake 0.3.14, and captures of them.

mod config;
mod events;
mod find;
mod knowledge;
mod lane;
mod pages;
mod plane;
mod predict;
mod prompt;
mod reader;
mod recent;
mod stats;
mod store;
mod view;

pub use config::{
    GROUPS_MAX, NAMES_MAX, PREDICTIONS_MAX, PlaneConfig, SALTED_MAX, SHAPES_MAX, StoreUse, TEXTS_MAX,
    TRANSITIONS_MAX, VllmHashing, WORKERS_MAX, WorkerSpec,
};
pub use knowledge::{Knowledge, Pace, Transition};
pub use plane::Plane;
pub use prompt::{Prompt, PromptChain};
pub use reader::{Dispatched, PlaneReader, SessionView, Sessions, WorkingSet};
pub use stats::{EventCounts, PlaneStats, SessionStats, StoreStats, WorkerStats};
pub use store::{StoreChange, StoreDoubt};
pub use tandem_kvindex::session::Relation;
pub use tandem_kvindex::worker::{Copies, Keep};
pub use tandem_kvwire::hash::block::Media;
