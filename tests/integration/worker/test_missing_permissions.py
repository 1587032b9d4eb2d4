"""A worker whose Redis user lacks a permission ends with one line that says which."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from redis import Redis

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard, broker_environment
from tests.integration.lanes import LaneUnderTest
from tests.integration.servers import PASSWORDS, rules_of, url_of

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
