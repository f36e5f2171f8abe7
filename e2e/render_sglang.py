#!/usr/bin/env python3
"""Locally computed prompt tokens against those of a real SGLang 0.5.23 server, on a CPU.

    python3 e2e/render_sglang.py MODEL_DIR [CAPTURES_DIR] [--url URL --log FILE] [--write FILE]

As render_vllm.py does it for vLLM. SGLang has no route that renders: it is told to log what it is asked to generate,
and each request is sent with a bound of a few tokens. `--url` and `--log` take a server that runs already with
`--log-requests --log-requests-level 3 --log-requests-format json` and a reasoning parser (without one it refuses the
thinking of Messages requests), and its log.
"""
import argparse
import collections
import hashlib
import json
import os
import pathlib
import struct
import sys
import urllib.error
import urllib.request

from lib import CACHE
from real_kv import Sglang
from real_kv_sglang import sglang_python
from render_vllm import ANSWER_BOUNDS, ROUTES, captures, fixtures, ours

# Tokens to generate: less than this, and a structured answer is refused.
ANSWER = 8


class Logging(Sglang):
    """A server that logs all that it is asked."""

    def command(self):
        argv, env = super().command()
        room = {"--max-total-tokens": "65536", "--context-length": "32768"}
        argv = [room.get(before, word) for before, word in zip([None, *argv], argv)]
        return [*argv, "--reasoning-parser", "qwen3", "--log-requests", "--log-requests-level", "3",
                "--log-requests-format", "json"], {**env, "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}


def theirs(url, log, dialect, body):
    """Ids or text that the handler hands to the engine, or None and why it refused."""
    body = json.loads(body)
    for name in ANSWER_BOUNDS:
        if name in body:
            body[name] = ANSWER
    body.update({"stream": False})
    body.setdefault({"responses": "max_output_tokens"}.get(dialect, "max_tokens"), ANSWER)
    body.pop("stream_options", None)
    body.pop("min_tokens", None)
    if isinstance(body.get("thinking"), dict) and body["thinking"].get("budget_tokens"):
        body["thinking"]["budget_tokens"] = 1024
    start = log.stat().st_size
    data = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
    request = urllib.request.Request(url + ROUTES[dialect], data, {"content-type": "application/json"})
    why = None
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        why = error.read().decode(errors="replace")[:160]
    with open(log, "rb") as file:
        file.seek(start)
        for line in file.read().decode(errors="replace").splitlines():
            if '"event": "request.received"' in line:
                asked = json.loads(line[line.index("{"):])["obj"]
                return asked.get("input_ids") or asked.get("text"), None
    return None, why or "nothing was logged"


def compare(url, log, model, requests, write):
    counts, faults, golden = collections.Counter(), [], []
    for (name, dialect, body), local in zip(requests, ours(model, requests, "sglang"), strict=True):
        asked, why = theirs(url, log, dialect, body)
        if asked is None:
            counts[dialect, "refused by SGLang"] += 1
            golden.append(f"{name}\t{dialect}\t-")
            print(f"  {name} ({dialect}): SGLang refuses it: {why}; ours: {local.get('error', 'a prompt')}")
            continue
        if isinstance(asked, list) and not isinstance(asked[0], int):
            asked = asked[0]
        if isinstance(asked, str):
            # The tokenizer's part is not seen here, and is the same as for ids.
            same = local.get("text") == asked
        else:
            digest = hashlib.sha256(struct.pack(f"<{len(asked)}I", *asked)).hexdigest()[:16]
            golden.append(f"{name}\t{dialect}\t{len(asked)}\t{digest}")
            same = local.get("ids") == asked
            counts[dialect, "tokens"] += len(asked)
        unsupported = (local.get("error") or "").startswith("not reproducible here")
        counts[dialect, "equal" if same else "left to the engine" if unsupported else "different"] += 1
        if not same:
            faults.append((unsupported, f"  {name} ({dialect}): {local.get('error') or 'other ids'}"))
    for dialect in ROUTES:
        print(f"{dialect}: " + ", ".join(f"{count} {what}" for (d, what), count in sorted(counts.items()) if d == dialect))
    print("\n".join(line for _, line in faults))
    if write:
        pathlib.Path(write).write_text("\n".join(golden) + "\n")
    return 1 if any(not unsupported for unsupported, _ in faults) else 0


def main():
    options = argparse.ArgumentParser()
    options.add_argument("model")
    options.add_argument("captures", nargs="?")
    options.add_argument("--url")
    options.add_argument("--log", type=pathlib.Path)
    options.add_argument("--write")
    options = options.parse_args()
    requests = [*fixtures(), *(captures(pathlib.Path(options.captures)) if options.captures else ())]
    if options.url:
        return compare(options.url, options.log, options.model, requests, options.write)
    folder = CACHE / "render-sglang"
    folder.mkdir(parents=True, exist_ok=True)
    engine = Logging(folder, sglang_python(), os.path.abspath(options.model))
    try:
        engine.start()
        return compare(engine.url, folder / "sglang-1.log", options.model, requests, options.write)
    finally:
        engine.stop()


if __name__ == "__main__":
    sys.exit(main())
