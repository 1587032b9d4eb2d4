"""Connections to the Redis of a lane: clients, and raw connections for blocking reads and one cheap write.

Also the one place that tells an outage, which is waited out, from an error (`is_outage`).
"""

from __future__ import annotations

import re
from typing import Any

import redis
from redis import Connection, Redis, SSLConnection, UnixDomainSocketConnection
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelManagedConnection, SentinelManagedSSLConnection

from bridge.address import normalised, sentinels_of, without_password
from routing.errors import ServerTooOld, ServerUnavailable

__all__ = ["UNAVAILABLE", "Wire", "check_server", "client", "is_full", "is_outage", "without_password"]

#: Seconds that a sentinel may take to answer: there are others.
SENTINEL_S = 1.0

#: The oldest server that has XAUTOCLAIM, XTRIM MINID and XGROUP CREATECONSUMER.
OLDEST = (6, 2, 0)

#: What "the server is not there just now" looks like where no reply came, or none that a server in order gives.
UNAVAILABLE = (
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.BusyLoadingError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.MasterDownError,
    OSError,
)

#: Replies of a server that cannot serve now and will again: what asked waits, and asks again. Full (OOM), loading its
#: data, a replica (READONLY, or cut off from its primary), a disk that refuses snapshots (MISCONF), fewer replicas than
#: it must have, in the middle of a change of role, busy with a script.
PASSING = ("OOM", "LOADING", "READONLY", "MASTERDOWN", "MISCONF", "NOREPLICAS", "UNBLOCKED", "BUSY")
#: Of these, the ones that say that this is not, or not any more, the primary: a new connection may lead to it.
ELSEWHERE = ("READONLY", "MASTERDOWN", "UNBLOCKED")

# Before 7.0 what a command inside a script answers comes in the middle of the script's own error:
# "Error running script (call to f_5c…): @user_script:1: @user_script: 1: -READONLY You can't write …".
_IN_SCRIPT = re.compile(r"^(?:Error running script|@user_script).*?: -([A-Z]+) ", re.DOTALL)


def error_code(exc: BaseException) -> str:
    """The code of a server's error reply (``OOM``, ``READONLY`` …), also of one from inside a script; ``""``: none."""
    # redis-py cuts the codes that it has classes for off the text.
    if isinstance(exc, redis.exceptions.OutOfMemoryError):
        return "OOM"
    if isinstance(exc, redis.exceptions.ReadOnlyError):
        return "READONLY"
    if isinstance(exc, redis.exceptions.MasterDownError):
        return "MASTERDOWN"
    if isinstance(exc, redis.exceptions.BusyLoadingError):
        return "LOADING"
    if not isinstance(exc, ResponseError):
        return ""
    text = str(exc)
    inner = _IN_SCRIPT.match(text)
    if inner is not None:
        return inner[1]
    first = text.partition(" ")[0]
    return first if first.isupper() else ""


def is_outage(exc: BaseException) -> bool:
    """Whether ``exc`` is to be waited out: no reply, or one of `PASSING`."""
    return isinstance(exc, UNAVAILABLE) or error_code(exc) in PASSING


def is_full(exc: BaseException) -> bool:
    """Whether the server refused a write because it has no memory left."""
    return error_code(exc) == "OOM"


class _Leaving:
    """A connection that is given up when the server says that it is not the primary (any more).

    A failover behind a name or a virtual address leaves connections to the old primary open: without this, they would
    go on being refused for ever. It is given up before the next command, since more replies may be on their way.
    """

    _left = False

    def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return super().read_response(*args, **options)  # type: ignore[misc]
        except ResponseError as exc:
            self._left = self._left or error_code(exc) in ELSEWHERE
            raise

    def send_packed_command(self, *args: Any, **options: Any) -> None:
        if self._left:
            self._left = False
            self.disconnect()  # type: ignore[attr-defined]
        super().send_packed_command(*args, **options)  # type: ignore[misc]


class _Plain(_Leaving, Connection):
    pass


class _Tls(_Leaving, SSLConnection):
    pass


class _Unix(_Leaving, UnixDomainSocketConnection):
    pass


class _Managed(_Leaving, SentinelManagedConnection):
    pass


