//! Storms over the scheduler at the size of a large fleet, one for each policy of admission, side by side.
//!
//! They have a profile of their own (`soak`): what they run is optimised and its debug assertions stay on, all else is
//! built as fast as can be, and neither the gateway nor anything else that is not pure is built at all.

use std::process::Command;

use anyhow::Result;

use crate::skipped::timed;

/// Runs them, to their end or for so many calls, and says how long building and running took.
pub(crate) fn run(calls: Option<u32>) -> Result<()> {
    let cargo = || {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args([
            "test",
            "--profile",
            "soak",
            "--package",
            "tandem-scheduler",
            "--locked",
            "--test",
            "it",
        ]);
        if let Some(calls) = calls {
            cargo.env("TANDEM_SOAK_CALLS", calls.to_string());
        }
        cargo
    };
    timed("building", cargo().arg("--no-run"))?;
    timed(
        "storms",
        cargo().args(["--quiet", "--", "--ignored", "--nocapture", "a_hundred_thousand_sessions"]),
    )
}
