"""The runs that a Celery message carries: in its headers, and, of a bundle, in its body. How they are written and read.

Header `HEADER_RUNS` has a row for each run (`RunHead`); the body of a bundle has a row with its messages
(`BundledRun`). The body of a message that travels alone is Celery's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import orjson

from bridge.protocol.names import HEADER_BASE, HEADER_LOST, HEADER_OWN, HEADER_RUNS
from bridge.routing.messages import Message
from bridge.routing.records import LostAttempt, lost_row


class RunHead(NamedTuple):
    """What the headers say of one run."""

    ticket: str
    #: The fence of its first message, less the fence base of the dispatch.
    offset: int
    #: How many messages it has.
    length: int
    #: The attempt of its first message; all others are at their first.
    attempt: int
    #: 1: it goes out again, since it seems to be lost.
    doubt: int

    @staticmethod
    def text(ticket: bytes, offset: int, length: int, attempt: int, doubt: bool) -> bytes:
        """The row. ``ticket``: as JSON."""
        return b"[%b,%d,%d,%d,%d]" % (ticket, offset, length, attempt, doubt)


class BundledRun(NamedTuple):
    """One run in the body of a bundle."""

    ticket: str
    offset: int
    attempt: int
    #: ``[message id, task, payload]`` of each message.
    messages: list[list[Any]]

    @staticmethod
    def text(ticket: bytes, offset: int, attempt: int, messages: Sequence[Message], id_suffix: bytes) -> bytes:
        """The row. ``ticket``: as JSON. ``id_suffix``: what follows a stream id in a message id."""
        items = b",".join(
            b'["%b%b",%b,%b]' % (m.id.encode(), id_suffix, _quoted_task(m.task), m.payload) for m in messages
        )
        return b"[%b,%d,%d,[%b]]" % (ticket, offset, attempt, items)


class OwnRules(NamedTuple):
    """The options of a message that its worker goes by, in place of its task's."""

    max_attempts: int | None
    timeout_ms: int | None
    #: Unix ms. None also for a message that was begun before.
    expires_ms: int | None
    #: The task's soft time limit, in seconds. Not in the header.
    soft_limit: float | None = None

    def text(self) -> bytes:
        """The header `HEADER_OWN` with its name, as JSON."""
        return b'"%b":%b' % (HEADER_OWN.encode(), orjson.dumps(self[:3]))

    def time_limits(self) -> bytes:
        """Celery's header ``timelimit`` with its name, as JSON. Celery begins the hard limit when the soft one strikes.

        So the soft one is not longer.
        """
        assert self.timeout_ms is not None
        hard = self.timeout_ms / 1000
        soft = hard if self.soft_limit is not None and self.soft_limit > hard else None
        return b'"timelimit":' + orjson.dumps([hard, soft])


def own_rules(headers: Mapping[str, Any]) -> OwnRules | None:
    """The options of a message that travels alone; None: it has none that its worker goes by."""
    values = headers.get(HEADER_OWN)
    return None if values is None else OwnRules(*values)


@cache
def _quoted_task(name: str) -> bytes:
    return orjson.dumps(name)


def heads_of(headers: Mapping[str, Any]) -> list[RunHead]:
    """The runs; none in a request to the worker."""
    return list(map(RunHead._make, headers[HEADER_RUNS]))


def first_head(headers: Mapping[str, Any]) -> RunHead:
    """The first run, which is the only one of a message that travels alone."""
    return RunHead._make(headers[HEADER_RUNS][0])


def first_fence(headers: Mapping[str, Any]) -> int:
    """The fence of the first message. Only a copy of this Celery message has the same one."""
    return int(headers[HEADER_BASE]) + first_head(headers).offset


def bundled_runs(body: str | bytes) -> list[BundledRun]:
    """The runs in the body of a bundle. Raises ValueError, TypeError, LookupError or RecursionError."""
    return list(map(BundledRun._make, json.loads(body)))


def readable_runs(body: str | bytes, unreadable: Any) -> list[BundledRun]:
    """As `bundled_runs`. A payload that Python's parser refuses is replaced by ``unreadable``."""
    try:
        return bundled_runs(body)
    except (ValueError, RecursionError):
        runs = map(BundledRun._make, orjson.loads(body))
    return [
        run._replace(messages=[[id_, task, _reread(payload, unreadable)] for id_, task, payload in run.messages])
        for run in runs
    ]


def _reread(payload: Any, unreadable: Any) -> Any:
    try:
        return json.loads(orjson.dumps(payload))
    except (ValueError, RecursionError):
        return unreadable


def lost_text(lost: LostAttempt) -> bytes:
    """The header `HEADER_LOST` with its name, as JSON."""
    return b'"%b":%b' % (HEADER_LOST.encode(), orjson.dumps(lost_row(lost)))


def lost_of(headers: Mapping[str, Any]) -> LostAttempt | None:
    """The attempt of the message that was cut off half way, if there was one."""
    values = headers.get(HEADER_LOST)
    return LostAttempt(*values) if values else None
