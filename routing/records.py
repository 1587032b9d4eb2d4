"""The ticket record: what Redis knows of a ticket that is in flight or awaits a retry.

A record is one JSON array, a value of the hash ``tickets``::

    [fence, count, consumer, incarnation, attempt, [id, ...], dispatched_ms, cause]

- in flight: ``fence`` is that of the first message of the run; message i of the run has ``fence + i``.
- awaiting a retry: ``fence`` is 0, the only id is that of the message to come again, ``attempt`` its next one.

The fence comes first, so that a script can put it there and read it without parsing the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson


@dataclass(frozen=True)
class Record:
    """A parsed ticket record. ``dispatched_ms`` is Unix time in ms by the leader's clock; for display only."""

    fence: int
    consumer: str
    incarnation: str
    attempt: int
    ids: tuple[str, ...]
    dispatched_ms: int
    cause: str

    @property
    def in_flight(self) -> bool:
        return self.fence > 0


def tail(consumer: str, incarnation: str, attempt: int, ids: list[str], dispatched_ms: int, cause: str = "") -> str:
    """All of a record but its fence: the text after ``[<fence>``."""
    quoted = '","'.join(ids)  # stream ids need no escaping
    names = orjson.dumps([consumer, incarnation]).decode()[1:-1]
    why = orjson.dumps(cause).decode()
    return f',{len(ids)},{names},{attempt},["{quoted}"],{dispatched_ms},{why}]'


def record(fence: int, rest: str) -> str:
    """The record with ``fence`` and the text that `tail` made."""
    return f"[{fence}{rest}"


def parse(text: bytes | str) -> Record:
    """The record in ``text``; ValueError when it is none."""
    fence, count, consumer, incarnation, attempt, ids, dispatched_ms, cause = orjson.loads(text)
    if count != len(ids):
        raise ValueError(f"a ticket record says {count} messages and names {len(ids)}")
    return Record(fence, consumer, incarnation, attempt, tuple(ids), dispatched_ms, cause)
