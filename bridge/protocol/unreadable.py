"""Values of a lane's hashes that a process cannot read: skipped, and logged once for each value.

Somebody may have written one by hand, or damaged it, or it is of a version that writes another form. Raised, the error
would end a leader, and the next one at every master, until somebody deletes the value: the whole lane would stand
still for one field. The port of a master would refuse each call of the consumer that the field is about.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TypeVar

from bridge.routing.text import one_line

logger = logging.getLogger(__name__)

#: Most values that are remembered as logged, and how many characters of one are shown.
SAID = 1000
SHOWN_CHARS = 120

#: What a reader raises for a value of another form.
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)

#: What to do about one.
ADVICE = "delete it if no other version needs it"

T = TypeVar("T")
#: Gets the key, the field and the value of what cannot be read.
Skip = Callable[[str, bytes, bytes], None]

#: Key, field and value of what this process has logged.
_said: set[tuple[str, bytes, bytes]] = set()


def skip(key: str, field: bytes, value: bytes) -> None:
    """Logs that a value is skipped. ``field``: empty, if the value is the whole key."""
    said = (key, field, value[:SHOWN_CHARS])
    if said in _said or len(_said) >= SAID:
        return
    _said.add(said)
    logger.error("%s", skipped(key, field, value))


def skipped(key: str, field: bytes, value: bytes) -> str:
    """One sentence: a value is skipped, and what to do. As for `skip`."""
    return f"{place(key, field)} cannot be read and is skipped: {_shown(value)!r}; {ADVICE}"


def place(key: str, field: bytes) -> str:
    """Where a value is."""
    return f"the field {_shown(field)!r} of the key {key}" if field else f"the key {key}"


def _shown(raw: bytes) -> str:
    return one_line(raw.decode(errors="replace"), SHOWN_CHARS)


def read_all(
    key: str, found: Mapping[bytes, bytes], read: Callable[[bytes, bytes], T], skip: Skip = skip
) -> dict[bytes, T]:
    """What ``read`` makes of each field of the hash ``key`` and its value, without those that it cannot read. ``skip``
    gets these.
    """
    readable: dict[bytes, T] = {}
    for field, value in found.items():
        try:
            field.decode()
            readable[field] = read(field, value)
        except UNREADABLE:
            skip(key, field, value)
    return readable


def read_one(key: str, field: bytes, value: bytes | None, read: Callable[[bytes], T], skip: Skip = skip) -> T | None:
    """What ``read`` makes of the value of one field; None: there is none, or it cannot be read."""
    return read_all(key, {} if value is None else {field: value}, lambda _field, text: read(text), skip).get(field)
