//! The one binary, `tandem`: argument parsing, layering of configuration, signals, exit codes.
//!
//! Exit codes: 0 done, 1 failed while running, 2 wrong arguments or configuration.
//! Architecture: this crate alone knows clap and the process environment.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod assign;
mod config;
mod demo;
mod doctor;
mod logging;
mod mock_engine;
mod mock_store;
mod print;
mod replay;
mod serve;
mod simulate;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A session-aware serving layer for agentic LLM inference.
///
/// Stands in front of stock vLLM and SGLang engines and schedules agent sessions, not requests.
#[derive(Debug, Parser)]
#[command(name = "tandem", version, propagate_version = true)]
struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    logging: logging::LogArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the gateway in front of engines.
    Serve(Box<serve::ServeArgs>),
    /// See what it does in a minute: two modelled engines, a gateway, and agent sessions through real HTTP.
    Demo(demo::DemoArgs),
    /// Run one modelled engine that speaks vLLM's or SGLang's HTTP API and KV event sockets.
    MockEngine(Box<mock_engine::MockEngineArgs>),
    /// Run a store that speaks Mooncake's REST and event socket and holds only names.
    MockStore(mock_store::MockStoreArgs),
    /// Compare policies on a trace or on made-up sessions, in virtual time.
    Simulate(Box<simulate::SimulateArgs>),
    /// Play recorded inputs of a gateway's scheduler again.
    Replay(replay::ReplayArgs),
    /// Find out what a harness sends, or what an engine lacks.
    Doctor(doctor::DoctorArgs),
    /// Check or show the configuration.
    Config(config::ConfigArgs),
}

/// How a command ended badly.
#[derive(Debug)]
enum Failure {
    /// The arguments or the configuration are wrong: exit code 2.
    Usage(anyhow::Error),
    /// Something went wrong while running: exit code 1.
    Run(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Run(error)
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let default_level = match args.command {
        Command::Serve(_) => "info",
        _ => "warn",
    };
    logging::init(&args.logging, default_level);
    match run(args.command) {
        Ok(code) => code,
        Err(Failure::Usage(error)) => {
            print::note(&format!("error: {}", words(&error)));
            ExitCode::from(2)
        }
        Err(Failure::Run(error)) => {
            print::note(&format!("error: {}", words(&error)));
            ExitCode::FAILURE
        }
    }
}

/// An error and its causes, each said once: many errors name their cause in their own text.
fn words(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.contains(&cause) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&cause);
    }
    text
}

fn run(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Config(args) => return config::run(args),
        Command::Simulate(args) => return simulate::run(&args),
        Command::Replay(args) => return replay::run(&args),
        _ => {}
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("tandem")
        .build()
        .map_err(|e| Failure::Run(anyhow::Error::new(e).context("starting the runtime")))?;
    let result = runtime.block_on(async {
        match command {
            Command::Serve(args) => serve::run(*args).await,
            Command::Demo(args) => Box::pin(demo::run(args)).await,
            Command::MockEngine(args) => mock_engine::run(*args).await,
            Command::MockStore(args) => mock_store::run(args).await,
            Command::Doctor(args) => doctor::run(args).await,
            Command::Config(args) => config::run(args),
            Command::Simulate(args) => simulate::run(&args),
            Command::Replay(args) => replay::run(&args),
        }
    });
    // Every task of ours has ended by now; a lookup stuck in the resolver's thread must not keep us.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    result
}
