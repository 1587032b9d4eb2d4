"""A leader that only answers orders, and states of a lane that only orders lead to."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bridge.routing import records
from bridge.stack.embedded import EmbeddedServer
from tests.commands import MASTER, Lane

Answer = Callable[[dict[str, Any]], dict[str, Any] | None]


class FakeLeader:
    """Takes orders out of the outcome stream as a leader does: the entry goes, then the answer comes.

    ``answer``: the answer to an order; None: it takes the order, and dies before it answers.
    """

    def __init__(self, server: EmbeddedServer, lane: Lane, answer: Answer) -> None:
        self.orders: list[dict[str, Any]] = []
        self._redis = server.client(protocol=2)
        self._keys = lane.keys
        self._answer = answer
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(10)
        self._redis.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            found: Any = self._redis.xread({self._keys.outcomes: "0"}, count=10, block=50)
            for id_, fields in found[0][1] if found else ():
                reply = None
                if b"order" in fields:
                    order = json.loads(fields[b"order"])
                    reply = self._answer(order)
                    self.orders.append(order)  # when it has been carried out: tests wait for it and go on
                with self._redis.pipeline(transaction=True) as pipe:
                    # Itself and no other: the next ones of the same millisecond may not have been read.
                    pipe.xdel(self._keys.outcomes, id_)
                    if reply is not None:
                        name = self._keys.reply(fields[b"i"].decode())
                        pipe.rpush(name, json.dumps(reply))
                        pipe.expire(name, 60)
                    pipe.execute()


@contextmanager
def fake_leader(server: EmbeddedServer, lane: Lane, answer: Answer) -> Iterator[FakeLeader]:
    """A leader that answers orders by ``answer``, in the middle of ``lane``."""
    made = FakeLeader(server, lane, answer)
    try:
        yield made
    finally:
        made.close()


def park(lane: Lane, ticket: str, ids: Sequence[str], reason: str, *, begun: bool = False, **facts: Any) -> None:
    """Messages that were read are put aside for ``ticket``, which is parked."""
    aside = lane.keys.parked_consumer(MASTER, ticket)
    if ids:
        lane.redis.xclaim(lane.keys.stream, lane.keys.group, aside, 0, list[Any](ids), justid=True)
    tail = records.tail(
        "", "", 3 if begun else 1, list(ids[:1]) if begun else [], int(time.time() * 1000), reason, **facts
    )
    lane.redis.hset(lane.keys.tickets, ticket, records.record(records.PARKED, tail))


def order_drain(lane: Lane, consumer: str, **facts: Any) -> None:
    """The order that ``consumer`` takes nothing new is written down; ``facts``: what its registration says besides."""
    registration = json.loads(lane.redis.hget(lane.keys.consumers, consumer) or b"{}")
    registration.update({"started": 17.5, **facts})
    lane.redis.hset(lane.keys.consumers, consumer, json.dumps(registration))
    lane.redis.hset(lane.keys.drains, consumer, json.dumps({"at_ms": 1, "started": 17.5}))
