"""The sorted sets of a lane that say which messages are delayed and which are late, as the leader asks them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger

from bridge.routing.batch import Batch
from bridge.routing.ids import id_in, member_of
from bridge.routing.text import one_line
from bridge.routing.transitions import advance

if TYPE_CHECKING:
    from bridge.leader.step.term import Term

logger = get_logger(__name__)

#: Members in one page.
PAGE = 1000
#: How many characters of a member that is no message are shown.
SHOWN_CHARS = 120


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
        members = flat[::2]
        found = [id_ for member in members if (id_ := id_in(member)) is not None]
        if len(found) < len(members):
            _remove(term, key, [member for member in members if id_in(member) is None])
        for start in range(0, len(found), PAGE):
            yield found[start : start + PAGE]
        if cursor == b"0":
            return


def _remove(term: Term, key: str, foreign: Sequence[bytes]) -> None:
    """Removes members that are no messages from the sorted sets."""
    batch = Batch()
    batch.over += foreign
    advance(term.redis, term.leadership, "", batch)
    say_removed(key, foreign)


def say_removed(key: str, foreign: Sequence[bytes]) -> None:
    """Logs that members of the sorted set ``key`` were removed, as they are no messages."""
    shown = one_line(foreign[0].decode(errors="replace"), SHOWN_CHARS)
    text = "%d members of %s are no messages, and were removed: %r%s"
    logger.error(text, len(foreign), key, shown, " and others" if len(foreign) > 1 else "")
