//! Settings of the engine registry: intervals, thresholds, bounds.

use std::time::Duration;

/// Most engines, those found by DNS included.
pub const ENGINES_MAX: usize = 4096;
/// Most data-parallel ranks of one engine; higher ones are ignored.
pub const RANKS_MAX: usize = 1024;
/// Most models kept of one engine.
pub const MODELS_MAX: usize = 4096;
/// Largest answer read from a control endpoint, in bytes. `/metrics` of an engine with many ranks and adapters
/// and `/server_info` with many ranks reach a few MiB.
pub const CONTROL_BODY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// How engines are watched. The defaults follow the routers that users know (three failures down, two
/// successes up, 5 s probe timeout), with much shorter intervals: a probe costs the engine next to nothing, and
/// an agent's turn that waits for a minute-old health state costs its user a minute. Durations below 10 ms and
/// above 24 h are taken as those.
#[derive(Debug, Clone, PartialEq)]
pub struct EnginesConfig {
    /// Time between health probes of a ready engine.
    pub health_interval: Duration,
    /// Longest wait for any single probe, connecting included.
    pub probe_timeout: Duration,
    /// Consecutive failed health probes that take a ready engine down.
    pub fail_threshold: u32,
    /// Consecutive good health probes that bring a down engine back. A new engine needs one.
    pub ok_threshold: u32,
    /// First wait after a failed probe of an engine that is not ready; doubles up to `health_interval`.
    pub retry_initial: Duration,
    /// Time between load polls.
    pub load_interval: Duration,
    /// Time between refreshes of models, version and capacity.
    pub models_interval: Duration,
    /// Intervals vary by this part of themselves, so that many probers do not fall into step; 0 to 0.5.
    pub jitter: f64,
    /// Time between look-ups of a name whose addresses are engines.
    pub dns_interval: Duration,
    /// How long an address that left the records drains before it is removed.
    pub dns_grace: Duration,
    /// Most token look-ups ([`Engines::render`](crate::Engines::render)) at once per engine.
    pub render_concurrency: usize,
    /// Longest wait for a token look-up.
    pub render_timeout: Duration,
}

impl Default for EnginesConfig {
    fn default() -> Self {
        Self {
            health_interval: Duration::from_secs(2),
            probe_timeout: Duration::from_secs(5),
            fail_threshold: 3,
            ok_threshold: 2,
            retry_initial: Duration::from_millis(100),
            load_interval: Duration::from_secs(1),
            models_interval: Duration::from_secs(30),
            jitter: 0.1,
            dns_interval: Duration::from_secs(10),
            dns_grace: Duration::from_secs(60),
            render_concurrency: 4,
            render_timeout: Duration::from_secs(5),
        }
    }
}

/// Shortest interval or timeout that is used.
const DURATION_MIN: Duration = Duration::from_millis(10);
/// Longest interval or timeout that is used.
const DURATION_MAX: Duration = Duration::from_secs(24 * 3600);
/// Most token look-ups at once per engine, whatever is configured.
const RENDER_CONCURRENCY_MAX: usize = 1024;

impl EnginesConfig {
    /// With every value inside what the registry can work with: no busy loops, no overflow of times.
    pub(crate) fn clamped(mut self) -> Self {
        for duration in [
            &mut self.health_interval,
            &mut self.probe_timeout,
            &mut self.retry_initial,
            &mut self.load_interval,
            &mut self.models_interval,
            &mut self.dns_interval,
            &mut self.dns_grace,
            &mut self.render_timeout,
        ] {
            *duration = (*duration).clamp(DURATION_MIN, DURATION_MAX);
        }
        self.jitter = if self.jitter.is_finite() { self.jitter.clamp(0.0, 0.5) } else { 0.0 };
        self.render_concurrency = self.render_concurrency.min(RENDER_CONCURRENCY_MAX);
        self
    }
}
