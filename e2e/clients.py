#!/usr/bin/env python3
"""The official Python clients, straight to an engine and through Tandem: every answer must be equal, field by field;
and the same over raw bytes for streams.

    python3 e2e/clients.py [NAME...]
"""
import json
import pathlib
import re
import socket
import subprocess
import sys

from lib import HOST, Fleet, isolate, must, python_env, run_all

PACKAGES = ["openai", "anthropic"]
MODEL = "tiny"
# What differs between two runs of one engine: wall clock times, and ids that it draws.
VOLATILE = ("created", "created_at", "completed_at", "queued_at")
DRAWN = re.compile(r"\b(modelperm|chatcmpl-tool|call|toolu|fc|msg|rs|resp|chatcmpl|cmpl)[-_][0-9a-zA-Z-]{8,}|\b[0-9a-f]{32}\b")


def level(value, names):
    """Takes out what may differ: times, and drawn ids, which are numbered by first appearance."""
    if isinstance(value, dict):
        return {k: 0 if k in VOLATILE else level(v, names) for k, v in value.items()}
    if isinstance(value, list):
        return [level(v, names) for v in value]
    if isinstance(value, str):
        return DRAWN.sub(lambda m: names.setdefault(m[0], f"{m[1] or 'id'}#{len(names)}"), value)
    return value


def difference(a, b, path="answer"):
    """Where two answers first differ, in words; None when they are equal."""
    if type(a) is not type(b):
        return f"{path}: {json.dumps(a)[:300]} and {json.dumps(b)[:300]}"
    if isinstance(a, dict):
        for key in {**a, **b}:
            if (key in a) != (key in b):
                return f"{path}.{key}: only {'straight' if key in a else 'through'}"
            if found := difference(a[key], b[key], f"{path}.{key}"):
                return found
        return None
    if isinstance(a, list):
        for number, (x, y) in enumerate(zip(a, b)):
            if found := difference(x, y, f"{path}[{number}]"):
                return found
        return None if len(a) == len(b) else f"{path}: {len(a)} and {len(b)} items"
    return None if a == b else f"{path}: {json.dumps(a)[:300]} and {json.dumps(b)[:300]}"


def same_answers(want, got):
    """Holds two lists of answers against each other."""
    must(len(want) == len(got) > 25, f"{len(want)} and {len(got)} answers")
    for a, b in zip(want, got):
        found = difference(level(a, {}), level(b, {}), a["name"])
        must(found is None, f"straight and through differ: {found}")


def calls(python, base, temperature=None):
    script = pathlib.Path(__file__).with_name("client_calls.py")
    argv = [str(python), str(script), base, MODEL, *([] if temperature is None else [str(temperature)])]
    done = subprocess.run(argv, stdout=subprocess.PIPE, check=True, timeout=300)
    return [json.loads(line) for line in done.stdout.splitlines()]


def libraries_test(kind, extra=()):
    """Two fresh engines with the same seed: one is called straight, the other through Tandem."""
    def test(folder):
        python = python_env("clients", PACKAGES)
        mock = ["--kind", kind, "--speedup", "instant", "--max-model-len", "32768"]
        straight = Fleet(folder / "straight", engines=1, model=MODEL, mock_args=mock)
        through = Fleet(folder / "through", engines=1, model=MODEL, mock_args=mock, serve_args=extra)
        try:
            want, got = calls(python, straight.urls[0]), calls(python, through.url)
            same_answers(want, got)
            errors = sum("error" in a for a in want)
            must(errors >= 6, f"only {errors} of the error calls failed")
            through.stop()
            inference = [a for a in want if a["name"] not in ("models", "messages count")]
            rows = through.rows()
            must(len(rows) == len(inference), f"{len(inference)} inference calls but {len(rows)} rows")
        finally:
            straight.kill()
            through.kill()
    return test


# ------------------------------------------------------------------ raw bytes

