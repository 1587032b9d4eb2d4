"""An entry of the outcome stream: how its kind is written and read. A form of its own: `bridge.protocol.outcomes`.

An entry has a field `WHO` and one whose name is its kind (`EntryKind`). A death notice has more (`GivenUp`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import orjson

from bridge.protocol.outcomes import NotUnderstood

#: The first field: the incarnation that the entry is about. In an operator's order: the id of the order.
WHO = "i"


class EntryKind(Enum):
    """What an entry is: the name of its second field."""

    #: The value is a JSON array of outcomes.
    OUTCOMES = "o"
    #: A consumer registered, or changed its registration. The value is its name.
    JOINED = "joined"
    #: A consumer shuts down. The value is its name.
    LEAVING = "leaving"
    #: A consumer gave its lease up. The value is its name.
    GONE = "gone"
    #: A consumer died, and its watcher gave its lease up. The value is its name. More fields: see `GivenUp`.
    DIED = "died"
    #: The value is an operator's order (JSON, see `bridge.operate.orders`).
    ORDER = "order"


_WHO = WHO.encode()
_OUTCOMES = EntryKind.OUTCOMES.value.encode()
_KINDS: dict[bytes, EntryKind] = {kind.value.encode(): kind for kind in EntryKind}


#: Most digits of a count in a notice.
MOST_DIGITS = 9


class Notice(NamedTuple):
    """An entry that has no outcomes."""

    id: str
    kind: EntryKind
    #: The value of `WHO`.
    who: str
    #: The value of the field that is named after the kind.
    value: bytes
    #: Further fields and values, alternating.
    more: Sequence[bytes]


class GivenUp(NamedTuple):
    """A notice that a lease was given up, from the consumer or its watcher."""

    #: Field ``ran``, a JSON array: fences of the messages that were running.
    ran: frozenset[int] = frozenset()
    #: Field ``asked``, there or not: whether the consumer was told to end at once.
    asked: bool = False
    #: Field ``beside``: how many messages of other lanes were running. 0 if it is not there.
    beside: int = 0


def notice_fields(kind: EntryKind, who: str, value: str | bytes) -> tuple[str | bytes, ...]:
    """The fields and values of an entry, for XADD."""
    return (WHO, who, kind.value, value)


def outcomes_in(fields: Sequence[bytes]) -> bytes | None:
    """The outcomes of an entry, as JSON; None: it is a notice. Raises `NotUnderstood`."""
    if len(fields) < 4 or fields[0] != _WHO:
        raise NotUnderstood("it has no known form")
    return fields[3] if fields[2] == _OUTCOMES else None


def read_notice(id_: str, fields: Sequence[bytes]) -> Notice:
    """The entry ``id_``, which is a notice. Raises `NotUnderstood`."""
    _, who, kind, value, *more = fields
    try:
        name = who.decode()
    except UnicodeDecodeError:
        raise NotUnderstood("the name in it is not UTF-8") from None
    known = _KINDS.get(kind)
    if known is None:
        raise NotUnderstood(f"it is of the kind {kind.decode(errors='replace')!r:.100}", newer=True)
    return Notice(id_, known, name, value, more)


def read_given_up(notice: Notice) -> GivenUp:
    """What a death notice says. Raises `NotUnderstood`."""
    fields = dict(zip(notice.more[::2], notice.more[1::2], strict=False))
    try:
        ran = orjson.loads(fields.get(b"ran", b""))
    except orjson.JSONDecodeError:
        ran = None
    if not isinstance(ran, list) or not all(type(fence) is int for fence in ran):
        raise NotUnderstood("a death notice that does not tell what ran")
    beside = fields.get(b"beside", b"0")
    if not beside.isdigit() or len(beside) > MOST_DIGITS:
        raise NotUnderstood("a death notice that does not tell what ran beside")
    return GivenUp(frozenset(ran), b"asked" in fields, int(beside))
