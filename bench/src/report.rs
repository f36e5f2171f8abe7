//! Tables: per load, what each gateway adds to the direct call and what it costs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use serde::Serialize;

use crate::load::{Outcome, Shape, quantile};
use crate::process::Cost;
use crate::target::Target;

/// One gateway under one load in one round.
#[derive(Debug, Clone, Serialize)]
pub struct Cell {
    target: Target,
    round: usize,
    prompt_bytes: usize,
    connections: usize,
    calls: usize,
    failed: usize,
    calls_per_second: f64,
    first_byte_p50_ms: f64,
    first_byte_p99_ms: f64,
    whole_p50_ms: f64,
    whole_p99_ms: f64,
    calls_per_cpu_second: f64,
    rss_mib: f64,
}

impl Cell {
    /// Puts a cell together.
    pub fn new(
        target: Target,
        round: usize,
        shape: Shape,
        outcome: &Outcome,
        before: Cost,
        after: Cost,
    ) -> Self {
        let ms = |values: &[f64], part: f64| quantile(values, part) * 1e3;
        let cpu = after.cpu_s - before.cpu_s;
        Self {
            target,
            round,
            prompt_bytes: shape.prompt_bytes,
            connections: shape.connections,
            calls: outcome.whole.len(),
            failed: outcome.failed,
            calls_per_second: outcome.per_second,
            first_byte_p50_ms: ms(&outcome.first, 0.5),
            first_byte_p99_ms: ms(&outcome.first, 0.99),
            whole_p50_ms: ms(&outcome.whole, 0.5),
            whole_p99_ms: ms(&outcome.whole, 0.99),
            calls_per_cpu_second: if cpu > 0.0 { outcome.whole.len() as f64 / cpu } else { f64::NAN },
            rss_mib: after.rss_bytes as f64 / f64::from(1 << 20),
        }
    }
}

/// Every cell, one JSON object a line.
pub fn write_json(path: &Path, cells: &[Cell]) -> Result<()> {
    let mut text = String::new();
    for cell in cells {
        text.push_str(&serde_json::to_string(cell)?);
        text.push('\n');
    }
    Ok(std::fs::write(path, text)?)
}

/// Median, lowest, highest.
fn spread(values: impl Iterator<Item = f64>) -> (f64, f64, f64) {
    let mut values: Vec<f64> = values.filter(|v| v.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    (quantile(&values, 0.5), quantile(&values, 0.0), quantile(&values, 1.0))
}

/// One table a load, as Markdown.
pub fn tables(cells: &[Cell]) -> String {
    let mut loads: BTreeMap<(usize, usize), BTreeMap<Target, Vec<&Cell>>> = BTreeMap::new();
    for cell in cells {
        loads
            .entry((cell.prompt_bytes, cell.connections))
            .or_default()
            .entry(cell.target)
            .or_default()
            .push(cell);
    }
    let mut out = String::new();
    for ((bytes, connections), targets) in &loads {
        let _ = writeln!(out, "\n### Prompt of {bytes} bytes, {connections} connections\n");
        let _ = writeln!(
            out,
            "| gateway | added first byte p50 / p99, ms | added whole p50 / p99, ms | calls/s | calls per CPU second (lowest to highest) | tandem's ratio to it | memory, MiB | failed |"
        );
        let _ = writeln!(out, "|---|---|---|---|---|---|---|---|");
        let direct = targets.get(&Target::Direct);
        for (target, cells) in targets {
            let _ = writeln!(out, "{}", row(*target, cells, direct, targets.get(&Target::Tandem)));
        }
    }
    out
}

fn row(target: Target, cells: &[&Cell], direct: Option<&Vec<&Cell>>, tandem: Option<&Vec<&Cell>>) -> String {
    let median = |of: fn(&Cell) -> f64| spread(cells.iter().map(|c| of(c))).0;
    let base = |of: fn(&Cell) -> f64| {
        let known = direct.filter(|_| target.uses_engines() && target != Target::Direct);
        known.map_or(0.0, |d| spread(d.iter().map(|c| of(c))).0)
    };
    let added = |of: fn(&Cell) -> f64| median(of) - base(of);
    let mark = if target.uses_engines() { "" } else { " (whole, own workers)" };
    let (per_cpu, lowest, highest) = spread(cells.iter().map(|c| c.calls_per_cpu_second));
    let ratio = spread(cells.iter().filter_map(|cell| {
        let same = tandem?.iter().find(|t| t.round == cell.round)?;
        Some(same.calls_per_cpu_second / cell.calls_per_cpu_second)
    }));
    let failed: usize = cells.iter().map(|c| c.failed).sum();
    format!(
        "| {}{mark} | {:.2} / {:.2} | {:.2} / {:.2} | {:.0} | {per_cpu:.0} ({lowest:.0} to {highest:.0}) | {:.2} ({:.2} to {:.2}) | {:.0} | {failed} |",
        target.name(),
        added(|c| c.first_byte_p50_ms),
        added(|c| c.first_byte_p99_ms),
        added(|c| c.whole_p50_ms),
        added(|c| c.whole_p99_ms),
        median(|c| c.calls_per_second),
        ratio.0,
        ratio.1,
        ratio.2,
        median(|c| c.rss_mib),
    )
}
