//! How a publisher counts, what it offers, and the tracker's bounds.

use std::time::Duration;

/// What is done when messages are lost for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// All that was known of the publisher is dropped.
    Clear,
    /// It is kept, and checked against another source (the Mooncake master's REST interface).
    Reconcile,
}

/// How a publisher counts and what it offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrackerConfig {
    /// The sequence number of a publisher's first message.
    pub first_seq: u64,
    /// It has a replay socket.
    pub replay: bool,
    /// On joining late, the history is asked for. Without this it begins with the first message heard.
    pub replay_on_join: bool,
    /// What is done when messages are lost for good.
    pub recovery: Recovery,
    /// A replay from which nothing was heard for so long is asked for again, or given up.
    pub replay_timeout: Duration,
    /// Replays in a row without any progress before what is missing is given up; at least 1.
    pub replay_tries: u32,
    /// Most messages held back.
    pub held_messages_max: usize,
    /// Most bytes of messages held back.
    pub held_bytes_max: usize,
}

impl TrackerConfig {
    /// An engine, with or without a replay socket. The bounds leave room for what an engine publishes while it
    /// sends a whole replay buffer (10,000 batches).
    #[must_use]
    pub const fn engine(replay: bool) -> Self {
        Self {
            first_seq: 0,
            replay,
            replay_on_join: true,
            recovery: Recovery::Clear,
            replay_timeout: Duration::from_secs(5),
            replay_tries: 3,
            held_messages_max: 20_000,
            held_bytes_max: 64 * 1024 * 1024,
        }
    }

    /// The Mooncake master.
    #[must_use]
    pub const fn mooncake() -> Self {
        Self { first_seq: 1, recovery: Recovery::Reconcile, ..Self::engine(false) }
    }
}
