#!/usr/bin/env python3
"""The main job: `tandem demo` ends well, and its report says that every turn completed and was recognised.

    python3 e2e/demo.py
"""
import json
import subprocess
import sys

from lib import binary, isolate, must, run_all


def demo_test(*flags):
    def test(folder):
        trace = folder / "trace.jsonl"
        done = subprocess.run([binary(), "demo", "--json", "--trace", str(trace), *flags], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=180, check=False)
        must(done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-2000:]!r} {done.stdout[-3000:]!r}")
        report = json.loads(done.stdout)
        must(report["ok"] and not report["faults"], f"faults: {report['faults']}")
        must(report["turns"]["made"] == report["turns"]["completed"] >= 28, f"turns: {report['turns']}")
        must(set(report["dialects"]) == {"chat", "completions", "responses", "messages"}, f"{report['dialects']}")
        children = [a for a in report["agents"] if a["parent_session_id"]]
        must(len(children) >= 3 and all(a["identity_right"] for a in report["agents"]), f"{report['agents']}")
        must(report["cached_tokens"] > report["input_tokens"] / 2, "agents that resend their history must hit the cache")
        rows = [json.loads(line)["event"] for line in trace.read_text().splitlines()]
        must(len(rows) == report["turns"]["made"], f"{len(rows)} of {report['turns']['made']} turns can be replayed")
        must(all(row["request"]["replay"]["input_sequence_hashes"] for row in rows), "a row cannot be replayed")
    return test


TESTS = [("demo", demo_test()), ("demo-four-engines", demo_test("--engines", "4", "--sessions", "3"))]

if __name__ == "__main__":
    isolate()
    sys.exit(min(run_all(TESTS, sys.argv[1:]), 98))
