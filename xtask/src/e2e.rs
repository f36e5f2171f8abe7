//! End-to-end suites: scripts under `e2e/` that drive the built binary with real clients and harnesses.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

/// Suites of every run, with their scripts.
const SUITES: &[(&str, &str)] =
    &[("demo", "e2e/demo.py"), ("clients", "e2e/clients.py"), ("harnesses", "e2e/harnesses.py")];

/// Suites that take long or need gigabytes; run by name.
const LONG: &[(&str, &str)] = &[
    ("holds", "e2e/holds.py"),
    ("rollouts", "e2e/rollouts.py"),
    ("live-offline", "e2e/live_offline.py"),
    ("vllm", "e2e/real_vllm.py"),
    ("render", "e2e/render_vllm.py"),
    ("render-sglang", "e2e/render_sglang.py"),
    ("kv-vllm", "e2e/real_kv_vllm.py"),
    ("kv-sglang", "e2e/real_kv_sglang.py"),
    ("kv-mooncake", "e2e/real_kv_mooncake.py"),
];

/// Runs the named suites, or the fast ones. What follows a suite's name after a colon selects its tests:
/// `harnesses:codex,pi`.
pub(crate) fn run(wanted: &[String]) -> Result<()> {
    ensure!(Path::new("e2e/lib.py").exists(), "run this from the root of the repository");
    let mut failed = Vec::new();
    let chosen: Vec<&str> = if wanted.is_empty() {
        SUITES.iter().map(|(n, _)| *n).collect()
    } else {
        wanted.iter().map(String::as_str).collect()
    };
    for suite in chosen {
        let (name, tests) = suite.split_once(':').unwrap_or((suite, ""));
        let Some((_, script)) = SUITES.iter().chain(LONG).find(|(n, _)| *n == name) else {
            bail!("no suite {name}; there are {:?} and {:?}", names(SUITES), names(LONG));
        };
        let status = Command::new("python3")
            .arg(script)
            .args(tests.split(',').filter(|t| !t.is_empty()))
            .status()
            .with_context(|| format!("running python3 {script}"))?;
        if !status.success() {
            failed.push(name);
        }
    }
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

fn names(suites: &[(&'static str, &str)]) -> Vec<&'static str> {
    suites.iter().map(|(n, _)| *n).collect()
}
