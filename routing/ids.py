"""Ids of stream entries as keys: pairs of whole numbers, which sort in stream order.

Ids as text do not: 9-0 would come after 10-0.
"""

from __future__ import annotations

#: An id as a pair: Unix ms, unless the producer chose ids of its own, and the number within that ms.
IdKey = tuple[int, int]

#: The largest second half of an id.
LAST_SEQUENCE = 2**64 - 1
#: The largest id. A producer may give it to an entry: it is the last one that the stream ever has.
LAST_ID = f"{LAST_SEQUENCE}-{LAST_SEQUENCE}"


def id_key(id_: str) -> IdKey:
    """The key of an id; the sequence may be left out. Raises `ValueError` when the text is no id."""
    ms, _, sequence = id_.partition("-")
    return int(ms), int(sequence or 0)


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
