"""Live workers that take nothing from their queues: their tickets move to others, and later they get work again."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.operate.orders import give
from bridge.protocol.orders import Drain, Resume
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard, broker_environment
from bridge.testing.nodes.process import python_module
from bridge.testing.waiting import wait_until
from tests.integration.lanes import APP, LaneUnderTest


@pytest.fixture
def lane(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> LaneUnderTest:
    return LaneUnderTest(nodes, own_server, tmp_path)


def test_a_worker_that_lives_and_does_not_consume_loses_its_tickets_and_comes_back(lane: LaneUnderTest) -> None:
    lane.master("m1")
    deaf, other = lane.worker("w1", "--concurrency=1", wait=False), lane.worker("w2", "--concurrency=1", wait=False)
    deaf.wait_ready()
    other.wait_ready()
    lane.wait_consumers(2)
    queue = lane.keys.queue(deaf.hostname())

    def control(command: str) -> None:
        done = lane.nodes.process(
            f"control-{command}",
            python_module("celery", "-A", APP, "control", "--timeout", "10", "-d", deaf.hostname(), command, queue),
            env={**lane.env, **broker_environment(lane.server.url)},
            wait=False,
        )
        assert done.wait() == 0, done.logs()

    control("cancel_consumer")
    lane.push_many(6, 5)

    lane.wait_done(30)
    lane.assert_logs(6, 5)
    assert lane.count("stalled") == 1
    assert deaf.running
    lane.assert_no_overlap()
    control("add_consumer")
    wait_until(lambda: lane.redis.llen(queue) == 0, description="the probe to be taken")
    lane.push_many(6, 1, first=5, gate="again")
    wait_until(lambda: lane.in_flight(deaf.hostname()), description="the worker to have messages again")
    lane.open("again")
    lane.wait_done(36)
    lane.assert_logs(6, 6)
    lane.assert_at_rest()


def test_the_next_leader_takes_back_messages_from_a_stalled_worker(lane: LaneUnderTest) -> None:
    # Given a worker in a long task, with more messages in its queue, and another worker that was drained until now
    master = lane.master("m1")
    deaf, other = lane.worker("w1", "--pool=solo", wait=False), lane.worker("w2", "--pool=solo", wait=False)
    deaf.wait_ready()
    other.wait_ready()
    lane.wait_known(master, deaf, other)
    assert give(lane.server.client(), lane.keys, Drain(other.hostname()))["ok"]
    lane.push("long", {"n": 0, "gate": "open"}, "counter.held")
    wait_until(lambda: lane.executions() == 1, description="the long task to start")
    # What was sent in the server's first moments is not known to be sent by the server as it is
    server = lane.server.client()
    wait_until(lambda: server.info("server")["uptime_in_seconds"] > 3, description="the server to be up for a while")
    for n in range(4):
        lane.push(f"S{n}", {"n": 0})
    queue = lane.keys.queue(deaf.hostname())
    wait_until(lambda: lane.redis.llen(queue) > 0, description="the queue to fill")
    # When another leader takes over, which sent none of them
    master.kill_main()
    master.wait()
    assert lane.count("stalled") == 0
    master.start()
    assert give(lane.server.client(), lane.keys, Resume(other.hostname()))["ok"]
    # Then they are done elsewhere while the long task still runs
    wait_until(lambda: lane.count("done") >= 4, description="the short ones to be done elsewhere")
    assert lane.log("long") == []
    (lane.ledger / "open").touch()
    lane.wait_done(5)
    assert lane.log("long") == [0]
    lane.assert_no_overlap()
    lane.assert_at_rest()


def test_a_solo_worker_with_a_long_task_delays_no_other_ticket(lane: LaneUnderTest) -> None:
    lane.master("m1")
    lane.worker("w1", "--pool=solo")
    lane.wait_consumers(1)
    lane.push("long", {"n": 0, "gate": "open"}, "counter.held")
    wait_until(lambda: lane.executions() == 1, description="the long task to start")
    for n in range(4):
        lane.push(f"S{n}", {"n": 0})
    lane.worker("w2", "--pool=solo")

    wait_until(lambda: lane.count("done") == 4, description="the short ones to be done elsewhere")
    (lane.ledger / "open").touch()

    lane.wait_done(5)
    assert lane.log("long") == [0]
    lane.assert_no_overlap()
    lane.assert_at_rest()
