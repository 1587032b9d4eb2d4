"""The pending list of the lane's group: how the leader reads it, and how it claims entries.

The pending list records the order of waiting messages and the owners of messages in flight.
`bridge.leader.takeover.rebuild` reads a lane from it, and `bridge.leader.repair.manual_changes` compares it with the
picture. For `bridge.leader.duties.operator_orders` and `bridge.leader.duties.refill`, entries are read from it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from bridge.routing.errors import LaneConflict
from bridge.routing.groups import Group, group_in, pending_summary
from bridge.routing.ids import IdKey, id_key, id_text, younger_than
from bridge.routing.messages import Refusal, Refused
from bridge.routing.transitions import adopt

if TYPE_CHECKING:
    from bridge.leader.picture.lane import Lane
    from bridge.leader.step.term import Term
    from bridge.routing.batch import Batch

#: Entries in one page.
PAGE = 1000
#: A key that is larger than that of every id.
NEVER = (1 << 64, 0)


class PendingList:
    """The pending list of one lane's group, on the leader's thread."""

    def __init__(self, term: Term, lane: Lane) -> None:
        self._term = term
        self._lane = lane
        #: Number of entries that must be pending in the group, after the leader's own steps.
        self.expected = 0
        #: The name in the group under which delayed messages are pending.
        self.delayed_name = term.keys.delayed_consumer(term.master)
        #: Whether the stream has other groups, as of the last look.
        self.among_others = False

    # -- reads -------------------------------------------------------------------------------------------------------

    def owners(self) -> dict[str, int]:
        """Name in the group -> number of entries that are pending under it, for names with any.

        Raises `LaneConflict` when the group is gone.
        """
        keys = self._term.keys
        try:
            reply = self._term.wire.call("XPENDING", keys.stream, keys.group)
        except ResponseError as exc:
            if not str(exc).startswith("NOGROUP"):
                raise
            raise LaneConflict(f"the group {keys.group} of {keys.stream} is gone") from None
        under = pending_summary(reply).under
        return {name.decode(errors="surrogateescape"): count for name, count in under.items()}

    def count(self) -> int:
        """Number of entries that are pending in the group, under all names.

        The server has this number at no cost. A list of all names would grow with the number of parked tickets.
        Raises `LaneConflict` when the group is gone.
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
        """Entry -> name, for those of ``names`` that are neither the master's nor of a parked ticket.

        Entries in flight are expected. All others were moved by hand.
        """
        lane = self._lane
        known = {lane.parked_name(ticket) for ticket in lane.parked} | {self._term.master, self.delayed_name}
        return {id_: name for name in names if name not in known for id_ in self.under(name)}

    def stray_between(self, after: str, to: IdKey) -> tuple[list[str], IdKey]:
        """Entries from after ``after`` up to ``to`` that are pending under a name that no record explains.

        Looks at one page at most. Returns the entries, and the key up to which it looked.
        """
        lane, keys = self._lane, self._term.keys
        shelf = lane.parked_name("")
        end = "+" if to == NEVER else id_text(to)
        rows = self._term.wire.call("XPENDING", keys.stream, keys.group, f"({after}", end, PAGE)
        found = []
        for raw_id, owner, *_ in rows:
            name = owner.decode(errors="surrogateescape")
            if name in (self._term.master, self.delayed_name) or (
                name.startswith(shelf) and name[len(shelf) :] in lane.parked
            ):
                continue
            if (id_ := raw_id.decode()) not in lane.in_flight:
                found.append(id_)
        return found, id_key(rows[-1][0].decode()) if len(rows) == PAGE else to

    # -- claims and the count ----------------------------------------------------------------------------------------

    def count_again(self) -> None:
        """Takes the number of entries that are pending now as the expected one."""
        self.expected = self.count()

    def make_pending(self, name: str, ids: Sequence[str]) -> int:
        """Makes ``ids`` pending under ``name``, whether they were pending or not. Returns how many are pending now."""
        pending = 0
        with self._counted():
            for start in range(0, len(ids), PAGE):
                pending += adopt(self._term.redis, self._term.leadership, name, ids[start : start + PAGE])
        return pending

    def claim_back(self, name: str, ids: list[str], batch: Batch, spared: Collection[str] = ()) -> int:
        """Like `make_pending`, and also makes a dead letter of each message whose entry was deleted.

        Newer servers drop a pending entry on a claim when it was deleted from the stream. Such a message becomes a dead
        letter, because otherwise it would be lost silently. Not those in ``spared``: other code handles them.
        """
        claimed = 0
        for start in range(0, len(ids), PAGE):
            page = ids[start : start + PAGE]
            count = self.make_pending(name, page)
            claimed += count
            if count < len(page):
                for id_ in self.deleted(page):
                    if id_ not in spared:
                        self._lane.refuse(Refusal(id_, Refused.TRIMMED, "", ()), batch)
        return claimed

    def deleted(self, ids: Sequence[str]) -> list[str]:
        """Those of ``ids`` that have no entry in the stream any more."""
        # One at a time: together they may be large.
        return [id_ for id_ in ids if not self._term.wire.call("XRANGE", self._term.keys.stream, id_, id_)]

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Updates the expected count after the block, which makes entries pending that may have been pending before."""
        before = self.count()
        yield
        self.expected += self.count() - before

    # -- the group ---------------------------------------------------------------------------------------------------

    def read_to(self) -> str | None:
        """Id up to which the group has read; None: the group does not exist."""
        group = self._group()
        return None if group is None else group.read_to

    def names(self) -> set[str]:
        """All consumer names of the group, with and without pending entries."""
        keys = self._term.keys
        replies = self._term.wire.call("XINFO", "CONSUMERS", keys.stream, keys.group)
        return {dict(pairs(consumer))[b"name"].decode(errors="surrogateescape") for consumer in replies}

    def _group(self) -> Group | None:
        keys = self._term.keys
        try:
            reply = self._term.wire.call("XINFO", "GROUPS", keys.stream)
        except ResponseError:
            return None
        self.among_others = len(reply) > 1
        return group_in(reply, keys.group)


def pairs(flat: Any) -> list[tuple[Any, Any]]:
    """The pairs of a flat reply."""
    return [(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)]
