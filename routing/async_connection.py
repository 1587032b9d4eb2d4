"""Clients for asyncio of the same servers as `bridge.routing.connection`: plain, TLS, Unix socket, or through
sentinels.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from redis.asyncio import BlockingConnectionPool, Connection, Redis, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import (
    MasterNotFoundError,
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from bridge.routing.address import normalised, sentinels_of, tls_objects
from bridge.routing.connection import SENTINEL_S, driver_info, no_primary
from bridge.routing.server_errors import ELSEWHERE, connecting, error_code

#: Most connections of one client. When all are busy, a caller waits for a free one.
CONNECTIONS = 10
#: In how many parts a caller waits until it gives up.
WAIT_PARTS = 5


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
            await self.connect()
        await super().send_packed_command(*args, **options)  # type: ignore[misc]


class FairPool(BlockingConnectionPool):
    """Callers get a connection in the order in which they asked for one.

    redis-py's own pool gives a free connection to a caller that comes at the right moment, before those that wait. So
    when some ask again at once, another one may wait until its time is over.

    A caller waits for as long as the server answers those before it. It gives up when none of them had an answer for
    ``timeout`` seconds.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        #: Connections that nobody uses or was promised.
        self._free = self.max_connections
        #: Those that wait, the first one first. A result is a turn.
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._given: set[Any] = set()
        #: Number of connections that came back in order.
        self._served = 0

    async def get_connection(self, *_args: Any, **_options: Any) -> Any:
        if self._free:
            self._free -= 1
        else:
            with connecting():
                await self._wait_for_turn()
        try:
            found = await super().get_connection()  # type: ignore[no-untyped-call]
        except BaseException:
            self._next_turn()
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
                self._served += connection.is_connected
                self._next_turn()

    async def _wait_for_turn(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        served, silent = self._served, 0
        try:
            # In parts, so that a pause of this process is not taken for a silence of the server.
            part_s = None if self.timeout is None else self.timeout / WAIT_PARTS
            while not (await asyncio.wait((turn,), timeout=part_s))[0]:
                served, silent = self._served, silent + 1 if served == self._served else 0
                if silent == WAIT_PARTS:
                    raise RedisConnectionError(f"No connection available: none became free in {self.timeout:g} s")
        except BaseException:
            if turn.done():
                self._next_turn()
            else:
                self._waiting.remove(turn)
            raise

    def _next_turn(self) -> None:
        if self._waiting:
            self._waiting.popleft().set_result(None)
        else:
            self._free += 1


class _OfSentinels(SentinelManagedConnection):
    read_response = Connection.read_response  # type: ignore[assignment]


class _Plain(_Leaving, Connection):
    pass


class _Tls(_Leaving, SSLConnection):
    pass


class _Unix(_Leaving, UnixDomainSocketConnection):
    pass


class _Managed(_Leaving, _OfSentinels):
    pass


class _ManagedTls(_Leaving, _OfSentinels, SentinelManagedSSLConnection):
    pass


class _FairPoolOfPrimary(FairPool, SentinelConnectionPool):
    pass


class _Sentinels(Sentinel):
    async def discover_master(self, service_name: str) -> Any:
        try:
            return await super().discover_master(service_name)
        except MasterNotFoundError:
            raise no_primary(service_name) from None


def drop(client: Redis) -> None:
    """Closes the sockets of ``client``, whose event loop is closed: nothing can be awaited there any more."""
    pools: list[Any] = [client.connection_pool]
    if isinstance(pools[0], SentinelConnectionPool):
        pools += [sentinel.connection_pool for sentinel in pools[0].sentinel_manager.sentinels]
    for pool in pools:
        for connection in (*pool._available_connections, *pool._in_use_connections):
            writer, connection._reader, connection._writer = connection._writer, None, None
            # A transport can only be closed by its loop, and asyncio's stand-in for a socket by nobody. A loop without
            # such stand-ins (uvloop) has closed its sockets.
            found = getattr(writer and writer.get_extra_info("socket"), "_sock", None)
            if found is not None:
                found.close()


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
            "retry": options["retry"],
            **driver_info(url),
            **manager["sentinel_kwargs"],
        }
        asked = _Sentinels(  # type: ignore[no-untyped-call]
            sentinels, min_other_sentinels=manager["min_other_sentinels"], sentinel_kwargs=asking
        )
        options["connection_class"] = _ManagedTls if primary.pop("ssl", False) else _Managed
        pool_class: Any = _FairPoolOfPrimary
        found = pool_class(
            service_name=manager["service_name"],
            sentinel_manager=asked,
            max_connections=CONNECTIONS,
            timeout=timeout_s,
            socket_keepalive=True,
            **options,
            **primary,
        )
        return Redis.from_pool(found)
    url = normalised(url)
    if url.startswith("unix://"):
        options["connection_class"] = _Unix
    else:
        options["socket_keepalive"] = True
        options["connection_class"] = _Tls if url.startswith("rediss://") else _Plain
    pool = FairPool.from_url(url, max_connections=CONNECTIONS, timeout=timeout_s, **options)
    pool.connection_kwargs.update(protocol=2, decode_responses=False, **tls_objects(pool.connection_kwargs))
    return Redis.from_pool(pool)