def raw(port, path, body, headers):
    """Sends one request over a socket and returns the body's bytes, without chunk framing."""
    data = json.dumps(body).encode()
    head = [f"POST {path} HTTP/1.1", f"host: {HOST}", "content-type: application/json", "connection: close",
            f"content-length: {len(data)}", *(f"{k}: {v}" for k, v in headers.items())]
    with socket.create_connection((HOST, port), timeout=60) as sock:
        sock.sendall("\r\n".join(head).encode() + b"\r\n\r\n" + data)
        answer = b""
        while chunk := sock.recv(65536):
            answer += chunk
    head, _, rest = answer.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head.lower():
        return head.split(b"\r\n")[0], rest
    out = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size.split(b";")[0], 16)
        out, rest = out + rest[:length], rest[length + 2:]
        if length == 0:
            break
    return head.split(b"\r\n")[0], out


def level_bytes(data):
    names = {}
    data = re.sub(rb'"(created|created_at|completed_at|queued_at)":\s?\d+(\.\d+)?', rb'"\1":0', data)
    pattern = re.compile(DRAWN.pattern.encode())
    return pattern.sub(lambda m: names.setdefault(m[0], b"%s#%d" % (m[1] or b"id", len(names))), data)


def by_choice(data):
    """The events of each choice in their order: how an engine interleaves two choices is a matter of timing."""
    events = data.split(b"\n\n")
    index = [re.search(rb'"choices":\[\{"index":(\d+)', event) for event in events]
    return sorted(zip([int(i[1]) if i else -1 for i in index], range(len(events)), events), key=lambda e: e[:2])


ASK = [{"role": "user", "content": "Tell me a story about caches. \u00e9\u4e16\U0001f600"}]
RAW = [
    ("/v1/chat/completions", {"messages": ASK, "max_tokens": 40}),
    ("/v1/chat/completions", {"messages": ASK, "max_tokens": 40, "stream_options": {"include_usage": True}}),
    ("/v1/chat/completions", {"messages": ASK, "max_tokens": 40, "stream_options": None}),
    ("/v1/chat/completions", {"messages": ASK, "max_tokens": 12, "n": 2}),
    ("/v1/completions", {"prompt": "once upon a time", "max_tokens": 40}),
    ("/v1/responses", {"input": "Tell me a story.", "max_output_tokens": 40}),
    ("/v1/messages", {"messages": ASK, "max_tokens": 40}),
]


def raw_test(kind):
    def test(folder):
        mock = ["--kind", kind, "--speedup", "instant"]
        straight = Fleet(folder / "straight", engines=1, model=MODEL, mock_args=mock)
        through = Fleet(folder / "through", engines=1, model=MODEL, mock_args=mock)
        try:
            engine = int(straight.urls[0].rsplit(":", 1)[1])
            for number, (path, body) in enumerate(RAW):
                body = {"model": MODEL, "stream": True, **body}
                headers = {"x-request-id": f"raw-{number}"}
                a, b = raw(engine, path, body, headers), raw(through.port, path, body, headers)
                must(a[0] == b[0], f"{path}: {a[0]} and {b[0]}")
                must(len(a[1]) > 200, f"{path}: only {len(a[1])} bytes")
                got, want = level_bytes(b[1]), level_bytes(a[1])
                if "n" in body:
                    got, want = ([e[2] for e in by_choice(x)] for x in (got, want))
                must(got == want, f"{path}: straight {a[1][:3000]!r}\nthrough {b[1][:3000]!r}")
            through.stop()
        finally:
            straight.kill()
            through.kill()
    return test


TESTS = [
    ("libraries-vllm", libraries_test("vllm")),
    ("libraries-sglang", libraries_test("sglang")),
    ("raw-bytes-vllm", raw_test("vllm")),
    ("raw-bytes-sglang", raw_test("sglang")),
]


def main():
    only = sys.argv[1:]
    python_env("clients", PACKAGES)
    isolate()
    return min(run_all(TESTS, only), 98)


if __name__ == "__main__":
    sys.exit(main())
