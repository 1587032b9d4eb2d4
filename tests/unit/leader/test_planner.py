"""Which messages go where, and in which parcels."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.app.traits import TaskTraits
from bridge.leader.picture.pieces import Consumer, Ticket
from bridge.protocol.outcomes import Kind
from bridge.routing.ids import id_key
from bridge.routing.messages import EntryParser
from bridge.routing.policies import PolicyName
from tests.unit.leader.lane_store import Parcel
from tests.unit.leader.lane_world import TASKS, TRAITS, LaneWorld


def world(*, measured: bool = True, **settings: Any) -> LaneWorld:
    """A lane whose service times are known."""
    made = LaneWorld(**settings)
    if measured:
        made.lane.service_ms.update(TASKS)
    return made


def kinds(lane: LaneWorld) -> list[str]:
    return [parcel.kind for parcel in lane.store.parcels]


# -- room ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", list(PolicyName))
@pytest.mark.parametrize("bundle_ms", [0.0, 10.0])
@pytest.mark.parametrize("task", sorted(TASKS))
def test_an_idle_slot_always_gets_work(policy: PolicyName, bundle_ms: float, task: str) -> None:
    # Given one worker with four processes, and enough tickets
    lane = world(policy=policy, bundle_ms=bundle_ms)
    lane.join("w1@h", slots=4)
    for i in range(40):
        lane.push(f"T{i}", task)
    lane.read()
    # Then each process has a Celery message
    assert len(lane.store.parcels) >= 4
    lane.check()


def test_a_worker_gets_work_ahead_but_not_everything() -> None:
    # Given far more work than a worker needs ahead
    lane = world(window=10_000)
    incarnation = lane.join("w1@h", slots=2)
    for i in range(5000):
        lane.push(f"T{i}", "middle")
    lane.read(5000)
    # Then it has about two bundles' time for each process
    backlog = lane.lane.consumers[incarnation].backlog_ms
    assert 2 * 10 <= backlog <= 2 * 3 * 10


def test_long_tasks_get_one_message_for_each_process_and_no_more_than_room() -> None:
    lane = world()
    lane.join("w1@h", slots=3)
    for i in range(20):
        lane.push(f"T{i}", "long")
    lane.read()
    assert kinds(lane) == ["plain"] * 3


def test_a_task_that_was_never_measured_travels_alone() -> None:
    lane = world(measured=False)
    lane.join("w1@h", slots=2)
    for i in range(50):
        lane.push(f"T{i}", "short", count=3)
    lane.read()
    assert set(kinds(lane)) == {"plain"}
    assert all(parcel.size == 1 for parcel in lane.store.parcels)


def test_work_is_spread_by_load_over_workers() -> None:
    lane = world(bundle_ms=0.0)
    for i in range(4):
        lane.join(f"w{i}@h", slots=1)
    for i in range(12):
        lane.push(f"T{i}", "long")
    lane.read()
    assert [consumer.messages for consumer in lane.lane.consumers.values()] == [1, 1, 1, 1]


def test_a_worker_with_more_processes_gets_more() -> None:
    lane = world(bundle_ms=0.0)
    lane.join("small@h", slots=1)
    lane.join("large@h", slots=6)
    for i in range(30):
        lane.push(f"T{i}", "long")
    lane.read()
    assert [consumer.messages for consumer in lane.lane.consumers.values()] == [1, 6]


def test_without_consumers_nothing_is_sent() -> None:
    lane = world()
    lane.push("T", count=5)
    lane.read()
    assert lane.store.parcels == []
    assert lane.store.fence == 0
    lane.join("w1@h")
    assert lane.running()


# -- parcels -------------------------------------------------------------------------------------------------------


def test_a_message_that_finds_an_idle_worker_travels_as_an_ordinary_task() -> None:
    lane = world()
    lane.join("w1@h", slots=2)
    lane.push("T", "short")
    lane.read()
    assert kinds(lane) == ["plain"]


def test_a_backlog_of_short_tasks_travels_in_bundles() -> None:
    lane = world(window=10_000)
    lane.join("w1@h", slots=2)
    for i in range(1000):
        lane.push(f"T{i}", "short")
    lane.read()
    assert set(kinds(lane)) == {"bundle"}
    # By the measured service times, a bundle lasts about bridge_bundle_ms
    for parcel in lane.store.parcels:
        assert 0.3 * 10 <= parcel.size * (TASKS["short"] + 0.03) <= 1.5 * 10


def test_one_hot_ticket_makes_long_runs_in_order() -> None:
    lane = world(window=10_000)
    lane.join("w1@h", slots=2)
    ids = lane.push("hot", "short", count=500)
    lane.read()
    [parcel] = lane.store.parcels
    [(_, run)] = parcel.runs.values()
    assert run == ids[: len(run)]
    assert len(run) > 20
    lane.check()


@pytest.mark.parametrize("setting", [0.0, 10.0])
def test_a_task_that_is_kept_out_of_bundles_never_travels_in_one(setting: float) -> None:
    # Given tickets whose messages are of both kinds, mixed
    lane = world(window=10_000, bundle_ms=setting)
    lane.join("w1@h", slots=2)
    for i in range(50):
        for _ in range(3):
            lane.push(f"T{i}", "short")
            lane.push(f"T{i}", "alone")
    lane.read()
    seen: set[str] = set()
    for _ in range(2000):
        running = lane.running()
        if not running:
            break
        for parcel in lane.store.parcels:
            seen.add(parcel.kind)
            if parcel.kind == "bundle":
                assert {lane.task_of(id_) for _, ids in parcel.runs.values() for id_ in ids} == {"short"}
        lane.step([lane.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in running])
        lane.check()
    assert len(lane.store.done) == 300
    assert seen == ({"plain"} if setting == 0 else {"plain", "bundle"})


@pytest.mark.parametrize("task", ["long"])
def test_a_task_longer_than_two_bundles_travels_alone(task: str) -> None:
    lane = world()
    lane.join("w1@h", slots=2)
    for i in range(20):
        lane.push(f"T{i}", task, count=2)
    lane.read()
    assert set(kinds(lane)) == {"plain"}


@pytest.mark.parametrize(
    ("of_the_others", "smallest", "without"),
    [((None, None), [30.05, 20.05], [None, None]), ((40.0, 10.0), [30.05, 10.05], [40.05, 10.05])],
    ids=["of one", "of several"],
)
def test_a_bundle_has_the_smallest_limits_of_its_tasks_and_a_grace(
    monkeypatch: pytest.MonkeyPatch, of_the_others: Any, smallest: list[float], without: list[float | None]
) -> None:
    monkeypatch.setitem(TRAITS, "short", TaskTraits(True, of_the_others))
    lane = world(window=10_000)
    lane.join("w1@h", slots=1)
    for i in range(200):
        lane.push(f"T{i}", "limited" if i == 3 else "short")
    lane.read()
    limits = {
        "limited" in {lane.task_of(id_) for _, ids in parcel.runs.values() for id_ in ids}: parcel.limits
        for parcel in lane.store.parcels
    }
    # By its own limits, 30 and 20 s, or those of the others, and the time that the bundle itself may take
    assert limits[True] == smallest
    assert limits.get(False, without) == without


# -- stickiness ----------------------------------------------------------------------------------------------------


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


# -- failures ------------------------------------------------------------------------------------------------------


def test_a_failure_waits_first_of_its_ticket_and_others_go_on() -> None:
    lane = world(bundle_ms=0.0)
    lane.join("w1@h")
    bad = lane.push("bad", count=3)
    good = lane.push("good", count=3)
    lane.read()
    failing = next((p, t) for p, t in lane.running() if t == "bad")
    lane.step([lane.outcome(*failing, Kind.FAILED, delay_ms=1000)])
    while lane.running():
        lane.step([lane.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in lane.running()])
    assert lane.store.done == good
    lane.now += 1000
    lane.step()
    while lane.running():
        lane.step([lane.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in lane.running()])
    assert lane.store.done == [*good, *bad]


def test_after_the_last_attempt_a_message_is_dead_and_its_ticket_goes_on() -> None:
    lane = world(max_attempts=3)
    lane.join("w1@h")
    ids = lane.push("T", count=2)
    lane.read()
    for attempt in range(1, 4):
        [(parcel, ticket)] = lane.running()
        assert lane.lane.tickets["T"].attempt == attempt
        lane.step([lane.outcome(parcel, ticket, Kind.FAILED, delay_ms=10)])
        lane.now += 10
        lane.step()
    assert lane.store.dead == ids[:1]
    assert lane.lane.tickets["T"].attempt == 1
    [(parcel, ticket)] = lane.running()
    lane.step([lane.outcome(parcel, ticket, Kind.DONE)])
    assert lane.store.done == ids[1:]
    assert lane.lane.tickets == {}


def test_unstarted_messages_are_not_charged_and_retries_keep_their_attempts() -> None:
    lane = world(max_attempts=3)
    lane.join("w1@h")
    lane.push("T")
    lane.read()
    for kind, attempt in ((Kind.RETURNED, 1), (Kind.FAILED, 2), (Kind.RETURNED, 2), (Kind.RETURNED, 2)):
        [(parcel, ticket)] = lane.running()
        lane.step([lane.outcome(parcel, ticket, kind, delay_ms=0)])
        lane.step()
        lane.check()
        assert lane.lane.tickets["T"].attempt == attempt
    # And a new leader knows them, too
    lane.rebuild()
    assert lane.lane.tickets["T"].attempt == 2


def test_a_retry_that_is_given_back_without_room_keeps_its_attempts_under_a_new_leader() -> None:
    # Given a second attempt that the only worker gives back when it leaves
    lane = world(max_attempts=3)
    home = lane.join("w1@h")
    lane.push("T")
    lane.read()
    lane.step([lane.outcome(*lane.running()[0], Kind.FAILED, delay_ms=0)])
    lane.lane.consumers[home].alive = False
    del lane.registered[home]
    lane.step([lane.outcome(*lane.running()[0], Kind.RETURNED)])
    lane.check()
    # When another leader reads the lane, then it is still the second attempt
    lane.rebuild()
    lane.check()
    assert lane.lane.tickets["T"].attempt == 2
    lane.join("w2@h")
    assert lane.running()


def test_a_broken_entry_changes_nothing_for_others() -> None:
    lane = world()
    lane.join("w1@h")
    first = lane.push("T")
    broken = lane.push("T", payload=b"{")
    last = lane.push("T")
    lane.read()
    assert lane.store.dead == broken
    while lane.running():
        lane.step([lane.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in lane.running()])
    assert lane.store.done == [*first, *last]


def test_fences_of_a_ticket_grow_over_retries_moves_and_leaders() -> None:
    lane = world()
    homes = [lane.join("w1@h"), lane.join("w2@h")]
    lane.push("T", count=4)
    lane.read()
    fences = []
    for turn in range(6):
        [(parcel, ticket)] = lane.running()
        fences.append(parcel.runs[ticket][0])
        if turn == 2:
            lane.leave(parcel.incarnation)
            homes.remove(parcel.incarnation)
        elif turn == 3:
            lane.rebuild()
            lane.step([lane.outcome(parcel, ticket, Kind.RETURNED)])
        else:
            lane.step([lane.outcome(parcel, ticket, Kind.FAILED, delay_ms=0)])
        lane.step()
        lane.now += 1
        lane.step()
        lane.check()
    assert fences == sorted(set(fences))


def test_the_measured_time_follows_what_is_measured() -> None:
    lane = world(measured=False)
    lane.join("w1@h")
    for _ in range(60):
        lane.push("T", "middle")
        lane.read()
        [(parcel, ticket)] = lane.running()
        lane.step([lane.outcome(parcel, ticket, Kind.DONE)])
    assert lane.lane.service_ms["middle"] == pytest.approx(TASKS["middle"])
    lane.lane.service_ms["middle"] = 1000.0
    for _ in range(80):
        lane.push("T", "middle")
        lane.read()
        [(parcel, ticket)] = lane.running()
        lane.step([lane.outcome(parcel, ticket, Kind.DONE)])
    assert lane.lane.service_ms["middle"] == pytest.approx(TASKS["middle"], rel=0.1)


def test_results_come_in_any_order_of_tickets_but_in_one_order_each() -> None:
    lane = world(window=10_000)
    lane.join("w1@h", slots=2)
    lane.join("w2@h", slots=2)
    for i in range(300):
        lane.push(f"T{i % 7}", "short")
    lane.read()
    while lane.running():
        lane.step([lane.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in reversed(lane.running())])
    assert len(lane.store.done) == 300
    for i in range(7):
        mine = [id_key(id_) for id_ in lane.store.done if lane.ticket_of(id_) == f"T{i}"]
        assert mine == sorted(mine)


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


# -- bytes ---------------------------------------------------------------------------------------------------------


def size_of(lane: LaneWorld, parcel: Parcel) -> int:
    return sum(len(lane.store.entries[id_][5]) for _, ids in parcel.runs.values() for id_ in ids)


@pytest.mark.parametrize("tickets", [1, 7, 400])
def test_the_bytes_of_one_dispatch_are_bounded(tickets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given short tasks with payloads of any size, for more slots than may have them at once
    monkeypatch.setattr("bridge.leader.picture.capacity.PARCEL_BYTES", 20_000)
    monkeypatch.setattr("bridge.leader.picture.capacity.STEP_BYTES", 50_000)
    lane = world(window=50_000, max_payload=10_000)
    lane.parser = EntryParser(default_task="short", max_payload=10_000, known_tasks=list(TASKS))
    for n in range(400):
        lane.push(f"T{n % tickets}", payload=b'"%b"' % (b"x" * (3 * n % 8_000)))
    lane.join("w1@h", slots=8)
    lane.read()
    # When all are handled, step by step
    while lane.store.parcels:
        before = list(lane.store.parcels)
        assert all(size_of(lane, parcel) <= 20_000 for parcel in before)
        assert lane.lane.bytes_in_flight <= 8 * 2 * 20_000 + 8_256
        lane.step([lane.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in lane.running()])
        fresh = [parcel for parcel in lane.store.parcels if parcel not in before]
        assert sum(size_of(lane, parcel) for parcel in fresh) <= 50_000 + 8_000
        # Then messages that were not sent at once are sent in the next step, without another event
        while lane.planner.left_some:
            lane.step()
        lane.check()
    assert len(lane.store.done) == 400


def test_no_more_bytes_are_in_flight_than_half_of_the_window() -> None:
    lane = world(window_bytes=1024 * 1024, measured=False)
    lane.parser = EntryParser(default_task="short", max_payload=100_000, known_tasks=list(TASKS))
    for n in range(60):
        lane.push(f"T{n}", payload=b'"%b"' % (b"x" * 60_000))
    lane.join("w1@h", slots=50)
    lane.read()
    done = 0
    while lane.running():
        while lane.planner.left_some:
            lane.step()
        assert lane.lane.bytes_in_flight <= 512 * 1024 + 61_000
        running = lane.running()
        assert len(running) >= min(8, 60 - done)
        done += len(running)
        lane.step([lane.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in running])
    assert len(lane.store.done) == 60
