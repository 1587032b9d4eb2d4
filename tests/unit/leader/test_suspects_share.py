"""Suspects are dispatched alone and take a bounded share of the lane: other tickets go on, and so do they."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.leader.picture.flight import SUSPECTS_SHARE
from bridge.leader.picture.pieces import SUSPECT_AFTER
from bridge.protocol.outcomes import Kind
from tests.unit.leader.lane_world import LaneWorld

#: Time of each task in ms.
TASK_MS = 50
SUSPECTS = 6


def suspected(consumers: int, slots: int, *, healthy: int) -> LaneWorld:
    """Consumers, `SUSPECTS` tickets that are suspects, and ``healthy`` others."""
    world = LaneWorld(window=10_000, bundle_ms=0.0)
    world.lane.service_ms["long"] = float(TASK_MS)
    for i in range(SUSPECTS):
        world.push(f"S{i}", "long")
    world.read()
    for ticket in world.lane.tickets.values():
        world.lane.unqueue(ticket)
        ticket.losses = SUSPECT_AFTER
        world.lane.make_ready(ticket)
    for i in range(healthy):
        world.push(f"H{i}", "long")
    world.read()
    for i in range(consumers):
        world.join(f"w{i}@h", slots=slots)
    return world


def work(world: LaneWorld) -> tuple[int, int]:
    """Ends all running messages after their time, and dispatches the next ones. Returns how many suspects and other
    messages ended.
    """
    running = [(parcel, ticket) for parcel, ticket in world.running() if began(world, parcel.incarnation, ticket)]
    world.now += TASK_MS
    world.step([world.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in running])
    world.check()
    suspects = sum(1 for _, ticket in running if ticket.startswith("S"))
    return suspects, len(running) - suspects


def began(world: LaneWorld, incarnation: str, ticket: str) -> bool:
    """Whether a process runs it: a consumer has as many processes as slots, and runs the first messages."""
    mine = [name for parcel, name in world.running() if parcel.incarnation == incarnation]
    return ticket in mine[: world.lane.consumers[incarnation].slots]


@settings(max_examples=15, deadline=None)
@given(consumers=st.integers(1, 12), slots=st.integers(1, 4))
def test_suspects_cost_at_most_their_share_while_others_wait(consumers: int, slots: int) -> None:
    # Given suspects, and other tickets with new messages all the time
    room = consumers * slots
    world = suspected(consumers, slots, healthy=3 * room)
    turns, suspects, others = 0, 0, 0
    while suspects < SUSPECTS:
        turns += 1
        assert turns <= 10 * SUSPECTS, "the suspects starve"
        taken = sum(1 for consumer in world.lane.consumers.values() if consumer.alone is not None)
        assert taken <= max(1, consumers // SUSPECTS_SHARE)
        done, rest = work(world)
        suspects, others = suspects + done, others + rest
        for i in range(rest):
            world.push(f"H{turns}.{i}", "long")
        world.read()
        assert world.lane.ready
    # Then the other tickets had the rest, except one turn
    assert others >= room * ((turns + 6) * (1 - 1 / SUSPECTS_SHARE) - 6)


def test_with_one_consumer_both_go_on() -> None:
    # Each suspect costs two turns of eight: one to empty the consumer, and its own
    world = suspected(1, 2, healthy=80)
    begun = [work(world) for _ in range(32)]
    assert 3 <= sum(suspects for suspects, _ in begun) <= 5
    assert sum(others for _, others in begun) >= 2 * 32 * 0.6


def test_eight_consumers_with_more_suspects_than_consumers_begin_healthy_work_at_once() -> None:
    world = suspected(8, 4, healthy=24)
    assert sum(1 for _, ticket in world.running() if ticket.startswith("H")) == 24


def test_without_other_work_suspects_need_not_wait_for_a_turn() -> None:
    world = suspected(1, 2, healthy=0)
    assert [work(world) for _ in range(SUSPECTS)] == [(1, 0)] * SUSPECTS
