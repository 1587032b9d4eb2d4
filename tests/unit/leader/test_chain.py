"""The pictures of a chain of versions: which tickets wait for which lane, and when they go on."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest

from bridge.leader.picture.chain import Place, Turns, chain_of
from bridge.leader.picture.chained_lane import ChainedLane
from bridge.leader.picture.pieces import SUSPECT_AFTER, Consumer, Ticket
from bridge.leader.picture.suspects import Isolation
from bridge.routing.batch import Batch
from bridge.routing.keys import LaneKeys
from bridge.routing.messages import Message
from bridge.settings.lane import LaneSettings
from tests.unit.leader.lane_times import LaneTimes


def chained(lanes: Sequence[LaneKeys]) -> list[tuple[LaneKeys, Sequence[LaneKeys]]]:
    """Each lane with all lanes before it."""
    return [(keys, lanes[:place]) for place, keys in enumerate(lanes)]


class Chain:
    """A chain of lanes, each with a picture."""

    def __init__(self, versions: int = 2, **settings: int) -> None:
        self.places = chain_of(chained([LaneKeys(f"v{n}", "g") for n in range(versions)]))
        self.woken: list[int] = []
        self._next = 0
        self.lanes = [
            ChainedLane(LaneSettings(stream=f"v{n}", **settings), place.defers, LaneTimes(lambda: 0))  # type: ignore[arg-type]
            for n, place in enumerate(self.places)
        ]
        for n, (place, lane) in enumerate(zip(self.places, self.lanes, strict=True)):
            place.enter(lane, f"{n} m", lambda n=n: self.woken.append(n))  # type: ignore[misc]
            place.unread = False
            with place.turn():
                pass
        self.woken.clear()

    def ingest(self, version: int, ticket: str) -> Ticket:
        lane = self.lanes[version]
        with self.places[version].turn():
            self._next += 1
            # With nothing unread after it, it is fresh.
            lane.read_all = version == len(self.lanes) - 1
            lane.ingest(Message(f"{self._next}-0", ticket, "task", b"{}"), Batch())
        return lane.tickets[ticket]

    def dispatch(self, version: int, ticket: Ticket) -> None:
        """As the planner does: the ticket's oldest message goes out."""
        lane = self.lanes[version]
        with self.places[version].turn():
            lane.unqueue(ticket)
            assert lane.admits(ticket)
            consumer = ticket.consumer = Consumer("w", "life", "queue", 1, None)
            lane.put_in_flight(ticket, consumer, ticket.waiting.popleft())

    def done(self, version: int, ticket: Ticket) -> None:
        lane = self.lanes[version]
        with self.places[version].turn():
            lane.take_from_flight(ticket, ticket.run.pop(0))
            lane.run_over(ticket)
            lane.make_ready(ticket)
            lane.drop_if_done(ticket)

    def ready(self, version: int) -> list[str]:
        """The tickets that are queued, after the leader's next turn."""
        with self.places[version].turn():
            return [ticket.id for ticket in self.lanes[version].ready]


def test_a_ticket_waits_for_the_same_ticket_of_an_older_version_and_no_other() -> None:
    chain = Chain()
    old = chain.ingest(0, "T")
    chain.ingest(1, "T")
    chain.ingest(1, "other")
    assert (chain.ready(0), chain.ready(1)) == (["T"], ["other"])
    chain.dispatch(0, old)
    assert chain.ready(1) == ["other"]
    chain.done(0, old)
    assert chain.woken == [1]
    assert chain.ready(1) == ["other", "T"]


def test_a_queued_ticket_waits_when_a_message_of_an_older_version_comes() -> None:
    chain = Chain()
    new = chain.ingest(1, "T")
    assert chain.ready(1) == ["T"]
    chain.ingest(0, "T")
    chain.lanes[1].ready.remove(new)
    assert not chain.lanes[1].admits(new)
    assert new.id in chain.lanes[1].deferred


def test_an_older_version_waits_only_for_what_is_in_flight_in_a_newer_one() -> None:
    chain = Chain(3)
    newest = chain.ingest(2, "T")
    chain.dispatch(2, newest)
    old = chain.ingest(0, "T")
    chain.ingest(1, "T")
    chain.ingest(2, "T")
    assert [chain.ready(n) for n in range(3)] == [[], [], []]
    chain.done(2, newest)
    assert [chain.ready(n) for n in range(3)] == [["T"], [], []]
    chain.dispatch(0, old)
    chain.done(0, old)
    assert [chain.ready(n) for n in range(3)] == [[], ["T"], []]


