//! What the engines' caches hold, as they tell it themselves: KV event subscribers.
//!
//! - Purpose: follow the event publisher of every worker and hand on what its cache gained and lost, in order,
//!   with nothing lost silently; the same for a shared Mooncake store ([`StoreEvents`]).
//! - Inputs: the engines of [`Engines`], their `/kv_event_sources` (vLLM) or `/server_info` (SGLang) or endpoints
//!   named by the user; messages of their PUB sockets; answers of their replay sockets.
//!   Outputs: [`KvUpdate`]s into a bounded channel; [`KvStatus`] for people and metrics.
//! - Invariants:
//!   - I-KVE-1 updates of one worker come in the order in which its engine published them; between two
//!     [`KvUpdateKind::Cleared`] no batch is missing and none comes twice;
//!   - I-KVE-2 a slow receiver holds up the subscribers: they stop reading. What a publisher then drops shows as
//!     a gap and is replayed, or ends in `Cleared`;
//!   - I-KVE-3 one task per publisher: one that is dead, silent or wrong holds up nobody else;
//!   - I-KVE-4 a connection that fell silent is built anew after a bounded time, and with a replay socket what
//!     was said meanwhile is asked for; the library's own reconnecting is never waited for;
//!   - I-KVE-5 `Live` is told only of a worker whose publisher was heard since the connection was made, or of
//!     which nothing is known yet;
//!   - I-KVE-6 what is held back is bounded ([`KvEventsConfig::held_messages_max`] and its like), and nothing is
//!     left out uncounted.
//! - Deliberately absent: the index; guesses of ports that nobody named; publishers that connect instead of
//!   binding (vLLM with a concrete host in its endpoint); a bound on one message's size, which the ZeroMQ library
//!   does not offer.
//! - Sources: vLLM 0.11 to 0.33, SGLang 0.5.5 to 0.5.23, Mooncake 0.3.14; the `zeromq` crate 0.7, as measured:
//!   `connect` returns only when the peer answers, and a restarted publisher's first messages are lost.

mod discover;
mod endpoint;
mod follow;
mod link;
mod replay;
mod status;
mod store;
mod store_rest;
mod subscriber;

use std::time::{Duration, Instant};

use tandem_kvwire::TrackerConfig;
use tandem_types::{KvBatch, WorkerId};

pub use endpoint::{EndpointError, ZmqEndpoint};
pub use follow::KvEvents;
pub use status::{KvState, KvStatus};
pub use store::{StoreDoubt, StoreEvents, StoreEventsConfig, StoreSpec, StoreStatus, StoreUpdate};

/// A change of what a worker's cache is known to hold.
#[derive(Debug, Clone, PartialEq)]
pub struct KvUpdate {
    /// Whose cache.
    pub worker: WorkerId,
    /// When it was read from the publisher, or noticed: what it waited since is the receiver's lag.
    pub received: Instant,
    /// What changed.
    pub kind: KvUpdateKind,
}

/// What changed.
#[derive(Debug, Clone, PartialEq)]
pub enum KvUpdateKind {
    /// Blocks came and went.
    Batch(KvBatch),
    /// All that was told of this worker is void.
    Cleared(KvClear),
    /// The publisher is out of reach. What was told stands, but grows old.
    Stale,
    /// Up to date (again): what follows comes as it happens.
    Live,
}

/// Why all that was told of a worker is void.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvClear {
    /// Messages were lost for good. The engine is the same, and still holds what it held.
    Lost,
    /// Its process is another one, which begins with an empty cache.
    Restarted,
    /// Nobody publishes for it any more. What it holds is not known.
    Ended,
}

impl KvClear {
    /// The name in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Restarted => "restarted",
            Self::Ended => "ended",
        }
    }
}

/// How publishers are followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvEventsConfig {
    /// Longest time for one attempt to connect, handshake included.
    pub connect_timeout: Duration,
    /// Wait after a connection that was lost without a message; doubles with each.
    pub backoff_initial: Duration,
    /// Longest such wait.
    pub backoff_max: Duration,
    /// So long after connecting without a message the replay socket is asked once more: a subscription takes
    /// effect some time after the connection stands, and what was published in between is missed.
    pub recheck: Duration,
    /// A connection without a message for so long is built anew.
    pub idle_timeout: Duration,
    /// Time between look-ups of an engine's publishers.
    pub discover_interval: Duration,
    /// The same after a look-up that failed.
    pub discover_retry: Duration,
    /// A replay from which nothing was heard for so long has failed.
    pub replay_timeout: Duration,
    /// Replays in a row without progress before what is missing is given up; at least 1.
    pub replay_tries: u32,
    /// Most messages of one publisher held back during a replay.
    pub held_messages_max: usize,
    /// Most bytes of them.
    pub held_bytes_max: usize,
}

impl Default for KvEventsConfig {
    fn default() -> Self {
        let tracker = TrackerConfig::engine(true);
        Self {
            connect_timeout: Duration::from_secs(3),
            backoff_initial: Duration::from_millis(50),
            backoff_max: Duration::from_secs(2),
            recheck: Duration::from_secs(1),
            idle_timeout: Duration::from_secs(60),
            discover_interval: Duration::from_secs(30),
            discover_retry: Duration::from_secs(1),
            replay_timeout: tracker.replay_timeout,
            replay_tries: tracker.replay_tries,
            held_messages_max: tracker.held_messages_max,
            held_bytes_max: tracker.held_bytes_max,
        }
    }
}

/// Shortest wait that is used, whatever is configured: no busy loops.
const WAIT_MIN: Duration = Duration::from_millis(10);

impl KvEventsConfig {
    fn clamped(mut self) -> Self {
        for wait in [
            &mut self.connect_timeout,
            &mut self.backoff_initial,
            &mut self.backoff_max,
            &mut self.recheck,
            &mut self.idle_timeout,
            &mut self.discover_interval,
            &mut self.discover_retry,
            &mut self.replay_timeout,
        ] {
            *wait = (*wait).clamp(WAIT_MIN, Duration::from_secs(24 * 3600));
        }
        self.replay_tries = self.replay_tries.max(1);
        self
    }

    const fn tracker(&self, replay: bool) -> TrackerConfig {
        TrackerConfig {
            replay_timeout: self.replay_timeout,
            replay_tries: self.replay_tries,
            held_messages_max: self.held_messages_max,
            held_bytes_max: self.held_bytes_max,
            ..TrackerConfig::engine(replay)
        }
    }
}
