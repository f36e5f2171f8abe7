#!/usr/bin/env python3
"""Real coding agents through Tandem, against modelled engines that play the model's part.

    python3 e2e/harnesses.py [NAME...]

Each test holds a session with tool calls; what the trace says of sessions, agents and parents must equal what the
agents sent, side calls must not be turns, and no call may reach an engine twice. What was sent is read from the
engines' own record of the wire, by rules written here independently of the product's.
"""
import collections
import json
import os
import pathlib
import subprocess
import sys
import uuid

from lib import Failed, Fleet, Skip, isolate, must, node, npm_install, run_all

VERSIONS = {
    "@anthropic-ai/claude-code": "2.1.332",
    "@openai/codex": "0.171.0",
    "@earendil-works/pi-coding-agent": "1.6.0",
    "opencode-ai": "1.18.33",
}
PROMPT = "List the files here, then tell me how many there are."
SPAWN = "Use two subagents to look around, then report. [[spawn 2]]"
PATIENCE = 150  # seconds in which a harness must end


def modules(package):
    folder = package.strip("@").replace("/", "-")
    return npm_install(folder, [f"{package}@{VERSIONS[package]}"])


def run(argv, folder, env, codes=(0,)):
    """Runs a harness to its end in a small repository of its own."""
    timeout = PATIENCE
    home, work = folder / "home", folder / "repo"
    home.mkdir(exist_ok=True)
    work.mkdir(exist_ok=True)
    (work / "README.md").write_text("# a small project\n")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("ANTHROPIC", "OPENAI", "CLAUDE", "CODEX"))}
    full = {**clean, "HOME": str(home), "NO_COLOR": "1", "CI": "1", "SHELL": "/bin/bash", **env}
    try:
        done = subprocess.run([str(a) for a in argv], cwd=work, env=full, stdin=subprocess.DEVNULL, timeout=timeout,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{argv[0]} did not end within {timeout} s: {(error.output or b'')[-2000:]!r}") from error
    (folder / "harness.log").write_bytes(done.stdout)
    must(done.returncode in codes, f"{argv[0]} ended with {done.returncode}: {done.stdout[-2000:]!r}")
    return done.stdout.decode(errors="replace")


# ------------------------------------------------------------------ what the wire says

def on_the_wire(call):
    """(session id as traced, parent id as traced, is a turn) of one call, by each harness's documented headers."""
    headers, body = call["headers"], json.loads(call["body"])
    if "x-claude-code-session-id" in headers:
        root, agent = headers["x-claude-code-session-id"], headers.get("x-claude-code-agent-id")
        title = body.get("tools") == [] and "format" in body.get("output_config", {})
        if agent is None:
            return root, None, not title
        return agent, headers.get("x-claude-code-parent-agent-id", root), not title
    if "thread-id" in headers:
        meta = json.loads(headers.get("x-codex-turn-metadata", "{}"))
        return headers["thread-id"], headers.get("x-codex-parent-thread-id"), meta.get("request_kind", "turn") == "turn"
    if "x-session-id" in headers:
        return headers["x-session-id"], headers.get("x-parent-session-id"), bool(body.get("tools"))
    for name in ("session_id", "session-id", "x-session-affinity"):
        if name in headers:
            return headers[name], None, True
    if "prompt_cache_key" in body:
        return body["prompt_cache_key"], None, True
    return None, None, True


def check(fleet, sessions, tool_turns, sides=0):
    """Compares the trace with the wire. `sessions`: how many programs there must be."""
    fleet.stop()
    calls, rows = fleet.wire(), fleet.rows()
    must(calls, "no call reached an engine")
    repeats = [n for n in collections.Counter((c["path"], c["body_xxh3"]) for c in calls).values() if n > 1]
    must(not repeats, f"{len(repeats)} calls reached an engine more than once")
    must(len(rows) == len(calls), f"{len(calls)} calls on the wire but {len(rows)} rows in the trace")
    want = collections.Counter(on_the_wire(call) for call in calls)
    got = collections.Counter()
    for row in rows:
        context = row.get("agent_context") or {}
        turn = row["tandem"]["class"] == "turn"
        got[(context.get("session_id"), context.get("parent_session_id"), turn)] += 1
        must(row["tandem"]["outcome"]["result"] == "finished", f"a row ended as {row['tandem']['outcome']}")
        must(row["request"]["input_tokens"] > 0, "a row has no prompt tokens")
    must(got == want, f"the trace tells {sorted(got.items(), key=str)}, the wire {sorted(want.items(), key=str)}")
    programs = {key[0] for key in want if key[2]}
    must(len(programs) == sessions, f"{len(programs)} programs, expected {sessions}: {sorted(map(str, programs))}")
    side = sum(n for (_, _, turn), n in want.items() if not turn)
    must(side == sides or sides is None, f"{side} side calls, expected {sides}")
    with_tools = sum(bool(row["request"].get("finish_reason_metadata", {}).get("tool_calls")) for row in rows)
    must(with_tools >= tool_turns, f"{with_tools} turns ended with tool calls, expected {tool_turns}")
    must(None not in programs or sessions == 1, "a program without identity")
    return rows


# ------------------------------------------------------------------ harnesses

def claude(folder, fleet, prompt, *args):
    found = modules("@anthropic-ai/claude-code") / "@anthropic-ai" / "claude-code-linux-x64" / "claude"
    must(found.exists(), f"{found} is not there")
    env = {"ANTHROPIC_BASE_URL": fleet.url, "ANTHROPIC_API_KEY": "test-key", "DISABLE_TELEMETRY": "1", "IS_SANDBOX": "1",
           "DISABLE_ERROR_REPORTING": "1", "DISABLE_AUTOUPDATER": "1", "CLAUDE_CODE_GATEWAY_HINT_HEADERS": "1"}
    return run([found, "-p", prompt, "--model", fleet.model, "--dangerously-skip-permissions", *args], folder, env)


def test_claude_code(folder):
    modules("@anthropic-ai/claude-code")
    fleet = Fleet(folder, engines=2, mock_args=["--agent", "2"])
    try:
        session = str(uuid.uuid4())
        claude(folder, fleet, PROMPT, "--session-id", session)
        rows = check(fleet, sessions=1, tool_turns=2)
        must({r["agent_context"]["session_id"] for r in rows} == {session}, "the session is not the one that was set")
        must(len({json.dumps(r["request"]["worker"], sort_keys=True) for r in rows}) == 1, "the session moved")
    finally:
        fleet.kill()


def test_claude_code_subagents(folder):
    modules("@anthropic-ai/claude-code")
    fleet = Fleet(folder, engines=2, mock_args=["--agent", "1"])
    try:
        session = str(uuid.uuid4())
        claude(folder, fleet, SPAWN, "--session-id", session)
        rows = check(fleet, sessions=3, tool_turns=3)
        parents = {r["agent_context"].get("parent_session_id") for r in rows}
        must(parents == {None, session}, f"parents are {parents}")
    finally:
        fleet.kill()


def codex(folder, fleet, prompt, resume=False):
    base = modules("@openai/codex") / "@openai" / "codex-linux-x64" / "vendor"
    found = next(base.glob("*/bin/codex"), None) or next(base.glob("*/codex/codex"), None)
    must(found, f"no codex under {base}")
    config = folder / "home" / ".codex"
    config.mkdir(parents=True, exist_ok=True)
    (config / "config.toml").write_text(
        f'model = "{fleet.model}"\nmodel_provider = "tandem"\n[model_providers.tandem]\nname = "tandem"\n'
        f'base_url = "{fleet.url}/v1"\nenv_key = "TANDEM_KEY"\nwire_api = "responses"\nsupports_websockets = true\n')
    argv = [found, "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    argv += ["resume", "--last", prompt] if resume else [prompt]
    return run(argv, folder, {"TANDEM_KEY": "test-key"})


def test_codex(folder):
    modules("@openai/codex")
    fleet = Fleet(folder, engines=2, mock_args=["--agent", "2"])
    try:
        codex(folder, fleet, PROMPT)
        check(fleet, sessions=1, tool_turns=2)
    finally:
        fleet.kill()


def test_codex_subagents(folder):
    modules("@openai/codex")
    fleet = Fleet(folder, engines=2, mock_args=["--agent", "1"])
    try:
        codex(folder, fleet, SPAWN)
        rows = check(fleet, sessions=3, tool_turns=3)
        roots = {r["agent_context"]["session_id"] for r in rows if not r["agent_context"].get("parent_session_id")}
        parents = {r["agent_context"].get("parent_session_id") for r in rows} - {None}
        must(len(roots) == 1 and parents == roots, f"roots {roots}, parents {parents}")
    finally:
        fleet.kill()


def pi(folder, fleet, api, session, codes=(0,)):
    binary, _ = node()
    home = modules("@earendil-works/pi-coding-agent")
    package = home / "@earendil-works" / "pi-coding-agent"
    entry = json.loads((package / "package.json").read_text())["bin"]
    entry = package / (entry if isinstance(entry, str) else entry["pi"])
    config = folder / "home" / ".pi" / "agent"
    config.mkdir(parents=True, exist_ok=True)
    base = fleet.url if api == "anthropic-messages" else f"{fleet.url}/v1"
    provider = {"baseUrl": base, "api": api, "apiKey": "test-key", "compat": {"sendSessionAffinityHeaders": True},
                "models": [{"id": fleet.model, "name": fleet.model, "contextWindow": 131072, "maxTokens": 8192}]}
    (config / "models.json").write_text(json.dumps({"providers": {"tandem": provider}}))
    argv = [binary, entry, "-p", PROMPT, "--provider", "tandem", "--model", fleet.model, "--session-id", session]
    env = {"PI_OFFLINE": "1", "PI_TELEMETRY": "0", "PATH": f"{pathlib.Path(binary).parent}:{os.environ['PATH']}"}
    return run(argv, folder, env, codes=codes)


def pi_test(api):
    def test(folder):
        modules("@earendil-works/pi-coding-agent")
        fleet = Fleet(folder, engines=2, mock_args=["--agent", "2"])
        try:
            session = str(uuid.uuid4())
            pi(folder, fleet, api, session)
            rows = check(fleet, sessions=1, tool_turns=2)
            must({r["agent_context"]["session_id"] for r in rows} == {session}, "the session is not the one that was set")
        finally:
            fleet.kill()
    return test


def opencode(folder, fleet, prompt):
    home = modules("opencode-ai")
    found = home / "opencode-linux-x64" / "bin" / "opencode"
    if not found.exists():
        raise Skip(f"{found} is not there")
    config = folder / "home" / ".config" / "opencode"
    config.mkdir(parents=True, exist_ok=True)
    provider = {"npm": "@ai-sdk/openai-compatible", "options": {"baseURL": f"{fleet.url}/v1", "apiKey": "test-key"},
                "models": {fleet.model: {}}}
    (config / "opencode.json").write_text(json.dumps(
        {"provider": {"tandem": provider}, "model": f"tandem/{fleet.model}", "permission": "allow"}))
    env = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
    return run([found, "run", prompt], folder, env)


def test_opencode(folder):
    modules("opencode-ai")
    fleet = Fleet(folder, engines=2, mock_args=["--agent", "2"])
    try:
        opencode(folder, fleet, PROMPT)
        check(fleet, sessions=1, tool_turns=2, sides=1)
    finally:
        fleet.kill()


def test_opencode_subagents(folder):
    modules("opencode-ai")
    fleet = Fleet(folder, engines=2, mock_args=["--agent", "1"])
    try:
        opencode(folder, fleet, SPAWN)
        check(fleet, sessions=3, tool_turns=3, sides=None)
    finally:
        fleet.kill()


TESTS = [
    ("claude-code", test_claude_code),
    ("claude-code-subagents", test_claude_code_subagents),
    ("codex", test_codex),
    ("codex-subagents", test_codex_subagents),
    ("pi-chat", pi_test("openai-completions")),
    ("pi-responses", pi_test("openai-responses")),
    ("pi-messages", pi_test("anthropic-messages")),
    ("opencode", test_opencode),
    ("opencode-subagents", test_opencode_subagents),
]


def main():
    only = sys.argv[1:]
    for package in VERSIONS:
        try:
            modules(package)
        except Skip as error:
            print(f"note: {error}", flush=True)
    isolate()
    return min(run_all(TESTS, only), 98)


if __name__ == "__main__":
    sys.exit(main())
