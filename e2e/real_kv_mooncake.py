#!/usr/bin/env python3
"""Tandem's index of a shared store against a real Mooncake master 0.3.14 and its client, on loopback.

    python3 e2e/real_kv_mooncake.py MODEL_DIR [NAME...]

`mooncake-day`: puts in several layouts and tenants, removals, evictions at the watermark, killed clients, cut event
connections, restarts of the master: after each phase the index must come to equal the master's own list of keys.
`mooncake-vllm`: a real vLLM 0.32 that stores its blocks there: a block that is told of three times (by the device,
by the worker's store connector and by the master) counts once, and a prompt whose blocks were evicted on the device
is predicted as it is loaded back.

`TANDEM_MOONCAKE_PYTHON` names an interpreter with the client, `TANDEM_MOONCAKE_MASTER` the master's binary,
`TANDEM_VLLM_PYTHON` an interpreter with vLLM and the client; what is not named is downloaded at the first run.
"""
import contextlib
import hashlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

from lib import CACHE, HOST, ROOT, Process, binary, free_port, get, must, python_env, run_all, until
from real_kv import PATIENCE, Gateway, Ledger, Session, Vllm, post, round_robin
from real_vllm import vllm_python

MASTER, CLIENT = "mooncake-transfer-engine-cuda13==0.3.14", "mooncake-transfer-engine-non-cuda==0.3.13.post1"


def master_binary():
    if os.environ.get("TANDEM_MOONCAKE_MASTER"):
        return pathlib.Path(os.environ["TANDEM_MOONCAKE_MASTER"])
    venv = python_env("mooncake-master", [MASTER]).parent.parent
    return next(venv.glob("lib/python3*/site-packages/mooncake/mooncake_master"))


def client_python():
    return pathlib.Path(os.environ.get("TANDEM_MOONCAKE_PYTHON") or python_env("mooncake", [CLIENT]))


class Master:
    """A master on fixed ports, so that it can be started again in its place."""

    def __init__(self, folder, *flags):
        self.folder, self.flags, self.starts = folder, flags, 0
        self.rpc, self.http, self.metrics, self.events = (free_port() for _ in range(4))
        self.admin = f"http://{HOST}:{self.metrics}"

    def start(self):
        self.starts += 1
        path = master_binary()
        self.process = Process(
            [str(path), f"--rpc_address={HOST}", f"--rpc_port={self.rpc}", "--enable_http_metadata_server=true",
             f"--http_metadata_server_host={HOST}", f"--http_metadata_server_port={self.http}", f"--metrics_host={HOST}",
             f"--metrics_port={self.metrics}", "--enable_kv_events=true", "--kv_events_backend_id=mc-0",
             f"--kv_events_bind_endpoint=tcp://{HOST}:{self.events}", "--default_kv_lease_ttl=500",
             "--client_active_ttl_sec=3", "--client_suspicion_ttl_sec=2", *self.flags],
            self.folder / f"master-{self.starts}.log", env={**os.environ, "LD_LIBRARY_PATH": str(path.parent)})
        until("a ready master", lambda: get(f"{self.admin}/health"), PATIENCE, 0.2)
        status = json.loads(get(f"{self.admin}/kv_events/status"))
        must(status["enabled"], f"the master publishes no events: {status}")
        return self

    def keys(self):
        return set(get(f"{self.admin}/get_all_keys", timeout=30).decode().split())

    def counts(self):
        return json.loads(get(f"{self.admin}/kv_events/status"))

    def crash(self):
        os.killpg(self.process.proc.pid, signal.SIGKILL)
        self.process.proc.wait()

    def stop(self):
        self.process.stop()


class Client:
    """`mooncake_client.py` in a process of its own, with a segment of its own."""

    def __init__(self, folder, master, segment=16 << 20, tenant=None):
        self.errors = open(folder / "clients.log", "ab")
        self.proc = subprocess.Popen(
            [str(client_python()), str(ROOT / "e2e" / "mooncake_client.py"), f"{HOST}:{free_port()}",
             f"http://{HOST}:{master.http}/metadata", f"{HOST}:{master.rpc}", str(segment), *([tenant] if tenant else [])],
            text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors)
        must(self._answer() == [0], "the client could not set itself up")

    def _answer(self):
        line = self.proc.stdout.readline()
        must(line, f"the client ended; see {self.errors.name}")
        return json.loads(line)["codes"]

    def do(self, **order):
        self.proc.stdin.write(json.dumps(order) + "\n")
        self.proc.stdin.flush()
        return self._answer()

    def put(self, keys, size=16 << 10):
        """Returns the keys that the store took."""
        return {key for key, code in zip(keys, self.do(put=list(keys), bytes=size)) if code == 0}

    def remove(self, keys):
        """Removes them once nobody has a lease on them."""
        left = list(keys)

        def work():
            nonlocal left
            left = [key for key, code in zip(left, self.do(remove=left)) if code not in (0, -704)]
            return not left
        until("removal", work, 60, 0.2)

    def kill(self):
        self.proc.kill()
        self.proc.wait()


