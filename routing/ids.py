"""Ids of stream entries as keys: pairs of whole numbers, which sort in stream order.

Ids as text do not: 9-0 would come after 10-0.
"""

from __future__ import annotations

import re

#: An id as a pair: Unix ms, unless the producer chose ids of its own, and the number within that ms.
IdKey = tuple[int, int]

#: A place in the order of a ticket: the key of an id, or what `late_place` returns. Places compare with each other.
Place = tuple[int, ...]

#: The largest second half of an id.
LAST_SEQUENCE = 2**64 - 1
#: The largest id. A producer may give it to an entry: it is the last one that the stream ever has.
LAST_ID = f"{LAST_SEQUENCE}-{LAST_SEQUENCE}"

# A server takes no longer numbers, even when they begin with zeros.
_ID = re.compile(r"[0-9]{1,20}(-[0-9]{1,20})?")


def id_key(id_: str) -> IdKey:
    """The key of an id; the sequence may be left out. Raises `ValueError` when the text is no id."""
    ms, _, sequence = id_.partition("-")
    return int(ms), int(sequence or 0)


def can_be_id(text: str, *, whole: bool = True) -> bool:
    """Whether a server takes ``text`` as an id. ``whole``: the sequence may not be left out."""
    found = _ID.fullmatch(text)
    return found is not None and not (whole and found[1] is None) and max(id_key(text)) <= LAST_SEQUENCE


def id_text(key: IdKey) -> str:
    """The id with this key."""
    return f"{key[0]}-{key[1]}"


def id_before(key: IdKey) -> str:
    """The newest id that is older than ``key``, which is not the first one."""
    ms, sequence = key
    return f"{ms}-{sequence - 1}" if sequence else f"{ms - 1}-{LAST_SEQUENCE}"


def key_after(key: IdKey) -> IdKey:
    """The next key after ``key``."""
    ms, sequence = key
    return (ms, sequence + 1) if sequence < LAST_SEQUENCE else (ms + 1, 0)


def younger_than(id_: str, end: str = "+") -> tuple[str, str]:
    """Start and end of a range (XRANGE, XPENDING) of the entries that are younger than ``id_``, up to ``end``.

    A server refuses a range that begins after the largest id. No entry is there, so this range is empty then.
    """
    return ("+", "-") if id_ == LAST_ID else (f"({id_}", end)


# -- places of delayed messages ----------------------------------------------------------------------------------------


def late_place(due_ms: int, id_: str) -> Place:
    """The place of a message that was delayed until ``due_ms``: after all messages that were added by then."""
    return (due_ms, LAST_SEQUENCE + 1, *id_key(id_))


def place_after(place: Place) -> Place:
    """The first place after ``place``."""
    if len(place) == 2:
        return key_after((place[0], place[1]))
    return (*place[:-1], place[-1] + 1)


def first_id_from(place: Place) -> IdKey:
    """The first key of an id that is at ``place`` or after it."""
    return (place[0], place[1]) if len(place) == 2 else (place[0] + 1, 0)


def member_of(id_: str) -> str:
    """The id as a member of a sorted set: members with one score are in the order of their ids.

    Each of the two numbers begins with a letter that says how many digits it has.
    """
    ms, _, sequence = id_.partition("-")
    return f"{_digits(ms)}{ms}-{_digits(sequence)}{sequence}"


def id_of_member(member: str) -> str:
    """The id that `member_of` made ``member`` of."""
    ms, _, sequence = member.partition("-")
    return f"{ms[1:]}-{sequence[1:]}"


def id_in(member: bytes) -> str | None:
    """The id in a member that was read from a sorted set; None: `member_of` does not make it, somebody wrote it."""
    text = member.decode(errors="replace")
    id_ = id_of_member(text)
    return id_ if can_be_id(id_) and member_of(id_text(id_key(id_))) == text else None


def _digits(number: str) -> str:
    return chr(ord("a") + len(number) - 1)
