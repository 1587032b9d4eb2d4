"""Refuses a lane when one of its keys has the wrong Redis type, or a string a wrong form, because another program uses
the name, or somebody changed it by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import NoPermissionError

from bridge.routing.errors import ConfigurationError
from bridge.routing.text import printable

if TYPE_CHECKING:
    from redis import Redis

    from bridge.routing.keys import LaneKeys


#: Attributes of `LaneKeys` -> the type of the key, as TYPE says it.
TYPES = {
    "stream": "stream",
    "leader": "string",
    "term": "string",
    "fence": "string",
    "tickets": "hash",
    "applied": "hash",
    "retries": "zset",
    "delayed": "zset",
    "late": "zset",
    "holding": "zset",
    "outcomes": "stream",
    "consumers": "hash",
    "dead": "stream",
    "counts": "hash",
    "notices": "hash",
    "history": "stream",
    "drains": "hash",
    "floor": "string",
    "agreed": "string",
    "about": "hash",
    "known": "hash",
    "unserved": "hash",
    "state_home": "string",
}


#: Above this, Lua has no whole numbers. A term or a fence would be given out twice.
MOST = 2**53 - 1
#: Characters of a wrong value that are shown.
SHOWN = 40


class _Form(NamedTuple):
    """What the value of a string must be."""

    name: str
    fits: Callable[[bytes], object]
    #: What to do with another value.
    advice: str


def _is_number(value: bytes) -> bool:
    return re.fullmatch(rb"0|[1-9][0-9]{0,15}", value) is not None and int(value) < MOST


_DELETE = "delete it: it is made again"
#: Attributes of `LaneKeys` -> the form of the value. `state_home` is a name, so that any text may be right. `agreed`
#: begins again when it is not a number.
_FORMS = {
    "leader": _Form("a term and the name of a master", re.compile(rb"[0-9]{1,16} .+", re.DOTALL).fullmatch, _DELETE),
    "term": _Form(
        f"a whole number from 0 to {MOST - 1}",
        _is_number,
        "stop all masters, and set it to a larger number than each term in their logs",
    ),
    "fence": _Form(
        f"a whole number from 0 to {MOST - 1}",
        _is_number,
        "stop all masters, and delete it: fences go on from the server's clock",
    ),
    "floor": _Form("a stream id", re.compile(rb"[0-9]{1,20}-[0-9]{1,20}").fullmatch, _DELETE),
}


def types_of(keys: LaneKeys) -> dict[str, str]:
    """Each key of the lane that has a fixed name -> its type."""
    return {getattr(keys, name): type_ for name, type_ in TYPES.items()}


def refuse_misplaced(redis: Redis, keys: LaneKeys, *, queues: bool = False) -> None:
    """Raises `ConfigurationError`, one line, when a key of the lane has another type than the lane's, or a string
    another form; redis errors.

    One round trip; with ``queues`` another two, for the queues of the consumers. Without the
    permission for TYPE nothing is checked.
    """
    strings = [getattr(keys, name) for name in _FORMS]
    try:
        found, values = _look(redis, types_of(keys), strings)
        if queues and not found:
            names: Any = redis.hkeys(keys.consumers)
            found, _ = _look(redis, {keys.queue(name.decode()): "list" for name in names})
    except NoPermissionError:
        return
    if found:
        clash = ", ".join(
            f"the key {printable(key)} is a {actual}, not a {expected}" for key, actual, expected in found
        )
        what = "it" if len(found) == 1 else "them"
        raise ConfigurationError(
            f"{clash}; rename or delete {what}, or name another lane with bridge_stream or bridge_group"
        )
    for key, value, form in zip(strings, values, _FORMS.values(), strict=True):
        if value is not None and not form.fits(value):
            shown = repr(value[:SHOWN].decode(errors="replace")) + ("…" if len(value) > SHOWN else "")
            raise ConfigurationError(f"the key {printable(key)} holds {shown}, not {form.name}; {form.advice}")


def _look(
    redis: Redis, expected: dict[str, str], strings: Sequence[str] = ()
) -> tuple[list[tuple[str, str, str]], list[bytes | None]]:
    """((key, its type, the type that it should have) for each existing key with a wrong type, the values of
    ``strings``). A value is None where there is none, or it may not be read.
    """
    with redis.pipeline(transaction=False) as pipe:
        for key in expected:
            pipe.type(key)
        for key in strings:
            pipe.get(key)
        replies = pipe.execute(raise_on_error=False)
    types, values = replies[: len(expected)], replies[len(expected) :]
    for reply in types:
        if isinstance(reply, Exception):
            raise reply
    return [
        (key, actual.decode(), type_)
        for (key, type_), actual in zip(expected.items(), types, strict=True)
        if actual.decode() not in ("none", type_)
    ], [None if isinstance(value, Exception) else value for value in values]
