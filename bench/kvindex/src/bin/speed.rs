//! Rates and latencies.

use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Parser;
use tandem_bench_kvindex::candidate::{Candidate, Dynamo, Naive, Smg, Tandem, TandemHashing};
use tandem_bench_kvindex::options::Options;
use tandem_bench_kvindex::workload::{Load, Maker, Op};

/// The product's, for all indexes.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    options: Options,
}

/// Time that this thread has run on a core, so that others on a shared machine do not count.
fn cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = text.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0);
    Duration::from_nanos(ns)
}

/// The reader waits when so many events are queued, until half of them are applied.
const AHEAD: usize = 2048;

#[derive(Debug, Clone, Copy, Default)]
struct Outcome {
    apply: f64,
    /// Events and matches together, over the time that both threads were on a core.
    both: f64,
    /// The same over the wall clock.
    wall: f64,
    /// Match latency while events are applied: p50, p99, in nanoseconds.
    busy: [f64; 2],
    /// Match latency on the index as it is in the end.
    quiet: [f64; 2],
    depth: f64,
}

fn percentiles(mut all: Vec<Duration>) -> [f64; 2] {
    all.sort_unstable();
    let at = |part: usize| all.get(all.len() * part / 100).map_or(0.0, |d| d.as_nanos() as f64);
    [at(50), at(99)]
}

fn run<C: Candidate>(make: impl Fn() -> C, load: &Load) -> Outcome {
    let mut outcome = Outcome::default();
    // Events alone.
    let index = make();
    let events: Vec<C::Event> = load.ops.iter().filter_map(|op| index.event(load, op)).collect();
    let (tx, rx) = flume::unbounded();
    for event in events {
        let _ = tx.send(event);
    }
    drop(tx);
    let start = cpu();
    index.serve(rx);
    outcome.apply = load.event_blocks as f64 / (cpu() - start).as_secs_f64();
    // Matches alone.
    let queries: Vec<C::Query> = load.prompts.iter().map(|p| index.query(p)).collect();
    let mut scratch = C::Scratch::default();
    let mut depth = 0u64;
    let mut taken = Vec::with_capacity(queries.len());
    for query in &queries {
        let start = Instant::now();
        let found = index.find(query, &mut scratch);
        taken.push(start.elapsed());
        depth += u64::from(found);
    }
    outcome.quiet = percentiles(taken);
    outcome.depth = depth as f64 / queries.len() as f64;
    drop(index);
    // Both at once: one thread matches and hands on events, the other applies them.
    let index = make();
    let steps: Vec<Result<C::Event, usize>> = load
        .ops
        .iter()
        .filter_map(|op| match op {
            Op::Find(n) => Some(Err(*n as usize)),
            Op::Stored { .. } | Op::Removed { .. } => index.event(load, op).map(Ok),
        })
        .collect();
    let (tx, rx) = flume::unbounded();
    let mut taken = Vec::with_capacity(queries.len());
    let (start, mut busy) = (Instant::now(), cpu());
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            index.serve(rx);
            cpu()
        });
        for step in steps {
            match step {
                Ok(event) => {
                    let _ = tx.send(event);
                    if tx.len() > AHEAD {
                        while tx.len() > AHEAD / 2 {
                            std::thread::sleep(Duration::from_micros(50));
                        }
                    }
                }
                Err(n) => {
                    let start = Instant::now();
                    std::hint::black_box(index.find(&queries[n], &mut scratch));
                    taken.push(start.elapsed());
                }
            }
        }
        drop(tx);
        busy = cpu() - busy + writer.join().unwrap_or_default();
    });
    let blocks = (load.event_blocks + load.find_blocks) as f64;
    outcome.wall = blocks / start.elapsed().as_secs_f64();
    outcome.both = blocks / busy.as_secs_f64();
    outcome.busy = percentiles(taken);
    outcome
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(0.0)
}

fn middle(rounds: &[Outcome]) -> Outcome {
    let of = |f: fn(&Outcome) -> f64| median(rounds.iter().map(f).collect());
    Outcome {
        apply: of(|o| o.apply),
        both: of(|o| o.both),
        wall: of(|o| o.wall),
        busy: [of(|o| o.busy[0]), of(|o| o.busy[1])],
        quiet: [of(|o| o.quiet[0]), of(|o| o.quiet[1])],
        depth: of(|o| o.depth),
    }
}

/// Ours over theirs, round by round: median, lowest and highest.
fn ratio(ours: &[Outcome], theirs: &[Outcome], f: fn(&Outcome) -> f64) -> String {
    let mut all: Vec<f64> = ours.iter().zip(theirs).map(|(a, b)| f(a) / f(b)).collect();
    all.sort_by(f64::total_cmp);
    match (all.first(), all.get(all.len() / 2), all.last()) {
        (Some(low), Some(middle), Some(high)) => format!("{middle:.2} ({low:.2} to {high:.2})"),
        _ => "-".into(),
    }
}

type Runner = Box<dyn Fn(&Load) -> Outcome>;

fn runners() -> Vec<(&'static str, Runner)> {
    vec![
        ("tandem", Box::new(|l| run(Tandem::default, l))),
        ("tandem, hashing prompts", Box::new(|l| run(TandemHashing::default, l))),
        ("dynamo concurrent", Box::new(|l| run(Dynamo::concurrent, l))),
        ("dynamo positional", Box::new(|l| run(Dynamo::positional, l))),
        ("smg chain", Box::new(|l| run(Smg::default, l))),
        ("naive map", Box::new(|l| run(Naive::default, l))),
    ]
}

fn main() -> Result<()> {
    let Args { options } = Args::parse();
    println!(
        "| trace | workers | index | events, M blocks/CPU s | events + matches, M blocks/CPU s | per s | match p50, ns | p99, ns | quiet p50, ns | p99, ns | mean depth | tandem's ratio: events | events + matches | match p99 |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    let all = runners();
    options.runs(|name, trace, fleet| {
        let load = Maker::new(fleet.workers, fleet.capacity).pass(trace, 0, fleet.copies);
        let mut rounds: Vec<Vec<Outcome>> = vec![Vec::new(); all.len()];
        for round in 0..options.rounds {
            for turn in 0..all.len() {
                let at = (turn + round) % all.len();
                if options.wants(all[at].0) {
                    rounds[at].push(all[at].1(&load));
                }
            }
        }
        for ((index, _), theirs) in all.iter().zip(&rounds).filter(|(_, r)| !r.is_empty()) {
            let o = middle(theirs);
            println!(
                "| {name} | {} | {index} | {:.2} | {:.2} | {:.2} | {:.0} | {:.0} | {:.0} | {:.0} | {:.1} | {} | {} | {} |",
                fleet.workers,
                o.apply / 1e6,
                o.both / 1e6,
                o.wall / 1e6,
                o.busy[0],
                o.busy[1],
                o.quiet[0],
                o.quiet[1],
                o.depth,
                ratio(&rounds[0], theirs, |o| o.apply),
                ratio(&rounds[0], theirs, |o| o.both),
                ratio(&rounds[0], theirs, |o| o.busy[1])
            );
        }
        Ok(())
    })
}
