//! Weights of the cost, from the fleet's settings and a request's wishes.

use serde::{Deserialize, Serialize};
use tandem_types::RouteWishes;

/// The fleet's weights. `Default` is what a fresh installation runs with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KvConfig {
    /// Part of a block's prefill that a copy in device memory saves, 0 to 1.
    pub device: f64,
    /// The same for host memory: loading takes time. Not above `device`.
    pub host: f64,
    /// The same for disk. Not above `host`.
    pub disk: f64,
    /// The same for a store shared by several workers, 0 to 1.
    pub shared: f64,
    /// Weight of prefill queued before this one. Well below 1: a queue passes, while a session that leaves has its
    /// whole context computed again and comes back to an older copy later.
    pub queued: f64,
    /// Tokens that one running request counts as. 512 is about what a turn of 100 to 200 generated tokens slows a
    /// neighbour down by.
    pub decode: f64,
    /// Weight of the KV that a program leaves behind when it moves: its next turns may find less there, and its
    /// copy elsewhere takes another program's place.
    pub left_behind: f64,
    /// Weight of the share of programs' tokens that a worker has beyond the fleet's mean.
    pub crowding: f64,
    /// What a worker costs whose programs have outgrown its KV pool, in parts of the program's context; where it is
    /// the home, its own programs move to workers with room.
    pub overfull: f64,
    /// In a fleet whose programs need more than all its KV pools, newcomers go to the fullest worker that has at most
    /// this many times the mean share, so that the other workers keep what they hold; 0 = where less than the mean
    /// lies, as ever.
    pub gather: f64,
    /// What any worker but a program's home costs more, in parts of the prompt, whatever is cached.
    pub stay: f64,
    /// How much more so in a fleet that loses KV: `stay` grows by this times the part of their KV, beyond a fifth,
    /// that programs lately found lost at home, and the load that a first turn sees shrinks to 1 / (1 + the same). Queues there are
    /// long from computing it all anew and short where programs still find their KV: moves and newcomers that
    /// follow the queues make those workers lose it too.
    pub lost: f64,
    /// Tokens that any worker but the parent's costs a new child more.
    pub parent_tokens: f64,
    /// Where prompts and answers have workers of their own: what fetching a token's KV costs a worker for answers,
    /// in parts of what computing it would. Scales all that a prompt counts for there.
    pub transfer: f64,
    /// Tokens that loading a LoRA adapter counts as.
    pub adapter_tokens: f64,
    /// 0 = the cheapest worker; above, workers are drawn, cheap ones more often (1 = a spread where the dearest is
    /// drawn e times less often than the cheapest).
    pub temperature: f64,
}

impl Default for KvConfig {
    fn default() -> Self {
        Self {
            device: 1.0,
            host: 0.75,
            disk: 0.25,
            shared: 0.5,
            queued: 0.3,
            decode: 512.0,
            left_behind: 1.0,
            crowding: 1.0,
            overfull: 1.0,
            gather: 2.0,
            stay: 0.1,
            lost: 1000.0,
            parent_tokens: 1024.0,
            transfer: 0.1,
            adapter_tokens: 4096.0,
            temperature: 0.0,
        }
    }
}

/// Why weights are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KvConfigError {
    /// Not a part of something.
    #[error("{0} must be a number from 0 to 1")]
    Part(&'static str),
    /// Not a weight.
    #[error("{0} must be a number from 0 to {WEIGHT_MAX}")]
    Weight(&'static str),
    /// A slower tier must not save more than a faster one: a worker would be less preferred for having more.
    #[error("{slower} must not be above {faster}")]
    TierOrder {
        /// The setting that is too high.
        slower: &'static str,
        /// Its bound.
        faster: &'static str,
    },
}

/// Largest weight that is taken; costs stay far from where they lose precision.
pub(super) const WEIGHT_MAX: f64 = 1e6;

impl KvConfig {
    /// Checks the weights.
    ///
    /// # Errors
    /// [`KvConfigError`] names the first that makes no sense.
    pub fn check(&self) -> Result<(), KvConfigError> {
        for (name, part) in [
            ("device", self.device),
            ("host", self.host),
            ("disk", self.disk),
            ("shared", self.shared),
            ("transfer", self.transfer),
        ] {
            if !(0.0..=1.0).contains(&part) {
                return Err(KvConfigError::Part(name));
            }
        }
        for (name, weight) in [
            ("queued", self.queued),
            ("decode", self.decode),
            ("left_behind", self.left_behind),
            ("crowding", self.crowding),
            ("overfull", self.overfull),
            ("gather", self.gather),
            ("stay", self.stay),
            ("lost", self.lost),
            ("parent_tokens", self.parent_tokens),
            ("adapter_tokens", self.adapter_tokens),
            ("temperature", self.temperature),
        ] {
            if !(0.0..=WEIGHT_MAX).contains(&weight) {
                return Err(KvConfigError::Weight(name));
            }
        }
        if self.host > self.device {
            return Err(KvConfigError::TierOrder { slower: "host", faster: "device" });
        }
        if self.disk > self.host {
            return Err(KvConfigError::TierOrder { slower: "disk", faster: "host" });
        }
        Ok(())
    }
}

/// The weights of one decision.
#[derive(Debug)]
pub(super) struct Weights<'a> {
    pub(super) fleet: &'a KvConfig,
    pub(super) device: f64,
    pub(super) host: f64,
    pub(super) disk: f64,
    pub(super) shared: f64,
    pub(super) queued: f64,
    pub(super) decode: f64,
    pub(super) temperature: f64,
}

impl<'a> Weights<'a> {
    /// The fleet's weights with a request's own in their place, made sound.
    pub(super) fn of(fleet: &'a KvConfig, wishes: Option<&RouteWishes>) -> Self {
        let wish = wishes.map(|wishes| wishes.weights).unwrap_or_default();
        let device = pick(wish.device, fleet.device, 1.0);
        let host = pick(wish.host, fleet.host, 1.0).min(device);
        Self {
            fleet,
            device,
            host,
            disk: pick(wish.disk, fleet.disk, 1.0).min(host),
            shared: pick(wish.shared, fleet.shared, 1.0),
            queued: pick(wish.queued, fleet.queued, WEIGHT_MAX),
            decode: pick(wish.decode, fleet.decode, WEIGHT_MAX),
            temperature: pick(wish.temperature, fleet.temperature, WEIGHT_MAX),
        }
    }
}

fn pick(wish: Option<f64>, fleet: f64, max: f64) -> f64 {
    wish.filter(|wish| wish.is_finite()).unwrap_or(fleet).clamp(0.0, max)
}
