"""Reads dead letters: what was given up, why, and the whole message. Never writes.

A letter is an entry of the lane's dead letter stream. One that was given up after attempts has the message's ticket,
task and payload; one that could never be processed has the entry as it came, each field under ``field:<name>``, and
neither names nor values of those need be UTF-8.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from redis import Redis

    from routing.keys import LaneKeys

#: Letters in one page: each may hold a whole payload and 16 KiB of traceback.
PAGE = 100
#: Most digits of a number: of a fence, in microseconds since 1970.
DIGITS = 18

_FIELD = b"field:"


@dataclass(frozen=True)
class Letter:
    """One dead letter. ``fields``: the entry as it came, for one that could never be processed; else empty."""

    #: Its own id in the dead letter stream.
    id: str
    message_id: str
    reason: str
    error: str
    traceback: str
    attempts: int
    #: Unix time in ms.
    at_ms: int
    #: None: the message named none that can be read.
    ticket_id: str | None
    task: str | None
    #: JSON text, unless the message was refused for it.
    payload: bytes | None
    consumer: str | None
    fence: int | None
    fields: tuple[tuple[bytes, bytes], ...]

    def summary(self) -> dict[str, Any]:
        """What a list shows of it, for JSON."""
        return {
            "letter_id": self.id,
            "message_id": self.message_id,
            "ticket_id": self.ticket_id,
            "task": self.task,
            "reason": self.reason,
            "error": self.error,
            "attempts": self.attempts,
            "at_ms": self.at_ms,
            "consumer": self.consumer,
        }

    def document(self) -> dict[str, Any]:
        """All of it, for JSON. Bytes that are no UTF-8 become ``{"base64": …}``, so that nothing is lost."""
        return {
            **self.summary(),
            "fence": self.fence,
            "traceback": self.traceback,
            "payload": _json_or_text(self.payload),
            "fields": [[_text_or_base64(name), _text_or_base64(value)] for name, value in self.fields],
        }


def read_letter(id_: bytes, flat: list[bytes]) -> Letter:
    """The letter in an entry whose fields and values alternate in ``flat``."""
    own: dict[bytes, bytes] = {}
    came: list[tuple[bytes, bytes]] = []
    for i in range(0, len(flat), 2):
        if flat[i].startswith(_FIELD):
            came.append((flat[i].removeprefix(_FIELD), flat[i + 1]))
        else:
            own[flat[i]] = flat[i + 1]
    entry = dict(came)
    return Letter(
        id=id_.decode(),
        message_id=_text(own.get(b"message_id")) or "",
        reason=_text(own.get(b"reason")) or "",
        error=_text(own.get(b"error")) or "",
        traceback=_text(own.get(b"traceback")) or "",
        attempts=_number(own.get(b"attempts")),
        at_ms=_number(own.get(b"at_ms")),
        ticket_id=_text(own.get(b"ticket_id", entry.get(b"ticket_id"))),
        task=_text(own.get(b"task", entry.get(b"task"))),
        payload=own.get(b"payload", entry.get(b"payload")),
        consumer=_text(own.get(b"consumer")),
        fence=_number(own[b"fence"]) if own.get(b"fence") else None,
        fields=tuple(came),
    )


def newest_first(redis: Redis, keys: LaneKeys) -> Iterator[Letter]:
    """All letters of the lane, the newest first, a page at a time. Raises redis errors."""
    end = "+"
    while True:
        page = redis.execute_command("XREVRANGE", keys.dead, end, "-", "COUNT", PAGE)
        for id_, flat in page:
            yield read_letter(id_, flat)
        if len(page) < PAGE:
            return
        end = f"({page[-1][0].decode()}"


def of_message(redis: Redis, keys: LaneKeys, id_: str) -> list[Letter]:
    """The letters of message ``id_``, oldest first; or the one letter whose own id that is.

    Reads the dead letters once: there is no index by message, and nobody looks up many.
    """
    found = [letter for letter in newest_first(redis, keys) if id_ in (letter.message_id, letter.id)]
    return found[::-1]


def chosen(
    letters: Iterator[Letter], *, ticket: str | None = None, task: str | None = None, reason: str | None = None
) -> Iterator[Letter]:
    """Those of ``letters`` that have this ticket, this task, and this text somewhere in their reason or error."""
    tests: list[Callable[[Letter], bool]] = []
    if ticket is not None:
        tests.append(lambda letter: letter.ticket_id == ticket)
    if task is not None:
        tests.append(lambda letter: letter.task == task)
    if reason is not None:
        wanted = reason.casefold()
        tests.append(lambda letter: wanted in letter.reason.casefold() or wanted in letter.error.casefold())
    return (letter for letter in letters if all(test(letter) for test in tests))


def _number(value: bytes | None) -> int:
    """A number that is no more than a time in the year 9999 or a fence; 0 for anything else, which is not ours."""
    return int(value) if value is not None and len(value) <= DIGITS and value.isdigit() else 0


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="backslashreplace")


def _text_or_base64(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _json_or_text(payload: bytes | None) -> Any:
    if payload is None:
        return None
    try:
        orjson.loads(payload)
    except orjson.JSONDecodeError:
        return _text_or_base64(payload)
    # As it came: reading and writing it again would round long numbers.
    return orjson.Fragment(payload)
