#!/usr/bin/env python3
"""Locally computed prompt tokens against those of a real vLLM 0.32 server, on a CPU.

    python3 e2e/render_vllm.py MODEL_DIR [CAPTURES_DIR] [--url URL] [--write FILE]

MODEL_DIR holds a model small enough for a CPU (random weights will do) with a chat template. Every request of the
fixtures, and of the captures in CAPTURES_DIR (files of `{"requests": [{"path", "body"}]}`), is rendered by the
server's `*/render` routes and by ours; each counts as equal only if all token ids are. `--url` takes a server that
runs already (started with `--enable-scale-out`), `--write` writes the ids' digests as golden lines for
`crates/prompt/tests`. Downloads several gigabytes at the first run, as real_vllm.py does.
"""
import argparse
import collections
import hashlib
import json
import pathlib
import struct
import subprocess
import sys
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROUTES = {"chat": "/v1/chat/completions", "completions": "/v1/completions", "responses": "/v1/responses",
          "messages": "/v1/messages"}
SAME = "$same_as_request:"
# Bounds of the answer, which no prompt depends on, but vLLM refuses those beyond the model's context.
ANSWER_BOUNDS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


def fixtures():
    """Name, dialect and body (as bytes, so that order and numbers stay) of our own requests."""
    for name in ("requests", "captures"):
        lines = (ROOT / f"crates/prompt/tests/fixtures/{name}.jsonl").read_text().strip().split("\n")
        for line in lines:
            request = json.loads(line)
            yield request["name"], request["dialect"], line[line.index('"body": ') + 8:-1].encode()


def captures(folder):
    dialects = {route.removeprefix("/v1"): dialect for dialect, route in ROUTES.items()}
    for file in sorted(folder.glob("*.json")):
        bodies = []
        for at, request in enumerate(json.loads(file.read_text()).get("requests", [])):
            body = request.get("body")
            if isinstance(body, dict):
                # A member that repeats another request's names that request.
                body = {name: bodies[int(value.split(":")[1])][name] if str(value).startswith(SAME) else value
                        for name, value in body.items()}
            bodies.append(body)
            dialect = dialects.get(request["path"].split("?")[0].rsplit("/v1", 1)[-1])
            if dialect and isinstance(body, dict):
                yield f"{file.stem}#{at}", dialect, json.dumps({**body, "model": "tiny"}).encode()


def theirs(url, dialect, body):
    """The ids, or None and why the server refused."""
    body = json.loads(body)
    body.update({name: min(body[name], 2048) for name in ANSWER_BOUNDS if body.get(name)})
    if isinstance(body.get("thinking"), dict) and body["thinking"].get("budget_tokens"):
        body["thinking"]["budget_tokens"] = 1024
    body = json.dumps(body, ensure_ascii=False).encode()
    request = urllib.request.Request(f"{url}{ROUTES[dialect]}/render", body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            rendered = json.load(answer)
    except urllib.error.HTTPError as error:
        return None, error.read().decode(errors="replace")[:160]
    return (rendered[0] if isinstance(rendered, list) else rendered)["token_ids"], None


def ours(model, requests, kind="vllm"):
    """What the local tokenizer makes of them for this kind of engine."""
    lines = "".join(json.dumps({"dialect": dialect, "kind": kind, "body": body.decode()}) + "\n"
                    for _, dialect, body in requests)
    command = ["cargo", "run", "-q", "-p", "tandem-prompt", "--example", "prompt_tokens", "--", model]
    out = subprocess.run(command, input=lines, capture_output=True, text=True, cwd=ROOT, check=False)
    if out.returncode:
        sys.exit(out.stderr)
    return [json.loads(line) for line in out.stdout.split("\n") if line]


def compare(url, model, requests, write):
    counts, faults, golden = collections.Counter(), [], []
    for (name, dialect, body), local in zip(requests, ours(model, requests), strict=True):
        ids, why = theirs(url, dialect, body)
        if ids is None:
            counts[dialect, "refused by vLLM"] += 1
            golden.append(f"{name}\t{dialect}\t-")
            print(f"  {name} ({dialect}): vLLM refuses it: {why}; ours: {local.get('error', 'a prompt')}")
            continue
        digest = hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest()[:16]
        golden.append(f"{name}\t{dialect}\t{len(ids)}\t{digest}")
        same = local.get("ids") == ids
        counts[dialect, "equal" if same else "different"] += 1
        counts[dialect, "tokens"] += len(ids)
        if not same:
            faults.append(f"  {name} ({dialect}): {local.get('error') or 'other ids'}")
    for dialect in ROUTES:
        print(f"{dialect}: " + ", ".join(f"{count} {what}" for (d, what), count in sorted(counts.items()) if d == dialect))
    print("\n".join(faults))
    if write:
        pathlib.Path(write).write_text("\n".join(golden) + "\n")
    return 1 if faults else 0


def main():
    options = argparse.ArgumentParser()
    options.add_argument("model")
    options.add_argument("captures", nargs="?")
    options.add_argument("--url")
    options.add_argument("--write")
    options = options.parse_args()
    requests = [*fixtures(), *(captures(pathlib.Path(options.captures)) if options.captures else ())]
    if options.url:
        return compare(options.url, options.model, requests, options.write)
    from lib import CACHE
    from real_vllm import Vllm
    vllm = Vllm(options.model, CACHE / "vllm-server.log")
    try:
        return compare(vllm.url, options.model, requests, options.write)
    finally:
        vllm.process.stop()


if __name__ == "__main__":
    sys.exit(main())
