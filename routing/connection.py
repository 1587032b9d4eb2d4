"""Clients of a Redis server for every part: plain, TLS, Unix socket, or the primary that sentinels name."""

from __future__ import annotations

import codecs
import re
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import parse_qs

from redis import Connection, ConnectionPool, Redis, SSLConnection, UnixDomainSocketConnection
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel, SentinelManagedConnection, SentinelManagedSSLConnection

from bridge.routing.address import normalised, sentinels_of, tls_objects
from bridge.routing.errors import ConfigurationError
from bridge.routing.server_errors import ELSEWHERE, error_code

#: Longest time to open a connection, in seconds, if there is a limit for replies at all.
CONNECT_S = 5.0
#: Most connections of one client, unless the URL says another number: as many as its threads use at once. redis-py 8
#: has a limit of 100, and raises an error for one more.
MOST_CONNECTIONS = 2**31
#: Longest time for a sentinel's reply, in seconds: there are other sentinels.
SENTINEL_S = 1.0

#: Commands whose replies redis-py changes: differently in each version, and without repeated fields.
_REARRANGED = ("XPENDING", "XRANGE", "XREVRANGE", "XINFO GROUPS")

C = TypeVar("C", bound=Redis)

try:
    from redis.driver_info import DriverInfo
except ImportError:  # before redis-py 7.1
    _DRIVER: Any = None
else:
    _DRIVER = DriverInfo()


def with_raw_replies(client_: C) -> C:
    """Makes ``client_``, which may be a pipeline, return these replies unchanged. Returns it."""
    for command in _REARRANGED:
        client_.response_callbacks.pop(command, None)
    return client_


#: The option's name in redis-py's error for an unknown option or a bad value.
_OPTION = re.compile(r"(?:unexpected keyword argument|Invalid value for) '(\w+)'")

#: Options of redis-py that need a Python object. A URL holds only text, which would fail at the first command.
_OBJECTS = frozenset(
    {
        "cache_factory",
        "command_packer",
        "connection_class",
        "driver_info",
        "encoder_class",
        "event_dispatcher",
        "himport_registry",
        "maint_notifications_config",
        "maint_notifications_pool_handler",
        "maintenance_state",
        "oss_cluster_maint_notifications_handler",
        "parser_class",
        "queue_class",
        "redis_connect_func",
        "retry",
        "retry_on_error",
        "socket_keepalive_options",
        "socket_type",
        "ssl_ocsp_context",
    }
)


def driver_info(url: str) -> dict[str, Any]:
    """The option that names this client to the server.

    Without it redis-py 8.1 reads the metadata of its own package for each connection: 0.6 ms. Empty where redis-py has
    no such option, and where ``url`` names the client itself.
    """
    if _DRIVER is None or "lib_name=" in url or "lib_version=" in url:
        return {}
    return {"driver_info": _DRIVER}


#: RESP2 and no decoding, even if a URL says otherwise: the hot paths read raw replies of one form.
_RAW: dict[str, Any] = {"protocol": 2, "decode_responses": False}


def _packer() -> dict[str, Any]:
    """The option that packs commands without a look at each argument; empty where redis-py packs in another way.

    A step of a leader has thousands of arguments, and redis-py asks of each whether it is a buffer of another type. It
    packs those that this packer refuses.
    """
    try:
        from hiredis import pack_command
        from redis.connection import HiredisRespSerializer
    except ImportError:
        return {}

    class Packer(HiredisRespSerializer):
        def pack(self, *args: Any) -> list[Any]:
            name = args[0]
            if type(name) is str and " " not in name:
                with suppress(TypeError):
                    return [pack_command(args)]
            return list(super().pack(*args))

    return {"command_packer": Packer()}


class _Leaving:
    """A connection that is closed when the server says that it is not the primary.

    After a failover behind a name or a virtual address, connections to the old primary stay open. Without this,
    commands on them would fail for ever. The connection is closed before the next command, because more replies may be
    on their way.
    """

    _left = False

    # Both are called for each command.
    def connect(self, *args: Any, **options: Any) -> Any:
        try:
            return super().connect(*args, **options)  # type: ignore[misc]
        except Exception as exc:
            exc.not_sent = True  # type: ignore[attr-defined]
            raise

    def connect_check_health(self, *args: Any, **options: Any) -> Any:
        try:
            return super().connect_check_health(*args, **options)  # type: ignore[misc]
        except Exception as exc:
            exc.not_sent = True  # type: ignore[attr-defined]
            raise

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
            # Also asks the sentinels. What `send_packed_command` does by itself goes to the same server again.
            self.connect()
        super().send_packed_command(*args, **options)  # type: ignore[misc]


class _OfSentinels(SentinelManagedConnection):
    # redis-py's own makes a lost connection of READONLY. Then nobody knows that the command had no effect.
    read_response = Connection.read_response


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


