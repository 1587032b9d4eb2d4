"""Workers whose server is away when they start, or when they are asked to stop."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from bridge.routing.keys import LaneKeys
from bridge.routing.layouts import claim_layout
from bridge.stack.embedded import EmbeddedServer
from bridge.stack.ports import HOST
from bridge.testing.nodes.node import NodeYard, WorkerNode, broker_environment
from bridge.testing.waiting import wait_until
from tests.integration.lanes import QUICK, LaneUnderTest

POOLS = ("prefork", "solo", "threads", "gevent")
LEASE_S = 4
TICKETS = 12
EACH = 25
WAITING = "Redis is away, waiting for it"


@pytest.mark.parametrize("fault", ["frozen", pytest.param("killed", marks=pytest.mark.long)])
def test_a_worker_of_any_pool_ends_soon_although_its_server_is_away(
    fault: str, nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    lane = LaneUnderTest(nodes, own_server, tmp_path, COUNTER_LEASE=str(LEASE_S))
    lane.master("m1")
    workers = [lane.worker(f"w-{pool}", "--concurrency=2", f"--pool={pool}", wait=False) for pool in POOLS]
    for worker in workers:
        worker.wait_ready()
    lane.wait_consumers(len(POOLS))
    lane.push_many(TICKETS, EACH, ms=20)
    wait_until(lambda: lane.count("done") > TICKETS, description="the workers to work")

    if fault == "frozen":
        own_server.pause()
    else:
        own_server.kill()
    try:
        asked = time.monotonic()
        for worker in workers:
            worker.send(signal.SIGTERM)
        took = {}
        for worker in workers:
            assert worker.wait(timeout_s=180) == 0, worker.log_tail()
            took[worker.name()] = round(time.monotonic() - asked, 1)
        print(f"{fault}: {took}")
    finally:
        if fault == "frozen":
            own_server.resume()
        else:
            own_server.start()

    # And no message is lost, or runs twice at once
    lane.worker("w-next")
    lane.wait_done(TICKETS * EACH)
    lane.assert_logs(TICKETS, EACH)
    lane.assert_no_overlap()
    lane.assert_at_rest()


def early_worker(nodes: NodeYard, url: str, **more: str) -> WorkerNode:
    """A worker that waits for its server, which does not run."""
    conf = json.dumps({"broker_connection_retry_on_startup": True})
    env = {**broker_environment(url), "ANYWHERE_CONF": conf, **more}
    worker = nodes.worker("early", app="tests.apps.anywhere", arguments=("-c", "1", *QUICK), env=env, wait=False)
    worker.wait_for_log(WAITING, timeout=30)
    return worker


def test_a_worker_that_starts_before_its_server_waits_for_it_and_says_so_once(
    nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    lane = LaneUnderTest(nodes, own_server, tmp_path)
    own_server.stop()
    worker = early_worker(nodes, own_server.url, COUNTER_LEASE="8")

    own_server.start()

    worker.wait_ready()
    log = worker.logs()
    # What the worker says of the server later is not counted: a paused machine may miss an answer.
    assert (log.count(WAITING), "Redis is back" in log, log.count("Cannot connect")) == (1, True, 0), log
    assert "Traceback" not in log
    lane.master("m1")
    lane.push("T1", {"n": 7})
    lane.wait_done(1)
    assert lane.log("T1") == [7]


def test_a_server_that_was_waited_for_and_refuses_the_login_ends_the_worker(
    nodes: NodeYard, own_server: EmbeddedServer
) -> None:
    own_server.stop()
    worker = early_worker(nodes, f"redis://nobody:sesame@{HOST}:{own_server.port}/0")

    own_server.start()

    assert worker.wait() == 1
    log = worker.logs()
    assert log.count("refuses the login") == 1
    assert "sesame" not in log
    assert "Traceback" not in log
    wait_until(lambda: not list(worker.survivors()), description="its pool to end")


def test_a_worker_that_waited_for_the_server_of_a_split_stream_starts_again_when_it_is_set_otherwise(
    nodes: NodeYard, own_server: EmbeddedServer
) -> None:
    with own_server.client() as client:
        claim_layout(client, "ticket_stream", 2)
    own_server.stop()
    worker = early_worker(nodes, own_server.url)
    own_server.start()
    worker.wait_for_log("starting again")
    consumers = LaneKeys("ticket_stream:p1", "concurrency_stream_group").consumers
    with own_server.client() as client:
        wait_until(lambda: client.exists(consumers), description="it to serve the partitions", timeout_s=90)
    assert worker.terminate() == 0


def test_a_worker_that_waits_for_its_server_can_be_asked_to_stop(nodes: NodeYard, own_server: EmbeddedServer) -> None:
    own_server.stop()
    worker = early_worker(nodes, own_server.url)
    assert worker.terminate() == 0
    assert "Traceback" not in worker.logs()
