"""CloudEvents 1.0 in and out: the form of messages, for clients that ask for it. ``partitionkey`` is the ticket.

In: structured (``application/cloudevents+json``), batched (``application/cloudevents-batch+json``) and binary (the
attributes are headers with ``ce-``). The data is the payload. An event has the identity of its ``source`` and ``id``:
it is pushed once, as with an idempotency key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, unquote

from bridge.http.problems import Problem

STRUCTURED = "application/cloudevents+json"
BATCHED = "application/cloudevents-batch+json"
VERSION = "1.0"
_HEADER = "ce-"
#: The attributes that an event must have, and the one that names its ticket.
REQUIRED = ("specversion", "id", "source", "type", "partitionkey")
#: The type of the events that are handed out.
MESSAGE_TYPE = "ticket-bridge.message"


def is_binary(headers: Mapping[str, str]) -> bool:
    """Whether a request carries an event in the binary mode."""
    return f"{_HEADER}specversion" in headers


def binary_event(headers: Mapping[str, str], data: Any) -> dict[str, Any]:
    """The event of a request in the binary mode. The values of its headers are percent-encoded."""
    event: dict[str, Any] = {
        name.removeprefix(_HEADER): unquote(value) for name, value in headers.items() if name.startswith(_HEADER)
    }
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
            if not isinstance(event.get(name), str) or not event[name]:
                raise Problem(400, f"{where}the attribute {name} must be a text that is not empty")
        if event["specversion"] != VERSION:
            raise Problem(400, f"{where}specversion must be {VERSION}")
        if "data_base64" in event:
            raise Problem(400, f"{where}data_base64 is not supported: payloads are JSON, in data")
    return events


def key_of(events: Iterable[Mapping[str, Any]]) -> str:
    """The idempotency key of events: the same events, sent again, have the same."""
    seen = hashlib.sha256()
    for event in events:
        for name in ("source", "id"):
            seen.update(event[name].encode(errors="surrogatepass") + b"\0")
    return f"cloudevents {seen.hexdigest()}"


def event_of(message: Mapping[str, Any], stream: str) -> dict[str, Any]:
    """A message that is handed out, as an event. ``stream``: of its lane.

    What belongs to the delivery, such as the fence, is in attributes of their own.
    """
    ms, _, _ = str(message["message_id"]).partition("-")
    event = {
        "specversion": VERSION,
        "id": message["message_id"],
        "source": f"/streams/{quote(stream, safe='')}",
        "type": message.get("task") or MESSAGE_TYPE,
        "partitionkey": message["ticket_id"],
        "time": datetime.fromtimestamp(int(ms) / 1000, UTC).isoformat(timespec="milliseconds"),
        "datacontenttype": "application/json",
        # Integers of CloudEvents have 32 bits.
        **{name: str(message[member]) for name, member in _DELIVERY.items() if message.get(member) is not None},
        "data": message["payload"],
    }
    if (lost := message.get("lost")) is not None:
        event["lost"] = lost
    return event


#: Attribute -> the member of the message.
_DELIVERY = {"fence": "fence", "attempt": "attempt", "deadlinems": "deadline_ms"}
