//! Plain data that every crate shares: ids, time, token counts, turns, agent context, workers, KV events.
//!
//! - Purpose: one vocabulary (session, program, turn, worker, block, tier) so that the crates above never
//!   need each other's types.
//! - Invariants: I-TYP-1 every id from outside is bounded and visible ASCII ([`ids`]). Time is a number handed
//!   in, never read here ([`Time`]); bounds of what comes from outside are named in [`limits`].
//! - Deliberately absent: logic, clocks, randomness, async.

pub mod context;
pub mod ids;
pub mod kv;
pub mod limits;
pub mod prefix;
pub mod spans;
pub mod time;
pub mod turn;
pub mod wishes;
pub mod worker;

pub use context::{
    AgentContext, Harness, HarnessFacts, IdentitySource, InputTrigger, RequestClass, ToolDuration,
};
pub use ids::{
    AgentId, EngineId, GroupId, IdError, ProgramKey, RequestId, RetryKey, SessionId, TenantId, TurnId,
    WorkerId,
};
pub use kv::{BlockHash, BlockRemoved, BlockStored, ExtraKey, GroupKind, KvBatch, KvEvent, Tier};
pub use prefix::{HEAD_TOKENS, MatchSource, PrefixMatch, SharedPrefix, WorkerPrefix};
pub use spans::{Alike, Holders, WorkerSet};
pub use time::Time;
pub use turn::{BodyEdit, BodyIds, Dialect, FinishReason, PromptShape, ToolCall, TurnFacts, Usage};
pub use wishes::{LabelWish, RouteWishes, WeightOverrides};
pub use worker::{Adapter, EngineKind, LoadReport, WorkerInfo, WorkerRole};
