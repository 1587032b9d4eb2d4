"""Adds messages to the stream: one message, or many in parts of some hundred per round trip; also for asyncio.

Contract:

- All messages are checked before the first is sent. A `PayloadError` means that no message was added.
- Messages are added in the given order. A part of many messages is added whole or not at all.
- An error says which messages were added. `ServerUnavailable` is a refusal: there was no connection, or the server
  replied with an error. `Unanswered` means that no reply came, so the messages may be in or not. Both name the messages
  that were added for certain (``pushed``).
- With an idempotency key the same push can be tried again. Messages that are in are not added again, and the ids are
  the same.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from array import array
from collections.abc import Generator, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from dataclasses import fields as dataclass_fields
from enum import Enum
from typing import TYPE_CHECKING, Any
from zlib import crc32

import orjson
import redis
from redis.exceptions import NoScriptError

from bridge.link.connections import UNAVAILABLE, is_full, without_password
from bridge.routing import producing
from bridge.routing.connection import was_not_sent
from bridge.routing.errors import ConfigurationError, PayloadError, ServerUnavailable, Unanswered
from bridge.routing.layouts import layout_of
from bridge.routing.messages import MAX_DEPTH, MAX_TICKET_BYTES, Refused, is_deep
from bridge.routing.return_codes import text_of

if TYPE_CHECKING:
    from celery import Celery
    from redis import Redis
    from redis.asyncio import Redis as AsyncRedis

    from bridge.routing.partitions import Layout
    from bridge.settings.app import Settings

#: Most messages, and most bytes, of one call of the server. During a call, about a millisecond, it serves no other
#: client.
PART_MESSAGES = 500
PART_BYTES = 1024 * 1024
#: The errors of a push that the server refuses or does not answer.
FAILURES = (*UNAVAILABLE, redis.exceptions.ResponseError)
#: Longest idempotency key, in bytes of UTF-8.
MAX_KEY_BYTES = 512


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


def push(
    app: Celery, task: str, ticket_id: str | int, payload: Any, *, delay: float | None, idempotency_key: str | None
) -> str:
    """Adds one message for ``task``; returns its id. See `TicketTask.push`."""
    settings: Settings = app.bridge.settings
    refuse_delay(delay)
    if idempotency_key is not None:
        [id_] = push_many(app, task, [(ticket_id, payload)], idempotency_key=idempotency_key)
        return id_
    ticket, content = ticket_bytes(ticket_id), payload_bytes(payload, settings.lane.max_payload)
    if app.conf.task_always_eager:
        here: list[str] = app.bridge.eager.push(task, [(ticket.decode(), content)], None)
        return here[0]
    if (added := _push_one(app, task, ticket, content)) is None:
        [added] = _send(app, _Push(app, task, [_part(0, [len(ticket), ticket, len(content), content])], 1, None))
    return added


def _push_one(app: Celery, task: str, ticket: bytes, content: bytes) -> str | None:
    """Adds one message with the layout that this process knows. None: nothing was added, and the long way is to go.

    It does what `_send` does. Generators and context managers would cost as much again.
    """
    settings: Settings = app.bridge.settings
    layout: Layout = app.bridge.layout
    if layout.partitions > 1 and not layout.text:
        return None
    opening = producing.one_opening(settings.lane.stream, layout, crc32(ticket) % layout.partitions, task)
    call = opening + b"$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(ticket), ticket, len(content), content)
    try:
        pool: Any = app.bridge.client.connection_pool
        connection = pool.get_connection()
        try:
            reply = _answer(connection, call)
        finally:
            pool.release(connection)
    except NoScriptError:
        return None
    except FAILURES as exc:
        raise _failure_of(exc, settings, [], 1) from None
    return text_of(reply[1]) if reply[0] == b"OK" else None


def push_many(
    app: Celery, task: str, messages: Iterable[tuple[str | int, Any]], *, idempotency_key: str | None
) -> list[str]:
    """Adds many messages for ``task``; returns their ids. See `TicketTask.push_many`."""
    push = _Push.of(app, task, messages, idempotency_key)
    return _send(app, push) if push.total else push.ids


async def apush_many(
    app: Celery, task: str, messages: Iterable[tuple[str | int, Any]], *, idempotency_key: str | None
) -> list[str]:
    """As `push_many`, for asyncio."""
    push = _Push.of(app, task, messages, idempotency_key)
    exchange = push.exchange()
    call = next(exchange, None)
    while call is not None:
        with _translated_failures(push.settings, push.ids, push.total):
            client = await app.bridge.async_client()
            try:
                reply = await _answer_async(client, call)
            except NoScriptError:
                for loading in producing.LOADING:
                    await client.execute_command(*loading)
                reply = await _answer_async(client, call)
        call = _next(exchange, reply)
    return push.ids


class _Push:
    """One push: its parts, and the ids of the messages that are in."""

    def __init__(self, app: Celery, task: str, parts: list[Part], total: int, key: str | None) -> None:
        self.settings: Settings = app.bridge.settings
        self._bridge: Any = app.bridge
        self._task = task
        self._key = key
        self.ids: list[str] = []
        self._parts = parts
        self.total = total

    @classmethod
    def of(cls, app: Celery, task: str, messages: Iterable[tuple[str | int, Any]], key: str | None) -> _Push:
        """The push of many messages, which are all checked. In eager mode they are handled here, and it has no parts.

        Raises `PayloadError`.
        """
        key = None if key is None else checked_key(key)
        largest = app.bridge.settings.lane.max_payload
        if app.conf.task_always_eager:
            push = cls(app, task, [], 0, key)
            push.ids = app.bridge.eager.push(task, _checked(messages, largest), key)
            return push
        return cls(app, task, *parts_of(messages, largest), key)

    def exchange(self) -> Generator[bytes, Any]:
        """The calls to send, each after the reply to the one before. It takes the replies, and the ids in them.

        Raises `PayloadError` when the key was used for other messages.
        """
        stream, wanted = self.settings.lane.stream, self.settings.partitions
        layout: Layout = self._bridge.layout
        if self._parts and layout.partitions > 1 and not layout.text:
            # The first push of this process.
            layout = self._bridge.take_layout(layout_of((yield producing.claim_call(stream, wanted)), stream))
        for part in self._parts:
            reply = yield part.call(stream, layout, self._task, self._key, self.total)
            while (stored := producing.stored_layout_in(reply)) is not None:
                if not stored and wanted > 1:
                    # Somebody deleted it.
                    stored = yield producing.claim_call(stream, wanted)
                layout = self._bridge.take_layout(layout_of(stored, stream))
                reply = yield part.call(stream, layout, self._task, self._key, self.total)
            self.ids += producing.ids_in(reply, self._key or "")


def _send(app: Celery, push: _Push) -> list[str]:
    with _translated_failures(push.settings, push.ids, push.total), _connection(app.bridge.client) as connection:
        # All parts use one connection: to take one from the pool costs as much as twenty messages.
        exchange = push.exchange()
        call = next(exchange, None)
        while call is not None:
            try:
                reply = _answer(connection, call)
            except NoScriptError:
                for loading in producing.LOADING:
                    connection.send_command(*loading)
                    connection.read_response()
                reply = _answer(connection, call)
            call = _next(exchange, reply)
    return push.ids


def _next(exchange: Generator[bytes, Any], reply: Any) -> bytes | None:
    try:
        return exchange.send(reply)
    except StopIteration:
        return None


@contextmanager
def _connection(client: Redis) -> Iterator[Any]:
    pool = client.connection_pool
    connection = pool.get_connection()
    try:
        yield connection
    finally:
        # A connection that failed has disconnected itself.
        pool.release(connection)


def _answer(connection: Any, call: bytes) -> Any:
    connection.send_packed_command((call,), check_health=False)
    return connection.read_response()


async def _answer_async(client: AsyncRedis, call: bytes) -> Any:
    pool = client.connection_pool
    connection = await pool.get_connection()
    try:
        await connection.send_packed_command((call,), check_health=False)
        return await connection.read_response()
    except asyncio.CancelledError:
        await connection.disconnect(nowait=True)
        raise
    finally:
        await pool.release(connection)


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
            parts.append(_part(first, pieces))
            first, pieces, size = number, [], 0
        pieces += (len(ticket), ticket, length, content)
        size += length
    if pieces:
        parts.append(_part(first, pieces))
    return parts, number + 1


def _part(first: int, pieces: list[int | bytes]) -> Part:
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


def _checked(messages: Iterable[tuple[str | int, Any]], max_payload: int) -> list[tuple[str, bytes]]:
    found = []
    for number, message in _numbered(messages):
        ticket, content = _encoded(number, *_pair(number, message), max_payload)
        found.append((ticket.decode(), content))
    return found


@contextmanager
def _translated_failures(settings: Settings, pushed: list[str], total: int) -> Iterator[None]:
    """Translates the errors of a push. ``pushed``: ids of the messages that are in, of ``total`` messages."""
    try:
        yield
    except FAILURES as exc:
        raise _failure_of(exc, settings, pushed, total) from None


def _failure_of(exc: Exception, settings: Settings, pushed: list[str], total: int) -> ServerUnavailable:
    url = without_password(settings.redis_url)
    said = " ".join(str(exc).split()) or type(exc).__name__
    before = f"{len(pushed):,} of {total:,} messages are in, in order, and "
    if not was_not_sent(exc) and not isinstance(exc, redis.exceptions.ResponseError):
        rest = "the message may or may not be in" if total == 1 else f"{before}some after them may be"
        return Unanswered(
            f"no answer from Redis at {url}: {said}; {rest}; with an idempotency_key the same push can be tried again",
            pushed,
        )
    rest = "the message is not in" if total == 1 else f"{before}none after them"
    if is_full(exc):
        return ServerUnavailable(
            f"Redis is full: {said}; {rest}; messages in the stream are still handled; push again later",
            pushed,
        )
    if isinstance(exc, UNAVAILABLE):
        return ServerUnavailable(f"cannot reach Redis at {url}: {said}; {rest}", pushed)
    return ServerUnavailable(f"Redis refused: {said}; {rest}", pushed)


def refuse_delay(delay: float | None) -> None:
    """Raises `ConfigurationError` for a delay: delayed messages are planned."""
    if delay is not None:
        raise ConfigurationError("push(delay=…) is not available yet; push the message when it is due")


def checked_key(key: Any) -> str:
    """``key``, if it can be an idempotency key. Raises `PayloadError`."""
    if not isinstance(key, str) or not key:
        raise PayloadError(f"an idempotency_key must be a string that is not empty, not {key!r:.80}")
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise PayloadError(f"the idempotency_key {key!r:.80} cannot be written as UTF-8") from None
    if size > MAX_KEY_BYTES:
        raise PayloadError(f"an idempotency_key must have at most {MAX_KEY_BYTES} bytes, not {size}")
    return key


def ticket_bytes(ticket_id: Any) -> bytes:
    """``ticket_id`` as bytes for the stream. Raises `PayloadError`."""
    if not isinstance(ticket_id, str):
        if not isinstance(ticket_id, int) or isinstance(ticket_id, bool):
            raise PayloadError(f"ticket_id must be a string or a whole number, not {type(ticket_id).__name__}")
        # 42 and "42" are the same ticket, also for `bridge push`.
        try:
            ticket_id = int.__repr__(ticket_id)
        except ValueError as exc:
            raise PayloadError(f"ticket_id is too large a number: {exc}") from None
    try:
        raw: bytes = ticket_id.encode()
    except UnicodeEncodeError:
        raise PayloadError(f"ticket_id {ticket_id!r} cannot be written as UTF-8") from None
    if not 0 < len(raw) <= MAX_TICKET_BYTES:
        raise PayloadError(f"ticket_id must have 1 to {MAX_TICKET_BYTES} bytes, not {len(raw)}")
    return raw


def payload_bytes(payload: Any, max_payload: int) -> bytes:
    """``payload`` as JSON. Raises `PayloadError`."""
    try:
        raw = orjson.dumps(payload)
    except TypeError as exc:
        if "Recursion limit" in str(exc):
            raise PayloadError(f"the {Refused.TOO_DEEP.value}") from None
        raise PayloadError(f"the payload cannot be written as JSON: {exc}") from None
    # JSON has no NaN and no Infinity: orjson writes null. So look for them if there is a null.
    if b"null" in raw and (number := not_finite(payload)) is not None:
        raise PayloadError(f"the payload cannot be written as JSON: it holds {number}, which is no number there")
    # JSON with fewer bytes cannot be nested too deeply.
    if len(raw) > MAX_DEPTH and is_deep(raw):
        raise PayloadError(f"the {Refused.TOO_DEEP.value}")
    if len(raw) > max_payload:
        raise PayloadError(f"the payload has {len(raw)} bytes of JSON; bridge_max_payload allows {max_payload}")
    return raw


def not_finite(payload: Any) -> float | None:
    """A number in ``payload`` that JSON does not have (NaN, Infinity); None: there is none.

    ``payload`` must be writable as JSON otherwise.
    """
    left = [payload]
    while left:
        one = left.pop()
        if isinstance(one, float):
            if not math.isfinite(one):
                return one
        elif isinstance(one, dict):
            left += one.values()
        elif isinstance(one, list | tuple):
            left += one
        elif isinstance(one, Enum):
            left.append(one.value)
        elif is_dataclass(one):
            left += [getattr(one, field.name, None) for field in dataclass_fields(one)]
    return None
