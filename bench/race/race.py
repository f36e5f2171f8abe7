#!/usr/bin/env python3
"""The same sessions through several gateways, one after the other, on modelled engines of equal size.

    python3 bench/race/race.py --tandem target/release/tandem --routers VENV --dynamo VENV --model DIR --seeds 1,2,3

Agents' sessions over plain HTTP, streamed: each begins with a prompt of its own, runs some turns with tools between
them, and resends what was said. A gateway that lets them all in at once has the engines forget each before it comes
back. Engines are `tandem mock-engine`; Dynamo's router only knows Dynamo's workers, so it runs with its own mock
workers, of as many blocks and with the same times (`dynamo_times.py`). Prints a Markdown table, and a JSON line for each
run to `--results`.

`--routers` is a virtual environment with sglang-router 0.3.2 and vllm-router 0.1.17, `--dynamo` one with ai-dynamo
1.6.1, `--model` a folder with a tokenizer for Dynamo. Those that are not given are left out.
"""
import argparse
import asyncio
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "e2e"))
from lib import HOST, Process, free_port, get, isolate, until  # noqa: E402
from rollout_load import Load, part, play  # noqa: E402

BLOCK = 16
# The engines: a mid-size model on one H100.
PROFILE = "qwen3-30b-a3b-h100-tp1"
# A session's last turn says that it is the last.
FINAL = {"final": True}


