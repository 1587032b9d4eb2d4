"""Outages of Redis under load: all processes wait, recover by themselves, log it once, and end no lease for it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
import redis

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import MasterNode, NodeYard, WorkerNode
from bridge.testing.nodes.yard import ProcessYard
from bridge.testing.waiting import holds_for, wait_until
from tests.integration.lanes import OF_EACH_SERVER, LaneUnderTest
from tests.integration.proxies import Proxy

TICKETS = 20
EACH = 10
TASK_MS = 30
#: Longer than all outages here except one, so that workers keep their incarnation.
LEASE_S = 60


class Load:
    """A lane with a leader, a standby and a worker, and a load for a fault in its middle."""

    def __init__(self, lane: LaneUnderTest, tickets: int = TICKETS, each: int = EACH) -> None:
        self.lane = lane
        self.tickets = tickets
        self.each = each
        #: The messages of each ticket so far.
        self.pushed = 0
        #: Whether the last outage was survived.
        self.sound = True
        self.masters: list[MasterNode] = [lane.master("m1"), lane.master("m2", wait=False)]
        self.worker: WorkerNode = lane.worker("w1")
        lane.wait_consumers(1)
        self.incarnations = self.registered()

    @property
    def total(self) -> int:
        return self.tickets * self.each

    def registered(self) -> dict[str, str]:
        found: dict[str, str] = self.lane.redis.hgetall(self.lane.keys.consumers)  # type: ignore[assignment]
        return {name: json.loads(text)["incarnation"] for name, text in found.items()}

    def begin(self, share: int = 4) -> None:
        """Pushes the load and waits until a part of it is done."""
        wait_until(
            lambda: not any(is_away(log_of(master)) for master in self.masters), description="an earlier outage to end"
        )
        self.sound = False
        self.before = self.lane.count("done")
        self.since = {master: len(log_of(master)) for master in self.masters}
        self.push(self.each, ms=TASK_MS)
        self.wait_part(share)

    def push(self, each: int, *, ms: float = 0) -> None:
        """Pushes the next messages of each ticket."""
        self.lane.push_many(self.tickets, each, ms=ms, first=self.pushed)
        self.pushed += each

    def wait_part(self, share: int) -> None:
        wait_until(
            lambda: self.lane.count("done") > self.before + self.total // share,
            description="a part of the load",
            timeout_s=90,
        )

    def finish(self) -> None:
        """Waits for the rest, and checks everything."""
        self.lane.wait_done(self.before + self.total, timeout_s=90)
        self.lane.assert_logs(self.tickets, self.pushed)
        self.lane.assert_no_overlap()
        self.lane.assert_at_rest()
        assert self.lane.dead_letters() == []
        self.sound = True

    def assert_nobody_was_judged(self) -> None:
        assert self.lane.count("rerouted") == 0
        assert self.registered() == self.incarnations
        assert "the lease of" not in self.worker.log_tail(10_000)

    @contextmanager
    def away(self, take_away: Callable[[], object], *, for_all: bool = True) -> Iterator[None]:
        """The server is away within the block. Each process that misses it says so once: all masters, or only some.

        What they say before and behind is not counted: an answer that a paused machine delays is an outage, too.
        """
        nodes = [*self.masters, self.worker]
        take_away()
        before = {node: len(log_of(node)) for node in nodes}
        wait_until(
            lambda: (all if for_all else any)(is_away(log_of(master)) for master in self.masters),
            description="masters to say that the server is away",
        )
        yield
        for node in nodes:
            said = OUTAGE.findall(log_of(node)[before[node] :])
            # A master says it for all its threads, and a process of the worker for each of its connections.
            assert len(said) == len(set(said)), said
            assert len(said) <= 1 or node is self.worker, said

    def assert_back(self) -> None:
        """Each master that missed the server says that it is back, and nothing bad."""
        for master in self.masters:
            wait_until(
                lambda master=master: not is_away(log_of(master)),  # type: ignore[misc]
                description=f"{master.name()} to say that the server is back",
            )
            log = log_of(master)[self.since[master] :]
            assert "Traceback" not in log
            assert " ERROR" not in log


#: The process of a line, and what it does meanwhile.
OUTAGE = re.compile(r"/([\w.-]+)\].*?Redis is away, (.*?):")


def is_away(log: str) -> bool:
    """Whether a master says that the server is away, and not yet that it is back. Each line has its counterpart."""
    said = re.findall(r"Redis is (away|back)", log)
    assert said in (["away", "back"] * (len(said) // 2), ["away", "back"] * (len(said) // 2) + ["away"]), said
    return len(said) % 2 == 1


def log_of(node: MasterNode | WorkerNode) -> str:
    return node.logs()


def make_lane(yard: NodeYard, server: EmbeddedServer, folder: Path) -> LaneUnderTest:
    return LaneUnderTest(yard, server, folder, COUNTER_LEASE=str(LEASE_S), COUNTER_LEADER_LEASE="2")


@pytest.fixture(scope="module")
def survivor(valkey_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Load]]:
    """The lane that one outage after another strikes: it is there to survive them. If it does not, another one follows
    it.
    """
    with ExitStack() as stack:

        def make() -> Load:
            folder = tmp_path_factory.mktemp("outages")
            server = stack.enter_context(EmbeddedServer(binary=valkey_binary, data_dir=folder / "server", fsync="no"))
            yard = stack.enter_context(closing(ProcessYard(folder, server.url)))
            return Load(make_lane(yard, server, folder))

        made: list[Load] = []

        def last() -> Load:
            if not made or not made[-1].sound:
                made.append(make())
            return made[-1]

        yield last


@pytest.fixture
def load(survivor: Callable[[], Load]) -> Load:
    return survivor()


@pytest.fixture(params=["always", "everysec"])
def lane_with_file(request: pytest.FixtureRequest, valkey_binary: Path, tmp_path: Path) -> Iterator[LaneUnderTest]:
    folder = tmp_path / "server"
    server = EmbeddedServer(binary=valkey_binary, data_dir=folder, fsync=request.param)
    with server, closing(ProcessYard(tmp_path, server.url)) as yard:
        yield make_lane(yard, server, tmp_path)


@pytest.fixture(params=OF_EACH_SERVER)
def load_of_each(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Load]:
    if request.param == "valkey":
        yield request.getfixturevalue("load")
        return
    server: EmbeddedServer = request.getfixturevalue(request.param)
    with closing(ProcessYard(tmp_path, server.url)) as yard:
        yield Load(make_lane(yard, server, tmp_path))
    with server.client() as one:
        one.config_set("maxmemory", "0")
        one.execute_command("REPLICAOF", "NO", "ONE")


# A restart is also what happens before a server takes long to load (below).
@pytest.mark.long
def test_a_restart_is_waited_out(lane_with_file: LaneUnderTest) -> None:
    load = Load(lane_with_file)
    load.begin()
    with load.away(load.lane.server.stop):
        holds_for(lambda: load.worker.running, description="the worker waits", duration_s=1.5)
    load.lane.server.start()
    load.finish()
    load.assert_nobody_was_judged()
    load.assert_back()


def test_an_outage_longer_than_the_lease_costs_no_message(
    nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    load = Load(LaneUnderTest(nodes, own_server, tmp_path, COUNTER_LEASE="2", COUNTER_LEADER_LEASE="2"))
    load.begin()
    with load.away(own_server.kill):
        holds_for(lambda: load.worker.running, description="the worker waits", duration_s=3)
    own_server.start()
    load.finish()
    load.assert_back()
    assert load.registered().keys() == load.incarnations.keys()


def test_reset_connections_are_opened_again(load: Load) -> None:
    load.begin(share=8)
    for part in (6, 4, 2):
        load.wait_part(part)
        for kind in ("normal", "pubsub"):
            load.lane.redis.client_kill_filter(_type=kind, skipme=True)
    load.finish()
    load.assert_nobody_was_judged()


# A frozen server, below, stops answering for longer.
@pytest.mark.long
def test_a_server_that_stops_answering_for_a_while_is_waited_out(load: Load) -> None:
    load.begin()
    load.lane.redis.client_pause(1500, all=True)
    load.finish()
    load.assert_nobody_was_judged()


def test_a_frozen_server_is_waited_out(load: Load) -> None:
    load.begin()
    load.lane.server.pause()
    try:
        holds_for(lambda: load.worker.running, description="the worker waits", duration_s=4)
    finally:
        load.lane.server.resume()
    load.finish()
    load.assert_nobody_was_judged()


def test_a_slow_server_only_slows_the_lane_down(own_server: EmbeddedServer, tmp_path: Path) -> None:
    with Proxy(own_server.port) as proxy, closing(ProcessYard(tmp_path, proxy.url)) as yard:
        # The default leader lease. One renewal may take a quarter of it.
        lane = LaneUnderTest(yard, own_server, tmp_path, COUNTER_LEASE=str(LEASE_S), COUNTER_LEADER_LEASE="5")
        load = Load(lane, each=10)
        proxy.delay_s = 0.03
        load.begin()
        # A round trip takes 0.2 s. The leader's checks wait for a dozen of them, and must leave time for messages.
        proxy.delay_s = 0.1
        before = load.lane.count("done")
        wait_until(lambda: load.lane.count("done") > before + 40, description="some more to be done", timeout_s=90)
        proxy.delay_s = 0.0
        proxy.cut()
        load.finish()
        load.assert_nobody_was_judged()
        assert proxy.accepted > 10


def test_a_full_server_refuses_producers_only_and_the_lane_drains(load_of_each: Load) -> None:
    load, lane = load_of_each, load_of_each.lane
    load.begin()
    # Effects are written with their outcome. These outcomes are written alone.
    for n in range(100):
        lane.push(f"I{n % 5}", {"n": n}, "counter.ignores")
    lane.push("F", {"n": 0, "until": 3}, "counter.flaky")
    lane.redis.config_set("maxmemory", "1")

    with pytest.raises(redis.exceptions.OutOfMemoryError):
        lane.push("T0", {"n": 0})
    # All messages that are in the stream are done while there is no room.
    lane.wait_done(load.before + load.total + 101, timeout_s=90)
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        lane.push("T0", {"n": 0})
    assert lane.log("F") == [0]
    load.finish()
    load.assert_nobody_was_judged()

    lane.redis.config_set("maxmemory", "0")
    load.push(2)
    lane.wait_done(load.before + load.total + 101 + 2 * load.tickets)
    lane.assert_logs(load.tickets, load.pushed)


def test_a_server_that_became_a_replica_is_waited_out(load_of_each: Load) -> None:
    load, lane = load_of_each, load_of_each.lane
    load.begin()
    # A replica of a primary that does not exist: it answers reads, and keeps its data.
    # A standby only asks who leads, which a replica answers.
    with load.away(lambda: lane.redis.execute_command("REPLICAOF", "127.0.0.1", "1"), for_all=False):
        before = lane.count("done")
        holds_for(lambda: lane.count("done") == before, description="nothing is done", duration_s=1.5)
    lane.redis.execute_command("REPLICAOF", "NO", "ONE")
    load.finish()
    load.assert_nobody_was_judged()
    load.assert_back()


def test_a_disk_that_refuses_snapshots_is_waited_out(load_of_each: Load) -> None:
    load, lane = load_of_each, load_of_each.lane
    load.begin()
    in_the_way = lane.server.data_dir / "dump.rdb"
    in_the_way.mkdir()
    lane.redis.config_set("save", "3600 1")
    lane.redis.bgsave()
    wait_until(
        lambda: lane.redis.info("persistence")["rdb_last_bgsave_status"] == "err", description="a snapshot to fail"
    )
    with pytest.raises(redis.ResponseError, match="MISCONF"):
        lane.push("T0", {"n": 0})
    in_the_way.rmdir()
    lane.redis.config_set("save", "")
    load.finish()
    load.assert_nobody_was_judged()


def test_a_server_that_takes_long_to_load_is_waited_out(valkey_binary: Path, tmp_path: Path) -> None:
    folder = tmp_path / "server"
    server = EmbeddedServer(binary=valkey_binary, data_dir=folder, start_timeout_s=90)
    with server, closing(ProcessYard(tmp_path, server.url)) as yard:
        load = Load(make_lane(yard, server, tmp_path))
        load.begin()
        with load.away(server.stop):
            holds_for(lambda: load.worker.running, description="the worker waits", duration_s=1.5)
        # From now on each entry of the file takes longer to load, and the server answers LOADING meanwhile.
        slow = EmbeddedServer(
            port=server.port,
            binary=valkey_binary,
            data_dir=folder,
            start_timeout_s=90,
            options={"key-load-delay": "900", "loading-process-events-interval-bytes": "1024"},
        )
        with slow:
            assert "Done loading" in slow.log_tail(100)
            load.finish()
            load.assert_nobody_was_judged()
            load.assert_back()
