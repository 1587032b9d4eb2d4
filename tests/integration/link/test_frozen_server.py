"""A server that freezes for longer than the leader lease: a master says so once, whatever ends meanwhile."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest

from bridge.routing.keys import LaneKeys
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.waiting import wait_until

#: Seconds for which the server answers nothing: longer than the time limit of a leader's command, in the long one.
FROZEN_S = 5


@pytest.mark.parametrize(
    ("lanes", "lease_s", "masters", "frozen_s"),
    [
        pytest.param(1, 1.0, 1, FROZEN_S, marks=pytest.mark.long),
        pytest.param(4, 1.0, 1, FROZEN_S, marks=pytest.mark.long),
        (4, 2.0, 2, FROZEN_S),
        # So many that lanes at rest sleep.
        (14, 1.0, 1, FROZEN_S),
        pytest.param(4, 5.0, 1, 12, marks=pytest.mark.long),
    ],
)
def test_a_master_logs_an_outage_once_though_its_leads_end_in_it(
    nodes: NodeYard, own_server: EmbeddedServer, lanes: int, lease_s: float, masters: int, frozen_s: int
) -> None:
    names = [f"s{n}" for n in range(lanes)]
    conf = {
        "bridge_subscriptions": {name: {"task": "billing.apply"} for name in ("billing", "trail", *names)},
        "bridge_leader_lease": lease_s,
    }
    env = {"SUBSCRIBERS_CONF": json.dumps(conf)}
    given = ("--lanes", ",".join(names)) if masters == 1 else ()
    made: list[Any] = [
        nodes.master(f"m{n}", app="tests.apps.subscribers", env=env, ready_text="standing by", arguments=given)
        for n in range(masters)
    ]
    keys = [LaneKeys("ticket_stream", name) for name in names]
    with own_server.client(decode_responses=True) as redis:

        def terms() -> list[int]:
            return [int(redis.get(one.term) or 0) for one in keys]

        wait_until(lambda: all(redis.exists(one.leader) for one in keys), description="a leader of each lane")
        # The lanes have begun, and are at rest.
        time.sleep(2)  # what is tested is what happens in the middle of a quiet time
        before, at = terms(), [len(one.logs()) for one in made]
        redis.execute_command("CLIENT", "PAUSE", frozen_s * 1000, "ALL")
        # The client here would miss the server, too.
        wait_until(
            lambda: all("Redis is back" in one.logs()[since:] for one, since in zip(made, at, strict=True)),
            description="masters to have the server back",
            timeout_s=frozen_s + 30,
        )
        wait_until(
            lambda: all(new > old for new, old in zip(terms(), before, strict=True)), description="new terms of all"
        )
        time.sleep(1)  # for the lines of the former terms
    for one, since in zip(made, at, strict=True):
        said = [line for line in one.logs()[since:].splitlines() if re.search("WARNING|ERROR|CRITICAL|Traceback", line)]
        assert ["away" in line for line in said] == [True, False], said
        assert "Redis is back" in said[1]


@pytest.mark.parametrize("how", ["has too few replicas", "is a replica"])
def test_a_master_logs_a_server_that_refuses_writes_once_though_its_lead_ends(
    how: str, nodes: NodeYard, own_server: EmbeddedServer
) -> None:
    # A master with one lane has nothing to share with others: what it asks for the lead is all that it writes then.
    env = {"COUNTER_CONF": '{"bridge_leader_lease": 1.0}'}
    master = nodes.master("m1", app="tests.apps.counter", env=env, ready_text="standing by")
    keys = LaneKeys("ticket_stream", "concurrency_stream_group")
    with own_server.client(decode_responses=True) as redis:
        refuse, again = (
            (("CONFIG", "SET", "min-replicas-to-write", 1), ("CONFIG", "SET", "min-replicas-to-write", 0))
            if how == "has too few replicas"
            else (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE"))
        )
        wait_until(lambda: redis.exists(keys.leader), description="a leader")
        since = len(master.logs())
        redis.execute_command(*refuse)
        # A server that refuses writes keeps keys whose time is over, and shows them to nobody.
        wait_until(lambda: not redis.exists(keys.leader), description="the lead to end", timeout_s=30)

        def refused() -> int:
            return sum(one.get("count", 0) for one in redis.info("errorstats").values())

        before = refused()
        wait_until(lambda: refused() > before + 15, description="the master to ask for the lead", timeout_s=30)
        redis.execute_command(*again)
        wait_until(lambda: redis.exists(keys.leader), description="a leader again", timeout_s=30)
        wait_until(lambda: "Redis is back" in master.logs()[since:], description="the master to say so")
    lines = master.logs()[since:]
    assert lines.count("Redis is away") == lines.count("Redis is back") == 1, lines
    assert "ERROR" not in lines, lines
