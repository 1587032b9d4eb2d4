"""The outcomes of an `HttpConsumer` on their way to a master: many in one call. Standard library only.

A call has a limited number of outcomes, and of bytes. The port refuses a body that is too large before it has read it,
and then the client may see only a closed connection. A bad outcome must fail only its own message. So when a call is
refused, its outcomes are sent again one by one. An outcome that is refused alone becomes a failure of its message.
"""

from __future__ import annotations

import json
import logging
import queue
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPException
from typing import Any, NamedTuple

from bridge.consumer.http_calls import Calls, HttpProblem
from bridge.consumer.http_messages import sendable
from bridge.routing.numbers import count

logger = logging.getLogger(__name__)

#: Most outcomes of one call, and most bytes. One outcome alone may have more.
BATCH_ITEMS = 500
BATCH_BYTES = 1024 * 1024
#: A body of up to so many bytes is read before it is refused, so its answer comes for certain.
SURE_BYTES = 64 * 1024
#: Tries of a larger body: what ends its connection may be its size.
LARGE_TRIES = 2
#: Answers that say that the body cannot be taken as it is.
REFUSED = (400, 413, 422)
#: Answers that say that the incarnation is over.
OVER = (404, 410)


class Item(NamedTuple):
    """One outcome."""

    incarnation: str
    #: As it is sent.
    said: dict[str, Any]
    #: Its JSON.
    text: bytes


class Life(NamedTuple):
    """What `Outcomes` asks of the consumer, by its incarnation."""

    #: Whether its lease holds.
    holds: Callable[[str], bool]
    #: Told that its lease is over.
    lose: Callable[[str], None]
    #: Told the fences of outcomes that are sent, or cannot be.
    release: Callable[[str, Sequence[int]], None]


class Outcomes:
    """What is to be acknowledged. `run` is for a thread of its own."""

    def __init__(self, calls: Calls, life: Life) -> None:
        self._calls = calls
        self._life = life
        self._queue: queue.SimpleQueue[Item | None] = queue.SimpleQueue()

    def put(self, incarnation: str, said: dict[str, Any]) -> None:
        """``said``: the outcome of a message that ``incarnation`` was given."""
        self._queue.put(_item(incarnation, said))

    def end(self) -> None:
        """Makes `run` return when it has sent what was put before."""
        self._queue.put(None)

    def run(self) -> None:
        while (first := self._queue.get()) is not None:
            some = [first]
            while len(some) < BATCH_ITEMS and not self._queue.empty():
                more = self._queue.get()
                if more is None:
                    self._queue.put(None)
                    break
                some.append(more)
            for batch in batches(some):
                incarnation = batch[0].incarnation
                try:
                    self._send(batch)
                except Exception:
                    # Else nothing would ever be acknowledged again.
                    logger.exception("%s cannot be acknowledged, and will come again", _count(batch))
                finally:
                    self._life.release(incarnation, [item.said["fence"] for item in batch])

    def _send(self, batch: Sequence[Item]) -> None:
        """Sends outcomes of one incarnation, in parts if need be."""
        incarnation = batch[0].incarnation
        if not self._life.holds(incarnation):
            logger.warning("%s cannot be acknowledged, and will come again: the lease is over", _count(batch))
            return
        try:
            self._call(batch)
        except HttpProblem as problem:
            if problem.status in REFUSED:
                self._refused(batch, problem)
                return
            if problem.passes and self._in_halves(batch):
                return
            logger.warning("%s cannot be acknowledged, and will come again: %s", _count(batch), problem)
            if problem.status in OVER:
                # Else they came again under the same fence.
                self._life.lose(incarnation)
        except (OSError, HTTPException) as exc:
            if not self._in_halves(batch):
                logger.warning("%s cannot be acknowledged, and will come again: %s", _count(batch), exc)

    def _in_halves(self, batch: Sequence[Item]) -> bool:
        """Sends what was too much for one call. False: it is one outcome, or the lease is over."""
        if len(batch) == 1 or not self._life.holds(batch[0].incarnation):
            return False
        self._send(batch[: len(batch) // 2])
        self._send(batch[len(batch) // 2 :])
        return True

    def _refused(self, batch: Sequence[Item], problem: HttpProblem) -> None:
        if len(batch) > 1:
            logger.warning("%d outcomes were refused, and are sent one by one: %s", len(batch), problem)
            for item in batch:
                self._send([item])
            return
        [item] = batch
        id_, outcome = item.said["message_id"], item.said["outcome"]
        logger.error("the outcome of %s, %s, was refused, so the message failed: %s", id_, outcome, problem)
        error = sendable(f"the port refused the outcome {outcome} of this message: {problem}")
        known = {name: item.said[name] for name in ("consumer", "incarnation", "message_id", "fence")}
        try:
            self._call([_item(item.incarnation, {**known, "outcome": "failed", "error": error})])
        except (OSError, HTTPException, HttpProblem) as exc:
            logger.error("message %s cannot be acknowledged at all, and comes again: %s", id_, exc)

    def _call(self, batch: Sequence[Item]) -> None:
        incarnation, body = batch[0].incarnation, b"[" + b",".join(item.text for item in batch) + b"]"
        is_large = len(batch) > 1 and len(body) > SURE_BYTES
        tries = 0

        def goes_on() -> bool:
            nonlocal tries
            tries += 1
            return self._life.holds(incarnation) and (not is_large or tries < LARGE_TRIES)

        found = self._calls.call("POST", "/api/messages/acknowledge", body, goes_on=goes_on)
        for result in found["results"]:
            if result["status"] != 200:
                logger.warning("the outcome of %s was refused: %s", result["message_id"], result.get("detail"))


def _count(batch: Sequence[Item]) -> str:
    return count(len(batch), "message")


def _item(incarnation: str, said: dict[str, Any]) -> Item:
    return Item(incarnation, said, json.dumps(said).encode())


def batches(items: Sequence[Item]) -> Iterator[list[Item]]:
    """Parts of one call each, in the order of the items: of one incarnation, and of at most `BATCH_BYTES`."""
    batch: list[Item] = []
    size = 2
    for item in items:
        if batch and (item.incarnation != batch[0].incarnation or size + len(item.text) > BATCH_BYTES):
            yield batch
            batch, size = [], 2
        batch.append(item)
        size += len(item.text) + 1
    if batch:
        yield batch
