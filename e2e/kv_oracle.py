#!/usr/bin/env python3
"""A second opinion on an engine's cache: the plainest index that can be fed from its replay socket.

    python kv_oracle.py REPLAY_ENDPOINT        (an interpreter with pyzmq and msgspec: the engine's own)

Reads JSON lines: `{"read": true}` reads the publisher's whole history anew and answers `{"blocks": N}`, the blocks
that the engine holds; `{"tokens": [...], "salt": null}` answers `{"cached": N}`, what the engine held of this prompt
at the last reading. It trusts nothing but the history: no sequence numbers, no hashes of its own.
"""
import json
import struct
import sys

import msgspec
import zmq

REPLAY_PATIENCE_MS = 5000
END = b"\xff" * 8


def history(context, endpoint):
    """Every buffered batch of the publisher, oldest first."""
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.connect(endpoint)
    try:
        socket.send_multipart([b"", struct.pack(">Q", 0)])
        while socket.poll(REPLAY_PATIENCE_MS):
            *_, seq, payload = socket.recv_multipart()
            if seq == END:
                return
            yield msgspec.msgpack.decode(payload)
        raise TimeoutError(f"no end of the replay from {endpoint}")
    finally:
        socket.close()


class Cache:
    """Blocks by the engine's own hash: its content, its parent, and how many copies."""

    def __init__(self):
        self.copies = {}
        self.children = {}
        self.size = 0

    def apply(self, event):
        kind = event["type"]
        if kind == "AllBlocksCleared":
            self.copies.clear()
        elif event.get("medium") not in (None, "GPU"):
            pass
        elif kind == "BlockStored":
            self.size = event["block_size"]
            parent, extras = event["parent_block_hash"], event.get("extra_keys")
            for at, block in enumerate(event["block_hashes"]):
                tokens = tuple(event["token_ids"][at * self.size:(at + 1) * self.size])
                salt = tuple(extras[at] or ()) if extras else tuple(filter(None, [event.get("cache_salt")])) if parent is None else ()
                self.copies[block] = self.copies.get(block, 0) + 1
                self.children[parent, tokens, salt] = block
                parent = block
        else:
            for block in event["block_hashes"]:
                left = self.copies.get(block, 0) - 1
                self.copies[block] = left
                if left <= 0:
                    self.copies.pop(block)

    def cached(self, tokens, salt):
        """Whole blocks from the beginning; the last token of a prompt is always computed."""
        parent, at = None, 0
        while self.size and at + self.size < len(tokens):
            key = parent, tuple(tokens[at:at + self.size]), (salt,) if salt and parent is None else ()
            block = self.children.get(key)
            if block is None or not self.copies.get(block):
                break
            parent, at = block, at + self.size
        return at


def main():
    context, cache = zmq.Context(), Cache()
    for line in sys.stdin:
        question = json.loads(line)
        if "read" in question:
            cache = Cache()
            for batch in history(context, sys.argv[1]):
                for event in batch[1]:
                    cache.apply(event)
            answer = {"blocks": len(cache.copies)}
        else:
            answer = {"cached": cache.cached(question["tokens"], question.get("salt"))}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
