"""Translates errors of redis, of Celery's configuration and of files into one line that says what to do.

Errors of `bridge.routing.errors` are such lines already. Every other error is a bug and keeps its stack trace.
"""

from __future__ import annotations

import errno

import redis
from celery.exceptions import ImproperlyConfigured

from bridge.link.connections import UNAVAILABLE, is_forbidden, lacks_command
from bridge.routing.errors import ConfigurationError, InputError, ServerUnavailable, TicketBridgeError

#: Error numbers of an output without room.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def translated(exc: Exception) -> TicketBridgeError | None:
    """The error to print for ``exc``; None for a bug."""
    if isinstance(exc, TicketBridgeError):
        return exc
    if isinstance(exc, redis.exceptions.RedisError):
        return _of_redis(exc)
    if isinstance(exc, ImproperlyConfigured):
        return ConfigurationError(f"Celery's configuration cannot work: {' '.join(str(exc).split())}")
    if isinstance(exc, OSError) and exc.errno != errno.EPIPE and exc.filename is not None:
        # A broken pipe is no error: the reader of the output has closed it.
        return InputError(f"{exc.filename}: {exc.strerror}")
    if isinstance(exc, OSError) and exc.errno in NO_ROOM:
        # Without a file's name it is an output that the shell opened.
        return InputError(f"the output cannot be written: {exc.strerror}")
    return None


def missing_permission(exc: Exception) -> ServerUnavailable | None:
    """The error to print where the server refused a command for this user; None: for another reason."""
    return _forbidden(" ".join(str(exc).split())) if is_forbidden(exc) else None


def _forbidden(reason: str) -> ServerUnavailable:
    return ServerUnavailable(
        f"this Redis user may not do that: {reason}; ask for the permission (ACL SETUSER): `bridge acl` prints those "
        "of each role; to add or remove a subscription, and to retire or repartition a stream, use the URL of an "
        "administrator"
    )


def _of_redis(exc: redis.exceptions.RedisError) -> TicketBridgeError:
    reason = " ".join(str(exc).split())
    if isinstance(exc, redis.exceptions.AuthenticationError):
        return ServerUnavailable(f"Redis refuses the login: {reason}; check user and password in the broker's URL")
    if (refused := missing_permission(exc)) is not None:
        return refused
    if isinstance(exc, redis.exceptions.OutOfMemoryError):
        return ServerUnavailable(f"Redis is full: {reason}; give it more memory (maxmemory), then try again")
    if isinstance(exc, UNAVAILABLE):
        return ServerUnavailable(f"lost Redis: {reason or type(exc).__name__}; try again when it is back")
    if (lacks := lacks_command(exc)) is not None:
        return lacks
    if "WRONGTYPE" in reason:
        return ServerUnavailable(
            "Redis holds something else under a name of this lane (WRONGTYPE): `bridge status` names the key; check "
            "bridge_stream and bridge_group"
        )
    return ServerUnavailable(f"Redis answers with an error: {reason}")
