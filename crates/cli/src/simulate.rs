//! `tandem simulate`: policies over a workload in virtual time, one line per point.

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use serde::Serialize;
use tandem_engine_model::{EngineConfig, Flavor, LinkConfig, Profile, TierConfig, TiersConfig};
use tandem_scheduler::AdmissionConfig;
use tandem_simulate::{Arrivals, PlayOrder, Report, SimConfig, scheduler_for};
use tandem_workload::synth::Synth;
use tandem_workload::{ImportOptions, Workload, import, sniff};

use crate::assign::assign;
use crate::{Failure, print};

mod args;
mod html;
mod table;

pub(crate) use args::SimulateArgs;

/// A point of the sweep.
#[derive(Debug, Clone, PartialEq, Serialize)]
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
    if let Ok(style) =
        ProgressStyle::with_template("{bar:30} {pos}/{len} points, {msg}, {elapsed}, {eta} left")
    {
        bar.set_style(style);
    }
    let begun = Instant::now();
    let mut reader = print::Reader::There;
    let reports = simulate(args, &workload, &configs, &bar, &mut |index, report| {
        // Line by line, so that a sweep that is stopped leaves what it has found.
        let Some(point) = points.get(index).filter(|_| args.json && reader == print::Reader::There) else {
            return Ok(());
        };
        let text = serde_json::to_string(&Line { point, report }).context("writing a report")?;
        reader = bar.suspend(|| print::line(&text))?;
        Ok(())
    })?;
    bar.finish_and_clear();
    let count: u64 = reports.iter().map(|report| report.simulated_requests).sum();
    let took = begun.elapsed().as_secs_f64();
    print::note(&format!(
        "{} requests in {took:.1} s, {:.0} a second",
        HumanCount(count),
        count as f64 / took.max(f64::MIN_POSITIVE)
    ));
    if let Some(path) = &args.html {
        std::fs::write(path, html::page(&points, &reports))
            .with_context(|| format!("writing {}", path.display()))?;
    }
    if !args.json {
        print::data(&table::text(&points, &reports))?;
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
    let options = ImportOptions {
        strict: args.strict,
        block_size: args.trace_block_size,
        share_heads: !args.own_heads,
        ..ImportOptions::default()
    };
    let format = format.ok_or_else(|| Failure::Usage(anyhow!("no trace")))?;
    import(&whole, format, &options).context("reading the trace").map_err(Failure::Usage)
}

fn seconds(flag: &str, value: f64) -> Result<Duration, Failure> {
    Duration::try_from_secs_f64(value).map_err(|error| Failure::Usage(anyhow!("{flag}: {error}")))
}

fn points(args: &SimulateArgs) -> Result<Vec<Point>, Failure> {
    let profile = Profile::by_name(&args.fleet.profile).map_err(|error| Failure::Usage(anyhow!(error)))?;
    let pools = &args.fleet.pool;
    let pools = if pools.is_empty() { vec![u64::from(profile.pool_tokens())] } else { pools.clone() };
    let lanes: Vec<Option<u32>> =
        if args.lanes.is_empty() { vec![None] } else { args.lanes.iter().copied().map(Some).collect() };
    let mut points = Vec::new();
    for workers in &args.fleet.workers {
        for pool in &pools {
            for lanes in &lanes {
                for policy in &args.policy {
                    points.extend(args.seeds.iter().map(|seed| Point {
                        policy: policy.clone(),
                        workers: *workers,
                        pool: *pool,
                        lanes: *lanes,
                        seed: *seed,
                    }));
                }
            }
        }
    }
    Ok(points)
}

/// The engine of one point.
fn engine(args: &SimulateArgs, point: &Point) -> Result<EngineConfig, Failure> {
    let fleet = &args.fleet;
    let profile = Profile::by_name(&fleet.profile).map_err(|error| Failure::Usage(anyhow!(error)))?;
    let base = profile.config(Flavor::Vllm);
    let unlimited = point.policy == "unlimited";
    let blocks = if unlimited {
        u64::from(u32::MAX / fleet.block_size)
    } else {
        point.pool / u64::from(fleet.block_size)
    };
    let link = LinkConfig { read_gb_s: fleet.host_bandwidth, write_gb_s: fleet.host_bandwidth };
    let host = (fleet.host_pool > 0 && !unlimited).then_some(TierConfig { tokens: fleet.host_pool, link });
    let shared = (fleet.shared_pool > 0 && !unlimited).then_some(link);
    Ok(EngineConfig {
        block_size: fleet.block_size,
        pool_blocks: u32::try_from(blocks).map_err(|_| Failure::Usage(anyhow!("--pool is too large")))?,
        timing: fleet.timing.clone().unwrap_or(base.timing),
        max_num_seqs: fleet.max_num_seqs.unwrap_or(base.max_num_seqs),
        max_num_batched_tokens: fleet.max_num_batched_tokens.unwrap_or(base.max_num_batched_tokens),
        max_model_len: fleet.max_model_len.or(base.max_model_len).filter(|length| *length > 0),
        policy: fleet.scheduling_policy.into(),
        tiers: TiersConfig {
            host,
            shared,
            token_bytes: fleet.token_bytes.unwrap_or(base.tiers.token_bytes),
            ..base.tiers
        },
        ..base
    })
}

