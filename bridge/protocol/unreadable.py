"""Values of a lane's hashes that a process cannot read: skipped, and logged once for each value.

Somebody may have written one by hand, or damaged it, or it is of a version that writes another form. Raised, the error
would end a leader, and the next one at every master, until somebody deletes the value: the whole lane would stand
still for one field. The port of a master would refuse each call of the consumer that the field is about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from celery.utils.log import get_logger

from bridge.routing.text import one_line

logger = get_logger(__name__)

#: Most values that are remembered as logged, and how many characters of one are shown.
SAID = 1000
SHOWN_CHARS = 120

#: What a reader raises for a value of another form.
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)

T = TypeVar("T")

#: Key, field and value of what this process has logged.
_said: set[tuple[str, bytes, bytes]] = set()


def skip(key: str, field: bytes, value: bytes) -> None:
    """Logs that a value is skipped. ``field``: empty, if the value is the whole key."""
    said = (key, field, value[:SHOWN_CHARS])
    if said in _said or len(_said) >= SAID:
        return
    _said.add(said)
    name = one_line(field.decode(errors="replace"), SHOWN_CHARS)
    where = f"the field {name!r} of the key {key}" if field else f"the key {key}"
    shown = one_line(value.decode(errors="replace"), SHOWN_CHARS)
    logger.error("%s cannot be read and is skipped: %r; delete it if no other version needs it", where, shown)


def read_all(key: str, found: Mapping[bytes, bytes], read: Callable[[bytes, bytes], T]) -> dict[bytes, T]:
    """What ``read`` makes of each field of the hash ``key`` and its value, without those that it cannot read."""
    readable: dict[bytes, T] = {}
    for field, value in found.items():
        try:
            field.decode()
            readable[field] = read(field, value)
        except UNREADABLE:
            skip(key, field, value)
    return readable


def read_one(key: str, field: bytes, value: bytes | None, read: Callable[[bytes], T]) -> T | None:
    """What ``read`` makes of the value of one field; None: there is none, or it cannot be read."""
    return read_all(key, {} if value is None else {field: value}, lambda _field, text: read(text)).get(field)
