"""A stream gets another number of partitions while it is used: nothing is lost, nothing overtakes, no key stays."""

from __future__ import annotations

import json
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from celery import Celery

import bridge
from bridge.app.finding import load_app
from bridge.app.joining import store_layout
from bridge.master.process import Master
from bridge.operate import repartitioning
from bridge.protocol.agreement import arrive
from bridge.routing.errors import ConfigurationError
from bridge.routing.keys import LaneKeys, follows_key, layout_copy_key, layout_key, newer_key
from bridge.routing.layouts import InLayout, check_layouts, find_layout
from bridge.routing.partitions import Layout
from bridge.routing.repartitioning import next_layout
from bridge.settings.lane import LaneSettings
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import Node, NodeYard, WorkerNode, broker_environment
from bridge.testing.nodes.process import python_module
from bridge.testing.waiting import wait_until
from bridge.worker.main.server_check import check_lane_server
from tests.chaos.run import default_seed
from tests.commands import command_line
from tests.integration.lanes import APP, LaneUnderTest
from tests.integration.servers import run_command
from tests.keycheck import check_keys

STREAM, GROUP = "ticket_stream", "concurrency_stream_group"
TICKETS = 9


def append(self: Any, ticket_id: str, payload: Any) -> None:
    """A task that does nothing."""
    del self, ticket_id, payload


