//! Long tests, minutes and not for every change: the indexes against naive ones on millions of operations, and storms over
//! the scheduler.
//!
//! Random operations are tests of `tandem-kvindex` that are otherwise skipped. With traces, the worker, session and pool
//! indexes are compared on what these make caches do as well, by a program of the benchmarks' workspace.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

/// The tests with random operations, and what they compare.
const RANDOM: [(&str, &str); 3] = [
    ("worker index, 6 M operations", "worker::equals_the_oracle_on_millions_of_operations"),
    ("session index, 1 M operations", "session::model::the_index_equals_the_model_on_a_million_operations"),
    ("pool index, 2 M operations", "pool::day::hundreds_of_long_days_end_equal_to_the_listing"),
];

/// Runs the comparisons; those with traces only where some are named. Says how long each took.
pub(crate) fn run(mooncake: Option<&Path>, claude: &[PathBuf]) -> Result<()> {
    let test = ["test", "--release", "--package", "tandem-kvindex", "--locked", "--test", "it"];
    timed("building", Command::new(env!("CARGO")).args(test).arg("--no-run"))?;
    for (name, only) in RANDOM {
        let mut random = Command::new(env!("CARGO"));
        random.args(test).args(["--quiet", "--", "--ignored", "--nocapture", "--exact", only]);
        timed(name, &mut random)?;
    }
    if mooncake.is_none() && claude.is_empty() {
        return Ok(());
    }
    let mut recorded = Command::new(env!("CARGO"));
    recorded.args(["run", "--release", "--locked", "--manifest-path", "bench/Cargo.toml"]);
    recorded.args(["--package", "tandem-bench-kvindex", "--bin", "oracle", "--"]);
    if let Some(path) = mooncake {
        recorded.arg("--mooncake").arg(path);
    }
    if !claude.is_empty() {
        recorded.arg("--claude").args(claude);
    }
    timed("recorded operations", &mut recorded)
}

/// Storms over the scheduler that are otherwise skipped.
pub(crate) fn soak() -> Result<()> {
    let test = ["test", "--release", "--package", "tandem-scheduler", "--locked", "--test", "it"];
    timed("building", Command::new(env!("CARGO")).args(test).arg("--no-run"))?;
    let only = "chaos::inputs_of_a_hundred_thousand_sessions_break_no_promise";
    let mut storms = Command::new(env!("CARGO"));
    storms.args(test).args(["--quiet", "--", "--ignored", "--nocapture", "--exact", only]);
    timed("storms", &mut storms)
}

#[expect(clippy::print_stdout, reason = "a command line tool reports")]
fn timed(name: &str, command: &mut Command) -> Result<()> {
    let start = Instant::now();
    succeed(command)?;
    println!("oracle: {name}: done in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("running {command:?}"))?;
    ensure!(status.success(), "failed: {command:?}");
    Ok(())
}
