#!/usr/bin/env python3
"""One worker, one trace, one timing: `tandem simulate` beside aisimulate and Dynamo's offline replay.

Each case is run by all that are there; `req/s` is simulated requests by the time that each says it took, or by its whole run where
it does not say. What is compared is the part of prompt tokens that came from the cache and the
generated tokens a second. The bounds are those that Tandem promises: reuse within one point, throughput within 5 %.
"""

import argparse
import gzip
import json
import pathlib
import subprocess
import sys
import tempfile
import time

# Recorded pauses of people and tools are cut to this part of them, or an engine would stand still.
PACE = 0.02
REUSE_POINTS = 1.0
THROUGHPUT = 0.05
BLOCK = 64

DYNAMO = """
import json, sys
from dynamo.replay import run_trace_replay
case = json.load(sys.stdin)
engine = {"backend": "vllm", "block_size": case["block"], "num_gpu_blocks": case["blocks"],
          "timing_model": case["timing"]}
load = {"replay_concurrency": case["lanes"]} if case["lanes"] else {}
if case["format"] == "weka":
    load = {"agentic_lanes": case["lanes"], "execution_model": "model", "weka_nested_timestamp_basis": "relative"}
report = run_trace_replay([case["path"]], extra_engine_args={"engine": engine}, num_workers=1,
                          trace_format=case["format"], trace_block_size=case["trace_block"], **load)
print(json.dumps(report.summary))
"""


def cases(traces):
    """Name, file, aisimulate's name of the format, tokens in a block of the trace, rows, lanes, pool in blocks, timing."""
    poly = {"type": "polynomial"}
    fixed = {"type": "fixed", "prefill_ms": 40.0, "decode_ms": 12.0}
    conversation = traces / "mooncake_fast25_conversation_dev.jsonl.gz"
    synthetic = traces / "mooncake_fast25_synthetic_dev.jsonl.gz"
    mini = traces / "lmcache_miniswe_dev.jsonl.gz"
    rollouts = traces / "rl_swe_synth_dev.jsonl.gz"
    claude = traces / "claude_code_std_dev.jsonl.gz"
    return [
        ("conversation, as recorded", conversation, "mooncake", 512, 1500, None, 16384, poly),
        ("conversation, 16 lanes", conversation, "mooncake", 512, 1500, 16, 16384, poly),
        ("conversation, 16 lanes, fixed times", conversation, "mooncake", 512, 1500, 16, 16384, fixed),
        ("synthetic, 16 lanes", synthetic, "mooncake", 512, 1500, 16, 16384, poly),
        ("mini-SWE, 8 lanes", mini, "mooncake", 64, None, 8, 16384, poly),
        ("mini-SWE, 8 lanes, tight pool", mini, "mooncake", 64, None, 8, 512, poly),
        ("rollouts, 32 lanes", rollouts, "applied_compute_agentic", 64, 64, 32, 16384, poly),
        ("rollouts, 32 lanes, tight pool", rollouts, "applied_compute_agentic", 64, 64, 32, 6000, poly),
        ("Claude Code, 4 lanes", claude, "weka", 64, 12, 4, 16384, poly),
        ("Claude Code, 4 lanes, tight pool", claude, "weka", 64, 12, 4, 4000, poly),
    ]


def hurried(line):
    """A recorded Claude Code session with its times shortened."""
    session = json.loads(line)
    for request in session["requests"]:
        for name in ("t", "api_time", "think_time", "ttft"):
            if isinstance(request.get(name), (int, float)):
                request[name] *= PACE
    return json.dumps(session).encode()


def seconds(call):
    begun = time.monotonic()
    result = call()
    return result, time.monotonic() - begun


def run(command, stdin=None):
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def aisimulate(venv, case):
    weka = case["format"] == "weka"
    load = {"type": "trace_timestamps"}
    if weka:
        load["agentic_lanes"] = case["lanes"]
    elif case["lanes"]:
        load = {"type": "concurrency", "concurrency": case["lanes"]}
    source = {"type": "trace", "paths": [case["path"]], "format": case["format"], "block_size": case["trace_block"]}
    if weka:
        source["nested_timestamp_basis"] = "relative"
    cache = {"block_size": case["block"], "capacity": {"type": "fixed", "blocks": case["blocks"]}}
    # Model and hardware must be named; with a timing of its own none of their figures is used.
    engine = {
        "mode": "aggregated", "backend": "vllm", "model": "Qwen/Qwen3-30B-A3B", "hardware": "h200_sxm",
        "context_length": 10_000_000, "workers": {"aggregated": {"kv_cache": cache, "timing": case["timing"]}},
    }
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "config.json"
        config.write_text(json.dumps({"engine": engine, "traffic": {"source": source, "load": load}}))
        out = run([venv / "bin/aisimulate", "predict", "-c", config, "--stack", "engine", "--format", "json",
                   "--output-dir", f"{folder}/out"])
    return json.loads(out)


