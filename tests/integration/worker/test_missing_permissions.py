"""A worker whose Redis user lacks a permission ends with one line that says which. One that loses a permission while it
works writes its outcomes when it has it again.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from redis import Redis

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard, WorkerNode, broker_environment
from bridge.testing.waiting import wait_until
from tests.integration.lanes import LaneUnderTest
from tests.integration.servers import OWN_KEYS, PASSWORDS, make_user, rules_of, url_of

#: Commands that a worker needs to start: of the bridge, in its scripts, and of kombu.
NEEDED = ["hget", "hset", "brpop"]
ALSO_NEEDED = ["xadd", "time", "llen", "psubscribe", "sadd", "set", "zadd", "zrange"]


@pytest.mark.parametrize("missing", [*NEEDED, *(pytest.param(name, marks=pytest.mark.long) for name in ALSO_NEEDED)])
def test_a_worker_without_a_permission_ends_with_one_line(
    missing: str, nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    lane = LaneUnderTest(nodes, own_server, tmp_path)
    admin: Redis = own_server.client()
    rules = rules_of("worker")
    assert f"+{missing}" in rules
    admin.execute_command(*(word for word in rules if word != f"+{missing}"), f">{PASSWORDS['worker']}")
    lane.master("m1")
    worker = lane.worker("w1", wait=False, **broker_environment(url_of("worker", own_server.port)))
    assert worker.wait() != 0
    errors = [line for line in worker.logs().splitlines() if re.search(r"\bError: ", line)]
    assert len(errors) == 1
    assert "this Redis user may not do that: " in errors[0]
    assert f"'{missing}'" in errors[0]
    assert "bridge acl" in errors[0]
    assert "Traceback" not in worker.logs()


@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.long)])
@pytest.mark.parametrize("task", ["counter.append", "counter.context"])
def test_outcomes_that_are_refused_for_a_while_are_written_then_and_nothing_runs_twice(
    task: str, pool: str, nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    # Given a worker at work, whose lease is far longer than the permission will be missing
    lane = LaneUnderTest(nodes, own_server, tmp_path, COUNTER_LEASE="60")
    worker, admin = _with_a_user(lane, pool)
    lane.push_many(4, 1)
    lane.wait_done(4)
    # When it may not write outcomes for a while
    admin.execute_command("ACL", "SETUSER", "bridge-worker", "-xadd")
    for n in range(1, 4):
        for ticket in range(4):
            lane.push(f"T{ticket}", {"n": n}, task)
    wait_until(lambda: "the server refuses an outcome" in worker.logs(), description="a refused outcome")
    admin.execute_command("ACL", "SETUSER", "bridge-worker", "+xadd")
    # Then all are done, each ran once, and no attempt was charged
    lane.wait_done(16)
    assert lane.executions() == (16 if task == "counter.append" else 4)
    assert lane.count("failed") == lane.count("lost") == lane.count("dead") == 0
    if task == "counter.append":
        lane.assert_logs(4, 4)
    assert "Traceback" not in worker.logs()


@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.long)])
def test_outcomes_that_are_refused_for_longer_than_a_lease_leave_no_ticket_standing(
    pool: str, nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    lane = LaneUnderTest(nodes, own_server, tmp_path, COUNTER_LEASE="2", COUNTER_MAX_ATTEMPTS="10")
    worker, admin = _with_a_user(lane, pool)
    admin.execute_command("ACL", "SETUSER", "bridge-worker", "-xadd")
    lane.push_many(4, 3)
    # When the worker has given some of them up
    wait_until(lambda: "which come again" in worker.logs(), description="outcomes that are void", timeout_s=60)
    admin.execute_command("ACL", "SETUSER", "bridge-worker", "+xadd")
    # Then all are done, in order, and their effects are there once
    lane.wait_done(12, timeout_s=60)
    assert lane.count("dead") == 0
    lane.assert_logs(4, 3)


def _with_a_user(lane: LaneUnderTest, pool: str) -> tuple[WorkerNode, Redis]:
    """A master, and a worker with the user that ``bridge acl worker`` prints. Returns the worker, and a client that may
    change that user.
    """
    admin: Redis = lane.server.client()
    make_user(admin, "worker", *(word for key in OWN_KEYS for word in ("--own-keys", key)))
    lane.master("m1")
    user = broker_environment(url_of("worker", lane.server.port))
    worker = lane.worker("w1", "--concurrency=2", "--pool", pool, wait=True, **user)
    lane.wait_consumers(1)
    return worker, admin
