"""How much goes to each worker, and in which parcels."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.app.traits import TaskTraits
from bridge.protocol.outcomes import Kind
from bridge.routing.messages import EntryParser
from bridge.routing.policies import PolicyName
from tests.unit.leader.known_times import kinds, world
from tests.unit.leader.lane_store import Parcel
from tests.unit.leader.lane_world import TASKS, TRAITS, LaneWorld

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


@pytest.mark.parametrize(("task", "bundles"), [("middle", 2), ("short", 4)])
def test_a_worker_gets_work_ahead_but_not_everything(task: str, bundles: int) -> None:
    # Given far more work than a worker needs ahead
    lane = world(window=10_000)
    incarnation = lane.join("w1@h", slots=2)
    for i in range(5000):
        lane.push(f"T{i}", task)
    lane.read(5000)
    lane.step()
    # Then it has the time of some bundles for each process
    backlog = lane.lane.consumers[incarnation].backlog_ms
    assert 2 * bundles * 10 <= backlog <= 2 * (bundles + 1) * 10


def test_many_tickets_get_runs_of_some_messages_each() -> None:
    # Given many tickets that wait with several messages each
    lane = world(window=10_000, bundle_ms=40.0)
    lane.join("w1@h", slots=2)
    for i in range(900):
        lane.push(f"T{i}", "short", count=9)
    lane.read(9000)
    # Then a bundle has neither all messages of a ticket, nor one of each: about the root of a sixteenth of the bundle
    assert set(kinds(lane)) == {"bundle"}
    assert {len(ids) for parcel in lane.store.parcels for _, ids in parcel.runs.values()} == {4}
    lane.check()


def test_a_worker_that_has_work_ahead_gets_no_small_bundles() -> None:
    # Given a worker that has as much work as it may have ahead
    lane = world(window=10_000)
    incarnation = lane.join("w1@h", slots=2)
    for i in range(3000):
        lane.push(f"T{i}", "short")
    lane.read(3000)
    lane.step()
    sizes = []
    for _ in range(300):
        before = list(lane.store.parcels)
        # When its messages end one by one
        parcel = lane.store.parcels[0]
        lane.step([lane.outcome(parcel, next(iter(parcel.runs)), Kind.DONE)])
        sizes += [parcel.size for parcel in lane.store.parcels if parcel not in before]
    # Then it gets whole bundles, and always has work ahead
    assert sizes
    assert min(sizes) >= 0.6 * 10 / (TASKS["short"] + 0.03)
    assert lane.lane.consumers[incarnation].backlog_ms >= 2 * 3 * 10
    lane.check()


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
    [((None, None), [30.17, 20.17], [None, None]), ((40.0, 10.0), [30.17, 10.17], [40.17, 10.17])],
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
