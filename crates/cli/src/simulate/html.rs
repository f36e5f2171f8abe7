//! The points as one page: plots drawn here as SVG, and all figures. Nothing is loaded from elsewhere.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use tandem_simulate::Report;

use super::Point;

/// A plot: its title, its unit, the figure.
type Plot = (&'static str, &'static str, fn(&Report) -> f64);

const PLOTS: &[Plot] = &[
    ("Generated tokens", "tok/s", |report| report.output_throughput_tok_s),
    ("Prompt tokens from a cache", "%", |report| report.first_admission_prefix_cache_reused_ratio * 100.0),
    ("Prefill over that of an unlimited cache", "times", |report| report.amplification),
    ("Time to first token, median", "s", |report| report.ttft_ms.p50 / 1e3),
    ("Time to first token, 99th percentile", "s", |report| report.ttft_ms.p99 / 1e3),
    ("Slowest tenth of sessions, mean time to first token", "s", |report| report.slowest_tenth_ttft_ms / 1e3),
    ("Sessions that always kept to the limit", "%", |report| report.session_slo_attainment * 100.0),
    ("Jain's index of fairness", "", |report| report.jain_index),
    ("Workers idle while a turn was held", "%", |report| report.idle_while_held * 100.0),
];

/// Colours that people with the usual kinds of colour blindness tell apart (Okabe and Ito, 2008).
const COLOURS: &[&str] =
    &["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000"];

const STYLE: &str = "body{font:15px/1.4 system-ui,sans-serif;margin:2rem auto;max-width:1200px;padding:0 1rem;\
color:#222;background:#fff}figure{display:inline-block;margin:0 1rem 1.5rem 0}figcaption{font-weight:600}\
svg text{font:11px system-ui,sans-serif;fill:currentColor}.grid{stroke:#8884}table{border-collapse:collapse}\
td,th{padding:.2rem .6rem;text-align:right;border-bottom:1px solid #8884}td:first-child,th:first-child\
{text-align:left}.scroll{overflow-x:auto}.key{display:inline-block;width:.8em;height:.8em;margin:0 .3em 0 1em}\
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}}";

const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 220.0;
/// Room for the axes' labels.
const LEFT: f64 = 52.0;
const BELOW: f64 = 24.0;
const ABOVE: f64 = 10.0;

/// What lies on the horizontal axis: whatever takes the most values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Axis {
    Lanes,
    Pool,
    Workers,
}

impl Axis {
    const ALL: [Self; 3] = [Self::Lanes, Self::Pool, Self::Workers];

    fn of(self, point: &Point) -> u64 {
        match self {
            Self::Lanes => point.lanes.map_or(0, u64::from),
            Self::Pool => point.pool,
            Self::Workers => u64::from(point.workers),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Lanes => "lanes",
            Self::Pool => "pool",
            Self::Workers => "workers",
        }
    }

    fn values(self, points: &[Point]) -> Vec<u64> {
        let mut values: Vec<u64> = points.iter().map(|point| self.of(point)).collect();
        values.sort_unstable();
        values.dedup();
        values
    }
}

/// One line of each plot: its name, and of each place on the axis the runs there (one for each seed).
struct Series<'a> {
    name: String,
    places: BTreeMap<usize, Vec<&'a Report>>,
}

/// The page.
pub(super) fn page(points: &[Point], reports: &[Report]) -> String {
    let axis =
        Axis::ALL.into_iter().rev().max_by_key(|axis| axis.values(points).len()).unwrap_or(Axis::Lanes);
    let ticks = axis.values(points);
    let series = series(points, reports, axis, &ticks);
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>tandem simulate</title>\
         <style>{STYLE}</style></head><body>\n<h1>tandem simulate</h1>\n<p>Over {}:",
        axis.name()
    );
    for (at, one) in series.iter().enumerate() {
        let _ = write!(
            out,
            "<span class=\"key\" style=\"background:{}\"></span>{}",
            colour(at),
            escape(&one.name)
        );
    }
    out.push_str(". Lines join means over seeds; bars span them.</p>\n");
    for plot in PLOTS {
        draw(&mut out, *plot, axis, &ticks, &series);
    }
    figures(&mut out, points, reports);
    out.push_str("</body></html>\n");
    out
}

