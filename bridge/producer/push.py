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
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from zlib import crc32

from redis.exceptions import NoScriptError, ResponseError

from bridge.producer.failures import FAILURES, failure_of, rest_of, translated_failures, unanswered
from bridge.producer.message_bytes import checked_key, payload_bytes, ticket_bytes
from bridge.producer.options import Past, checked_options
from bridge.producer.parts import Part, Row, checked_messages, part_of, parts_of
from bridge.routing import producing
from bridge.routing.errors import ConfigurationError, PayloadError, ServerUnavailable
from bridge.routing.layouts import claimed_layout, layout_of, lost_layout
from bridge.routing.return_codes import text_of
from bridge.routing.server_errors import connecting

if TYPE_CHECKING:
    from celery import Celery
    from redis import Redis
    from redis.asyncio import Redis as AsyncRedis

    from bridge.routing.partitions import Layout
    from bridge.settings.app import Settings


def push(
    app: Celery,
    task: str,
    ticket_id: str | int,
    payload: Any,
    *,
    idempotency_key: str | None,
    options: Mapping[str, Any],
    past: Past = Past.REFUSED,
) -> str:
    """Adds one message for ``task``; returns its id. See `TicketTask.push`, which has the ``options``."""
    settings: Settings = app.bridge.settings
    key = None if idempotency_key is None else checked_key(idempotency_key)
    values = checked_options(options, _past(past, key))
    ticket, content = ticket_bytes(ticket_id), payload_bytes(payload, settings.lane.max_payload)
    if app.conf.task_always_eager:
        here: list[str] = app.bridge.eager.push(task, [(ticket.decode(), content, values)], key)
        return here[0]
    added = None if values or key is not None else _push_one(app, task, ticket, content)
    if added is None:
        part = part_of(0, [len(ticket), ticket, len(content), content], values)
        [added] = _send(app, _Push(app, task, [part], 1, [key], 1))
    return added


def _push_one(app: Celery, task: str, ticket: bytes, content: bytes) -> str | None:
    """Adds one message with the layout that this process knows. None: nothing was added, and `_send` must do it.

    It does what `_send` does, without generators and context managers, which would double its cost.
    """
    settings: Settings = app.bridge.settings
    layout: Layout = app.bridge.layout
    if app.bridge.may_be_split:
        return None
    opening = producing.one_opening(settings.lane.stream, layout, crc32(ticket) % layout.partitions, task)
    call = opening + b"$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(ticket), ticket, len(content), content)
    connection = None
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
        if connection is None:
            exc.not_sent = True  # type: ignore[union-attr]
        raise failure_of(exc, settings, [], 1) from None
    return text_of(reply[1]) if reply[0] == b"OK" else None


def _past(past: Past, key: str | None) -> Past:
    """A push with a key may be repeated when its eta is past."""
    return Past.JUDGED if past is Past.REFUSED and key is not None else past


def push_many(
    app: Celery,
    task: str,
    messages: Iterable[Row],
    *,
    idempotency_key: str | None,
    options: Mapping[str, Any],
) -> list[str]:
    """Adds many messages for ``task``; returns their ids. See `TicketTask.push_many`, which has the ``options``."""
    push = _Push.of(app, task, messages, idempotency_key, options)
    return _send(app, push) if push.total else push.ids


async def apush_many(
    app: Celery,
    task: str,
    messages: Iterable[Row],
    *,
    idempotency_key: str | None,
    options: Mapping[str, Any],
    is_stopping: Callable[[], bool] | None = None,
) -> list[str]:
    """As `push_many`, for asyncio.

    ``is_stopping``: whether this process stops. A push that is cancelled then raises `Unanswered`, which has the ids of
    the messages that are in.
    """
    return await _asend(app, _Push.of(app, task, messages, idempotency_key, options), is_stopping)


async def apush_each(
    app: Celery,
    task: str,
    messages: Iterable[Row],
    idempotency_keys: Sequence[str],
    is_stopping: Callable[[], bool] | None = None,
) -> list[str]:
    """As `apush_many`, but each message has an idempotency key of its own, and is added in a step of its own."""
    return await _asend(app, _Push.of_each(app, task, messages, idempotency_keys), is_stopping)


async def _asend(app: Celery, push: _Push, is_stopping: Callable[[], bool] | None) -> list[str]:
    try:
        return await _asend_parts(app, push)
    except asyncio.CancelledError:
        if is_stopping is None or not is_stopping():
            raise
        raise unanswered("this process stops, and did not wait for Redis", push.ids, push.total) from None


