"""A cold shutdown of a worker: the messages that it cuts off run again, are not charged, and none dies."""

from __future__ import annotations

import json
import os
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard, WorkerNode
from bridge.testing.waiting import wait_until
from tests.integration.lanes import LaneUnderTest

GATE = "gate"


# Not the default of 10 ms: on a busy machine a message may take as long, and would be alone in its bundle.
@pytest.fixture(params=[pytest.param("2000", id="bundles"), pytest.param("0", id="plain", marks=pytest.mark.long)])
def lane(request: pytest.FixtureRequest, nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> LaneUnderTest:
    # One attempt: whatever is charged is dead.
    return LaneUnderTest(
        nodes, own_server, tmp_path, COUNTER_BUNDLE_MS=request.param, COUNTER_MAX_ATTEMPTS="1", COUNTER_LEASE="4"
    )


def held(lane: LaneUnderTest, ticket: str = "*") -> list[Path]:
    return list(lane.ledger.glob(f"held-{ticket}-*"))


def holding(
    lane: LaneUnderTest, *arguments: str, task: str = "counter.held", conf: str = "{}"
) -> tuple[WorkerNode, int, int]:
    """A worker with one slot, in which a message waits at a gate, with others before and behind it. Returns how many
    messages and tickets there are. If bundles are on, the message came in one.
    """
    lane.master("m1")
    worker = lane.worker("w1", *(arguments or ("--concurrency=1",)), COUNTER_CONF=conf)
    lane.wait_consumers(1)
    for n in range(40):
        lane.push(f"warm{n % 4}", {"n": n // 4}, task)
    lane.wait_done(40)
    with lane.redis.pipeline(transaction=True) as pipe:
        for n in range(9):
            for ticket in range(6):
                payload = {"n": n} | ({"gate": GATE} if n == 6 else {})
                fields: dict[Any, Any] = {"ticket_id": f"T{ticket}", "payload": json.dumps(payload), "task": task}
                pipe.xadd(lane.keys.stream, fields)
        pipe.execute()
    wait_until(lambda: held(lane), description="a message to stand at the gate")
    if lane.env["COUNTER_BUNDLE_MS"] != "0" and "solo" not in " ".join(arguments):
        assert held(lane)[0].suffix == ".bundle"
    return worker, 40 + 54, 6


def go_on_elsewhere(lane: LaneUnderTest, messages: int) -> None:
    """Opens the gate and starts another worker. Then all messages are done, and none is dead."""
    (lane.ledger / GATE).touch()
    lane.worker("w2", "--concurrency=2")
    lane.wait_done(messages)
    assert lane.dead_letters() == []
    assert lane.count("failed") == 0
    lane.assert_logs(6, 9)
    lane.assert_no_overlap()
    lane.assert_at_rest()


def test_a_message_that_is_cut_off_runs_again_and_is_not_charged(lane: LaneUnderTest) -> None:
    worker, messages, _ = holding(lane)
    worker.send(signal.SIGQUIT)
    worker.wait(timeout_s=180)
    go_on_elsewhere(lane, messages)
    assert lane.count("interrupted") == 1


def test_a_signal_to_all_processes_of_a_worker_charges_no_message(lane: LaneUnderTest) -> None:
    worker, messages, _ = holding(lane)
    assert worker.pid is not None
    os.killpg(worker.pid, signal.SIGTERM)
    worker.wait(timeout_s=180)
    go_on_elsewhere(lane, messages)
    assert lane.count("interrupted") == 1


def test_a_signal_to_all_processes_charges_no_message_when_the_main_process_is_slow(lane: LaneUnderTest) -> None:
    # It goes on when the pool process, which waits a second for it, has ended by itself.
    lane.env["COUNTER_LEASE"] = "30"
    worker, messages, _ = holding(lane)
    [pool_process] = worker.children()
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGSTOP)
    os.killpg(worker.pid, signal.SIGTERM)
    wait_until(lambda: pool_process.status() == psutil.STATUS_ZOMBIE, description="the pool process to end")
    os.kill(worker.pid, signal.SIGCONT)
    worker.wait(timeout_s=180)
    go_on_elsewhere(lane, messages)
    assert lane.count("interrupted") == 1


def test_a_soft_shutdown_gives_back_at_once_what_has_not_begun(lane: LaneUnderTest) -> None:
    soft = json.dumps({"worker_soft_shutdown_timeout": 30})
    bundles = lane.env["COUNTER_BUNDLE_MS"] != "0"
    worker, messages, tickets = holding(lane, conf=soft)
    late = lane.push("U", {"n": 0, "gate": GATE}, "counter.held")

    def more_was_sent() -> bool:
        sent = lane.in_flight(f"w1@{socket.gethostname()}")
        # The other tickets may all be in the bundle that waits at the gate. The late message is in a later one.
        return late in sent if bundles else len(sent) > 1

    wait_until(more_was_sent, description="a later message to be sent")
    other = lane.worker("w2", "--concurrency=1")
    lane.wait_consumers(2)
    worker.send(signal.SIGQUIT)
    # All other tickets come to this worker, up to the gate
    wait_until(lambda: len(held(lane)) > 1, description="another ticket to come to the gate elsewhere")
    assert worker.running
    (lane.ledger / GATE).touch()
    lane.wait_done(messages + 1)
    assert lane.dead_letters() == []
    assert lane.count("failed") == lane.count("interrupted") == 0
    lane.assert_logs(tickets, 9)
    lane.assert_no_overlap()
    worker.kill_main()
    other.terminate()


def test_a_lost_connection_ends_nothing_that_runs(lane: LaneUnderTest) -> None:
    late = json.dumps({"task_acks_late": True, "worker_cancel_long_running_tasks_on_connection_loss": True})
    worker, messages, _ = holding(lane, task="counter.held_late", conf=late)
    [began] = held(lane)
    lane.redis.client_kill_filter(_type="normal", skipme=True)
    worker.wait_for_log("Connection to broker lost")
    (lane.ledger / GATE).touch()
    lane.wait_done(messages)
    assert [path for path in held(lane) if path.name.startswith(began.name.rpartition("-")[0])] == [began]
    assert lane.dead_letters() == []
    assert lane.count("failed") == lane.count("interrupted") == 0
    lane.assert_logs(6, 9)
    lane.assert_no_overlap()


def test_threads_that_are_cut_off_by_force_are_charged_nothing(lane: LaneUnderTest) -> None:
    """Celery and Python wait for these tasks until the process is killed."""
    worker, messages, _ = holding(lane, "--pool=threads", "--concurrency=1")

    def ended() -> bool:
        if worker.running:
            with suppress(AssertionError):
                worker.send(signal.SIGQUIT)
        return not worker.running

    wait_until(ended, description="the worker to end", interval_s=0.3)
    go_on_elsewhere(lane, messages)


# The others of these pools, cut off in the same way, are cells of `test_going_down.py` in each run.
@pytest.mark.parametrize(
    "pool", ["threads", pytest.param("gevent", marks=pytest.mark.long), pytest.param("solo", marks=pytest.mark.long)]
)
def test_pools_within_one_process_lose_nothing(lane: LaneUnderTest, pool: str) -> None:
    worker, messages, _ = holding(lane, f"--pool={pool}", "--concurrency=1")
    worker.send(signal.SIGQUIT)
    if pool == "gevent":
        # Greenlets can be ended. Threads, and a solo pool's only thread, end when their task does
        worker.wait(timeout_s=180)
    (lane.ledger / GATE).touch()
    worker.wait(timeout_s=180)
    if pool != "gevent":
        # Celery waits in a signal handler, which gevent does not allow
        assert "Traceback" not in worker.logs()
    go_on_elsewhere(lane, messages)
