//! Storms over the scheduler at the size of a large fleet, one for each policy of admission.

use anyhow::Result;

use crate::skipped;

/// Runs them.
pub(crate) fn run() -> Result<()> {
    let storms = ("storms", "chaos::inputs_of_a_hundred_thousand_sessions_break_no_promise");
    skipped::run("tandem-scheduler", &[storms])
}
