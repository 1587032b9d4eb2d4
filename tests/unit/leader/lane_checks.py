"""What must hold in a lane after each step: the leader's picture, the store and the workers agree."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from bridge.leader.picture.oldest_undone import oldest_of, oldest_undone
from bridge.leader.picture.pieces import Ticket
from bridge.routing import records
from bridge.routing.ids import Place, first_id_from, id_text
from tests.reference.contents import MASTER
from tests.unit.leader.lane_store import id_key

if TYPE_CHECKING:
    from tests.unit.leader.lane_world import LaneWorld

#: Each check looks at all records, most of which it has seen.
parse = lru_cache(maxsize=10_000)(records.parse)


def check_all(world: LaneWorld) -> None:
    """All checks."""
    unseen = world.unseen
    check_conservation(world, unseen)
    check_runs(world)
    check_accounts(world)
    check_nobody_is_forgotten(world)
    check_how_far_all_is_done(world, unseen)


def check_conservation(world: LaneWorld, unseen: set[str]) -> None:
    store = world.store
    waiting = store.waiting_by_ticket()
    everything = [*store.unread(), *store.pending, *store.done, *store.dead]
    assert len(everything) == len(store.entries)
    assert set(everything) == store.entries.keys()
    # In memory each message is once, in order. Messages outside memory are spilled
    for ticket in world.lane.tickets.values():
        here = [message.id for message in (*ticket.run, *ticket.waiting)]
        mine = [id_ for id_ in store.undone(ticket.id, waiting) if id_ not in unseen]
        assert here == mine[: len(here)], f"{ticket}: has {here}, should have {mine}"
        rest = mine[len(here) :]
        if world.lane.resting.rests(ticket):
            assert mine[0] == ticket.front_id
            rest = [id_ for id_ in mine if id_ not in (ticket.front_id, *here)]
            here = []
        # The leader knows what the oldest one has behind it
        assert not here or ticket.attempt == 1 + world.failures.get(here[0], 0), ticket
        assert (not rest) or (ticket.spilled_from is not None and ticket.spilled_from <= store.place(rest[0]))
    shown = [id_ for id_, owner in store.pending.items() if owner != store.delayed_name and id_ not in unseen]
    known = {world.ticket_of(id_) for id_ in shown if store.readable(id_)}
    assert known <= world.lane.tickets.keys() | world.lane.parked.keys()
    assert world.lane.tickets.keys().isdisjoint(world.lane.parked)
    for ticket in world.lane.parked.values():
        assert (list(ticket.waiting), list(ticket.run), ticket.due_ms) == ([], [], 0), f"{ticket} is parked"
        shelf = world.lane.parked_name(ticket.id)
        assert ticket.shelved == sum(1 for owner in store.pending.values() if owner == shelf)
        for id_ in store.undone(ticket.id, waiting):
            # Messages that were spilled before their ticket was parked stay where they are until they are read.
            spilled = ticket.spilled_from is not None and ticket.spilled_from <= store.place(id_)
            owners = {world.lane.parked_name(ticket.id), *([MASTER] if spilled or id_ in unseen else [])}
            assert store.pending[id_] in owners


def check_how_far_all_is_done(world: LaneWorld, unseen: set[str]) -> None:
    """The floor equals that of a search of all tickets, and no undone message is older. A late one may count or not."""
    lane = world.lane
    places = [oldest_of(ticket) for ticket in lane.tickets.values()]
    aside = [place for ticket in lane.parked.values() for place in (ticket.parked_from, ticket.spilled_from)]
    places += [first_id_from(place) for place in aside if place is not None]
    oldest = min((place for place in places if place is not None), default=None)
    store, found = world.store, oldest_undone(lane)
    assert found == oldest or (oldest is not None and id_text(oldest) in store.late)
    elsewhere = {*unseen, *store.delayed, *store.late}
    undone = [id_key(id_) for id_ in store.pending if id_ not in elsewhere and store.readable(id_)]
    assert not undone or (found is not None and found <= min(undone))
    assert lane.older <= set(lane.tickets.values())


def check_runs(world: LaneWorld) -> None:
    store = world.store
    known = {name: (text, parse(text)) for name, text in store.tickets.items()}
    for name, (text, record) in known.items():
        # On one consumer (I2). The dispatch checks that they are the oldest undone ones
        owners = {store.pending[id_] for id_ in record.ids}
        shelf = world.lane.parked_name(name)
        if record.parked:
            assert owners <= {shelf, MASTER}
        else:
            assert owners == ({record.consumer} if record.in_flight else {MASTER})
        assert (name in store.retries) == (not record.in_flight and not record.parked)
        kept = world.lane.parked if record.parked else world.lane.tickets
        assert kept[name].record == text
        assert not record.ids or record.attempt == 1 + world.failures.get(record.ids[0], 0)
        if record.in_flight and not record.cause.startswith(records.PARK_AFTER):
            assert record.cause == (kept[name].cause if kept[name].nacked else "")
    shelves = {world.lane.parked_name(name) for name in world.lane.parked}
    assert {id_ for id_, owner in store.pending.items() if owner == store.delayed_name} == store.delayed.keys()
    assert store.delayed.keys().isdisjoint(store.late)
    assert store.pending.keys() >= {*store.delayed, *store.late, *store.holding}
    shelves.add(store.delayed_name)
    claimed = {id_ for id_, owner in store.pending.items() if owner != MASTER and owner not in shelves}
    named = [id_ for _, record in known.values() if record.in_flight for id_ in record.ids]
    assert sorted(named) == sorted(claimed)
    if store.counts.get("replayed"):
        return
    # The messages of each ticket end in stream order
    world.done.look(world, store.done)
    world.dead.look(world, store.dead)


class Ends:
    """The messages that are done, or those that are dead, as far as they have been looked at."""

    def __init__(self) -> None:
        self._count = 0
        #: Ticket -> the place of its last message.
        self._last: dict[str, Place] = {}

    def look(self, world: LaneWorld, ends: list[str]) -> None:
        """Looks at those that have come. ``ends``: all of them, in the order in which they ended."""
        for id_ in ends[self._count :]:
            if world.store.readable(id_) and id_ not in world.cancelled:
                ticket, place = world.ticket_of(id_), world.store.place(id_)
                assert place > self._last.get(ticket, (0, 0)), f"{id_} came too late"
                self._last[ticket] = place
        self._count = len(ends)


def check_accounts(world: LaneWorld) -> None:
    lane = world.lane
    held = sum(len(t.run) + len(t.waiting) for t in lane.tickets.values())
    assert lane.held == held
    for ticket in lane.tickets.values():
        assert ticket.bytes == sum(message.size for message in ticket.waiting)
    assert lane.bytes_in_flight == sum(m.size for t in lane.tickets.values() for m in t.run)
    assert lane.bytes == lane.bytes_in_flight + sum(t.bytes for t in lane.tickets.values())
    assert set(lane.in_flight) == {m.id for t in lane.tickets.values() for m in t.run}
    for consumer in lane.consumers.values():
        flying = [t for t in lane.tickets.values() if t.run and t.consumer is consumer]
        assert consumer.tickets == set(flying)
        assert consumer.messages == sum(len(t.run) for t in flying)
        assert consumer.bytes == sum(m.size for t in flying for m in t.run)
        assert consumer.parcels == len({id(t.parcel) for t in flying})
        expected = sum(t.parcel.share_ms * len(t.run) for t in flying if t.parcel is not None)
        assert abs(consumer.backlog_ms - expected) < 1e-6


def check_nobody_is_forgotten(world: LaneWorld) -> None:
    lane = world.lane
    queued: list[Ticket] = [*lane.ready, *lane.suspects, *(t for c in lane.consumers.values() for t in c.ready)]
    waits = set(queued)
    assert len(queued) == len(waits), "a ticket waits for room twice"
    assert lane.late_ready <= waits, "a ticket that is not queued counts as ready"
    for ticket in lane.tickets.values():
        free = bool(ticket.waiting) and not (ticket.run or ticket.due_ms or ticket.front_id)
        assert (ticket in waits) == ticket.queued, ticket
        # It may be queued already before its leader has heard that it need not wait for another lane.
        assert free == ticket.queued or (free and world.deferred.get(ticket.id) is ticket), ticket
        if ticket.due_ms:
            assert any(due == ticket.due_ms and t is ticket for due, _, t in lane.backoffs)
        rests = lane.resting.rests(ticket)
        assert ticket.waiting or ticket.run or ticket.spilled_from or ticket.due_ms or rests, f"{ticket} is empty"
        assert ticket in lane.resting.due if rests and not ticket.due_ms else ticket not in lane.resting.due
        assert ticket.park_reason is None or ticket.run, f"{ticket} is to be parked, and nothing of it runs"
    assert lane.crowded.keys() <= set(lane.consumers.values()), "a consumer that is gone is kept"
    for ticket in waits:
        # Also when another message came first while the ticket was queued
        assert not lane.stranded.holds(ticket), f"{ticket} is queued, and its oldest message must not go out"
    for consumer in lane.consumers.values():
        foreign = [ticket for ticket in consumer.ready if not consumer.runs(ticket.waiting[0].task)]
        assert not foreign, f"{consumer} cannot run what waits there"
    if lane.suspects:
        # One of them is in flight, or a consumer is kept free for it, or it is the other tickets' turn
        task = world.task_of(lane.suspects[0].waiting[0].id)
        able = [c for c in lane.consumers.values() if c.serving and not c.doubted and c.runs(task)]
        resting = world.now < lane.rest_until and waits > set(lane.suspects)
        kept = any(c.alone is not None for c in able)
        assert not able or resting or kept or world.is_paused, "suspects wait for nothing"
    for consumer in lane.consumers.values():
        alone = consumer.alone
        assert alone is None or alone in lane.suspects or (alone.run and alone.consumer is consumer)
        assert alone is None or not alone.run or consumer.parcels == 1, "a suspect has company"
    pinned = world.settings.policy.value == "rendezvous"
    for consumer in lane.consumers.values():
        if consumer.open and consumer.parcels < consumer.slots and not world.is_paused:
            assert not consumer.ready, f"{consumer} has an idle slot and tickets that wait"
            idle_for = {ticket for ticket in queued if consumer.runs(ticket.waiting[0].task)} - set(lane.suspects)
            assert pinned or not idle_for, f"{consumer} has an idle slot and {idle_for} wait"
    serving = [c for c in lane.consumers.values() if c.serving]
    for ticket in lane.tickets.values():
        if ticket.stranded:
            served = any(c.runs(ticket.stranded) for c in serving)
            assert not served or ticket.stranded in lane.stranded.open_circuits, f"{ticket} need not wait"
            assert ticket not in lane.spilled
            assert not ticket.waiting
        elif ticket.spilled_from is not None and not (lane.resting.rests(ticket) or ticket.id in world.deferred):
            assert ticket in lane.spilled, f"nobody reads {ticket} again"
