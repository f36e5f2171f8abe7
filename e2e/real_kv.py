"""Sessions against a real engine through `tandem serve --policy kv`: of every turn, what Tandem predicted the engine
to take from its cache, what the engine says it took, and what a plain index fed from the same events expects.

Shared by `real_kv_vllm.py`, `real_kv_sglang.py` and `real_kv_mooncake.py`.
"""
import contextlib
import copy
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

from lib import HOST, ROOT, Process, binary, free_port, get, isolate, must, run_all, until

# Longest wait for a state of another process: starting an engine takes minutes on a machine that does other things.
PATIENCE = 900
# Turns of each session before its Tandem is killed.
TURNS = int(os.environ.get("TANDEM_E2E_TURNS", "4"))


class Oracle:
    """`kv_oracle.py` under the engine's own interpreter."""

    def __init__(self, python, replay, log):
        self.log = open(log, "ab")
        self.proc = subprocess.Popen([str(python), str(ROOT / "e2e" / "kv_oracle.py"), replay], text=True,
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log)

    def ask(self, **question):
        self.proc.stdin.write(json.dumps(question) + "\n")
        self.proc.stdin.flush()
        line = self.proc.stdout.readline()
        must(line, f"the oracle ended; see {self.log.name}")
        return json.loads(line)

    def stop(self):
        self.proc.stdin.close()
        self.proc.wait(30)
        self.log.close()


