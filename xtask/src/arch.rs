//! The architecture, checked: which crate may know which, and what the pure ones must never touch.
//!
//! - Purpose: keep policies free of clocks, sockets and chance, so that the very same code runs live and in
//!   simulation.
//! - The table [`ARROWS`] is the whole of the permitted arrows; `ARCHITECTURE.md` explains them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::metadata::{Metadata, Package};

/// Crate, whether it is pure, and the workspace crates that it may know.
const ARROWS: &[(&str, bool, &[&str])] = &[
    ("types", true, &[]),
    ("identity", true, &["types"]),
    ("dialect", true, &["types"]),
    ("kvwire", true, &["types"]),
    ("kvindex", true, &["types"]),
    ("kvplane", true, &["types", "kvwire", "kvindex"]),
    ("routing", true, &["types"]),
    ("admission", true, &["types"]),
    ("lineage", true, &["types"]),
    ("trace", true, &["types"]),
    ("engine-model", true, &["types"]),
    ("workload", true, &["types", "trace"]),
    ("simulate", true, &["types", "engine-model", "kvindex", "scheduler", "workload"]),
    ("scheduler", true, &["types", "routing", "admission"]),
    ("loadgen", false, &["types", "workload", "dialect", "trace"]),
    ("prompt", false, &["types"]),
    ("engines", false, &["types", "kvwire"]),
    ("mock-engine", false, &["types", "engine-model", "kvwire", "dialect"]),
    (
        "gateway",
        false,
        &[
            "types",
            "identity",
            "dialect",
            "kvplane",
            "lineage",
            "prompt",
            "scheduler",
            "routing",
            "engines",
            "kvwire",
            "trace",
        ],
    ),
    (
        "cli",
        false,
        &[
            "types",
            "identity",
            "dialect",
            "engines",
            "engine-model",
            "gateway",
            "mock-engine",
            "scheduler",
            "trace",
            "simulate",
            "workload",
        ],
    ),
];

/// Packages that must not be in the build of a pure crate, however far down.
const IMPURE: &[&str] = &[
    "tokio",
    "hyper",
    "axum",
    "reqwest",
    "zeromq",
    "socket2",
    "mio",
    "rand",
    "getrandom",
    "chrono",
    "jiff",
    "tracing-subscriber",
];

/// Outside packages that only the named crates may depend on directly.
const RESERVED: &[(&str, &[&str])] = &[
    ("axum", &["gateway"]),
    ("zeromq", &["engines", "mock-engine", "gateway"]),
    ("clap", &["cli", "xtask"]),
    ("tokenizers", &["prompt"]),
];

/// Source text that a pure crate must not contain outside tests.
const IMPURE_TEXT: &[&str] = &[
    "Instant::now",
    "SystemTime",
    "std::env",
    "std::net",
    "std::fs",
    "std::thread",
    "RandomState",
    "HashMap::new()",
    "HashSet::new()",
];

/// One file that may contain one of those: it implements, on the real file system, the traits through which
/// the rest of its crate opens files.
const IMPURE_FILE: (&str, &str) = ("crates/trace/src/files.rs", "std::fs");

/// Runs the checks.
pub(crate) fn run() -> Result<()> {
    let metadata = Metadata::load()?;
    let mut faults = Vec::new();
    for package in metadata.members() {
        let Some(name) = package.name.strip_prefix("tandem-") else {
            check_reserved(package, &package.name, &mut faults);
            continue;
        };
        let Some((_, pure, known)) = ARROWS.iter().find(|(n, ..)| *n == name) else {
            faults.push(format!("crate {name} has no line in the table of arrows"));
            continue;
        };
        check_arrows(package, name, known, &mut faults);
        check_reserved(package, name, &mut faults);
        let src = package.manifest_path.parent().map(|p| p.join("src")).unwrap_or_default();
        if *pure {
            check_pure(&metadata, package, name, &mut faults);
            scan(&src, IMPURE_TEXT, &mut faults)?;
        } else if name != "cli" {
            scan(&src, &["std::env", "env::var"], &mut faults)?;
        }
    }
    report("arch", &faults)
}

fn check_arrows(package: &Package, name: &str, known: &[&str], faults: &mut Vec<String>) {
    for dep in normal_deps(package) {
        if let Some(other) = dep.strip_prefix("tandem-")
            && !known.contains(&other)
        {
            faults.push(format!("{name} must not know {other}"));
        }
    }
}

fn check_reserved(package: &Package, name: &str, faults: &mut Vec<String>) {
    for dep in normal_deps(package) {
        if let Some((_, who)) = RESERVED.iter().find(|(d, _)| *d == dep)
            && !who.contains(&name)
        {
            faults.push(format!("{name} must not depend on {dep}; only {who:?} may"));
        }
    }
}

fn check_pure(metadata: &Metadata, package: &Package, name: &str, faults: &mut Vec<String>) {
    let closure = metadata.closure(package);
    for impure in IMPURE.iter().filter(|i| closure.contains(**i)) {
        faults.push(format!("{name} is pure but its build contains {impure}"));
    }
}

fn normal_deps(package: &Package) -> BTreeSet<&str> {
    package.dependencies.iter().filter(|d| d.kind.is_none()).map(|d| d.name.as_str()).collect()
}

/// Looks for `needles` in the sources under `dir`, stopping in each file at its test module.
fn scan(dir: &Path, needles: &[&str], faults: &mut Vec<String>) -> Result<()> {
    for file in rust_files(dir)? {
        let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        if file.file_name().is_some_and(|n| n == "tests.rs") {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("#[cfg(test)]") {
                break;
            }
            if line.trim_start().starts_with("//") {
                continue;
            }
            let (exempt, of) = IMPURE_FILE;
            let found = needles.iter().filter(|n| line.contains(**n));
            for needle in found.filter(|n| **n != of || !file.ends_with(exempt)) {
                faults.push(format!("{}:{}: {needle} is not allowed here", file.display(), number + 1));
            }
        }
    }
    Ok(())
}

/// All `.rs` files under `dir`, sorted.
pub(crate) fn rust_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut todo = vec![dir.to_path_buf()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).with_context(|| format!("listing {}", dir.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                todo.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Prints the faults and fails if there are any.
#[expect(clippy::print_stderr, clippy::print_stdout, reason = "a command line tool reports")]
pub(crate) fn report(chore: &str, faults: &[String]) -> Result<()> {
    if faults.is_empty() {
        println!("{chore}: ok");
        return Ok(());
    }
    for fault in faults {
        eprintln!("{chore}: {fault}");
    }
    bail!("{chore}: {} fault(s)", faults.len())
}
