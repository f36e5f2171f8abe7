//! The engine: queue, running batch, pass.

use tandem_types::{KvEvent, Time};

use crate::config::{ConfigError, EngineConfig};
use crate::pass::{Load, Pass};
use crate::request::{Refusal, Request, RequestKey};

/// One modelled engine rank.
#[derive(Debug)]
pub struct EngineModel {
    config: EngineConfig,
}

impl EngineModel {
    /// An idle engine with an empty cache.
    ///
    /// # Errors
    /// [`ConfigError`] when the set-up is unusable.
    pub fn new(config: EngineConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self { config })
    }

    /// The set-up.
    #[must_use]
    pub const fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Puts a request into the queue; the next [`step`](Self::step) sees it.
    ///
    /// # Errors
    /// [`Refusal`] when it can never run.
    pub fn submit(&mut self, _now: Time, _request: Request) -> Result<(), Refusal> {
        Ok(())
    }

    /// Ends a request and frees its blocks (they stay cached). Returns whether it was there: `false` for
    /// one that is unknown or whose last token is in a pass already computed; the caller then drops what
    /// that pass still holds of it.
    pub fn abort(&mut self, _now: Time, _id: RequestKey) -> bool {
        false
    }

    /// Computes the next pass into `pass` (cleared first) and returns `true`, or returns `false` when
    /// there is nothing to compute. The pass starts at `now`, or at the end of the previous pass if that
    /// is later. The caller delivers its content at `pass.ends_at` and calls again then.
    ///
    /// With `false` the pass is empty except for events that were pending
    /// (a cleared cache), which are due at `now`.
    pub fn step(&mut self, _now: Time, pass: &mut Pass) -> bool {
        pass.clear();
        false
    }

    /// Whether a [`step`](Self::step) would compute something.
    #[must_use]
    pub fn has_work(&self) -> bool {
        false
    }

    /// State and counters.
    #[must_use]
    pub fn load(&self) -> Load {
        Load::default()
    }

    /// Prompt tokens that a request with this prompt would find cached now, in whole blocks and at most
    /// all but its last token.
    #[must_use]
    pub fn cached_prefix(&self, _request: &Request) -> u32 {
        0
    }

    /// Forgets all cached blocks. Returns `false`, and changes nothing, while requests hold blocks.
    /// The event goes out with the next pass, or at once through [`take_events`](Self::take_events).
    pub fn reset_prefix_cache(&mut self) -> bool {
        true
    }

    /// Events that wait for the next pass.
    pub fn take_events(&mut self) -> Vec<KvEvent> {
        Vec::new()
    }
}
