"""Connections to the Redis of a lane: clients, and raw connections for blocking reads and one cheap write.

How a client is made, and what an outage is, is in `bridge.routing.connection`, which the Spark side uses as well.
"""

from __future__ import annotations

import errno
import re
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import redis
from redis import Redis
from redis.exceptions import ResponseError
from redis.sentinel import MasterNotFoundError

from bridge.routing.connection import client
from bridge.routing.errors import ServerTooOld, ServerUnavailable, ServerUnfit
from bridge.routing.server import unfit
from bridge.routing.server_errors import UNAVAILABLE, error_code, is_forbidden, is_full, is_outage
from bridge.settings.address import without_password

__all__ = [
    "UNAVAILABLE",
    "Wire",
    "check_server",
    "client",
    "error_code",
    "is_forbidden",
    "is_full",
    "is_outage",
    "over",
    "renew",
    "require_fit",
    "why_unreachable",
    "without_password",
]

#: After so long without a command a connection may have been closed by the server (its ``timeout``) or by a load
#: balancer, in seconds. To look costs a system call.
IDLE_S = 1.0
#: Options of a URL that name files.
FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
#: What OpenSSL says of an answer that is not TLS. A server without TLS answers the first bytes so, or waits for more.
NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
#: What redis-py says when the server ends a connection instead of an answer: as it reads, or as it still writes.
HUNG_UP = ("Connection closed by server", f"Error {errno.ECONNRESET} ", f"Error {errno.EPIPE} ")
#: The oldest server that has XAUTOCLAIM, XTRIM MINID and XGROUP CREATECONSUMER.
OLDEST = (6, 2, 0)


#: What is said behind the names of commands that the server has not.
LACKS_ADVICE = (
    "which the bridge needs: it is disabled or renamed there (rename-command); let the server have it; `bridge acl` "
    "prints the commands of each role"
)
#: What Redis and Valkey say of a command that they have not. From within a script they do not name it.
_UNKNOWN = re.compile(r"unknown (?:redis )?command(?:,? ['`]?(?!called from)(?P<name>[\w|-]+))?", re.IGNORECASE)


