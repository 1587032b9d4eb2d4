"""Pages of a stream over one connection: XRANGE with a page size that follows the size of the entries.

The end of a reply is found without parsing it: a PING with a random text follows each request. When the received bytes
end with that text, everything before it is the reply.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import pyarrow as pa
import redis

from bridge.routing.errors import ServerUnavailable
from bridge.routing.server_errors import PASSING
from bridge.spark.wire.address import RedisConnection, connect, unavailable, without_secrets
from bridge.spark.wire.entry_ids import EntryId
from bridge.spark.wire.page import MalformedReply, Page, read_page
from bridge.spark.wire.replies import RefusedByServer

#: Size of a page: smaller ones cost more per entry, larger ones are no faster.
PAGE_BYTES = 2 * 1024 * 1024
#: Rows of a page at most: what Spark itself puts into one Arrow batch.
PAGE_ROWS = 10_000
#: Rows of the first page, when the size of entries is not known.
FIRST_ROWS = 100
#: A page that grows beyond this, because entries are suddenly large, is given up and requested in smaller pages.
MOST_BYTES = 256 * 1024 * 1024
#: A page may have this many times the rows of the one before it.
_GROWTH = 10
_RECEIVE_BYTES = 256 * 1024


class _TooLarge(Exception):
    """A page was too large; the connection was closed."""


class Fetcher:
    """Reads one stream over one connection; a context manager."""

    def __init__(self, url: str, stream: str) -> None:
        """Opens the connection. Raises ``ServerUnavailable``."""
        self._url = url
        self._stream = stream
        self._nonce = secrets.token_hex(16).encode()
        self._tail = _bulk(self._nonce)
        self._rows = FIRST_ROWS
        #: The buffer for replies. It is used again: a page holds no reference to it.
        self._held = bytearray(_RECEIVE_BYTES)
        self._connection: RedisConnection = connect(url)
        try:
            # A user without the right to PING is found here. Later its refusal would be taken for a part of the page.
            self._connection.send_command("PING")
            self._connection.read_response(disable_decoding=True)
        except (redis.RedisError, OSError) as error:
            self._connection.disconnect()
            raise unavailable(url, error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.disconnect()

    def pages(self, first: EntryId, last: EntryId, *, again: bool = False) -> Iterator[Page]:
        """The entries from ``first`` to ``last``, both included, page by page; the last page may be empty.

        With ``again`` each page after the first begins with the last entry of the one before it, if that entry still
        exists. So the caller notices when it is gone. Raises ``ServerUnavailable`` and ``RefusedByServer``.
        """
        at: EntryId | None = first
        repeated = 0
        self._request(first, last, self._rows)
        while at is not None:
            asked = self._rows + repeated
            try:
                data = self._receive()
            except _TooLarge:
                self._connection = connect(self._url)
                self._request(at, last, self._rows + repeated)
                continue
            page, size = self._read(data), len(data)
            # Released, so that the buffer can grow for the next page.
            del data
            rows = len(page.ids)
            if rows:
                self._adapt(size / rows)
                at = EntryId.of(page.ids[-1].as_py())
            repeated = 1 if again else 0
            at = (at if again else at.after()) if rows == asked and at < last else None
            if at is not None:
                # Requested before the page is used, so that the server works meanwhile.
                self._request(at, last, self._rows + repeated)
            yield page

    def _request(self, first: EntryId, last: EntryId, rows: int) -> None:
        arguments = [b"XRANGE", self._stream.encode(), str(first).encode(), str(last).encode(), b"COUNT", b"%d" % rows]
        command = b"*6\r\n" + b"".join(map(_bulk, arguments)) + b"*2\r\n" + _bulk(b"PING") + self._tail
        try:
            # No health check: its PING would read the reply.
            self._connection.send_packed_command([command], check_health=False)
        except (redis.RedisError, OSError) as error:
            raise unavailable(self._url, error) from None

    def _receive(self) -> pa.Buffer:
        """The reply to the last request, without the answer to the PING."""
        socket = self._connection._sock
        if socket is None:
            raise ServerUnavailable(f"the connection to {without_secrets(self._url)} is not open")
        held, filled = self._held, 0
        while filled < len(self._tail) or not held.endswith(self._tail, 0, filled):
            if len(held) - filled < _RECEIVE_BYTES:
                held.extend(bytes(len(held)))
            try:
                received = socket.recv_into(memoryview(held)[filled:])
            except OSError as error:
                raise unavailable(self._url, error) from None
            if not received:
                raise ServerUnavailable(f"the server at {without_secrets(self._url)} closed the connection")
            filled += received
            # A page of one new entry cannot be made smaller.
            if filled > MOST_BYTES and self._rows > 1:
                self._rows = max(1, self._rows // _GROWTH)
                self._connection.disconnect()
                raise _TooLarge
            if held[0] == ord("-") and b"\r\n" in held[:filled]:
                self._refused(bytes(held[1:filled]))
        return pa.py_buffer(held).slice(0, filled - len(self._tail))

    def _read(self, data: pa.Buffer) -> Page:
        try:
            return read_page(data)
        except MalformedReply as error:
            self._connection.disconnect()
            raise ServerUnavailable(
                f"the server at {without_secrets(self._url)} sent a malformed reply: {error}"
            ) from None

    def _adapt(self, bytes_per_row: float) -> None:
        self._rows = max(1, min(int(PAGE_BYTES / bytes_per_row), self._rows * _GROWTH, PAGE_ROWS))

    def _refused(self, reply: bytes) -> None:
        self._connection.disconnect()
        reason = reply.partition(b"\r\n")[0].decode(errors="replace")[:300]
        if reason.partition(" ")[0] in PASSING:
            raise ServerUnavailable(f"the server at {without_secrets(self._url)} cannot answer now: {reason}")
        raise RefusedByServer(f"cannot read {self._stream!r} at {without_secrets(self._url)}: {reason}")


def _bulk(argument: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(argument), argument)
