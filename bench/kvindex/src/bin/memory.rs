//! Bytes.

use std::alloc::System;

use anyhow::Result;
use clap::Parser;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tandem_bench_kvindex::candidate::{Candidate, Dynamo, Naive, Smg, Tandem};
use tandem_bench_kvindex::options::{Fleet, Options};
use tandem_bench_kvindex::workload::{Maker, Trace};

#[global_allocator]
static GLOBAL: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    options: Options,
    /// Times that the caches are filled with new content after the first.
    #[arg(long, default_value_t = 10)]
    churn: u64,
}

/// What is allocated now, in bytes, since `region` began.
fn held(region: &Region<'_, System>) -> f64 {
    let change = region.change();
    change.bytes_allocated as f64 - change.bytes_deallocated as f64
}

/// Bytes for each block that a worker holds, after each pass.
fn run<C: Candidate>(
    index: &C,
    trace: &Trace,
    fleet: Fleet,
    passes: u64,
    region: &Region<'_, System>,
) -> Vec<f64> {
    let empty = held(region);
    let mut out = Vec::new();
    // The writer stays up: an index may keep its lookups on the writer's stack.
    std::thread::scope(|scope| {
        let (tx, rx) = flume::bounded(16);
        let _writer = scope.spawn(move || index.serve(rx));
        let mut own = 0.0;
        let before = held(region);
        let mut maker = Maker::new(fleet.workers, fleet.capacity);
        own += held(region) - before;
        for pass in 0..passes {
            let before = held(region);
            let load = maker.pass(trace, pass, fleet.copies);
            let made = held(region) - before;
            for op in &load.ops {
                if let Some(event) = index.event(&load, op) {
                    let _ = tx.send(event);
                }
            }
            while !tx.is_empty() {
                std::thread::yield_now();
            }
            // The last event may still be at work.
            std::thread::sleep(std::time::Duration::from_millis(200));
            let memberships = load.memberships as f64;
            own += made;
            out.push((held(region) - own - empty) / memberships);
            let before = held(region);
            drop(load);
            own += held(region) - before;
        }
        drop(tx);
    });
    out
}

fn main() -> Result<()> {
    let Args { options, churn } = Args::parse();
    println!("| trace | workers | index | bytes per held block | after {churn}x churn | highest |");
    println!("|---|---|---|---|---|---|");
    options.runs(|name, trace, fleet| {
        let row = |index: &str, bytes: Vec<f64>| {
            let highest = bytes.iter().copied().fold(0.0, f64::max);
            let (first, last) = (bytes.first().copied().unwrap_or(0.0), bytes.last().copied().unwrap_or(0.0));
            println!("| {name} | {} | {index} | {first:.1} | {last:.1} | {highest:.1} |", fleet.workers);
        };
        let wanted = |index: &str| options.wants(index);
        let passes = churn + 1;
        if wanted("tandem") {
            let region = Region::new(GLOBAL);
            row("tandem", run(&Tandem::default(), trace, fleet, passes, &region));
        }
        if wanted("dynamo concurrent") {
            let region = Region::new(GLOBAL);
            row("dynamo concurrent", run(&Dynamo::concurrent(), trace, fleet, passes, &region));
        }
        if wanted("dynamo positional") {
            let region = Region::new(GLOBAL);
            row("dynamo positional", run(&Dynamo::positional(), trace, fleet, passes, &region));
        }
        if wanted("smg chain") {
            let region = Region::new(GLOBAL);
            row("smg chain", run(&Smg::default(), trace, fleet, passes, &region));
        }
        if wanted("naive map") {
            let region = Region::new(GLOBAL);
            row("naive map", run(&Naive::default(), trace, fleet, passes, &region));
        }
        Ok(())
    })
}
