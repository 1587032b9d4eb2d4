"""A repartition together with what else may go on: large steps, a subscription beyond its lag, a worker that is stopped
while it starts again, versions that were dropped, delayed messages.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bridge.routing.keys import LaneKeys, follows_key, newer_key
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.waiting import wait_until
from tests.integration.operate.test_repartition import GROUP, STREAM, TICKETS, Splitting


@pytest.fixture
def splitting(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> Splitting:
    return Splitting(nodes, own_server, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_to_sixty_four_partitions_and_back_in_steps(splitting: Splitting) -> None:
    lane = splitting.lane
    lane.worker("w1", wait=False)
    lane.master("m1", wait=False)
    splitting.push(2, ms=20)
    for count in (64, 4, 1):
        with splitting.pushing(ms=1):
            command = splitting.command("repartition", count)
            assert command.wait(timeout_s=180) == 0, command.logs()
        splitting.push(1)
    assert splitting.repartition(1).startswith(f"{STREAM} has 1 partition\n")
    splitting.check()


def test_a_lane_beyond_its_lag_skips_in_old_and_new_partitions_and_keeps_the_order(splitting: Splitting) -> None:
    lane = splitting.lane
    lane.env["COUNTER_CONF"] = json.dumps({"bridge_max_lag": {"count": 20, "then": "skip"}})
    lane.master("m1", wait=False)
    wait_until(lambda: splitting.redis.exists(LaneKeys(STREAM, GROUP).leader), description="a leader")
    splitting.push(10)
    command = splitting.command("repartition", 2)
    wait_until(lambda: splitting.layout.generation == 1, description="the new layout")
    splitting.push(10)
    keys = [LaneKeys(one, GROUP) for one in (STREAM, *splitting.streams())]
    wait_until(
        lambda: all(splitting.redis.hget(one.counts, "skipped") for one in keys),
        description="gaps in old and new partitions",
        timeout_s=90,
    )
    lane.worker("w1", wait=False)
    assert command.wait() == 0, command.logs()
    splitting.push(1)
    # Each message of the new partitions was handled or skipped, and the newest of all was handled
    wait_until(lambda: counted(splitting, keys[1:]) == 11 * TICKETS, description="the end", timeout_s=90)
    for t in range(TICKETS):
        found = [int(one) for one in splitting.redis.lrange(f"log:T{t}", 0, -1)]
        assert found == sorted(set(found))
        assert found[-1] == splitting.pushed - 1


def counted(splitting: Splitting, lanes: list[LaneKeys]) -> int:
    """Messages that are done or were skipped."""
    counts = [splitting.redis.hmget(one.counts, ["done", "skipped"]) for one in lanes]
    return sum(int(count or 0) for pair in counts for count in pair)


@pytest.mark.parametrize("in_next_life", [False, True], ids=["at once", "as soon as it lives again"])
def test_a_worker_that_is_stopped_while_it_starts_again_stays_stopped_and_loses_nothing(
    splitting: Splitting, in_next_life: bool
) -> None:
    lane = splitting.lane
    worker = lane.worker("w1")
    lane.master("m1")
    splitting.push(2, ms=50)
    command = splitting.command("repartition", 2)
    worker.wait_for_log("starting again, when the running tasks have ended")
    if in_next_life:
        wait_until(lambda: worker.logs().count("[queues]") > 1, description="its next life")
    worker.terminate()
    assert not worker.running
    splitting.push(1)
    lane.worker("w2", wait=False)
    assert command.wait() == 0, command.logs()
    splitting.check()


@pytest.mark.parametrize("away", ["frozen", pytest.param("stopped", marks=pytest.mark.long)])
def test_a_worker_starts_again_though_the_server_is_away_when_its_last_task_ends(
    splitting: Splitting, away: str
) -> None:
    lane, server = splitting.lane, splitting.server
    # Celery is not set to wait for its server at a start
    worker = lane.worker("w1", "-c", "1")
    lane.master("m1")
    lane.push("T0", {"n": 0, "gate": "open"}, "counter.held")
    wait_until(lane.executions, description="the task to run")
    command = splitting.command("repartition", 2)
    worker.wait_for_log("starting again, when the running tasks have ended")
    (server.pause if away == "frozen" else server.stop)()
    lane.open("open")
    # Whether Celery ends it, or the bridge does it first: nobody asked the worker to stop
    wait_until(lambda: "waiting for it" in worker.logs().rpartition("[queues]")[2], description="its next life")
    (server.resume if away == "frozen" else server.start)()
    command.wait()
    splitting.repartition(2)
    splitting.task.push("T0", {"n": 1})
    wait_until(lambda: lane.log("T0") == [0, 1], description="the messages to be done")
    assert worker.running


def test_a_version_that_was_dropped_and_is_not_retired_is_no_reason_to_lose_order(splitting: Splitting) -> None:
    """The stream follows an older one that the app names no more: it must be retired before a repartition."""
    splitting.redis.set(follows_key(STREAM), '["orders"]')
    splitting.redis.sadd(newer_key("orders"), STREAM)
    said = splitting.repartition(2, code=1)
    assert f"{STREAM} has other versions (orders): retire the older ones first" in said
    assert splitting.streams() == (STREAM,)


def test_delayed_messages_in_an_old_partition_come_when_they_are_due(splitting: Splitting) -> None:
    lane = splitting.lane
    lane.worker("w1", wait=False)
    lane.master("m1", wait=False)
    splitting.push(1)
    splitting.wait_handled(1)
    overtaken = splitting.task.push("T1", {"n": 1}, delay=3600)
    holding = splitting.task.push("T3", {"n": 1}, delay=3600, hold=True)
    command = splitting.command("repartition", 2)
    wait_until(lambda: splitting.layout.generation == 1, description="the new layout")
    # One of each of these tickets in a new partition, and of another ticket there
    for ticket, n in (("T1", 2), ("T3", 2), ("T2", 1)):
        splitting.task.push(ticket, {"n": n})
    wait_until(lambda: splitting.redis.llen("log:T2") == 2, description="another ticket", timeout_s=90)
    wait_until(lambda: splitting.redis.llen("log:T1") == 2, description="the one that overtakes", timeout_s=90)
    assert lane.log("T3") == [0]
    # The command waits for the old partition, and says so
    command.wait_for_log(f"{STREAM} has messages of group {GROUP} that are not done", timeout=60)
    assert "made due 1 delayed message" in splitting.run("delayed", "now", overtaken).stdout
    assert "made due 1 delayed message" in splitting.run("delayed", "now", holding).stdout
    assert command.wait() == 0, command.logs()
    for ticket, log in (("T1", [0, 2, 1]), ("T3", [0, 1, 2])):
        wait_until(lambda t=ticket: len(lane.log(t)) == 3, description=f"all of {ticket}", timeout_s=90)  # type: ignore[misc]
        assert lane.log(ticket) == log
