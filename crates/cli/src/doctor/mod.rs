//! `tandem doctor`: (a) listens and tells, for each harness that calls it, what it recognised and what to set;
//! (b) looks at engines and says which flags they lack.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::Failure;

mod engines;
mod listen;

/// Arguments of `tandem doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Listen like a gateway with an engine behind it, and tell what each call shows of its session.
    ///
    /// Point a harness here as you would at the gateway. Answers come from a modelled engine that plays an
    /// agent's model, so that a whole session with tool calls takes place.
    Harness(listen::ListenArgs),
    /// Look at engines: make, version, models, and which flags are missing for what.
    Engines(engines::EnginesArgs),
}

/// Runs the doctor.
pub(crate) async fn run(args: DoctorArgs) -> Result<ExitCode, Failure> {
    match args.what {
        What::Harness(args) => listen::run(args).await,
        What::Engines(args) => engines::run(args).await,
    }
}
