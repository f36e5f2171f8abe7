//! The indexes against naive ones, on millions of operations: minutes, not for every change.
//!
//! Random operations are tests of `tandem-kvindex` that are otherwise skipped. With traces, the operations that
//! these make caches do are compared as well, by a program of the benchmarks' workspace.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// Runs the comparisons; those with traces only where some are named.
pub(crate) fn run(mooncake: Option<&Path>, claude: &[PathBuf]) -> Result<()> {
    let mut random = Command::new(env!("CARGO"));
    random.args(["test", "--release", "--package", "tandem-kvindex", "--locked", "--test", "it", "--"]);
    random.args(["--ignored", "--nocapture", "--test-threads", "1"]);
    succeed(&mut random)?;
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
    succeed(&mut recorded)
}

fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("running {command:?}"))?;
    ensure!(status.success(), "failed: {command:?}");
    Ok(())
}
