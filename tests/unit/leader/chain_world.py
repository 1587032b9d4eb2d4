"""A chain of lanes without a server: for each lane a `LaneWorld` with a picture and a planner of its own, and the real
places and steps of a chain.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

from bridge.leader.picture.chain import Place, chain_of
from bridge.leader.picture.chained_lane import ChainedLane
from bridge.leader.step.chained_steps import ChainedSteps
from bridge.protocol.outcomes import Kind, Outcome
from bridge.routing import records
from bridge.routing.batch import OlderLane
from bridge.routing.errors import DispatchRefused
from bridge.routing.keys import LaneKeys
from bridge.routing.transitions import Advanced, Leadership
from tests.reference.lane import OtherVersion
from tests.unit.leader.lane_world import LaneWorld

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bridge.leader.picture.lane import Lane
    from bridge.leader.picture.pieces import Ticket
    from bridge.leader.step.dropped_versions import DroppedVersions
    from bridge.protocol.envelope import Envelopes
    from bridge.routing.batch import Batch

#: The stream of a newer version that only the server knows: another master led it.
FOREIGN = "foreign"
#: The stream of an older version that the app does not name any more. Nobody leads it.
DROPPED = "dropped"
GROUP = "concurrency_stream_group"
#: Most turns of all leaders until nothing is to be done at once, and most of them in a row that change nothing.
TURNS = 5000
IDLE_TURNS = 8


class ReplyLost(Exception):
    """The connection broke while a script ran."""


class Dropped:
    """The leader's `DroppedVersions`, over the entries of `Chain`."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self.streams = frozenset({DROPPED})
        self._done_to = "0-0"
        self._look_at = 0
        self.look(None)

    @property
    def lanes(self) -> list[OlderLane]:
        return [OlderLane(LaneKeys(DROPPED, GROUP), "", self._done_to)]

    def look(self, _redis: Any) -> None:
        if self._chain.now >= self._look_at:
            self._look_at = self._chain.now + 1000
            undone = self._chain.dropped_undone
            self._done_to = f"{min(undone) - 1}-0" if undone else f"{len(self._chain.dropped.entries)}-0"


