"""One page of a long list, for which only so much is read, whatever is looked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

#: Items that are read for one page.
LOOKED_AT = 10_000


@dataclass(frozen=True)
class Page(Generic[T]):
    """``found``: the items that were wanted. ``last``: the last item that was read, if there are more behind it.
    ``looked_at``: how many were read.
    """

    found: tuple[T, ...]
    last: T | None
    looked_at: int


def page_of(source: Iterable[T], limit: int, wanted: Callable[[T], bool]) -> Page[T]:
    """The first ``limit`` items of ``source`` that are ``wanted``, among the first `LOOKED_AT`."""
    found: list[T] = []
    last = None
    looked_at = 0
    for looked_at, item in enumerate(source, 1):
        if len(found) == limit or looked_at > LOOKED_AT:
            return Page(tuple(found), last, looked_at - 1)
        if wanted(item):
            found.append(item)
        last = item
    return Page(tuple(found), None, looked_at)
