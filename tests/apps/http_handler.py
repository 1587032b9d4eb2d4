"""A program with an HTTP consumer, as a service without Celery has it. Tests end and freeze it.

``python -m tests.apps.http_handler NAME CONCURRENCY URL …``. Its handler takes ``ms`` milliseconds and appends ``n`` to
the ticket's list, as `tests.apps.counter` does. The list is a store of its own: it compares fences.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from redis import Redis

from bridge.consumer import HttpConsumer, Message, Refuse

#: Steps in which a handler takes its time.
STEP_MS = 10
#: Appends, unless a later delivery was here before, or this message was.
APPEND = """
if tonumber(redis.call('GET', KEYS[2]) or '0') > tonumber(ARGV[1]) then return 'STALE' end
redis.call('SET', KEYS[2], ARGV[1], 'EX', 3600)
if tonumber(redis.call('LINDEX', KEYS[1], -1) or '-1') == ARGV[2] - 1 then redis.call('RPUSH', KEYS[1], ARGV[2]) end
return 'OK'
"""


def main() -> None:
    name, concurrency, *urls = sys.argv[1:]
    redis: Any = Redis.from_url(os.environ["CELERY_BROKER_URL"])
    path = Path(os.environ["COUNTER_LEDGER"]) / f"{os.getpid()}.jsonl"

    def note(kind: str, message: Message) -> None:
        line = [kind, message.ticket_id, message.payload["n"], message.fence, message.attempt, time.monotonic_ns()]
        with path.open("a") as file:
            file.write(json.dumps([*line, os.getpid()]) + "\n")

    def handle(message: Message) -> None:
        payload = message.payload
        if payload.get("refuse") and message.attempt == 1 and redis.set(f"log:{message.message_id}", 1, nx=True):
            raise Refuse("not yet", delay=0.05)
        if payload.get("fail") and message.attempt == 1:
            raise ValueError("the first attempt fails")
        note("start", message)
        for _ in range(0, payload.get("ms", 0), STEP_MS):
            # In steps: what a freeze takes does not count.
            time.sleep(STEP_MS / 1000)
        found = redis.eval(
            APPEND, 2, f"log:{message.ticket_id}", f"log:fence:{message.ticket_id}", message.fence, payload["n"]
        )
        print("stale" if found == b"STALE" else "handled", message.ticket_id, payload["n"], flush=True)
        note("end", message)

    consumer = HttpConsumer(urls, name, handle, concurrency=int(concurrency), wait_s=5)
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    with consumer:
        print("ready", flush=True)
        consumer.run()
    print("left", flush=True)


if __name__ == "__main__":
    main()
