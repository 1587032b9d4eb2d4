"""What the error of a command says about the server: an outage, no memory, or a command that is not allowed.

`is_outage` is the only place that decides whether an error is an outage. The caller waits an outage out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import redis
from redis.exceptions import ResponseError

#: Errors that mean that the server cannot be reached or does not serve now.
UNAVAILABLE = (
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.BusyLoadingError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.MasterDownError,
    OSError,
)

#: Replies of a server that cannot serve now but will again. The caller waits and tries again. The server is full (OOM),
#: loads its data, is a replica (READONLY, or cut off from its primary), cannot write snapshots (MISCONF), has too few
#: replicas, changes its role, or is busy with a script.
PASSING = ("OOM", "LOADING", "READONLY", "MASTERDOWN", "MISCONF", "NOREPLICAS", "UNBLOCKED", "BUSY")
#: Those of them that mean that this server is not the primary. A new connection may reach the primary.
ELSEWHERE = ("READONLY", "MASTERDOWN", "UNBLOCKED")

# Before 7.0, the error of a command in a script is in the middle of the script's own error:
# "Error running script (call to f_5c…): @user_script:1: @user_script: 1: -READONLY You can't write …".
_IN_SCRIPT = re.compile(r"^(?:Error running script|@user_script).*?: -([A-Z]+) ", re.DOTALL)
# A pipeline of redis-py puts the command before the error, at most 100 characters of it. An argument may look like the
# end of the command, so the last place counts that can be the end. (That of asyncio drops the error, before 7.0.)
_IN_PIPELINE = re.compile(r"Command # \d+ \(.{0,100}\) of pipeline caused error: (.*)", re.DOTALL)
# What EXEC says when the server cannot serve the transaction any more.
_DISCARDED = "Transaction discarded because of: "


def error_code(exc: BaseException) -> str:
    """The code of a server's error reply (``OOM``, ``READONLY`` …); ``""``: it has none.

    Also of one from inside a script or a pipeline.
    """
    # redis-py removes a code from the text if it has a class for it.
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
    piped = _IN_PIPELINE.match(text)
    text = (piped[1] if piped is not None else text).removeprefix(_DISCARDED)
    inner = _IN_SCRIPT.match(text)
    if inner is not None:
        return inner[1]
    first = text.partition(" ")[0]
    return first if first.isupper() else ""


def is_outage(exc: BaseException) -> bool:
    """Whether ``exc`` is an outage: no reply, or one of `PASSING`."""
    return isinstance(exc, UNAVAILABLE) or error_code(exc) in PASSING


#: What Redis and Valkey say of a command, a key or a channel that the user may not have.
_FORBIDDEN = (
    "NOPERM",
    "ACL failure in script",
    "The user executing the script can't",
    "has no permissions to",
    "No permissions to access",
)


def is_forbidden(exc: BaseException) -> bool:
    """Whether the server refused a command for this user. It is told by the text of the error, which may come from a
    script, a pipeline, or kombu.
    """
    reason = " ".join(str(exc).split())
    return any(text in reason for text in _FORBIDDEN)


def is_full(exc: BaseException) -> bool:
    """Whether the server refused a write because it has no memory left."""
    return error_code(exc) == "OOM"


@contextmanager
def connecting() -> Iterator[None]:
    """Marks errors that are raised in the block, which opens a connection, for `was_not_sent`."""
    try:
        yield
    except Exception as exc:
        exc.not_sent = True  # type: ignore[attr-defined]
        raise


def was_not_sent(exc: BaseException) -> bool:
    """Whether a command that failed with ``exc`` certainly had no effect: it was not sent, or the server refused it.

    False for an error within a pipeline: the server refused one command of it, and may have done the others.
    """
    return getattr(exc, "not_sent", False) or (bool(error_code(exc)) and _IN_PIPELINE.match(str(exc)) is None)
