//! What a call takes.

use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Parser;
use rustix::time::{ClockId, clock_gettime};
use tandem_bench_scheduler::options::Options;
use tandem_bench_scheduler::run::Run;
use tandem_bench_scheduler::{Kind, Probe};

/// As in the product.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    options: Options,
}

/// Time that this thread has run on a core, so that others on a shared machine do not count.
fn cpu() -> Duration {
    let at = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(at.tv_sec as u64, at.tv_nsec as u32)
}

#[derive(Debug, Default)]
struct Times {
    on: bool,
    /// Wall and processor time of each call, in nanoseconds, by kind.
    taken: [Vec<(u32, u32)>; Kind::ALL.len()],
}

impl Probe for Times {
    fn call<T>(&mut self, kind: Kind, call: impl FnOnce() -> T) -> T {
        if !self.on {
            return call();
        }
        let (busy, start) = (cpu(), Instant::now());
        let result = call();
        let (wall, busy) = (start.elapsed(), cpu() - busy);
        let ns = |time: Duration| u32::try_from(time.as_nanos()).unwrap_or(u32::MAX);
        self.taken[kind as usize].push((ns(wall), ns(busy)));
        result
    }
}

/// p50, p99 and the largest, in microseconds.
fn spread(mut all: Vec<u32>) -> String {
    all.sort_unstable();
    let at = |part: usize| all.get(all.len() * part / 100).map_or(0.0, |ns| f64::from(*ns) / 1e3);
    let most = all.last().map_or(0.0, |ns| f64::from(*ns) / 1e3);
    format!("{:.1} | {:.1} | {most:.0}", at(50), at(99))
}

fn main() -> Result<()> {
    let Args { options } = Args::parse();
    println!(
        "| routing | admission | working set / pools | call | calls | wall p50, us | p99, us | max, us | CPU p50, us | p99, us | max, us |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    for point in options.points() {
        let mut run = Run::new(&point, Times::default())?;
        run.until(options.warmup);
        run.probe.on = true;
        let answered = run.answered;
        run.until(options.warmup + options.measured);
        let name = format!("{} | {} | {:.1}", point.policy, point.admission, point.fill);
        let mut all = Vec::new();
        for kind in Kind::ALL {
            let taken = std::mem::take(&mut run.probe.taken[kind as usize]);
            if kind != Kind::Deadline {
                all.extend_from_slice(&taken);
            }
            show(&name, kind.name(), taken);
        }
        show(&name, "all but the last", all);
        let view = run.scheduler.view();
        eprintln!(
            "{name}: {} turns answered, {} live, {} held, {} programs, anomalies {}, {:?}",
            run.answered - answered,
            view.turn_count(),
            view.held_count(),
            view.program_count(),
            view.counters().anomalies.total(),
            view.admission().stats,
        );
    }
    Ok(())
}

fn show(name: &str, kind: &str, taken: Vec<(u32, u32)>) {
    let (wall, busy): (Vec<u32>, Vec<u32>) = taken.into_iter().unzip();
    println!("| {name} | {kind} | {} | {} | {} |", wall.len(), spread(wall.clone()), spread(busy));
}
