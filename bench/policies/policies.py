#!/usr/bin/env python3
"""Admission and routing policies side by side in `tandem simulate`, over the set-ups (a) to (h).

    a   room to spare: nothing should be gained or lost
    b   Claude Code with recorded pauses: more sessions open than fit
    c   Claude Code with pauses cut at 10 s, working sets past the pools
    d   OpenHands on GLM-4.6 and MiniMax-M2.5, just below the cliff and past it
    e   reinforcement-learning rollouts
    f   bounded waiting: what overdue turns may make others compute again
    g   host memory below the engines
    h   what is believed is wrong: ends unannounced, pauses misjudged, cache events late or lost

Working set = lanes times the mean prompt, over all pools. Prints a Markdown table for each set-up, with the command of
each point. Results are kept in `--results`, a line for each run, and those that are there are not run again: use another
file for another binary.
"""

import argparse
import collections
import gzip
import json
import pathlib
import shlex
import statistics
import subprocess
import sys

POLICIES = "round_robin,kv,sticky,thunderagent,thunderagent-package,idle_lease,tandem,unlimited".split(",")
GATES = ["sticky", "thunderagent", "tandem"]

# Tokens of a worker's pool by profile, as `tandem mock-engine --list-profiles` tells.
POOLS = {
    "qwen3-30b-a3b-fp8-h100-tp2": 2_237_040,
    "qwen3-30b-a3b-h20-tp4": 3_807_728,
    "glm-4.6-h100-tp8": 1_180_000,
    "minimax-m2.5-h100-tp4": 468_626,
    "minimax-m2.5-h100-tp4-bf16kv": 234_313,
}
PODS = ("qwen3-30b-a3b-fp8-h100-tp2", 4)
ROLLOUTS = ("qwen3-30b-a3b-h20-tp4", 2)
# Mean prompts of made-up sessions: total_input_tokens over completed_requests of
# `tandem simulate LOAD --policy unlimited --lanes 16`.
MEAN_PROMPT = {"openhands": 36_200, "rl-swe": 16_753}

# A variant of a policy: its name in the table, the policy, further arguments; `--lanes` among them takes the place of the
# point's own.
Variant = collections.namedtuple("Variant", "name policy args")
# What is simulated: a label, arguments but policies and seed, variants.
Point = collections.namedtuple("Point", "label args variants")


def plain(policies):
    return [Variant(policy, policy, ()) for policy in policies]


def fleet(profile, workers):
    return ["--profile", profile, "--workers", str(workers)]


def window(warmup, duration):
    return ["--warmup", str(warmup), "--duration", str(duration)]


def lanes_for(working_set, profile, workers, mean_prompt):
    return max(1, round(working_set * POOLS[profile] * workers / mean_prompt))


def fitting(profile, workers, mean_prompt):
    """The bound of gates: nothing is ever evicted, and only as many sessions are open as fit."""
    return Variant("unlimited, as many as fit", "unlimited",
                   ("--lanes", str(lanes_for(1, profile, workers, mean_prompt))))