class ChainedWorld(LaneWorld):
    """One lane of a chain. Everything that its leader does is done in its turn."""

    lane: ChainedLane

    def __init__(self, chain: Chain, place: Place, **settings: Any) -> None:
        self.chain = chain
        self.place = place
        self.name = place.keys.stream
        self._in_turn = False
        #: Whether the reply to the next script is lost: "before" the server does it, or "after" that.
        self.breaks = ""
        #: Whether nothing went out because the dropped version has many messages. It is tried again within a second.
        self.behind_dropped = False
        super().__init__(stream=self.name, **settings)
        with self.turn():
            self._enter()

    # -- one clock for all -------------------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        return self.chain.now

    @now.setter
    def now(self, ms: int) -> None:
        self.chain.now = ms

    # -- the leader --------------------------------------------------------------------------------------------------

    def _picture(self) -> Lane:
        return ChainedLane(self.settings, self.place.defers, self.times)

    def lead(self) -> None:
        super().lead()
        parts = (self.term, self.lane, self.planner, cast("Envelopes", None), self.settling, self.place)
        self.dropped = Dropped(self.chain)
        self.chained = ChainedSteps(*parts, cast("DroppedVersions", self.dropped))
        self.chained.history_cap = self.history_cap
        #: Whether the stream may have new entries that no blocking read has reported.
        self.more = True

    def _enter(self) -> None:
        self.place.enter(self.lane, self.term.leadership.token, lambda: self.chain.woken.add(self.name))

    def begin(self) -> None:
        with self.turn():
            super().begin()
            self._enter()

    def rebuild(self) -> None:
        self.place.leave()
        super().rebuild()

    @property
    def deferred(self) -> Mapping[str, Ticket]:
        return self.lane.deferred

    @property
    def is_paused(self) -> bool:
        return self.place.paused or self.behind_dropped

    @contextmanager
    def turn(self) -> Iterator[None]:
        if self._in_turn:
            yield
            return
        self._in_turn = True
        self.chain.woken.discard(self.name)
        try:
            with self.place.turn():
                yield
        finally:
            self._in_turn = False

    def advance(self, batch: Batch) -> None:
        with patch("bridge.leader.step.steps.advance", self._sent):
            self.behind_dropped = False
            self.chained.advance(batch)
        if self.planner.left_some:
            # As the leader does it: at once.
            self.advance(type(batch)())

    def _sent(self, _redis: Any, lead: Leadership, _opening: str, batch: Batch) -> Advanced:
        self.store.versions = self.chain.seen
        for to in batch.dispatches.values():
            able = next(c for c in self.lane.consumers.values() if c.name == to.consumer)
            assert all(able.runs(self.task_of(id_)) for id_ in to.ids), f"{able} cannot run what it is sent"
        breaks, self.breaks = self.breaks, ""
        if breaks == "before":
            raise ReplyLost
        try:
            base = self.store.take(lead, batch)
        except DispatchRefused as exc:
            self.behind_dropped = exc.behind == DROPPED
            raise
        for to in batch.dispatches.values():
            for ticket, _, _ in to.runs:
                self.chain.check_turn(self, ticket)
        if breaks == "after":
            raise ReplyLost
        return Advanced(base, len(batch.acknowledged), 0)

    def step(self, outcomes: Iterable[Outcome] = ()) -> None:
        with self.turn():
            super().step(outcomes)

    def read(self, count: int = 1000) -> None:
        with self.turn():
            super().read(count)

    def hand_out(self, count: int = 1000) -> None:
        if self.behind:
            return
        super().hand_out(count)
        self.place.unread = self.more = len(self.reply) >= count

    def join(self, name: str, slots: int = 2, tasks: frozenset[str] | None = None) -> str:
        with self.turn():
            return super().join(name, slots, tasks)

    def _retire(self, consumers: list[Any]) -> None:
        with self.turn():
            super()._retire(consumers)

    def look(self, left: dict[str, int]) -> None:
        with self.turn():
            super().look(left)

    def order(self, **order: Any) -> dict[str, Any]:
        with self.turn():
            return super().order(**order)

    def check_at_intervals(self) -> None:
        """What the leader does once a second."""
        with self.turn():
            self.breakers.look()
            self.place.look()
            self.more = True
            self.step()

    # -- turns of its loop -------------------------------------------------------------------------------------------

    @property
    def wants_entries(self) -> bool:
        return bool(self.more or self.store.unread()) and not (self.lane.behind or self.lane.has_enough_work)

    @property
    def wants_turn(self) -> bool:
        """Whether its leader has a turn at once."""
        lane = self.lane
        waits = self.planner.left_some or self.backoffs_over.waits or self.refill.waits
        over = bool(lane.backoffs) and lane.backoffs[0][0] <= self.now
        moves = self.delayed.timeout_s() == 0.0 and self.delayed._tried_at != lane.read_to
        return waits or over or moves or lane.behind or self.wants_entries or self.name in self.chain.woken

    def lose_a_reply(self, when: str) -> None:
        """The leader has a turn. Where it writes, the reply is lost, and it reads the lane again."""
        self.breaks = when
        try:
            self.work()
        except ReplyLost:
            self.rebuild()
        self.breaks = ""

    def work(self) -> None:
        """A turn of its leader."""
        if self.wants_entries:
            self.read(500)
        else:
            self.step()

    # -- what its store says -----------------------------------------------------------------------------------------

    def goes_first(self, ticket: str) -> list[str]:
        """The undone messages of a ticket, for which newer lanes must wait."""
        store = self.store
        unread = set(store.unread())
        mine = [
            id_
            for id_ in store.ids_of.get(ticket, ())
            if id_ in unread or store.pending.get(id_, store.delayed_name) != store.delayed_name
        ]
        return [id_ for id_ in mine if store.readable(id_)]

    @property
    def has_work(self) -> bool:
        return bool(self.store.pending or self.store.tickets or self.store.unread())

    def may_have(self, ticket: str) -> bool:
        """Whether the ticket stands still here, or the leader cannot know yet that it has nothing more of it."""
        lane = self.lane
        known = lane.tickets.get(ticket)
        if any(self.ticket_of(id_) == ticket for id_ in self.store.unread()):
            # Also an entry that is no message: nobody has read it.
            return True
        return ticket in lane.parked or (known is not None and known.spilled_from is not None and lane.full)

    def has_in_flight(self, ticket: str) -> bool:
        record = self.store.record(ticket)
        return record is not None and record.in_flight


