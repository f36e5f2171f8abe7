//! The section on admission: which turns may run now.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tandem_scheduler::AdmissionConfig;
use tandem_scheduler::admission;

use super::units::Span;

/// Which turns may run now, so that the sessions that do keep their caches. The engines tell how much they hold.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Admission {
    /// The policy, by name: `tandem`, `none`, `thunderagent`, `idle_lease`.
    pub policy: String,
    /// A session without a call keeps its claim on memory at most this long, unless it is told to end. Shorter than
    /// `sessions.idle_timeout`, which is about knowing it again.
    pub idle_timeout: Span,
    /// Settings of `tandem`.
    pub tandem: TandemGate,
    /// Settings of `thunderagent`.
    pub thunderagent: ThunderAgentGate,
    /// Settings of `idle_lease`.
    pub idle_lease: IdleLeaseGate,
}

impl Default for Admission {
    fn default() -> Self {
        let default = AdmissionConfig::default();
        Self {
            policy: "tandem".to_owned(),
            idle_timeout: Span(default.program_idle_ttl),
            tandem: TandemGate::default(),
            thunderagent: ThunderAgentGate::default(),
            idle_lease: IdleLeaseGate::default(),
        }
    }
}

/// Settings of the policy `tandem`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TandemGate {
    /// Turns are admitted up to this part of what a worker holds.
    pub admit: f64,
    /// The same for workers that evict first what they are told is not worth keeping. No released engine does.
    pub admit_demoting: f64,
    /// Above this part idle sessions lose their places.
    pub pause: f64,
    /// Down to this part.
    pub pause_to: f64,
    /// An idle session gives way to a waiting turn when it is less likely than this to return in time.
    pub give_way: f64,
    /// Running turns may fill this part of device memory where tiers below it hold what idles; above 1 the rest waits in
    /// the engines' own queues.
    pub running_max: f64,
    /// A turn held this long takes room from others.
    pub overdue: Span,
    /// Part of workers' time that may go into computing again what overdue turns made others lose.
    pub reprefill_share: f64,
    /// Idle sessions are kept, at first, for so many times the time after which computing them again would have been cheaper.
    pub patience: f64,
    /// While more than this part of workers' time goes into computing prompts again, idle sessions are kept for longer and
    /// fewer are let in; while less does, the other way round. 0 leaves it at `patience`.
    pub reprefill_target: f64,
    /// Turns that a session runs before an overdue one may take its place.
    pub turns_at_least: u64,
    /// Tokens of a prompt that a worker computes in a second, until streamed turns have told.
    pub prefill_tokens_per_s: f64,
    /// Shares of tenants, by id, in what memory there is while several wait; 1 for those that are not named.
    pub shares: BTreeMap<String, f64>,
}

impl Default for TandemGate {
    fn default() -> Self {
        let default = admission::TandemConfig::default();
        Self {
            admit: default.admit,
            admit_demoting: default.admit_demoting,
            pause: default.pause,
            pause_to: default.pause_to,
            give_way: default.give_way,
            running_max: default.running_max,
            overdue: Span(default.overdue),
            reprefill_share: default.reprefill_share,
            patience: default.patience,
            reprefill_target: default.reprefill_target,
            turns_at_least: default.turns_at_least,
            prefill_tokens_per_s: default.prefill_tokens_per_s,
            shares: default.shares,
        }
    }
}

/// Settings of the policy `thunderagent`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ThunderAgentGate {
    /// As the published package behaves, where that differs from the article.
    pub package: bool,
    /// Above this part of its capacity a worker's sessions are paused.
    pub pause_threshold: f64,
    /// Down to this part.
    pub pause_target: f64,
    /// From this part on turns are demoted.
    pub soft_demote_threshold: f64,
    /// Sessions are resumed up to `pause_threshold` less this.
    pub resume_hysteresis: f64,
    /// A turn held this long is let in by force.
    pub resume_timeout: Span,
    /// Between two looks at everything.
    pub tick: Span,
}

impl Default for ThunderAgentGate {
    fn default() -> Self {
        let default = admission::ThunderAgentConfig::default();
        Self {
            package: false,
            pause_threshold: default.pause_threshold,
            pause_target: default.pause_target,
            soft_demote_threshold: default.soft_demote_threshold,
            resume_hysteresis: default.resume_hysteresis,
            resume_timeout: Span(default.resume_timeout),
            tick: Span(default.tick),
        }
    }
}

/// Settings of the policy `idle_lease`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct IdleLeaseGate {
    /// How long an idle session keeps its place against newcomers.
    pub lease: Span,
    /// A turn held this long is let in by force.
    pub timeout: Span,
}

impl Default for IdleLeaseGate {
    fn default() -> Self {
        let default = admission::IdleLeaseConfig::default();
        Self { lease: Span(default.lease), timeout: Span(default.timeout) }
    }
}

impl Admission {
    /// As the scheduler has it.
    pub(super) fn scheduler(&self, programs_max: usize) -> AdmissionConfig {
        let (tandem, thunder, lease) = (&self.tandem, &self.thunderagent, &self.idle_lease);
        let published = if thunder.package {
            admission::ThunderAgentConfig::package()
        } else {
            admission::ThunderAgentConfig::default()
        };
        AdmissionConfig {
            policy: self.policy.clone(),
            programs_max,
            program_idle_ttl: self.idle_timeout.0,
            tandem: admission::TandemConfig {
                admit: tandem.admit,
                admit_demoting: tandem.admit_demoting,
                pause: tandem.pause,
                pause_to: tandem.pause_to,
                give_way: tandem.give_way,
                running_max: tandem.running_max,
                overdue: tandem.overdue.0,
                reprefill_share: tandem.reprefill_share,
                patience: tandem.patience,
                reprefill_target: tandem.reprefill_target,
                turns_at_least: tandem.turns_at_least,
                prefill_tokens_per_s: tandem.prefill_tokens_per_s,
                shares: tandem.shares.clone(),
                ..admission::TandemConfig::default()
            },
            thunderagent: admission::ThunderAgentConfig {
                pause_threshold: thunder.pause_threshold,
                pause_target: thunder.pause_target,
                soft_demote_threshold: thunder.soft_demote_threshold,
                resume_hysteresis: thunder.resume_hysteresis,
                resume_timeout: thunder.resume_timeout.0,
                tick: thunder.tick.0,
                ..published
            },
            idle_lease: admission::IdleLeaseConfig { lease: lease.lease.0, timeout: lease.timeout.0 },
        }
    }
}
