"""Where the Redis server is: checks of its URL, a form of it without secrets, and connections to it.

No error shows a password. Errors of redis-py become one line that names the server as ``without_secrets`` shows it. The
original error is not chained, since the tracebacks of Spark tasks are written to logs.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from typing import Protocol, cast

import redis

from bridge.routing.address import check_login, database_of, parsed, without_password
from bridge.routing.connection import client
from bridge.routing.errors import ConfigurationError, ServerTooOld, ServerUnavailable, ServerUnfit
from bridge.routing.server import unfit

_UNKNOWN_OPTION = re.compile(r"unexpected keyword argument '(\w+)'")
_FORM = "redis://[user:password@]host[:port][/db]"
SCHEMES = ("redis", "rediss", "unix", "sentinel")
#: How long one send or one reply may take, in seconds: a server that saves or swaps answers late, but answers.
ANSWER_TIMEOUT_S = 60.0


class RedisConnection(Protocol):
    """The part of redis-py's connection that is used here. redis-py has no types for it."""

    #: redis-py has no public name for it; None while not connected.
    _sock: socket.socket | None

    def connect(self) -> None:
        """Opens the connection, authenticates and selects the database."""

    def disconnect(self) -> None:
        """Closes; never raises."""

    def send_command(self, *args: str | bytes) -> None:
        """Sends one command."""

    def send_packed_command(self, command: Sequence[bytes | memoryview], check_health: bool = True) -> None:
        """Sends bytes that are commands already."""

    def read_response(self, disable_decoding: bool = False) -> object:
        """Waits for the next reply; an error reply is raised."""


def without_secrets(url: str) -> str:
    """``scheme://host:port/db`` of a URL, without user, password and query (which may hold either)."""
    if url.startswith("sentinel://"):
        # The hosts follow the last @. A password may hold others.
        return f"sentinel://{without_password(url).partition('://')[2].rpartition('@')[2]}"
    try:
        # Only known schemes: the parts of another text could be pieces of the password.
        parts = parsed(url)
        if parts.scheme not in SCHEMES:
            return "a malformed URL"
        if parts.scheme == "unix":
            return f"unix://{parts.path}"
        host = parts.hostname or "localhost"
        return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{parts.port or 6379}{parts.path}"
    except ConfigurationError:
        return "a malformed URL"


def check_url(url: str, *, called: str) -> str:
    """``url`` as it can be used; else ``ConfigurationError``, which never quotes the URL.

    ``called`` is the name by which the user knows the value: ``option url``, ``--url``. With ``rediss://`` the server's
    certificate is checked, unless the URL says otherwise.
    """
    scheme, separator, rest = url.partition("://")
    scheme = scheme.lower()
    if scheme not in SCHEMES or not separator:
        raise ConfigurationError(f"{called} must start with redis://, rediss://, unix:// or sentinel://")
    url = f"{scheme}://{rest}"
    check_login(url, called)
    if scheme != "sentinel":
        url = _checked_parts(url, called)
    try:
        # The connection is not opened. Making it checks the options of the URL.
        client(url).connection_pool.make_connection()
    except ConfigurationError as error:
        raise ConfigurationError(f"{called}: {error}") from None
    except (ValueError, TypeError) as error:
        unknown = _UNKNOWN_OPTION.search(str(error))
        if unknown:
            raise ConfigurationError(f"{called} has an unknown option: {unknown[1]}") from None
        raise ConfigurationError(f"{called} is not a Redis URL ({_FORM})") from None
    return url


def _checked_parts(url: str, called: str) -> str:
    """``url`` with the certificate checked. Raises ``ConfigurationError``, which never quotes it."""
    parts = parsed(url, called)
    if parts.scheme == "unix":
        return url
    if not database_of(parts).isdecimal():
        raise ConfigurationError(f"{called} names a database that is not a number ({_FORM})")
    if parts.scheme == "rediss" and "ssl_cert_reqs=" not in parts.query:
        return parts._replace(query="&".join(filter(None, [parts.query, "ssl_cert_reqs=required"]))).geturl()
    return url


def database(url: str) -> int:
    """The number of the database that a URL names; 0 where it names none. Connects to nothing."""
    return int(client(url).connection_pool.connection_kwargs.get("db") or 0)


def connect(url: str) -> RedisConnection:
    """An open, authenticated connection that speaks RESP 2; with sentinels, to the present primary.

    Raises ``ServerUnavailable`` when the server cannot be reached or refuses the login.
    """
    pool = client(url, timeout_s=ANSWER_TIMEOUT_S).connection_pool
    connection = cast(RedisConnection, pool.make_connection())
    try:
        connection.connect()
    except (redis.RedisError, OSError) as error:
        raise unavailable(url, error) from None
    return connection


def unavailable(url: str, error: Exception) -> ServerUnavailable:
    """The error to raise when talking to the server failed with ``error``."""
    if isinstance(error, redis.ResponseError):
        # The server answers, and refuses: most often a user without the permission.
        return ServerUnavailable(f"the server at {without_secrets(url)} refuses: {first_line(error)}")
    return ServerUnavailable(f"no Redis at {without_secrets(url)}: {first_line(error)}")


def check_server(url: str, stream: str) -> None:
    """Finds on the driver what every task would fail on.

    Raises ``ServerUnavailable`` for a server that does not answer, ``ServerTooOld`` for one before 6.2,
    ``ServerUnfit`` for one that evicts keys or is in cluster mode, and ``ConfigurationError`` when the key exists
    and is not a stream.
    """
    connection = connect(url)
    try:
        connection.send_command("INFO")
        _check_fit(url, _values_of(cast(bytes, connection.read_response(disable_decoding=True))))
        connection.send_command("TYPE", stream)
        kind = cast(bytes, connection.read_response(disable_decoding=True))
    except (redis.RedisError, OSError) as error:
        raise unavailable(url, error) from None
    finally:
        connection.disconnect()
    if kind not in (b"none", b"stream"):
        raise ConfigurationError(f"key {stream!r} at {without_secrets(url)} is a {kind.decode()}, not a stream")


def _check_fit(url: str, info: dict[str, str]) -> None:
    version = _version(info)
    if version is not None and version < (6, 2):
        raise ServerTooOld(f"the server at {without_secrets(url)} is version {version[0]}.{version[1]}; 6.2 is needed")
    if (why := unfit(info)) is not None:
        raise ServerUnfit(f"the server at {without_secrets(url)} {why}")


def _values_of(info: bytes) -> dict[str, str]:
    """The values in the text of INFO, by name."""
    lines = (line.decode(errors="replace").partition(":") for line in info.splitlines() if not line.startswith(b"#"))
    return {name: value for name, _, value in lines}


def _version(info: dict[str, str]) -> tuple[int, int] | None:
    """Major and minor of ``redis_version``; None when a service hides it."""
    numbers = re.findall(r"\d+", info.get("redis_version", ""))
    return (int(numbers[0]), int(numbers[1])) if len(numbers) > 1 else None


def first_line(error: Exception) -> str:
    """The first line of an error's text, short enough for a line of our own."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".")[:200] if lines else type(error).__name__
