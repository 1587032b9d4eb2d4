"""The model of several lanes on one stream: each has its group, its leader and its terms, and entries leave the stream.

What one lane does with a message between its read and its end is the other model's (`tests.protocol.world`). Here a
message of a lane is unread, pending, dead or done, or was acknowledged by hand: pending in the picture alone. What
matters is what another lane may do to it meanwhile.

The leader of each lane removes entries in two requests. The first one (`done.lua`, `letters.lua`) looks which entries
may leave. The second one (`remove.lua`) removes them, and may arrive late: after the leader was killed, after another
lane replayed a message, after a new lane was added to the stream. Between the two, the leaders of the other lanes
compare the pending list with their pictures (`bridge.leader.stream.held_back`).
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.protocol.world import Broken, put

#: The states of a message in a lane.
UNREAD, PENDING, BY_HAND, DEAD, DONE = range(5)


class LaneGuard(Enum):
    """A comparison that some race between lanes is closed by."""

    #: done.lua: an entry that a group has not read stays.
    NOT_UNREAD = "no group has it unread"
    #: done.lua: an entry that is pending in a group is not named.
    NOT_PENDING_SEEN = "no group has it pending, at the look"
    #: remove.lua: and not when it is to be removed.
    NOT_PENDING = "no group has it pending"
    #: remove.lua: the groups are those that the caller asked.
    GROUPS_KNOWN = "no other group"
    #: remove.lua: the caller leads its lane.
    TERM_REMOVE = "term in remove"
    #: bridge/leader/stream/held_back.py: a removal waits until the other leaders have compared.
    AGREED = "the other leaders have compared"
    #: and until one of them has begun to compare after the look.
    AGREED_SINCE = "the other leaders have compared since the look"
    #: bridge/leader/stream/retention.py: then it looks again, since a message may be dead by then.
    LOOKED_AGAIN = "looked again"
    #: bridge/leader/stream/retention.py: letters are read after the entries, of all lanes of the stream.
    LETTERS_OF_ALL = "letters of all lanes"
    #: bridge/routing/keys.py: a lane's leader has a key of its own.
    OWN_LEAD = "a lead for each lane"
    #: the script of an outcome compares the term of its own lane.
    TERM_SETTLE = "term in advance"


class Look(NamedTuple):
    """What a leader has seen, and will ask to be removed. ``groups``: the lanes that the stream had then. ``awaited``:
    comparisons of each lane that must be counted before. ``again``: it has looked again after them.
    """

    lane: int
    term: int
    groups: tuple[bool, ...]
    ids: tuple[int, ...]
    awaited: tuple[int, ...]
    again: bool = False


class Settle(NamedTuple):
    """A script on its way: message ``pos`` of the lane is ``state`` now."""

    lane: int
    term: int
    pos: int
    state: int


class Lane(NamedTuple):
    """One lane. ``there``: its group is on the stream. ``lead``: the term of the leader; 0: nobody leads. ``compared``:
    the leader has compared the pending list with its picture, and not counted it yet.
    """

    there: bool
    term: int
    lead: int
    states: tuple[int, ...]
    #: A script of its leader, or of one that was killed.
    sent: Look | Settle | None = None
    compared: bool = False


class Stream(NamedTuple):
    """One state: which entries are in the stream, the lanes, and how often somebody may still run XACK by hand."""

    entries: tuple[bool, ...]
    lanes: tuple[Lane, ...]
    by_hand: int = 0


@dataclass(frozen=True)
class Shape:
    """What is explored. ``added``: lanes that join while others work, from the stream's first entry on. ``terms``: most
    terms of a lane. ``replays``: whether operators replay dead messages, and drop letters. ``by_hand``: how often
    somebody runs XACK on an entry that is not done.
    """

    messages: int = 2
    lanes: int = 2
    added: int = 0
    terms: int = 2
    replays: bool = True
    by_hand: int = 0

    def first(self) -> Stream:
        lanes = tuple(
            Lane(there=i < self.lanes - self.added, term=0, lead=0, states=(UNREAD,) * self.messages)
            for i in range(self.lanes)
        )
        return Stream((True,) * self.messages, lanes, self.by_hand)


@dataclass
class Found:
    """What was found: see `tests.protocol.explore.Found`."""

    states: int = 0
    steps: int = 0
    ends: int = 0
    broken: str = ""
    trace: tuple[str, ...] = ()


Step = tuple[str, Stream]


def explore(shape: Shape, dropped: AbstractSet[LaneGuard] = frozenset(), *, most: int = 2_000_000) -> Found:
    """Goes through all states. From each of them a good end must be within reach: all is done and has left."""
    found = Found()
    first = shape.first()
    parents: dict[Stream, tuple[Stream | None, str]] = {first: (None, "")}
    into: dict[Stream, list[Stream]] = {}
    todo = [first]
    while todo:
        coming = []
        for world in todo:
            try:
                check(world)
                for label, after in steps(world, shape, dropped):
                    found.steps += 1
                    into.setdefault(after, []).append(world)
                    if after not in parents:
                        parents[after] = (world, label)
                        coming.append(after)
            except Broken as exc:
                found.broken, found.states = str(exc), len(parents)
                found.trace = (*_trace(parents, world), str(exc))
                return found
        todo = coming
        assert len(parents) <= most, "too many states"
    found.states = len(parents)
    ends = [world for world in parents if good_end(world)]
    found.ends = len(ends)
    reached, todo = set(ends), ends
    while todo:
        for before in into.get(todo.pop(), ()):
            if before not in reached:
                reached.add(before)
                todo.append(before)
    stuck = next((world for world in parents if world not in reached), None)
    if stuck is not None:
        found.broken = "no good end can be reached"
        found.trace = (*_trace(parents, stuck), found.broken)
    return found


def _trace(parents: dict[Stream, tuple[Stream | None, str]], world: Stream | None) -> list[str]:
    lines: list[str] = []
    while world is not None:
        world, label = parents[world]
        lines.append(label)
    return lines[-2::-1]


# -- what must hold ----------------------------------------------------------------------------------------------------


def check(world: Stream) -> None:
    """Raises `Broken`."""
    for pos, there in enumerate(world.entries):
        for i, lane in enumerate(world.lanes):
            if there or not lane.there or lane.states[pos] == DONE:
                continue
            word = {
                UNREAD: "has not read it",
                PENDING: "has it pending",
                BY_HAND: "is not done, it was acknowledged by hand",
                DEAD: "has its dead letter",
            }
            raise Broken(f"I1: entry {pos} left the stream, and lane {i} {word[lane.states[pos]]}")


def good_end(world: Stream) -> bool:
    """Every lane has done everything, and the stream is empty."""
    return not any(world.entries) and all(
        lane.there and set(lane.states) == {DONE} and lane.sent is None for lane in world.lanes
    )


# -- what may happen ---------------------------------------------------------------------------------------------------


def steps(world: Stream, shape: Shape, dropped: AbstractSet[LaneGuard]) -> Iterator[Step]:
    """Whatever may happen now, faults among it."""
    for i, lane in enumerate(world.lanes):
        if not lane.there:
            # A stream that entries have left begins with what is still there.
            states = tuple(UNREAD if there else DONE for there in world.entries)
            yield f"lane {i} is added", _with(world, i, lane._replace(there=True, states=states))
            continue
        if not lane.lead and lane.term < shape.terms and not _led_elsewhere(world, i, dropped):
            # It finds in the history what was acknowledged by hand.
            states = tuple(PENDING if state == BY_HAND else state for state in lane.states)
            elected = lane._replace(term=lane.term + 1, lead=lane.term + 1, states=states)
            yield f"lane {i}: a master leads, term {elected.lead}", _with(world, i, elected)
        if lane.lead and lane.term < shape.terms:
            yield (
                f"lane {i}: its leader is gone, or leads no more",
                _with(world, i, lane._replace(lead=0, compared=False)),
            )
        if lane.sent is not None:
            if lane.lead != lane.sent.term:
                yield f"lane {i}: what was on its way never arrives", _with(world, i, lane._replace(sent=None))
            if not isinstance(lane.sent, Look) or (lane.sent.again and not any(lane.sent.awaited)):
                yield from _arrives(_with(world, i, lane._replace(sent=None)), lane.sent, dropped)
            elif not any(lane.sent.awaited) and lane.lead == lane.sent.term:
                leaving = set(_may_leave(world, i, dropped))
                ids = tuple(pos for pos in lane.sent.ids if pos in leaving)
                sent = lane.sent._replace(ids=ids, again=True)
                yield f"lane {i} looks again: {list(ids)} may leave", _with(world, i, lane._replace(sent=sent))
        elif lane.lead:
            yield from _leads(world, i, lane, shape, dropped)
        if shape.by_hand and lane.lead:
            yield from _compares(world, i, lane)
        for pos, state in enumerate(lane.states if world.by_hand else ()):
            if state == PENDING:
                taken = _with(world, i, lane._replace(states=put(lane.states, pos, BY_HAND)))
                yield f"lane {i}: somebody acknowledges {pos} by hand", taken._replace(by_hand=world.by_hand - 1)
        if shape.replays and lane.lead:
            for pos, state in enumerate(lane.states):
                if state == DEAD:
                    again = lane._replace(states=put(lane.states, pos, PENDING))
                    if world.entries[pos]:
                        yield f"lane {i}: {pos} is replayed", _with(world, i, again)
                    dropped_letter = lane._replace(states=put(lane.states, pos, DONE))
                    yield f"lane {i}: the letter of {pos} is dropped", _with(world, i, dropped_letter)


def _led_elsewhere(world: Stream, i: int, dropped: AbstractSet[LaneGuard]) -> bool:
    if LaneGuard.OWN_LEAD not in dropped:
        return False
    return any(other.lead for j, other in enumerate(world.lanes) if j != i)


def _compares(world: Stream, i: int, lane: Lane) -> Iterator[Step]:
    """The leader compares the pending list with its picture, and counts that they agree."""
    if not lane.compared:
        states = tuple(PENDING if state == BY_HAND else state for state in lane.states)
        yield f"lane {i} compares", _with(world, i, lane._replace(states=states, compared=True))
        return
    lanes = list(world.lanes)
    lanes[i] = lane._replace(compared=False)
    for j, other in enumerate(lanes):
        if isinstance(other.sent, Look):
            awaited = put(other.sent.awaited, i, max(0, other.sent.awaited[i] - 1))
            lanes[j] = other._replace(sent=other.sent._replace(awaited=awaited))
    yield f"lane {i} counts that it has compared", world._replace(lanes=tuple(lanes))


def _leads(world: Stream, i: int, lane: Lane, shape: Shape, dropped: AbstractSet[LaneGuard]) -> Iterator[Step]:
    """What the leader of a lane sends next."""
    unread = [pos for pos, state in enumerate(lane.states) if state == UNREAD and world.entries[pos]]
    if unread:
        read = lane._replace(states=put(lane.states, unread[0], PENDING))
        yield f"lane {i} reads {unread[0]}", _with(world, i, read)
    for pos, state in enumerate(lane.states):
        # The leader has a message in its picture, also one that was acknowledged by hand.
        if state in (PENDING, BY_HAND):
            for end, name in ((DONE, "done"), (DEAD, "dead")):
                sent = lane._replace(sent=Settle(i, lane.lead, pos, end))
                yield f"lane {i} sends that {pos} is {name}", _with(world, i, sent)
    ids = tuple(_may_leave(world, i, dropped))
    if ids:
        groups = tuple(other.there for other in world.lanes)
        comparisons = 2 - (LaneGuard.AGREED in dropped) * 2 - (LaneGuard.AGREED_SINCE in dropped)
        awaits = comparisons if shape.by_hand else 0
        awaited = tuple(awaits if other.there and j != i else 0 for j, other in enumerate(world.lanes))
        again = not awaits or LaneGuard.LOOKED_AGAIN in dropped
        sent = lane._replace(sent=Look(i, lane.lead, groups, ids, awaited, again))
        yield f"lane {i} has looked: {list(ids)} may leave", _with(world, i, sent)


def _may_leave(world: Stream, i: int, dropped: AbstractSet[LaneGuard]) -> Iterator[int]:
    for pos, there in enumerate(world.entries):
        stays = not there or world.lanes[i].states[pos] != DONE
        for j, lane in enumerate(world.lanes):
            if not lane.there or j == i:
                continue
            state = lane.states[pos]
            stays = stays or (state == UNREAD and LaneGuard.NOT_UNREAD not in dropped)
            stays = stays or (state == PENDING and LaneGuard.NOT_PENDING_SEEN not in dropped)
            stays = stays or (state == DEAD and LaneGuard.LETTERS_OF_ALL not in dropped)
        if not stays:
            yield pos


def _arrives(world: Stream, script: Look | Settle, dropped: AbstractSet[LaneGuard]) -> Iterator[Step]:
    i = script.lane
    lane = world.lanes[i]
    leads = lane.lead == script.term
    if isinstance(script, Settle):
        if not leads and LaneGuard.TERM_SETTLE not in dropped:
            yield f"lane {i}: an outcome of term {script.term} is refused", world
            return
        if lane.states[script.pos] not in (PENDING, BY_HAND):
            if not leads:
                raise Broken(f"I8: lane {i}: term {script.term} changed what term {lane.lead} had settled")
            return
        if not leads:
            raise Broken(f"I8: lane {i}: a script of term {script.term} changed the lane, and term {lane.lead} leads")
        after = lane._replace(states=put(lane.states, script.pos, script.state))
        yield f"lane {i}: {script.pos} is settled", _with(world, i, after)
        return
    if not leads and LaneGuard.TERM_REMOVE not in dropped:
        yield f"lane {i}: the removal of term {script.term} is refused", world
        return
    groups = tuple(other.there for other in world.lanes)
    if groups != script.groups and LaneGuard.GROUPS_KNOWN not in dropped:
        yield f"lane {i}: the removal is refused, there is another lane", world
        return
    entries = world.entries
    for pos in script.ids:
        pending = any(
            other.there and other.states[pos] == PENDING
            for j, other in enumerate(world.lanes)
            if j != i and script.groups[j]
        )
        if not pending or LaneGuard.NOT_PENDING in dropped:
            entries = put(entries, pos, False)
    if not leads and entries != world.entries:
        raise Broken(f"I8: lane {i}: a removal of term {script.term} changed the stream, and term {lane.lead} leads")
    yield f"lane {i}: {list(script.ids)} are removed", world._replace(entries=entries)


def _with(world: Stream, i: int, lane: Lane) -> Stream:
    return world._replace(lanes=put(world.lanes, i, lane))
