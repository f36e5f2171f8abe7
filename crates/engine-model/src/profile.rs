//! Named set-ups of measured deployments: see [`Profile`].

use crate::config::{EngineConfig, Flavor};

/// A named deployment: model, GPU, parallelism.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    name: &'static str,
    summary: &'static str,
}

/// No profile of that name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no profile named '{name}'; known: {}", Profile::names().join(", "))]
pub struct UnknownProfile {
    /// The name asked for.
    pub name: String,
}

impl Profile {
    /// All names, sorted.
    #[must_use]
    pub fn names() -> Vec<&'static str> {
        Vec::new()
    }

    /// The profile of that name.
    ///
    /// # Errors
    /// [`UnknownProfile`] lists the known names.
    pub fn by_name(name: &str) -> Result<&'static Self, UnknownProfile> {
        Err(UnknownProfile { name: name.to_owned() })
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// One line for people.
    #[must_use]
    pub const fn summary(&self) -> &'static str {
        self.summary
    }

    /// The set-up: pool, block size, batch limits and timing of the deployment.
    #[must_use]
    pub fn config(&self, flavor: Flavor) -> EngineConfig {
        EngineConfig { flavor, ..EngineConfig::default() }
    }
}
