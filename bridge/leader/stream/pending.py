"""What is pending in the lane's group, and how far the group has read: the leader's reads of it, and how it claims.

The pending list is where the order of what waits and the ownership of what runs are written down.
`bridge.leader.takeover.rebuild` reads a lane from it, `bridge.leader.repair.manual_changes` holds it against the
picture, `bridge.leader.duties.operator_orders` and `bridge.leader.duties.refill` fetch from it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from bridge.routing.errors import LaneConflict
from bridge.routing.groups import Group, group_in
from bridge.routing.ids import IdKey, id_key, id_text, younger_than
from bridge.routing.messages import Refusal, Refused
from bridge.routing.transitions import adopt

if TYPE_CHECKING:
    from bridge.leader.picture.lane import Lane
    from bridge.leader.step.term import Term
    from bridge.routing.transitions import Batch

#: Entries in one page.
PAGE = 1000
#: After every id.
NEVER = (1 << 64, 0)


class PendingList:
    """The pending list of one lane's group, on the leader's thread."""

    def __init__(self, term: Term, lane: Lane) -> None:
        self._term = term
        self._lane = lane
        #: Entries that are pending in the group, as the leader's own steps leave it.
        self.expected = 0

    # -- what is there -----------------------------------------------------------------------------------------------

    def owners(self) -> dict[str, int]:
        """Name in the group -> how many entries are pending under it, where there are any.

        Raises `LaneConflict` when the group is gone.
        """
        keys = self._term.keys
        try:
            summary = self._term.wire.call("XPENDING", keys.stream, keys.group)
        except ResponseError as exc:
            if not str(exc).startswith("NOGROUP"):
                raise
            raise LaneConflict(f"the group {keys.group} of {keys.stream} is gone") from None
        return {name.decode(errors="surrogateescape"): int(count) for name, count in summary[3] or ()}

    def count(self) -> int:
        """How many entries are pending in the group, whatever the names: the server counts them for nothing, where a
        list of all names would be as long as there are parked tickets. Raises `LaneConflict` when the group is gone.
        """
        group = self._group()
        if group is None:
            keys = self._term.keys
            raise LaneConflict(f"the group {keys.group} of {keys.stream} is gone")
        return group.pending

    def under(self, name: str) -> Iterator[str]:
        """Ids of the entries that are pending under ``name``, in id order."""
        keys = self._term.keys
        raw = name.encode(errors="surrogateescape")
        start, end = "-", "+"
        while True:
            page = self._term.wire.call("XPENDING", keys.stream, keys.group, start, end, PAGE, raw)
            for id_, *_ in page:
                yield id_.decode()
            if len(page) < PAGE:
                return
            start, end = younger_than(page[-1][0].decode())

    def elsewhere(self, names: Iterable[str]) -> dict[str, str]:
        """Entry -> name, of what is pending under one of ``names`` that is neither the master's nor a parked ticket's.
        What is in flight belongs there; all else is pending where no record says so.
        """
        lane = self._lane
        known = {lane.parked_name(ticket) for ticket in lane.parked} | {self._term.master}
        return {id_: name for name in names if name not in known for id_ in self.under(name)}

    def strange_between(self, after: str, to: IdKey) -> tuple[list[str], IdKey]:
        """Entries after ``after``, up to ``to`` or as far as a page reaches, that are pending where no record says so,
        as `elsewhere` has them; and up to where that is.
        """
        lane, keys = self._lane, self._term.keys
        shelf = lane.parked_name("")
        end = "+" if to == NEVER else id_text(to)
        rows = self._term.wire.call("XPENDING", keys.stream, keys.group, f"({after}", end, PAGE)
        found = []
        for raw_id, owner, *_ in rows:
            name = owner.decode(errors="surrogateescape")
            if name == self._term.master or (name.startswith(shelf) and name[len(shelf) :] in lane.parked):
                continue
            if (id_ := raw_id.decode()) not in lane.in_flight:
                found.append(id_)
        return found, id_key(rows[-1][0].decode()) if len(rows) == PAGE else to

    # -- what must be there ------------------------------------------------------------------------------------------

    def count_anew(self) -> None:
        """Takes what is pending now for what must be."""
        self.expected = self.count()

    def adopt(self, name: str, ids: Sequence[str]) -> int:
        """Makes ``ids`` pending under ``name``, whether they were pending or not; how many could be."""
        adopted = 0
        with self._counted():
            for start in range(0, len(ids), PAGE):
                adopted += adopt(self._term.redis, self._term.leadership, name, ids[start : start + PAGE])
        return adopted

    def claim_back(self, name: str, ids: list[str], batch: Batch, spared: Collection[str] = ()) -> int:
        """Makes ``ids`` pending under ``name``; how many could be. Newer servers forget those whose entries were
        deleted when they are claimed: they are dead letters, or nobody would ever hear of them; but for ``spared``,
        which are missed elsewhere.
        """
        claimed = 0
        for start in range(0, len(ids), PAGE):
            page = ids[start : start + PAGE]
            count = self.adopt(name, page)
            claimed += count
            if count < len(page):
                for id_ in page:
                    if id_ not in spared and not self._term.wire.call("XRANGE", self._term.keys.stream, id_, id_):
                        self._lane.refuse(Refusal(id_, Refused.TRIMMED, "", ()), batch)
        return claimed

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """In it, the leader makes entries pending that may have been so before."""
        before = self.count()
        yield
        self.expected += self.count() - before

    # -- the group ---------------------------------------------------------------------------------------------------

    def read_to(self) -> str | None:
        """Id up to which the group has read; None: there is no group."""
        group = self._group()
        return None if group is None else group.read_to

    def names(self) -> set[str]:
        """The names that the group knows, whether anything is pending under them or not."""
        keys = self._term.keys
        replies = self._term.wire.call("XINFO", "CONSUMERS", keys.stream, keys.group)
        return {dict(pairs(consumer))[b"name"].decode(errors="surrogateescape") for consumer in replies}

    def _group(self) -> Group | None:
        keys = self._term.keys
        try:
            reply = self._term.wire.call("XINFO", "GROUPS", keys.stream)
        except ResponseError:
            return None
        return group_in(reply, keys.group)


def pairs(flat: Any) -> list[tuple[Any, Any]]:
    """A flat reply as its pairs."""
    return [(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)]
