"""The form of an outcome on its way from a worker to the leader.

An entry of the outcome stream carries a JSON array of them (`bridge.protocol.outcome_entries`). Each is an array::

    [message id, fence, kind, service ms, started us]                                      done, returned
    [message id, fence, kind, service ms, started us, error, traceback, delay ms | null]   all others
    [message id, fence, "S", service ms, started us, reason, "", null, "X"]                dropped

A newer version may append members. They are ignored. So a leader of an older version takes a dropped message as done:
it does not read the ninth member, the exact kind. "N" and "V" are unknown to a leader of an older version: it leaves
the outcome in the stream, and sends the message again as one that was lost on the way, until a newer leader reads it.

``started us`` is when the task began: Unix time in microseconds by the clock of the worker's machine, 0 for never.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Any

import orjson

from bridge.protocol.outcome_limits import ERROR_CHARS
from bridge.routing.partitions import stream_id

#: Characters of a traceback that are kept: its end, where the cause is.
TRACEBACK_CHARS = 16_384

#: The form of an id, and the exclusive bounds of numbers. Larger numbers could not be stored.
_ID = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")
LARGEST = 1 << 60
LARGEST_MS = 1 << 50


class Kind(Enum):
    """What became of one delivery."""

    DONE = "S"
    #: It raised: an attempt is charged.
    FAILED = "F"
    #: It was cut off half way (its process died, its time limit struck): an attempt is charged.
    LOST = "L"
    #: It was cut off since its worker was told to end at once. No attempt is charged. The rollback still runs.
    INTERRUPTED = "I"
    #: As `FAILED`, before the rollback of an attempt that was cut off had returned: it is still owed.
    FAILED_OWING = "U"
    #: Its task gave it up (`bridge.Dead`, `Reject`, a revoked task, a task that the worker does not know).
    DEAD = "D"
    #: Its task asked that it comes again, and is not charged (`bridge.Nack` with ``charge=False``).
    NACKED = "N"
    #: As `NACKED`, before the rollback of an attempt that was cut off had returned: it is still owed.
    NACKED_OWING = "V"
    #: It is done, and was not handled (`bridge.Drop`): its effects are not applied. ``error`` is the reason.
    DROPPED = "X"
    #: It was never started: no attempt is charged.
    RETURNED = "B"


_KINDS: dict[str, Kind] = {kind.value: kind for kind in Kind}


@dataclass(slots=True)
class Outcome:
    """What became of one delivery of one message.

    ``message_id`` may name the partition. The leader, who has one, gets the stream id alone (`encode`).
    """

    message_id: str
    fence: int
    kind: Kind
    service_ms: float = 0.0
    started_us: int = 0
    error: str = ""
    traceback: str = ""
    delay_ms: int | None = None

    def encode(self) -> bytes:
        """The outcome as JSON."""
        if self.kind is Kind.DONE or self.kind is Kind.RETURNED:
            return b'["%b",%d,"%b",%.3f,%d]' % (
                stream_id(self.message_id).encode(),
                self.fence,
                self.kind.value.encode(),
                self.service_ms,
                self.started_us,
            )
        dropped = self.kind is Kind.DROPPED
        row = [
            stream_id(self.message_id),
            self.fence,
            Kind.DONE.value if dropped else self.kind.value,
            self.service_ms,
            self.started_us,
            _printable(self.error[:ERROR_CHARS]),
            _printable(self.traceback[-TRACEBACK_CHARS:]),
            self.delay_ms,
        ]
        return orjson.dumps([*row, self.kind.value] if dropped else row)


def _printable(text: str) -> str:
    # An exception's text may hold lone surrogates, which are no UTF-8.
    return text.encode(errors="replace").decode()


class NotUnderstood(ValueError):
    """An entry, or an outcome, that this version cannot read. ``newer``: a newer version may have written it."""

    def __init__(self, why: str, *, newer: bool = False) -> None:
        super().__init__(why)
        self.newer = newer


def decode(data: bytes) -> list[Outcome]:
    """The outcomes of one entry. Raises `NotUnderstood`."""
    found, problems = read(data)
    if problems:
        raise problems[0]
    return found


def read(data: bytes) -> tuple[list[Outcome], list[NotUnderstood]]:
    """The outcomes of one entry, and what is wrong with those that cannot be read."""
    try:
        rows = orjson.loads(data)
    except orjson.JSONDecodeError as exc:
        return [], [NotUnderstood(f"outcomes that are not JSON: {exc.msg}")]
    if not isinstance(rows, list):
        return [], [NotUnderstood("outcomes that are not a list")]
    found: list[Outcome] = []
    problems: list[NotUnderstood] = []
    for row in rows:
        try:
            found.append(_outcome(row))
        except NotUnderstood as exc:
            problems.append(exc)
        except (TypeError, ValueError):
            problems.append(NotUnderstood("an outcome that is not in the form of one"))
    return found, problems


def _outcome(row: Any) -> Outcome:
    id_, fence, kind, service_ms, started_us, *more = row
    error, traceback, delay_ms = "", "", None
    if more:
        error, traceback, delay_ms = (*more[:3], "", "", None)[:3] if len(more) < 3 else more[:3]
    if not (
        type(id_) is str
        and _ID.fullmatch(id_)
        and type(fence) is int
        and 0 <= fence < LARGEST
        and type(started_us) is int
        and 0 <= started_us < LARGEST
        and (type(service_ms) is float or type(service_ms) is int)
        and 0 <= service_ms < LARGEST
        and (
            not more
            or (
                type(error) is str
                and type(traceback) is str
                and (delay_ms is None or (type(delay_ms) is int and 0 <= delay_ms < LARGEST_MS))
            )
        )
    ):
        raise NotUnderstood("an outcome with a part that is of the wrong kind, or too large")
    known = _KINDS.get(kind)
    if known is None:
        raise NotUnderstood(f"an outcome of the kind {kind!r:.20}", newer=True)
    if not more:
        return Outcome(id_, fence, known, service_ms, started_us)
    if known is Kind.DONE and len(more) > 3 and more[3] == Kind.DROPPED.value:
        known = Kind.DROPPED
    texts = (error[:ERROR_CHARS], traceback[-TRACEBACK_CHARS:]) if error or traceback else ("", "")
    return Outcome(id_, fence, known, service_ms, started_us, *texts, delay_ms)
