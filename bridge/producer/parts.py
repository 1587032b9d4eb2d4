"""The messages of one push, checked and packed into parts. The server adds each part in one step."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from zlib import crc32

import orjson

from bridge.producer.message_bytes import payload_bytes, ticket_bytes
from bridge.routing import producing
from bridge.routing.errors import PayloadError
from bridge.routing.messages import MAX_DEPTH, MAX_TICKET_BYTES

if TYPE_CHECKING:
    from bridge.routing.partitions import Layout

#: Most messages, and most bytes, of one call of the server. During a call, about a millisecond, it serves no other
#: client.
PART_MESSAGES = 500
PART_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Part:
    """Messages that are added to the stream in one step.

    ``first``: the number of the first one, from 0. ``packed``: the ticket and payload of each message, as RESP.
    ``hashes``: the CRC-32 of each ticket, which says its partition.
    """

    first: int
    count: int
    packed: bytes
    hashes: array[int]

    def call(self, stream: str, layout: Layout, task: str, key: str | None, total: int) -> bytes:
        """The call of the script that adds them. ``total``: the number of messages of the whole push."""
        arguments = 2 * self.count
        places = producing.places_of(stream, layout, self.hashes)
        if key is None:
            return producing.many_opening(places, task, arguments) + self.packed
        # The digest covers the task and the total too. Else an equal part for another task, or of a longer push, would
        # be taken for the same push.
        seen = hashlib.blake2b(f"{total} {task}\n".encode(), digest_size=8)
        seen.update(self.packed)
        return producing.once_opening(places, task, arguments, key, self.first, seen.hexdigest()) + self.packed


def parts_of(messages: Iterable[tuple[str | int, Any]], max_payload: int) -> tuple[list[Part], int]:
    """The parts of ``messages``, and the number of messages.

    Raises `PayloadError` for the first message that cannot be sent. The error names its position, from 0.
    """
    parts: list[Part] = []
    pieces: list[int | bytes] = []
    size = first = 0
    number = -1
    dumps = orjson.dumps
    short = min(max_payload, MAX_DEPTH)
    for number, message in _numbered(messages):
        ticket_id, payload = message if type(message) is tuple and len(message) == 2 else _pair(number, message)
        # Most messages are simple, and are checked inline: function calls would double the cost.
        try:
            ticket = ticket_id.encode() if type(ticket_id) is str else b""
            content = dumps(payload)
            plain = 0 < len(ticket) <= MAX_TICKET_BYTES and len(content) <= short and b"null" not in content
        except (TypeError, UnicodeEncodeError):
            plain = False
        if not plain:
            ticket, content = _encoded(number, ticket_id, payload, max_payload)
        length = len(content)
        if pieces and (number - first >= PART_MESSAGES or size + length > PART_BYTES):
            parts.append(part_of(first, pieces))
            first, pieces, size = number, [], 0
        pieces += (len(ticket), ticket, length, content)
        size += length
    if pieces:
        parts.append(part_of(first, pieces))
    return parts, number + 1


def part_of(first: int, pieces: list[int | bytes]) -> Part:
    """The part of messages from number ``first`` on. ``pieces``: length and bytes of each ticket and payload."""
    count = len(pieces) // 4
    # All messages in one format call: one by one costs twice as much.
    packed = (b"$%d\r\n%b\r\n$%d\r\n%b\r\n" * count) % tuple(pieces)
    return Part(first, count, packed, array("I", map(crc32, pieces[1::4])))  # type: ignore[arg-type]


def _numbered(messages: Any) -> Iterator[tuple[int, Any]]:
    try:
        return enumerate(messages)
    except TypeError:
        raise PayloadError(
            f"messages must be pairs of ticket_id and payload, one after another, not {messages!r:.80}; "
            "nothing was pushed"
        ) from None


def _pair(number: int, message: Any) -> tuple[Any, Any]:
    try:
        # Python would also unpack these, if they have two elements: characters, names, or members without an order.
        if isinstance(message, str | bytes | Mapping | Set):
            raise TypeError
        ticket_id, payload = message
    except (TypeError, ValueError):
        raise PayloadError(
            f"message {number} must be a pair of ticket_id and payload, not {message!r:.80}; nothing was pushed"
        ) from None
    return ticket_id, payload


def _encoded(number: int, ticket_id: Any, payload: Any, max_payload: int) -> tuple[bytes, bytes]:
    try:
        return ticket_bytes(ticket_id), payload_bytes(payload, max_payload)
    except PayloadError as exc:
        raise PayloadError(f"message {number}: {exc}; nothing was pushed") from None


def checked_messages(messages: Iterable[tuple[str | int, Any]], max_payload: int) -> list[tuple[str, bytes]]:
    """(ticket, payload) of each message. Raises `PayloadError`, as `parts_of` does."""
    found = []
    for number, message in _numbered(messages):
        ticket, content = _encoded(number, *_pair(number, message), max_payload)
        found.append((ticket.decode(), content))
    return found