fn colour(at: usize) -> &'static str {
    COLOURS.get(at % COLOURS.len()).copied().unwrap_or("#000000")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn series<'a>(points: &[Point], reports: &'a [Report], axis: Axis, ticks: &[u64]) -> Vec<Series<'a>> {
    // What varies beside the axis tells lines of one policy apart.
    let others: Vec<Axis> =
        Axis::ALL.into_iter().filter(|other| *other != axis && other.values(points).len() > 1).collect();
    let mut series: Vec<Series<'a>> = Vec::new();
    for (point, report) in points.iter().zip(reports) {
        let mut name = point.policy.clone();
        for other in &others {
            let _ = write!(name, ", {} {}", other.of(point), other.name());
        }
        let Ok(place) = ticks.binary_search(&axis.of(point)) else { continue };
        let at = series.iter().position(|known| known.name == name).unwrap_or_else(|| {
            series.push(Series { name, places: BTreeMap::new() });
            series.len() - 1
        });
        if let Some(one) = series.get_mut(at) {
            one.places.entry(place).or_default().push(report);
        }
    }
    series
}

/// The least of 1, 2, 2.5 and 5 times a power of ten that is no less.
fn round_up(value: f64) -> f64 {
    if value.is_nan() || value <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf(value.log10().floor());
    [1.0, 2.0, 2.5, 5.0, 10.0]
        .into_iter()
        .map(|step| step * power)
        .find(|step| *step >= value)
        .unwrap_or(value)
}

fn draw(out: &mut String, (title, unit, figure): Plot, axis: Axis, ticks: &[u64], series: &[Series<'_>]) {
    let all = series.iter().flat_map(|one| one.places.values().flatten()).map(|report| figure(report));
    let top = round_up(all.fold(0.0, f64::max));
    let (right, floor) = (WIDTH - 8.0, HEIGHT - BELOW);
    let x = |place: usize| match ticks.len() {
        0 | 1 => f64::midpoint(LEFT, right),
        count => LEFT + 12.0 + (right - LEFT - 24.0) * place as f64 / (count - 1) as f64,
    };
    let y = |value: f64| floor - (floor - ABOVE) * (value / top);
    let _ = write!(
        out,
        "<figure><figcaption>{}</figcaption><svg width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\" \
         aria-label=\"{}\">",
        escape(title),
        escape(title)
    );
    for quarter in 0..=4 {
        let value = top * f64::from(quarter) / 4.0;
        let at = y(value);
        let _ = write!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 4.0,
            at + 4.0,
            (value * 1e3).round() / 1e3
        );
    }
    let _ = write!(out, "<text x=\"2\" y=\"{:.1}\">{}</text>", HEIGHT - 8.0, escape(unit));
    for (place, tick) in ticks.iter().enumerate() {
        let label = if *tick == 0 && axis == Axis::Lanes { "recorded".to_owned() } else { tick.to_string() };
        let _ = write!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
            x(place),
            HEIGHT - 8.0
        );
    }
    for (at, one) in series.iter().enumerate() {
        line(out, (one, colour(at)), figure, x, y);
    }
    out.push_str("</svg></figure>\n");
}