class Chain:
    """The lanes of a chain. ``shape``: of each lane, its name and the names of those that it follows."""

    def __init__(self, shape: Mapping[str, Collection[str]], **settings: Any) -> None:
        self.now = 1_000_000
        #: The entries of the dropped version, which count from 1, and the numbers of those that are undone.
        self.dropped = OtherVersion()
        self.dropped_undone: set[int] = set()
        #: Names of the lanes whose leaders were woken by another one.
        self.woken: set[str] = set()
        keys = {name: LaneKeys(name, GROUP) for name in shape}
        places = chain_of([(keys[name], [keys[one] for one in older]) for name, older in shape.items()])
        self.worlds = [ChainedWorld(self, place, **settings) for place in places]
        by_name = {world.name: world for world in self.worlds}
        self.older = {name: [by_name[one] for one in older] for name, older in shape.items()}
        self.newer = {name: [one for one in self.worlds if name in shape[one.name]] for name in shape}
        #: What the server knows of a version that another master led: records of tickets.
        self.foreign = OtherVersion()
        for place in places:
            place.newer_keys += (LaneKeys(FOREIGN, GROUP),)
        #: (lane, ticket) -> the last fence.
        self.fences: dict[tuple[str, str], int] = {}

    @property
    def seen(self) -> dict[str, OtherVersion]:
        """What the script of a lane sees of the others."""
        stores = {world.name: world.store for world in self.worlds}
        there = {
            name: OtherVersion(store.leader, store.fence, store.owners, store.tickets) for name, store in stores.items()
        }
        return {**there, FOREIGN: self.foreign, DROPPED: self.dropped}

    # -- other masters -----------------------------------------------------------------------------------------------

    def put_in_flight_elsewhere(self, ticket: str) -> None:
        tail = records.tail("w", "life", 1, ["1-1"], self.now)
        self.foreign.tickets[ticket] = records.record(1, tail)

    def push_to_dropped(self, tickets: Sequence[str], *, undone: bool = True) -> None:
        for ticket in tickets:
            number = len(self.dropped.entries) + 1
            self.dropped.entries[f"{number}-0"] = ticket
            if undone:
                self.dropped_undone.add(number)

    def waits_in_dropped(self, ticket: str) -> bool:
        return any(self.dropped.entries[f"{number}-0"] == ticket for number in self.dropped_undone)

    # -- turns -------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Turns of all leaders, until none has anything to do at once."""
        idle = 0
        for _ in range(TURNS):
            worlds = [world for world in self.worlds if world.wants_turn]
            if not worlds:
                return
            before = self._all()
            for world in worlds:
                world.work()
            idle = idle + 1 if self._all() == before else 0
            assert idle < IDLE_TURNS, f"{[world.name for world in worlds]} have turns in which nothing changes"
        raise AssertionError("the leaders have turns without end")

    def _all(self) -> Any:
        """What turns change."""
        found: list[Any] = []
        for world in self.worlds:
            lane, store = world.lane, world.store
            places = {id_: (len(t.waiting), len(t.run), t.spilled_from, t.due_ms) for id_, t in lane.tickets.items()}
            facts = (len(store.acknowledged), dict(store.pending), dict(store.tickets), store.delivered)
            found.append((lane.read_to, lane.behind, len(lane.deferred), len(lane.spilled), places, facts))
        return found

    # -- what must hold ----------------------------------------------------------------------------------------------

    def check_turn(self, world: ChainedWorld, ticket: str) -> None:
        """A run of the ticket went out: no other lane may have one, and no older one a message that goes first."""
        for older in self.older[world.name]:
            first = older.goes_first(ticket)
            assert not first, f"{ticket} of {world.name} went before {first} of {older.name}"
        others = [*self.older[world.name], *self.newer[world.name]]
        for other in others:
            assert not other.has_in_flight(ticket), f"{ticket} of {world.name} goes beside one of {other.name}"
        assert ticket not in self.foreign.tickets
        assert not self.waits_in_dropped(ticket)
        record = world.store.record(ticket)
        assert record is not None
        before = max(self.fences.get((one.name, ticket), 0) for one in (world, *others))
        assert record.fence > before, f"a fence of {ticket} is smaller than the one before it"
        self.fences[world.name, ticket] = record.fence + len(record.ids) - 1

    def check(self) -> None:
        """What must hold after each step of any of them."""
        for world in self.worlds:
            world.check()
            assert len(world.place.refused) <= len(world.store.ids_of)
            assert world.lane.deferred.keys() <= world.lane.tickets.keys()

    def check_settled(self) -> None:
        """What must hold when no leader has anything to do: whatever waits for another lane has a reason."""
        for world in self.worlds:
            assert not world.behind
            if any(older.place.unread and older.lane.has_enough_work for older in self.older[world.name]):
                # It has not read its stream to the end, and has enough to do.
                continue
            assert not world.place.paused, f"{world.name} waits for older lanes, and these are read"
            for name in world.deferred:
                first = [one.name for one in self.older[world.name] if one.goes_first(name) or one.may_have(name)]
                beside = [one.name for one in self.newer[world.name] if one.has_in_flight(name)]
                # What the script refused is tried again within a second.
                again = name in world.place.refused and bool(self.foreign.tickets or self.dropped.entries)
                assert first or beside or again, f"{name} of {world.name} waits for nothing"

    def finish(self) -> bool:
        """What runs is done. Returns whether anything ran."""
        ran = False
        for world in self.worlds:
            running = world.running()
            ran = ran or bool(running)
            world.step([world.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in running])
        return ran
