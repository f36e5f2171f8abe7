#!/usr/bin/env python3
"""Writes the times of the profile `qwen3-30b-a3b-h100-tp1` as Dynamo's mock workers read them (`--planner-profile-data`).

    VENV/bin/python bench/race/dynamo_times.py OUT.npz

Two tables: a prefill's milliseconds by its new tokens, and a decode pass's by the KV tokens in use and the mean context.
What new tokens attend to in a cached prefix has no place there, so that a turn behind a long prefix takes a little less.
"""
import math
import sys

import numpy

# As in crates/engine-model/src/profile.rs: a, b, c of prefill; f (batch size, ms) and k of decode.
BASE, TOKEN, ATTENTION = 23.6, 0.009_989, 1.333e-6
BATCH = [(1, 6.8), (8, 14.0), (16, 18.9), (32, 24.4), (64, 26.6), (128, 28.6), (256, 29.7)]
CONTEXT = 3.33e-5
POINTS = 100


def prefill(tokens):
    return BASE + TOKEN * tokens + ATTENTION * tokens * tokens / 2


def decode(kv, context):
    batch = max(1.0, kv / context)
    of_batch = numpy.interp(math.log2(batch), [math.log2(size) for size, _ in BATCH], [ms for _, ms in BATCH])
    return of_batch + CONTEXT * kv


def main():
    tokens = numpy.linspace(1, 131_072, 4 * POINTS)
    kv, contexts = numpy.linspace(0, 1_048_576, POINTS), numpy.linspace(1, 131_072, POINTS)
    numpy.savez(sys.argv[1], prefill_isl=tokens, prefill_ttft_ms=[prefill(t) for t in tokens], decode_active_kv_tokens=kv,
                decode_context_length=contexts, decode_itl=[[decode(k, c) for c in contexts] for k in kv])


if __name__ == "__main__":
    main()
