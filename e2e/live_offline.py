#!/usr/bin/env python3
"""What happened live, again without engines: the recorded inputs of the scheduler give the same decisions, and the
recorded trace, simulated, the same output and hits within 5 %.

    python3 e2e/live_offline.py [NAME...]

256 rollouts in groups of eight, all begun at once, on four modelled engines in real time: with room for all, and with and
without admission where the pools hold a third of them. Use a release build (`TANDEM_BIN`) on a machine that has little else to
do: engines that come too late are slower than the model.
"""
import asyncio
import json
import statistics
import subprocess
import sys

from lib import Fleet, binary, isolate, must, run_all, until
from rollout_load import Load, engines, play, report

LOAD = Load(rollouts=256, headers=(("x-tandem-hold-max", "600"),), stream=True)
ENGINES = 4
# Tokens that an engine holds, in whole blocks. The rollouts hold 1.4 million in all when each is half done.
ROOMY, TIGHT = 500_000, 100_000
SEEDS = "1,2,3"
WITHIN = 0.05


def tandem(*argv):
    """Lines that a command printed."""
    done = subprocess.run([binary(), *map(str, argv)], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def compared(what, live, simulated):
    """A figure of the live run beside that of each simulated one; by how much their mean is off."""
    mean = statistics.fmean(simulated)
    off = mean / live - 1
    print(f"  {what}: live {live:.4g}, simulated {mean:.4g} ({min(simulated):.4g} to {max(simulated):.4g}), {off:+.1%}", flush=True)
    return off


def agree(admission, pool):
    engine = ["--profile", "qwen3-30b-a3b-h100-tp1", "--pool", str(pool), "--block-size", "16", "--max-num-seqs", "256"]

    def test(folder):
        inputs = folder / "inputs.jsonl"
        fleet = Fleet(folder, engines=ENGINES, model=LOAD.model, mock_args=[*engine, "--speedup", "1"], bodies=False, events=True,
                      serve_args=["--policy", "kv", "--kv-sources", "engine", "--admission", admission,
                                  "--set", f"record_inputs={inputs}"])
        try:
            until("the engines' cache events", lambda: fleet.metric("tandem_kv_workers", knowledge="exact") == ENGINES)
            if admission != "none":
                capacity = lambda: [worker["device"] for worker in fleet.asked("/admission")["workers"]]
                until("the engines' capacity", lambda: capacity() == [pool] * ENGINES)
            seen, took = asyncio.run(play(LOAD, fleet.url))
            live = report(LOAD, seen, took, engines(fleet.urls))
            must(live["statuses"] == {200: sum(LOAD.turn_counts())}, f"every turn answered: {live}")
            until("the turns to be over", lambda: fleet.asked("/turns?limit=1")["total"] == 0)
            decisions = list(reversed(fleet.asked("/decisions?limit=1000")["decisions"]))
            fleet.stop()
        finally:
            fleet.kill()
        again = [json.loads(line) for line in tandem("replay", inputs, "--decisions")]
        must(len(again) == sum(LOAD.turn_counts()), f"{len(again)} decisions of {sum(LOAD.turn_counts())} turns")
        must(again[-len(decisions):] == decisions, "replayed decisions differ from those taken live")
        print(f"  {len(decisions)} decisions equal to the live ones, of {len(again)}", flush=True)
        lines = tandem("simulate", fleet.trace, *engine, "--workers", ENGINES, "--policy", f"kv+{admission}".removesuffix("+none"),
                       "--seeds", SEEDS, "--json")
        simulated = [json.loads(line) for line in lines]
        figures = {"output tok/s": ("output_tok_s", "output_throughput_tok_s"), "hit": ("hit", "prefix_cache_reused_ratio")}
        off = {what: compared(what, live[one], [run[other] for run in simulated]) for what, (one, other) in figures.items()}
        must(max(map(abs, off.values())) <= WITHIN, f"more than {WITHIN:.0%} off: {off}")
    return test


TESTS = [
    ("room-for-all", agree("tandem", ROOMY)),
    ("admission", agree("tandem", TIGHT)),
    ("no-admission", agree("none", TIGHT)),
]

if __name__ == "__main__":
    isolate()
    sys.exit(min(run_all(TESTS, sys.argv[1:]), 98))
