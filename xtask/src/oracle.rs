//! The indexes against naive ones, on millions of operations: minutes, not for every change.
//!
//! Random operations are tests of `tandem-kvindex` that are otherwise skipped. With traces, the worker, session and pool
//! indexes are compared on what these make caches do as well, by a program of the benchmarks' workspace.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::skipped;

/// The tests with random operations, and what they compare.
const RANDOM: [(&str, &str); 3] = [
    ("worker index, 6 M operations", "worker::equals_the_oracle_on_millions_of_operations"),
    ("session index, 1 M operations", "session::model::the_index_equals_the_model_on_a_million_operations"),
    ("pool index, 2 M operations", "pool::day::hundreds_of_long_days_end_equal_to_the_listing"),
];

/// Runs the comparisons; those with traces only where some are named. Says how long each took.
pub(crate) fn run(mooncake: Option<&Path>, claude: &[PathBuf]) -> Result<()> {
    skipped::run("tandem-kvindex", &RANDOM)?;
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
    skipped::timed("recorded operations", &mut recorded)
}
