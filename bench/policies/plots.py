#!/usr/bin/env python3
"""Plots of what `policies.py` kept in its results, as SVG: output and waiting over the load, policy by policy.

    python3 bench/policies/plots.py --results policies.jsonl --traces DIR --judge DIR --out docs/concepts/plots

Each point is the mean over the seeds that were run, each bar the lowest and highest of them. A point that was not run is
left out, and which those are is said. Needs matplotlib.
"""

import argparse
import pathlib
import statistics
import sys

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot  # noqa: E402

import policies  # noqa: E402

# Equal results give equal files.
pyplot.rcParams.update({"svg.hashsalt": "tandem", "svg.fonttype": "none", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
STYLES = {
    "unlimited": ("#9a9a9a", "--", "unlimited cache"),
    "tandem": ("#c2185b", "-", "tandem"),
    "thunderagent": ("#1565c0", "-", "thunderagent"),
    "thunderagent-package": ("#64b5f6", "-", "thunderagent, as its package"),
    "idle_lease": ("#6a8a22", "-", "idle lease"),
    "sticky": ("#ef6c00", "-", "sticky, no gate"),
    "kv": ("#b08900", "-", "kv, no gate"),
    "round_robin": ("#8d6e63", ":", "round robin"),
}
# Name of a figure, its set-ups, the words that the points of it have in their labels, how the load reads in a label.
FIGURES = [
    ("recorded", ["b"], "recorded pauses", lambda label: int(label.split()[-2]), "open sessions"),
    ("capped", ["a", "c"], "pauses to 10 s", lambda label: float(label.split("10 s, ")[1].split("x")[0]), "working set / pools"),
    ("rollouts", ["e"], "rollouts, ", lambda label: int(label.split()[1]), "rollouts at once"),
    ("openhands", ["a", "d"], "minimax-m2.5-h100-tp4,", lambda label: float(label.split("tp4, ")[1].split("x")[0]), "working set / pools"),
]
PANELS = [
    ("output tokens/s", policies.rate, "linear"),
    ("time to first token, p99, s", lambda report: report["p99_ttft_ms"] * 1e-3, "log"),
    ("longest wait, s", lambda report: report["max_worst_turn_ms"] * 1e-3, "log"),
]


def lines(points, load, known, seeds):
    """For each policy the loads with the reports of all seeds that were run."""
    found = {policy: [] for policy in STYLES}
    for point in points:
        for policy, runs in found.items():
            variant = policies.Variant(policy, policy, ())
            keys = [policies.Runner.key(point.args, variant, seed) for seed in seeds]
            reports = [known[key] for key in keys if key in known]
            if reports:
                runs.append((load(point.label), reports))
            else:
                print(f"not run: {policy}, {point.label}", file=sys.stderr)
    return {policy: sorted(runs, key=lambda run: run[0]) for policy, runs in found.items() if runs}


def figure(found, unit):
    drawn, panels = pyplot.subplots(1, len(PANELS), figsize=(11, 3.4), layout="constrained")
    for panel, (title, value, scale) in zip(panels, PANELS):
        for policy, runs in found.items():
            colour, dashes, name = STYLES[policy]
            means = [statistics.fmean(map(value, reports)) for _, reports in runs]
            spans = [[mean - min(map(value, reports)) for mean, (_, reports) in zip(means, runs)],
                     [max(map(value, reports)) - mean for mean, (_, reports) in zip(means, runs)]]
            panel.errorbar([load for load, _ in runs], means, spans, color=colour, linestyle=dashes, label=name,
                           marker="o", markersize=3, linewidth=2 if policy == "tandem" else 1.2, elinewidth=0.8)
        panel.set(title=title, xlabel=unit, yscale=scale)
        if scale == "linear":
            panel.set_ylim(bottom=0)
    drawn.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return drawn


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=pathlib.Path, required=True, nargs="+", help="files of policies.py")
    parser.add_argument("--traces", type=pathlib.Path, required=True, help="the folder with the development traces")
    parser.add_argument("--judge", type=pathlib.Path, help="the folder with judge_set.py's sets")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the folder to write to")
    args = parser.parse_args()
    known = {}
    for path in args.results:
        known.update(policies.Runner(None, path, 1).known)
    seeds = [int(seed) for seed in args.seeds.split(",")]
    setups = policies.setups(policies.Loads(args.traces, args.judge))
    args.out.mkdir(parents=True, exist_ok=True)
    for name, chosen, words, load, unit in FIGURES:
        points = [point for setup in chosen for point in setups[setup][1] if words in point.label]
        drawn = figure(lines(points, load, known, seeds), unit)
        drawn.savefig(args.out / f"{name}.svg", metadata={"Date": None, "Creator": None})
        pyplot.close(drawn)
    return 0


if __name__ == "__main__":
    sys.exit(main())
