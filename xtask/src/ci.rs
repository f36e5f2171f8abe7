//! Everything that a change must pass, step by step, each also alone: `cargo xtask ci fmt clippy`.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};

use crate::{arch, docs, soak, tidy};

enum Step {
    Chore(fn() -> Result<()>),
    Cargo(&'static [&'static str]),
}

/// Name and work of each step, cheap ones first.
const STEPS: &[(&str, Step)] = &[
    ("fmt", Step::Cargo(&["fmt", "--all", "--check"])),
    // Workspaces of their own: what is compared there has dependencies that the product does not want.
    ("fmt-bench", Step::Cargo(&["fmt", "--manifest-path", "bench/Cargo.toml", "--all", "--check"])),
    ("fmt-routing", Step::Cargo(&["fmt", "--manifest-path", "bench/routing/Cargo.toml", "--all", "--check"])),
    ("tidy", Step::Chore(tidy::run)),
    ("arch", Step::Chore(arch::run)),
    ("clippy", Step::Cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"])),
    (
        "clippy-otlp",
        Step::Cargo(&[
            "clippy",
            "--package",
            "tandem-gateway",
            "--features",
            "otlp",
            "--all-targets",
            "--locked",
            "--",
            "-D",
            "warnings",
        ]),
    ),
    ("deny", Step::Cargo(&["deny", "--all-features", "check", "bans", "licenses", "sources"])),
    ("doc", Step::Cargo(&["doc", "--workspace", "--no-deps", "--locked"])),
    ("docs", Step::Chore(|| docs::run(true))),
    ("test", Step::Cargo(&["test", "--workspace", "--locked"])),
    ("soak", Step::Chore(|| soak::run(None))),
    ("otlp", Step::Cargo(&["test", "--package", "tandem-gateway", "--features", "otlp", "--locked", "otlp"])),
];

/// Runs the named steps, or all.
#[expect(clippy::print_stdout, reason = "a command line tool reports")]
pub(crate) fn run(wanted: &[String]) -> Result<()> {
    for name in wanted {
        ensure!(STEPS.iter().any(|(n, _)| n == name), "no step {name}; there are {:?}", step_names());
    }
    for (name, step) in STEPS.iter().filter(|(n, _)| wanted.is_empty() || wanted.iter().any(|w| w == n)) {
        println!("== {name}");
        let start = Instant::now();
        match step {
            Step::Chore(chore) => chore()?,
            Step::Cargo(args) => cargo(args)?,
        }
        println!("== {name}: ok in {:.0} s", start.elapsed().as_secs_f64());
    }
    Ok(())
}

fn step_names() -> Vec<&'static str> {
    STEPS.iter().map(|(n, _)| *n).collect()
}

fn cargo(args: &[&str]) -> Result<()> {
    let mut command = Command::new(env!("CARGO"));
    command.args(args);
    if args.first() == Some(&"doc") {
        // The pages are for people who work on the code: links to private parts are welcome.
        command.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links");
    }
    let status = command.status().with_context(|| format!("running cargo {}", args.join(" ")))?;
    if !status.success() {
        bail!("cargo {} failed", args.join(" "));
    }
    Ok(())
}
