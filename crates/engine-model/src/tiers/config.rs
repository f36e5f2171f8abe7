//! How the tiers below the device are set up.

use serde::{Deserialize, Serialize};

use crate::config::ConfigError;

/// When blocks are copied from the device to the tier below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WritePolicy {
    /// As soon as they are full: vLLM's offloading, SGLang's `write_through`.
    #[default]
    Through,
    /// When the device evicts them: SGLang's `write_back`.
    Back,
}

/// How fast KV moves to and from a tier; each way is a queue of its own.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LinkConfig {
    /// Into the device, GB/s (10^9 bytes); above 0, infinite = no time.
    pub read_gb_s: f64,
    /// Out of it.
    pub write_gb_s: f64,
}

impl Default for LinkConfig {
    /// A host link of PCIe 4: 32 GB/s each way.
    fn default() -> Self {
        Self { read_gb_s: 32.0, write_gb_s: 32.0 }
    }
}

/// One tier of the engine's own.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TierConfig {
    /// Capacity in tokens, cut to whole blocks.
    pub tokens: u64,
    /// Its link.
    pub link: LinkConfig,
}

/// The tiers below the device.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TiersConfig {
    /// Host memory; `None` = no such tier.
    pub host: Option<TierConfig>,
    /// Local disk. It takes what the host evicts, or, without a host tier, what the host would take.
    pub disk: Option<TierConfig>,
    /// The link to a store shared with other engines ([`SharedStore`](crate::SharedStore)); `None` = none is
    /// used. Full blocks are always put there at once.
    pub shared: Option<LinkConfig>,
    /// When blocks are written.
    pub policy: WritePolicy,
    /// Bytes of KV of one token that one link carries: those of one GPU where each has a link of its own.
    pub token_bytes: u64,
}

impl Default for TiersConfig {
    /// No tiers; 64 KiB a token.
    fn default() -> Self {
        Self { host: None, disk: None, shared: None, policy: WritePolicy::Through, token_bytes: 65_536 }
    }
}

impl TiersConfig {
    /// How many tokens an engine with `device` tokens of device memory and its own tiers hold, each counted once: a tier
    /// that is written through has what the device has.
    #[must_use]
    pub fn resident(&self, device: u64) -> u64 {
        let below = [self.host, self.disk].into_iter().flatten().map(|tier| tier.tokens).sum();
        match self.policy {
            WritePolicy::Through => device.max(below),
            WritePolicy::Back => device + below,
        }
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let links = [self.host.map(|t| t.link), self.disk.map(|t| t.link), self.shared];
        for link in links.into_iter().flatten() {
            for speed in [link.read_gb_s, link.write_gb_s] {
                if speed.is_nan() || speed <= 0.0 {
                    return Err(ConfigError::Bandwidth(speed));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_through_is_held_twice_and_counted_once() {
        let tier = |tokens| Some(TierConfig { tokens, ..TierConfig::default() });
        let through = TiersConfig { host: tier(300), disk: tier(50), ..TiersConfig::default() };
        assert_eq!(through.resident(100), 350);
        assert_eq!(through.resident(400), 400, "tiers smaller than the device add nothing");
        assert_eq!(TiersConfig { policy: WritePolicy::Back, ..through }.resident(100), 450);
    }
}
