"""The server and the workers of a lane without a server: the reference of the scripts, and commands of the leader."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from redis.exceptions import ResponseError

from bridge.protocol.envelope import Run
from bridge.protocol.headers import OwnRules
from bridge.routing import records
from bridge.routing.batch import Batch
from bridge.routing.delaying import Moved
from bridge.routing.ids import Place, id_of_member, late_place, member_of
from bridge.routing.ids import id_key as key_of_id
from bridge.routing.keys import LaneKeys
from bridge.routing.messages import Message
from bridge.routing.transitions import Advanced, Leadership
from tests.reference.contents import MASTER
from tests.reference.lane import ReferenceLane

#: Cached: each check looks at all ids.
id_key = cache(key_of_id)


class FakeEnvelopes:
    """Records what a Celery message would carry."""

    def __init__(self) -> None:
        #: Ids of messages that their worker runs before what waits there.
        self.first: list[str] = []

    def plain(
        self,
        incarnation: str,
        _queue: str,
        message: Message,
        offset: int,
        attempt: int,
        doubt: bool,
        lost: Any = None,
        *,
        alone: bool = False,
        own: OwnRules | None = None,
        first: bool = False,
    ) -> bytes:
        del lost, alone, own
        if first:
            self.first.append(message.id)
        listed = [[message.ticket, offset, attempt, doubt, [message.id]]]
        return json.dumps(["plain", incarnation, listed, None]).encode()

    def bundle(self, incarnation: str, _queue: str, runs: Sequence[Run], limits: Any, *, first: bool = False) -> bytes:
        if first:
            self.first += [message.id for run in runs for message in run.messages]
        listed = [[*run[:4], [message.id for message in run.messages]] for run in runs]
        return json.dumps(["bundle", incarnation, listed, limits]).encode()


class Parcel:
    """One Celery message that a worker holds. ``runs``: ticket -> (first fence, ids not settled yet)."""

    def __init__(self, kind: str, incarnation: str, runs: dict[str, tuple[int, list[str]]], limits: Any) -> None:
        self.kind = kind
        self.incarnation = incarnation
        self.runs = runs
        self.limits = limits
        self.size = sum(len(ids) for _, ids in runs.values())


class Store(ReferenceLane):
    """The server: what the scripts do to it is the reference's, its commands are here. A letter has the id of its
    message.
    """

    def __init__(self, keys: LaneKeys) -> None:
        super().__init__(keys)
        self.stamp = lambda key, fields: fields["message_id"] if key == keys.dead else "1-0"
        #: Message id -> ticket, also of entries that were deleted by hand.
        self.owners: dict[str, str] = {}
        #: Ticket -> the ids of its messages, in stream order.
        self.ids_of: dict[str, list[str]] = {}
        #: What workers have popped.
        self.parcels: list[Parcel] = []
        #: Message id -> due time of a message that is or was late.
        self.came_late: dict[str, int] = {}
        self.delayed_name = keys.delayed_consumer(MASTER)
        #: The ms of the next id; None: ids have nothing to do with time.
        self.clock_ms: Callable[[], int] | None = None

    @property
    def done(self) -> list[str]:
        """Message ids, in the order in which they came to their end."""
        return [id_ for id_ in self.acknowledged if id_ not in self.letters]

    @property
    def dead(self) -> list[str]:
        return list(self.letters)

    def push(self, ticket: str, task: str, payload: bytes, **options: int) -> str:
        id_ = f"{len(self.entries) // 3 + 1}-{len(self.entries) % 3}"
        if self.clock_ms is not None:
            last = id_key(next(reversed(self.entries), "0-0"))
            ms = self.clock_ms()
            id_ = f"{ms}-0" if ms > last[0] else f"{last[0]}-{last[1] + 1}"
        self.owners[id_] = ticket
        self.ids_of.setdefault(ticket, []).append(id_)
        self.entries[id_] = [b"ticket_id", ticket.encode(), b"task", task.encode(), b"payload", payload]
        for name, value in options.items():
            self.entries[id_] += [name.encode(), b"%d" % value]
        return id_

    def place(self, id_: str) -> Place:
        """The place of a message in the order of its ticket."""
        return late_place(self.came_late[id_], id_) if id_ in self.came_late else id_key(id_)

    def advance(self, lead: Leadership, opening: str, batch: Batch) -> Advanced:
        done = super().advance(lead, opening, batch)
        self.came_late |= self.late
        return done

    def move_due(self, lead: Leadership, count: int, read_to: str, before_ms: int | None = None) -> Moved:
        moved = super().move_due(lead, count, read_to, before_ms)
        self.came_late |= self.late
        return moved

    def unread(self) -> list[str]:
        return list(self.entries)[self.delivered :]

    def take(self, lead: Leadership, batch: Batch) -> int:
        """The batch is sent, and the workers pop what is in it; the fence base."""
        advanced = self.advance(lead, "", batch)
        # A message that expired is dead again in the step that replays it.
        again = [id_ for id_ in batch.replayed if id_ not in batch.acknowledged]
        assert advanced.mended == len(again), "something was dispatched or given back that was over"
        for to in batch.dispatches.values():
            for ticket, _, tail in to.runs:
                # The oldest undone messages, in order (I2). A message that was begun before comes first
                run = records.parse(records.record(1, tail))
                first = list(run.ids[:1]) if begun(run) else []
                undone = first + [id_ for id_ in self.waiting(ticket) if id_ not in first]
                assert list(run.ids) == undone[: len(run.ids)], f"{ticket}: not the oldest undone ones"
            for popped in to.texts:
                kind, incarnation, runs, limits = json.loads(popped)
                held = {ticket: (advanced.base + offset, list(ids)) for ticket, offset, _, _, ids in runs}
                self.parcels.append(Parcel(kind, incarnation, held, limits))
        self.queues.clear()
        return advanced.base

    def readable(self, id_: str) -> bool:
        """Whether the entry is a message."""
        return self.entries[id_][5][:1] in b'1"'

    def waiting(self, ticket: str) -> list[str]:
        """The ticket's pending messages that are not delayed, in the order of their places."""
        mine = [
            id_ for id_ in self.ids_of.get(ticket, ()) if self.pending.get(id_, self.delayed_name) != self.delayed_name
        ]
        if self.came_late:
            mine.sort(key=self.place)
        return [id_ for id_ in mine if not self.entries[id_] or self.readable(id_)]

    def waiting_by_ticket(self) -> dict[str, list[str]]:
        """The same for each ticket that has any."""
        found: dict[str, list[str]] = {}
        for id_, owner in self.pending.items():
            if owner != self.delayed_name and id_ in self.owners and (not self.entries[id_] or self.readable(id_)):
                found.setdefault(self.owners[id_], []).append(id_)
        for ids in found.values():
            ids.sort(key=id_key)
            if self.came_late:
                ids.sort(key=self.place)
        return found

    def undone(self, ticket: str, waiting: Mapping[str, list[str]]) -> list[str]:
        """The ticket's undone messages that were read, in the order in which they must be handled: first those in
        flight or begun before, then in stream order. ``waiting``: of all tickets.
        """
        waits = waiting.get(ticket, [])
        text = self.tickets.get(ticket)
        if text is None:
            return waits
        record = records.parse(text)
        first = list(record.ids) if record.in_flight or begun(record) else []
        return first + [id_ for id_ in waits if id_ not in first]

    def call(self, *arguments: Any) -> Any:
        """The commands of rebuild and refill, with raw replies."""
        if arguments[0] == "XGROUP":
            raise ResponseError("BUSYGROUP Consumer Group name already exists")
        if arguments[0] == "EXISTS":
            return 0
        if arguments[0] == "GET":
            return None
        if arguments[:2] == ("XINFO", "GROUPS"):
            last = list(self.entries)[self.delivered - 1] if self.delivered else "0-0"
            group = {b"name": b"concurrency_stream_group", b"pending": len(self.pending)}
            return [[word for pair in {**group, b"last-delivered-id": last.encode()}.items() for word in pair]]
        if arguments[:2] == ("XINFO", "CONSUMERS"):
            return [[b"name", MASTER.encode()]]
        if arguments[0] in ("ZMSCORE", "ZCARD", "ZRANGEBYSCORE") or arguments[:2] == ("ZRANGE", self.keys.delayed):
            return self._sorted_set(*arguments)
        if arguments[0] == "ZRANGE":
            return [word for pair in self.retries.items() for word in (pair[0].encode(), str(pair[1]).encode())]
        if arguments[0] == "HSCAN":
            return [b"0", [word.encode() for pair in self.tickets.items() for word in pair]]
        if arguments[0] == "XRANGE":
            return [[arguments[2].encode(), self.entries[arguments[2]]]] if arguments[2] in self.entries else []
        if arguments[0] == "XPENDING":
            owners = list(self.pending.values())
            if len(arguments) == 3:
                if not owners:
                    return [0, None, None, None]
                ends = sorted(self.pending, key=id_key)
                names = [[name.encode(), b"%d" % owners.count(name)] for name in dict.fromkeys(owners)]
                return [len(owners), ends[0].encode(), ends[-1].encode(), names]
            after = id_key(arguments[3][1:]) if arguments[3].startswith("(") else (0, -1)
            if arguments[3] == arguments[4]:
                after = (id_key(arguments[3])[0], id_key(arguments[3])[1] - 1)
            upto = (1 << 64, 0) if arguments[4] == "+" else id_key(arguments[4])
            given = arguments[6] if len(arguments) > 6 else ""
            name = given.decode() if isinstance(given, bytes) else given
            ids = sorted((id_ for id_, owner in self.pending.items() if name in ("", owner)), key=id_key)
            rows = [[id_.encode(), self.pending[id_].encode(), 0, 1] for id_ in ids if after < id_key(id_) <= upto]
            return rows[: arguments[5]]
        raise AssertionError(f"the store does not know {arguments}")

    def _sorted_set(self, command: str, key: str, *arguments: Any) -> Any:
        """What a server says of the delayed, late or held messages."""
        known = getattr(self, key.rpartition(":")[2])
        if command == "ZCARD":
            return len(known)
        if command == "ZMSCORE":
            ids = map(id_of_member, arguments)
            return [b"%d" % known[id_] if id_ in known else None for id_ in ids]
        order = sorted(known, key=lambda id_: (known[id_], member_of(id_)))
        if command == "ZRANGEBYSCORE":
            least, _, _, _, offset, most = arguments
            order = [id_ for id_ in order if known[id_] >= least][offset : offset + most]
        else:
            order = order[:1]
        return [word for id_ in order for word in (member_of(id_).encode(), b"%d" % known[id_])]

    def call_many(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        return [self.call(*arguments) for arguments in commands]


def begun(record: records.Record) -> bool:
    """Whether a task began the first message of the record. It may have refused it, without a charge."""
    refusals, _ = records.nacks_in(record.cause)
    return record.attempt > 1 or record.losses > 0 or record.lost is not None or refusals > 0
