"""The history of a lane: the result of every delivery of every message.

A capped stream. An entry has one field, ``d``, a JSON array of rows; the leader writes the rows of a step in the
same step, so the history and the lane always agree. A row is an array::

    [message id, ticket, task, consumer, attempt, fence, dispatched ms, started us, service ms, what]
    [message id, ticket, task, consumer, attempt, fence, dispatched ms, started us, service ms, what, why]

- ``consumer``, ``fence``, ``dispatched ms``: '' and 0 when the message was not in flight.
- ``started us``, ``service ms``: when its task began (Unix time in microseconds, by the clock of the worker's machine)
  and for how long it ran; 0 when it did not start, or when that is not known.
- ``what``: a value of `What`.
- ``why``: the reason why the message was dropped; there only when there is one.

The id of the message holds the time when it was added. The id of the entry holds the time when the row was written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import orjson

#: The form of an id, and the limit of all numbers.
_ID = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")
LARGEST = 1 << 60
#: Most characters of a reason that a row has.
WHY_CHARS = 200


class What(Enum):
    """The result of a delivery."""

    #: It succeeded: the last row of its message.
    DONE = "done"
    #: It raised; it comes again.
    FAILED = "failed"
    #: It was cut off, or may have been (worker died, lease ended, time limit). It comes again.
    LOST = "lost"
    #: It was given back and was not started.
    RETURNED = "returned"
    #: Its task refused it without a charge (`bridge.Nack`). It comes again with the same attempt number.
    NACKED = "nacked"
    #: Its task dropped it (`bridge.Drop`): the last row of its message.
    DROPPED = "dropped"
    #: It went to the dead letters: the last row of its message, until it is replayed.
    DEAD = "dead"
    #: It could never be processed, and went to the dead letters without a delivery: the last row.
    REFUSED = "refused"
    #: The lane does not want it (its filter, its tasks), and acknowledged it without a delivery: the last row.
    LEFT_OUT = "left out"
    #: The lane was too far behind (`bridge_max_lag`), and acknowledged it without a delivery: the last row.
    SKIPPED = "skipped"
    #: An outcome had another fence than the current one, and was refused.
    STALE = "stale"
    #: Others overtake it until it is due. ``dispatched ms`` is its due time.
    DELAYED = "delayed"
    #: It was delayed, and is due: it takes its place in the order of its ticket. ``dispatched ms`` is its due time.
    DUE = "due"
    #: It was delayed, and an operator cancelled it before it was begun: the last row.
    CANCELLED = "cancelled"
    #: A dead message was replayed: it goes before all messages of its ticket that were not started.
    REPLAYED = "replayed"


#: What the last row of a message says. After `DEAD` it may still be replayed.
LAST = frozenset({What.DONE, What.DROPPED, What.DEAD, What.REFUSED, What.LEFT_OUT, What.SKIPPED, What.CANCELLED})

#: Counter of the lane (`bridge.routing.keys.LaneKeys.counts`) -> the kinds of rows that it counts. A history with as
#: many rows of each has all of them: nothing was trimmed, and the history was never off.
COUNTED = {
    "done": (What.DONE,),
    "dropped": (What.DROPPED,),
    "nacked": (What.NACKED,),
    "dead": (What.DEAD, What.REFUSED),
    "replayed": (What.REPLAYED,),
    "left_out": (What.LEFT_OUT,),
    "skipped": (What.SKIPPED,),
    "cancelled": (What.CANCELLED,),
}
#: Counters of messages that failed or were cut off, and the kinds of their rows. There may be more of these; where
#: there are fewer, the history was off meanwhile.
COUNTED_AGAIN, ROWS_AGAIN = ("retried", "interrupted"), (What.FAILED, What.LOST)


@dataclass(frozen=True, slots=True)
class Delivery:
    """One row. ``written_ms``: Unix ms by the server's clock."""

    message_id: str
    ticket: str
    task: str
    consumer: str
    attempt: int
    fence: int
    dispatched_ms: int
    started_us: int
    service_ms: float
    what: What
    written_ms: int
    why: str = ""

    @property
    def finished_us(self) -> int:
        """When the task ended, by the same clock as ``started_us``."""
        return self.started_us + round(self.service_ms * 1000)


def row(
    message_id: str,
    what: What,
    *,
    ticket: str = "",
    task: str = "",
    consumer: str = "",
    attempt: int = 0,
    fence: int = 0,
    dispatched_ms: int = 0,
    started_us: int = 0,
    service_ms: float = 0,
    why: str = "",
) -> list[Any]:
    """One row as it is written. It is a list, since that is what orjson takes."""
    found = [message_id, ticket, task, consumer, attempt, fence, dispatched_ms, started_us, service_ms, what.value]
    if why:
        found.append(why[:WHY_CHARS])
    return found


#: The value of an enum is a call, and most rows have this one.
_DONE = What.DONE.value


def done_row(
    message_id: str,
    ticket: str,
    task: str,
    consumer: str,
    attempt: int,
    fence: int,
    dispatched_ms: int,
    started_us: int,
    service_ms: float,
) -> list[Any]:
    """The row of a message that succeeded. Most rows are of this kind, so it takes no names."""
    return [message_id, ticket, task, consumer, attempt, fence, dispatched_ms, started_us, service_ms, _DONE]


def rows_in(fields: Sequence[bytes]) -> bytes:
    """The rows of an entry (JSON), from its fields and values; empty when it is no history entry."""
    return dict(zip(fields[::2], fields[1::2], strict=True)).get(b"d", b"")


def read_entry(id_: bytes | str, data: bytes | str) -> list[Delivery]:
    """The rows ``data`` of the entry ``id_``. Raises ValueError or TypeError when it is not a history
    entry.
    """
    text = id_.decode() if isinstance(id_, bytes) else id_
    written_ms = int(text.partition("-")[0])
    rows: list[list[Any]] = orjson.loads(data)
    found = []
    for id_of, ticket, task, consumer, attempt, fence, dispatched_ms, started_us, service_ms, what, *more in rows:
        texts, numbers = (ticket, task, consumer, *more[:1]), (attempt, fence, dispatched_ms, started_us)
        if not (
            type(id_of) is str
            and _ID.fullmatch(id_of)
            and all(type(name) is str for name in texts)
            and all(type(number) is int and 0 <= number < LARGEST for number in numbers)
            and type(service_ms) in (int, float)
            and 0 <= service_ms < LARGEST
        ):
            raise ValueError(f"a row of the entry {text} has a part of the wrong kind")
        timing = (dispatched_ms, started_us, service_ms)
        found.append(
            Delivery(id_of, ticket, task, consumer, attempt, fence, *timing, What(what), written_ms, *more[:1])
        )
    return found
