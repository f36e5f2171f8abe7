"""Calls through the official client libraries; prints what they return as JSON lines. Run by clients.py.

    python client_calls.py BASE_URL MODEL [TEMPERATURE]
"""
import json
import sys

import anthropic
import openai

BASE, MODEL = sys.argv[1], sys.argv[2]
DRAW = {"temperature": float(sys.argv[3])} if len(sys.argv) > 3 else {}
TOOL = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CHAT_TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather.", "parameters": TOOL}}]
ASK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is the weather in Oslo? " * 8}]

oai = openai.OpenAI(base_url=f"{BASE}/v1", api_key="k", max_retries=0)
ant = anthropic.Anthropic(base_url=BASE, api_key="k", max_retries=0)


def dump(value):
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


def stream(make):
    return [dump(event) for event in make()]


def messages_stream(**kwargs):
    with ant.messages.stream(**kwargs) as events:
        seen = [dump(event) for event in events]
        return {"events": seen, "final": dump(events.get_final_message())}


def headers(number):
    return {"X-Request-Id": f"fixed-{number}", "X-Session-ID": "client-session"}


CALLS = [
    ("models", lambda h: [dump(m) for m in oai.models.list(extra_headers=h)]),
    ("chat", lambda h: dump(oai.chat.completions.create(model=MODEL, **DRAW, messages=ASK, max_tokens=24, extra_headers=h))),
    ("chat again: cached", lambda h: dump(oai.chat.completions.create(model=MODEL, **DRAW, messages=ASK, max_tokens=24, extra_headers=h))),
    ("chat n=2", lambda h: dump(oai.chat.completions.create(model=MODEL, **DRAW, messages=ASK, max_tokens=8, n=2, extra_headers=h))),
    ("chat stop", lambda h: dump(oai.chat.completions.create(model=MODEL, **DRAW, messages=ASK, max_tokens=64, stop=["e"], extra_headers=h))),
    ("chat stream", lambda h: stream(lambda: oai.chat.completions.create(
        model=MODEL, **DRAW, messages=ASK, max_tokens=24, stream=True, extra_headers=h))),
    ("chat stream usage", lambda h: stream(lambda: oai.chat.completions.create(
        model=MODEL, **DRAW, messages=ASK, max_tokens=24, stream=True, stream_options={"include_usage": True}, extra_headers=h))),
    ("chat stream usage in each chunk", lambda h: stream(lambda: oai.chat.completions.create(
        model=MODEL, **DRAW, messages=ASK, max_tokens=6, stream=True, extra_headers=h,
        stream_options={"include_usage": True, "continuous_usage_stats": True}))),
    ("chat stream no usage", lambda h: stream(lambda: oai.chat.completions.create(
        model=MODEL, **DRAW, messages=ASK, max_tokens=6, stream=True, stream_options={"include_usage": False}, extra_headers=h))),
    ("chat forced tool", lambda h: dump(oai.chat.completions.create(
        model=MODEL, **DRAW, messages=ASK, max_tokens=64, tools=CHAT_TOOLS, extra_headers=h,
        tool_choice={"type": "function", "function": {"name": "get_weather"}}))),
    ("chat forced tool stream", lambda h: stream(lambda: oai.chat.completions.create(
        model=MODEL, **DRAW, messages=ASK, max_tokens=64, tools=CHAT_TOOLS, stream=True, extra_headers=h,
        tool_choice={"type": "function", "function": {"name": "get_weather"}}))),
    ("completions", lambda h: dump(oai.completions.create(model=MODEL, **DRAW, prompt="def add(a, b):", max_tokens=16, extra_headers=h))),
    ("completions of tokens", lambda h: dump(oai.completions.create(model=MODEL, **DRAW, prompt=list(range(40, 90)), max_tokens=8, extra_headers=h))),
    ("completions stream", lambda h: stream(lambda: oai.completions.create(
        model=MODEL, **DRAW, prompt="def add(a, b):", max_tokens=16, stream=True, extra_headers=h))),
    ("responses", lambda h: dump(oai.responses.create(model=MODEL, **DRAW, input="Say hello.", max_output_tokens=24, extra_headers=h))),
    ("responses stream", lambda h: stream(lambda: oai.responses.create(
        model=MODEL, **DRAW, input="Say hello.", max_output_tokens=24, stream=True, extra_headers=h))),
    ("responses tool stream", lambda h: stream(lambda: oai.responses.create(
        model=MODEL, **DRAW, input="Weather in Oslo?", max_output_tokens=64, stream=True, tool_choice="required", extra_headers=h,
        tools=[{"type": "function", "name": "get_weather", "description": "Weather.", "parameters": TOOL, "strict": False}]))),
    ("messages", lambda h: dump(ant.messages.create(model=MODEL, extra_body=DRAW, max_tokens=24, messages=ASK[1:], system="Be brief.", extra_headers=h))),
    ("messages stream", lambda h: messages_stream(
        model=MODEL, extra_body=DRAW, max_tokens=24, messages=ASK[1:], system="Be brief.", extra_headers=h)),
    ("messages tool", lambda h: dump(ant.messages.create(
        model=MODEL, extra_body=DRAW, max_tokens=64, messages=ASK[1:], tool_choice={"type": "any"}, extra_headers=h,
        tools=[{"name": "get_weather", "description": "Weather.", "input_schema": TOOL}]))),
    ("messages tool stream", lambda h: messages_stream(
        model=MODEL, extra_body=DRAW, max_tokens=64, messages=ASK[1:], tool_choice={"type": "any"}, extra_headers=h,
        tools=[{"name": "get_weather", "description": "Weather.", "input_schema": TOOL}])),
    ("messages count", lambda h: dump(ant.messages.count_tokens(model=MODEL, messages=ASK[1:], extra_headers=h))),
    ("error: unknown model", lambda h: dump(oai.chat.completions.create(model="nobody", messages=ASK, extra_headers=h))),
    ("error: no messages", lambda h: dump(oai.chat.completions.create(model=MODEL, **DRAW, messages=[], extra_headers=h))),
    ("error: negative bound", lambda h: dump(oai.chat.completions.create(model=MODEL, **DRAW, messages=ASK, max_tokens=-1, extra_headers=h))),
    ("error: wrong type", lambda h: dump(oai.chat.completions.create(
        model=MODEL, messages=ASK, extra_body={"temperature": "hot"}, extra_headers=h))),
    ("error: too long", lambda h: dump(oai.chat.completions.create(
        model=MODEL, **DRAW, messages=[{"role": "user", "content": "word " * 60000}], extra_headers=h))),
    ("error: stream too long", lambda h: stream(lambda: oai.chat.completions.create(
        model=MODEL, **DRAW, messages=[{"role": "user", "content": "word " * 60000}], stream=True, extra_headers=h))),
    ("error: messages unknown model", lambda h: dump(ant.messages.create(
        model="nobody", max_tokens=8, messages=ASK[1:], extra_headers=h))),
    ("error: messages too long", lambda h: dump(ant.messages.create(
        model=MODEL, extra_body=DRAW, max_tokens=8, messages=[{"role": "user", "content": "word " * 60000}], extra_headers=h))),
    ("error: responses unknown model", lambda h: dump(oai.responses.create(model="nobody", input="x", extra_headers=h))),
]

for number, (name, call) in enumerate(CALLS):
    try:
        result = {"ok": call(headers(number))}
    except (openai.APIStatusError, anthropic.APIStatusError) as error:
        result = {"error": type(error).__name__, "status": error.status_code, "body": error.body,
                  "retry_after": error.response.headers.get("retry-after")}
    except (openai.APIError, anthropic.APIError) as error:
        result = {"error": type(error).__name__, "message": str(error)}
    print(json.dumps({"name": name, **result}), flush=True)
