//! What to run.

use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use tandem_scheduler::{AdmissionConfig, Scheduler, SchedulerConfig};

/// Fleet, sessions and policies.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Workers.
    #[arg(long, default_value_t = 1_000)]
    pub workers: u32,
    /// Sessions that are alive at any time.
    #[arg(long, default_value_t = 100_000)]
    pub sessions: usize,
    /// Working sets of all live sessions, by all KV pools.
    #[arg(long, value_delimiter = ',', default_values_t = [0.5, 1.0, 1.5])]
    pub fill: Vec<f64>,
    /// Admission policies.
    #[arg(long, value_delimiter = ',', default_values_t = ["none", "thunderagent", "tandem"].map(String::from))]
    pub admission: Vec<String>,
    /// Routing policies.
    #[arg(long, value_delimiter = ',', default_values_t = ["kv", "session_affinity"].map(String::from))]
    pub policy: Vec<String>,
    /// Prompt heads that sessions share, each of some thousand tokens; 0 = none.
    #[arg(long, default_value_t = 4)]
    pub heads: u64,
    /// Tenants.
    #[arg(long, default_value_t = 1)]
    pub tenants: u64,
    /// Most turns that run at once at a worker.
    #[arg(long, default_value_t = 256)]
    pub max_running: u32,
    /// Virtual seconds before anything is measured. All sessions begin in the first half of them.
    #[arg(long, default_value_t = 120)]
    pub warmup: u64,
    /// Virtual seconds that are measured.
    #[arg(long, default_value_t = 60)]
    pub measured: u64,
    /// Seed.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// One run.
#[derive(Debug, Clone)]
pub struct Point {
    pub options: Options,
    pub fill: f64,
    pub admission: String,
    pub policy: String,
}

impl Options {
    /// Every run.
    #[must_use]
    pub fn points(&self) -> Vec<Point> {
        let mut all = Vec::new();
        for policy in &self.policy {
            for admission in &self.admission {
                for &fill in &self.fill {
                    let (admission, policy) = (admission.clone(), policy.clone());
                    all.push(Point { options: self.clone(), fill, admission, policy });
                }
            }
        }
        all
    }
}

impl Point {
    /// The scheduler. Its bounds let every session be remembered and held.
    ///
    /// # Errors
    /// A policy that does not exist.
    pub fn scheduler(&self) -> Result<Scheduler> {
        let programs_max = 2 * self.options.sessions;
        let config = SchedulerConfig {
            policy: self.policy.clone(),
            admission: AdmissionConfig {
                policy: self.admission.clone(),
                programs_max,
                ..AdmissionConfig::default()
            },
            queue_max: self.options.sessions,
            programs_max,
            ..SchedulerConfig::default()
        };
        Scheduler::new(config, self.options.seed).context("the scheduler's settings")
    }

    /// How long clients wait: longer than a run, so that holding is measured and not refusing.
    #[must_use]
    pub const fn hold_max(&self) -> Duration {
        Duration::from_secs(1_800)
    }
}
