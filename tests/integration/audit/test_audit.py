"""The audit of a lane of real processes finds nothing as long as they keep the promise, whatever faults they meet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bridge.audit.audit import Audit, AuditVerdict, audit
from bridge.operate.orders import give
from bridge.protocol.orders import Replay
from bridge.routing.history import Delivery, What
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard, WorkerNode
from bridge.testing.waiting import wait_until
from tests.integration.lanes import WITH_AND_WITHOUT_BUNDLES, LaneUnderTest


@pytest.fixture(params=WITH_AND_WITHOUT_BUNDLES)
def lane(request: pytest.FixtureRequest, nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> LaneUnderTest:
    return LaneUnderTest(nodes, own_server, tmp_path, COUNTER_BUNDLE_MS=request.param)


def audited(lane: LaneUnderTest, *, since: str | None = "0") -> AuditVerdict:
    with lane.server.client(protocol=2) as client:
        return audit(client, lane.keys, since=since)


def test_failures_a_killed_worker_and_dead_letters_are_explained_by_the_history(lane: LaneUnderTest) -> None:
    """Audited again and again while all that happens. No audit reports a false violation."""
    # The worker may be killed while it runs any attempt. That attempt counts, so there are some to spare.
    lane.env["COUNTER_MAX_ATTEMPTS"] = "5"
    lane.push_many(8, 6, ms=4)
    for ticket in range(4):
        lane.push(f"F{ticket}", {"n": 0, "until": 3}, "counter.flaky")
        lane.push(f"D{ticket}", {"n": 0, "until": 99}, "counter.flaky")
        lane.push(f"K{ticket}", {"n": 0, "until": 2}, "counter.dies")
    for n in range(3):
        # No ticket: refused.
        lane.redis.xadd(lane.keys.stream, {"payload": json.dumps({"n": n})})
    total = 8 * 30 + 4 * 3 + 3
    lane.master("m1", wait=False)
    lane.worker("w2", wait=False)
    worker = lane.worker("w1")
    looks = 0
    killed = False
    while (ended := lane.count("done") + lane.count("dead")) < total:
        verdict = audited(lane)
        assert verdict.examples == ()
        looks += 1
        if looks < 5:
            # After a look, so that something is left to do at the next one, however fast the machine is.
            lane.push_many(8, 6, ms=4, first=6 * looks)
        lane.wait_done(min(ended + 10, total))
        if not killed and lane.count("done") > 50:
            worker.kill_main()
            killed = True
    lane.wait_done(total)
    assert killed
    assert looks > 3

    verdict = audited(lane)

    assert verdict.examples == ()
    assert verdict.ok
    assert verdict.coverage.complete
    assert verdict.undone == 0
    assert verdict.rows[What.DONE] == 8 * 30 + 8
    assert verdict.rows[What.DEAD] == 4
    assert verdict.rows[What.REFUSED] == 3
    # The worker may be killed during one failing task in each of its two processes.
    assert verdict.rows[What.FAILED] >= 4 * 2 + 4 * 4 - 2
    assert verdict.rows[What.LOST] >= 4
    assert verdict.rows[What.FAILED] + verdict.rows[What.LOST] >= 4 * 2 + 4 * 4 + 4
    assert verdict.repeats >= 4 * 2 + 4 * 4 + 4
    lane.assert_at_rest()


def test_an_acknowledgement_without_an_outcome_is_found(lane: LaneUnderTest) -> None:
    """Unhandled messages are acknowledged by hand, so the pending list does not show them."""
    lane.master("m1", wait=False)
    lane.worker("w1")
    lane.push_many(2, 3)
    lane.wait_done(6)
    lane.nodes.close()
    lost = lane.push("T0", {"n": 3})
    lane.redis.xreadgroup(lane.keys.group, "master", {lane.keys.stream: ">"})
    assert audited(lane).ok, "pending, and nobody's fault"
    lane.redis.xack(lane.keys.stream, lane.keys.group, lost)

    verdict = audited(lane)

    assert [(f.check.value, f.ticket, f.message_id) for f in verdict.examples] == [("lost", "T0", lost)]
    assert not verdict.ok


def test_a_done_message_that_is_made_pending_again_is_found(lane: LaneUnderTest) -> None:
    lane.env["COUNTER_RETENTION"] = "null"
    lane.master("m1", wait=False)
    lane.worker("w1")
    lane.push_many(2, 3)
    lane.wait_done(6)
    lane.nodes.close()
    done = str(lane.redis.xrange(lane.keys.stream, count=1)[0][0])  # type: ignore[index]
    lane.redis.execute_command("XCLAIM", lane.keys.stream, lane.keys.group, "x", 0, done, "FORCE", "JUSTID")

    verdict = audited(lane)

    assert [(f.check.value, f.message_id) for f in verdict.examples] == [("disagreeing", done)]


def test_an_audit_can_go_on_with_what_comes(lane: LaneUnderTest) -> None:
    lane.master("m1", wait=False)
    lane.worker("w1")
    rows: list[Delivery] = []
    with lane.server.client(protocol=2) as client:
        following = Audit(client, lane.keys, since="0", on_rows=rows.extend)
        for round_ in range(3):
            lane.push_many(5, 10, first=10 * round_)
            while sum(row.what is What.DONE for row in rows) < 50 * (round_ + 1):
                following.wait(500)
                following.compare()
        verdict = following.result()
    assert verdict.ok
    assert verdict.rows[What.DONE] == 150
    # On a busy machine, a slow bundle gives its unstarted messages back, and a lease may end.
    for row in (row for row in rows if row.what is What.DONE):
        enqueued_us = int(row.message_id.partition("-")[0]) * 1000
        assert enqueued_us <= row.dispatched_ms * 1000 + 999
        assert row.dispatched_ms * 1000 <= row.started_us
        assert row.started_us < row.finished_us <= row.written_ms * 1000 + 999


def push_held(lane: LaneUnderTest, n: int, gate: str) -> None:
    """A message of each ticket that waits at the gate."""
    for ticket in range(6):
        lane.push(f"T{ticket}", {"n": n, "gate": gate}, "counter.held")


def holds_one(lane: LaneUnderTest, worker: WorkerNode) -> bool:
    """Whether a message waits at the gate in the worker."""
    held = {path.stem.rpartition("-")[2] for path in lane.ledger.glob("held-*")}
    return any(str(child.pid) in held for child in worker.children())


def test_replays_a_frozen_worker_and_a_destroyed_group_are_explained(lane: LaneUnderTest) -> None:
    lane.master("m1")
    frozen = lane.worker("w1")
    lane.push_many(6, 20, ms=2)
    lane.push("D", {"n": 0, "until": 99}, "counter.flaky")
    lane.push("D", {"n": 1, "until": 1}, "counter.flaky")
    lane.wait_done(122)
    with lane.server.client(protocol=2) as client:
        [(letter, _)] = client.xrange(lane.keys.dead)
        give(client, lane.keys, Replay([letter.decode()]))
    lane.wait_done(123)
    assert audited(lane).ok

    lane.worker("w2")
    lane.push_many(6, 10, ms=20, first=20)
    push_held(lane, 30, "first")
    lane.push_many(6, 19, ms=20, first=31)
    wait_until(lambda: holds_one(lane, frozen), description="the worker to run a message when it is frozen")
    frozen.pause()
    (lane.ledger / "first").touch()
    lane.wait_done(123 + 180)
    frozen.resume()
    assert audited(lane).examples == ()

    lane.push_many(6, 20, ms=10, first=50)
    push_held(lane, 70, "second")
    lane.wait_done(320)
    # Some messages are undone.
    lane.redis.xgroup_destroy(lane.keys.stream, lane.keys.group)
    (lane.ledger / "second").touch()
    while (ended := lane.count("done") + lane.count("dead")) < 123 + 306:
        assert audited(lane).examples == ()
        lane.wait_done(min(ended + 10, 123 + 306))
    verdict = audited(lane)
    assert verdict.examples == ()
    assert verdict.rows[What.REPLAYED] == 1
    assert verdict.rows[What.DEAD] == 2
    assert verdict.rows[What.LOST] >= 1
    lane.assert_at_rest()
