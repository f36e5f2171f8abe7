//! `tandem demo`: two modelled engines, a gateway, and agent sessions through real HTTP, on free loopback
//! ports; then what was recognised, cached and prefilled, and where the trace is.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use tandem_engines::{HttpClient, HttpConfig};
use tandem_gateway::Gateway;
use tandem_gateway::config::{Config, TraceFormat, TraceTokens};
use tandem_mock_engine::{MockConfig, MockEngine, MockKind, MockModel, Speed};
use tandem_trace::record::Record;
use tokio::sync::mpsc;

use crate::{Failure, print};

mod answer;
mod body;
mod drive;
mod plan;
mod report;

/// Arguments of `tandem demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Print the outcome as one JSON object.
    #[arg(long)]
    json: bool,
    /// Keep engines and gateway up afterwards, until Ctrl-C, to try a client of your own.
    #[arg(long)]
    stay: bool,
    /// Sets of bundled sessions that run at once; a set is six sessions with nine agents.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    sessions: u16,
    /// Modelled engines.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    engines: u16,
    /// Whose wire the engines speak.
    #[arg(long, default_value = "vllm")]
    kind: Kind,
    /// The routing policy.
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// Modelled time over real time.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    speedup: f64,
    /// Where to write the trace; a fresh folder in the system's temporary one when not given.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Kind {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
}

/// Runs the demo. Exit code 0 only if every turn completed and was recognised rightly.
pub(crate) async fn run(args: DemoArgs) -> Result<ExitCode, Failure> {
    let trace = match &args.trace {
        Some(path) => path.clone(),
        None => fresh_folder()?.join("trace.jsonl"),
    };
    let engines = start_engines(&args).await?;
    let gateway = start_gateway(&args, &engines, &trace).await?;
    let base = format!("http://{}", gateway.addr());
    let client = HttpClient::new(&HttpConfig::default()).context("building the client")?;
    drive::wait_ready(&client, &base, Duration::from_secs(20)).await?;

    let plans: Vec<_> = (0..usize::from(args.sessions)).flat_map(plan::sessions).collect();
    let start = Instant::now();
    let calls = drive_all(&client, &base, &plans).await;
    let seconds = start.elapsed().as_secs_f64();

    if args.stay {
        print::note(&format!(
            "gateway {base}  admin http://{}  metrics http://{}/metrics",
            gateway.admin_addr(),
            gateway.metrics_addr()
        ));
        print::note(&format!(
            "engines {}",
            engines.iter().map(MockEngine::url).collect::<Vec<_>>().join(" ")
        ));
        print::note(&format!("model {}; press Ctrl-C to end", body::MODEL));
        tokio::signal::ctrl_c().await.context("waiting for Ctrl-C")?;
    }
    // The gateway first: its end writes the last rows.
    gateway.begin_shutdown();
    gateway.wait().await;
    for engine in engines {
        engine.stop().await;
    }
    let rows = read_trace(&trace)?;
    let report = report::build(&report::Outcome {
        plans: &plans,
        calls: &calls,
        rows: &rows,
        trace: trace.display().to_string(),
        gateway: base,
        seconds,
    });
    if args.json {
        print::line(&serde_json::to_string_pretty(&report).context("writing the report")?)?;
    } else {
        print::data(&report::text(&report))?;
    }
    Ok(if report.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn fresh_folder() -> Result<PathBuf> {
    let stamp = uuid::Uuid::now_v7().simple().to_string();
    let folder = std::env::temp_dir().join(format!("tandem-demo-{stamp}"));
    std::fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    Ok(folder)
}

async fn start_engines(args: &DemoArgs) -> Result<Vec<MockEngine>> {
    if !(args.speedup > 0.0 && args.speedup.is_finite()) {
        return Err(anyhow!("--speedup must be a positive number"));
    }
    let mut engines = Vec::new();
    for number in 0..args.engines {
        let config = MockConfig {
            kind: match args.kind {
                Kind::Vllm => MockKind::Vllm,
                Kind::Sglang => MockKind::Sglang,
            },
            models: vec![MockModel::base(body::MODEL)],
            speed: Speed::Times(args.speedup),
            seed: u64::from(number),
            ..MockConfig::default()
        };
        engines.push(MockEngine::start(config).await?);
    }
    Ok(engines)
}

async fn start_gateway(args: &DemoArgs, engines: &[MockEngine], trace: &Path) -> Result<Gateway> {
    let mut config = Config {
        worker_urls: engines.iter().map(MockEngine::url).collect(),
        host: "127.0.0.1".to_owned(),
        port: 0,
        admin_port: Some(0),
        prometheus_host: "127.0.0.1".to_owned(),
        prometheus_port: Some(0),
        ..Config::default()
    };
    if let Some(policy) = &args.policy {
        config.policy.clone_from(policy);
    }
    config.trace.enabled = true;
    config.trace.path = trace.display().to_string();
    config.trace.format = TraceFormat::Jsonl;
    config.trace.tokens = TraceTokens::Render;
    Gateway::start(config.resolve()?).await.context("starting the gateway")
}

/// Runs all sessions at once and collects their calls, with progress on stderr where that is a terminal.
async fn drive_all(client: &HttpClient, base: &str, plans: &[plan::AgentPlan]) -> Vec<drive::Call> {
    let total: u32 = plans.iter().map(|p| p.calls()).map(|(turns, side)| turns + side).sum();
    let bar = ProgressBar::new(u64::from(total));
    if let Ok(style) = ProgressStyle::with_template("{elapsed_precise} [{bar:30}] {pos}/{len} calls  {msg}") {
        bar.set_style(style);
    }
    let (sender, mut receiver) = mpsc::channel(1024);
    let driver = Arc::new(drive::Driver { client: client.clone(), base: base.to_owned(), calls: sender });
    let mut agents = tokio::task::JoinSet::new();
    for plan in plans.iter().cloned() {
        agents.spawn(drive::run_agent(Arc::clone(&driver), plan));
    }
    drop(driver);
    let mut calls = Vec::new();
    while let Some(call) = receiver.recv().await {
        bar.inc(1);
        bar.set_message(call.agent.clone());
        calls.push(call);
    }
    while agents.join_next().await.is_some() {}
    bar.finish_and_clear();
    calls
}

/// Reads the trace back, its companion (rows that no replay can use) included.
fn read_trace(path: &Path) -> Result<Vec<Record>> {
    let mut rows = Vec::new();
    for file in [path.to_path_buf(), tandem_trace::files::companion_path(path)] {
        if !file.exists() {
            continue;
        }
        let text = std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        rows.extend(text.lines().filter_map(read_row));
    }
    Ok(rows)
}

/// A row of the reference schema; rows of other schemas give none.
fn read_row(line: &str) -> Option<Record> {
    #[derive(serde::Deserialize)]
    struct Wrapped {
        event: Record,
    }
    serde_json::from_str::<Wrapped>(line).ok().map(|w| w.event)
}
