"""What is pending in the lane's group, and how far the group has read: the leader's reads of it, and how it claims.

The pending list is where the order of what waits and the ownership of what runs are written down. `bridge.rebuild`
reads a lane from it, `bridge.strays` holds it against the picture, `bridge.orderdesk` and `bridge.refill` fetch from
it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from routing.errors import LaneConflict
from routing.messages import Refusal, Refused
from routing.transitions import adopt

if TYPE_CHECKING:
    from bridge.leader import Leader
    from routing.transitions import Batch

#: Entries in one page.
PAGE = 1000


def owners(leader: Leader) -> dict[str, int]:
    """Name in the group -> how many entries are pending under it, where there are any.

    Raises `LaneConflict` when the group is gone.
    """
    keys = leader.settings.keys
    try:
        summary = leader.wire.call("XPENDING", keys.stream, keys.group)
    except ResponseError as exc:
        if not str(exc).startswith("NOGROUP"):
            raise
        raise LaneConflict(f"the group {keys.group} of {keys.stream} is gone") from None
    return {name.decode(errors="surrogateescape"): int(count) for name, count in summary[3] or ()}


def pending_under(leader: Leader, name: str, at_once: int = 0) -> Iterator[str]:
    """Ids of the entries that are pending under ``name``, in id order; ``at_once``: how many in one reply."""
    count = at_once or PAGE
    keys = leader.settings.keys
    raw = name.encode(errors="surrogateescape")
    start = "-"
    while True:
        page = leader.wire.call("XPENDING", keys.stream, keys.group, start, "+", count, raw)
        for id_, *_ in page:
            yield id_.decode()
        if len(page) < count:
            return
        start = "(" + page[-1][0].decode()


def own_pending(leader: Leader, after: str) -> Iterator[Any]:
    """Pages of the master's own pending entries with ids greater than ``after``, in id order, with their fields."""
    keys = leader.settings.keys
    words = ("XREADGROUP", "GROUP", keys.group, leader.settings.master, "COUNT", PAGE, "STREAMS", keys.stream)
    while True:
        reply = leader.wire.call(*words, after)
        entries = reply[0][1] if reply else []
        if entries:
            yield entries
        if len(entries) < PAGE:
            return
        after = entries[-1][0].decode()


def pending_elsewhere(leader: Leader, names: Iterable[str]) -> dict[str, str]:
    """Entry -> name, of what is pending under one of ``names`` that is neither the master's nor a parked ticket's. What
    is in flight belongs there; all else is pending where no record says so.
    """
    lane = leader.lane
    known = {lane.parked_name(ticket) for ticket in lane.parked} | {leader.settings.master}
    return {id_: name for name in names if name not in known for id_ in pending_under(leader, name)}


def claim_back(leader: Leader, name: str, ids: list[str], batch: Batch, spared: Collection[str] = ()) -> int:
    """Makes ``ids`` pending under ``name``; how many could be. Newer servers forget those whose entries were deleted
    when they are claimed: they are dead letters, or nobody would ever hear of them; but for ``spared``, which are
    missed elsewhere.
    """
    claimed = 0
    for start in range(0, len(ids), PAGE):
        page = ids[start : start + PAGE]
        count = adopt(leader.redis, leader.leadership, name, page)
        claimed += count
        if count < len(page):
            for id_ in page:
                if id_ not in spared and not leader.wire.call("XRANGE", leader.settings.keys.stream, id_, id_):
                    leader.lane.refuse(Refusal(id_, Refused.TRIMMED, "", ()), batch)
    return claimed


def group_read_to(leader: Leader) -> str | None:
    """Id up to which the group has read; None: there is no group."""
    keys = leader.settings.keys
    try:
        groups = [dict(pairs(told)) for told in leader.wire.call("XINFO", "GROUPS", keys.stream)]
    except ResponseError:
        return None
    found = [told[b"last-delivered-id"] for told in groups if told[b"name"] == keys.group.encode()]
    return found[0].decode() if found else None


def names_in_group(leader: Leader) -> set[str]:
    """The names that the group knows, whether anything is pending under them or not."""
    keys = leader.settings.keys
    replies = leader.wire.call("XINFO", "CONSUMERS", keys.stream, keys.group)
    return {dict(pairs(told))[b"name"].decode(errors="surrogateescape") for told in replies}


def pairs(flat: Any) -> list[tuple[Any, Any]]:
    """A flat reply as its pairs."""
    return [(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)]
