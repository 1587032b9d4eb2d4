"""The ticket record: what Redis holds about a ticket that is in flight, awaits a retry, or is parked.

A record is one JSON array, a value of the hash ``tickets``::

    [fence, count, consumer, incarnation, attempt, [id, ...], at_ms, cause]
    [fence, count, consumer, incarnation, attempt, [id, ...], at_ms, cause, losses, lost]

- in flight: ``fence`` is that of the first message of the run; message i of the run has ``fence + i``.
- awaiting a retry: ``fence`` is 0; the only id is that of the message to retry; ``attempt`` is its next attempt.
- parked: ``fence`` is -1. If there is an id, it is that of a message that was begun before.

``losses`` counts the consumers that ended while this message may have been running, and ``lost`` is the last attempt
that was cut off half way, ``[attempt, fence, consumer, cause]`` or null; both are left out when they are 0 and null.

The fence comes first, so that a script can put it there and read it without parsing the rest.

The ``cause`` of a message that its task refused without a charge says how often in a row, and since when
(`nacked_cause`). It is a text, and no member of its own, so that a leader of an older version can read the record.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import orjson

from bridge.routing.ids import can_be_id

#: Values in place of the fence: the ticket awaits a retry, or is parked.
AWAITING = 0
PARKED = -1
#: The cause in the record of a ticket that waits for its oldest message until that is due.
HELD = "held until it is due"
#: Beginning of the cause in the record of a run whose ticket is to be parked after the run.
PARK_AFTER = "park: "

_AWAITING = f"[{AWAITING},".encode()
_HELD = f'"{HELD}"'.encode()
_NACKED = re.compile(r"nacked ([0-9]{1,9}) times? since (\S{1,40})")


@dataclass(frozen=True)
class LostAttempt:
    """An attempt that was cut off: its worker died, its lease ended, or its time limit struck.

    ``attempt`` and ``fence`` are what the task had as ``self.ticket.attempt`` and ``self.ticket.fence``. Of several
    attempts in a row that were cut off it is the last one. ``first_fence`` is the fence of the first of them: nobody
    knows which of them were rolled back before the next one was cut off.
    """

    attempt: int
    fence: int
    consumer: str
    cause: str
    first_fence: int = 0

    def __post_init__(self) -> None:
        if not self.first_fence:
            object.__setattr__(self, "first_fence", self.fence)

    def after(self, before: LostAttempt | None) -> LostAttempt:
        """The same attempt, behind ``before``; None: the attempt before it was not cut off."""
        return self if before is None else replace(self, first_fence=before.first_fence)


def lost_row(lost: LostAttempt) -> list[Any]:
    """``[attempt, fence, consumer, cause, first fence]``: how records and Celery messages name it."""
    return [lost.attempt, lost.fence, lost.consumer, lost.cause, lost.first_fence]


@dataclass(frozen=True)
class Record:
    """A parsed ticket record. ``at_ms``: Unix ms by the leader's clock when it was written; for display only."""

    fence: int
    consumer: str
    incarnation: str
    attempt: int
    ids: tuple[str, ...]
    at_ms: int
    cause: str
    losses: int = 0
    lost: LostAttempt | None = None

    @property
    def in_flight(self) -> bool:
        return self.fence > 0

    @property
    def parked(self) -> bool:
        return self.fence == PARKED


def is_held(text: bytes) -> bool:
    """Whether a ticket record, which need not be parsed for this, says that its ticket waits for a message that is not
    due. Quotes within a cause are escaped.
    """
    return text.startswith(_AWAITING) and _HELD in text


def nacked_cause(times: int, since_ms: int, why: str) -> str:
    """The cause of a message that its task refused ``times`` times in a row without a charge, since ``since_ms``."""
    since = datetime.fromtimestamp(since_ms / 1000, UTC).isoformat(timespec="milliseconds")
    text = f"nacked {times} time{'s' if times > 1 else ''} since {since}"
    return f"{text}: {why}" if why else text


def nacks_in(cause: str) -> tuple[int, int]:
    """How often a message was refused without a charge, and since when (Unix ms), by its cause; (0, 0): it was not."""
    found = _NACKED.match(cause)
    if found is None:
        return 0, 0
    try:
        return int(found[1]), round(datetime.fromisoformat(found[2].rstrip(":")).timestamp() * 1000)
    except (ValueError, OverflowError):
        return 0, 0


def tail(
    consumer: str,
    incarnation: str,
    attempt: int,
    ids: list[str],
    at_ms: int,
    cause: str = "",
    losses: int = 0,
    lost: LostAttempt | None = None,
) -> str:
    """The text of a record after ``[<fence>``."""
    quoted = ('"' + '","'.join(ids) + '"') if ids else ""  # stream ids need no escaping
    why = orjson.dumps(cause).decode() if cause else '""'
    text = f",{len(ids)},{_names(consumer, incarnation)},{attempt},[{quoted}],{at_ms},{why}"
    if not losses and lost is None:
        return text + "]"
    return f"{text},{losses},{orjson.dumps(None if lost is None else lost_row(lost)).decode()}]"


@lru_cache(maxsize=4096)
def _names(consumer: str, incarnation: str) -> str:
    return orjson.dumps([consumer, incarnation]).decode()[1:-1]


def record(fence: int, rest: str) -> str:
    """The record with ``fence`` and the text that `tail` made."""
    return f"[{fence}{rest}"


def parse(text: bytes | str) -> Record:
    """Parses the record in ``text``. Raises ValueError when it is not a record: somebody wrote it by hand."""
    try:
        fence, count, consumer, incarnation, attempt, ids, at_ms, cause, *more = orjson.loads(text)
        losses, lost = more or (0, None)
        lost_attempt = LostAttempt(*lost) if lost is not None else None
    except TypeError as exc:
        raise ValueError(f"no ticket record: {exc}") from None
    row = () if lost_attempt is None else lost_row(lost_attempt)
    numbers, texts = (fence, attempt, at_ms, losses, *row[:2], *row[4:]), (consumer, incarnation, cause, *row[2:4])
    if not (_all(int, numbers) and _all(str, texts) and isinstance(ids, list) and _all(str, ids)):
        raise ValueError("a ticket record with a value of another type")
    if not all(map(can_be_id, ids)):
        raise ValueError("a ticket record names what is no message")
    least, most = {PARKED: (0, 1), AWAITING: (1, 1)}.get(fence, (1, len(ids)))
    if count != len(ids) or not least <= count <= most or fence < PARKED:
        raise ValueError(f"a ticket record says {count} messages and names {len(ids)}")
    return Record(fence, consumer, incarnation, attempt, tuple(ids), at_ms, cause, losses, lost_attempt)


def _all(of: type, values: Iterable[object]) -> bool:
    return all(type(value) is of for value in values)