def no_primary(name: str) -> MasterNotFoundError:
    """The error to raise when the sentinels name no primary ``name``.

    redis-py's own shows the options of all connections to sentinels, before 8.0 with their password.
    """
    return MasterNotFoundError(
        f"no sentinel names a primary {name!r}: are they up, do they know that name, and do they take the password in "
        "sentinel_kwargs?"
    )


class _Sentinels(Sentinel):
    def discover_master(self, service_name: str) -> Any:
        try:
            return super().discover_master(service_name)  # type: ignore[no-untyped-call]
        except MasterNotFoundError:
            raise no_primary(service_name) from None


def client(url: str, *, timeout_s: float | None = 5.0, single: bool = False) -> Redis:
    """A client for ``url``, an address as `bridge.routing.address` makes them, or redis-py's own form.

    It never repeats a command: only the caller knows whether that is safe. With sentinels it follows the primary.
    """
    options: dict[str, Any] = {
        **_RAW,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": None if timeout_s is None else min(timeout_s, CONNECT_S),
        "retry": Retry(NoBackoff(), 0),
        "max_connections": MOST_CONNECTIONS,
    }
    options |= driver_info(url) | _packer()
    if url.startswith("sentinel://"):
        return _client_of_primary(url, options, single)
    url = normalised(url)
    if url.startswith("unix://"):
        options["connection_class"] = _Unix
    else:
        options["socket_keepalive"] = True
        options["connection_class"] = _Tls if url.startswith("rediss://") else _Plain
    pool = ConnectionPool.from_url(url, **options)
    return _owner_of(pool, single)


def check_options(url: str) -> None:
    """Raises `ConfigurationError` where ``url``, an address as `client` takes it, has options that cannot work.

    redis-py would find out with its first connection only, and its message would not help a user.
    """
    cannot = "the broker's URL has an option that cannot work"
    options = parse_qs(url.partition("?")[2])
    if "credential_provider" in options:
        # Celery's connections take the name of a class.
        raise ConfigurationError(
            "the broker's URL has credential_provider, which the bridge's own connections cannot use: put user and "
            "password into the URL"
        )
    if found := sorted(_OBJECTS.intersection(options)):
        raise ConfigurationError(f"{cannot}: {found[0]} needs an object, and a URL holds text only")
    try:
        # The connection is built and not opened. Building it checks the options.
        made: Any = client(url).connection_pool.make_connection()
        codecs.lookup(made.encoder.encoding)
    except ConfigurationError:
        raise
    except LookupError:
        raise ConfigurationError(f"{cannot}: encoding is no name of an encoding") from None
    except (AttributeError, TypeError, ValueError) as exc:
        raise ConfigurationError(f"{cannot}{_option(url, exc)}") from None
    for name in ("socket_timeout", "socket_connect_timeout"):
        value = getattr(made, name, None)
        if value is not None and not value > 0:
            raise ConfigurationError(f"{cannot}: {name} must be above 0")
    hosts = (
        [host for host, _ in sentinels_of(url)[0]]
        if url.startswith("sentinel://")
        else [getattr(made, "host", None) or ""]
    )
    if not all(_is_name(host) for host in hosts) or "\0" in getattr(made, "path", ""):
        # It is not shown: it may be a piece of a password.
        raise ConfigurationError("the broker's URL has a host or a path that no server can have")


def _is_name(host: str) -> bool:
    """Whether a client may ask for the address of ``host``. For other texts `getaddrinfo` raises no `OSError`."""
    try:
        return b"\0" not in host.encode("idna")
    except UnicodeError:
        return False


def _option(url: str, exc: Exception) -> str:
    """The name of the option in ``exc``. Empty when it may be a piece of a password: before an @."""
    found = _OPTION.search(str(exc))
    return f": {found[1]}" if found and "@" not in url.partition("?")[2] else ""


def _client_of_primary(url: str, options: dict[str, Any], single: bool) -> Redis:
    sentinels, manager, primary = sentinels_of(url)
    timeout_s = min(options["socket_timeout"] or SENTINEL_S, SENTINEL_S)
    asking = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": options["retry"],
        **driver_info(url),
        **manager["sentinel_kwargs"],
    }
    sentinel: Any = _Sentinels
    asked = sentinel(sentinels, min_other_sentinels=manager["min_other_sentinels"], sentinel_kwargs=asking)
    pool = asked.master_for(
        manager["service_name"],
        connection_class=_ManagedTls if primary.pop("ssl", False) else _Managed,
        socket_keepalive=True,
        **{**options, **primary},
    ).connection_pool
    return _owner_of(pool, single)


def _owner_of(pool: ConnectionPool, single: bool) -> Redis:
    # Set again, because the URL's options were applied after them.
    pool.connection_kwargs.update({**_RAW, **tls_objects(pool.connection_kwargs)})
    made = Redis(connection_pool=pool, single_connection_client=single)
    # The pool belongs to this client, and is closed with it.
    made.auto_close_connection_pool = True
    return made
