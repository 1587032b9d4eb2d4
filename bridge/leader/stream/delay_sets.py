"""The sorted sets of a lane that say which messages are delayed and which are late, as the leader asks them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from bridge.routing.ids import id_of_member, member_of

if TYPE_CHECKING:
    from bridge.leader.step.term import Term

#: Members in one page.
PAGE = 1000


def due_times(term: Term, key: str, ids: Sequence[str]) -> dict[str, int]:
    """Those of ``ids`` that are in the sorted set ``key`` -> their due times (Unix ms)."""
    if not ids:
        return {}
    scores = term.wire.call("ZMSCORE", key, *map(member_of, ids))
    return {id_: int(float(score)) for id_, score in zip(ids, scores, strict=True) if score is not None}


def ids_in(term: Term, key: str) -> Iterator[list[str]]:
    """All ids in the sorted set ``key``, in pages. One may be there twice, when the set changes meanwhile."""
    cursor: Any = b"0"
    while True:
        cursor, flat = term.wire.call("ZSCAN", key, cursor, "COUNT", PAGE)
        found = [id_of_member(member.decode()) for member in flat[::2]]
        for start in range(0, len(found), PAGE):
            yield found[start : start + PAGE]
        if cursor == b"0":
            return