class Wire:
    """One raw connection: replies as they come, and a blocking read that can be waited for with a selector."""

    def __init__(self, url: str, *, timeout_s: float | None = None) -> None:
        # Kept, since with sentinels the connection asks its pool where the primary is.
        self._pool: Any = client(url, timeout_s=timeout_s).connection_pool
        self._connection: Any = self._pool.make_connection()
        #: Whether a command was sent whose reply was not read, and when (monotonic seconds).
        self.asked = False
        self._asked_at = 0.0

    @property
    def file(self) -> Any:
        """The socket, for a selector. redis-py has no public name for it; kombu relies on the same one."""
        return self._connection._sock

    def call(self, *arguments: Any) -> Any:
        """The reply to one command. Raises redis errors; the connection is fresh after one."""
        self.ask(*arguments)
        return self.answer()

    def call_many(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """The replies to several commands, which go out together. Few enough for the server to keep their replies.

        Raises the first error reply, when all replies are read: the next call must not get one of them.
        """
        found = self.replies_to(commands)
        for reply in found:
            if isinstance(reply, ResponseError):
                raise reply
        return found

    def replies_to(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """As `call_many`, but an error reply is in its place of the list, and is not raised."""
        self._ask_many(commands)
        found: list[Any] = []
        for _ in commands:
            try:
                found.append(self.answer())
            except ResponseError as exc:
                if is_outage(exc):
                    self.close()
                    raise
                found.append(exc)
        return found

    def ask(self, *arguments: Any) -> None:
        """Sends a command; `answer` reads its reply."""
        self._send(self._connection.pack_command(*arguments))

    def _ask_many(self, commands: Sequence[Sequence[Any]]) -> None:
        pack = self._connection.pack_command
        # A system call for each command would cost more than the commands.
        self._send((b"".join([part for arguments in commands for part in pack(*arguments)]),))

    def _send(self, packed: Sequence[bytes]) -> None:
        try:
            if self.file is None:
                self._connection.connect()
            self._connection.send_packed_command(packed, check_health=False)
        except BaseException:
            self.close()
            raise
        self.asked, self._asked_at = True, time.monotonic()

    def ask_packed(self, packed: bytes) -> None:
        """As `ask`, for a command that the caller has encoded already: the cheapest way to ask."""
        self._send((packed,))

    def expect(self, within_s: float) -> None:
        """Raises redis' `TimeoutError` when something was asked more than ``within_s`` ago, and not answered.

        For a caller that waits with a selector, when its socket has nothing to read. Where the other end is gone
        without a word, no error would come for a quarter of an hour.
        """
        if self.asked and time.monotonic() - self._asked_at > within_s:
            self.close()
            raise redis.exceptions.TimeoutError(f"no reply within {within_s:g} s")

    @property
    def has_answer(self) -> bool:
        """Whether `answer` would return, or raise, without waiting."""
        try:
            return bool(self._connection.can_read(timeout=0))
        except UNAVAILABLE:
            return True

    def renew(self) -> None:
        """Closes a connection that the other end closed while nothing was asked: that is no outage."""
        if self.file is not None and time.monotonic() - self._asked_at > IDLE_S and self.has_answer:
            self.close()

    def answer(self) -> Any:
        """The reply to what was asked. An error reply is raised, and leaves the connection as it is."""
        self.asked = False
        try:
            return self._connection.read_response()
        except ResponseError:
            raise
        except BaseException:
            # Also when a time limit strikes in the middle: a reply that was not read must not be taken for the
            # next one.
            self.close()
            raise

    def close(self) -> None:
        self.asked = False
        self._connection.disconnect()

    @contextmanager
    def over(self, other: Wire) -> Iterator[None]:
        """Uses the connection of ``other`` within the block."""
        own, self._connection = self._connection, other._connection
        try:
            yield
        finally:
            self._connection = own


def renew(client_: Any) -> None:
    """Closes the connection of a client of one, if the other end closed it. It costs a system call."""
    if client_.connection._sock is None:
        # redis-py would connect it, to look.
        return
    try:
        is_over = client_.connection.can_read(timeout=0)
    except UNAVAILABLE:
        is_over = True
    if is_over:
        client_.connection.disconnect()


def lacks_command(exc: BaseException) -> ServerUnfit | None:
    """The error to show, one line, when ``exc`` says that the server has not a command; None: it does not."""
    said = _UNKNOWN.search(str(exc)) if isinstance(exc, ResponseError) else None
    if said is None:
        return None
    which = f"no command {said['name'].upper()}" if said["name"] else "not all commands of a script"
    return ServerUnfit(f"the server has {which}, {LACKS_ADVICE}")


@contextmanager
def over(client_: Any, other: Any) -> Iterator[None]:
    """Makes ``client_`` use the connections of ``other`` within the block: two clients of one connection each."""
    own = client_.connection, client_.connection_pool
    client_.connection, client_.connection_pool = other.connection, other.connection_pool
    try:
        yield
    finally:
        client_.connection, client_.connection_pool = own


def check_server(client_: Redis, url: str) -> tuple[int, ...]:
    """The version of the server behind ``client_``; empty when it does not say it.

    Raises `ServerUnavailable`, `ServerTooOld` or `ServerUnfit`, one line each.
    """
    shown = without_password(url)
    try:
        # All sections that are given unasked: version, memory, cluster.
        info: dict[str, Any] = client_.info()
    except redis.exceptions.AuthenticationError as exc:
        raise ServerUnavailable(f"Redis at {shown} refuses the login: {exc}") from None
    except UNAVAILABLE as exc:
        raise ServerUnavailable(f"cannot reach Redis at {shown}: {why_unreachable(exc, url)}") from None
    except redis.exceptions.RedisError as exc:
        if (lacks := lacks_command(exc)) is not None:
            raise lacks from None
        raise ServerUnavailable(f"Redis at {shown} does not answer as expected: {exc}") from None
    # Valkey reports the Redis version that it is compatible with as redis_version.
    said = str(info.get("redis_version", ""))
    version = tuple(int(part) for part in re.findall(r"\d+", said)[:3])
    # Some services hide it.
    if version and version < OLDEST:
        raise ServerTooOld(f"Redis at {shown} is {said}; the bridge needs 6.2 or newer")
    if (why := unfit(info)) is not None:
        raise ServerUnfit(f"Redis at {shown} {why}")
    return version


def why_unreachable(exc: BaseException, url: str) -> str:
    """Why no connection to ``url`` came about, and what to look at. ``exc``: what the client raised."""
    reason = " ".join(str(exc).split()).rstrip(".") or type(exc).__name__
    if isinstance(exc, redis.exceptions.BusyLoadingError):
        return f"{reason}; try again when it has"
    if isinstance(exc, MasterNotFoundError):
        return reason
    if "max number of clients" in reason:
        return f"{reason}; raise its maxclients, or let programs end that hold connections"
    hung_up = any(text in reason for text in HUNG_UP)
    if not url.startswith("rediss://"):
        if hung_up and url.startswith("redis://"):
            return (
                f"{reason}; is it a server with TLS, for which the broker's URL is rediss://, or one in protected "
                "mode, which takes other machines with a password only?"
            )
        if hung_up and url.startswith("unix://"):
            # The server says that before it hangs up, but the first command may fail before the client reads it.
            return f"{reason}; is it at its limit of clients (maxclients)?"
        return f"{reason}; is it running?"
    cause = exc.__cause__ or exc.__context__
    if isinstance(cause, FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError):
        return _unreadable_file(url) or reason
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"{reason}; check ssl_ca_certs in the broker's URL"
    if hung_up or (isinstance(cause, ssl.SSLError) and "connecting to" not in reason):
        # In TLS 1.3 a server refuses a client's certificate after the client has finished its part.
        return f"{reason}; does it want a certificate (ssl_certfile, ssl_keyfile), or another one?"
    if "handshake" in str(cause) or getattr(cause, "reason", None) in NO_TLS or isinstance(cause, ssl.SSLEOFError):
        return "it does not answer in TLS; is it a server without TLS, for which the broker's URL is redis://?"
    if isinstance(cause, ssl.SSLError):
        return f"{reason}; check the ssl_ options in the broker's URL"
    return f"{reason}; is it running?"


def _unreadable_file(url: str) -> str:
    """The first file that the options of ``url`` name and that cannot be read; '' when there is none."""
    query = url.partition("?")[2]
    options = parse_qs(query)
    for name in FILES:
        for path in options.get(name, ()):
            try:
                with Path(path).open("rb"):
                    pass
            except OSError as exc:
                # Before an @ it may be a piece of a password.
                shown = "the file" if "@" in query else path
                return f"cannot read {shown}, which {name} in the broker's URL names: {exc.strerror}"
    return ""


def require_fit(client_: Redis, url: str) -> None:
    """Checks a server for a producer. A producer may lack the permission for INFO; then the server is not checked.

    Raises `ServerUnfit`, and redis errors of a server that is away.
    """
    try:
        info: dict[str, Any] = client_.info()
    except ResponseError:
        return
    if (why := unfit(info)) is not None:
        raise ServerUnfit(f"Redis at {without_password(url)} {why}")
