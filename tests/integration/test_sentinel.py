"""A lane whose server is named by sentinels: when the primary dies, everybody follows the new one."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from redis import Redis
from redis.sentinel import Sentinel

from bridge.address import address_of
from bridge.connect import Wire, client, is_outage
from bridge.embedded import HOST, free_port
from tests.integration.lanes import QUICK, LaneUnderTest
from tests.integration.servers import run_command
from tests.nodes.roles import broker_environment
from tests.nodes.yard import NodeYard
from tests.waiting import wait_until

APP = "tests.apps.anywhere"
NAME = "the-primary"
PASSWORD = "pw-data"
SENTINEL_PASSWORD = "pw-sentinel"


class Sentinels:
    """A primary, its replica, and three sentinels that watch over them, all with passwords."""

    def __init__(self, binary: Path, folder: Path, yard: NodeYard, stack: ExitStack) -> None:
        options = {"requirepass": PASSWORD, "masterauth": PASSWORD, "repl-diskless-sync-delay": "0"}
        self.ports: list[int] = []
        self.servers: dict[int, Any] = {}
        for i in range(2):
            port = free_port()
            command = [str(binary), "--port", str(port), "--bind", HOST, "--dir", str(folder), "--save", ""]
            command += ["--dbfilename", f"{i}.rdb", "--appendonly", "no", "--maxmemory-policy", "noeviction"]
            command += [word for name, value in options.items() for word in (f"--{name}", value)]
            if i:
                command += ["--replicaof", f"{HOST} {self.ports[0]}"]
            self.servers[port] = yard.process(f"server{i}", command, ready_text="Ready to accept connections")
            self.ports.append(port)
        replica = stack.enter_context(self.connect(self.ports[1]))
        wait_until(
            lambda: replica.info("replication")["master_link_status"] == "up", description="the replica to be in sync"
        )
        self.sentinel_ports = [free_port() for _ in range(3)]
        for i, port in enumerate(self.sentinel_ports):
            file = folder / f"sentinel{i}.conf"
            file.write_text(
                f"port {port}\nbind {HOST}\ndir {folder}\nrequirepass {SENTINEL_PASSWORD}\n"
                f"sentinel sentinel-pass {SENTINEL_PASSWORD}\n"
                f"sentinel monitor {NAME} {HOST} {self.ports[0]} 2\n"
                f"sentinel auth-pass {NAME} {PASSWORD}\n"
                f"sentinel down-after-milliseconds {NAME} 700\n"
                f"sentinel failover-timeout {NAME} 4000\n"
            )
            yard.process(f"sentinel{i}", [str(binary), str(file), "--sentinel"], ready_text="Sentinel ID is")
        with client(f"redis://:{SENTINEL_PASSWORD}@{HOST}:{self.sentinel_ports[0]}") as one:
            wait_until(
                lambda: (
                    b"num-other-sentinels" in (found := one.execute_command("SENTINEL", "MASTERS")[0])
                    and found[found.index(b"num-other-sentinels") + 1] == b"2"
                    and found[found.index(b"num-slaves") + 1] == b"1"
                ),
                description="the sentinels to know each other and the replica",
                timeout_s=30,
            )

    @property
    def url(self) -> str:
        """As kombu takes it."""
        return ";".join(f"sentinel://:{PASSWORD}@{HOST}:{port}/0" for port in self.sentinel_ports)

    @property
    def conf(self) -> dict[str, Any]:
        """What Celery is told besides."""
        options = {"master_name": NAME, "sentinel_kwargs": {"password": SENTINEL_PASSWORD}}
        return {"broker_transport_options": options, "result_backend_transport_options": options}

    def connect(self, port: int) -> Redis:
        """A client of one server, whatever its role."""
        return Redis(host=HOST, port=port, password=PASSWORD, decode_responses=True)

    def client(self, **options: Any) -> Redis:
        """A client of whoever is the primary."""
        sentinels = [(HOST, port) for port in self.sentinel_ports]
        asked = Sentinel(sentinels, sentinel_kwargs={"password": SENTINEL_PASSWORD}, password=PASSWORD)
        found: Redis = asked.master_for(NAME, **options)
        return found

    def primary(self) -> int:
        """The port of whoever the sentinels say is the primary."""
        with client(f"redis://:{SENTINEL_PASSWORD}@{HOST}:{self.sentinel_ports[0]}") as one:
            found = one.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)
        return int(found[1])


@pytest.fixture
def sentinels(valkey_binary: Path, tmp_path: Path) -> Iterator[Sentinels]:
    folder = tmp_path / "servers"
    folder.mkdir()
    with ExitStack() as stack:
        yard = stack.enter_context(closing(NodeYard(folder, "redis://nowhere")))
        yield Sentinels(valkey_binary, folder, yard, stack)


def address(sentinels: Sentinels) -> str:
    """The address that the bridge makes of it."""
    made = Celery("somewhere", broker=sentinels.url, set_as_current=False)
    made.conf.update(sentinels.conf)
    return address_of(made)


def test_clients_and_raw_connections_find_the_primary_and_follow_it(sentinels: Sentinels) -> None:
    found = address(sentinels)
    with client(found) as one:
        wire = Wire(found)
        one.set("x", 1)
        assert wire.call("GET", "x") == b"1"
        first = sentinels.primary()
        with client(f"redis://:{SENTINEL_PASSWORD}@{HOST}:{sentinels.sentinel_ports[0]}") as operator:
            operator.execute_command("SENTINEL", "FAILOVER", NAME)
        wait_until(lambda: sentinels.primary() != first, description="another primary", timeout_s=20)

        there = sentinels.connect(sentinels.primary())

        def arrived() -> bool:
            # Until the old primary is told, it goes on taking writes, which are lost: so it is asked again and again.
            try:
                wire.call("SET", "y", 2)
                one.set("x", 2)
            except (redis.RedisError, OSError) as exc:
                if not is_outage(exc):
                    raise
            return there.mget("x", "y") == ["2", "2"]

        wait_until(arrived, description="both to write to the new primary", timeout_s=20)
        there.close()


def answers(one: Redis) -> bool:
    """Whether the sentinels agree on a primary, and it answers."""
    try:
        return bool(one.ping())
    except (redis.RedisError, OSError):
        return False


@pytest.mark.parametrize("how", ["killed", pytest.param("asked", marks=pytest.mark.long)])
def test_a_lane_follows_its_primary(how: str, sentinels: Sentinels, tmp_path: Path) -> None:
    with closing(NodeYard(tmp_path, sentinels.url)) as yard:
        # What the tests ask of a server, the sentinels answer as well.
        stand_in: Any = sentinels
        lane = LaneUnderTest(
            yard,
            stand_in,
            tmp_path,
            COUNTER_LEASE="8",
            COUNTER_LEADER_LEASE="2",
            ANYWHERE_CONF=json.dumps(sentinels.conf),
        )
        masters = [yard.master(f"m{i}", app=APP, env=lane.env, ready_text="standing by") for i in range(2)]
        worker = yard.worker("w1", app=APP, arguments=("--concurrency=2", *QUICK), env=lane.env)
        lane.wait_consumers(1)
        registered = lane.redis.hgetall(lane.keys.consumers)
        lane.push_many(20, 60, ms=5)
        wait_until(lambda: lane.count("done") > 300, description="a part of the load", timeout_s=40)

        first = sentinels.primary()
        if how == "killed":
            sentinels.servers[first].send(signal.SIGKILL)
        else:
            with client(f"redis://:{SENTINEL_PASSWORD}@{HOST}:{sentinels.sentinel_ports[0]}") as operator:
                operator.execute_command("SENTINEL", "FAILOVER", NAME)
        began = time.monotonic()
        wait_until(lambda: sentinels.primary() != first, description="another primary", timeout_s=30)
        print(f"another primary after {time.monotonic() - began:.1f} s")
        lane.redis.close()
        lane.redis = sentinels.client(decode_responses=True)
        wait_until(lambda: answers(lane.redis), description="the new primary to be found")
        lane.wait_done(1200, timeout_s=60)
        print(f"all done after {time.monotonic() - began:.1f} s")
        lane.assert_logs(20, 60)
        # A failover may lose the last writes of the old primary, outcomes and effects alike: what they told of has run
        # again then, so the ledger may repeat itself. The effects are all there, once, in order.
        lane.assert_at_rest()
        assert lane.dead_letters() == []
        # The outage was shorter than the lease, and everybody shared it: nobody is judged.
        assert lane.redis.hgetall(lane.keys.consumers) == registered
        for node in (*masters, worker):
            said = node.log_file.read_text(errors="replace")
            assert PASSWORD not in said
            assert SENTINEL_PASSWORD not in said
        for master in masters:
            assert "Traceback" not in master.log_file.read_text(errors="replace")
        environment = {"PATH": "/usr/bin:/bin", **broker_environment(sentinels.url), **lane.env}
        shown = run_command(environment, "status", app=APP)
        assert shown.returncode == 0, shown.stderr
        assert worker.hostname in shown.stdout
        assert PASSWORD not in shown.stdout


def test_sentinels_that_cannot_be_reached_are_named_in_one_line(tmp_path: Path) -> None:
    conf = {"broker_transport_options": {"master_name": "m"}}
    environment = {"PATH": "/usr/bin:/bin", **broker_environment(f"sentinel://:{PASSWORD}@{HOST}:1/0")}
    found = run_command({**environment, "ANYWHERE_CONF": json.dumps(conf)}, "status", app=APP)
    assert found.returncode == 1
    assert len(found.stderr.splitlines()) == 1, found.stderr
    assert f"sentinel://:***@{HOST}:1/0" in found.stderr
    assert PASSWORD not in found.stderr