def dynamo(venv, case):
    return json.loads(run([venv / "bin/python", "-c", DYNAMO], json.dumps(case)).splitlines()[-1])


def tandem(binary, case):
    timing = case["timing"]
    name = timing["type"]
    if name == "fixed":
        name = f"fixed:{timing['prefill_ms']}:{timing['decode_ms']}"
    # The others make up the tokens of answers anew, and take no head of two recorded sessions for the same.
    command = [binary, "simulate", case["path"], "--fresh-answers", *(["--own-heads"] if case["format"] == "weka" else []),
               "--timing", name, "--policy", "round_robin", "--max-model-len", "0",
               "--pool", str(case["blocks"] * case["block"]), "--block-size", str(case["block"]),
               "--trace-block-size", str(case["trace_block"]), "--json"]
    if case["lanes"]:
        command += ["--lanes", str(case["lanes"]), "--in-order"]
    return json.loads(run(command))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tandem", type=pathlib.Path, required=True, help="the binary")
    parser.add_argument("--aisimulate", type=pathlib.Path, help="a virtual environment with aisimulate")
    parser.add_argument("--dynamo", type=pathlib.Path, help="a virtual environment with ai-dynamo")
    parser.add_argument("--traces", type=pathlib.Path, required=True, help="the folder with the traces")
    parser.add_argument("--only", help="cases whose name has this in it")
    args = parser.parse_args()
    good = True
    print(f"{'case':36} {'':11} {'requests':>8} {'reuse':>8} {'tok/s':>9} {'ttft':>9} {'ratio':>7} {'points':>7} {'wall s':>7} {'req/s':>8}")
    with tempfile.TemporaryDirectory() as folder:
        for name, path, form, trace_block, rows, lanes, blocks, timing in cases(args.traces):
            if args.only and args.only not in name:
                continue
            lines = gzip.decompress(path.read_bytes()).splitlines()[:rows]
            if form == "weka":
                lines = [hurried(line) for line in lines]
            plain = pathlib.Path(folder) / "trace.jsonl"
            plain.write_bytes(b"\n".join(lines) + b"\n")
            case = {"path": str(plain), "format": form, "trace_block": trace_block, "lanes": lanes, "blocks": blocks,
                    "block": BLOCK, "timing": timing}
            ours, wall = seconds(lambda: tandem(args.tandem, case))
            show(name, "tandem", ours, wall, "")
            for peer, call in (("aisimulate", lambda: aisimulate(args.aisimulate, case)),
                               ("dynamo", lambda: dynamo(args.dynamo, case))):
                if getattr(args, peer) is None:
                    continue
                theirs, wall = seconds(call)
                ratio = ours["output_throughput_tok_s"] / theirs["output_throughput_tok_s"]
                points = 100 * (ours["prefix_cache_reused_ratio"] - theirs["prefix_cache_reused_ratio"])
                fits = abs(points) <= REUSE_POINTS and abs(ratio - 1) <= THROUGHPUT
                good &= fits
                show("", peer, theirs, wall, f"{ratio:7.3f} {points:+7.2f} {'' if fits else '  OUT OF BOUNDS'}")
    return 0 if good else 1


def show(name, who, report, wall, compared):
    own = report.get("wall_time_ms")
    took = wall if own is None else own / 1e3
    print(f"{name:36} {who:11} {report['completed_requests']:8} {100 * report['prefix_cache_reused_ratio']:7.2f}% "
          f"{report['output_throughput_tok_s']:9.1f} {report['mean_ttft_ms']:7.0f}ms {compared or ' ' * 16} {took:7.2f} "
          f"{report['completed_requests'] / took:8.0f}",
          flush=True)


if __name__ == "__main__":
    sys.exit(main())
