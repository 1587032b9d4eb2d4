"""Consumers that can run different tasks, under random events: none is sent a task that it cannot run, and no message
waits longer than needed.
"""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from bridge.protocol.outcomes import Kind
from bridge.routing.policies import PolicyName
from tests.unit.leader.lane_world import TASKS, LaneWorld
from tests.unit.leader.test_lane_machine import LaneMachine, run_machine

#: Sets of tasks that consumers can run. Equal sets are one object, as the leader makes them.
SETS = [frozenset(names) for names in (TASKS, ["short"], ["long", "alone"], ["short", "middle"], ["nothing"], [])]


class EligibilityMachine(LaneMachine):
    """The lane machine, with consumers that can run different tasks. `LaneWorld.advance` checks each dispatch."""

    @initialize(
        policy=st.sampled_from(list(PolicyName)),
        bundle_ms=st.sampled_from([0.0, 10.0]),
        tasks=st.sampled_from(SETS),
    )
    def begin(self, policy: PolicyName, bundle_ms: float, tasks: frozenset[str]) -> None:
        self.world = LaneWorld(policy=policy, bundle_ms=bundle_ms)
        self.world.join("w0@h", 2, tasks)

    @rule(slots=st.integers(1, 3), tasks=st.sampled_from(SETS))
    def join(self, slots: int, tasks: frozenset[str]) -> None:
        if len(self.world.registered) < 5:
            self.world.join(f"w{self.world._lives}@h", slots, tasks)

    @precondition(lambda self: self.world.registered)
    @rule(data=st.data(), tasks=st.sampled_from(SETS))
    def consumes_other_queues(self, data: st.DataObject, tasks: frozenset[str]) -> None:
        world = self.world
        incarnation = data.draw(st.sampled_from(sorted(world.registered)))
        world.tasks[incarnation] = tasks
        consumer = world.lane.consumers[incarnation]
        consumer.tasks = tasks
        world.lane.free_ready(consumer)
        world.lane.stranded.fit()
        world.step()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.join("last@h", 2, SETS[0])
        super().teardown()


@pytest.mark.parametrize("examples", [60, pytest.param(1000, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_no_consumer_gets_a_task_that_it_cannot_run_and_all_messages_end(
    monkeypatch: pytest.MonkeyPatch, examples: int
) -> None:
    monkeypatch.setattr("bridge.leader.stream.pending.PAGE", 10)
    run_machine(EligibilityMachine, examples)


def test_messages_that_no_consumer_can_run_cost_no_memory_and_delay_no_ticket() -> None:
    world = LaneWorld(window=100)
    world.join("w@h", 2, frozenset({"short"}))
    for number in range(500):
        world.push(f"L{number}", "long")
    world.push("T", "short", count=3)
    for _ in range(6):
        world.read(100)
    assert world.lane.held == 3
    assert len(world.lane.stranded.waiting["long"].tickets) == 500
    while running := world.running():
        world.step([world.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in running])
    assert len(world.store.done) == 3

    world.join("v@h", 2, frozenset({"long"}))
    while running := world.running():
        world.step([world.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in running])
        world.check()
    assert len(world.store.done) == 503


def test_a_run_ends_before_a_message_that_its_consumer_cannot_run() -> None:
    # Given two short tasks that were measured, and a consumer that can run one of them
    world = LaneWorld()
    first = world.join("all@h", 1)
    for task in ("short", "alone", "limited"):
        world.push(task, task)
    world.read()
    while running := world.running():
        world.step([world.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in running])
    world.leave(first)
    world.join("some@h", 1, frozenset({"short"}))

    # When a ticket has a long run of both
    world.push("T", "short", count=5)
    world.push("T", "limited", count=5)
    world.read()

    # Then only messages that the consumer can run are sent there: `LaneWorld.advance` has checked it
    [(parcel, ticket)] = world.running()
    assert len(parcel.runs[ticket][1]) == 5
