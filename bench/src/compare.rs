//! The comparison: each gateway in turn, several rounds over, the same load for all.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;

use crate::load::{Shape, drive};
use crate::process::{Server, cost, free_addr};
use crate::report::{self, Cell};
use crate::target::{Paths, Running, Target};

/// What to compare and how.
#[derive(Debug, Args)]
pub struct Options {
    /// The release build of tandem.
    #[arg(long, default_value = "target/release/tandem")]
    tandem: PathBuf,
    /// Folder with virtual environments `routers` (sglang-router, vllm-router) and `dynamo`.
    #[arg(long)]
    peers: Option<PathBuf>,
    /// Folder of a model with a tokenizer, for Dynamo.
    #[arg(long)]
    model: Option<PathBuf>,
    /// Gateways to compare; all when none is named.
    #[arg(long, value_enum, value_delimiter = ',')]
    targets: Vec<Target>,
    /// Rounds; every figure is the median of them, with the lowest and highest beside it.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds of load a cell and round.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Loads, each `PROMPT_BYTES:CONNECTIONS`.
    #[arg(long, value_delimiter = ',', value_parser = parse_load,
        default_value = "1024:1,1024:16,1024:256,1024:2000,409600:1,409600:16,409600:64")]
    loads: Vec<(usize, usize)>,
    /// Write every cell of every round here, JSON lines.
    #[arg(long)]
    json: Option<PathBuf>,
}

fn parse_load(text: &str) -> Result<(usize, usize), String> {
    let (bytes, connections) = text.split_once(':').ok_or("expected PROMPT_BYTES:CONNECTIONS")?;
    let number = |t: &str| t.parse::<usize>().map_err(|e| format!("{t}: {e}"));
    Ok((number(bytes)?, number(connections)?))
}

const ALL: [Target; 7] = [
    Target::Direct,
    Target::Floor,
    Target::Tandem,
    Target::TandemTraced,
    Target::SglangRouter,
    Target::VllmRouter,
    Target::Dynamo,
];

/// Runs the comparison and prints its tables.
pub async fn run(options: Options) -> Result<()> {
    let paths = Paths {
        tandem: options.tandem.clone(),
        peers: options.peers.clone().unwrap_or_default(),
        model: options.model.clone(),
    };
    let targets = if options.targets.is_empty() { ALL.to_vec() } else { options.targets.clone() };
    let mut cells = Vec::new();
    for round in 0..options.rounds {
        // Gateways take turns at going first, so that a machine that slows down hurts none in particular.
        for step in 0..targets.len() {
            let target = targets[(step + round) % targets.len()];
            eprintln!("round {} of {}: {}", round + 1, options.rounds, target.name());
            match one(&paths, target, &options, round).await {
                Ok(more) => cells.extend(more),
                Err(error) => eprintln!("  left out: {error:#}"),
            }
        }
    }
    if let Some(path) = &options.json {
        report::write_json(path, &cells)?;
    }
    println!("{}", report::tables(&cells));
    Ok(())
}

async fn one(paths: &Paths, target: Target, options: &Options, round: usize) -> Result<Vec<Cell>> {
    let mut engines = Vec::new();
    let mut addresses = Vec::new();
    for number in 0..2 {
        let addr = free_addr()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["engine", &addr.to_string()]);
        engines.push(Server::start(&format!("engine-{number}"), command)?);
        addresses.push(addr);
    }
    for addr in &addresses {
        ready(*addr, Duration::from_secs(10), None).await?;
    }
    let mut running = target.start(paths, &addresses, free_addr()?)?;
    ready(running.addr, Duration::from_secs(90), running.server.as_mut()).await?;
    let mut cells = Vec::new();
    for (prompt_bytes, connections) in &options.loads {
        let (prompt_bytes, connections) = (*prompt_bytes, *connections);
        let warm = Shape { prompt_bytes, connections: connections.min(16), time: Duration::from_millis(500) };
        drive(running.addr, warm).await?;
        let shape = Shape { prompt_bytes, connections, time: Duration::from_secs_f64(options.seconds) };
        let before = spent(&running)?;
        let outcome = drive(running.addr, shape).await?;
        let after = spent(&running)?;
        cells.push(Cell::new(target, round, shape, &outcome, before, after));
        if let Some(server) = running.server.as_mut() {
            server.check_alive()?;
        }
    }
    Ok(cells)
}

fn spent(running: &Running) -> Result<crate::process::Cost> {
    running
        .server
        .as_ref()
        .map_or_else(|| Ok(crate::process::Cost::default()), |s| cost(s.pid(), running.only))
}

/// Waits until a whole call succeeds.
async fn ready(addr: SocketAddr, within: Duration, mut server: Option<&mut Server>) -> Result<()> {
    let deadline = Instant::now() + within;
    loop {
        let shape = Shape { prompt_bytes: 64, connections: 1, time: Duration::from_millis(1) };
        if let Ok(Ok(outcome)) = tokio::time::timeout(Duration::from_secs(5), drive(addr, shape)).await
            && !outcome.whole.is_empty()
        {
            return Ok(());
        }
        if let Some(server) = server.as_deref_mut() {
            server.check_alive()?;
        }
        if Instant::now() > deadline {
            bail!("not ready within {} s", within.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