class Cutter:
    """A TCP proxy before the event socket whose connections can be cut, and which can refuse new ones."""

    def __init__(self, target):
        self.target, self.open, self.pairs, self.made = target, True, [], 0
        self.server = socket.create_server((HOST, 0))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self.server.accept()
            except OSError:
                return
            try:
                must(self.open, "closed")
                far = socket.create_connection((HOST, self.target), 5)
            except (OSError, AssertionError):
                near.close()
                continue
            self.made += 1
            self.pairs += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    @staticmethod
    def _pump(source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self, stay_closed=False):
        self.open = not stay_closed
        pairs, self.pairs = self.pairs, []
        for end in pairs:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def page(layout, number):
    return hashlib.sha256(f"{layout} {number}".encode()).hexdigest()


def vllm_keys(head, ranks):
    def keys(number):
        return [f"{head}@tp_rank:{rank}@pcp0@dcp0@pp_rank:0@group:0@{page(head, number)}" for rank in range(ranks)]
    return keys


def sglang_keys(head, ranks, mla=False):
    def keys(number):
        name = f"{head}_{page(head, number)}"
        return [f"{name}__k"] if mla else [f"{name}_{rank}_{part}" for rank in range(ranks) for part in "kv"]
    return keys


# What lies in the store: the engine's kind, its model, the objects of a page, and how Tandem is told of them.
LAYOUTS = [
    ("vllm", "tiny", vllm_keys("tiny", 1), "head=tiny"),
    ("vllm", "wide", vllm_keys("prefix@wide", 2), "head=prefix@wide,tp=2"),
    ("sglang", "pages", sglang_keys("pages", 2), "head=pages,tp=2"),
    ("sglang", "deep", sglang_keys("tag_deep", 1, mla=True), "head=tag_deep,mla=true"),
]
# The same names in another tenant of the store, of which the master lists nothing.
OTHERS = ("vllm", "theirs", vllm_keys("tiny", 1), "head=tiny,tenant=blue")


class Day:
    """The script's memory: every key that was ever put, and how each phase went."""

    def __init__(self, master, gateway):
        self.master, self.gateway, self.ever, self.rows = master, gateway, set(), []

    def contains(self, keys):
        _, answer = post(f"{self.gateway.admin}/kv/store/contains", keys)
        must(len(answer) == len(keys), f"asked of {len(keys)} keys, answered of {len(answer)}")
        return {key for key, there in zip(keys, answer) if there}

    def phase(self, name):
        """Waits until the index equals the master's list; notes how wrong it was at first and how long it took."""
        keys = sorted(self.ever)
        must(self.master.keys() <= self.ever, "the store holds keys that nobody put")
        first, start, seen = None, time.monotonic(), {}

        def equal():
            nonlocal first
            before = self.master.keys()
            got = self.contains(keys)
            seen.update(there=len(before), ghosts=len(got - before), missing=len(before - got))
            first = first or dict(seen)
            return before == got and self.master.keys() == before
        try:
            until("an index that equals the store", equal, 300, 0.2)
        finally:
            row = {"phase": name, "keys": seen.get("there"), "ever": len(keys), "ghosts at first": first["ghosts"],
                   "missing at first": first["missing"], "equal after": round(time.monotonic() - start, 1),
                   "left": [seen.get("ghosts"), seen.get("missing")], "published": self.master.counts()["published_events"]}
            self.rows.append(row)
            print("  ", json.dumps(row), flush=True)

    def put(self, client, pages, size=16 << 10):
        taken = set()
        for _, _, keys, _ in LAYOUTS:
            wanted = [key for number in pages for key in keys(number)]
            self.ever |= set(wanted)
            taken |= client.put(wanted, size)
        return taken


def mock_engine(folder, kind, model):
    port = free_port()
    process = Process([binary(), "mock-engine", "--host", HOST, "--port", str(port), "--model", model, "--kind", kind,
                       "--no-kv-events"], folder / f"mock-{model}.log")
    url = f"http://{HOST}:{port}"
    until("a ready engine", lambda: get(f"{url}/v1/models"), 120)
    return process, url


