//! Logging: to stderr, so that data on stdout stays clean.

use std::io::{self, IsTerminal as _};

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

/// Flags that every command takes.
#[derive(Debug, Args)]
pub(crate) struct LogArgs {
    /// What to log: a level (`error`, `warn`, `info`, `debug`, `trace`) or a filter such as
    /// `info,tandem_gateway=debug`. Prompt text is never logged.
    #[arg(long, env = "TANDEM_LOG", global = true, value_name = "FILTER", help_heading = "Logging")]
    log_level: Option<String>,
    /// How to write log lines.
    #[arg(long, env = "TANDEM_LOG_FORMAT", global = true, default_value = "text", help_heading = "Logging")]
    log_format: LogFormat,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Starts logging. A filter that cannot be read is reported and the default used.
pub(crate) fn init(args: &LogArgs, default_level: &str) {
    let wanted = args.log_level.as_deref().unwrap_or(default_level);
    let (filter, fault) = match EnvFilter::try_new(wanted) {
        Ok(filter) => (filter, None),
        Err(error) => (EnvFilter::new(default_level), Some(error)),
    };
    // Colours are for a person's eyes: not in a file, a pipe or a journal, and not where they are unwanted.
    let coloured = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(coloured)
        // A log that nobody takes any more must not end what is logged: the report on it would panic.
        .log_internal_errors(false);
    match args.log_format {
        LogFormat::Text => builder.init(),
        LogFormat::Json => builder.json().init(),
    }
    if let Some(error) = fault {
        tracing::warn!(filter = wanted, %error, "log filter not understood, using {default_level}");
    }
}