class Splitting:
    """`tests.apps.counter` on a stream that is repartitioned, with a producer of its own."""

    def __init__(self, nodes: NodeYard, server: EmbeddedServer, folder: Path) -> None:
        self.server = server
        self.lane = LaneUnderTest(nodes, server, folder)
        self.redis: Any = self.lane.redis
        app = Celery("counter", broker=server.url, set_as_current=False)
        bridge.install(app)
        self.task: Any = app.task(bind=True, name="counter.append", lazy=False, shared=False)(append)
        self.pushed = 0
        self.started = 0

    @property
    def layout(self) -> Layout:
        with self.server.client() as redis:
            return find_layout(redis, STREAM, 1)

    def streams(self) -> tuple[str, ...]:
        return self.layout.streams(STREAM)

    def push(self, rounds: int, ms: float = 0) -> None:
        """The next messages of every ticket."""
        for _ in range(rounds):
            self.task.push_many([(f"T{t}", {"n": self.pushed, "ms": ms}) for t in range(TICKETS)])
            self.pushed += 1

    @contextmanager
    def pushing(self, ms: float = 0) -> Iterator[None]:
        """Pushes all the time within the block."""
        stop = threading.Event()

        def run() -> None:
            while not stop.is_set():
                self.push(1, ms)
                stop.wait(0.5)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def command(self, *arguments: object) -> Node:
        """Starts a command on the stream."""
        self.started += 1
        return self.lane.nodes.process(
            f"command-{self.started}",
            python_module("bridge", "-A", APP, "stream", *map(str, arguments)),
            env={**broker_environment(self.server.url), **self.lane.env},
            wait=False,
        )

    def repartition(self, count: int, *more: object, code: int = 0) -> str:
        done = self.run("stream", "repartition", count, *more, code=code)
        return done.stdout + done.stderr

    def run(self, *arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end."""
        done = run_command({**broker_environment(self.server.url), **self.lane.env}, *map(str, arguments))
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def handled(self) -> list[int]:
        with self.redis.pipeline(transaction=False) as pipe:
            for ticket in range(TICKETS):
                pipe.llen(f"log:T{ticket}")
            return [int(count) for count in pipe.execute()]

    def wait_handled(self, count: int) -> None:
        """Waits until so many messages of each ticket are handled."""
        wait_until(
            lambda: min(self.handled()) >= count,
            description=f"{count} messages of each ticket",
            timeout_s=180,
        )

    def check(self) -> None:
        """Every message was handled once, in the order of its ticket; only keys of the layout are there."""
        self.wait_handled(self.pushed)
        self.lane.assert_logs(TICKETS, self.pushed)
        self.lane.assert_no_overlap()
        lanes = [LaneKeys(one, GROUP) for one in self.streams()]
        check_keys(self.redis, *lanes, allowed=("log:*", layout_key(STREAM), layout_copy_key(STREAM), "_kombu.*"))


def wait_threads_of_pool(worker: WorkerNode, each: int) -> None:
    """Waits until each pool process of the worker has so many threads."""

    def threads() -> set[int]:
        found = set()
        for process in worker.children():
            with suppress(psutil.NoSuchProcess):
                found.add(process.num_threads())
        return found

    wait_until(lambda: threads() == {each}, description=f"{each} threads of each pool process")


def run_bridge(splitting: Splitting, *arguments: object) -> str:
    """The output of a command that succeeds."""
    return splitting.run(*arguments).stdout


@pytest.fixture
def splitting(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> Splitting:
    return Splitting(nodes, own_server, tmp_path)


@pytest.mark.parametrize("counts", [(3, 1), pytest.param((4, 6, 1), marks=pytest.mark.long)], ids=str)
def test_a_stream_is_split_and_joined_again_under_load(splitting: Splitting, counts: tuple[int, ...]) -> None:
    lane = splitting.lane
    worker = lane.worker("w1", wait=False)
    lane.worker("w2", wait=False)
    lane.master("m1", wait=False)
    pid = worker.pid
    for count in counts:
        # The old partitions have messages of every ticket when the layout changes.
        splitting.push(4, ms=150)
        with splitting.pushing(ms=1):
            splitting.repartition(count)
            splitting.wait_handled(splitting.pushed + 1)
        splitting.push(1)
        assert splitting.layout.older is splitting.layout.leaving is None
        assert splitting.streams() == tuple(f"{STREAM}:g{splitting.layout.generation}:p{n}" for n in range(count))
        # A pool process has a thread for each lane that it has not left, and its own.
        wait_threads_of_pool(worker, count + 1)
    assert splitting.layout.generation == len(counts)
    assert worker.pid == pid
    splitting.check()


def test_a_worker_that_was_frozen_meanwhile_comes_back_to_the_new_partitions_only(splitting: Splitting) -> None:
    lane = splitting.lane
    frozen = lane.worker("w1")
    lane.worker("w2")
    lane.master("m1")
    splitting.push(1)
    splitting.wait_handled(1)
    # Given a worker that stands still, so that its lease ends, until the old partitions are deleted
    frozen.pause()
    splitting.push(1)
    splitting.repartition(3)
    # When it goes on
    frozen.resume()
    keys = [LaneKeys(one, GROUP) for one in splitting.streams()]
    wait_until(
        lambda: all(lane.redis.hexists(one.consumers, frozen.hostname()) for one in keys),
        description="the worker to be back",
        timeout_s=60,
    )
    # Then it works there, and nothing of it is left in the old ones
    splitting.push(2)
    splitting.check()


def test_the_command_may_be_killed_anywhere_and_run_again(splitting: Splitting) -> None:
    seed = default_seed("REPARTITION_SEED")
    print(f"seed {seed}")
    dice = random.Random(seed)
    lane = splitting.lane
    lane.worker("w1", wait=False)
    lane.master("m1", wait=False)
    lane.master("m2", wait=False)
    splitting.push(2)
    splitting.wait_handled(1)
    with splitting.pushing(ms=1):
        killed = 0
        while True:
            command = splitting.command("repartition", 3)
            until = time.monotonic() + (dice.uniform(0.2, 4) if killed < 6 else 60)
            wait_until(
                lambda command=command, until=until: not command.running or time.monotonic() > until,  # type: ignore[misc]
                description="the command to end, or its time to be over",
                timeout_s=90,
            )
            if not command.running:
                break
            command.kill_main()
            killed += 1
            if killed == 2:
                # And a master with it, whatever it led.
                lane.nodes.masters()[0].vanish()
        assert command.exit_code == 0, command.logs()
    print(f"the command was killed {killed} times")
    assert splitting.layout.shape == ((3, 1), None, None)
    splitting.check()


def test_what_is_undone_in_an_old_partition_holds_its_ticket_and_the_end(splitting: Splitting) -> None:
    lane = splitting.lane
    lane.worker("w1", wait=False)
    lane.master("m1", wait=False)
    splitting.push(1)
    splitting.wait_handled(1)
    # Given a parked ticket with a message in the old partition
    assert run_bridge(splitting, "ticket", "park", "T1") == "T1 is parked\n"
    splitting.push(1)
    wait_until(lambda: sum(splitting.handled()) == 2 * TICKETS - 1, description="the others to be handled")
    # When the stream is split
    said = splitting.repartition(2, "--timeout", 5, code=1)
    # Then new messages of other tickets are handled, and those of the parked one wait
    assert f"{STREAM} has 2 partitions for new messages" in said
    assert "ticket_stream has messages of group concurrency_stream_group that are not done" in said
    assert said.count("\n") < 6, said
    splitting.push(1)
    wait_until(lambda: sum(splitting.handled()) == 3 * TICKETS - 2, description="the others to go on", timeout_s=180)
    shown = json.loads(run_bridge(splitting, "ticket", "show", "T1", "--json"))["why"]
    assert f"it waits for the old partition {STREAM}, where the ticket is parked" in shown
    assert " ticket release T1`" in shown
    listed = run_bridge(splitting, "stream", "list")
    assert listed.count("old partition") == 1
    audited = json.loads(run_bridge(splitting, "audit", "--json"))
    assert (audited["rows"]["done"], audited["tickets"]) == (3 * TICKETS - 2, TICKETS)
    assert splitting.repartition(3, code=1).startswith(
        f"Error: {STREAM} is being repartitioned from 1 to 2: finish that first"
    )
    # And after the release, by the command that was shown, everything goes on in its order
    run_bridge(splitting, "ticket", "release", "T1")
    splitting.repartition(2)
    splitting.check()


def test_a_group_that_no_app_here_knows_has_the_new_partitions_from_their_first_entry(splitting: Splitting) -> None:
    splitting.redis.xgroup_create(STREAM, "strangers", "0", mkstream=True)
    assert splitting.repartition(4).endswith("set bridge_partitions = 4 in this app\n")
    for stream in splitting.streams():
        [group] = splitting.redis.xinfo_groups(stream)
        assert (group["name"], group["last-delivered-id"]) == ("strangers", "0-0")
    assert not splitting.redis.exists(STREAM)


def test_the_command_waits_while_the_layout_is_lost(splitting: Splitting) -> None:
    splitting.redis.xgroup_create(STREAM, "strangers", "0", mkstream=True)
    splitting.redis.xadd(STREAM, {"ticket_id": "T"})
    command = splitting.command("repartition", 2)
    command.wait_for_log("\n", timeout=60)
    text = splitting.redis.get(layout_key(STREAM))
    # FLUSHALL while it waits, and a master that stores the layout again
    splitting.redis.flushall()
    command.wait_for_log("is lost", timeout=60)
    splitting.redis.set(layout_key(STREAM), text)
    assert command.wait() == 0, command.logs()
    assert splitting.layout.shape == ((2, 1), None, None)
    # And what has the number already changes nothing
    assert splitting.repartition(2) == f"{STREAM} has 2 partitions\nset bridge_partitions = 2 in this app\n"


#: What is refused -> the exit code, and the end of what is said.
REFUSED = {
    "0": (2, "0 is not in the range 1<=x<=4096"),
    "4097": (2, "4097 is not in the range"),
    "-1": (2, "-1"),
    "many": (2, "'many' is not a valid integer"),
    "128": (1, "more than 64 new ones would follow an old one"),
}


def test_what_cannot_be_done_is_refused_in_one_line(
    valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with command_line(tmp_path, monkeypatch, valkey.url) as shell, valkey.client() as redis:
        load_app(shell.app).tasks["shop.update"].push("T", {"n": 0})
        before = sorted(redis.keys())
        for given, (code, error) in REFUSED.items():
            said = shell("stream", "repartition", given)
            assert said.exit_code == code, said.output
            assert error in said.stderr.splitlines()[-1]
            assert not said.stdout
            assert sorted(redis.keys()) == before


def test_versions_and_a_repartition_exclude_each_other(splitting: Splitting) -> None:
    splitting.push(1)
    splitting.redis.set(follows_key(f"{STREAM}:v2"), f'["{STREAM}"]')
    splitting.redis.sadd(newer_key(STREAM), f"{STREAM}:v2")
    said = splitting.repartition(4, code=1)
    assert said.startswith(f"Error: {STREAM} has other versions ({STREAM}:v2): retire the older ones first")
    assert splitting.streams() == (STREAM,)
    with splitting.server.client() as redis:
        stored = next_layout(Layout(2), 3)
        redis.set(layout_key(STREAM), stored.text)
        with pytest.raises(ConfigurationError, match="is being repartitioned: finish that with"):
            check_layouts(redis, f"{STREAM}:v2", Layout(3, 1), STREAM)


def test_old_partitions_stay_as_long_as_their_entries_are_kept(splitting: Splitting) -> None:
    lane = splitting.lane
    lane.env["COUNTER_RETENTION"] = "3600"
    lane.worker("w1", wait=False)
    master = lane.master("m1", wait=False)
    splitting.push(1)
    said = splitting.repartition(2)
    assert "the old partitions keep their done entries until" in said
    assert (splitting.layout.older, splitting.layout.leaving) == (None, Layout())
    assert splitting.redis.xlen(STREAM) == TICKETS
    splitting.push(1)
    splitting.wait_handled(2)
    # And the groups of partitions that had no message yet are not taken for destroyed ones
    assert "repairing it" not in master.logs()
    splitting.repartition(2, "--drop-kept")
    assert not splitting.redis.exists(STREAM)
    assert splitting.layout.leaving is None


@pytest.mark.parametrize("member", ["master", "worker"])
def test_a_member_that_starts_while_the_old_partitions_go_makes_nothing_there(
    own_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, member: str
) -> None:
    app = bridge.install(Celery("counter", broker=own_server.url, set_as_current=False))
    app.task(bind=True, name="counter.append", lazy=False, shared=False)(append)
    module = {"master": "bridge.master.lineup", "worker": "bridge.worker.main.server_check"}[member]
    with own_server.client() as redis:
        redis.xgroup_create(STREAM, GROUP, "0", mkstream=True)
        repartitioning.begin(redis, STREAM, Layout(), 2)
        looked = 0

        def goes_then(app: Celery, client: Any) -> Layout:
            # The old partitions go right after the member has looked at the layout
            nonlocal looked
            found = store_layout(app, client)
            looked += 1
            if looked == 1:
                assert found.older is not None
                assert repartitioning.leave(redis, STREAM, find_layout(redis, STREAM, 1)) == ""
                assert repartitioning.clear(redis, STREAM, find_layout(redis, STREAM, 1)) == ""
            return found

        monkeypatch.setattr(f"{module}.store_layout", goes_then)
        if member == "master":
            master = Master(app, lambda _line: None)
            master.stop()
        else:
            check_lane_server(app)
        assert looked == 2
        assert app.bridge.layout.shape == ((2, 1), None, None)
        left = {key.decode() for key in redis.scan_iter()}
        assert STREAM not in left
        assert not any(key.startswith(f"{{{STREAM}}}:") for key in left), left
        assert LaneKeys(f"{STREAM}:g1:p0", GROUP).about in left


def test_a_master_whose_lane_is_left_when_it_begins_to_lead_goes_on_with_the_lanes_of_the_new_layout(
    own_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = bridge.install(Celery("counter", broker=own_server.url, set_as_current=False))
    app.task(bind=True, name="counter.append", lazy=False, shared=False)(append)
    with own_server.client() as redis:
        redis.xgroup_create(STREAM, GROUP, "0", mkstream=True)
        repartitioning.begin(redis, STREAM, Layout(), 2)
        left: list[str] = []

        def leaves_then(client: Any, app: Celery, lane: LaneSettings, layout: InLayout) -> None:
            # The old stream is left after this master was elected for it
            if not left:
                left.append(lane.stream)
                assert repartitioning.leave(redis, STREAM, find_layout(redis, STREAM, 1)) == ""
            arrive(client, app, lane, layout)

        monkeypatch.setattr("bridge.leader.leader.arrive", leaves_then)
        said: list[str] = []
        master = Master(app, said.append)
        running = threading.Thread(target=master.run, daemon=True)
        running.start()
        leading = [f"{GROUP} on {STREAM}:g1:p{number}: leading" for number in range(2)]
        wait_until(
            lambda: not running.is_alive() or all(any(line.startswith(one) for line in said) for one in leading),
            description="both new partitions to be led",
        )
        assert running.is_alive(), said
        assert left == [STREAM]
        wait_until(
            lambda: repartitioning.clear(redis, STREAM, find_layout(redis, STREAM, 1)) == "",
            description="the old stream to be deleted",
        )
        assert not redis.exists(STREAM, LaneKeys(STREAM, GROUP).leader)
        master.stop()
        running.join(timeout=60)
        assert not running.is_alive()
        assert said[-1] == "stopped"
