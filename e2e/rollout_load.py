"""The load of a reinforcement-learning step: groups of rollouts of one prompt, all begun at once, each some turns with
tools between them, over plain HTTP.

Standard library only. A rollout's prompt is a system text that all share, its group's task, and what was said so far:
the engines' own answers and the tools' output. Turn counts, tool times and lengths follow from the seed alone, so that
every gateway gets the same load.
"""
import asyncio
import dataclasses
import json
import random
import re
import time
import urllib.parse
import urllib.request

from lib import series


@dataclasses.dataclass(frozen=True)
class Load:
    """Rollouts and what each is like; lengths in characters (about four to a token), times in seconds."""
    rollouts: int = 2048
    group: int = 8
    turns: tuple = (4, 8)
    answer_tokens: int = 128
    tools: tuple = (1.0, 6.0)
    system: int = 4000
    task: int = 8000
    result: int = 3200
    stream: bool = False
    final: bool = True
    farewell: bool = False
    identity: str = "x-session-id"
    headers: tuple = ()
    model: str = "tiny"
    deadline: float = 900.0
    # All begin within so many seconds.
    ramp: float = 0.0
    seed: int = 1

    def turn_counts(self):
        return [random.Random(f"{self.seed}-{n}").randint(*self.turns) for n in range(self.rollouts)]


# Words of three letters that are one token, space included, for a tokenizer trained on sources, and for the modelled
# engines' own: prompts are then of one length for gateways that tokenize and for those that do not.
WORDS = ("all and any are arg but can cls com con ctx cur def doc end exp for get has key len lin min new not out par pos "
         "pre pro res see set str sup sys tag the try url use").split()


# The first words of a streamed answer.
WORDS_CAME = re.compile(rb'"content":\s*"[^"]')


