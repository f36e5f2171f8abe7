#!/usr/bin/env python3
"""Real coding agents held by admission: each must wait, go on and finish, and no call may reach an engine twice.

    python3 e2e/holds.py [NAME...]

The engine is full with a turn that never ends when a harness starts; after some seconds its client leaves. Four
harnesses at once, each with a gateway and a modelled engine of its own. In the last test an operator pauses a session
between two of its turns.
"""
import concurrent.futures
import json
import socket
import sys
import time
import uuid

import harnesses
from lib import HOST, Fleet, Skip, isolate, must, run_all, until

POOL = 65536
OCCUPIER = "occupier"


class FullFleet(Fleet):
    """One engine of which a foreign session takes so much that no harness finds room beside it."""

    def __init__(self, folder, mock_args=()):
        super().__init__(folder, mock_args=["--agent", "2", "--fault-header", "--pool", str(POOL), *mock_args], serve_args=["--admission", "tandem"])
        until("the engine's capacity", lambda: [w["device"] for w in self.asked("/admission")["workers"]] == [POOL])
        self.occupier = None

    def occupy(self):
        """A call that is never answered and counts for 0.9 of the pool."""
        body = json.dumps({"model": self.model, "messages": [{"role": "user", "content": "x" * int(POOL * 0.9 * 4)}]})
        head = (f"POST /v1/chat/completions HTTP/1.1\r\nhost: {HOST}\r\nx-session-id: {OCCUPIER}\r\nx-mock-fault: hang\r\n"
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n")
        self.occupier = socket.create_connection((HOST, self.port))
        self.occupier.sendall(head.encode() + body.encode())
        until("the engine to be full", lambda: self.asked("/turns")["total"] == 1)

    def leave(self):
        self.occupier.close()

    def held(self, reason, patience=60):
        """Waits until turns are held for that reason."""
        def look():
            reasons = {turn["reason"] for turn in self.asked("/turns")["held"]}
            return reason in reasons
        until(f"a turn held as {reason}", look, patience)

    def wire(self):
        return [call for call in super().wire() if call["headers"].get("x-session-id") != OCCUPIER]

    def rows(self):
        rows = super().rows()
        return [row for row in rows if (row.get("agent_context") or {}).get("session_id") != OCCUPIER]


def claude(folder, fleet):
    harnesses.claude(folder, fleet, harnesses.PROMPT, "--session-id", str(uuid.uuid4()))


def codex(folder, fleet):
    harnesses.codex(folder, fleet, harnesses.PROMPT)


def pi(folder, fleet):
    harnesses.pi(folder, fleet, "openai-completions", str(uuid.uuid4()))


def opencode(folder, fleet):
    harnesses.opencode(folder, fleet, harnesses.PROMPT)


# Name, how it is started, calls of its that are not turns, package.
HARNESSES = [
    ("claude-code", claude, 0, "@anthropic-ai/claude-code"),
    ("codex", codex, 0, "@openai/codex"),
    ("pi", pi, 0, "@earendil-works/pi-coding-agent"),
    ("opencode", opencode, 1, "opencode-ai"),
]


def hold_one(folder, name, start, sides, package, seconds):
    """Holds one harness before its first turn; a line for the table."""
    harnesses.modules(package)
    fleet = FullFleet(folder / name)
    try:
        fleet.occupy()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            run = pool.submit(start, fleet.folder, fleet)
            try:
                fleet.held("memory_full")
                time.sleep(seconds)
                must(not run.done(), "it did not wait")
            finally:
                fleet.leave()
            run.result()
        return judge(fleet, name, sides, seconds)
    finally:
        fleet.kill()


def pause_one(folder, name, start, sides, package, seconds):
    """An operator pauses the harness's session while its first turn runs: the second one is held."""
    harnesses.modules(package)
    # A token takes a tenth of a second, so that the first turn lasts until the order is there.
    fleet = FullFleet(folder / name, mock_args=["--speedup", "0.05"])
    try:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            run = pool.submit(start, fleet.folder, fleet)
            def running():
                return [p["program"]["session"] for p in fleet.asked("/sessions")["programs"] if p["live_turns"]]
            sessions = until("a turn that runs", running, 60)
            must(fleet.told(f"/sessions/{sessions[0]}/pause")["paused"] == 1, "the session is not known")
            fleet.held("paused_by_operator")
            time.sleep(seconds)
            must(not run.done(), "it did not wait")
            fleet.told(f"/sessions/{sessions[0]}/resume")
            run.result()
        return judge(fleet, name, sides, seconds)
    finally:
        fleet.kill()


def judge(fleet, name, sides, seconds):
    """Every call once at the engine, every turn finished, and the wait as long as it was meant to be."""
    early, again = fleet.metric("tandem_early_200_total"), fleet.metric("tandem_superseded_total")
    refused = fleet.metric("tandem_rejections_total")
    rows = harnesses.check(fleet, sessions=1, tool_turns=2, sides=sides)
    longest = max(row["tandem"].get("held_ms") or 0 for row in rows) / 1000
    must((again, refused) == (0, 0), f"{again} calls came again, {refused} were refused")
    must(longest >= seconds, f"it was held for {longest:.1f} s only")
    return f"{name}: held {longest:.0f} s {'behind an early 200' if early else 'in silence'}, {len(rows)} calls"


def hold_test(one, seconds):
    """All harnesses at once."""
    def test(folder):
        harnesses.PATIENCE = seconds + 180
        with concurrent.futures.ThreadPoolExecutor(len(HARNESSES)) as pool:
            runs = {name: pool.submit(one, folder, name, *rest, seconds) for name, *rest in HARNESSES}
        faults = {}
        for name, run in runs.items():
            if error := run.exception():
                faults[name] = error
            else:
                print(f"  {run.result()}", flush=True)
        if len(faults) == len(runs) and all(isinstance(error, Skip) for error in faults.values()):
            raise Skip(str(faults))
        must(not faults, "; ".join(f"{name}: {type(error).__name__}: {error}" for name, error in faults.items()))
    return test


TESTS = [
    ("held-30", hold_test(hold_one, 30)),
    ("held-100", hold_test(hold_one, 100)),
    ("held-330", hold_test(hold_one, 330)),
    ("paused-30", hold_test(pause_one, 30)),
]


def main():
    for *_, package in HARNESSES:
        try:
            harnesses.modules(package)
        except Skip as error:
            print(f"note: {error}", flush=True)
    isolate()
    return min(run_all(TESTS, sys.argv[1:]), 98)


if __name__ == "__main__":
    sys.exit(main())
