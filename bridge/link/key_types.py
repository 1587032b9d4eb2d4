"""Refuses a lane when one of its keys has the wrong Redis type, or a string a wrong form, because another program uses
the name, or somebody changed it by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
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
#: Lanes that one round trip looks at.
LANES = 100
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


def refuse_misplaced(redis: Redis, *lanes: LaneKeys, queues: bool = False) -> None:
    """Raises `ConfigurationError`, one line, when a key of one of ``lanes`` has another type than the lane's, or a
    string another form; redis errors.

    One round trip for `LANES` lanes; with ``queues`` two more for each lane, for the queues of its consumers. Without
    the permission for TYPE nothing is checked.
    """
    with suppress(NoPermissionError):
        for at in range(0, len(lanes), LANES):
            some = lanes[at : at + LANES]
            strings = [getattr(keys, name) for keys in some for name in _FORMS]
            found, values = _look(redis, [key for keys in some for key in types_of(keys)], strings)
            for keys in some:
                _refuse_types(types_of(keys), found)
                if queues:
                    names: Any = redis.hkeys(keys.consumers)
                    expected = {keys.queue(name.decode()): "list" for name in names}
                    _refuse_types(expected, _look(redis, expected)[0])
                _refuse_forms(keys, values)


def _refuse_types(expected: Mapping[str, str], found: Mapping[str, str]) -> None:
    wrong = [(key, found[key], type_) for key, type_ in expected.items() if found[key] not in ("none", type_)]
    if wrong:
        clash = ", ".join(
            f"the key {printable(key)} is a {actual}, not a {expected}" for key, actual, expected in wrong
        )
        what = "it" if len(wrong) == 1 else "them"
        raise ConfigurationError(
            f"{clash}; rename or delete {what}, or name another lane with bridge_stream or bridge_group"
        )


def _refuse_forms(keys: LaneKeys, values: Mapping[str, bytes | None]) -> None:
    for name, form in _FORMS.items():
        key: str = getattr(keys, name)
        value = values[key]
        if value is not None and not form.fits(value):
            shown = repr(value[:SHOWN].decode(errors="replace")) + ("…" if len(value) > SHOWN else "")
            raise ConfigurationError(f"the key {printable(key)} holds {shown}, not {form.name}; {form.advice}")


def _look(
    redis: Redis, keys: Iterable[str], strings: Sequence[str] = ()
) -> tuple[dict[str, str], dict[str, bytes | None]]:
    """(the type of each of ``keys``, the values of ``strings``), by key. A value is None where there is none, or it may
    not be read.
    """
    # Lanes share some of their keys.
    names = list(dict.fromkeys(keys))
    with redis.pipeline(transaction=False) as pipe:
        for key in names:
            pipe.type(key)
        for key in strings:
            pipe.get(key)
        replies = pipe.execute(raise_on_error=False)
    types, values = replies[: len(names)], replies[len(names) :]
    for reply in types:
        if isinstance(reply, Exception):
            raise reply
    read = (None if isinstance(value, Exception) else value for value in values)
    return dict(zip(names, (one.decode() for one in types), strict=True)), dict(zip(strings, read, strict=True))