class Engine:
    """A real engine on fixed ports, so that it can be started again in its place."""

    def __init__(self, folder, python, model, small=False):
        self.folder, self.python, self.model, self.small = folder, python, model, small
        self.port, self.events, self.replay = free_port(), free_port(), free_port()
        self.url = f"http://{HOST}:{self.port}"
        self.starts = 0
        self.process = None

    def start(self):
        self.starts += 1
        argv, env = self.command()
        log = self.folder / f"{self.kind}-{self.starts}.log"
        self.process = Process(argv, log, env={**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1",
                                               "DO_NOT_TRACK": "1", **env})
        until(f"a ready {self.kind}", self._ready, PATIENCE, 1)
        return self

    def _ready(self):
        must(self.process.proc.poll() is None, f"{self.kind} ended: {self.process.output()[-3000:]}")
        return get(f"{self.url}/health", timeout=20) is not None

    def emptied(self):
        """Drops the cache. SGLang refuses while it does anything, its health checks included."""
        request = urllib.request.Request(f"{self.url}/{self.drop}", method="POST")
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status == 200

    def oracle(self):
        return Oracle(self.python, f"tcp://{HOST}:{self.replay}", self.folder / "oracle.log")

    def kill(self):
        """Dies as a crashed process does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.proc.pid, signal.SIGKILL)
        self.process.proc.wait()

    def stop(self):
        if self.process:
            self.process.stop()


class Vllm(Engine):
    """vLLM 0.32. `small`: a cache of 1,536 tokens."""

    kind, block, drop = "vllm", 32, "reset_prefix_cache"

    def command(self, extra=(), env=()):
        events = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{self.events}",
                  "replay_endpoint": f"tcp://{HOST}:{self.replay}", "topic": "kv"}
        size = ["--num-gpu-blocks-override", "48", "--max-model-len", "1024"] if self.small else ["--max-model-len", "8192"]
        return [str(self.python), "-m", "vllm.entrypoints.openai.api_server", "--model", self.model,
                "--served-model-name", "tiny", "--host", HOST, "--port", str(self.port), "--dtype", "bfloat16",
                "--block-size", "32", "--enforce-eager", "--enable-prefix-caching", "--enable-prompt-tokens-details",
                "--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--enable-scale-out",
                "--distributed-executor-backend", "uni", "--kv-events-config", json.dumps(events), *size, *extra], {
                    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_HOST_IP": HOST,
                    "GLOO_SOCKET_IFNAME": "lo", "VLLM_SERVER_DEV_MODE": "1", **dict(env)}


class Sglang(Engine):
    """SGLang 0.5.23. `small`: a cache of 1,536 tokens."""

    kind, block, drop = "sglang", 16, "flush_cache"

    def command(self):
        events = {"publisher": "zmq", "topic": "kv-events", "endpoint": f"tcp://*:{self.events}",
                  "replay_endpoint": f"tcp://{HOST}:{self.replay}"}
        size = ["--max-total-tokens", "1536", "--context-length", "1024"] if self.small else [
            "--max-total-tokens", "16384", "--context-length", "8192"]
        return [str(self.python), "-m", "sglang.launch_server", "--model-path", self.model, "--served-model-name", "tiny",
                "--host", HOST, "--port", str(self.port), "--device", "cpu", "--dtype", "bfloat16",
                "--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--page-size", "16",
                "--disable-overlap-schedule", "--disable-cuda-graph", "--enable-metrics", "--enable-cache-report",
                "--tool-call-parser", "qwen25", "--sleep-on-idle", "--kv-events-config", json.dumps(events), *size], {
                    # One thread: two that wait for each other crawl on a machine that does other things.
                    "SGLANG_USE_CPU_ENGINE": "1", "SGLANG_CPU_OMP_THREADS_BIND": "1", "OMP_NUM_THREADS": "1",
                    "PYTHONPATH": str(ROOT / "e2e" / "shims" / "sglang")}


class Gateway:
    """`tandem serve --policy kv` that can be killed and started again."""

    def __init__(self, folder, urls, *args):
        # A state directory, where one is asked for, is in the folder.
        self.folder, self.urls, self.args = folder, urls, [*args, *([str(folder / "state")] if "--state-dir" in args else [])]
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port, self.admin_port, self.metrics_port = free_port(), free_port(), free_port()
        self.url, self.admin = f"http://{HOST}:{self.port}", f"http://{HOST}:{self.admin_port}"
        self.starts, self.process = 0, None

    def start(self):
        self.starts += 1
        argv = [binary(), "serve", "--worker-urls", *self.urls, "--host", HOST, "--port", str(self.port), "--admin-port",
                str(self.admin_port), "--prometheus-host", HOST, "--prometheus-port", str(self.metrics_port), "--policy", "kv", "--trace-path",
                str(self.folder / f"trace-{self.starts}.jsonl"), "--trace-format", "jsonl", *self.args]
        self.process = Process(argv, self.folder / f"tandem-{self.starts}.log")
        until("a ready gateway", self._ready, 120)
        return self

    def _ready(self):
        must(self.process.proc.poll() is None, f"tandem ended: {self.process.output()[-3000:]}")
        return get(f"{self.url}/readiness")

    def written(self):
        """Waits until nothing waits to be written to the state directory."""
        until("an empty queue", lambda: b"\ntandem_state_queue 0\n" in get(f"http://{HOST}:{self.metrics_port}/metrics"), 60)

    def crash(self):
        # Nothing runs where a test failed before the first start.
        if self.process is None:
            return
        self.process.proc.send_signal(signal.SIGKILL)
        self.process.proc.wait()

    def stop(self):
        self.process.stop()

    def kv(self):
        return json.loads(get(f"{self.admin}/kv"))

    def settled(self, live=True):
        """Waits until the events of every engine are followed and nothing new has come for a while."""
        seen = {"at": None, "since": time.monotonic()}

        def quiet():
            workers = self.kv()["workers"]
            at = json.dumps([stream(worker) for worker in workers], sort_keys=True)
            if at != seen["at"]:
                seen.update(at=at, since=time.monotonic())
            good = workers and all(stream(worker).get("state") == "live" for worker in workers)
            return (good or not live) and time.monotonic() - seen["since"] > 0.3
        until("quiet event streams", quiet, PATIENCE, 0.1)


def stream(worker):
    """The position of a worker's event stream in `GET /kv`."""
    events = worker.get("stream") or {}
    return {name: events.get(name) for name in ("state", "last_seq", "restarts", "batches")}


