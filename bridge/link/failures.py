"""What goes wrong below a command, as one line that says what to do.

Errors of `bridge.routing.errors` are such lines already. This is for what comes from below them: redis, Celery's
configuration, files. Whatever else comes up is a bug, and keeps its stack trace.
"""

from __future__ import annotations

import errno

import redis
from celery.exceptions import ImproperlyConfigured

from bridge.link.connections import UNAVAILABLE
from bridge.routing.errors import ConfigurationError, InputError, ServerUnavailable, TicketBridgeError

#: Where the output goes has no room for it.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def translated(exc: Exception) -> TicketBridgeError | None:
    """The error to show for ``exc``; None when it is nothing that a user could have caused."""
    if isinstance(exc, TicketBridgeError):
        return exc
    if isinstance(exc, redis.exceptions.RedisError):
        return _of_redis(exc)
    if isinstance(exc, ImproperlyConfigured):
        return ConfigurationError(f"Celery's configuration cannot work: {' '.join(str(exc).split())}")
    if isinstance(exc, OSError) and exc.errno != errno.EPIPE and exc.filename is not None:
        # A broken pipe is no error: whoever read the output has seen enough.
        return InputError(f"{exc.filename}: {exc.strerror}")
    if isinstance(exc, OSError) and exc.errno in NO_ROOM:
        # Without a name of a file: it is what the shell has opened.
        return InputError(f"the output cannot be written: {exc.strerror}")
    return None


def _of_redis(exc: redis.exceptions.RedisError) -> TicketBridgeError:
    said = " ".join(str(exc).split())
    if isinstance(exc, redis.exceptions.AuthenticationError):
        return ServerUnavailable(f"Redis refuses the login: {said}; check user and password in the broker's URL")
    if isinstance(exc, redis.exceptions.NoPermissionError):
        return ServerUnavailable(f"this Redis user may not do that: {said}; ask for the permission (ACL SETUSER)")
    if isinstance(exc, redis.exceptions.OutOfMemoryError):
        return ServerUnavailable(f"Redis is full: {said}; give it more memory (maxmemory), then try again")
    if isinstance(exc, UNAVAILABLE):
        return ServerUnavailable(f"lost Redis: {said or type(exc).__name__}; try again when it is back")
    if "WRONGTYPE" in said:
        return ServerUnavailable(
            "Redis holds something else under a name of this lane (WRONGTYPE): `bridge status` names the key; check "
            "bridge_stream and bridge_group"
        )
    return ServerUnavailable(f"Redis answers with an error: {said}")