def test_a_parked_ticket_of_an_older_version_holds_its_own_messages_up() -> None:
    chain = Chain()
    old = chain.ingest(0, "T")
    chain.ingest(1, "T")
    lane, batch = chain.lanes[0], Batch()
    with chain.places[0].turn():
        lane.park(old, "wait", batch)
        lane.close(batch, set())
    assert chain.ready(1) == []
    with chain.places[0].turn():
        lane.unpark(old, batch)
        lane.spilled.discard(old)
        old.spilled_from = None
        lane.close(batch, set())
    assert chain.ready(1) == ["T"]


def test_deferred_tickets_use_at_most_half_of_the_memory_and_are_read_again() -> None:
    chain = Chain(window=100)
    lane = chain.lanes[1]
    for n in range(100):
        chain.ingest(0, f"T{n}")
        chain.ingest(1, f"T{n}")
    assert lane.held <= 51
    last = lane.tickets["T99"]
    assert (len(last.waiting), last.spilled_from is not None, last in lane.spilled) == (0, True, False)
    old = chain.lanes[0].tickets["T99"]
    chain.dispatch(0, old)
    chain.done(0, old)
    chain.ready(1)
    assert last in lane.spilled


def test_spilled_messages_are_not_read_again_while_an_older_lane_has_some_of_their_ticket() -> None:
    # Given a ticket whose message is spilled, and that has two in the older lane
    chain = Chain(window=100)
    for n in range(60):
        chain.ingest(0, f"T{n}")
        chain.ingest(1, f"T{n}")
    old, new = chain.ingest(0, "T59"), chain.lanes[1].tickets["T59"]
    assert not new.waiting
    read_again = []
    for _ in range(2):
        # When one of these is done
        chain.dispatch(0, old)
        chain.done(0, old)
        chain.ready(1)
        read_again.append(new in chain.lanes[1].spilled)
    # Then only the last one matters
    assert read_again == [False, True]


def is_open(place: Place) -> bool:
    return place.open


def test_a_newer_lane_is_open_only_while_the_pictures_of_all_older_ones_are_whole() -> None:
    chain = Chain(3)
    newest = chain.places[2]
    assert is_open(newest)
    for place, lane in zip(chain.places[:2], chain.lanes[:2], strict=True):
        lane.behind = True
        assert not is_open(newest)
        lane.behind = False
        place.unread = True
        assert not is_open(newest)
        place.unread = False
        place.leave()
        assert not is_open(newest)
        place.enter(lane, "9 m", lambda: None)
        place.unread = False
        assert is_open(newest)


def test_a_leader_that_cannot_go_on_shows_its_picture_to_nobody() -> None:
    chain = Chain()
    chain.ingest(1, "T")
    try:
        with chain.places[0].turn():
            raise RuntimeError("a defect")
    except RuntimeError:
        pass
    assert chain.places[0].lane is None
    assert not chain.places[1].open


def test_deferred_tickets_are_tried_again_when_another_leader_has_read_its_lane() -> None:
    chain = Chain()
    chain.ingest(0, "T")
    chain.ingest(1, "T")
    chain.places[0].leave()
    lane = ChainedLane(LaneSettings(stream="v0"), chain.places[0].defers, LaneTimes(lambda: 0))
    chain.places[0].enter(lane, "9 m", lambda: None)
    assert chain.ready(1) == []
    with chain.places[0].turn():
        pass
    assert chain.ready(1) == ["T"]


def test_planned_dispatches_that_were_not_sent_are_taken_back() -> None:
    chain = Chain()
    lane = chain.lanes[1]
    tickets = [chain.ingest(1, name) for name in ("A", "B", "C")]
    before = (lane.held, lane.bytes)
    batch = Batch()
    for ticket in tickets:
        lane.touch(ticket, batch)
        chain.dispatch(1, ticket)
    with chain.places[1].turn():
        lane.withdraw(tickets, ["B"], batch)
    assert (lane.held, lane.bytes, lane.in_flight) == (*before, {})
    assert [ticket.id for ticket in tickets if ticket.queued] == ["A", "C"]
    assert set(lane.deferred) == {"B"}
    assert not batch.records


