"""One consumer of one subscription, whose tasks take a time and no processor: each of its slots is busy for
``service_ms`` with a message. One process.

It writes a line for each message: its id, and when its task would have begun (monotonic ns).
``python -m benchmarks.lane_consumers URL SUBSCRIPTION SLOTS SERVICE_MS FILE``
"""

from __future__ import annotations

import heapq
import os
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import orjson

from benchmarks.simulated import entries
from benchmarks.stack import KEYS
from bridge.link.connections import client
from bridge.protocol.names import BUNDLE_TASK
from bridge.routing.keys import LaneKeys
from bridge.routing.membership import register
from bridge.routing.return_codes import ReturnCode

LEASE_MS = 10_000
#: Longest wait, in seconds.
WAIT_S = 0.5


class LaneConsumer:
    """The consumer."""

    def __init__(self, url: str, subscription: str, slots: int, service_ms: float, ledger: Path) -> None:
        self._keys = LaneKeys(KEYS.stream, subscription)
        self._service_s = service_ms / 1000
        self._redis = client(url, timeout_s=30)
        #: A blocking read is always under way here.
        self._reads: Any = client(url, timeout_s=30).connection_pool.make_connection()
        self._reads.connect()
        self._incarnation = uuid.uuid4().hex
        name = f"{subscription}@bench"
        self._queue = self._keys.queue(name)
        #: When each slot is free (monotonic seconds).
        self._slots = [0.0] * slots
        #: (when it is over, sequence, entries of outcomes)
        self._running: list[tuple[float, int, list[bytes]]] = []
        self._sequence = 0
        self._ledger = ledger.open("w", buffering=1 << 16)
        fields = {"queue": self._queue, "slots": slots, "pool": "simulated", "pid": os.getpid(), "since": time.time()}
        registration = orjson.dumps({**fields, "incarnation": self._incarnation})
        code, _ = register(self._redis, self._keys, name, self._incarnation, LEASE_MS, registration, None)
        if code is not ReturnCode.OK:
            raise AssertionError(f"{name} cannot register: {code.value}")

    def run(self) -> None:
        """Until the process is killed."""
        renew_at = flush_at = 0.0
        self._ask()
        while True:
            now = time.monotonic()
            if now > renew_at:
                renew_at = now + LEASE_MS / 4000
                self._redis.pexpire(self._keys.lease(self._incarnation), LEASE_MS)
            if now > flush_at:
                flush_at = now + WAIT_S
                self._ledger.flush()
            wait_s = min(WAIT_S, self._running[0][0] - now) if self._running else WAIT_S
            if self._reads.can_read(timeout=max(0.0, wait_s)):
                found = self._reads.read_response()
                if found is not None:
                    self._begin(found[1])
                self._ask()
            self._end()

    def _ask(self) -> None:
        self._reads.send_command("BRPOP", self._queue, 10)

    def _begin(self, text: bytes) -> None:
        now = time.monotonic()
        message = orjson.loads(text)
        if message["headers"]["task"] == BUNDLE_TASK:
            ids = [id_ for _, _, _, messages in orjson.loads(message["body"]) for id_, *_ in messages]
        else:
            ids = [message["headers"]["id"]]
        start = max(now, heapq.heappop(self._slots))
        over = start + self._service_s * len(ids)
        heapq.heappush(self._slots, over)
        self._ledger.writelines(f"{id_} {int((start + i * self._service_s) * 1e9)}\n" for i, id_ in enumerate(ids))
        self._sequence += 1
        heapq.heappush(self._running, (over, self._sequence, entries(text, self._service_s * 1000)))

    def _end(self) -> None:
        now = time.monotonic()
        done = []
        while self._running and self._running[0][0] <= now:
            done += heapq.heappop(self._running)[2]
        if done:
            with self._redis.pipeline(transaction=False) as pipe:
                for entry in done:
                    pipe.xadd(self._keys.outcomes, {"i": self._incarnation, "o": entry})
                pipe.execute()


if __name__ == "__main__":
    url, subscription, slots, service_ms, ledger = sys.argv[1:]
    LaneConsumer(url, subscription, int(slots), float(service_ms), Path(ledger)).run()
