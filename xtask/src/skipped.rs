//! Tests that take minutes and are otherwise skipped, in a release build, each with the time that it took.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

/// Runs tests of a package, each with what it shows.
pub(crate) fn run(package: &str, tests: &[(&str, &str)]) -> Result<()> {
    let cargo = || {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["test", "--release", "--package", package, "--locked", "--test", "it"]);
        cargo
    };
    timed("building", cargo().arg("--no-run"))?;
    for (name, only) in tests {
        timed(name, cargo().args(["--quiet", "--", "--ignored", "--nocapture", "--exact", only]))?;
    }
    Ok(())
}

/// Runs a command to its good end and says how long it took.
#[expect(clippy::print_stdout, reason = "a command line tool reports")]
pub(crate) fn timed(name: &str, command: &mut Command) -> Result<()> {
    let start = Instant::now();
    let status = command.status().with_context(|| format!("running {command:?}"))?;
    ensure!(status.success(), "failed: {command:?}");
    println!("{name}: done in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}