class Loads:
    """The traces, and what set-ups need to know of them."""

    def __init__(self, traces, judge):
        std = "claude_code_std_judge.jsonl.gz" if judge else "claude_code_std_dev.jsonl.gz"
        self.claude = str((judge or traces) / std)
        self.rollouts = ["--synth", "rl-swe:4096"] if judge else [str(traces / "rl_swe_synth_dev.jsonl.gz")]
        with gzip.open(self.claude, "rt") as lines:
            prompts = [request["in"] for line in lines for request in json.loads(line)["requests"] if "in" in request]
        self.claude_prompt = statistics.fmean(prompts)

    def capped(self, working_set, extra=(), variants=None):
        """Claude Code, pauses cut at 10 s, so many times the pools."""
        lanes = lanes_for(working_set, *PODS, self.claude_prompt)
        args = [self.claude, *fleet(*PODS), "--gap-cap", "10", "--lanes", str(lanes), *window(600, 3000), *extra]
        bound = [fitting(*PODS, self.claude_prompt)] if working_set > 1 else []
        return Point(f"Claude Code, pauses to 10 s, {working_set}x ({lanes} lanes)", args,
                     variants or [*plain(POLICIES), *bound])

    def recorded(self, lanes, extra=(), variants=None):
        """Claude Code with its pauses, so many open sessions."""
        args = [self.claude, *fleet(*PODS), "--lanes", str(lanes), *window(900, 3600), *extra]
        return Point(f"Claude Code, recorded pauses, {lanes} sessions", args, variants or plain(POLICIES))

    def rollout(self, lanes, warmup=600):
        args = [*self.rollouts, *fleet(*ROLLOUTS), "--lanes", str(lanes), *window(warmup, 1800)]
        bound = fitting(*ROLLOUTS, MEAN_PROMPT["rl-swe"])
        more = [bound] if lanes > int(bound.args[1]) else []
        when = "" if warmup == 600 else f" from {warmup} s on"
        return Point(f"rollouts{when}, {lanes} at once", args, [*plain(POLICIES), *more])

    def openhands(self, working_set, profile, workers):
        lanes = lanes_for(working_set, profile, workers, MEAN_PROMPT["openhands"])
        # Enough sessions that none comes again soon.
        args = ["--synth", f"openhands:{max(128, 4 * lanes)}", *fleet(profile, workers), "--lanes", str(lanes),
                *window(600, 1800)]
        bound = [fitting(profile, workers, MEAN_PROMPT["openhands"])] if working_set > 1 else []
        return Point(f"OpenHands, {profile}, {working_set}x ({lanes} lanes)", args, [*plain(POLICIES), *bound])


def reprefill(share):
    return Variant(f"tandem, re-prefill {share}", "tandem", ("--set", f"tandem.reprefill_share={share}"))


# What (h) lets go wrong: a label, arguments.
FAULTS = [
    ("all as it is", ()),
    ("ends unannounced", ("--silent-ends",)),
    ("pauses believed 3 times as long", ("--set", "tandem.gap_factor=3")),
    ("pauses believed a third as long", ("--set", "tandem.gap_factor=0.333")),
    ("events 2 s late", ("--event-delay", "2")),
    ("a fifth of events lost", ("--event-loss", "0.2")),
]


def setups(loads):
    """Name of each set-up, with a title and its points."""
    minimax, bf16, glm = ("minimax-m2.5-h100-tp4", 2), ("minimax-m2.5-h100-tp4-bf16kv", 2), ("glm-4.6-h100-tp8", 1)
    faults = [
        base._replace(label=f"{base.label}; {label}", args=[*base.args, *extra])
        for base in (loads.capped(1.5, variants=plain(GATES)), loads.recorded(256, variants=plain(GATES)))
        for label, extra in FAULTS
    ]
    rollouts = [(ws, lanes_for(ws, *ROLLOUTS, MEAN_PROMPT["rl-swe"])) for ws in (0.25, 0.5, 0.75)]
    tiers = Variant("thunderagent, tiers counted", "thunderagent", ("--set", "thunderagent.count_tiers=true"))
    hosted = [*plain(["sticky", "thunderagent"]), tiers, *plain(["tandem", "unlimited"])]
    bounded = [*plain(["thunderagent"]), *(reprefill(share) for share in (0, 0.01, 0.05, 0.1))]
    return {
        "a": ("Room to spare", [
            *(loads.capped(ws) for ws in (0.25, 0.5, 0.75)),
            *(loads.rollout(lanes)._replace(label=f"rollouts, {ws}x ({lanes} lanes)") for ws, lanes in rollouts),
            *(loads.openhands(ws, *minimax) for ws in (0.25, 0.5, 0.75)),
        ]),
        "b": ("Claude Code, recorded pauses", [loads.recorded(lanes) for lanes in (150, 200, 256, 400, 512)]),
        "c": ("Claude Code, pauses cut at 10 s", [loads.capped(ws) for ws in (1, 1.25, 1.5, 2, 3, 4)]),
        "d": ("OpenHands", [loads.openhands(ws, *where) for where in (glm, minimax, bf16) for ws in (0.7, 1.1, 1.5, 2)]),
        # All begin together; half an hour later they are no longer in step.
        "e": ("Rollouts", [
            *(loads.rollout(lanes) for lanes in (64, 128, 256, 384, 512)),
            *(loads.rollout(lanes, warmup=1_800) for lanes in (256, 512)),
        ]),
        "f": ("Bounded waiting", [loads.capped(ws, variants=bounded) for ws in (1.3, 2)]),
        "g": ("Host memory", [
            point._replace(label=f"{point.label}, host {times}x", args=[*point.args, "--host-pool", str(times * POOLS[PODS[0]])])
            for point in (loads.capped(2, variants=hosted), *(loads.recorded(lanes, variants=hosted) for lanes in (150, 256, 400)))
            for times in (2, 4)
        ]),
        "h": ("Beliefs gone wrong", faults),
    }