def text(draw, length):
    """That many characters, four to a word."""
    return "".join(f" {word}" for word in draw.choices(WORDS, k=length // 4))


@dataclasses.dataclass
class Seen:
    """What the clients saw."""
    waits: list = dataclasses.field(default_factory=list)
    # Times to the first words of an answer, of streams.
    firsts: list = dataclasses.field(default_factory=list)
    statuses: dict = dataclasses.field(default_factory=dict)
    ends: dict = dataclasses.field(default_factory=dict)
    output_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    unfinished: list = dataclasses.field(default_factory=list)

    def count(self, status):
        self.statuses[status] = self.statuses.get(status, 0) + 1


class Connection:
    """One kept-alive HTTP/1.1 connection; opened anew when the server closed it between two calls."""

    def __init__(self, host, port):
        self.host, self.port, self.reader, self.writer = host, port, None, None
        self.first = None

    async def call(self, path, headers, body):
        """(status, headers, body). An answer cut short is an error; a connection that was closed while idle is not."""
        head = f"POST {path} HTTP/1.1\r\nhost: {self.host}\r\ncontent-type: application/json\r\n"
        head += "".join(f"{k}: {v}\r\n" for k, v in headers) + f"content-length: {len(body)}\r\n\r\n"
        if self.writer is None or self.reader.at_eof() or self.writer.is_closing():
            self.close()
            self.reader, self.writer = await asyncio.open_connection(self.host, self.port, limit=1 << 22)
        self.first = None
        self.writer.write(head.encode() + body)
        return await self._answer()

    async def _answer(self):
        status, headers = await self._head()
        if "content-length" in headers:
            body = await self.reader.readexactly(int(headers["content-length"]))
        else:
            body = b"".join([part async for part in self._chunks()])
        if headers.get("connection", "").lower() == "close":
            self.close()
        return status, headers, body

    async def _head(self):
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict((k.strip().lower(), v.strip()) for k, _, v in (line.partition(":") for line in head[1:] if line))
        return int(head[0].split()[1]), headers

    async def _chunks(self):
        while True:
            size = int((await self.reader.readline()).split(b";")[0], 16)
            data = await self.reader.readexactly(size + 2)
            if size == 0:
                return
            if self.first is None and WORDS_CAME.search(data):
                self.first = time.monotonic()
            yield data[:-2]

    def close(self):
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None


def read_answer(body, stream):
    """(text, usage) of a chat completion; an error when it is not whole."""
    if not stream:
        answer = json.loads(body)
        return answer["choices"][0]["message"]["content"] or "", answer["usage"]
    words, usage, done = [], None, False
    for line in body.decode().splitlines():
        if not line.startswith("data: "):
            continue
        if line == "data: [DONE]":
            done = True
            continue
        chunk = json.loads(line[6:])
        if "error" in chunk:
            raise ValueError(f"an error in the stream: {line[:200]}")
        usage = chunk.get("usage") or usage
        for choice in chunk.get("choices", []):
            words.append(choice.get("delta", {}).get("content") or "")
    if not done or usage is None:
        raise ValueError("the stream is not whole")
    return "".join(words), usage


async def rollout(load, base, number, seen, start):
    """One rollout from its first turn to its last."""
    draw = random.Random(f"{load.seed}-{number}")
    turns = draw.randint(*load.turns)
    group = number // load.group
    messages = [{"role": "system", "content": text(random.Random(load.seed), load.system)},
                {"role": "user", "content": text(random.Random(f"{load.seed}-g{group}"), load.task)}]
    if load.ramp:
        # Of its own, so that sessions are the same with and without.
        await asyncio.sleep(random.Random(f"{load.seed}-{number}-ramp").uniform(0, load.ramp))
    target = urllib.parse.urlsplit(base)
    connection = Connection(target.hostname, target.port)
    try:
        for turn in range(turns):
            last = turn + 1 == turns
            answer = await take_turn(load, connection, number, group, messages, last and load.final, seen)
            if not last:
                messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": text(draw, load.result)}]
                await asyncio.sleep(draw.uniform(*load.tools))
        seen.ends[number] = time.monotonic() - start
        if load.farewell:
            await take_turn(load, connection, number, group, messages, True, Seen())
    except (OSError, ValueError, KeyError, IndexError, asyncio.IncompleteReadError) as error:
        seen.unfinished.append(f"rollout {number}: {type(error).__name__}: {error}")
    finally:
        connection.close()


async def take_turn(load, connection, number, group, messages, final, seen):
    """One turn, with the repetitions that refusals ask for."""
    body = {"model": load.model, "messages": messages, "max_tokens": load.answer_tokens, "ignore_eos": True,
            "min_tokens": load.answer_tokens, "stream": load.stream}
    if load.stream:
        body["stream_options"] = {"include_usage": True}
    headers = [(load.identity, f"rollout-{load.seed}-{number}"), ("x-tandem-group-id", f"group-{load.seed}-{group}"), *load.headers]
    if final:
        headers += [("x-tandem-session-final", "true"), ("x-dynamo-session-final", "true")]
    data = json.dumps(body).encode()
    sent = time.monotonic()
    while True:
        status, got, answer = await connection.call("/v1/chat/completions", headers, data)
        seen.count(status)
        if status == 200:
            words, usage = read_answer(answer, load.stream)
            seen.waits.append(time.monotonic() - sent)
            if connection.first is not None:
                seen.firsts.append(connection.first - sent)
            seen.output_tokens += usage["completion_tokens"]
            seen.prompt_tokens += usage["prompt_tokens"]
            seen.cached_tokens += (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            return words
        if status not in (429, 503):
            raise ValueError(f"status {status}: {answer[:300]!r}")
        await asyncio.sleep(float(got.get("retry-after", 1)))


async def play(load, base):
    """All rollouts; what was seen, and the seconds that it took."""
    seen, start = Seen(), time.monotonic()
    tasks = [asyncio.create_task(rollout(load, base, n, seen, start)) for n in range(load.rollouts)]
    _, late = await asyncio.wait(tasks, timeout=load.deadline)
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    seen.unfinished += [f"{len(late)} rollouts had not ended after {load.deadline} s"] if late else []
    return seen, time.monotonic() - start


def engines(urls):
    """What the engines themselves counted."""
    names = {"queries": "vllm:prefix_cache_queries_total", "hits": "vllm:prefix_cache_hits_total",
             "output": "vllm:generation_tokens_total", "preemptions": "vllm:num_preemptions_total",
             "calls": "vllm:request_success_total"}
    totals = dict.fromkeys(names, 0.0)
    for url in urls:
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
            told = response.read().decode()
        for key, name in names.items():
            totals[key] += series(told, name)
    return totals


def part(values, q):
    """A quantile."""
    return sorted(values)[min(len(values) - 1, int(q * len(values)))] if values else float("nan")


def report(load, seen, took, engine):
    """One row: the same figures for every gateway."""
    groups = {}
    for number in seen.ends:
        groups.setdefault(number // load.group, []).append(seen.ends[number])
    whole = [max(ends) for ends in groups.values() if len(ends) == load.group]
    return {"groups_finished": len(whole), "groups": load.rollouts // load.group, "rollouts_finished": len(seen.ends),
            "seconds": round(took, 1), "output_tok_s": round(engine["output"] / took),
            "turn_p50_s": round(part(seen.waits, 0.5), 2), "turn_p99_s": round(part(seen.waits, 0.99), 2),
            "worst_turn_s": round(max(seen.waits, default=0), 1), "group_mean_s": round(sum(whole) / max(len(whole), 1), 1),
            "hit": round(engine["hits"] / max(engine["queries"], 1), 4), "engine_calls": int(engine["calls"]),
            "turns": len(seen.waits), "preemptions": int(engine["preemptions"]), "statuses": seen.statuses,
            "first_faults": seen.unfinished[:3]}
