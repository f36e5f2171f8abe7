//! What can be set of `tandem`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::AdmissionError;
use crate::rooms::Limits;

/// Settings of `tandem`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TandemConfig {
    /// Turns are admitted up to this part of what a worker holds. The rest is for growth that was not foreseen, and for
    /// caches that programs leave behind.
    pub admit: f64,
    /// The same for workers that evict such caches first ([`Capacity::demotes`](crate::Capacity::demotes)).
    pub admit_demoting: f64,
    /// Above this part idle programs lose their places.
    pub pause: f64,
    /// Down to this part. What was given up stays in the pool until it is the oldest there: to give up little and often
    /// keeps such caches around, and they push out older ones of programs that have a place.
    pub pause_to: f64,
    /// An idle program gives way to a waiting turn when it is less likely than this to return within the horizon.
    pub give_way: f64,
    /// Idle programs are kept for so many times the break-even horizon, at first.
    pub patience: f64,
    /// While more than this part of workers' time goes into computing prompts again, idle programs are kept for longer, and
    /// fewer are let in; while less does, the other way round. 0 leaves it at `patience`.
    pub reprefill_target: f64,
    /// Programs are believed to stay away so many times as long as they are seen to: 1 but to try what a wrong belief
    /// costs.
    pub gap_factor: f64,
    /// Running turns may fill this part of device memory where tiers below it hold what idles. Above 1 the rest waits in
    /// engines' own queues, next to its cache: in simulation a bound of 0.9 cost a quarter of the output.
    pub running_max: f64,
    /// Prefill rate in tokens a second until streamed turns have told.
    pub prefill_tokens_per_s: f64,
    /// A turn held this long takes room from others.
    pub overdue: Duration,
    /// Part of workers' time that may go into computing again what overdue turns made others lose.
    pub reprefill_share: f64,
    /// Turns that a program runs before an overdue one may take its place.
    pub turns_at_least: u64,
    /// Shares of tenants, by id; 1 for those that are not named.
    pub shares: BTreeMap<String, f64>,
}

impl Default for TandemConfig {
    fn default() -> Self {
        Self {
            admit: 0.9,
            admit_demoting: 0.95,
            pause: 1.0,
            pause_to: 0.92,
            give_way: 0.5,
            patience: 1.5,
            reprefill_target: 0.25,
            gap_factor: 1.0,
            running_max: 2.0,
            prefill_tokens_per_s: 20_000.0,
            overdue: Duration::from_secs(30),
            reprefill_share: 0.01,
            turns_at_least: 4,
            shares: BTreeMap::new(),
        }
    }
}

impl TandemConfig {
    pub(crate) const fn limits(&self) -> Limits {
        Limits {
            admit: self.admit,
            admit_demoting: self.admit_demoting,
            running: self.pause,
            running_above_tiers: self.running_max,
        }
    }

    pub(crate) fn check(&self) -> Result<(), AdmissionError> {
        let nonsense = |holds: bool, text| if holds { Ok(()) } else { Err(AdmissionError::Nonsense(text)) };
        let part = |value: f64| value.is_finite() && value > 0.0;
        nonsense(
            part(self.admit) && self.admit <= self.pause,
            "tandem.admit must be above 0, not above pause",
        )?;
        nonsense(
            part(self.admit_demoting) && self.admit_demoting <= self.pause,
            "tandem.admit_demoting must be above 0, not above pause",
        )?;
        nonsense(
            part(self.pause_to) && self.pause_to <= self.pause,
            "tandem.pause_to must not be above pause",
        )?;
        nonsense(
            self.pause.is_finite() && part(self.running_max),
            "tandem.pause and running_max must be numbers",
        )?;
        nonsense((0.0..=1.0).contains(&self.give_way), "tandem.give_way must be from 0 to 1")?;
        nonsense(part(self.prefill_tokens_per_s), "tandem.prefill_tokens_per_s must be above 0")?;
        nonsense(part(self.patience), "tandem.patience must be above 0")?;
        nonsense(
            (0.0..=1.0).contains(&self.reprefill_target),
            "tandem.reprefill_target must be from 0 to 1",
        )?;
        nonsense(part(self.gap_factor), "tandem.gap_factor must be above 0")?;
        nonsense(self.shares.values().all(|share| part(*share)), "tandem.shares must be above 0")?;
        nonsense((0.0..=1.0).contains(&self.reprefill_share), "tandem.reprefill_share must be from 0 to 1")
    }
}
