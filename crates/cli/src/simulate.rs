//! `tandem simulate`: policies over a workload in virtual time, one line per point.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tandem_engine_model::{EngineConfig, Flavor, LinkConfig, Profile, TierConfig, TiersConfig};
use tandem_simulate::{Arrivals, Report, SimConfig, scheduler_for};
use tandem_workload::synth::{Kind, Synth};
use tandem_workload::{Format, ImportOptions, Workload, import, sniff};

use crate::{Failure, print};

/// Arguments of `tandem simulate`.
#[derive(Debug, Args)]
pub(crate) struct SimulateArgs {
    /// Trace files, plain or gzip; several of one format are one workload.
    #[arg(value_name = "TRACE", required_unless_present = "synth")]
    traces: Vec<PathBuf>,
    /// Format of the files; else it is told by their first rows.
    #[arg(long, value_name = "NAME")]
    format: Option<Format>,
    /// Sessions made up instead of read: `rl-swe`, `mini-swe`, `openhands`, `claude-code`, `chat`, with how many.
    #[arg(long, value_name = "KIND:SESSIONS[:GROUP]", value_parser = parse_synth, conflicts_with = "traces")]
    synth: Option<(Kind, u32, u32)>,
    /// The first thing in a file that needs mending is an error.
    #[arg(long)]
    strict: bool,
    /// Tokens in a block of the trace, where its format does not tell.
    #[arg(long, value_name = "TOKENS")]
    trace_block_size: Option<u32>,
    /// Timing and pool of each worker; `tandem mock-engine --list-profiles` shows them.
    #[arg(long, value_name = "NAME", default_value = "minimax-m2.5-h100-tp4")]
    profile: String,
    /// How many workers.
    #[arg(long, value_name = "N", default_value_t = 1)]
    workers: u32,
    /// KV pool of each worker in tokens; else the profile's. Several are points of their own.
    #[arg(long, value_name = "TOKENS,...", value_delimiter = ',')]
    pool: Vec<u64>,
    /// Host memory for KV of each worker, in tokens.
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    host_pool: u64,
    /// To and from host memory, GB/s each way.
    #[arg(long, value_name = "GB/S", default_value_t = 32.0)]
    host_bandwidth: f64,
    /// Tokens in a KV block of the engines.
    #[arg(long, value_name = "TOKENS", default_value_t = 64)]
    block_size: u32,
    /// Lanes, each of which runs one session after the other; else sessions begin as recorded.
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    lanes: Vec<u32>,
    /// Recorded beginnings come so many times faster.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, conflicts_with = "lanes")]
    speedup: f64,
    /// Policies to compare: `kv`, `sticky`, `least_load`, `power_of_two`, `round_robin`, `random` (no turn waits but for a
    /// worker); `thunderagent`, `thunderagent-package`, `idle_lease`, `tandem` (turns wait for room, over `kv`); or
    /// `ROUTING+ADMISSION`.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = "kv,sticky")]
    policy: Vec<String>,
    /// Seeds of ties and of the order of sessions; each is a run of its own.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1")]
    seeds: Vec<u64>,
    /// Longest pause between turns, in seconds.
    #[arg(long, value_name = "SECONDS")]
    gap_cap: Option<f64>,
    /// Longest pause of the whole fleet, in seconds: the rest is skipped, for all alike.
    #[arg(long, value_name = "SECONDS")]
    idle_cap: Option<f64>,
    /// Seconds before measuring begins.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    warmup: f64,
    /// Seconds measured; else until every session has ended once.
    #[arg(long, value_name = "SECONDS")]
    duration: Option<f64>,
    /// Most points simulated at once; else as many as there are cores.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Print one JSON object per point instead of a table.
    #[arg(long)]
    json: bool,
}

fn parse_synth(text: &str) -> Result<(Kind, u32, u32), String> {
    let mut parts = text.split(':');
    let kind = parts.next().unwrap_or_default().parse()?;
    let number = |part: Option<&str>, fallback: u32| match part {
        None => Ok(fallback),
        Some(part) => part.parse::<u32>().map_err(|_| format!("{part} is not a number")),
    };
    let sessions = number(parts.next(), 100)?;
    let group = number(parts.next(), 1)?;
    if parts.next().is_some() { Err("KIND:SESSIONS[:GROUP]".to_owned()) } else { Ok((kind, sessions, group)) }
}

