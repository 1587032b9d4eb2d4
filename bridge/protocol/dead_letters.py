"""A dead letter as an entry of the lane's dead letter stream: how the leader writes it, how others read it. No I/O.

A letter of a message that was given up after attempts has the message's ticket, task and payload. A letter of an entry
that could never be processed has the entry's own fields, each as ``field:<name>``. Names and values need not be UTF-8.

The message's own entry stays in the stream while the letter exists, and a replay reads that entry. So the letter is for
people only. It may be cut: then it says how large the payload was, or how many bytes were cut.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from bridge.routing.batch import DeadLetter

if TYPE_CHECKING:
    from bridge.routing.messages import Message, Refusal
    from bridge.routing.scripts import Argument

#: Bytes of a payload, or of all fields of an entry, that a letter holds.
LETTER_BYTES = 64 * 1024
#: Fields and values of an entry that a letter holds: what Lua can put into one call is limited.
LETTER_ARGUMENTS = 5000
#: Most digits of a number: of a fence, in microseconds since 1970.
DIGITS = 18
#: Why a letter that somebody wrote by hand is not replayed.
NAMES_NONE = "it names no message"

_FIELD = b"field:"


def given_up(
    message: Message,
    *,
    reason: str,
    error: str,
    traceback: str,
    attempts: int,
    at_ms: int,
    consumer: str,
    fence: int,
) -> DeadLetter:
    """The letter of a message that was given up."""
    payload = message.payload
    fields: list[Argument] = ["reason", reason, "error", error, "traceback", traceback]
    fields += ("attempts", attempts, "at_ms", at_ms, "ticket_id", message.ticket, "task", message.task)
    fields += ("payload", payload[:LETTER_BYTES])
    if len(payload) > LETTER_BYTES:
        fields += ("payload_bytes", len(payload))
    fields += ("consumer", consumer, "fence", fence)
    if message.options is not None and message.options.overtakes:
        fields += ("due_ms", message.options.due_ms)
    return DeadLetter(message.id, fields)


def refused(refusal: Refusal, *, at_ms: int) -> DeadLetter:
    """The letter of an entry that could never be processed."""
    fields: list[Argument] = ["reason", refusal.reason.value, "error", refusal.detail, "traceback", ""]
    fields += ("attempts", 0, "at_ms", at_ms)
    return DeadLetter(refusal.id, fields + _as_it_came(refusal.fields, refusal.cut))


def _as_it_came(fields: Sequence[bytes], cut: int) -> list[Argument]:
    arguments: list[Argument] = []
    left = LETTER_BYTES
    for i in range(0, len(fields), 2):
        name, value = fields[i], fields[i + 1]
        if left <= 0 or len(arguments) >= LETTER_ARGUMENTS:
            cut += len(name) + len(value)
            continue
        size = len(name) + len(value)
        if size > left:
            cut += max(0, len(name) - left) + max(0, len(value) - left)
            name, value = name[:left], value[:left]
        left -= size
        arguments += [_FIELD + name, value]
    return [*arguments, "cut_bytes", cut] if cut else arguments


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
    #: When it was due (Unix ms), for a replay: an operator may have changed it. 0: it was not delayed, or never due.
    due_ms: int = 0

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
        """All of it that people need, for JSON. Bytes that are no UTF-8 become ``{"base64": …}``: nothing is lost."""
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
        due_ms=_number(own.get(b"due_ms")),
    )


def _number(value: bytes | None) -> int:
    """A number of at most `DIGITS` digits. 0 for other texts: the bridge did not write them."""
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
