//! What can be set.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::idle_lease::IdleLeaseConfig;
use crate::tandem::TandemConfig;
use crate::thunderagent::ThunderAgentConfig;

/// Settings of admission.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdmissionConfig {
    /// Policy by name ([`crate::POLICIES`]).
    pub policy: String,
    /// Most programs remembered; about half a KiB each.
    pub programs_max: usize,
    /// A program without a live turn is forgotten after this long: few harnesses say that a session has ended, and what
    /// is over must not count for ever.
    pub program_idle_ttl: Duration,
    /// Settings of `thunderagent`.
    pub thunderagent: ThunderAgentConfig,
    /// Settings of `idle_lease`.
    pub idle_lease: IdleLeaseConfig,
    /// Settings of `tandem`.
    pub tandem: TandemConfig,
}

impl Default for AdmissionConfig {
    fn default() -> Self {
        Self {
            policy: crate::NONE.to_owned(),
            programs_max: 200_000,
            program_idle_ttl: Duration::from_secs(30 * 60),
            thunderagent: ThunderAgentConfig::default(),
            idle_lease: IdleLeaseConfig::default(),
            tandem: TandemConfig::default(),
        }
    }
}

/// Why settings are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionError {
    /// No such policy.
    #[error("no admission policy named '{name}'; known: {known}")]
    Unknown {
        /// The name asked for.
        name: String,
        /// Those that exist.
        known: String,
    },
    /// A setting that makes no sense.
    #[error("admission: {0}")]
    Nonsense(&'static str),
}

impl AdmissionConfig {
    /// Checks everything but the policy's name.
    ///
    /// # Errors
    /// The first setting that makes no sense.
    pub fn check(&self) -> Result<(), AdmissionError> {
        if self.programs_max == 0 {
            return Err(AdmissionError::Nonsense("programs_max must be at least 1"));
        }
        self.thunderagent.check()?;
        self.tandem.check()
    }
}
