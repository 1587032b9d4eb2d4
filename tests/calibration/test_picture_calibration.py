"""Mutations of the leader's decisions between tickets, each caught by a unit test, in this process.

Whom a lane serves first shows in no ledger and no history: nothing is lost or reordered. So no scenario with real
processes can tell, and tests of the picture do.
"""

from __future__ import annotations

import importlib
import inspect
import types

import pytest

from bridge.routing.policies import PolicyName
from tests.calibration.mutation import Edit, Mutation, mutated

COUNTED = "bridge/leader/picture/fresh.py"
READY = "bridge/leader/picture/ready.py"
ASSIGNMENT = "bridge/leader/picture/assignment.py"
CAPACITY = "bridge/leader/picture/capacity.py"
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
        "a lane that hurries gives as much ahead as ever",
        "hurry",
        FRESH,
        ("test_while_fresh_messages_come_a_worker_has_little_ahead_and_then_as_much_as_before",),
        (Edit(CAPACITY, "self._hurried = lane.fresh.hurries", "self._hurried = False"),),
    ),
]


def _put(monkeypatch: pytest.MonkeyPatch, mutation: Mutation) -> None:
    """Puts the methods that the mutation changes into the place of the product's."""
    for file, text in mutated(mutation).items():
        name = file.removesuffix(".py").replace("/", ".")
        copy = types.ModuleType(name)
        exec(compile(text, file, "exec"), copy.__dict__)
        for class_name, cls in vars(importlib.import_module(name)).items():
            if isinstance(cls, type) and cls.__module__ == name:
                for method, ours in list(vars(cls).items()):
                    changed = vars(getattr(copy, class_name)).get(method)
                    if _code(changed) != _code(ours):
                        monkeypatch.setattr(cls, method, changed)


def _code(method: object) -> types.CodeType | None:
    return getattr(getattr(method, "__func__", method), "__code__", None)


@pytest.mark.parametrize("mutation", [pytest.param(one, id=one.name) for one in MUTATIONS])
def test_the_mutation_of_a_decision_is_caught(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    [name] = mutation.caught_by
    test = getattr(importlib.import_module(mutation.scenario), name)
    arguments = {"policy": PolicyName.LEAST_LOADED} if "policy" in inspect.signature(test).parameters else {}
    test(**arguments)
    _put(monkeypatch, mutation)
    with pytest.raises(AssertionError):
        test(**arguments)
