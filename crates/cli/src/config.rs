//! `tandem config check|show|schema`; and, hidden, the page of metrics from which the documentation is made.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use tandem_gateway::config::Config;

use crate::serve::{ServeArgs, layered};
use crate::{Failure, print};

/// Arguments of `tandem config`.
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Say whether the configuration is right, with the flags and environment that `serve` would get.
    Check(Box<ServeArgs>),
    /// Print the whole configuration as `serve` would run on it, defaults included, secrets hidden.
    Show(Box<ServeArgs>),
    /// Print the JSON schema of the configuration file.
    Schema,
    /// Print the reference page of all metrics.
    #[command(hide = true)]
    Metrics,
}

pub(crate) fn run(args: ConfigArgs) -> Result<ExitCode, Failure> {
    match args.what {
        What::Check(args) => {
            layered(*args)?.resolve().map_err(|e| Failure::Usage(e.into()))?;
            print::line("ok")?;
        }
        What::Show(args) => {
            let config = layered(*args)?;
            let text = toml::to_string_pretty(&config).context("writing the configuration")?;
            print::data(&text)?;
            config.resolve().map_err(|e| Failure::Usage(e.into()))?;
        }
        What::Schema => {
            let schema = Config::json_schema();
            print::line(&serde_json::to_string_pretty(&schema).context("writing the schema")?)?;
        }
        What::Metrics => {
            print::data(&tandem_gateway::metrics_reference_page())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
