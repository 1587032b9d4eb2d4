"""Requests of the leader to a worker through its queue: a probe runs no task, and unstarted messages come back once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bridge.protocol.envelope import OPENING, Envelopes
from bridge.protocol.names import WorkerRequest
from bridge.protocol.outcomes import Kind, Outcome, decode
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import MasterNode, NodeYard, WorkerNode
from bridge.testing.waiting import holds_for, wait_until
from tests.apps.counter import app
from tests.integration.lanes import WITH_AND_WITHOUT_BUNDLES, LaneUnderTest

#: Other pools receive nothing while they have no room: unstarted messages are still in the queue, where the leader
#: takes them back itself.
POOLS = ["prefork", "threads"]
#: For tests of what a worker's main process does with a request, which does not depend on the pool.
MOSTLY_PREFORK = ["prefork", pytest.param("threads", marks=pytest.mark.long)]


@pytest.fixture(params=WITH_AND_WITHOUT_BUNDLES)
def lane(request: pytest.FixtureRequest, nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> LaneUnderTest:
    return LaneUnderTest(nodes, own_server, tmp_path, COUNTER_BUNDLE_MS=request.param, COUNTER_LEASE="10")


def say(lane: LaneUnderTest, worker: WorkerNode, request: WorkerRequest, incarnation: str | None = None) -> None:
    """Pushes a request as the leader does."""
    found: Any = lane.redis.hget(lane.keys.consumers, worker.hostname())
    addressee = incarnation or json.loads(found)["incarnation"]
    queue = lane.keys.queue(worker.hostname())
    lane.redis.lpush(queue, OPENING.encode() + b"1" + Envelopes(app).request(addressee, queue, request))
    wait_until(lambda: lane.redis.llen(queue) == 0, description="the request to leave the queue")


def outcomes(lane: LaneUnderTest) -> list[Outcome]:
    """All outcomes. Without a master they are not trimmed."""
    found: Any = lane.redis.xrange(lane.keys.outcomes)
    return [outcome for _, fields in found if "o" in fields for outcome in decode(fields["o"].encode())]


def open_gate(lane: LaneUnderTest) -> None:
    """Lets the long task end."""
    (lane.ledger / "open").touch()


def behind_a_long_task(lane: LaneUnderTest, pool: str) -> tuple[WorkerNode, MasterNode, str]:
    """A worker that runs one long task and has received short ones behind it, and a master that is dead."""
    master = lane.master("m1")
    worker = lane.worker("w1", "--concurrency=1", f"--pool={pool}")
    lane.wait_consumers(1)
    long = lane.push("long", {"n": 0, "gate": "open"}, "counter.held")
    wait_until(lambda: any(lane.ledger.iterdir()), description="the long task to start")
    for ticket in "ABC":
        lane.push(ticket, {"n": 0})

    def in_flight() -> list[Any]:
        records: Any = lane.redis.hvals(lane.keys.tickets)
        return [record for record in map(json.loads, records) if record[0] > 0]

    wait_until(lambda: len(in_flight()) > 1, description="something to be in flight behind it")
    queue = lane.keys.queue(worker.hostname())
    wait_until(lambda: lane.redis.llen(queue) == 0, description="the worker to receive it")
    master.kill_main()
    return worker, master, long


@pytest.mark.parametrize("pool", POOLS)
def test_unstarted_messages_come_back_at_once_and_running_ones_go_on(lane: LaneUnderTest, pool: str) -> None:
    worker, master, long = behind_a_long_task(lane, pool)
    say(lane, worker, WorkerRequest.GIVE_BACK)

    wait_until(lambda: outcomes(lane), description="something to come back")

    back = outcomes(lane)
    assert {outcome.kind for outcome in back} == {Kind.RETURNED}
    assert long not in {outcome.message_id for outcome in back}
    # And none of them starts when the long task is over
    open_gate(lane)
    wait_until(
        lambda: [o.kind for o in outcomes(lane) if o.message_id == long] == [Kind.DONE],
        description="the long task to end",
    )
    holds_for(
        lambda: {o.kind for o in outcomes(lane) if o.message_id != long} == {Kind.RETURNED},
        description="nothing to run that was given back",
        duration_s=0.3,
    )
    # Then the leader comes back, and everything is done once
    master.start()
    lane.wait_done(4)
    assert [lane.log(ticket) for ticket in ("long", *"ABC")] == [[0]] * 4
    lane.assert_no_overlap()
    lane.assert_at_rest()


@pytest.mark.parametrize("pool", MOSTLY_PREFORK)
def test_a_probe_is_no_task_and_moves_nothing(lane: LaneUnderTest, pool: str) -> None:
    worker, master, _ = behind_a_long_task(lane, pool)
    say(lane, worker, WorkerRequest.PROBE)
    holds_for(
        lambda: Kind.RETURNED not in {outcome.kind for outcome in outcomes(lane)},
        description="nothing to come back",
        duration_s=0.5,
    )
    open_gate(lane)
    master.start()
    lane.wait_done(4)
    assert "ERROR/" not in worker.logs()


@pytest.mark.parametrize("pool", MOSTLY_PREFORK)
def test_a_request_to_another_incarnation_is_ignored(lane: LaneUnderTest, pool: str) -> None:
    worker, master, _ = behind_a_long_task(lane, pool)
    say(lane, worker, WorkerRequest.GIVE_BACK, "another-life")
    holds_for(
        lambda: Kind.RETURNED not in {outcome.kind for outcome in outcomes(lane)},
        description="nothing to come back",
        duration_s=0.5,
    )
    open_gate(lane)
    master.start()
    lane.wait_done(4)


@pytest.mark.parametrize("pool", MOSTLY_PREFORK)
def test_a_message_sent_after_the_recall_runs(lane: LaneUnderTest, pool: str) -> None:
    worker, master, _ = behind_a_long_task(lane, pool)
    say(lane, worker, WorkerRequest.GIVE_BACK)
    wait_until(lambda: outcomes(lane), description="something to come back")
    master.start()
    open_gate(lane)
    for n in range(5):
        lane.push("D", {"n": n})
    lane.wait_done(9)
    assert lane.log("D") == [0, 1, 2, 3, 4]