def joined(args, extra):
    args = list(args)
    if "--lanes" in extra:
        at = args.index("--lanes")
        del args[at:at + 2]
    return [*args, *extra]


class Runner:
    """Runs what the results lack, and keeps it."""

    def __init__(self, binary, results, jobs):
        self.binary, self.path, self.jobs, self.known = binary, results, jobs, {}
        if results.exists():
            for line in results.read_text().splitlines():
                row = json.loads(line)
                self.known[row["key"]] = row["report"]

    @staticmethod
    def key(args, variant, seed):
        # Where files lie makes no difference.
        args = [pathlib.Path(arg).name if arg.endswith(".gz") else arg for arg in [*args, *variant.args]]
        return shlex.join([*args, "--policy", variant.policy, "--seeds", str(seed)])

    def run(self, point, seeds):
        """Reports of a point: those of each variant by its name, one for each seed."""
        for seed in seeds:
            missing = collections.defaultdict(list)
            for variant in point.variants:
                if self.key(point.args, variant, seed) not in self.known:
                    missing[variant.args].append(variant)
            for extra, variants in missing.items():
                self.simulate(joined(point.args, extra), seed, variants, point.args)
        return {v.name: [self.known[self.key(point.args, v, seed)] for seed in seeds] for v in point.variants}

    def simulate(self, args, seed, variants, base):
        names = ",".join(variant.policy for variant in variants)
        command = [self.binary, "simulate", *args, "--policy", names, "--seeds", str(seed), "--threads", str(self.jobs),
                   "--json"]
        print("+", shlex.join(map(str, command)), file=sys.stderr, flush=True)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, open(self.path, "a") as kept:
            for variant, line in zip(variants, process.stdout):
                key, report = self.key(base, variant, seed), json.loads(line)
                if report["policy"] != variant.policy:
                    sys.exit(f"a report of {report['policy']} where one of {variant.policy} was due")
                self.known[key] = report
                kept.write(json.dumps({"key": key, "report": report}) + "\n")
                kept.flush()
        if process.returncode != 0:
            sys.exit(f"{self.binary} ended with {process.returncode}")


def rate(report):
    return report["output_throughput_tok_s"]


def spread(values, form):
    mean = format(statistics.fmean(values), form)
    return mean if len(values) == 1 else f"{mean} ({min(values):{form}}-{max(values):{form}})"


def against(reports, other):
    """Output over that of another policy, seed by seed."""
    if not other:
        return "-"
    return spread([rate(one) / max(rate(two), 1e-9) for one, two in zip(reports, other)], ".2f")


def mean(name, scale=1.0):
    return lambda reports: statistics.fmean(report[name] for report in reports) * scale