class Course:
    """A gateway in front of its engines."""

    def __init__(self, options, folder, seed):
        self.options, self.folder, self.seed = options, pathlib.Path(folder), seed
        self.port = free_port()
        self.url = f"http://{HOST}:{self.port}"
        self.processes, self.engines = [], []

    def run(self, name, argv, env=None):
        process = Process(list(map(str, argv)), self.folder / f"{name}.log", env=env and {**os.environ, **env})
        self.processes.append(process)
        return process

    def mock_engines(self):
        """Engines of ours; their addresses."""
        for number in range(self.options.engines):
            port = free_port()
            self.run(f"engine-{number}", [
                self.options.tandem, "mock-engine", "--host", HOST, "--port", port, "--model", "tiny", "--profile", PROFILE,
                "--pool", self.options.pool, "--block-size", BLOCK, "--speedup", self.options.speedup, "--seed", number])
            self.engines.append(f"http://{HOST}:{port}")
        for url in self.engines:
            until("an engine", lambda url=url: get(f"{url}/v1/models"))
        return self.engines

    def tandem(self, *more):
        urls, metrics = self.mock_engines(), free_port()
        self.run("gateway", [self.options.tandem, "serve", "--policy", "kv", "--host", HOST, "--port", self.port,
                             "--admin-port", 0, "--prometheus-port", metrics, "--log-level", "warn", "--seed", self.seed,
                             *more, "--worker-urls", *urls])
        until("the gateway", lambda: get(f"{self.url}/readiness"), 60)
        told = lambda: get(f"http://{HOST}:{metrics}/metrics").decode().splitlines()
        exact = lambda: sum(float(line.split()[-1]) for line in told() if line.startswith("tandem_kv_workers{knowledge=\"exact\""))
        until("the engines' cache events", lambda: exact() >= len(urls), 60)
        return FINAL

    def router(self, name, *more):
        urls = self.mock_engines()
        self.run("gateway", [self.options.routers / "bin" / name, *more, "--host", HOST, "--port", self.port,
                             "--prometheus-host", HOST, "--prometheus-port", free_port(), "--log-level", "error",
                             "--max-concurrent-requests", 8192, "--worker-urls", *urls])
        until("the gateway", lambda: get(f"{self.url}/health"), 60)
        return FINAL

    def dynamo(self):
        """Dynamo's ThunderAgent router. It takes the turn that carries the final marker for a farewell."""
        python, times = self.options.dynamo / "bin" / "python", self.folder / "times.npz"
        subprocess.run([python, pathlib.Path(__file__).with_name("dynamo_times.py"), times], check=True)
        env = {"DYN_DISCOVERY_BACKEND": "file", "DYN_FILE_KV": tempfile.mkdtemp(dir=self.folder), "DYN_REQUEST_PLANE": "tcp",
               "DYN_EVENT_PLANE": "zmq", "DYN_TCP_RPC_HOST": HOST, "DYN_EVENT_PLANE_HOST": HOST,
               "DYN_TCP_RESPONSE_STREAM_HOST": HOST, "HF_HUB_OFFLINE": "1", "DYN_LOG": "warn"}
        self.run("engines", [python, "-m", "dynamo.mocker", "--model-path", self.options.model, "--model-name", "backend",
                             "--num-workers", self.options.engines, "--speedup-ratio", self.options.speedup, "--block-size",
                             BLOCK, "--num-gpu-blocks-override", self.options.pool // BLOCK, "--planner-profile-data", times],
                 env)
        self.run("router", [python, "-m", "dynamo.thunderagent_router", "--endpoint", "dynamo.backend.generate", "--model-name",
                            "tiny", "--model-path", self.options.model, "--router-block-size", BLOCK], env)
        self.run("gateway", [python, "-m", "dynamo.frontend", "--http-host", HOST, "--http-port", self.port, "--router-mode",
                             "round-robin"], env)
        # The model is listed once the router has found the workers.
        until("the gateway", lambda: b'"tiny"' in get(f"{self.url}/v1/models"), 120)
        return {"farewell": True, "final": False, "identity": "x-dynamo-session-id"}

    def stop(self):
        for process in reversed(self.processes):
            process.stop(timeout=5)


# Each gateway: its name in the table, how it starts, what has to be there for it.
GATEWAYS = {
    "tandem": ("Tandem", lambda course: course.tandem(), None),
    "tandem-none": ("Tandem, `--admission none`", lambda course: course.tandem("--admission", "none"), None),
    "vllm-router": ("vllm-router, program scheduling", lambda course: course.router(
        "vllm-router", "--policy", "consistent_hash", "--enable-program-scheduling"), "routers"),
    "sglang-router": ("sglang-router, cache-aware", lambda course: course.router(
        "sglang-router", "launch", "--policy", "cache_aware"), "routers"),
    "dynamo": ("Dynamo, ThunderAgent router, its workers", lambda course: course.dynamo(), "dynamo"),
}


def race(options, name, seed):
    """One run: a row of figures."""
    with tempfile.TemporaryDirectory(prefix="tandem-race-") as folder:
        course = Course(options, folder, seed)
        try:
            calls = GATEWAYS[name][1](course)
            low, high = options.tools / 4, options.tools
            load = Load(rollouts=options.sessions, group=1, turns=options.turns, answer_tokens=128, system=4_000,
                        task=options.task, result=options.result, tools=(low / options.speedup, high / options.speedup),
                        stream=True, deadline=options.deadline, seed=seed, ramp=options.ramp / options.speedup, **calls)
            seen, took = asyncio.run(play(load, course.url))
        except Exception:
            for process in course.processes:
                print(process.output()[-1_000:], file=sys.stderr)
            raise
        finally:
            course.stop()
    ends = sorted(seen.ends.values())
    return {"gateway": name, "seed": seed, "sessions": options.sessions, "finished": len(ends),
            "seconds": max(ends) if len(ends) == options.sessions else took, "mean_end_s": statistics.fmean(ends or [0]),
            "ttft_p50_s": part(seen.firsts, 0.5), "ttft_p90_s": part(seen.firsts, 0.9), "ttft_p99_s": part(seen.firsts, 0.99),
            "ttft_max_s": max(seen.firsts, default=0), "output_tok_s": seen.output_tokens / took,
            "cached": seen.cached_tokens / max(seen.prompt_tokens, 1), "turns": len(seen.waits),
            "turns_due": sum(load.turn_counts()), "statuses": seen.statuses, "faults": seen.unfinished[:3]}


def table(rows):
    yield "| gateway | sessions finished | seconds | mean end s | first token p50 s | p90 | p99 | longest | output tok/s | cached |"
    yield "|---" * 10 + "|"
    for name in dict.fromkeys(row["gateway"] for row in rows):
        runs = [row for row in rows if row["gateway"] == name]

        def cell(key, form=".0f", runs=runs):
            values = [run[key] for run in runs]
            return f"{statistics.fmean(values):{form}} ({min(values):{form}} to {max(values):{form}})"
        done = ", ".join(f"{run['finished']} of {run['sessions']}" for run in runs)
        yield "| " + " | ".join([GATEWAYS[name][0], done, cell("seconds"), cell("mean_end_s"), cell("ttft_p50_s", ".2f"),
                                 cell("ttft_p90_s", ".1f"), cell("ttft_p99_s", ".1f"), cell("ttft_max_s"),
                                 cell("output_tok_s"), cell("cached", ".3f")]) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tandem", type=pathlib.Path, required=True, help="the binary")
    parser.add_argument("--routers", type=pathlib.Path, help="virtual environment of the routers")
    parser.add_argument("--dynamo", type=pathlib.Path, help="virtual environment of Dynamo")
    parser.add_argument("--model", type=pathlib.Path, help="folder with a tokenizer, for Dynamo")
    parser.add_argument("--gateways", default=",".join(GATEWAYS), help="which, in this order")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--sessions", type=int, default=96)
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--pool", type=int, default=425_008, help="tokens that each engine holds, in whole blocks")
    parser.add_argument("--turns", type=lambda text: tuple(map(int, text.split(","))), default=(10, 16), help="fewest,most of a session")
    parser.add_argument("--task", type=int, default=40_000, help="characters of a session's first prompt, four to a token")
    parser.add_argument("--result", type=int, default=8_000, help="characters of what a tool returns")
    parser.add_argument("--tools", type=float, default=4.0, help="longest pause for a tool in seconds, before --speedup")
    parser.add_argument("--ramp", type=float, default=30.0, help="sessions begin within so many seconds, before --speedup")
    parser.add_argument("--speedup", type=float, default=1.0, help="of engines, pauses and the ramp")
    parser.add_argument("--deadline", type=float, default=900.0, help="seconds after which a run is given up")
    parser.add_argument("--results", type=pathlib.Path, default=pathlib.Path("race.jsonl"))
    options = parser.parse_args()
    isolate()
    rows = []
    for seed in map(int, options.seeds.split(",")):
        for name in options.gateways.split(","):
            needs = GATEWAYS[name][2]
            if needs and getattr(options, needs) is None:
                print(f"{name} is left out: no --{needs}", file=sys.stderr)
                continue
            row = race(options, name, seed)
            rows.append(row)
            with open(options.results, "a") as kept:
                kept.write(json.dumps(row) + "\n")
            print(json.dumps(row), file=sys.stderr, flush=True)
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