fn config(args: &SimulateArgs, point: &Point) -> Result<SimConfig, Failure> {
    let policy = if point.policy == "unlimited" { "kv" } else { &point.policy };
    let mut scheduler = scheduler_for(policy).map_err(|error| Failure::Usage(anyhow!(error)))?;
    for setting in &args.set {
        set(&mut scheduler.admission, setting)
            .with_context(|| format!("--set {setting}"))
            .map_err(Failure::Usage)?;
    }
    Ok(SimConfig {
        engine: engine(args, point)?,
        workers: point.workers,
        prefill_workers: args.fleet.prefill_workers,
        handover_gb_s: args.fleet.handover_bandwidth.unwrap_or(f64::INFINITY),
        shared_tokens: args.fleet.shared_pool,
        shared_gb_s: args.fleet.shared_bandwidth,
        scheduler,
        arrivals: match point.lanes {
            Some(lanes) => Arrivals::Lanes { lanes },
            None => Arrivals::Recorded { speedup: args.speedup },
        },
        order: if args.in_order { PlayOrder::Recorded } else { PlayOrder::Shuffled },
        seed: point.seed,
        event_delay: seconds("--event-delay", args.event_delay)?,
        event_loss: args.event_loss,
        predict: seconds("--predict", args.predict)?,
        relook: seconds("--relook", args.relook)?,
        warmup: seconds("--warmup", args.warmup)?,
        duration: args.duration.map(|value| seconds("--duration", value)).transpose()?,
        idle_cap: args.idle_cap.map(|value| seconds("--idle-cap", value)).transpose()?,
        announce_end: !args.silent_ends,
        fresh_answers: args.fresh_answers,
        demote: args.fleet.demote,
        slo_ttft: seconds("--slo", args.slo)?,
        belady: args.belady,
        ..SimConfig::default()
    })
}

/// Changes one setting of admission: `tandem.admit=0.95`; durations in seconds.
fn set(admission: &mut AdmissionConfig, setting: &str) -> anyhow::Result<()> {
    let before = toml::Table::try_from(&*admission)?;
    let mut after = before.clone();
    assign(&mut after, setting)?;
    in_seconds(&before, &mut after)?;
    *admission = after.try_into()?;
    Ok(())
}

/// Where a duration stood a number of seconds may stand.
fn in_seconds(before: &toml::Table, after: &mut toml::Table) -> anyhow::Result<()> {
    for (key, old) in before {
        let (Some(old), Some(new)) = (old.as_table(), after.get_mut(key)) else { continue };
        let seconds = new.to_string().parse::<f64>().ok();
        if let Some(new) = new.as_table_mut() {
            in_seconds(old, new)?;
        } else if let Some(seconds) = seconds.filter(|_| old.contains_key("nanos")) {
            *new = toml::Value::try_from(Duration::try_from_secs_f64(seconds)?)?;
        }
    }
    Ok(())
}

/// What a thread has to tell.
enum News {
    /// So many more requests were answered.
    Answered(u64),
    /// A point is done.
    Done(usize, Box<Result<Report, tandem_simulate::SimError>>),
}

/// Simulates all points, several at once. Each report is told to `tell` as soon as it and all before it are there;
/// returns all of them in order.
fn simulate(
    args: &SimulateArgs,
    workload: &Workload,
    configs: &[SimConfig],
    bar: &ProgressBar,
    tell: &mut dyn FnMut(usize, &Report) -> Result<(), Failure>,
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
                    let mut told = 0;
                    // Whoever listens is there until all senders are gone.
                    let report = tandem_simulate::run(workload, config, &mut |progress| {
                        let _ = sender.send(News::Answered(progress.completed - told));
                        told = progress.completed;
                    });
                    if sender.send(News::Done(index, Box::new(report))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut failed = None;
        let (mut answered, mut told) = (0, 0);
        for news in receiver {
            match news {
                News::Answered(more) => {
                    answered += more;
                    bar.set_message(format!("{} requests", HumanCount(answered)));
                }
                News::Done(index, report) => {
                    bar.inc(1);
                    match *report {
                        Ok(report) => {
                            if let Some(slot) = reports.get_mut(index) {
                                *slot = Some(report);
                            }
                        }
                        Err(error) => failed = failed.or(Some(Failure::Usage(anyhow!(error)))),
                    }
                    while let Some(Some(report)) = reports.get(told) {
                        if let Err(error) = tell(told, report) {
                            failed = failed.or(Some(error));
                        }
                        told += 1;
                    }
                }
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
    fn settings_of_admission_are_named_by_their_path() {
        let mut admission = AdmissionConfig::default();
        set(&mut admission, "tandem.admit=0.8").expect("a number");
        set(&mut admission, "tandem.overdue=45.5").expect("seconds");
        set(&mut admission, "thunderagent.mark_all=true").expect("a switch");
        set(&mut admission, "idle_lease.lease=7").expect("whole seconds");
        set(&mut admission, "tandem.patience=6").expect("a whole number");
        assert_eq!((admission.idle_lease.lease, admission.tandem.patience), (Duration::from_secs(7), 6.0));
        assert!((admission.tandem.admit - 0.8).abs() < 1e-9 && admission.thunderagent.mark_all);
        assert_eq!(admission.tandem.overdue, Duration::from_millis(45_500));
        for wrong in ["tandem.admit", "tandem.nothing=1", "tandem.admit=much"] {
            assert!(set(&mut admission, wrong).is_err(), "{wrong}");
        }
    }
}