/// A point of the sweep.
#[derive(Debug, Clone, Serialize)]
struct Point {
    policy: String,
    workers: u32,
    pool: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    lanes: Option<u32>,
    seed: u64,
}

#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    point: &'a Point,
    #[serde(flatten)]
    report: &'a Report,
}

/// Runs the command.
pub(crate) fn run(args: &SimulateArgs) -> Result<ExitCode, Failure> {
    let workload = workload(args)?;
    for (repair, count, place) in workload.repairs.iter() {
        print::note(&format!("mended: {repair:?} {count} times, first in {place}"));
    }
    let points = points(args)?;
    let configs = points.iter().map(|point| config(args, point)).collect::<Result<Vec<_>, _>>()?;
    let bar = ProgressBar::new(points.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} points, {elapsed}") {
        bar.set_style(style);
    }
    let reports = simulate(args, &workload, &configs, &bar)?;
    bar.finish_and_clear();
    if !args.json {
        print::line(&format!(
            "{:<14} {:>8} {:>6} {:>5} {:>9} {:>7} {:>6} {:>8} {:>8} {:>8} {:>7} {:>6} {:>8}",
            "policy",
            "pool",
            "lanes",
            "seed",
            "tok/s",
            "hit",
            "amp",
            "ttft50",
            "ttft90",
            "ttft99",
            "worst",
            "jain",
            "unserved"
        ))?;
    }
    for (point, report) in points.iter().zip(&reports) {
        let text = if args.json {
            serde_json::to_string(&Line { point, report }).context("writing a report")?
        } else {
            format!(
                "{:<14} {:>8} {:>6} {:>5} {:>9.1} {:>6.2}% {:>6.2} {:>7.2}s {:>7.2}s {:>7.2}s {:>6.0}s {:>6.3} {:>8}",
                point.policy,
                point.pool,
                point.lanes.map_or_else(|| "-".to_owned(), |lanes| lanes.to_string()),
                point.seed,
                report.output_throughput_tok_s,
                report.prefix_cache_reused_ratio * 100.0,
                report.amplification,
                report.ttft_s.p50,
                report.ttft_s.p90,
                report.ttft_s.p99,
                report.worst_turn_s.max,
                report.jain_index,
                report.unserved_requests,
            )
        };
        if print::line(&text)? == print::Reader::Gone {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn workload(args: &SimulateArgs) -> Result<Workload, Failure> {
    let mut workload = match args.synth {
        Some((kind, sessions, group)) => {
            let seed = args.seeds.first().copied().unwrap_or(1);
            Synth { kind, sessions, group, seed }.make().map_err(|error| Failure::Usage(anyhow!(error)))?
        }
        None => read(args)?,
    };
    if let Some(cap) = args.gap_cap {
        workload.cap_gaps(seconds("--gap-cap", cap)?);
    }
    Ok(workload)
}

fn read(args: &SimulateArgs) -> Result<Workload, Failure> {
    let mut whole = Vec::new();
    let mut format = args.format;
    for path in &args.traces {
        let bytes = std::fs::read(path)
            .with_context(|| format!("reading {}", path.display()))
            .map_err(Failure::Usage)?;
        if format.is_none() {
            let found = sniff(&bytes).with_context(|| path.display().to_string()).map_err(Failure::Usage)?;
            format = Some(found);
        }
        // Members of gzip and lines of text may both be put one behind the other, but not mixed.
        let gzip = |bytes: &[u8]| bytes.starts_with(&[0x1f, 0x8b]);
        if !whole.is_empty() && gzip(&whole) != gzip(&bytes) {
            return Err(Failure::Usage(anyhow!(
                "{}: packed and plain files cannot be mixed",
                path.display()
            )));
        }
        whole.extend_from_slice(&bytes);
    }
    let options =
        ImportOptions { strict: args.strict, block_size: args.trace_block_size, ..ImportOptions::default() };
    let format = format.ok_or_else(|| Failure::Usage(anyhow!("no trace")))?;
    import(&whole, format, &options).context("reading the trace").map_err(Failure::Usage)
}

fn seconds(flag: &str, value: f64) -> Result<Duration, Failure> {
    Duration::try_from_secs_f64(value).map_err(|error| Failure::Usage(anyhow!("{flag}: {error}")))
}

fn points(args: &SimulateArgs) -> Result<Vec<Point>, Failure> {
    let profile = Profile::by_name(&args.profile).map_err(|error| Failure::Usage(anyhow!(error)))?;
    let pools = if args.pool.is_empty() { vec![u64::from(profile.pool_tokens())] } else { args.pool.clone() };
    let lanes: Vec<Option<u32>> =
        if args.lanes.is_empty() { vec![None] } else { args.lanes.iter().copied().map(Some).collect() };
    let mut points = Vec::new();
    for pool in pools {
        for lanes in &lanes {
            for policy in &args.policy {
                for seed in &args.seeds {
                    points.push(Point {
                        policy: policy.clone(),
                        workers: args.workers,
                        pool,
                        lanes: *lanes,
                        seed: *seed,
                    });
                }
            }
        }
    }
    Ok(points)
}

fn config(args: &SimulateArgs, point: &Point) -> Result<SimConfig, Failure> {
    let profile = Profile::by_name(&args.profile).map_err(|error| Failure::Usage(anyhow!(error)))?;
    let base = profile.config(Flavor::Vllm);
    let blocks = point.pool / u64::from(args.block_size.max(1));
    let link = LinkConfig { read_gb_s: args.host_bandwidth, write_gb_s: args.host_bandwidth };
    let host = (args.host_pool > 0).then_some(TierConfig { tokens: args.host_pool, link });
    let scheduler = scheduler_for(&point.policy).map_err(|error| Failure::Usage(anyhow!(error)))?;
    Ok(SimConfig {
        engine: EngineConfig {
            block_size: args.block_size,
            pool_blocks: u32::try_from(blocks).map_err(|_| Failure::Usage(anyhow!("--pool is too large")))?,
            tiers: TiersConfig { host, ..base.tiers },
            ..base
        },
        workers: point.workers,
        scheduler,
        arrivals: match point.lanes {
            Some(lanes) => Arrivals::Lanes { lanes },
            None => Arrivals::Recorded { speedup: args.speedup },
        },
        seed: point.seed,
        warmup: seconds("--warmup", args.warmup)?,
        duration: args.duration.map(|value| seconds("--duration", value)).transpose()?,
        idle_cap: args.idle_cap.map(|value| seconds("--idle-cap", value)).transpose()?,
        ..SimConfig::default()
    })
}

/// Simulates all points, several at once; their reports in order.
fn simulate(
    args: &SimulateArgs,
    workload: &Workload,
    configs: &[SimConfig],
    bar: &ProgressBar,
) -> Result<Vec<Report>, Failure> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.unwrap_or(cores).clamp(1, configs.len().max(1));
    let next = AtomicUsize::new(0);
    let (sender, receiver) = mpsc::channel();
    let mut reports: Vec<Option<Report>> = vec![None; configs.len()];
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(config) = configs.get(index) else { return };
                    let report = tandem_simulate::run(workload, config, &mut |_| {});
                    if sender.send((index, report)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut failed = None;
        for (index, report) in receiver {
            bar.inc(1);
            match report {
                Ok(report) => {
                    if let Some(slot) = reports.get_mut(index) {
                        *slot = Some(report);
                    }
                }
                Err(error) => failed = failed.or(Some(Failure::Usage(anyhow!(error)))),
            }
        }
        failed.map_or(Ok(()), Err)
    })?;
    Ok(reports.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_sessions_are_named_with_their_number() {
        assert_eq!(parse_synth("rl-swe:256:8"), Ok((Kind::RlSwe, 256, 8)));
        assert_eq!(parse_synth("chat"), Ok((Kind::Chat, 100, 1)));
        assert!(
            parse_synth("rl-swe:many").is_err()
                && parse_synth("x").is_err()
                && parse_synth("chat:1:1:1").is_err()
        );
    }
}