fn line(
    out: &mut String,
    (series, colour): (&Series<'_>, &str),
    figure: fn(&Report) -> f64,
    x: impl Fn(usize) -> f64,
    y: impl Fn(f64) -> f64,
) {
    let mut path = String::new();
    for (place, runs) in &series.places {
        let values = || runs.iter().map(|report| figure(report));
        let mean = values().sum::<f64>() / runs.len().max(1) as f64;
        let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
        let (x, mid) = (x(*place), y(mean));
        let _ = write!(path, "{}{x:.1} {mid:.1}", if path.is_empty() { "M" } else { "L" });
        let _ = write!(
            out,
            "<line stroke=\"{colour}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/>\
             <circle fill=\"{colour}\" cx=\"{x:.1}\" cy=\"{mid:.1}\" r=\"3\"><title>{}: {mean:.4}</title></circle>",
            y(low),
            y(high),
            escape(&series.name)
        );
    }
    let _ = write!(out, "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>");
}

/// Every figure of every point.
fn figures(out: &mut String, points: &[Point], reports: &[Report]) {
    out.push_str("<h2>Figures</h2>\n<div class=\"scroll\"><table><tr><th>point</th>");
    for point in points {
        let lanes = point.lanes.map_or_else(String::new, |lanes| format!("{lanes} lanes<br>"));
        let _ = write!(
            out,
            "<th>{}<br>{lanes}{} workers<br>pool {}<br>seed {}</th>",
            escape(&point.policy),
            point.workers,
            point.pool,
            point.seed
        );
    }
    out.push_str("</tr>\n");
    let rows: Vec<Vec<(String, String)>> = reports.iter().map(rows).collect();
    let names = rows.iter().max_by_key(|rows| rows.len());
    for (at, (name, _)) in names.into_iter().flatten().enumerate() {
        let _ = write!(out, "<tr><td>{name}</td>");
        for column in &rows {
            let _ = write!(out, "<td>{}</td>", column.get(at).map_or("", |(_, value)| value));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table></div>\n");
}

fn rows(report: &Report) -> Vec<(String, String)> {
    let counts = report.counts().into_iter().map(|(name, count)| (name.to_owned(), count.to_string()));
    let stats = report.distributions().into_iter().flat_map(|(name, stats)| {
        let some = [("mean", stats.mean), ("median", stats.p50), ("p90", stats.p90), ("p99", stats.p99)];
        some.into_iter()
            .chain([("max", stats.max)])
            .map(move |(of, value)| (format!("{of}_{name}"), short(value)))
    });
    let figures = report.figures().into_iter().map(|(name, value)| (name.to_owned(), short(value)));
    counts.chain(stats).chain(figures).collect()
}

fn short(value: f64) -> String {
    if value.abs() >= 100.0 { format!("{value:.0}") } else { format!("{value:.3}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep() -> (Vec<Point>, Vec<Report>) {
        let mut points = Vec::new();
        let mut reports = Vec::new();
        for lanes in [32, 64] {
            for policy in ["kv", "a<b"] {
                for seed in [1, 2] {
                    let point =
                        Point { policy: policy.to_owned(), workers: 2, pool: 1000, lanes: Some(lanes), seed };
                    points.push(point);
                    reports.push(Report {
                        output_throughput_tok_s: f64::from(lanes) * seed as f64,
                        ..Report::default()
                    });
                }
            }
        }
        (points, reports)
    }

    #[test]
    fn a_page_needs_nothing_but_itself() {
        let (points, reports) = sweep();
        let page = page(&points, &reports);
        assert_eq!(page.matches("<svg").count(), PLOTS.len());
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        for foreign in ["http", "src=", "<script", "@import", "url("] {
            assert!(!page.contains(foreign), "{foreign}");
        }
        assert!(page.contains("a&lt;b") && !page.contains("a<b"), "names from outside are text");
    }

    #[test]
    fn lines_join_means_over_seeds() {
        let (points, reports) = sweep();
        let ticks = Axis::Lanes.values(&points);
        let series = series(&points, &reports, Axis::Lanes, &ticks);
        assert_eq!(series.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["kv", "a<b"]);
        assert!(
            series.iter().all(|one| one.places.len() == 2 && one.places.values().all(|runs| runs.len() == 2))
        );
        let page = page(&points, &reports);
        // 32 x 1 and 32 x 2; the axis ends at 200, the next round figure above 64 x 2.
        assert!(page.contains("<title>kv: 48.0000</title>") && page.contains(">200</text>"));
    }

    #[test]
    fn axes_end_at_round_figures() {
        let cases = [(0.0, 1.0), (0.7, 1.0), (1.0, 1.0), (128.0, 200.0), (2300.0, 2500.0), (51.0, 100.0)];
        for (value, top) in cases {
            assert!((round_up(value) - top).abs() < 1e-9, "{value}");
        }
        assert!((round_up(f64::NAN) - 1.0).abs() < 1e-9);
    }
}