def post(url, body, headers=(), timeout=300):
    """Returns the answer's headers and its JSON (of a stream: its events)."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json", **dict(headers)})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            data = response.read()
            if "event-stream" in response.headers.get("content-type", ""):
                lines = (line[5:].strip() for line in data.decode().splitlines() if line.startswith("data:"))
                return response.headers, [json.loads(line) for line in lines if line != "[DONE]"]
            return response.headers, json.loads(data)
    except urllib.error.HTTPError as error:
        must(False, f"{url} answered {error.code}: {error.read()[:2000]}")


# ------------------------------------------------------------------ sessions

TOOL = {"name": "look", "description": "Looks at one side.", "parameters": {
    "type": "object", "properties": {"side": {"type": "string", "enum": ["left", "right"]}}, "required": ["side"]}}
RULES = " ".join(f"Rule {number}: answer in few words, and name the line." for number in range(14))
WORK = "Please look at the next function, say what it returns and where it is called from. "


class Session:
    """One agent's conversation. `echo`: the model's answers go back into the history, as a harness does it; `fixed`:
    written answers go back; `tools`: every other turn is a forced tool call; `edited`: now and then something earlier
    is changed, cut out or summarised."""

    def __init__(self, name, style="echo", salt=None, dialect="chat", stream=False, system=None, answer=20):
        self.name, self.style, self.salt, self.dialect, self.stream = name, style, salt, dialect, stream
        self.system = system or f"You are {name}. {RULES}"
        self.answer, self.turn, self.history = answer, 0, []

    def fork(self, name):
        child = copy.deepcopy(self)
        child.name = name
        return child

    def forced(self):
        return self.style == "tools" and self.turn % 2 == 0

    def body(self, kind):
        self.history.append({"role": "user", "content": f"{self.name} {self.turn}: " + WORK * 2})
        if self.style == "edited" and self.turn == 2:
            self.history[0]["content"] = "Summary: nothing was found so far. " + WORK
        if self.style == "edited" and self.turn == 4:
            del self.history[1:-1]
        limit = 96 if self.forced() else self.answer + self.turn
        if self.dialect == "responses":
            body = {"instructions": self.system, "input": copy.deepcopy(self.history), "max_output_tokens": limit, "store": False}
        elif self.dialect == "messages":
            body = {"system": self.system, "messages": copy.deepcopy(self.history), "max_tokens": limit}
        elif self.dialect == "ids":
            # Whole blocks for either engine, and every prompt twice: the last block is then computed again.
            seed = sum(map(ord, self.name))
            body = {"prompt": [8 + (seed * at) % 2000 for at in range(1, 64 * (2 + self.turn // 2) + 1)], "max_tokens": 2}
        elif self.dialect == "completions":
            body = {"prompt": self.system + "".join(f"\n{m['role']}: {m['content']}" for m in self.history), "max_tokens": limit}
        else:
            body = {"messages": [{"role": "system", "content": self.system}, *copy.deepcopy(self.history)], "max_tokens": limit}
            if kind == "sglang" and not self.stream:
                body["return_prompt_token_ids"] = True
        if self.dialect in ("chat", "completions", "ids"):
            if kind == "vllm":
                body["return_token_ids"] = True
            if self.salt:
                body["cache_salt"] = self.salt
            if not self.forced():
                body["ignore_eos"] = True
            if self.style == "tools":
                body["tools"] = [{"type": "function", "function": TOOL}]
            if self.forced():
                body["tool_choice"] = {"type": "function", "function": {"name": TOOL["name"]}}
            if self.stream:
                body["stream_options"] = {"include_usage": True}
        return {"model": "tiny", "temperature": 0, "stream": self.stream, **body}

    def take(self, answer):
        """Appends what a harness would send back of an answer."""
        said = text_of(answer, self.dialect)
        calls = (answer["choices"][0].get("message") or {}).get("tool_calls") if self.dialect == "chat" and not self.stream else None
        if calls:
            self.history.append({"role": "assistant", "content": None, "tool_calls": calls})
            self.history += [{"role": "tool", "tool_call_id": call["id"], "content": f"Side {self.turn} is clear. " * 4}
                             for call in calls]
        else:
            words = said if self.style in ("echo", "tools") else f"Answer {self.turn}: it returns nothing."
            self.history.append({"role": "assistant", "content": words or "(nothing)"})
        self.turn += 1


PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages",
         "completions": "/v1/completions", "ids": "/v1/completions"}


def text_of(answer, dialect):
    if isinstance(answer, list):
        parts = [choice for event in answer for choice in event.get("choices") or []]
        if dialect in ("completions", "ids"):
            return "".join(part.get("text") or "" for part in parts)
        return "".join((part.get("delta") or {}).get("content") or "" for part in parts)
    if dialect == "responses":
        return "".join(part.get("text") or "" for item in answer["output"] for part in item.get("content") or [])
    if dialect == "messages":
        return "".join(part.get("text") or "" for part in answer["content"])
    choice = answer["choices"][0]
    return choice.get("text") or (choice.get("message") or {}).get("content") or ""


def usage_of(answer):
    """Prompt tokens and of these cached ones, of any dialect; None where the engine does not say."""
    events = answer if isinstance(answer, list) else [answer]
    usage = next(event["usage"] for event in reversed(events) if event.get("usage"))
    if "cache_read_input_tokens" in usage:
        made = usage.get("cache_creation_input_tokens") or 0
        read = usage["cache_read_input_tokens"] or 0
        return usage["input_tokens"] + made + read, read
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    return usage.get("prompt_tokens", usage.get("input_tokens")), details.get("cached_tokens")


def tokens_of(answer):
    """The prompt's token ids, where the engine tells them."""
    for event in answer if isinstance(answer, list) else [answer]:
        for holder in [event, *(event.get("choices") or [])]:
            if holder.get("prompt_token_ids"):
                return holder["prompt_token_ids"]
    return None