def day(folder):
    quotas = folder / "quotas.json"
    quotas.write_text(json.dumps({"version": 1, "tenants": [{"name": "default", "quota": 1 << 30},
                                                            {"name": "blue", "quota": 1 << 30}]}))
    master = Master(folder, "--enable_multi_tenants=true", f"--tenant_quota_connector_uri={quotas}").start()
    proxy = Cutter(master.events)
    engines = [mock_engine(folder, kind, model) for kind, model, _, _ in [*LAYOUTS, OTHERS]]
    stores = [part for kind, model, _, layout in [*LAYOUTS, OTHERS] for part in (
        "--kv-store", f"events=tcp://{HOST}:{proxy.port},admin={master.admin},kind={kind},model={model},{layout}")]
    gateway = Gateway(folder, [url for _, url in engines], *stores)
    clients = []
    try:
        clients = [Client(folder, master) for _ in range(3)]
        gateway.start()
        script = Day(master, gateway)
        script.put(clients[0], range(20))
        script.phase("first puts")
        for at, client in enumerate(clients):
            script.put(client, range(20 + at * 10, 30 + at * 10))
        script.phase("puts of three clients")
        others = Client(folder, master, tenant="blue")
        clients.append(others)
        others.put([key for number in range(60, 90) for key in OTHERS[2](number)])
        others.put([key for number in range(5) for key in OTHERS[2](number)])
        script.ever |= {key for number in range(60, 90) for key in OTHERS[2](number)}
        script.phase("another tenant's puts, under the same names")
        clients[1].remove([key for _, _, keys, _ in LAYOUTS for number in range(5) for key in keys(number)])
        script.phase("removals")
        clients[2].do(remove_regex="^pages_.*_1_v$")
        script.phase("removal by pattern: SGLang pages that lack one part")
        script.put(clients[1], range(5))
        script.phase("put again what was removed")
        before = master.keys()
        at = 0
        while not before - master.keys():
            must(at < 60, "nothing was evicted")
            script.put(clients[at % 3], range(100 + at * 8, 108 + at * 8), size=192 << 10)
            at += 1
        script.phase("evictions at the watermark, which nobody publishes")
        held = master.keys()
        clients[2].kill()
        until("the master to drop the dead client's keys", lambda: len(master.keys()) < len(held), PATIENCE, 0.2)
        script.phase("a client killed")
        proxy.cut()
        script.put(clients[0], range(200, 205))
        script.phase("connection cut once")
        proxy.cut(stay_closed=True)
        script.put(clients[1], range(205, 215))
        clients[0].remove(sorted(master.keys())[:10])
        script.phase("publisher out of reach")
        proxy.open = True
        script.put(clients[0], range(215, 220))
        script.phase("publisher back")
        gateway.crash()
        script.put(clients[0], range(220, 230))
        gateway.start()
        script.phase("Tandem killed and started again")
        clients[0].do(remove_all=True)
        script.phase("everything removed")
        script.put(clients[1], range(300, 320))
        script.phase("puts after that")
        master.crash()
        for client in clients:
            client.kill()
        proxy.cut()
        master.start()
        clients = [Client(folder, master) for _ in range(2)]
        script.put(clients[0], range(310, 330))
        script.phase("master and clients restarted")
        for client in clients:
            client.kill()
        until("the master to drop everything", lambda: not master.keys(), PATIENCE, 0.2)
        script.phase("all clients dead")
        print(json.dumps({"store": gateway.kv().get("store"), "connections": proxy.made})[:4000], flush=True)
        gateway.stop()
    finally:
        for process, _ in engines:
            process.stop()
        for client in clients:
            client.kill()
        with contextlib.suppress(OSError):
            gateway.crash()
        master.stop()


class VllmOnMooncake(Vllm):
    """A small cache on the device, and the store behind it."""

    def __init__(self, folder, python, model, master):
        super().__init__(folder, python, model, small=True)
        self.config = folder / "mooncake.json"
        self.config.write_text(json.dumps({
            "metadata_server": f"http://{HOST}:{master.http}/metadata", "master_server_address": f"{HOST}:{master.rpc}",
            "protocol": "tcp", "device_name": "", "global_segment_size": 256 << 20, "local_buffer_size": 64 << 20}))

    def command(self):
        transfer = {"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both"}
        return super().command(["--kv-transfer-config", json.dumps(transfer)], {
            "MOONCAKE_CONFIG_PATH": str(self.config), "PYTHONPATH": str(ROOT / "e2e" / "shims" / "mooncake")})


def loop(model):
    def test(folder):
        master = Master(folder).start()
        engine = VllmOnMooncake(folder, vllm_python(), model, master)
        head = pathlib.Path(model).name
        gateway = Gateway(folder, [engine.url], "--tokenizer", model, "--kv-store",
                          f"events=tcp://{HOST}:{master.events},admin={master.admin},kind=vllm,head={head}")
        ledger = Ledger()
        try:
            engine.start()
            gateway.start()
            oracle = engine.oracle()
            agents = [Session(f"store-{at}", style="fixed") for at in range(6)]
            round_robin(ledger, "vLLM + Mooncake", engine, gateway, oracle, agents, 3)
            # The oracle knows the device only: what goes beyond it came back from the store.
            back = [row for row in ledger.rows if row["cached"] > row["oracle"]]
            must(back, "nothing was ever loaded back from the store")
            print(ledger.table(), flush=True)
            print(f"  {len(back)} turns took blocks from the store, {sum(r['cached'] - r['oracle'] for r in back)} tokens; "
                  f"{len(master.keys())} objects", flush=True)
            must(not ledger.unequal(), f"{len(ledger.unequal())} predictions differ")
            oracle.stop()
            gateway.stop()
        finally:
            with contextlib.suppress(OSError):
                gateway.crash()
            engine.stop()
            master.stop()
    return test


def main():
    if len(sys.argv) < 2:
        print(__doc__)
        return 2
    model, only = os.path.abspath(sys.argv[1]), sys.argv[2:]
    master_binary()
    client_python()
    # Without isolation: where loopback is the only interface, the client finds no address and gives up.
    return min(run_all([("mooncake-day", day), ("mooncake-vllm", loop(model))], only), 98)


if __name__ == "__main__":
    sys.exit(main())