def test_leaders_whose_messages_are_refused_again_and_again_do_not_wake_each_other() -> None:
    # Given two lanes with a ticket each that a version which another master led has in flight
    chain = Chain(2)
    for n, name in enumerate("TU"):
        chain.ingest(n, name)
    chain.ready(0)
    chain.ready(1)
    chain.woken.clear()
    for n in range(2):
        with chain.places[n].turn():
            [ticket] = chain.lanes[n].tickets.values()
            batch = Batch()
            chain.lanes[n].touch(ticket, batch)
            chain.lanes[n].ready.remove(ticket)
            ticket.queued = False
            ticket.consumer = Consumer("w", "life", "queue", 1, None)
            chain.lanes[n].put_in_flight(ticket, ticket.consumer, ticket.waiting.popleft())
            # When the script refuses both
            chain.lanes[n].withdraw([ticket], [ticket.id], batch)
            chain.places[n].refused.add(ticket.id)
    # Then each tries again when the other has read its stream, or after a while
    assert chain.woken == []
    chain.lanes[0].read_to = (9, 0)
    chain.ready(0)
    assert chain.woken == [1]
    chain.places[0].look()
    for n, name in enumerate("TU"):
        chain.ready(n)
        assert chain.lanes[n].tickets[name].queued


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("how", ["queued again", "not admitted"])
def test_no_consumer_is_kept_for_a_suspect_that_is_deferred(how: str, others: int) -> None:
    # Given a consumer that is emptied for a suspect
    chain = Chain()
    lane = chain.lanes[1]
    consumer = lane.consumers["life"] = Consumer("w", "life", "queue", 1, None)
    consumer.parcels = 1
    suspect, *more = (chain.ingest(1, name) for name in ("T", "U")[: 1 + others])
    for ticket in (suspect, *more):
        lane.unqueue(ticket)
        ticket.losses = SUSPECT_AFTER
        lane.make_ready(ticket)
    sent: list[Ticket] = []
    isolation = Isolation(lane)
    isolation.run(0, lambda _, ticket: sent.append(ticket))
    assert [c.alone for c in lane.consumers.values()] == [suspect]
    # When a message of an older version goes first
    chain.ingest(0, "T")
    with chain.places[1].turn():
        if how == "queued again":
            lane.queue_again()
        else:
            lane.suspects.remove(suspect)
            assert not lane.admits(suspect)
    assert set(lane.deferred) == {"T"}
    # Then it is there for others
    assert [c.alone for c in lane.consumers.values()] == [None]
    consumer.parcels = 0
    isolation.run(0, lambda _, ticket: sent.append(ticket))
    assert sent == more


def test_turns_are_given_in_the_order_in_which_they_were_asked_for() -> None:
    turns, order = Turns(), list[int]()
    turns.take()
    threads = []
    for n in range(5):

        def work(n: int = n) -> None:
            turns.take()
            order.append(n)
            turns.give()

        thread = threading.Thread(target=work)
        threads.append(thread)
        thread.start()
        while len(turns._waiting) <= n:
            time.sleep(0.001)
    turns.give()
    # It asked again, behind the others.
    turns.take()
    order.append(9)
    turns.give()
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4, 9]


def test_a_place_without_a_picture_hears_nothing() -> None:
    older, newer = chain_of(chained([LaneKeys("v0", "g"), LaneKeys("v1", "g")]))
    assert isinstance(older, Place)
    with older.turn():
        pass
    older.look()
    assert newer.lane is None


def test_partitions_of_one_layout_have_nothing_to_do_with_each_other() -> None:
    # Given two old partitions and three new ones
    old = [LaneKeys(f"o{n}", "g") for n in range(2)]
    new = [LaneKeys(f"n{n}", "g") for n in range(3)]
    places = chain_of([*((keys, ()) for keys in old), *((keys, old) for keys in new)])
    by_stream = {place.keys.stream: place for place in places}
    for n in range(2):
        assert by_stream[f"o{n}"].older == ()
        assert by_stream[f"o{n}"].newer_keys == tuple(new)
    for n in range(3):
        assert by_stream[f"n{n}"].older == tuple(by_stream[f"o{m}"] for m in range(2))
        assert by_stream[f"n{n}"].newer_keys == ()
