"""Mutations of the writes of a bundle, each caught by a unit test, in this process.

With real processes, a reply that nobody waited for is there in most cases all the same. So the scenarios with real
processes catch few of these.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.calibration.in_process import put
from tests.calibration.mutation import Edit, Mutation
from tests.unit.worker import test_write_behind
from tests.unit.worker.faulty_server import Fault

BUNDLES = "bridge/worker/pool/bundles.py"
BEHIND = "bridge/worker/pool/write_behind.py"
WRITER = "bridge/consumer/writer.py"

ALONE = "test_a_message_waits_for_the_write_of_the_one_before_it"
PLAIN = "test_outcomes_without_effects_reach_a_server_that_failed"
HALVES = "test_tickets_of_the_other_half_run_while_a_write_is_under_way"
HALF_WAY = "test_a_bundle_that_ends_half_way_leaves_no_reply_to_the_next_one"
REFUSED = "test_a_ticket_that_was_refused_does_not_go_on_and_others_do"
AFTER_LEASE = "test_after_the_lease_a_write_whose_reply_is_lost_is_void"

#: Test -> what it is called with.
ARGUMENTS: dict[str, dict[str, Any]] = {
    ALONE: {},
    HALVES: {},
    PLAIN: {"fault": Fault.LOST_ON_THE_WAY},
    HALF_WAY: {"way": "a task ends its process"},
    REFUSED: {"fate": "stale"},
    AFTER_LEASE: {"fault": Fault.LOST_ON_THE_WAY},
}

MUTATIONS = [
    Mutation(
        "a message starts while the write of the one before it is under way",
        "I2",
        "writes",
        (ALONE,),
        (Edit(BUNDLES, "            if delivery.ticket in writes.tickets:\n", "            if False:\n"),),
    ),
    Mutation(
        "a bundle ends before its last reply",
        "I3",
        "writes",
        (HALVES,),
        (Edit(BUNDLES, "    writes.end()\n    shared.note_running", "    shared.note_running"),),
    ),
    Mutation(
        "a write begins before the reply of the last one",
        "I2",
        "writes",
        (HALVES,),
        (Edit(BEHIND, "        self.end()\n        written =", "        written ="),),
    ),
    Mutation(
        "a write whose reply is lost is taken for a success",
        "promise 3",
        "writes",
        (PLAIN,),
        (
            Edit(
                WRITER,
                "                writer._lost(wire)\n                failed = exc\n",
                "                writer._lost(wire)\n                return True\n",
            ),
        ),
    ),
    Mutation(
        "a write whose reply is lost is sent again after the lease",
        "I5",
        "writes",
        (AFTER_LEASE,),
        (Edit(WRITER, "if not self._deadline.holds(incarnation):", "if False:"),),
    ),
    Mutation(
        "a reply that nobody read is taken for the next one",
        "I3",
        "writes",
        (HALF_WAY,),
        (
            Edit(
                WRITER,
                "            wire.close()\n\n    def _got",
                "            self._writer._idle.append(wire)\n\n    def _got",
            ),
        ),
    ),
    Mutation(
        "a ticket goes on after its effects were refused under way",
        "I2",
        "writes",
        (REFUSED,),
        (Edit(BEHIND, "                    self.refused.add(one.ticket)\n", ""),),
    ),
]


@pytest.mark.parametrize("mutation", [pytest.param(one, id=one.name) for one in MUTATIONS])
def test_the_mutation_of_a_write_is_caught(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    [name] = mutation.caught_by
    test = getattr(test_write_behind, name)
    with test_write_behind.pool_before_a_server() as pool:
        test(pool=pool, **ARGUMENTS[name])
        put(monkeypatch, mutation)
        with pytest.raises(AssertionError):
            test(pool=pool, **ARGUMENTS[name])
