"""Consumers that run nothing: one process that takes what the master dispatches and writes outcomes as workers would.

For the master alone. It registers consumers as workers do and renews their leases; it pops Celery messages from their
queues and answers each as a pool process does: a message that came alone by an entry of its own, a bundle by an entry
for each round. It is not measured, only its speed matters: so it pops and writes many at a time.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Sequence
from itertools import product
from typing import Any

import orjson

from benchmarks.stack import KEYS
from bridge.link.connections import client
from bridge.protocol.headers import first_fence
from bridge.protocol.names import BUNDLE_TASK, HEADER_BASE
from bridge.protocol.outcomes import Kind, Outcome
from bridge.routing.keys import LaneKeys
from bridge.routing.membership import register
from bridge.routing.return_codes import ReturnCode

#: Celery messages that are popped from one queue at a time.
POP_COUNT = 200
LEASE_MS = 10_000
#: Service time that outcomes tell, in ms: that of a task that does nothing, under Celery's tracer.
SERVICE_MS = 0.02


class Consumers:
    """``count`` consumers with ``slots`` pool processes each, in each of ``lanes``."""

    def __init__(
        self, url: str, count: int, slots: int, lease_ms: int = LEASE_MS, lanes: Sequence[LaneKeys] = (KEYS,)
    ) -> None:
        self._lease_ms = lease_ms
        self._redis = client(url, timeout_s=30)
        self._connection: Any = client(url, timeout_s=30).connection_pool.make_connection()
        self._connection.connect()
        self._queues: dict[str, str] = {}
        self._lanes: dict[str, LaneKeys] = {}
        for i, keys in product(range(count), lanes):
            name, incarnation = f"simulated{i}@bench", uuid.uuid4().hex
            queue = keys.queue(name)
            registered = {"queue": queue, "slots": slots, "pool": "simulated", "pid": os.getpid(), "since": time.time()}
            registration = orjson.dumps({**registered, "incarnation": incarnation})
            code, _ = register(self._redis, keys, name, incarnation, lease_ms, registration, None)
            if code is not ReturnCode.OK:
                raise AssertionError(f"{name} cannot register: {code.value}")
            self._queues[queue] = incarnation
            self._lanes[queue] = keys

    def run(self) -> None:
        """Until the process is killed."""
        renew_at = 0.0
        while True:
            if time.monotonic() > renew_at:
                renew_at = time.monotonic() + self._lease_ms / 4000
                for queue, incarnation in self._queues.items():
                    self._redis.pexpire(self._lanes[queue].lease(incarnation), self._lease_ms)
            self._turn()

    def _turn(self) -> None:
        popped = self._ask([("RPOP", queue, POP_COUNT) for queue in self._queues])
        answers = []
        for (queue, incarnation), texts in zip(self._queues.items(), popped, strict=True):
            outcomes = self._lanes[queue].outcomes
            for text in texts or ():
                answers += [("XADD", outcomes, "*", "i", incarnation, "o", entry) for entry in entries(text)]
        if answers:
            self._ask(answers)
        else:
            # Waits for one message without taking it: BLMOVE from a queue onto itself leaves it where it was.
            for queue in self._queues:
                if self._ask([("BLMOVE", queue, queue, "RIGHT", "RIGHT", 0.002)])[0]:
                    return

    def _ask(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        self._connection.send_packed_command(self._connection.pack_commands(commands), check_health=False)
        return [self._connection.read_response() for _ in commands]


def entries(text: bytes, service_ms: float = SERVICE_MS) -> list[bytes]:
    """The outcome entries that a worker writes for one Celery message."""
    message = orjson.loads(text)
    headers = message["headers"]
    base = headers[HEADER_BASE]
    if headers["task"] != BUNDLE_TASK:
        return [_entry([(headers["id"], first_fence(headers))], service_ms)]
    rounds: list[list[tuple[str, int]]] = []
    for _ticket, offset, _attempt, messages in orjson.loads(message["body"]):
        for i, (id_, *_) in enumerate(messages):
            if i == len(rounds):
                rounds.append([])
            rounds[i].append((id_, base + offset + i))
    return [_entry(of_round, service_ms) for of_round in rounds]


def _entry(done: list[tuple[str, int]], service_ms: float) -> bytes:
    return b"[" + b",".join(Outcome(id_, fence, Kind.DONE, service_ms).encode() for id_, fence in done) + b"]"


if __name__ == "__main__":
    # Without streams: in the default lane.
    streams = sys.argv[4:] or [KEYS.stream]
    here = [LaneKeys(stream, KEYS.group) for stream in streams]
    Consumers(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), lanes=here).run()
