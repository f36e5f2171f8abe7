#!/usr/bin/env python3
"""A real Mooncake client that does as it is told, one JSON line in, one out. Its segment dies with it.

    python mooncake_client.py HOST:PORT METADATA_URL MASTER SEGMENT_BYTES [TENANT]      (needs the mooncake wheel)

`{"put": [KEY...], "bytes": N}`, `{"exists": [KEY...]}`, `{"remove": [KEY...]}`, `{"remove_regex": TEXT}` and
`{"remove_all": true}` answer `{"codes": [...]}`, the store's own return values.
"""
import json
import os
import sys


def main():
    # The library logs to standard output, which is for answers here.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from mooncake.store import MooncakeDistributedStore
    host, metadata, master, segment, *tenant = sys.argv[1:]
    store = MooncakeDistributedStore()
    code = store.setup(host, metadata, int(segment), 32 << 20, "tcp", "", master,
                       **({"tenant_id": tenant[0]} if tenant else {}))

    def answer(codes):
        print(json.dumps({"codes": codes}), file=answers, flush=True)

    answer([code])
    for line in sys.stdin:
        order = json.loads(line)
        if "put" in order:
            value = b"\x5a" * order["bytes"]
            answer([store.put(key, value) for key in order["put"]])
        elif "exists" in order:
            answer(store.batch_is_exist(order["exists"]))
        elif "remove" in order:
            answer([store.remove(key) for key in order["remove"]])
        elif "remove_regex" in order:
            answer([store.remove_by_regex(order["remove_regex"])])
        elif "remove_all" in order:
            answer([store.remove_all()])
        else:
            answer([-1])


if __name__ == "__main__":
    main()