# Head, figure, form.
COLUMNS = [
    ("hit %", mean("first_admission_prefix_cache_reused_ratio", 100), ".1f"),
    ("amp", mean("amplification"), ".2f"),
    ("ttft p50 s", mean("median_ttft_ms", 1e-3), ".2f"),
    ("p90", mean("p90_ttft_ms", 1e-3), ".2f"),
    ("p99", mean("p99_ttft_ms", 1e-3), ".1f"),
    ("worst s", lambda reports: max(report["max_worst_turn_ms"] for report in reports) * 1e-3, ".0f"),
    ("slowest tenth s", mean("slowest_tenth_ttft_ms", 1e-3), ".1f"),
    ("in 30 s %", mean("session_slo_attainment", 100), ".1f"),
    ("jain", mean("jain_index"), ".3f"),
    ("idle while held %", mean("idle_while_held", 100), ".1f"),
    ("forced", mean("forced_admissions"), ".0f"),
    ("unserved", mean("unserved_requests"), ".0f"),
]


def table(results):
    """Lines of Markdown: worst is over all seeds, all else the mean."""
    heads = ["policy", "tok/s", "/ thunderagent", "/ sticky", *(head for head, _, _ in COLUMNS)]
    yield "| " + " | ".join(heads) + " |"
    yield "|---" * len(heads) + "|"
    for name, reports in results.items():
        cells = [name, spread([rate(report) for report in reports], ".0f"),
                 against(reports, results.get("thunderagent")), against(reports, results.get("sticky")),
                 *(format(figure(reports), form) for _, figure, form in COLUMNS)]
        yield "| " + " | ".join(cells) + " |"


def shown(point, seeds):
    """The command of a point, without variants' own arguments."""
    args = [pathlib.Path(arg).name if arg.endswith(".gz") else arg for arg in point.args]
    policies = ",".join(dict.fromkeys(variant.policy for variant in point.variants))
    command = ["tandem", "simulate", *args, "--policy", policies, "--seeds"]
    # Made-up sessions differ by seed, of which only the first counts in one run.
    each = seeds if "--synth" not in args else seeds[:1]
    other = "" if each == seeds else f", and again with each of {', '.join(map(str, seeds[1:]))}" if seeds[1:] else ""
    return f"`{shlex.join([*command, ','.join(map(str, each))])}`{other}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tandem", type=pathlib.Path, required=True, help="the binary")
    parser.add_argument("--traces", type=pathlib.Path, required=True, help="the folder with the development traces")
    parser.add_argument("--judge", type=pathlib.Path, help="the folder with judge_set.py's sets, for Claude Code")
    parser.add_argument("--results", type=pathlib.Path, default=pathlib.Path("policies.jsonl"), help="where runs are kept")
    parser.add_argument("--only", default="", help="set-ups, such as a,c")
    parser.add_argument("--points", default="", help="points whose label has this in it")
    parser.add_argument("--policies", help="policies, instead of all of each point's")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--extra", default="", help="further arguments of each run, such as '--demote'")
    parser.add_argument("--list", action="store_true", help="only say which points there are")
    args = parser.parse_args()
    seeds = [int(seed) for seed in args.seeds.split(",")]
    known = setups(Loads(args.traces, args.judge))
    chosen = args.only.split(",") if args.only else list(known)
    unknown = set(chosen) - set(known)
    if unknown:
        sys.exit(f"no such set-up: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    runner = Runner(args.tandem, args.results, args.jobs)
    for name in chosen:
        title, points = known[name]
        print(f"## ({name}) {title}\n")
        for point in points:
            if args.points not in point.label:
                continue
            point = point._replace(args=[*point.args, *shlex.split(args.extra)])
            if args.policies:
                wanted = args.policies.split(",")
                kept = [variant for variant in point.variants if variant.policy in wanted]
                more = plain(policy for policy in wanted if policy not in [variant.policy for variant in kept])
                point = point._replace(variants=[*kept, *more])
            print(f"**{point.label}**\n\n{shown(point, seeds)}\n", flush=True)
            if not args.list:
                print("\n".join(table(runner.run(point, seeds))), end="\n\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
