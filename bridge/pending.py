"""What is pending in the lane's group, and how far the group has read: the leader's reads of it, and how it claims.

The pending list is where the order of what waits and the ownership of what runs are written down. `bridge.rebuild`
reads a lane from it, `bridge.strays` holds it against the picture, `bridge.orderdesk` and `bridge.refill` fetch from
it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from bridge.routing.errors import LaneConflict
from bridge.routing.groups import Group, group_in
from bridge.routing.ids import id_key, younger_than
from bridge.routing.messages import Message, Refusal, Refused
from bridge.routing.transitions import READ_BYTES, adopt

if TYPE_CHECKING:
    from bridge.leader import Leader
    from bridge.routing.transitions import Batch

#: Entries in one page.
PAGE = 1000
#: After every id.
NEVER = (1 << 64, 0)
#: Messages that are read at once, by their ids.
AT_ONCE = 64


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


def pending_in_all(leader: Leader) -> int:
    """How many entries are pending in the group, whatever the names: the server counts them for nothing, where a list
    of all names would be as long as there are parked tickets. Raises `LaneConflict` when the group is gone.
    """
    group = _group(leader)
    if group is None:
        raise LaneConflict(f"the group {leader.settings.keys.group} of {leader.settings.keys.stream} is gone")
    return group.pending


def pending_under(leader: Leader, name: str, at_once: int = 0) -> Iterator[str]:
    """Ids of the entries that are pending under ``name``, in id order; ``at_once``: how many in one reply."""
    count = at_once or PAGE
    keys = leader.settings.keys
    raw = name.encode(errors="surrogateescape")
    start, end = "-", "+"
    while True:
        page = leader.wire.call("XPENDING", keys.stream, keys.group, start, end, count, raw)
        for id_, *_ in page:
            yield id_.decode()
        if len(page) < count:
            return
        start, end = younger_than(page[-1][0].decode())


def messages_of(leader: Leader, named: Sequence[tuple[str, str]]) -> list[Message]:
    """The messages that are named by their ticket and id; without payload where there is none, or none any more."""
    stream = leader.settings.keys.stream
    replies = leader.wire.call_many([("XRANGE", stream, id_, id_) for _, id_ in named])
    messages = []
    for (ticket, id_), entries in zip(named, replies, strict=True):
        found = leader.parser.parse(id_, entries[0][1]) if entries else None
        messages.append(found if isinstance(found, Message) else Message(id_, ticket, "", b""))
    return messages


def read_messages(leader: Leader, named: Sequence[tuple[str, str]]) -> Iterator[Message]:
    """The same, some at a time: as many as the bytes of the last ones allow."""
    at, count = 0, 4
    while at < len(named):
        found = messages_of(leader, named[at : at + count])
        yield from found
        at += count
        count = max(1, min(AT_ONCE, count * 2, READ_BYTES // max(message.size for message in found)))


def pending_elsewhere(leader: Leader, names: Iterable[str]) -> dict[str, str]:
    """Entry -> name, of what is pending under one of ``names`` that is neither the master's nor a parked ticket's. What
    is in flight belongs there; all else is pending where no record says so.
    """
    lane = leader.lane
    known = {lane.parked_name(ticket) for ticket in lane.parked} | {leader.settings.master}
    return {id_: name for name in names if name not in known for id_ in pending_under(leader, name)}


def strange_between(leader: Leader, after: str, to: tuple[int, int]) -> tuple[list[str], tuple[int, int]]:
    """Entries after ``after``, up to ``to`` or as far as a page reaches, that are pending where no record says so, as
    `pending_elsewhere` has them; and up to where that is.
    """
    lane, keys = leader.lane, leader.settings.keys
    master = leader.settings.master
    shelf = lane.parked_name("")
    end = "+" if to == NEVER else "-".join(map(str, to))
    rows = leader.wire.call("XPENDING", keys.stream, keys.group, f"({after}", end, PAGE)
    found = []
    for raw_id, owner, *_ in rows:
        name = owner.decode(errors="surrogateescape")
        if name == master or (name.startswith(shelf) and name[len(shelf) :] in lane.parked):
            continue
        if (id_ := raw_id.decode()) not in lane.in_flight:
            found.append(id_)
    return found, id_key(rows[-1][0].decode()) if len(rows) == PAGE else to


def claim_back(leader: Leader, name: str, ids: list[str], batch: Batch, spared: Collection[str] = ()) -> int:
    """Makes ``ids`` pending under ``name``; how many could be. Newer servers forget those whose entries were deleted
    when they are claimed: they are dead letters, or nobody would ever hear of them; but for ``spared``, which are
    missed elsewhere.
    """
    claimed = 0
    for start in range(0, len(ids), PAGE):
        page = ids[start : start + PAGE]
        with leader.strays.adopting():
            count = adopt(leader.redis, leader.leadership, name, page)
        claimed += count
        if count < len(page):
            for id_ in page:
                if id_ not in spared and not leader.wire.call("XRANGE", leader.settings.keys.stream, id_, id_):
                    leader.lane.refuse(Refusal(id_, Refused.TRIMMED, "", ()), batch)
    return claimed


def group_read_to(leader: Leader) -> str | None:
    """Id up to which the group has read; None: there is no group."""
    group = _group(leader)
    return None if group is None else group.read_to


def _group(leader: Leader) -> Group | None:
    keys = leader.settings.keys
    try:
        reply = leader.wire.call("XINFO", "GROUPS", keys.stream)
    except ResponseError:
        return None
    return group_in(reply, keys.group)


def names_in_group(leader: Leader) -> set[str]:
    """The names that the group knows, whether anything is pending under them or not."""
    keys = leader.settings.keys
    replies = leader.wire.call("XINFO", "CONSUMERS", keys.stream, keys.group)
    return {dict(pairs(told))[b"name"].decode(errors="surrogateescape") for told in replies}


def pairs(flat: Any) -> list[tuple[Any, Any]]:
    """A flat reply as its pairs."""
    return [(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)]