class _ManagedTls(_Leaving, SentinelManagedSSLConnection):
    pass


def client(url: str, *, timeout_s: float | None = 5.0, single: bool = False) -> Redis:
    """A client for ``url``, an address as `bridge.address` makes them, or redis-py's own form.

    No retry inside: whoever calls knows whether a repeat is safe. With sentinels it follows the primary.
    """
    # RESP2 and no decoding: the hot paths read raw replies, of the same form from every server version.
    options: dict[str, Any] = {
        "protocol": 2,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
    }
    if url.startswith("sentinel://"):
        return _client_of_primary(url, options, single)
    url = normalised(url)
    if url.startswith("unix://"):
        options["connection_class"] = _Unix
    else:
        options["socket_keepalive"] = True
        options["connection_class"] = _Tls if url.startswith("rediss://") else _Plain
    return Redis.from_url(url, single_connection_client=single, **options)


def _client_of_primary(url: str, options: dict[str, Any], single: bool) -> Redis:
    sentinels, manager, primary = sentinels_of(url)
    timeout_s = min(options["socket_timeout"] or SENTINEL_S, SENTINEL_S)
    asking = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": options["retry"],
        **manager["sentinel_kwargs"],
    }
    asked = Sentinel(sentinels, min_other_sentinels=manager["min_other_sentinels"], sentinel_kwargs=asking)
    pool = asked.master_for(
        manager["service_name"],
        connection_class=_ManagedTls if primary.pop("ssl", False) else _Managed,
        socket_keepalive=True,
        **options,
        **primary,
    ).connection_pool
    made = Redis(connection_pool=pool, single_connection_client=single)
    # The pool is this client's own: they end together.
    made.auto_close_connection_pool = True
    return made


class Wire:
    """One raw connection: replies as they come, and a blocking read that can be waited for with a selector."""

    def __init__(self, url: str, *, timeout_s: float | None = None) -> None:
        # Kept, since with sentinels the connection asks its pool where the primary is.
        self._pool: Any = client(url, timeout_s=timeout_s).connection_pool
        self._connection: Any = self._pool.make_connection()
        #: Whether a question was asked whose answer was not read.
        self.asked = False

    @property
    def file(self) -> Any:
        """The socket, for a selector. redis-py has no public name for it; kombu relies on the same one."""
        return self._connection._sock

    def call(self, *words: Any) -> Any:
        """The reply to one command. Raises redis errors; the connection is fresh after one."""
        self.ask(*words)
        return self.answer()

    def ask(self, *words: Any) -> None:
        """Sends a command; `answer` reads its reply."""
        try:
            if not self._connection.is_connected:
                self._connection.connect()
            self._connection.send_packed_command(self._connection.pack_command(*words), check_health=False)
        except BaseException:
            self.close()
            raise
        self.asked = True

    def call_packed(self, packed: bytes) -> Any:
        """The same for a command that the caller has encoded already: the cheapest way to ask."""
        try:
            if not self._connection.is_connected:
                self._connection.connect()
            self._connection.send_packed_command((packed,), check_health=False)
        except BaseException:
            self.close()
            raise
        return self.answer()

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


def check_server(client_: Redis, url: str) -> tuple[int, ...]:
    """The version of the server behind ``client_``. Raises `ServerUnavailable` or `ServerTooOld`, one line each."""
    shown = without_password(url)
    try:
        info: dict[str, Any] = client_.info("server")
    except redis.exceptions.AuthenticationError as exc:
        raise ServerUnavailable(f"Redis at {shown} refuses the login: {exc}") from None
    except UNAVAILABLE as exc:
        raise ServerUnavailable(f"cannot reach Redis at {shown}: {exc}; is it running?") from None
    except redis.exceptions.RedisError as exc:
        raise ServerUnavailable(f"Redis at {shown} does not answer as expected: {exc}") from None
    # Valkey reports the Redis version that it is compatible with as redis_version.
    version = tuple(int(part) for part in re.findall(r"\d+", str(info["redis_version"]))[:3])
    if version < OLDEST:
        raise ServerTooOld(f"Redis at {shown} is {info['redis_version']}; the bridge needs 6.2 or newer")
    return version
