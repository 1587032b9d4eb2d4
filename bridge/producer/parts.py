"""The messages of one push, checked and packed into parts. The server adds each part in one step."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from zlib import crc32

import orjson

from bridge.producer.message_bytes import payload_bytes, ticket_bytes
from bridge.producer.options import FIELDS, NONE, Past, Values, checked_options, merged, must_not_be_past
from bridge.routing import producing
from bridge.routing.errors import PayloadError
from bridge.routing.messages import MAX_DEPTH, MAX_TICKET_BYTES

if TYPE_CHECKING:
    from bridge.routing.partitions import Layout

#: A message of ``push_many``: ticket and payload, and maybe its own options.
Row = tuple[str | int, Any] | tuple[str | int, Any, Mapping[str, Any] | None]

#: Most messages, and most bytes, of one call of the server. During a call, about a millisecond, it serves no other
#: client.
PART_MESSAGES = 500
PART_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Part:
    """Messages that are added to the stream in one step.

    ``first``: the number of the first one, from 0. ``packed``: the ticket and payload of each message, with its values
    of ``fields``, as RESP. ``hashes``: the CRC-32 of each ticket, which says its partition. ``fields``: names of the
    further fields that messages of the part have. ``earliest_ms``: the earliest of their times that must not be past,
    in ms since 1970; 0: there is none.
    """

    first: int
    count: int
    packed: bytes
    hashes: array[int]
    fields: tuple[str, ...] = ()
    earliest_ms: int = 0

    def call(self, stream: str, layout: Layout, task: str, key: str | None, total: int, earliest_ms: int) -> bytes:
        """The call of the script that adds them. ``total``: the number of messages of the whole push. ``earliest_ms``:
        as that of the part, of all parts that have the key.
        """
        arguments = (2 + len(self.fields)) * self.count
        places = producing.places_of(stream, layout, self.hashes)
        if key is None:
            return producing.many_opening(places, task, arguments, self.fields) + self.packed
        # The digest covers the task and the total too. Else an equal part for another task, or of a longer push, would
        # be taken for the same push.
        heading = " ".join([str(total), task, *self.fields])
        seen = hashlib.blake2b(f"{heading}\n".encode(), digest_size=8)
        seen.update(self.packed)
        head = (places, task, arguments, key, self.first, seen.hexdigest(), self.fields, earliest_ms)
        return producing.push_once(*head) + self.packed


def parts_of(
    messages: Iterable[Row], max_payload: int, options: Mapping[str, Any] = NONE, past: Past = Past.REFUSED
) -> tuple[list[Part], int]:
    """The parts of ``messages``, and the number of messages. ``options``: for messages without options of their own.

    Raises `PayloadError` for the first message that cannot be sent. The error names its position, from 0.
    """
    parts: list[Part] = []
    pieces: list[int | bytes] = []
    common = checked_options(options, past)
    # Those of the messages of this part that have other options than most: their number in the part, and the values.
    special: dict[int, Values] = {}
    size = first = 0
    number = -1
    dumps = orjson.dumps
    short = min(max_payload, MAX_DEPTH)
    for number, message in _numbered(messages):
        if type(message) is tuple and len(message) == 2:
            ticket_id, payload = message
            values = common
        else:
            ticket_id, payload, values = _row(number, message, common, options, past)
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
            parts.append(part_of(first, pieces, common, special))
            first, pieces, special, size = number, [], {}, 0
        if values is not common:
            special[number - first] = values
        pieces += (len(ticket), ticket, length, content)
        size += length
    if pieces:
        parts.append(part_of(first, pieces, common, special))
    return parts, number + 1


def part_of(
    first: int, pieces: list[int | bytes], common: Values = NONE, special: Mapping[int, Values] = MappingProxyType({})
) -> Part:
    """The part of messages from number ``first`` on. ``pieces``: length and bytes of each ticket and payload.

    ``common``: the values of the further fields of all messages but those in ``special``.
    """
    count = len(pieces) // 4
    hashes = array("I", map(crc32, pieces[1::4]))  # type: ignore[arg-type]
    if not common and not any(special.values()):
        # All messages in one format call: one by one costs twice as much.
        return Part(first, count, (b"$%d\r\n%b\r\n$%d\r\n%b\r\n" * count) % tuple(pieces), hashes)
    fields = tuple(name for name in FIELDS if name in common or any(name in one for one in special.values()))
    every = [*special.values(), *([common] if len(special) < count else [])]
    times = [at for values in every for at in must_not_be_past(values)]
    ends = {id(values): _resp(values, fields) for values in (common, *special.values())}
    rest: list[int | bytes] = []
    for at in range(count):
        rest += (*pieces[4 * at : 4 * at + 4], ends[id(special.get(at, common))])
    packed = (b"$%d\r\n%b\r\n$%d\r\n%b\r\n%b" * count) % tuple(rest)
    return Part(first, count, packed, hashes, fields, min(times, default=0))


def _resp(values: Values, fields: Iterable[str]) -> bytes:
    found = [values.get(name, b"") for name in fields]
    return b"".join([b"$%d\r\n%b\r\n" % (len(value), value) for value in found])


def _numbered(messages: Any) -> Iterator[tuple[int, Any]]:
    try:
        return enumerate(messages)
    except TypeError:
        raise PayloadError(
            f"messages must be pairs of ticket_id and payload, one after another, not {messages!r:.80}; "
            "nothing was pushed"
        ) from None


def _row(number: int, message: Any, common: Values, options: Mapping[str, Any], past: Past) -> tuple[Any, Any, Values]:
    """(ticket, payload, values of the further fields) of a message that is no tuple of two."""
    try:
        # Python would also unpack these, if they have two elements: characters, names, or members without an order.
        if isinstance(message, str | bytes | Mapping | Set):
            raise TypeError
        ticket_id, payload, *rest = message
        [own] = rest or [None]
    except (TypeError, ValueError):
        raise PayloadError(
            f"message {number} must be a pair of ticket_id and payload, or these and a dict of options, "
            f"not {message!r:.80}; nothing was pushed"
        ) from None
    if own is None:
        return ticket_id, payload, common
    try:
        return ticket_id, payload, checked_options(merged(options, own), past)
    except PayloadError as exc:
        raise type(exc)(f"message {number}: {exc}; nothing was pushed") from None


def _encoded(number: int, ticket_id: Any, payload: Any, max_payload: int) -> tuple[bytes, bytes]:
    try:
        return ticket_bytes(ticket_id), payload_bytes(payload, max_payload)
    except PayloadError as exc:
        raise PayloadError(f"message {number}: {exc}; nothing was pushed") from None


def checked_messages(
    messages: Iterable[Row], max_payload: int, options: Mapping[str, Any] = NONE, past: Past = Past.REFUSED
) -> list[tuple[str, bytes, Values]]:
    """(ticket, payload, values of its further fields) of each message. Raises `PayloadError`, as `parts_of` does."""
    found = []
    common = checked_options(options, past)
    for number, message in _numbered(messages):
        ticket_id, payload, values = _row(number, message, common, options, past)
        ticket, content = _encoded(number, ticket_id, payload, max_payload)
        found.append((ticket.decode(), content, values))
    return found
