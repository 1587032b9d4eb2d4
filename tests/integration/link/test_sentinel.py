"""A lane whose server is named by sentinels: when the primary dies, all processes follow the new one."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis
from redis import Redis

from bridge.link.connections import Wire, client, is_outage
from bridge.routing.async_connection import async_client, drop
from bridge.stack.ports import HOST
from bridge.testing.nodes.node import broker_environment
from bridge.testing.nodes.yard import ProcessYard
from bridge.testing.waiting import wait_until
from tests.integration.lanes import QUICK, LaneUnderTest
from tests.integration.sentinels import PASSWORD, SENTINEL_PASSWORD, Sentinels, address
from tests.integration.servers import run_command

APP = "tests.apps.anywhere"


def test_clients_and_raw_connections_find_the_primary_and_follow_it(sentinels: Sentinels) -> None:
    found = address(sentinels)
    with client(found) as one:
        wire = Wire(found)
        one.set("x", 1)
        assert wire.call("GET", "x") == b"1"
        sentinels.fail_over()
        there = sentinels.connect(sentinels.primary())

        def arrived() -> bool:
            # Until the old primary learns that it was replaced, it accepts writes that are lost. So the test waits for
            # its role to change.
            try:
                wire.call("SET", "y", 2)
                one.set("x", 2)
            except (redis.RedisError, OSError) as exc:
                if not is_outage(exc):
                    raise
            return there.mget("x", "y") == ["2", "2"]

        wait_until(arrived, description="both to write to the new primary")
        there.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of asyncio, for what the loop left open
def test_connections_to_sentinels_are_closed_too_when_their_event_loop_is_gone(sentinels: Sentinels) -> None:
    made = async_client(address(sentinels))

    async def ping() -> None:
        await made.ping()

    before = len(list(Path("/dev/fd").iterdir()))
    asyncio.run(ping())
    assert len(list(Path("/dev/fd").iterdir())) >= before + 2
    drop(made)
    assert len(list(Path("/dev/fd").iterdir())) == before


def answers(one: Redis) -> bool:
    """Whether the sentinels agree on a primary, and it answers."""
    try:
        return bool(one.ping())
    except (redis.RedisError, OSError):
        return False


@pytest.mark.parametrize(
    ("sentinels", "how", "lease"),
    # A live primary that is replaced accepts renewals for ten more seconds. They are lost.
    [("quick", "killed", "15"), pytest.param("", "asked", "30", marks=pytest.mark.long)],
    indirect=["sentinels"],
)
def test_a_lane_follows_its_primary(how: str, lease: str, sentinels: Sentinels, tmp_path: Path) -> None:
    with closing(ProcessYard(tmp_path, sentinels.url)) as yard:
        # The sentinels also name the server for the tests.
        stand_in: Any = sentinels
        lane = LaneUnderTest(
            yard,
            stand_in,
            tmp_path,
            COUNTER_LEASE=lease,
            COUNTER_LEADER_LEASE="2",
            ANYWHERE_CONF=json.dumps(sentinels.conf),
        )
        masters = [yard.master(f"m{i}", app=APP, env=lane.env, ready_text="standing by") for i in range(2)]
        worker = yard.worker("w1", app=APP, arguments=("--concurrency=2", *QUICK), env=lane.env)
        lane.wait_consumers(1)
        registered = lane.redis.hgetall(lane.keys.consumers)
        lane.push_many(20, 20, ms=15)
        wait_until(lambda: lane.count("done") > 100, description="a part of the load", timeout_s=90)

        first = sentinels.primary()
        began = time.monotonic()
        if how == "killed":
            sentinels.servers[first].send(signal.SIGKILL)
        else:
            sentinels.fail_over()
        wait_until(lambda: sentinels.primary() != first, description="another primary", timeout_s=180)
        print(f"another primary after {time.monotonic() - began:.1f} s")
        lane.redis.close()
        lane.redis = sentinels.client(decode_responses=True)
        wait_until(lambda: answers(lane.redis), description="the new primary to be found")
        lane.wait_done(400, timeout_s=180)
        print(f"all done after {time.monotonic() - began:.1f} s")
        lane.assert_logs(20, 20)
        # A failover may lose the last writes of the old primary, outcomes and effects alike. Their messages run again,
        # so the ledger may have repetitions. The effects are all there, once, in order.
        lane.assert_at_rest()
        assert lane.dead_letters() == []
        # The outage was shorter than the lease and hit all processes: no lease is ended.
        assert lane.redis.hgetall(lane.keys.consumers) == registered
        for node in (*masters, worker):
            said = node.logs()
            assert PASSWORD not in said
            assert SENTINEL_PASSWORD not in said
        for master in masters:
            assert "Traceback" not in master.logs()
        environment = {**broker_environment(sentinels.url), **lane.env}
        shown = run_command(environment, "status", app=APP)
        assert shown.returncode == 0, shown.stderr
        assert worker.hostname() in shown.stdout
        assert PASSWORD not in shown.stdout


def test_sentinels_that_cannot_be_reached_are_named_in_one_line(tmp_path: Path) -> None:
    conf = {"broker_transport_options": {"master_name": "m"}}
    environment = {**broker_environment(f"sentinel://:{PASSWORD}@{HOST}:1/0")}
    found = run_command({**environment, "ANYWHERE_CONF": json.dumps(conf)}, "status", app=APP)
    assert found.returncode == 1
    assert len(found.stderr.splitlines()) == 1, found.stderr
    assert f"sentinel://:***@{HOST}:1/0" in found.stderr
    assert PASSWORD not in found.stderr
