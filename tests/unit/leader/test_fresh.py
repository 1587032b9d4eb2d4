"""Fresh messages beside a backlog: they wait for little of it, and it goes on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from bridge.leader.picture.capacity import AHEAD_SHORT
from bridge.leader.picture.fresh import FEW, LITTLE, WINDOW_MS, Fresh
from bridge.leader.picture.pieces import STRETCH_FIRST, STRETCH_MAX, Consumer
from bridge.leader.picture.planner import HURRIED
from bridge.leader.step.steps import READ_COUNT, SLICE, Steps
from bridge.leader.stream import delayed
from bridge.protocol.outcomes import Kind
from bridge.routing.batch import Batch
from bridge.routing.policies import PolicyName
from tests.unit.leader.known_times import world as known_world
from tests.unit.leader.lane_world import TASKS, LaneWorld

#: Ms of work in a message of the task ``short``, and of a bundle.
SHORT_MS = TASKS["short"] + 0.03
BUNDLE_MS = 10.0


def behind(
    tickets: int, each: int, *, bundle_ms: float = 0.0, policy: PolicyName = PolicyName.LEAST_LOADED
) -> LaneWorld:
    """A lane of one slot with a backlog."""
    world = known_world(window=10_000, bundle_ms=bundle_ms, policy=policy)
    world.join("w1@h", slots=1)
    add_backlog(world, "B", tickets, each)
    return world


def add_backlog(world: LaneWorld, name: str, tickets: int, each: int = 1) -> None:
    """Adds messages of which none is fresh: one more is unread after they were read."""
    for n in range(tickets):
        world.push(f"{name}{n}", "short", count=each)
    world.push("unread", "short")
    world.read(len(world.store.unread()) - 1)


def only(world: LaneWorld) -> Consumer:
    [consumer] = world.lane.consumers.values()
    return consumer


def are_few(world: LaneWorld) -> bool:
    return world.lane.fresh.are_few


def ended(world: LaneWorld) -> list[str]:
    """Ends all that runs, in the order of the dispatches. Returns the tickets."""
    running = sorted(world.running(), key=lambda one: one[0].runs[one[1]][0])
    world.step(
        [
            world.outcome(parcel, ticket, Kind.DONE)
            for parcel, ticket in running
            for _ in range(len(parcel.runs[ticket][1]))
        ]
    )
    world.check()
    return [ticket for _, ticket in running]


# -- the order of tickets ------------------------------------------------------------------------------------------


def test_fresh_messages_wait_for_one_ticket_of_a_backlog() -> None:
    for policy in PolicyName:
        wait_for_one(policy)


def wait_for_one(policy: PolicyName) -> None:
    world = behind(60, 8, policy=policy)
    world.read()
    ended(world)
    for n in range(6):
        there = len(world.running())
        world.push(f"O{n}", "short")
        world.read()
        went: list[str] = []
        while f"O{n}" not in went:
            went += ended(world)
        assert went.index(f"O{n}") <= there + 2


def test_a_backlog_goes_on_beside_fresh_messages_that_never_end() -> None:
    # Given more fresh messages than the worker can do
    world = behind(60, 8)
    order: list[str] = []
    for n in range(8):
        for i in range(40):
            world.push(f"O{n}.{i}", "short")
        world.read()
        order += ended(world)
    # Then they have half of it
    backlog = sum(ticket.startswith("B") for ticket in order[30:])
    assert 0.4 <= backlog / len(order[30:]) <= 0.6


@pytest.mark.parametrize("policy", PolicyName)
def test_one_that_came_while_they_were_not_few_passes_the_backlog_as_soon_as_they_are(policy: PolicyName) -> None:
    # Given a backlog of which nothing was sent for a while, and fresh messages: so they are not few
    world = behind(300, 1, policy=policy)
    world.now += 10 * WINDOW_MS
    world.read()
    for n in range(3):
        world.push(f"O{n}", "short")
    world.read()
    assert not are_few(world)
    # When some of the backlog was sent since
    order: list[str] = []
    pushed = False
    while not {"O0", "O1", "O2", "later"} <= set(order):
        order += ended(world)
        if are_few(world) and not pushed:
            world.push("later", "short")
            world.read()
            pushed = True
    # Then they go before the rest of it, in their order, and a later one does not pass them
    assert [ticket for ticket in order if ticket[0] in "Ol"] == ["O0", "O1", "O2", "later"]
    assert len(order) < 150


def test_a_ticket_that_waits_for_its_worker_is_not_passed_by_one_that_came_later() -> None:
    # Given tickets that wait for their worker, older ones without a worker, and later ones
    world = behind(60, 2)
    first = ended(world)
    waits = [ticket.id for ticket in only(world).ready]
    assert waits == first
    add_backlog(world, "later", 60)
    # When there is room again
    order = ended(world) + ended(world) + ended(world) + ended(world)
    later = next(at for at, ticket in enumerate(order) if ticket.startswith("later"))
    # Then those go first, although the older ones without a worker went before them
    assert set(waits) <= set(order[:later])
    assert {f"B{n}" for n in range(60)} <= set(order[:later]) | set(first)


# -- how much lies ahead -------------------------------------------------------------------------------------------


def full(world: LaneWorld) -> bool:
    """Whether the worker gets as much as from a backlog."""
    world.step()
    return only(world).backlog_ms >= (AHEAD_SHORT - 1) * BUNDLE_MS


def test_while_fresh_messages_come_bundles_are_smaller_and_then_as_large_as_before() -> None:
    # Given a worker whose bundles last five times longer than expected, and a backlog
    world = behind(900, 8, bundle_ms=BUNDLE_MS)
    ended(world)
    assert full(world)
    only(world).stretch = 5.0
    # When a fresh message comes
    world.push("O", "short")
    world.read()
    ended(world)
    # Then its bundles are smaller, and it has as much ahead
    assert full(world)
    assert largest(world) <= 1.5 * BUNDLE_MS / HURRIED / SHORT_MS
    # And when no more came for a while, they are as large as before
    world.now += 2 * WINDOW_MS
    ended(world)
    assert full(world)
    assert largest(world) >= 0.8 * BUNDLE_MS / SHORT_MS


def largest(world: LaneWorld) -> int:
    """Messages in the largest parcel in flight."""
    return max(parcel.size for parcel in world.store.parcels)


@pytest.mark.parametrize("policy", list(PolicyName))
def test_a_fresh_message_needs_no_room_and_goes_before_what_its_worker_has(policy: PolicyName) -> None:
    # Given a worker that has as much ahead as it gets, and a backlog
    world = behind(900, 8, bundle_ms=BUNDLE_MS, policy=policy)
    ended(world)
    assert full(world)
    world.read()
    there, before = list(world.store.parcels), len(world.went_first)
    # When fresh messages come
    fresh = [world.push(f"O{n}", "short")[0] for n in range(3)]
    world.read()
    # Then they are sent at once, without others, and before the others at the worker
    sent = [parcel for parcel in world.store.parcels if parcel not in there]
    assert sorted(id_ for parcel in sent for _, ids in parcel.runs.values() for id_ in ids) == sorted(fresh)
    assert sorted(world.went_first[before:]) == sorted(fresh)
    world.check()


@pytest.mark.parametrize(
    ("task", "options"),
    [
        pytest.param("alone", {}, id="a task without bundles"),
        pytest.param("long", {}, id="a long task"),
        pytest.param("middle", {}, id="a task that was not measured"),
        *(pytest.param("short", {name: 10**9}, id=name) for name in ("timeout", "expires")),
        pytest.param("short", {"max_attempts": 2}, id="max_attempts"),
    ],
)
def test_a_fresh_message_that_travels_alone_goes_before_what_its_worker_has(task: str, options: dict[str, int]) -> None:
    # Given a worker that has as much ahead as it gets, and a backlog
    world = behind(900, 8, bundle_ms=BUNDLE_MS)
    del world.lane.service_ms["middle"]
    ended(world)
    assert full(world)
    world.read()
    before = len(world.went_first)
    # When fresh messages come that go into no bundle, and one that goes into one
    fresh = [world.push(f"O{n}", task, **cast("Any", options))[0] for n in range(3)]
    fresh += world.push("O3", "short")
    world.read()
    # Then each is before the others at the worker
    assert sorted(world.went_first[before:]) == sorted(fresh)
    # And none of the backlog is
    for _ in range(4):
        ended(world)
    assert sorted(world.went_first[before:]) == sorted(fresh)


def test_a_fresh_message_waits_for_room_behind_long_tasks() -> None:
    # Given a worker that has long tasks, and others wait
    world = known_world(window=10_000, bundle_ms=BUNDLE_MS)
    world.join("w1@h", slots=1)
    for n in range(100):
        world.push(f"B{n}", "long")
    world.read(99)
    for n in range(30):
        ended(world)
        if n % 12 != 11:
            continue
        there = len(world.running())
        world.push(f"O{n}", "short")
        world.read()
        assert world.lane.fresh.are_few
        assert len(world.running()) == there


def test_where_most_messages_are_fresh_a_worker_gets_as_much_as_from_a_backlog() -> None:
    world = behind(0, 0, bundle_ms=BUNDLE_MS)
    only(world).stretch = 5.0
    for n in range(3 * LITTLE):
        world.push(f"O{n}", "short")
    world.read()
    assert not world.lane.fresh.hurries
    assert full(world)


def test_a_lane_hurries_while_few_of_its_messages_are_fresh() -> None:
    fresh = Fresh()
    now_ms = 1000

    def hurries(came: int, sent: int) -> bool:
        nonlocal now_ms
        now_ms += 3 * WINDOW_MS
        fresh.look(now_ms)
        fresh.came, fresh.sent = came, sent
        fresh.look(now_ms)
        return fresh.hurries

    assert not hurries(0, 1000)
    assert hurries(1, 1000)
    # Little comes at all: a backlog may come at any time.
    assert hurries(LITTLE, 0)
    assert not hurries(LITTLE + 1, FEW * LITTLE)
    assert hurries(LITTLE + 1, FEW * (LITTLE + 1))
    # It ends when none came in a whole window.
    fresh.look(now_ms + WINDOW_MS)
    assert fresh.hurries
    fresh.look(now_ms + 2 * WINDOW_MS)
    assert not fresh.hurries


@pytest.mark.parametrize(("times", "least", "most"), [(1.0, 1.0, 1.5), (4.0, 3.0, 4.1), (1000.0, 6.0, STRETCH_MAX)])
def test_how_much_longer_a_bundle_lasts_is_measured(times: float, least: float, most: float) -> None:
    world = behind(900, 8, bundle_ms=BUNDLE_MS)
    clock_us = 0.0
    for _ in range(8):
        parcel = world.store.parcels[0]
        outcomes = []
        for ticket in list(parcel.runs):
            for _ in range(len(parcel.runs[ticket][1])):
                clock_us += times * SHORT_MS * 1000
                outcomes.append(world.outcome(parcel, ticket, Kind.DONE, started_us=int(clock_us)))
        world.step(outcomes)
    assert least <= only(world).stretch <= most


def test_a_worker_that_had_nothing_to_do_begins_with_small_bundles() -> None:
    # Given a worker whose bundles last as long as expected
    world = behind(40, 1, bundle_ms=BUNDLE_MS)
    only(world).stretch = 1.0
    world.read()
    while world.running():
        ended(world)
    # When a backlog and a fresh message come at once
    add_backlog(world, "B", 900, 8)
    world.push("O", "short")
    world.read()
    ended(world)
    # Then how long they last beside each other is not known yet
    assert STRETCH_FIRST >= HURRIED
    assert largest(world) <= 1.5 * BUNDLE_MS / HURRIED / SHORT_MS


def test_while_fresh_messages_come_few_of_those_that_are_due_are_moved_in_a_turn() -> None:
    world = LaneWorld(clocked=True, window=10_000)
    world.join("w1@h", slots=1)
    due_ms = world.now + 10_000
    for n in range(3000):
        world.push_delayed(f"F{n}", due_ms)
    world.read(5000)
    world.push("O", "short")
    world.read()
    world.now = due_ms + 1
    world.push("O2", "short")
    world.read()
    assert 0 < len(world.store.late) <= delayed.SLICE


def test_while_fresh_messages_are_few_a_turn_settles_few_outcomes() -> None:
    # Given a leader that has settled entries of 25 outcomes each
    world = behind(900, 8, bundle_ms=BUNDLE_MS)
    keys = SimpleNamespace(outcomes="outcomes", history="history")
    term: Any = SimpleNamespace(settings=world.lane.settings, wire=None, keys=keys)
    parts: Any = None
    settled = Steps(term, world.lane, parts, parts, parts)
    settled._outcome_reader = cast("Any", SimpleNamespace(take=take_25))
    assert settled.settle([["outcomes", [(b"1-0", ()), (b"2-0", ())]]], Batch()) == 2
    # Then the next turn reads many of them while there is nothing but a backlog
    ended(world)
    before = world.lane.fresh.are_few, settled.slice_of_entries
    # And few while fresh messages come
    world.read()
    ended(world)
    world.push("O", "short")
    world.read()
    assert (before, world.lane.fresh.are_few) == ((False, READ_COUNT), True)
    assert settled.slice_of_entries == SLICE // 25


def take_25(entries: list[tuple[bytes, object]], batch: Batch) -> str:
    batch.acknowledged += ["1-0"] * 25 * len(entries)
    return entries[-1][0].decode()
