//! Tandem's indexes against naive ones, on what a trace makes caches do.

mod pool;
mod session;
mod worker;

use std::time::Instant;

use anyhow::{Context as _, Result};
use tandem_types::{EngineId, WorkerId};

pub use pool::Pool;
pub use session::Session;
pub use worker::Worker;

use crate::options::Fleet;
use crate::workload::{Load, Maker, Trace};

/// What was compared.
#[derive(Debug, Default, Clone, Copy)]
pub struct Counts {
    /// Events applied to both.
    pub events: u64,
    /// Blocks in them.
    pub blocks: u64,
    /// Answers compared.
    pub matches: u64,
    /// Blocks that they were about.
    pub compared: u64,
    /// Clears, replaced workers, ends of sessions, lost batches, silent changes: whatever else happened.
    pub disturbances: u64,
}

/// An index and its naive twin.
pub trait Replay: Default {
    /// Which index it is.
    const NAME: &'static str;

    /// Replays a load on both.
    ///
    /// # Errors
    /// Where they differ.
    fn pass(&mut self, load: &Load, workers: u32, counts: &mut Counts) -> Result<()>;
}

/// Replays so many passes over a trace, each with new content, and says what was compared.
///
/// # Errors
/// Where index and naive index differ.
pub fn run<R: Replay>(name: &str, trace: &Trace, fleet: Fleet, passes: u64) -> Result<()> {
    let (start, mut pair, mut counts) = (Instant::now(), R::default(), Counts::default());
    for pass in 0..passes {
        let load = Maker::new(fleet.workers, fleet.capacity).pass(trace, pass, fleet.copies);
        let place = || format!("{}, {name}, {} workers, pass {pass}", R::NAME, fleet.workers);
        pair.pass(&load, fleet.workers, &mut counts).with_context(place)?;
    }
    println!(
        "{}: {name}, {} workers: {} events of {} blocks, {} disturbances, {} answers about {} blocks: equal; {:.0} s",
        R::NAME,
        fleet.workers,
        counts.events,
        counts.blocks,
        counts.disturbances,
        counts.matches,
        counts.compared,
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

const fn worker(n: u32) -> WorkerId {
    WorkerId { engine: EngineId(n), rank: 0 }
}
