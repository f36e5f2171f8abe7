//! What runs came to, in lines and a table.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use tandem_loadgen::Record;

use crate::fleet::{sum, values};

/// One policy over the sessions.
#[derive(Debug, Clone)]
pub struct Run {
    pub policy: String,
    /// Working set over pools.
    pub fill: f64,
    pub seed: u64,
    pub engines: usize,
    pub warmup: f64,
    pub seconds: f64,
    /// Recorded seconds in a second.
    pub speed: f64,
    pub abandoned: u64,
    pub sessions: u64,
    pub records: Vec<Record>,
    pub path: EventPath,
    pub summary: Summary,
}

/// How the events came through.
#[derive(Debug, Clone, Copy, Default)]
pub struct EventPath {
    /// Largest age of a batch when it was read, seconds.
    pub lag_max: f64,
    /// Events applied.
    pub events: f64,
    /// Holes in the streams.
    pub gaps: f64,
    /// Workers that were not exact at the end.
    pub inexact: f64,
    /// Times that a worker stopped being exact.
    pub lost: f64,
    /// Predictions that were exactly what the engine said, and all.
    pub right: f64,
    pub predictions: f64,
}

impl EventPath {
    pub fn of(text: &str) -> Self {
        let total: f64 = values(text, "tandem_kv_workers").map(|(_, value)| value).sum();
        Self {
            lag_max: 0.0,
            events: sum(text, "tandem_kv_events_total", ""),
            gaps: sum(text, "tandem_kv_gaps_total", ""),
            inexact: total - sum(text, "tandem_kv_workers", "knowledge=\"exact\""),
            lost: sum(text, "tandem_kv_transitions_total", "from=\"exact\""),
            right: sum(text, "tandem_kv_predictions_total", "outcome=\"equal\""),
            predictions: sum(text, "tandem_kv_predictions_total", ""),
        }
    }
}

/// The figures of a run's measured part.
#[derive(Debug, Clone, Copy, Default)]
pub struct Summary {
    pub requests: usize,
    pub failed: usize,
    /// Parts of the prompt tokens.
    pub hit: f64,
    pub ideal: f64,
    /// Largest share of a worker, by the mean: of the context of the sessions that were at it, over time; of the
    /// tokens that it computed and generated; of requests.
    pub sessions: f64,
    pub work: f64,
    pub by_requests: f64,
    /// Recorded seconds.
    pub ttft: [f64; 2],
    /// Requests a second.
    pub rate: f64,
    pub moved: f64,
}

