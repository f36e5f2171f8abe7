//! Recorded inputs, and what they lead to when they are played again.
//!
//! - Purpose: a decision can be explained, and a change of the scheduler judged, by playing what really came in.
//! - I-REP-1 the same configuration, seed and steps give the same effects, byte for byte once serialised.
//! - A step is one call of the scheduler. Time-outs are steps too: a driver calls late, and how late matters.

use serde::{Deserialize, Serialize};
use tandem_types::Time;

use crate::Scheduler;
use crate::config::{ConfigError, SchedulerConfig};
use crate::contract::{Effect, Input};

/// What a recording begins with: the scheduler that its steps are played on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Its settings.
    pub config: SchedulerConfig,
    /// Its seed.
    pub seed: u64,
}

/// One call of the scheduler.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// When.
    pub at: Time,
    /// [`Scheduler::handle`] with this; [`Scheduler::handle_timeout`] when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Input>,
}

impl Step {
    /// Makes the call.
    pub fn play(self, scheduler: &mut Scheduler, out: &mut Vec<Effect>) {
        match self.input {
            Some(input) => scheduler.handle(self.at, input, out),
            None => scheduler.handle_timeout(self.at, out),
        }
    }
}

/// Plays the steps on a fresh scheduler; the effects of each.
///
/// # Errors
/// [`ConfigError`] as from [`Scheduler::new`].
pub fn replay(
    config: SchedulerConfig,
    seed: u64,
    steps: impl IntoIterator<Item = Step>,
) -> Result<Vec<Vec<Effect>>, ConfigError> {
    let mut scheduler = Scheduler::new(config, seed)?;
    let effects = steps.into_iter().map(|step| {
        let mut out = Vec::new();
        step.play(&mut scheduler, &mut out);
        out
    });
    Ok(effects.collect())
}
