"""From a stream entry to a message that can be dispatched, or to the reason why it cannot."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import orjson

#: Longest ticket id, in bytes of UTF-8.
MAX_TICKET_BYTES = 512
#: Deepest nesting of a payload. The parser of a worker, Python's own, gives up near a thousand levels, less what its
#: stack holds already; it would give up on a whole bundle then.
MAX_DEPTH = 200


class Refused(Enum):
    """Why an entry can never be processed; the value is the reason in its dead letter."""

    NO_TICKET = "no ticket_id"
    BAD_TICKET = "ticket_id is empty, longer than 512 bytes, or not UTF-8"
    NOT_UTF8 = "a field is not UTF-8"
    BAD_JSON = "payload is not JSON"
    TOO_LARGE = "payload is larger than bridge_max_payload"
    UNKNOWN_TASK = "unknown task"
    NO_TASK = "names no task, and bridge_default_task is not set"
    TRIMMED = "the entry was deleted from the stream before it was handled"


class Message:
    """One stream entry that can be dispatched. ``payload`` is JSON text, as bytes, already known to be valid."""

    __slots__ = ("id", "payload", "task", "ticket")

    def __init__(self, id_: str, ticket: str, task: str, payload: bytes) -> None:
        self.id = id_
        self.ticket = ticket
        self.task = task
        self.payload = payload

    def __repr__(self) -> str:
        return f"Message({self.id!r}, ticket={self.ticket!r}, task={self.task!r}, {len(self.payload)} bytes)"


@dataclass(frozen=True)
class Refusal:
    """An entry that goes to the dead letters at once. ``fields`` is the whole entry, as it came."""

    id: str
    reason: Refused
    detail: str
    fields: Sequence[bytes]


class EntryParser:
    """Reads entries of one lane. ``known_tasks`` are the names that may be dispatched."""

    def __init__(self, *, default_task: str | None, max_payload: int, known_tasks: Collection[str]) -> None:
        self._default_task = default_task
        self._max_payload = max_payload
        # Keyed by bytes: the name is decoded once for all messages, not once for each.
        self._tasks = {name.encode(): name for name in known_tasks}

    def parse(self, id_: str, fields: Sequence[bytes]) -> Message | Refusal:
        """The message of an entry whose fields and values alternate in ``fields``; a `Refusal` when it has none."""
        if not fields:
            # XADD takes no entry without fields: this one is pending, and not in the stream any more.
            return Refusal(id_, Refused.TRIMMED, "", fields)
        ticket_raw = task_raw = payload = None
        for i in range(0, len(fields), 2):
            name = fields[i]
            if name == b"ticket_id":
                ticket_raw = fields[i + 1]
            elif name == b"payload":
                payload = fields[i + 1]
            elif name == b"task":
                task_raw = fields[i + 1]
        if ticket_raw is None:
            return Refusal(id_, Refused.NO_TICKET, "", fields)
        try:
            ticket = ticket_raw.decode()
        except UnicodeDecodeError:
            return Refusal(id_, Refused.BAD_TICKET, "", fields)
        if not 0 < len(ticket_raw) <= MAX_TICKET_BYTES:
            return Refusal(id_, Refused.BAD_TICKET, f"{len(ticket_raw)} bytes", fields)
        if task_raw is None:
            if self._default_task is None:
                return Refusal(id_, Refused.NO_TASK, "", fields)
            task: str | None = self._default_task
        else:
            task = self._tasks.get(task_raw)
            if task is None:
                return Refusal(id_, Refused.UNKNOWN_TASK, task_raw.decode(errors="replace"), fields)
        if payload is None:
            try:
                payload = payload_of_fields(fields)
            except UnicodeDecodeError:
                return Refusal(id_, Refused.NOT_UTF8, "", fields)
            if len(payload) > self._max_payload:
                return Refusal(id_, Refused.TOO_LARGE, f"{len(payload)} bytes", fields)
        else:
            if len(payload) > self._max_payload:
                return Refusal(id_, Refused.TOO_LARGE, f"{len(payload)} bytes", fields)
            try:
                parsed = orjson.loads(payload)
            except orjson.JSONDecodeError as exc:
                reason = Refused.BAD_JSON if _is_utf8(payload) else Refused.NOT_UTF8
                return Refusal(id_, reason, str(exc), fields)
            if payload.count(b"[") + payload.count(b"{") > MAX_DEPTH and _is_deep(parsed):
                return Refusal(id_, Refused.BAD_JSON, f"nested more than {MAX_DEPTH} levels deep", fields)
        return Message(id_, ticket, task or "", payload)


def payload_of_fields(fields: Sequence[bytes]) -> bytes:
    """The payload of an entry that has no ``payload`` field: its other fields, as a JSON object of strings."""
    rest = {
        fields[i].decode(): fields[i + 1].decode()
        for i in range(0, len(fields), 2)
        if fields[i] not in (b"ticket_id", b"task")
    }
    return orjson.dumps(rest)


def _is_deep(parsed: Any) -> bool:
    level = [parsed]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
