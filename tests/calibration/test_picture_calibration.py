"""Mutations of the leader's decisions between tickets, each caught by a unit test, in this process.

Whom a lane serves first shows in no ledger and no history: nothing is lost or reordered. So no scenario with real
processes can tell, and tests of the picture do.
"""

from __future__ import annotations

import importlib
import inspect

import pytest

from bridge.routing.policies import PolicyName
from tests.calibration.in_process import put
from tests.calibration.mutation import Edit, Mutation

COUNTED = "bridge/leader/picture/fresh.py"
READY = "bridge/leader/picture/ready.py"
ASSIGNMENT = "bridge/leader/picture/assignment.py"
CAPACITY = "bridge/leader/picture/capacity.py"
PLANNER = "bridge/leader/picture/planner.py"
STEPS = "bridge/leader/step/steps.py"
FRESH, TOGETHER = "tests.unit.leader.test_fresh", "tests.unit.leader.test_due_together"

MUTATIONS = [
    Mutation(
        "a fresh message waits behind the whole backlog",
        "fairness",
        FRESH,
        ("test_fresh_messages_wait_for_one_ticket_of_a_backlog",),
        (Edit(READY, "elif fresh and self.fresh.are_few:", "elif False:"),),
    ),
    Mutation(
        "a message that came while fresh ones were not few waits behind the whole backlog",
        "fairness",
        FRESH,
        ("test_one_that_came_while_they_were_not_few_passes_the_backlog_as_soon_as_they_are",),
        (Edit(READY, "            if self._fresh_behind:\n                self._let_pass()\n", "            pass\n"),),
    ),
    Mutation(
        "fresh messages always go first",
        "fairness",
        FRESH,
        ("test_a_backlog_goes_on_beside_fresh_messages_that_never_end",),
        (
            Edit(COUNTED, "self.are_few = 0 < came * FEW <= sent + self.sent", "self.are_few = came > 0"),
            Edit(READY, "self._last_fresh = max(self._served, self._last_fresh) + 1", "1"),
        ),
    ),
    Mutation(
        "others wait for all messages that are due",
        "fairness",
        TOGETHER,
        ("test_a_message_that_comes_meanwhile_waits_for_one_of_them",),
        (Edit(READY, "takes_turns = late or self.late_ready or self.fresh.are_few", "takes_turns = False"),),
    ),
    Mutation(
        "tickets that come pass those that wait for their worker",
        "fairness",
        FRESH,
        ("test_a_ticket_that_waits_for_its_worker_is_not_passed_by_one_that_came_later",),
        (Edit(ASSIGNMENT, "return waiting if waiting and waiting[0].turn < ready[0].turn else ready", "return ready"),),
    ),
    Mutation(
        "a lane that hurries sends bundles as large as ever",
        "hurry",
        FRESH,
        ("test_while_fresh_messages_come_bundles_are_smaller_and_then_as_large_as_before",),
        (Edit(PLANNER, "bundle_ms /= min(consumer.stretch, HURRIED)", "pass"),),
    ),
    Mutation(
        "a turn of a lane that hurries settles as much as ever",
        "hurry",
        FRESH,
        ("test_while_fresh_messages_are_few_a_turn_settles_few_outcomes",),
        (Edit(STEPS, "self._outcomes_each = max(1.0, (len(batch.acknowledged) - before) / len(entries))", "pass"),),
    ),
    Mutation(
        "a fresh message waits for room",
        "hurry",
        FRESH,
        ("test_a_fresh_message_needs_no_room_and_goes_before_what_its_worker_has",),
        (Edit(CAPACITY, "(best is None or consumer.load < best.load)", "False"),),
    ),
    Mutation(
        "a fresh message runs after what its worker has",
        "hurry",
        FRESH,
        ("test_a_fresh_message_needs_no_room_and_goes_before_what_its_worker_has",),
        (
            Edit(
                PLANNER,
                "self._send(consumer, some, batch, dispatched, at_ms, first=True)",
                "self._send(consumer, some, batch, dispatched, at_ms)",
            ),
        ),
    ),
    Mutation(
        "a fresh message is sent beyond the room behind long tasks",
        "hurry",
        FRESH,
        ("test_a_fresh_message_waits_for_room_behind_long_tasks",),
        (Edit(CAPACITY, "and self._has_short(consumer)", ""),),
    ),
]


@pytest.mark.parametrize("mutation", [pytest.param(one, id=one.name) for one in MUTATIONS])
def test_the_mutation_of_a_decision_is_caught(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    [name] = mutation.caught_by
    test = getattr(importlib.import_module(mutation.scenario), name)
    arguments = {"policy": PolicyName.LEAST_LOADED} if "policy" in inspect.signature(test).parameters else {}
    test(**arguments)
    put(monkeypatch, mutation)
    with pytest.raises(AssertionError):
        test(**arguments)