class Ledger:
    """Turns by mode, and the table of them."""

    def __init__(self):
        self.rows = []

    def turn(self, mode, engine, gateway, oracle, session):
        """Sends a session's next turn once all is quiet; writes down what was predicted, reported and expected."""
        gateway.settled()
        oracle.ask(read=True)
        body = session.body(engine.kind)
        headers, answer = post(gateway.url + PATHS[session.dialect], body,
                               {"x-tandem-session-id": session.name, "x-tandem-explain": "1"})
        prompt, cached = usage_of(answer)
        tokens = body["prompt"] if session.dialect == "ids" else tokens_of(answer)
        row = {"mode": mode, "session": session.name, "turn": session.turn, "prompt": prompt, "cached": cached or 0,
               "predicted": int(headers.get("x-tandem-predicted-cached-tokens") or 0),
               "claim": headers.get("x-tandem-prediction") or "unknown", "block": engine.block,
               "source": headers.get("x-tandem-prompt-source"), "counted": headers.get("x-tandem-prompt-tokens"),
               "reason": headers.get("x-tandem-route-reason"),
               "oracle": oracle.ask(tokens=tokens, salt=session.salt)["cached"] if tokens else None}
        self.rows.append(row)
        if wrong(row) or row["predicted"] != row["cached"]:
            print("   wrong:" if wrong(row) else "   differs:", json.dumps(row), flush=True)
        session.take(answer)
        return row

    def table(self):
        """Markdown: per mode and per claim how many predictions equalled the engine's figure, and how far off the
        others are."""
        lines = ["| mode | sources | turns | with a hit | equal | said to be exact: equal | approximate: equal, within a block "
                 "| estimated: equal | unknown | largest difference | oracle equal |",
                 "|---|---|---|---|---|---|---|---|---|---|---|"]
        for mode in dict.fromkeys(row["mode"] for row in self.rows):
            rows = [row for row in self.rows if row["mode"] == mode]
            said = [row for row in rows if row["claim"] != "unknown"]
            seen = [row for row in rows if row["oracle"] is not None]
            sources = ", ".join(sorted({str(row["source"]) for row in rows}))

            def share(claim, within=None):
                of = [row for row in rows if row["claim"] == claim]
                counts = [sum(off(row) == 0 for row in of)] + ([sum(off(row) <= row["block"] for row in of)] if within else [])
                return f"{', '.join(map(str, counts))} of {len(of)}"
            lines.append(f"| {mode} | {sources} | {len(rows)} | {sum(row['cached'] > 0 for row in rows)} | "
                         f"{sum(off(row) == 0 for row in said)} | {share('exact')} | {share('approximate', True)} | "
                         f"{share('estimated')} | {len(rows) - len(said)} | {max([off(row) for row in said], default=0)} | "
                         f"{sum(row['oracle'] == row['cached'] for row in seen)} of {len(seen)} |")
        return "\n".join(lines)

    def unequal(self):
        """Turns of which Tandem promised what did not come."""
        return [row for row in self.rows if wrong(row)]


def off(row):
    return abs(row["predicted"] - row["cached"])


def wrong(row):
    """What is said to be exact must be, what is approximate may be off by a block. Only lineage may say less: of what
    an edit or another session left it knows no bounds, and of a first prompt nothing."""
    if row["mode"] == UNTOLD:
        return False
    if row["claim"] == "exact":
        return off(row) > 0
    if row["claim"] == "approximate":
        return off(row) > row["block"]
    # What a store holds is never called exact, but is to be right.
    return off(row) > 0 if "Mooncake" in row["mode"] else "lineage" not in row["mode"]


def sessions(prefix=""):
    """Conversations of every style, some with a beginning in common."""
    common = f"You work for {prefix or 'the house'}. {RULES}"
    return [
        Session(f"{prefix}echo"),
        Session(f"{prefix}fixed", style="fixed"),
        Session(f"{prefix}tools", style="tools"),
        Session(f"{prefix}edited", style="edited"),
        Session(f"{prefix}common-1", style="fixed", system=common),
        Session(f"{prefix}common-2", system=common),
        Session(f"{prefix}salt-a", style="fixed", salt="tenant-a", system=common),
        Session(f"{prefix}salt-b", style="fixed", salt="tenant-b", system=common),
        Session(f"{prefix}stream", stream=True),
        Session(f"{prefix}completions", dialect="completions"),
        Session(f"{prefix}ids", dialect="ids"),
        Session(f"{prefix}responses", dialect="responses"),
        Session(f"{prefix}messages", dialect="messages"),
    ]


