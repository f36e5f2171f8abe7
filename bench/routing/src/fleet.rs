//! One run: engines, a gateway, the load, and what the gateway's own metrics say afterwards.

use std::net::{SocketAddr, TcpListener};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use http::HeaderValue;
use tandem_loadgen::{Arrivals, Options as LoadOptions, Target};
use tandem_workload::Workload;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use crate::report::{EventPath, Run, Summary};
use crate::{BLOCK_SIZE, Options};

const MODEL: &str = "modelled";

/// A pass of vLLM takes 8,192 tokens; of what is sent here as one, so many fewer.
const PASS_TOKENS: u32 = 8_192;

/// The default weight of a running request in the policy kv, in tokens.
const DECODE: f64 = 512.0;

/// How often the event path is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Longest that the fleet may take to be ready.
const READY: Duration = Duration::from_secs(60);

/// Runs one policy over the sessions.
pub async fn run(
    options: &Options,
    workload: &Arc<Workload>,
    policy: &str,
    fill: f64,
    pool: f64,
    seed: u64,
) -> Result<Run> {
    let mut engines = Vec::new();
    for number in 0..u64::from(options.engines) {
        engines.push(engine(options, pool, seed * 1000 + number).await?);
    }
    let (gateway, addr) = gateway(options, policy, &engines, seed)?;
    ready(addr, engines.len(), policy.split('+').next() == Some("kv")).await?;
    let load = LoadOptions {
        target: target(options, &gateway)?,
        arrivals: Arrivals::Lanes { lanes: options.lanes, midway: true },
        shrink: options.shrink,
        speed: f64::from(options.shrink) * options.speedup,
        block_size: BLOCK_SIZE,
        duration: Some(Duration::try_from_secs_f64(options.warmup + options.seconds)?),
        seed,
    };
    let (lags, mut seen) = mpsc::unbounded_channel();
    let watch = tokio::spawn(watch(addr, lags));
    let outcome = tandem_loadgen::run(Arc::clone(workload), load).await?;
    watch.abort();
    let mut path = EventPath::of(&metrics(addr).await?);
    while let Some(lag) = seen.recv().await {
        path.lag_max = path.lag_max.max(lag);
    }
    Ok(Run {
        policy: policy.to_owned(),
        fill,
        seed,
        engines: options.engines as usize,
        warmup: options.warmup,
        seconds: options.seconds,
        speed: f64::from(options.shrink) * options.speedup,
        abandoned: outcome.abandoned,
        sessions: outcome.sessions,
        records: outcome.records,
        path,
        summary: Summary::default(),
    }
    .summed())
}

/// A server of ours that ends with this.
struct Server {
    _child: Child,
    url: String,
}

/// Starts a modelled engine on a free port; it prints where it is.
async fn engine(options: &Options, pool: f64, seed: u64) -> Result<Server> {
    let file = std::env::temp_dir().join(format!("tandem-bench-routing-{}.toml", std::process::id()));
    // What has no flag.
    let pass = (PASS_TOKENS / options.shrink).max(BLOCK_SIZE);
    std::fs::write(&file, format!("port = 0\nmax_num_batched_tokens = {pass}\n"))?;
    let mut command = Command::new(&options.tandem);
    command.arg("mock-engine").arg("--config").arg(&file).args(["--model", MODEL, "--port", "0"]);
    command.args(["--profile", &options.profile, "--speedup", &options.speedup.to_string()]);
    command.args(["--block-size", &BLOCK_SIZE.to_string(), "--pool", &(pool.round() as u64).to_string()]);
    command.args(["--seed", &seed.to_string()]);
    let mut child = command.stdout(Stdio::piped()).stdin(Stdio::null()).kill_on_drop(true).spawn()?;
    let output = child.stdout.take().context("an engine without output")?;
    let mut lines = BufReader::new(output).lines();
    let url = lines.next_line().await?.context("the engine ended at once")?;
    // Lines that nobody reads must not fill the pipe.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    Ok(Server { _child: child, url })
}

/// Starts the gateway; the second address is that of its metrics.
fn gateway(options: &Options, policy: &str, engines: &[Server], seed: u64) -> Result<(Server, SocketAddr)> {
    let (listen, prometheus) = (free_addr()?, free_addr()?);
    let mut command = Command::new(&options.tandem);
    let (routing, admission) = policy.split_once('+').unwrap_or((policy, "none"));
    command.args(["serve", "--policy", routing, "--admission", admission]);
    command.args(["--seed", &seed.to_string(), "--log-level", "warn"]);
    // The head of each answer is to say who gave it, however long the turn was held.
    command.args(["--set", "hold.early_200=false"]);
    command.args(["--host", "127.0.0.1", "--port", &listen.port().to_string(), "--admin-port", "0"]);
    command.args(["--prometheus-host", "127.0.0.1", "--prometheus-port", &prometheus.port().to_string()]);
    command.arg("--worker-urls").args(engines.iter().map(|engine| &engine.url));
    let child = command.stdin(Stdio::null()).kill_on_drop(true).spawn().context("starting the gateway")?;
    Ok((Server { _child: child, url: format!("http://{listen}") }, prometheus))
}

/// A port that was free a moment ago.
fn free_addr() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// The address of calls, and the weights that they ask for.
fn target(options: &Options, gateway: &Server) -> Result<Target> {
    let mut target = Target::new(&gateway.url, MODEL);
    let shrunk = || format!("decode={}", DECODE / f64::from(options.shrink));
    let weights = options.route.clone().unwrap_or_else(shrunk);
    target.headers.insert("x-tandem-route", HeaderValue::try_from(weights)?);
    Ok(target)
}

/// Waits until every engine serves and, where the policy uses events, every event stream is followed.
async fn ready(addr: SocketAddr, engines: usize, events: bool) -> Result<()> {
    let deadline = tokio::time::Instant::now() + READY;
    loop {
        let text = metrics(addr).await.unwrap_or_default();
        let up = sum(&text, "tandem_workers", "state=\"ready\"") as usize >= engines;
        let live = !events || sum(&text, "tandem_kv_workers", "knowledge=\"exact\"") as usize >= engines;
        if up && live {
            return Ok(());
        }
        if tokio::time::Instant::now() > deadline {
            bail!("the fleet is not ready:\n{text}");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Tells how far the event path is behind, again and again.
async fn watch(addr: SocketAddr, lags: mpsc::UnboundedSender<f64>) {
    loop {
        tokio::time::sleep(LOOK).await;
        if let Ok(text) = metrics(addr).await {
            let lag = values(&text, "tandem_kv_lag_seconds").fold(0.0, |most, (_, lag)| f64::max(most, lag));
            let _ = lags.send(lag);
        }
    }
}

/// The gateway's metrics, as text.
async fn metrics(addr: SocketAddr) -> Result<String> {
    let mut stream = TcpStream::connect(addr).await?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\nhost: bench\r\n\r\n").await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

/// The samples of a metric: labels and value.
pub fn values<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = (&'a str, f64)> + 'a {
    text.lines().filter_map(move |line| {
        let rest = line.strip_prefix(name)?;
        let (labels, value) = match rest.strip_prefix('{') {
            Some(rest) => rest.split_once("} ")?,
            None => ("", rest.strip_prefix(' ')?),
        };
        Some((labels, value.trim().parse().ok()?))
    })
}

/// The sum of a metric's samples whose labels contain a text.
pub fn sum(text: &str, name: &str, label: &str) -> f64 {
    values(text, name)
        .filter(|(labels, _)| labels.contains(label))
        .map(|(_, value)| value)
        .fold(0.0, |sum, value| sum + value)
}