impl Run {
    /// With its figures.
    pub fn summed(mut self) -> Self {
        let measured: Vec<&Record> =
            self.records.iter().filter(|record| record.sent >= self.warmup).collect();
        let good = || measured.iter().filter(|record| record.error.is_none());
        let total = |of: fn(&Record) -> u32| good().map(|record| f64::from(of(record))).sum::<f64>();
        let prompt = total(|record| record.prompt).max(1.0);
        let mut work: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
        for record in good() {
            let share = work.entry(record.worker.as_deref().unwrap_or("?")).or_default();
            share.0 += f64::from(record.prompt.saturating_sub(record.cached) + record.output);
            share.1 += 1.0;
        }
        let worst = |of: fn(&(f64, f64)) -> f64| {
            let all: Vec<f64> = work.values().map(of).collect();
            let mean = all.iter().sum::<f64>() / self.engines as f64;
            all.iter().copied().fold(0.0, f64::max) / mean.max(1e-9)
        };
        let mut first: Vec<f64> = good().filter_map(|record| record.first).collect();
        first.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let place = ((first.len().max(1) - 1) as f64 * part).round() as usize;
            first.get(place).copied().unwrap_or(f64::NAN) * self.speed
        };
        let mut homes: BTreeMap<(u32, u32), (u32, &str)> = BTreeMap::new();
        let mut by_turn: Vec<&&Record> = good().collect();
        by_turn.sort_by_key(|record| (record.session, record.round, record.turn));
        let mut moved = 0;
        for record in by_turn {
            let worker = record.worker.as_deref().unwrap_or("?");
            let before = homes.insert((record.session, record.round), (record.turn, worker));
            moved += u32::from(before.is_some_and(|(_, before)| before != worker));
        }
        self.summary = Summary {
            requests: measured.len(),
            failed: measured.len() - good().count(),
            hit: total(|record| record.cached) / prompt,
            ideal: total(|record| record.ideal) / prompt,
            sessions: self.sessions_at(),
            work: worst(|share| share.0),
            by_requests: worst(|share| share.1),
            ttft: [at(0.5), at(0.99)],
            rate: measured.len() as f64 / self.seconds,
            moved: f64::from(moved) / measured.len().max(1) as f64,
        };
        self
    }

    /// Largest over mean of the context tokens that sessions have at a worker, over the measured time: a session is at
    /// the worker of a turn from when that gets it until the next is sent, or it ends. While a turn is held its session
    /// is nowhere. Unlike work and requests, this does not grow with what a worker makes of its sessions. Sessions of
    /// which no request came to an end are not counted.
    fn sessions_at(&self) -> f64 {
        let mut by_turn: Vec<&Record> = self.records.iter().filter(|record| record.error.is_none()).collect();
        by_turn.sort_by_key(|record| (record.session, record.round, record.turn));
        let until = self.warmup + self.seconds;
        let mut at: BTreeMap<&str, f64> = BTreeMap::new();
        for (place, record) in by_turn.iter().enumerate() {
            let same = |next: &&&Record| (next.session, next.round) == (record.session, record.round);
            let next = by_turn.get(place + 1).filter(same);
            let end = next.map_or(record.sent + record.whole, |next| next.sent);
            let time = (end.min(until) - (record.sent + record.held).max(self.warmup)).max(0.0);
            *at.entry(record.worker.as_deref().unwrap_or("?")).or_default() +=
                time * f64::from(record.prompt + record.output);
        }
        let mean = at.values().sum::<f64>() / self.engines as f64;
        at.values().copied().fold(0.0, f64::max) / mean.max(1e-9)
    }

    /// The run in a line.
    pub fn line(&self) -> String {
        let (s, path) = (&self.summary, &self.path);
        format!(
            "fill {:.2} seed {} {:<17} hit {:.2} % ideal {:.2} %, sessions {:.2} work {:.2} requests {:.2}, ttft {:.2} / {:.2}, {} requests, {} failed, \
             {} abandoned, {} sessions ended, moved {:.2} %; events {:.0}, lag <= {:.1} ms, gaps {}, lost {}, inexact {}, predicted {:.2} %",
            self.fill,
            self.seed,
            self.policy,
            s.hit * 100.0,
            s.ideal * 100.0,
            s.sessions,
            s.work,
            s.by_requests,
            s.ttft[0],
            s.ttft[1],
            s.requests,
            s.failed,
            self.abandoned,
            self.sessions,
            s.moved * 100.0,
            path.events,
            path.lag_max * 1e3,
            path.gaps,
            path.lost,
            path.inexact,
            path.right / path.predictions.max(1.0) * 100.0
        )
    }

    /// Appends every request to a file.
    pub fn append(&self, path: &Path) -> std::io::Result<()> {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
        let mut text = String::new();
        for record in &self.records {
            let row = serde_json::json!({"policy": self.policy, "fill": self.fill, "seed": self.seed, "request": record});
            let _ = writeln!(text, "{row}");
        }
        file.write_all(text.as_bytes())
    }
}

/// The median of some figures.
fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A row for each fill and policy: medians over seeds, and the worst.
pub fn table(runs: &[Run], policies: &[String]) -> String {
    let mut text = String::from(
        "| working set / pools | policy | hit, % (lowest to highest) | below the ideal, points (worst) | sessions' context, largest / mean (worst) | work, largest / mean (worst) | requests, largest / mean (worst) \
         | first token p50 / p99, s | requests/s | moved, % |\n|---|---|---|---|---|---|---|---|---|---|\n",
    );
    let mut fills: Vec<f64> = runs.iter().map(|run| run.fill).collect();
    fills.sort_by(f64::total_cmp);
    fills.dedup();
    for (fill, policy) in fills.iter().flat_map(|fill| policies.iter().map(move |policy| (fill, policy))) {
        let of: Vec<&Run> = runs.iter().filter(|run| run.fill == *fill && run.policy == *policy).collect();
        let all = |figure: fn(&Summary) -> f64| of.iter().map(|run| figure(&run.summary)).collect::<Vec<_>>();
        let most = |figure| all(figure).into_iter().fold(0.0, f64::max);
        let below = |s: &Summary| (s.ideal - s.hit) * 100.0;
        let _ = writeln!(
            text,
            "| {fill} | {policy} | {:.2} ({:.2} to {:.2}) | {:.2} ({:.2}) | {:.2} ({:.2}) | {:.2} ({:.2}) | {:.2} ({:.2}) | {:.2} / {:.1} | {:.0} | {:.2} |",
            median(all(|s| s.hit * 100.0)),
            all(|s| s.hit * 100.0).into_iter().fold(f64::INFINITY, f64::min),
            most(|s| s.hit * 100.0),
            median(all(below)),
            most(below),
            median(all(|s| s.sessions)),
            most(|s| s.sessions),
            median(all(|s| s.work)),
            most(|s| s.work),
            median(all(|s| s.by_requests)),
            most(|s| s.by_requests),
            median(all(|s| s.ttft[0])),
            median(all(|s| s.ttft[1])),
            median(all(|s| s.rate)),
            median(all(|s| s.moved * 100.0)),
        );
    }
    text
}