def round_robin(ledger, mode, engine, gateway, oracle, agents, turns):
    for _ in range(turns):
        for agent in agents:
            ledger.turn(mode, engine, gateway, oracle, agent)


# ------------------------------------------------------------------ the suites

ENGINES = {"vllm": Vllm, "sglang": Sglang}
# vLLM says that its cache was emptied only when it works the next time: nobody can know before that.
UNTOLD = "first turn after the cache was emptied, not told yet"


def tests(kind, python, model):
    """Engines take minutes to start, so each test gets out of one what it can. Every table is printed even when a
    prediction differs; the test fails then."""
    local, lineage = ["--tokenizer", model], ["--kv-sources", "lineage"]

    def with_engine(work, small=False):
        def test(folder):
            engine = ENGINES[kind](folder, python(), model, small)
            ledger = Ledger()
            gateways = []

            def gateway(name, *args):
                gateways.append(Gateway(folder / name, [engine.url], *args))
                return gateways[-1].start()
            try:
                engine.start()
                oracle = engine.oracle()
                work(engine, gateway, oracle, ledger)
                oracle.stop()
            finally:
                if ledger.rows:
                    print(ledger.table(), flush=True)
                for one in gateways:
                    one.crash()
                engine.stop()
            must(not ledger.unequal(), f"{len(ledger.unequal())} predictions differ")
        return test

    def roomy(engine, gateway, oracle, ledger):
        first = gateway("local", *local)
        agents = sessions("local-")
        round_robin(ledger, "local tokenizer", engine, first, oracle, agents, TURNS)
        child = agents[1].fork("local-child")
        ledger.turn("local tokenizer", engine, first, oracle, child)
        first.crash()
        first.start()
        round_robin(ledger, "local tokenizer, Tandem killed and started again", engine, first, oracle, [*agents, child], 1)
        first.crash()
        second = gateway("lineage", *lineage)
        agents = sessions("lineage-")
        round_robin(ledger, "lineage only", engine, second, oracle, agents, TURNS)
        second.crash()
        second.start()
        round_robin(ledger, "lineage only, Tandem killed and started again", engine, second, oracle, agents, 1)
        second.crash()
        kept = gateway("kept", *lineage, "--state-dir")
        agents = sessions("kept-")
        round_robin(ledger, "lineage only, state directory", engine, kept, oracle, agents, TURNS)
        kept.written()
        kept.crash()
        kept.start()
        round_robin(ledger, "lineage only, state directory, Tandem killed and started again", engine, kept, oracle, agents, 2)
        kept.crash()
        restarted(engine, gateway("restart", *local), oracle, ledger)

    def restarted(engine, front, oracle, ledger):
        agents = sessions("again-")[:5]
        round_robin(ledger, "before the engine's restart", engine, front, oracle, agents, 2)
        engine.kill()
        engine.start()
        round_robin(ledger, "engine killed and started again", engine, front, oracle, agents, 3)
        until("an emptied cache", engine.emptied, PATIENCE, 1)
        ledger.turn(UNTOLD, engine, front, oracle, agents[0])
        round_robin(ledger, "engine's cache emptied", engine, front, oracle, agents, 2)

    def crowded(engine, gateway, oracle, ledger):
        for mode, args in (("local tokenizer", local), ("lineage only", lineage),
                           ("lineage only, state directory", [*lineage, "--state-dir"])):
            name = mode.replace("lineage only, ", "").split()[0]
            front = gateway(f"small-{name}", *args)
            agents = [Session(f"{name[:5]}-{style}", style, answer=24) for style in ("echo", "fixed", "tools", "echo")]
            for at, agent in enumerate(agents):
                agent.name += f"-{at}"
            round_robin(ledger, f"evictions, {mode}", engine, front, oracle, agents, TURNS)
            if "--state-dir" in args:
                front.written()
            front.crash()
            front.start()
            round_robin(ledger, f"evictions, {mode}, Tandem killed and started again", engine, front, oracle, agents[:2], 1)
            front.crash()

    return [(f"{kind}-sessions", with_engine(roomy)), (f"{kind}-evictions", with_engine(crowded, small=True))]


def main(kind, python, usage):
    if len(sys.argv) < 2:
        print(usage)
        return 2
    model, only = os.path.abspath(sys.argv[1]), sys.argv[2:]
    python()
    isolate()
    return min(run_all(tests(kind, python, model), only), 98)
