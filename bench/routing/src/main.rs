//! Routing policies over recorded sessions, through real HTTP.
//!
//! For each size of the engines' pools and each seed, every policy gets fresh modelled engines and a fresh gateway,
//! and the same sessions in the same order. What is compared is the part of prompt tokens that came from caches, as
//! the engines' usage says, beside what a cache without bounds would have given over the same requests in the order
//! in which they were sent.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Parser;
use tandem_workload::{Format, ImportOptions, Workload, import};

mod fleet;
mod report;

use report::Run;

/// Routing policies over recorded sessions, through HTTP.
#[derive(Debug, Clone, Parser)]
pub struct Options {
    /// The release build of tandem: gateway and modelled engines.
    #[arg(long, value_name = "FILE")]
    tandem: PathBuf,
    /// The trace.
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// Its format.
    #[arg(long, default_value = "weka")]
    format: String,
    /// Policies to compare: of routing, or of routing and admission (`kv+tandem`).
    #[arg(long, value_delimiter = ',', default_value = "kv,session_affinity")]
    policies: Vec<String>,
    /// Working set over pools: lanes times the mean context, by all engines' pools.
    #[arg(long, value_delimiter = ',', default_value = "0.25,0.5,0.75,1.0,1.5")]
    fill: Vec<f64>,
    /// Seeds of the order of sessions, the gateway and the engines.
    #[arg(long, value_delimiter = ',', default_value = "1,2,3")]
    seeds: Vec<u64>,
    /// Engines.
    #[arg(long, default_value_t = 8)]
    engines: u32,
    /// Sessions at once.
    #[arg(long, default_value_t = 128)]
    lanes: u32,
    /// Recorded tokens and recorded seconds for one of each here.
    #[arg(long, default_value_t = 16)]
    shrink: u32,
    /// Longest pause of a session, recorded seconds.
    #[arg(long, default_value_t = 10.0)]
    pause: f64,
    /// Seconds before measuring begins.
    #[arg(long, default_value_t = 15.0)]
    warmup: f64,
    /// Seconds that are measured.
    #[arg(long, default_value_t = 45.0)]
    seconds: f64,
    /// Timing profile of the engines.
    #[arg(long, default_value = "llama-70b-h100-tp4")]
    profile: String,
    /// Modelled time over real time, of engines and pauses alike, on top of what `--shrink` does: below 1 on a machine
    /// that cannot keep up.
    #[arg(long, default_value_t = 1.0)]
    speedup: f64,
    /// Weights of the policy kv, in the form of the header `x-tandem-route`. Where not given, those of the default,
    /// shrunk like the tokens that they stand for.
    #[arg(long, value_name = "WEIGHTS")]
    route: Option<String>,
    /// Write every request here, JSON lines.
    #[arg(long, value_name = "FILE")]
    records: Option<PathBuf>,
}

/// Tokens in the engines' blocks.
const BLOCK_SIZE: u32 = 16;

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::parse();
    let workload = Arc::new(read(&options)?);
    let context = mean_context(&workload) / f64::from(options.shrink);
    println!(
        "{} sessions, {} requests, mean context {context:.0} tokens (of {} recorded ones each); {} lanes on {} engines",
        workload.sessions.len(),
        workload.nodes.len(),
        options.shrink,
        options.lanes,
        options.engines
    );
    let mut runs = Vec::new();
    for fill in &options.fill {
        for (round, seed) in options.seeds.iter().enumerate() {
            let pool = context * f64::from(options.lanes) / f64::from(options.engines) / fill;
            let mut policies = options.policies.clone();
            // None always goes first.
            let shift = round % policies.len().max(1);
            policies.rotate_left(shift);
            for policy in policies {
                let run = fleet::run(&options, &workload, &policy, *fill, pool, *seed).await?;
                println!("{}", run.line());
                if let Some(path) = &options.records {
                    run.append(path).with_context(|| format!("writing {}", path.display()))?;
                }
                runs.push(Run { records: Vec::new(), ..run });
            }
        }
    }
    println!("\n{}", report::table(&runs, &options.policies));
    Ok(())
}

fn read(options: &Options) -> Result<Workload> {
    let bytes =
        std::fs::read(&options.trace).with_context(|| format!("reading {}", options.trace.display()))?;
    let format: Format = options.format.parse().map_err(anyhow::Error::msg)?;
    let mut workload = import(&bytes, format, &ImportOptions::default())?;
    workload.cap_gaps(Duration::try_from_secs_f64(options.pause)?);
    Ok(workload)
}

/// Mean length of a prompt with its answer, over all requests.
fn mean_context(workload: &Workload) -> f64 {
    let (input, output) = workload.tokens();
    (input + output) as f64 / workload.nodes.len().max(1) as f64
}
