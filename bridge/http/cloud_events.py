"""CloudEvents 1.0 in and out: the form of messages, for clients that ask for it. ``partitionkey`` is the ticket.

In: structured (``application/cloudevents+json``), batched (``application/cloudevents-batch+json``) and binary (the
attributes are headers with ``ce-``). The data is the payload. An event has the identity of its ``source`` and ``id``:
it is pushed once, as with an idempotency key.

Out: a receive with ``Accept: application/cloudevents-batch+json`` answers a batch.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, unquote_to_bytes

import orjson

from bridge.http.given_messages import Given, lost_document, own_document
from bridge.http.problems import Problem

STRUCTURED = "application/cloudevents+json"
BATCHED = "application/cloudevents-batch+json"
VERSION = "1.0"
_HEADER = "ce-"
#: The last moment that the attribute ``time`` can name, in Unix ms. Not every id of a message is a time.
LAST_MS = 253_402_300_799_999
#: The attributes that an event must have, and the one that names its ticket.
REQUIRED = ("specversion", "id", "source", "type", "partitionkey")
#: What the text of an attribute may be (CloudEvents 1.0, 2.2): not empty, without control characters.
TEXT = r"[^\u0000-\u001f\u007f-\u009f]+"
_is_text = re.compile(TEXT).fullmatch


def is_binary(headers: Mapping[str, str]) -> bool:
    """Whether a request carries an event in the binary mode."""
    return f"{_HEADER}specversion" in headers


def binary_event(headers: Mapping[str, str], data: Any) -> dict[str, Any]:
    """The event of a request in the binary mode. The values of its headers are percent-encoded UTF-8.

    Raises `Problem` (400) if that of a required attribute is not: two tickets must not become one, nor one ticket
    another one. Any other such attribute is left out: nothing reads it.
    """
    event: dict[str, Any] = {}
    for header, value in headers.items():
        name = header.removeprefix(_HEADER)
        if name == header:
            continue
        try:
            event[name] = unquote_to_bytes(value.encode("ascii")).decode()
        except UnicodeError:
            if name in REQUIRED:
                raise Problem(400, f"the attribute {name} must be UTF-8, percent-encoded in its header") from None
    return {**event, "data": data}


def checked(events: Any) -> Sequence[Mapping[str, Any]]:
    """``events``, if each has what it needs. Raises `Problem` (400)."""
    if not isinstance(events, list):
        raise Problem(400, "a batch of events must be a JSON array")
    for number, event in enumerate(events):
        where = f"event {number}: " if len(events) > 1 else ""
        if not isinstance(event, dict):
            raise Problem(400, f"{where}an event must be a JSON object")
        for name in REQUIRED:
            if not isinstance(event.get(name), str) or not _is_text(event[name]):
                raise Problem(
                    400, f"{where}the attribute {name} must be a text that is not empty, without control characters"
                )
        if event["specversion"] != VERSION:
            raise Problem(400, f"{where}specversion must be {VERSION}")
        if "data_base64" in event:
            raise Problem(400, f"{where}data_base64 is not supported: payloads are JSON, in data")
    return events


def key_of(event: Mapping[str, Any]) -> str:
    """The idempotency key of an event: the same one, sent again, has the same, in whatever batch it comes."""
    seen = hashlib.sha256()
    for name in ("source", "id"):
        seen.update(event[name].encode(errors="surrogatepass") + b"\0")
    return f"cloudevents {seen.hexdigest()}"


def wants_events(accept: str) -> bool:
    """Whether the header ``Accept`` asks for a batch of events."""
    return any(part.partition(";")[0].strip().lower() == BATCHED for part in accept.split(","))


def events_of(given: Iterable[Given], stream: str, deadline_ms: int) -> bytes:
    """Messages that are handed out, as a batch. ``stream``: the app's."""
    return orjson.dumps([_event_of(one, stream, deadline_ms) for one in given])


def _event_of(given: Given, stream: str, deadline_ms: int) -> dict[str, Any]:
    """What belongs to the delivery, such as the fence, is in attributes of their own: an acknowledgement needs it."""
    event: dict[str, Any] = {
        "specversion": VERSION,
        "id": given.message_id,
        "source": f"/streams/{quote(stream, safe='')}",
        "type": given.task,
        "partitionkey": given.ticket,
        "datacontenttype": "application/json",
        # Integers of CloudEvents have 32 bits.
        "fence": str(given.fence),
        "attempt": given.attempt,
        "deadlinems": str(deadline_ms),
        # As the producer wrote it.
        "data": orjson.Fragment(given.payload),
    }
    ms = int(given.message_id.partition("-")[0])
    if ms <= LAST_MS:
        event["time"] = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    if given.lost is not None:
        event["lostattempt"] = orjson.dumps(lost_document(given.lost)).decode()
    if given.own is not None:
        event |= {name.replace("_", ""): str(value) for name, value in own_document(given.own).items()}
    return event
