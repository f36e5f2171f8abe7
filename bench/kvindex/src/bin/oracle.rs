//! Tandem's indexes against naive ones, event by event, on what a trace makes caches do.

use anyhow::Result;
use clap::Parser;
use tandem_bench_kvindex::options::Options;
use tandem_bench_kvindex::oracle::{self, Pool, Session, Worker};

#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    options: Options,
    /// Times that the trace runs, with new content each time.
    #[arg(long, default_value_t = 2)]
    passes: u64,
}

fn main() -> Result<()> {
    let Args { options, passes } = Args::parse();
    options.runs(|name, trace, fleet| {
        if options.wants("worker") {
            oracle::run::<Worker>(name, trace, fleet, passes)?;
        }
        if options.wants("session") {
            oracle::run::<Session>(name, trace, fleet, passes)?;
        }
        if options.wants("pool") {
            oracle::run::<Pool>(name, trace, fleet, passes)?;
        }
        Ok(())
    })
}
