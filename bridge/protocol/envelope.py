"""Celery messages (protocol 2), made by Celery and kombu once for each task, then filled as text for each message.

A message is published into kombu's in-memory transport, and what arrives there is taken apart at marked places. So it
is what the installed Celery and kombu would send, at the price of joining a few strings. The body stays plain UTF-8:
the Redis transport decodes it only when ``body_encoding`` says that it must.

Every text starts with `OPENING`, then the fence base, which the script puts there: it alone knows it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
from kombu import Connection, Producer

from bridge.protocol.headers import BundledRun, OwnRules, RunHead, bundled_runs, first_fence, first_head, lost_text
from bridge.protocol.names import (
    BUNDLE_TASK,
    HEADER_ALONE,
    HEADER_BASE,
    HEADER_FIRST,
    HEADER_INCARNATION,
    HEADER_REQUEST,
    HEADER_RUNS,
    WorkerRequest,
)
from bridge.protocol.outcomes import Kind, Outcome
from bridge.routing.messages import Message
from bridge.routing.partitions import stream_id
from bridge.routing.records import LostAttempt

if TYPE_CHECKING:
    from celery import Celery

#: How each Celery message begins, up to the fence base.
OPENING = f'{{"headers":{{"{HEADER_BASE}":'

#: Celery's header of a message without time limits of its own.
NO_LIMITS = b'"timelimit":[null,null]'

#: Characters of a payload that are shown in Flower.
SHOWN = 120

_FIRST = b',"%b":1' % HEADER_FIRST.encode()
#: The id of each request to a worker: nothing refers to it.
REQUEST_ID = b"word"
_MARK = "@@{}@@"
#: Held while a sample of a Celery message is made.
_sampling = threading.Lock()


class Envelopes:
    """Makes the text of Celery messages for the tasks of one app.

    ``ignores_result`` answers for a task that only consumers have. ``id_suffix``: what follows a stream id of the lane
    in a message id.
    """

    def __init__(
        self, app: Celery, ignores_result: Callable[[str], bool] = lambda _task: True, id_suffix: str = ""
    ) -> None:
        self._app = app
        self._id_suffix = id_suffix.encode()
        self._ignores_result = ignores_result
        self._template = lru_cache(maxsize=4096)(self._make_template)
        self._embed = self._sample("x", True)[1]

    def plain(
        self,
        incarnation: str,
        queue: str,
        message: Message,
        offset: int,
        attempt: int,
        doubt: bool,
        lost: LostAttempt | None = None,
        *,
        alone: bool = False,
        own: OwnRules | None = None,
        first: bool = False,
    ) -> bytes:
        """The text, after the opening and the base, of one message that travels as an ordinary Celery message.

        ``alone``: the worker takes it only while it has nothing of its other lanes. Else it gives it back. ``own``:
        its own options. ``first``: the worker runs it before what waits there.
        """
        ticket = orjson.dumps(message.ticket)
        payload = message.payload
        shown = f"({message.ticket!r}, {payload[:SHOWN].decode(errors='replace')}{'…' if len(payload) > SHOWN else ''})"
        body = b"[[" + ticket + b"," + payload + b"],{}," + self._embed + b"]"
        runs = b"[" + RunHead.text(ticket, offset, 1, attempt, doubt) + b"]"
        if lost is not None:
            runs += b"," + lost_text(lost)
        if alone:
            runs += b',"%b":1' % HEADER_ALONE.encode()
        if first:
            runs += _FIRST
        parts = self._template(message.task, queue, incarnation)
        if own is not None:
            runs += b"," + own.text()
            if own.timeout_ms is not None:
                parts = [part.replace(NO_LIMITS, own.time_limits(), 1) for part in parts]
        return _filled(
            parts,
            runs=runs,
            id_=message.id.encode() + self._id_suffix,
            retries=b"%d" % (attempt - 1),
            shown=orjson.dumps(shown),
            body=orjson.dumps(body.decode()),
        )

    def bundle(
        self, incarnation: str, queue: str, runs: Sequence[Run], limits: Limits, *, first: bool = False
    ) -> bytes:
        """The same for a bundle."""
        heads = []
        bodies = []
        count = 0
        for ticket, offset, attempt, doubt, messages in runs:
            name = orjson.dumps(ticket)
            heads.append(RunHead.text(name, offset, len(messages), attempt, doubt))
            bodies.append(BundledRun.text(name, offset, attempt, messages, self._id_suffix))
            count += len(messages)
        return _filled(
            self._template(BUNDLE_TASK, queue, incarnation, limits),
            runs=b"[" + b",".join(heads) + b"]" + (_FIRST if first else b""),
            id_=b"bundle-" + runs[0].messages[0].id.encode() + self._id_suffix,
            retries=b"0",
            shown=b'"%d messages of %d tickets"' % (count, len(runs)),
            body=orjson.dumps((b"[" + b",".join(bodies) + b"]").decode()),
        )

    def request(self, incarnation: str, queue: str, request: WorkerRequest) -> bytes:
        """The same for a message without a run: a request to the worker itself."""
        return _filled(
            self._template(BUNDLE_TASK, queue, incarnation),
            runs=b'[],"%b":%b' % (HEADER_REQUEST.encode(), orjson.dumps(request.value)),
            id_=REQUEST_ID,
            retries=b"0",
            shown=orjson.dumps(request.value),
            body=orjson.dumps((b"[[],{}," + self._embed + b"]").decode()),
        )

    def _sample(self, name: str, ignore_result: bool, limits: Limits = (None, None)) -> tuple[dict[str, Any], bytes]:
        mark = _MARK.format
        sent = self._app.amqp.as_task_v2(
            mark("ID"),
            name,
            args=[mark("ARGS")],
            argsrepr=mark("SHOWN"),
            ignore_result=ignore_result,
            time_limit=limits[0],
            soft_time_limit=limits[1],
        )
        # All connections to memory share its queues, and each lane's leader makes templates on a thread of its own.
        with _sampling, Connection("memory://") as memory, memory.channel() as channel:
            channel.queue_declare("sample")
            Producer(channel, serializer="json", auto_declare=False).publish(
                sent.body, exchange="", routing_key="sample", headers=sent.headers, delivery_mode=2, **sent.properties
            )
            raw: dict[str, Any] = channel._get("sample")
        return raw, json.dumps(sent.body[2], separators=(",", ":")).encode()

    def _make_template(self, task: str, queue: str, incarnation: str, limits: Limits = (None, None)) -> list[bytes]:
        known = self._app.tasks.get(task)
        ignore = bool(known.ignore_result) if known is not None else self._ignores_result(task)
        raw, _ = self._sample(task, ignore, limits)
        mark = _MARK.format
        headers = {HEADER_BASE: None, HEADER_RUNS: mark("RUNS"), HEADER_INCARNATION: incarnation}
        raw["headers"] = {**headers, **raw["headers"], "retries": mark("RETRIES"), "root_id": mark("ROOT")}
        raw["headers"]["id"] = mark("ID")
        properties = raw["properties"]
        properties.pop("body_encoding", None)
        properties["delivery_info"] = {"exchange": "", "routing_key": queue}
        # The queue is consumed without acknowledgements, so the tag names nothing; kombu wants one.
        properties["delivery_tag"] = "0"
        properties["correlation_id"] = mark("CORRELATION")
        raw["body"] = mark("BODY")
        ordered = {"headers": raw.pop("headers"), "properties": raw.pop("properties"), **raw}
        ordered["body"] = ordered.pop("body")
        text = json.dumps(ordered, separators=(",", ":"))
        opening = OPENING + "null"
        if not text.startswith(opening):
            raise AssertionError("a Celery message does not begin as the script expects")
        parts = []
        rest = text.removeprefix(opening)
        for name in ("RUNS", "ID", "RETRIES", "ROOT", "SHOWN", "CORRELATION", "BODY"):
            # Ids are filled in between the quotes, the rest comes as JSON.
            marker = mark(name) if name in ("ID", "ROOT", "CORRELATION") else f'"{mark(name)}"'
            before, found, rest = rest.partition(marker)
            if not found:
                raise AssertionError(f"the template of a Celery message has no {name}")
            parts.append(before.encode())
        return [*parts, rest.encode()]


def _filled(parts: Sequence[bytes], *, runs: bytes, id_: bytes, retries: bytes, shown: bytes, body: bytes) -> bytes:
    """A template (`Envelopes._make_template`) with its marks filled in. ``id_``: also the root's id and the correlation
    id.
    """
    filled = (
        *(parts[0], runs, parts[1], id_, parts[2], retries, parts[3], id_),
        *(parts[4], shown, parts[5], id_, parts[6], body, parts[7]),
    )
    return b"".join(filled)


def returned(message: dict[str, Any], incarnation: str) -> list[Outcome]:
    """Outcomes that give back what a Celery message (as the broker holds it) carries.

    The rest of a run goes back with its first message.
    """
    headers = message["headers"]
    if headers.get(HEADER_INCARNATION) != incarnation or HEADER_REQUEST in headers:
        return []
    base = headers[HEADER_BASE]
    if headers["task"] != BUNDLE_TASK:
        return [Outcome(stream_id(headers["id"]), first_fence(headers), Kind.RETURNED)]
    try:
        runs = bundled_runs(message["body"])
        return [Outcome(stream_id(run.messages[0][0]), base + run.offset, Kind.RETURNED) for run in runs]
    except (ValueError, TypeError, LookupError, RecursionError):
        # No bundle's body. The headers say enough if they have a single message.
        is_single = len(headers[HEADER_RUNS]) == 1 and first_head(headers).length == 1
        return [Outcome(stream_id(headers["id"]), first_fence(headers), Kind.RETURNED)] if is_single else []


class Run(NamedTuple):
    """One run that is to go out."""

    ticket: str
    #: The fence of its first message, less the fence base of the dispatch.
    offset: int
    #: The attempt of its first message.
    attempt: int
    doubt: bool
    messages: Sequence[Message]


#: (hard, soft) time limit in seconds; None: the task's own.
Limits = tuple[float | None, float | None]
