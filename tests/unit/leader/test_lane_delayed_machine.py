"""The lane with delayed messages under random events: each ticket ends in the order of the places of its messages."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from bridge.routing.policies import PolicyName
from tests.unit.leader.lane_world import LaneWorld
from tests.unit.leader.test_lane_machine import TICKETS, LaneMachine, run_machine

DELAYS = st.sampled_from([1, 2, 50, 150, 3000, 15_000])


class DelayedMachine(LaneMachine):
    """The same events, and messages that are delayed. The ids are of the clock."""

    @initialize(
        policy=st.sampled_from(list(PolicyName)),
        bundle_ms=st.sampled_from([0.0, 10.0]),
        slots=st.integers(1, 3),
    )
    def begin(self, policy: PolicyName, bundle_ms: float, slots: int) -> None:
        self.world = LaneWorld(page=10, sliced=True, clocked=True, policy=policy, bundle_ms=bundle_ms)
        self.world.join("w0@h", slots)

    @rule(ticket=TICKETS, delay_ms=DELAYS, hold=st.booleans(), count=st.integers(1, 5))
    def push_delayed(self, ticket: str, delay_ms: int, hold: bool, count: int) -> None:
        for _ in range(count):
            self.world.push_delayed(ticket, self.world.now + delay_ms, hold=hold)

    @rule(ms=st.sampled_from([1, 2, 50]))
    def a_moment_passes(self, ms: int) -> None:
        self.world.now += ms

    @precondition(lambda self: self.world.store.delayed or self.world.store.holding)
    @rule(data=st.data(), act=st.sampled_from(["cancel", "now", "reschedule"]), delay_ms=DELAYS)
    def order(self, data: st.DataObject, act: str, delay_ms: int) -> None:
        store = self.world.store
        known = sorted({*store.delayed, *store.holding, *list(store.late)[:2]})
        ids = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True))
        due_ms = self.world.now + delay_ms if act == "reschedule" else None
        answer = self.world.order(do="delayed", act=act, ids=ids, due_ms=due_ms)
        assert sorted([*answer["changed"], *(id_ for id_, _ in answer["refused"])]) == sorted(ids)

    @precondition(lambda self: len(list(filter(self.world.store.readable, self.world.store.dead))) > 1)
    @rule(data=st.data())
    def some_are_replayed_before_a_new_leader_has_read_the_others(self, data: st.DataObject) -> None:
        world = self.world
        letters = [id_ for id_ in world.store.dead if world.store.readable(id_)]
        before = data.draw(st.lists(st.sampled_from(letters), min_size=1, max_size=len(letters) - 1, unique=True))
        for id_ in letters:
            world.failures.pop(id_, None)
        world.order(do="replay", letters=before)
        with patch.object(world, "page", 2):
            world.rebuild()
            world.order(do="replay", letters=[id_ for id_ in letters if id_ in world.store.dead])


@pytest.mark.parametrize("examples", [25, pytest.param(1000, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_order_and_accounts_hold_with_delayed_messages(examples: int) -> None:
    run_machine(DelayedMachine, examples)
