"""What is on the server of a lane, as a few dicts, and what it says of each message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import orjson

from bridge.routing import records
from bridge.routing.keys import LaneKeys
from bridge.routing.scripts import Argument
from bridge.routing.states import State

Fields = dict[str, str]

#: The name in the group under which the leader has what waits.
MASTER = "master"


def text(argument: Argument) -> str:
    """An argument of a call as a server returns it."""
    return argument.decode(errors="surrogateescape") if isinstance(argument, bytes) else str(argument)


class Contents:
    """What is in each key of a lane."""

    def __init__(self, keys: LaneKeys) -> None:
        self.keys = keys
        #: The token of the leader; '': nobody leads.
        self.leader = ""
        self.term = 0
        #: The last fence that was given out.
        self.fence = 0
        #: The stream: id -> fields, in the order of the ids.
        self.entries: dict[str, Any] = {}
        #: How many entries the group has read.
        self.delivered = 0
        #: The pending list: id -> the name in the group that has it.
        self.pending: dict[str, str] = {}
        #: What left the pending list, in that order.
        self.acknowledged: dict[str, None] = {}
        self.tickets: dict[str, str] = {}
        self.applied: dict[str, int] = {}
        #: Ticket -> due time (ms).
        self.retries: dict[str, int] = {}
        #: Message -> due time (ms): others overtake it until then.
        self.delayed: dict[str, int] = {}
        #: Message -> the due time that it had: it is due, and not done.
        self.late: dict[str, int] = {}
        #: Message -> due time (ms): its ticket waits for it.
        self.holding: dict[str, int] = {}
        self.outcomes: dict[str, Fields] = {}
        #: The stream of dead letters.
        self.letters: dict[str, Fields] = {}
        self.history: dict[str, Fields] = {}
        self.counts: dict[str, int] = {}
        self.drains: dict[str, str] = {}
        self.consumers: dict[str, str] = {}
        #: Incarnation whose lease holds -> consumer.
        self.leases: dict[str, str] = {}
        #: The queue of each consumer, the oldest Celery message first.
        self.queues: dict[str, list[str]] = {}
        #: Lists that belong to the user: what effects were applied to them.
        self.effects: dict[str, list[str]] = {}
        #: The server's clock (µs), and the ids that it gives to the entries of its streams.
        self.now_us: Callable[[], int] = lambda: 0
        self.stamp: Callable[[str, Fields], str] = lambda _key, _fields: f"{self._added}-1"
        self._added = 0

    # -- what scripts do in common -----------------------------------------------------------------------------------

    def claim(self, name: str, ids: Iterable[str]) -> int:
        """Makes entries pending under the name; how many were not pending."""
        mended = 0
        for id_ in ids:
            if id_ in self.entries:
                mended += id_ not in self.pending
                self.pending[id_] = name
                self.acknowledged.pop(id_, None)
        return mended

    def add(self, stream: dict[str, Fields], key: str, fields: Fields) -> None:
        """Adds an entry to a stream."""
        self._added += 1
        stream[self.stamp(key, fields)] = fields

    def note(self, rows: Sequence[list[Any]]) -> None:
        """Adds rows to the history."""
        if rows:
            self.add(self.history, self.keys.history, {"d": orjson.dumps(list(rows)).decode()})

    # -- what the contents say ---------------------------------------------------------------------------------------

    def record(self, ticket: str) -> records.Record | None:
        """The record of a ticket."""
        found = self.tickets.get(ticket)
        return records.parse(found) if found else None

    def is_current(self, ticket: str, fence: int) -> bool:
        """Whether the fence is one of the run that is in flight."""
        record = self.record(ticket)
        return record is not None and 0 < record.fence <= fence < record.fence + len(record.ids)

    def states(self) -> dict[str, set[State]]:
        """The states in which each entry is, by the sentences of `bridge.routing.states`: one, if I1 holds."""
        named: dict[str, tuple[State, str]] = {}
        shelves = {MASTER}
        for ticket, written in self.tickets.items():
            record = records.parse(written)
            if record.parked:
                shelves.add(self.keys.parked_consumer(MASTER, ticket))
                continue
            as_named = (State.IN_FLIGHT, record.consumer) if record.in_flight else (State.AWAITING_RETRY, MASTER)
            named |= dict.fromkeys(record.ids, as_named)
        dead = {fields["message_id"] for fields in self.letters.values()}
        found: dict[str, set[State]] = {}
        for at, id_ in enumerate(self.entries):
            state, owner = named.get(id_, (None, ""))
            mine = found[id_] = {state} if state is not None and self.pending.get(id_) == owner else set()
            if at >= self.delivered:
                mine.add(State.UNREAD)
            elif id_ in self.delayed:
                if self.pending.get(id_) == self.keys.delayed_consumer(MASTER):
                    mine.add(State.DELAYED)
            elif id_ not in self.pending:
                mine.add(State.DEAD if id_ in dead else State.DONE)
            elif self.pending[id_] in shelves and state is not State.AWAITING_RETRY:
                mine.add(State.WAITING)
        return found
