#!/usr/bin/env python3
"""Claude Code sessions that no policy was tuned on, from a checkout of callanjfox/kv-cache-tester (@ 94f6046).

A development set, `claude_code_{std,long,subagents}_dev.jsonl.gz`, was drawn from the traces by a seeded shuffle. The
judge set is all that it leaves, under the same rule: `std` sessions have no subagents, at least four requests and no
prompt above 200,000 tokens, `long` ones have longer prompts, `subagents` ones have subagents. Of sessions whose first
eight requests have the same (in, out, t), only the first by name counts, so that none repeats one of the development
set. Traces that the checkout lacks are left out and counted.

Writes `claude_code_{std,long,subagents}_judge.jsonl.gz`: one trace a line, unchanged, in the order of their names.
"""

import argparse
import gzip
import json
import pathlib
import sys

KINDS = ("std", "long", "subagents")
PEAK_TOKENS = 200_000
MIN_REQUESTS = 4
# So many first requests alike make a near-copy.
HEAD = 8


def own_requests(trace):
    return [request for request in trace["requests"] if request["type"] != "subagent"]


def kind(trace):
    """Which set a trace belongs to; None = too short for any."""
    own = own_requests(trace)
    if len(own) < len(trace["requests"]):
        return "subagents"
    if len(own) < MIN_REQUESTS:
        return None
    return "std" if max(request["in"] for request in own) <= PEAK_TOKENS else "long"


def dev_ids(folder):
    ids = set()
    for name in KINDS:
        with gzip.open(folder / f"claude_code_{name}_dev.jsonl.gz", "rt") as lines:
            ids.update(json.loads(line)["id"] for line in lines)
    return ids


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkout", type=pathlib.Path, required=True, help="folder with traces/trace_*.json")
    parser.add_argument("--dev", type=pathlib.Path, required=True, help="folder with the development set")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="where to write")
    args = parser.parse_args()
    paths = sorted((args.checkout / "traces").glob("trace_*.json"))
    if not paths:
        sys.exit(f"no traces in {args.checkout / 'traces'}")
    dev, heads, chosen, copies = dev_ids(args.dev), set(), {name: [] for name in KINDS}, 0
    found = set()
    for path in paths:
        text = path.read_text()
        trace = json.loads(text)
        found.add(trace["id"])
        head = tuple((request["in"], request["out"], request["t"]) for request in own_requests(trace)[:HEAD])
        if head in heads:
            copies += 1
            if trace["id"] in dev:
                sys.exit(f"{trace['id']} of the development set repeats an earlier trace: another rule or snapshot")
            continue
        heads.add(head)
        name = kind(trace)
        if name and trace["id"] not in dev:
            chosen[name].append((text, len(own_requests(trace))))
    if dev - found:
        sys.exit(f"{len(dev - found)} traces of the development set are not in the checkout, so copies of them go unseen")
    args.out.mkdir(parents=True, exist_ok=True)
    print(f"{len(paths)} traces, {copies} near-copies, {len(dev)} in the development set")
    for name, traces in chosen.items():
        path = args.out / f"claude_code_{name}_judge.jsonl.gz"
        # No time in the head of the file, so that equal traces give equal bytes.
        with open(path, "wb") as raw, gzip.GzipFile("", "wb", mtime=0, fileobj=raw) as packed:
            for text, _ in traces:
                packed.write(text.strip().encode() + b"\n")
        print(f"{path.name}: {len(traces)} sessions, {sum(count for _, count in traces)} requests of their own")
    return 0


if __name__ == "__main__":
    sys.exit(main())
