"""Which worker a ticket goes to, and which ticket goes first where there is no room for all."""

from __future__ import annotations

from bridge.leader.picture.pieces import Consumer, Ticket
from bridge.protocol.outcomes import Kind
from bridge.routing.policies import PolicyName
from tests.unit.leader.known_times import world
from tests.unit.leader.lane_world import LaneWorld


def test_a_ticket_stays_where_it_is_while_it_has_work() -> None:
    # Given two workers with a free process each, and one ticket
    lane = world(bundle_ms=0.0)
    lane.join("w1@h", slots=2)
    lane.join("w2@h", slots=2)
    lane.push("T", "short", count=20)
    lane.read()
    homes = set()
    while lane.running():
        [(parcel, ticket)] = lane.running()
        homes.add(parcel.incarnation)
        lane.step([lane.outcome(parcel, ticket, Kind.DONE)])
    assert len(homes) == 1
    assert len(lane.store.done) == 20


def test_a_retry_goes_to_the_same_worker_while_it_lives() -> None:
    lane = world(bundle_ms=0.0)
    for i in range(3):
        lane.join(f"w{i}@h")
    lane.push("T")
    lane.read()
    [(parcel, ticket)] = lane.running()
    home = parcel.incarnation
    lane.step([lane.outcome(parcel, ticket, Kind.FAILED)])
    lane.now += 1000
    lane.step()
    assert [parcel.incarnation for parcel in lane.store.parcels] == [home]
    lane.leave(home)
    [again] = lane.store.parcels
    assert again.incarnation != home


def test_a_ticket_that_waits_for_room_moves_to_a_worker_that_is_idle() -> None:
    # Given a worker that is full of a long task, and a ticket that waits for room there
    lane = world(bundle_ms=0.0)
    crowded = lane.join("w1@h", slots=1)
    for task in ("middle", "long"):
        for ticket in ("A", "B"):
            lane.push(ticket, task)
    lane.read()
    for ticket in ("A", "B"):
        found = next((parcel, name) for parcel, name in lane.running() if name == ticket)
        lane.step([lane.outcome(*found, Kind.DONE)])
    assert [ticket for _, ticket in lane.running()] == ["A"]
    assert [ticket.id for ticket in lane.lane.consumers[crowded].ready] == ["B"]
    # When another worker comes
    idle = lane.join("w2@h", slots=1)
    # Then the ticket moves there, since none of its messages is in flight
    assert {ticket: parcel.incarnation for parcel, ticket in lane.running()} == {"A": crowded, "B": idle}
    lane.check()


def test_the_rendezvous_policy_keeps_a_ticket_on_its_worker_even_when_another_is_idle() -> None:
    lane = world(policy=PolicyName.RENDEZVOUS, bundle_ms=0.0)
    lives = [lane.join(f"w{i}@h", slots=1) for i in range(2)]
    for _ in range(5):
        for i in range(10):
            lane.push(f"T{i}", "long")
    lane.read()
    homes: dict[str, set[str]] = {}
    for _ in range(200):
        running = lane.running()
        if not running:
            break
        for parcel, ticket in running:
            homes.setdefault(ticket, set()).add(parcel.incarnation)
        lane.step([lane.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in running])
    assert len(lane.store.done) == 50
    assert all(len(where) == 1 for where in homes.values())
    assert {home for where in homes.values() for home in where} == set(lives)


def test_after_a_loss_only_the_tickets_of_the_lost_worker_move() -> None:
    lane = world(bundle_ms=0.0)
    lives = [lane.join(f"w{i}@h", slots=2) for i in range(3)]
    for i in range(6):
        lane.push(f"T{i}", "long", count=2)
    lane.read()
    before = {ticket: parcel.incarnation for parcel, ticket in lane.running()}
    lane.leave(lives[0])
    after = {ticket: parcel.incarnation for parcel, ticket in lane.running()}
    assert all(after[ticket] == home for ticket, home in before.items() if home != lives[0])
    lane.check()


def test_busy_tickets_do_not_starve_a_ticket_without_a_consumer() -> None:
    # Given one slot, and tickets with work for a long time
    lane = world(bundle_ms=0.0)
    lane.join("w1@h", 1)
    for ticket in "abc":
        lane.push(ticket, "long", count=50)
    lane.read()
    for _ in range(6):
        [(parcel, ticket)] = lane.running()[:1]
        lane.step([lane.outcome(parcel, ticket, Kind.DONE)])
    # When another ticket comes
    [late] = lane.push("late", "long")
    lane.read()
    # Then it has its turn after the tickets that waited before it, not after all their messages
    turns = 0
    while late not in lane.lane.in_flight:
        turns += 1
        assert turns <= 6, "the ticket without a consumer starves"
        [(parcel, ticket)] = lane.running()[:1]
        lane.step([lane.outcome(parcel, ticket, Kind.DONE)])


def crowded() -> tuple[LaneWorld, Consumer]:
    """A backlog, and one worker without room for it."""
    lane = world()
    incarnation = lane.join("w1@h", slots=1)
    for i in range(20):
        lane.push(f"T{i}", "long")
    lane.read()
    return lane, lane.lane.consumers[incarnation]


def wait_at(lane: LaneWorld, consumer: Consumer | None, *tickets: Ticket, first: bool = False) -> None:
    """Lets tickets of the backlog wait for room at ``consumer``, which had them before. None: at any consumer."""
    for ticket in tickets:
        lane.lane.unqueue(ticket)
        ticket.queued = False
        ticket.consumer = consumer
        lane.lane.make_ready(ticket, first=first)


def test_messages_of_a_leaving_worker_go_before_the_backlog_in_order() -> None:
    # Given a backlog with two tickets that wait for room at the worker that had them before
    lane, consumer = crowded()
    sticky = list(lane.lane.ready)[-2:]
    wait_at(lane, consumer, *sticky)
    assert list(consumer.ready) == sticky
    # When the worker leaves
    consumer.leaving = True
    lane.lane.free_ready(consumer)
    # Then they are next, and the one that waited longer is first
    assert list(lane.lane.ready)[:2] == sticky
    assert not consumer.ready


def test_messages_that_waited_at_a_worker_go_behind_lost_or_returned_ones() -> None:
    # Given a ticket that was given back and waits for room, behind it a backlog, and tickets that wait at one worker
    lane, consumer = crowded()
    *backlog, back, one, two, three = lane.lane.ready
    wait_at(lane, None, back, first=True)
    # When that worker is kept empty for a suspect, twice in a row
    for tickets in ((one, two), (three,)):
        wait_at(lane, consumer, *tickets)
        lane.lane.free_ready(consumer)
    # Then the returned ticket is still first, and the backlog last
    assert list(lane.lane.ready) == [back, one, two, three, *backlog]
