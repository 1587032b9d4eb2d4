"""An error that one message causes in a master or in a worker's main process is the failure of that message alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.waiting import wait_until
from tests.integration.lanes import LaneUnderTest

FAULTY = "tests.apps.faulty"
#: Each of these tickets makes the code raise whenever it is handled. The message is dead, with that reason.
REFUSED = ("bad-parse", "bad-ingest", "bad-plain")


@pytest.mark.slow
@pytest.mark.parametrize("bundle_ms", ["10", "0"], ids=["bundles", "plain"])
def test_an_error_that_one_message_causes_is_its_own_failure(
    bundle_ms: str, nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    lane = LaneUnderTest(nodes, own_server, tmp_path, COUNTER_BUNDLE_MS=bundle_ms, COUNTER_LEASE="6")
    for n in range(6):
        for ticket in ("T0", "T1", "T2", *((*REFUSED, "bad-request") if n < 2 else ())):
            lane.push(ticket, {"n": n})
    worker = nodes.worker("w1", app=FAULTY, arguments=("--concurrency=2", "--without-mingle"), env=lane.env)
    master = nodes.master("m1", app=FAULTY, env=lane.env, ready_text="standing by")

    lane.wait_done(18 + 2 * (len(REFUSED) + 1), timeout_s=90)

    lane.assert_logs(3, 6)
    assert master.running
    assert worker.running
    letters = lane.dead_letters()
    faults = {letter["error"]: letter for letter in letters}
    assert sum("it made a master raise" in letter["reason"] for letter in letters) == 2 * len(REFUSED)
    assert {word for word in (*REFUSED, "bad-request") if any(word in error for error in faults)} == {
        *REFUSED,
        "bad-request",
    }
    assert {letter["attempts"] for letter in letters if "bad-request" in letter["error"]} == {"3"}
    lane.assert_at_rest()

    # An outcome that cannot be settled is skipped. Its message counts as lost and runs again, forever with this defect.
    # Other tickets go on.
    lane.push("bad-settle", {"n": 0})
    wait_until(lambda: lane.count("unknown") > 0, description="an outcome to be skipped", timeout_s=90)
    before = lane.count("done")
    lane.push_many(3, 3, first=6)
    wait_until(lambda: lane.count("done") >= before + 9, description="the lane to go on", timeout_s=90)
    lane.assert_logs(3, 9)
    assert master.running
    assert worker.running
