#!/usr/bin/env python3
"""A reinforcement-learning step of 2,048 rollouts in groups of eight, through HTTP: most are held by admission, all
groups finish, nobody is refused, every call reaches an engine once, and nothing is left behind.

    python3 e2e/rollouts.py [NAME...]

With `TANDEM_ROLLOUTS=N` a smaller step, with pools in proportion. Use a release build (`TANDEM_BIN`).
"""
import asyncio
import os
import pathlib
import sys

from lib import Fleet, isolate, must, run_all, until
from rollout_load import Load, engines, play, report

ROLLOUTS = int(os.environ.get("TANDEM_ROLLOUTS", "2048"))
ENGINES = 4
# Whole blocks; four times this is a fifth of what the rollouts hold in all when each is half done.
POOL = 500_000 * ROLLOUTS // 2048 // 16 * 16
HOLD = ("x-tandem-hold-max", "1500")


def memory(pid, field):
    """A size of a process, in MiB."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) // 1024


def nothing_left(fleet, programs):
    """What the gateway counts when all clients have gone."""
    until("the connections to close", lambda: fleet.metric("tandem_connections") == 0)
    for name in ("turns_in_flight", "turns_held", "admission_held_turns", "admission_held_tokens", "body_memory_bytes"):
        must(fleet.metric(f"tandem_{name}") == 0, f"tandem_{name} is {fleet.metric(f'tandem_{name}')}")
    must(fleet.asked("/turns?limit=1")["total"] == 0, "turns are left")
    must(fleet.asked("/sessions?limit=1")["total"] == programs, "sessions are left")
    admission = fleet.asked("/admission")
    must(admission["stats"]["programs"] == programs, f"admission knows {admission['stats']['programs']} programs")
    must(all(w["running"] == 0 and (programs or w["idle"] == 0) for w in admission["workers"]), f"{admission['workers']}")


def rollouts_test(load, admission="tandem"):
    def test(folder):
        mock = ["--profile", "qwen3-30b-a3b-h100-tp1", "--speedup", "1", "--pool", str(POOL)]
        fleet = Fleet(folder, engines=ENGINES, model=load.model, mock_args=mock, bodies=False, serve_args=["--admission", admission])
        try:
            until("the engines' capacity", lambda: [w["device"] for w in fleet.asked("/admission")["workers"]] == [POOL] * ENGINES)
            seen, took = asyncio.run(play(load, fleet.url))
            row = report(load, seen, took, engines(fleet.urls))
            row["gateway_peak_mib"] = memory(fleet.tandem.proc.pid, "VmHWM")
            row["held"] = fleet.metric("tandem_holds_total")
            print(f"  {row}", flush=True)
            turns = sum(load.turn_counts())
            must(row["groups_finished"] == load.rollouts // load.group, f"groups: {row}")
            must(row["statuses"] == {200: turns} and row["engine_calls"] == turns, f"each turn once: {row}")
            must(row["held"] > load.rollouts / 2, "most were to be held")
            nothing_left(fleet, 0 if load.final else load.rollouts)
            fleet.stop()
            must(len(fleet.rows()) == turns, f"{len(fleet.rows())} rows of {turns} turns")
        finally:
            fleet.kill()
    return test


TESTS = [
    ("whole-answers", rollouts_test(Load(rollouts=ROLLOUTS, headers=(HOLD,)))),
    # Early 200s, keep-alive events, and nobody says that a rollout is over.
    ("streams-without-an-end", rollouts_test(Load(rollouts=ROLLOUTS, headers=(HOLD,), stream=True, final=False))),
]

if __name__ == "__main__":
    isolate()
    sys.exit(min(run_all(TESTS, sys.argv[1:]), 98))