async def _asend_parts(app: Celery, push: _Push) -> list[str]:
    exchange = push.exchange()
    call = next(exchange, None)
    while call is not None:
        with translated_failures(push.settings, push.ids, push.total):
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

    def __init__(
        self, app: Celery, task: str, parts: list[Part], total: int, keys: Sequence[str | None], of_key: int
    ) -> None:
        self.settings: Settings = app.bridge.settings
        self._bridge: Any = app.bridge
        self._task = task
        #: The idempotency key of each part, and how many messages have that key in all.
        self._keys, self._of_key = keys, of_key
        self.ids: list[str] = []
        self._parts = parts
        self.total = total

    @classmethod
    def of(cls, app: Celery, task: str, messages: Iterable[Row], key: str | None, options: Mapping[str, Any]) -> _Push:
        """The push of many messages, which are all checked. In eager mode they are handled here, and it has no parts.

        Raises `PayloadError`.
        """
        key = None if key is None else checked_key(key)
        largest = app.bridge.settings.lane.max_payload
        past = _past(Past.REFUSED, key)
        if app.conf.task_always_eager:
            push = cls(app, task, [], 0, [], 0)
            push.ids = app.bridge.eager.push(task, checked_messages(messages, largest, options, past), key)
            return push
        parts, total = parts_of(messages, largest, options, past)
        return cls(app, task, parts, total, [key] * len(parts), total)

    @classmethod
    def of_each(cls, app: Celery, task: str, messages: Iterable[Row], keys: Sequence[str]) -> _Push:
        """As `of`, with a key for each message."""
        found = checked_messages(messages, app.bridge.settings.lane.max_payload)
        keys = [checked_key(key) for key in keys]
        if app.conf.task_always_eager:
            push = cls(app, task, [], 0, [], 0)
            for message, key in zip(found, keys, strict=True):
                push.ids += app.bridge.eager.push(task, [message], key)
            return push
        raw = ((ticket.encode(), content, values) for ticket, content, values in found)
        parts = [part_of(0, [len(ticket), ticket, len(content), content], values) for ticket, content, values in raw]
        return cls(app, task, parts, len(parts), keys, 1)

    def exchange(self) -> Generator[bytes, Any]:
        """The calls to send, each after the reply to the one before. It takes the replies, and the ids in them.

        Raises `KeyUsed` when the key was used for other messages.
        """
        stream = self.settings.lane.stream
        layout: Layout = self._bridge.layout
        if self._parts and self._bridge.may_be_split:
            # The first push of this process.
            layout = yield from self._claim(stream)
        times = [part.earliest_ms for part in self._parts]
        if self._of_key == self.total:
            # No part of a push is added when a time of any part is past.
            times = [min(filter(None, times), default=0)] * len(times)
        for part, key, earliest_ms in zip(self._parts, self._keys, times, strict=True):
            reply = yield part.call(stream, layout, self._task, key, self._of_key, earliest_ms)
            while (stored := producing.stored_layout_in(reply)) is not None:
                layout = yield from self._other_layout(stream, layout, stored)
                reply = yield part.call(stream, layout, self._task, key, self._of_key, earliest_ms)
            try:
                self.ids += producing.ids_in(reply, key or "")
            except PayloadError as exc:
                raise type(exc)(f"{exc}; {rest_of(self.ids, self.total)}") from None

    def _other_layout(self, stream: str, known: Layout, stored: bytes) -> Generator[bytes, Any, Layout]:
        """The layout to go by after a call with ``known`` was refused. ``stored``: b"" is none.

        Raises `ConfigurationError` and `ServerUnavailable`.
        """
        if not stored and known.text:
            stored = yield producing.restore_call(stream, known)
        elif not stored and self.settings.partitions > 1:
            return (yield from self._claim(stream))
        elif not stored:
            raise ServerUnavailable(f"{lost_layout(stream)}; {rest_of(self.ids, self.total)}", self.ids)
        try:
            found: Layout = self._bridge.take_layout(layout_of(stored, stream))
        except ConfigurationError as exc:
            raise type(exc)(f"{exc}; {rest_of(self.ids, self.total)}") from None
        return found

    def _claim(self, stream: str) -> Generator[bytes, Any, Layout]:
        wanted = self.settings.partitions
        reply = yield producing.claim_call(stream, wanted, self.settings.older_streams)
        found: Layout = self._bridge.take_layout(claimed_layout(reply, stream, wanted))
        return found


def _send(app: Celery, push: _Push) -> list[str]:
    with translated_failures(push.settings, push.ids, push.total), _connection(app.bridge.client) as connection:
        # All parts use one connection: to take one from the pool costs as much as twenty messages.
        exchange = push.exchange()
        call = next(exchange, None)
        while call is not None:
            try:
                reply = _answer(connection, call)
            except NoScriptError:
                for loading in producing.LOADING:
                    _answer(connection, b"".join(connection.pack_command(*loading)))
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
    with connecting():
        connection = pool.get_connection()
    try:
        yield connection
    finally:
        # A connection that failed has disconnected itself.
        pool.release(connection)


def _answer(connection: Any, call: bytes) -> Any:
    try:
        connection.send_packed_command((call,), check_health=False)
        return connection.read_response()
    except ResponseError:
        raise
    except BaseException:
        # Also when a time limit or Ctrl-C strikes between the two: the next push must not get this reply.
        connection.disconnect()
        raise


async def _answer_async(client: AsyncRedis, call: bytes) -> Any:
    pool = client.connection_pool
    with connecting():
        connection = await pool.get_connection()
    try:
        await connection.send_packed_command((call,), check_health=False)
        return await connection.read_response()
    except asyncio.CancelledError:
        await connection.disconnect(nowait=True)
        raise
    finally:
        await pool.release(connection)
