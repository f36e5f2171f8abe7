//! Repository chores: `cargo xtask <arch|tidy|ci|...>`. Each is also a step of `cargo xtask ci`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod arch;
mod ci;
mod docs;
mod e2e;
mod kv_scenarios;
mod markdown;
mod metadata;
mod oracle;
mod skipped;
mod soak;
mod tidy;

/// Repository chores.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Debug, Subcommand)]
enum Chore {
    /// Check the arrows between crates, their outside dependencies and the purity of the core.
    Arch,
    /// Check module docs, file lengths, placeholders, machine paths, links and invariant ids.
    Tidy,
    /// Run everything that a change must pass, or the named steps only.
    Ci {
        /// Steps to run; all when none is named.
        steps: Vec<String>,
    },
    /// Write the generated pages of the documentation from the built binary.
    Docs {
        /// Write nothing; fail where a page has drifted, or a command, flag or configuration in any page is wrong.
        #[arg(long)]
        check: bool,
    },
    /// Feed scenario files of KV events to decoders and indexes, and compare what they know with what is expected.
    KvScenarios {
        /// Files such as those in `scenarios/kv`.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Print all comparisons as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Compare the indexes with naive ones on millions of random operations and, where traces are named, on theirs.
    Oracle {
        /// Mooncake trace (JSON Lines, gzip).
        #[arg(long)]
        mooncake: Option<PathBuf>,
        /// Claude Code traces (kv-cache-tester's, one session a line, gzip).
        #[arg(long, num_args = 1..)]
        claude: Vec<PathBuf>,
    },
    /// Storms over the scheduler with a hundred engines and a hundred thousand sessions, one for each policy of admission.
    Soak {
        /// Calls of each storm, for a short look; else the whole of it.
        #[arg(long)]
        calls: Option<u32>,
    },
    /// Run end-to-end suites against the built binary: `demo`, `clients`, `harnesses`; by name also `vllm`.
    E2e {
        /// Suites to run, each with an optional choice of tests: `harnesses:codex,pi`.
        suites: Vec<String>,
    },
}

#[expect(clippy::print_stderr, reason = "a command line tool reports on stderr")]
fn main() -> ExitCode {
    let result = match Args::parse().chore {
        Chore::Arch => arch::run(),
        Chore::Tidy => tidy::run(),
        Chore::Docs { check } => docs::run(check),
        Chore::Ci { steps } => ci::run(&steps),
        Chore::KvScenarios { files, json } => kv_scenarios::run(&files, json),
        Chore::Oracle { mooncake, claude } => oracle::run(mooncake.as_deref(), &claude),
        Chore::Soak { calls } => soak::run(calls),
        Chore::E2e { suites } => e2e::run(&suites),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
