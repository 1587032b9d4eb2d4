"""Clients for asyncio of the same servers as `bridge.routing.connection`: plain, TLS, Unix socket, or through
sentinels.
"""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio import BlockingConnectionPool, Connection, Redis, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelManagedConnection, SentinelManagedSSLConnection
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from bridge.routing.address import normalised, sentinels_of
from bridge.routing.connection import ELSEWHERE, SENTINEL_S, connecting, driver_info, error_code

#: Most connections of one client. When all are busy, a caller waits for a free one.
CONNECTIONS = 10


class _Leaving:
    """As in `bridge.routing.connection`: closed when the server says that it is not the primary."""

    _left = False

    async def connect(self, *args: Any, **options: Any) -> Any:
        with connecting():
            return await super().connect(*args, **options)  # type: ignore[misc]

    async def connect_check_health(self, *args: Any, **options: Any) -> Any:
        with connecting():
            return await super().connect_check_health(*args, **options)  # type: ignore[misc]

    async def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return await super().read_response(*args, **options)  # type: ignore[misc]
        except ResponseError as exc:
            self._left = self._left or error_code(exc) in ELSEWHERE
            raise

    async def send_packed_command(self, *args: Any, **options: Any) -> None:
        if self._left:
            self._left = False
            await self.disconnect()  # type: ignore[attr-defined]
        await super().send_packed_command(*args, **options)  # type: ignore[misc]


class FairPool(BlockingConnectionPool):
    """Callers get a connection in the order in which they asked for one.

    redis-py's own pool gives a free connection to a caller that comes at the right moment, before those that wait. So
    when some ask again at once, another one may wait until its time is over.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._turns = asyncio.Semaphore(self.max_connections)
        self._given: set[Any] = set()

    async def get_connection(self, *_args: Any, **_options: Any) -> Any:
        try:
            await asyncio.wait_for(self._turns.acquire(), self.timeout)
        except TimeoutError:
            raise RedisConnectionError("No connection available.") from None
        try:
            found = await super().get_connection()  # type: ignore[no-untyped-call]
        except BaseException:
            self._turns.release()
            raise
        self._given.add(found)
        return found

    async def release(self, connection: Any) -> None:
        try:
            await super().release(connection)
        finally:
            # A connection that could not be made is released before it was given.
            if connection in self._given:
                self._given.discard(connection)
                self._turns.release()


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


def async_client(url: str, *, timeout_s: float = 5.0) -> Redis:
    """A client for ``url``, as `bridge.routing.connection.client` takes it, for the event loop that runs.

    It never repeats a command: only the caller knows whether that is safe. With sentinels it follows the primary.
    """
    options: dict[str, Any] = {
        "protocol": 2,
        "decode_responses": False,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
    }
    options |= driver_info(url)
    if url.startswith("sentinel://"):
        sentinels, manager, primary = sentinels_of(url)
        asking = {
            "socket_timeout": min(timeout_s, SENTINEL_S),
            "socket_connect_timeout": min(timeout_s, SENTINEL_S),
            **driver_info(url),
            **manager["sentinel_kwargs"],
        }
        asked = Sentinel(sentinels, min_other_sentinels=manager["min_other_sentinels"], sentinel_kwargs=asking)
        kind = _ManagedTls if primary.pop("ssl", False) else _Managed
        found: Redis = asked.master_for(
            manager["service_name"], connection_class=kind, socket_keepalive=True, **options, **primary
        )
        return found
    url = normalised(url)
    if url.startswith("unix://"):
        options["connection_class"] = _Unix
    else:
        options["socket_keepalive"] = True
        options["connection_class"] = _Tls if url.startswith("rediss://") else _Plain
    pool = FairPool.from_url(url, max_connections=CONNECTIONS, timeout=timeout_s, **options)
    pool.connection_kwargs.update(protocol=2, decode_responses=False)
    return Redis.from_pool(pool)
