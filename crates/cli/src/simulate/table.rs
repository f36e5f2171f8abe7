//! The points as a table on a terminal.

use tandem_simulate::Report;

use super::Point;

/// A column: its head, and what stands below.
type Column = (&'static str, fn(&Point, &Report) -> String);

const COLUMNS: &[Column] = &[
    ("policy", |point, _| point.policy.clone()),
    ("workers", |point, _| point.workers.to_string()),
    ("pool", |point, _| point.pool.to_string()),
    ("lanes", |point, _| point.lanes.map_or_else(|| "-".to_owned(), |lanes| lanes.to_string())),
    ("seed", |point, _| point.seed.to_string()),
    ("tok/s", |_, report| format!("{:.1}", report.output_throughput_tok_s)),
    ("hit", |_, report| percent(report.first_admission_prefix_cache_reused_ratio)),
    ("amp", |_, report| format!("{:.2}", report.amplification)),
    ("ttft p50", |_, report| seconds(report.ttft_ms.p50)),
    ("p90", |_, report| seconds(report.ttft_ms.p90)),
    ("p99", |_, report| seconds(report.ttft_ms.p99)),
    ("worst", |_, report| seconds(report.worst_turn_ms.max)),
    ("in slo", |_, report| percent(report.session_slo_attainment)),
    ("jain", |_, report| format!("{:.3}", report.jain_index)),
    ("idle", |_, report| percent(report.idle_while_held)),
    ("unserved", |_, report| report.unserved_requests.to_string()),
];

/// Only where it was asked for.
const BELADY: Column = ("belady", |_, report| report.belady_reused_ratio.map_or_else(String::new, percent));

fn percent(part: f64) -> String {
    format!("{:.1}%", part * 100.0)
}

fn seconds(ms: f64) -> String {
    format!("{:.2}s", ms / 1e3)
}

/// All points, one line each, figures under their heads.
pub(super) fn text(points: &[Point], reports: &[Report]) -> String {
    let mut columns = COLUMNS.to_vec();
    if reports.iter().any(|report| report.belady_reused_ratio.is_some()) {
        columns.insert(7, BELADY);
    }
    let mut rows: Vec<Vec<String>> = vec![columns.iter().map(|(head, _)| (*head).to_owned()).collect()];
    rows.extend(
        points
            .iter()
            .zip(reports)
            .map(|(point, report)| columns.iter().map(|(_, cell)| cell(point, report)).collect()),
    );
    let mut widths = vec![0; columns.len()];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.len().max(*width);
        }
    }
    let mut out = String::new();
    for row in rows {
        let line = row.iter().zip(&widths).enumerate().map(|(at, (cell, width))| match at {
            // Names begin on the left, figures end on the right.
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        out.push_str(line.collect::<Vec<_>>().join("  ").trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_stand_under_their_heads() {
        let point = Point { policy: "kv".to_owned(), workers: 2, pool: 468_626, lanes: None, seed: 1 };
        let report =
            Report { output_throughput_tok_s: 1234.56, belady_reused_ratio: Some(0.75), ..Report::default() };
        let text = text(&[point.clone(), Point { lanes: Some(64), ..point }], &[report.clone(), report]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        let end = |line: &str, what: &str| line.find(what).map(|at| at + what.len());
        assert_eq!(end(lines[0], "tok/s"), end(lines[1], "1234.6"));
        assert_eq!(end(lines[0], "belady"), end(lines[1], "75.0%"));
        assert_eq!(end(lines[0], "lanes"), end(lines[2], "64"));
    }
}
