//! What a session takes in memory.

use std::alloc::System;

use anyhow::Result;
use clap::Parser;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tandem_bench_scheduler::options::Options;
use tandem_bench_scheduler::run::Run;
use tandem_bench_scheduler::{Kind, Probe};

#[global_allocator]
static GLOBAL: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    options: Options,
}

/// Bytes that the scheduler has: what its calls allocate and free, what inputs bring and effects take away.
#[derive(Debug, Default)]
struct Bytes {
    held: i64,
}

impl Bytes {
    fn count<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let region = Region::new(GLOBAL);
        let result = call();
        let change = region.change();
        self.held += change.bytes_allocated as i64 - change.bytes_deallocated as i64;
        result
    }
}

impl Probe for Bytes {
    fn call<T>(&mut self, _kind: Kind, call: impl FnOnce() -> T) -> T {
        self.count(call)
    }

    fn hand_over<T>(&mut self, give: impl FnOnce() -> T) -> T {
        self.count(give)
    }
}

fn main() -> Result<()> {
    let Args { options } = Args::parse();
    println!(
        "| routing | admission | working set / pools | programs remembered | turns live | held | MiB | bytes a live session | bytes a program |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for point in options.points() {
        let mut run = Run::new(&point, Bytes::default())?;
        run.until(options.warmup + options.measured);
        let view = run.scheduler.view();
        let (programs, bytes) = (view.program_count(), run.probe.held as f64);
        println!(
            "| {} | {} | {:.1} | {programs} | {} | {} | {:.1} | {:.0} | {:.0} |",
            point.policy,
            point.admission,
            point.fill,
            view.turn_count(),
            view.held_count(),
            bytes / f64::from(1 << 20),
            bytes / options.sessions as f64,
            bytes / programs as f64,
        );
    }
    Ok(())
}
