"""The largest messages, as many as allowed: memory and commands are bounded in bytes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis import Redis
from redis.exceptions import ResponseError

from bridge.operate.orders import give
from bridge.operate.replay import BATCH
from bridge.protocol.orders import Replay
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import MasterNode
from bridge.testing.nodes.yard import ProcessYard
from bridge.testing.waiting import wait_until
from tests.integration.lanes import LaneUnderTest

#: Just below `bridge_max_payload`.
LARGE = 1024 * 1024 - 64
#: Number of tickets of these messages.
TICKETS = 30
MB = 1024 * 1024
#: How many times as long as a plain read of 8 MB one of our commands may take on the server.
TIMES_THE_PROBE = 8


@pytest.fixture
def server(valkey_binary: Path) -> Iterator[EmbeddedServer]:
    """A server that writes nothing to disk, since gigabytes pass through it."""
    options = {"save": "", "slowlog-log-slower-than": "1000", "slowlog-max-len": "10000"}
    with EmbeddedServer(binary=valkey_binary, append_only=False, options=options) as started:
        yield started


@pytest.fixture
def lane(server: EmbeddedServer, tmp_path: Path) -> Iterator[LaneUnderTest]:
    yard = ProcessYard(tmp_path, server.url)
    yield LaneUnderTest(yard, server, tmp_path, COUNTER_RETENTION="0")
    yard.close()


def push(redis: Redis, stream: str, count: int, *, tickets: int = TICKETS, task: str = "") -> list[str]:
    """Pushes ``count`` large messages of ``tickets`` tickets in turn. Returns their ids. A ``task`` that holds does so
    in the first message, until the file ``gate`` is there.
    """
    ids: list[Any] = []
    for n in range(count):
        ticket, place = n % tickets, n // tickets
        text = json.dumps({"n": place, **({} if n or not task else {"gate": "gate"}), "fill": ""})
        text = text[:-2] + "x" * (LARGE - len(text)) + text[-2:]
        fields: dict[Any, Any] = {"ticket_id": f"T{ticket}", "payload": text, **({"task": task} if task else {})}
        ids.append(redis.xadd(stream, fields))
    return ids


def commands(redis: Redis) -> list[tuple[int, str]]:
    """(µs, command) of the server's slowest commands, the slowest first."""
    slowlog: list[Any] = redis.slowlog_get(10_000)
    return sorted(((entry["duration"], entry["command"][:60].decode()) for entry in slowlog), reverse=True)


@contextmanager
def probing(server: EmbeddedServer) -> Iterator[list[int]]:
    """Reads 8 MB now and then. Collects how long the server took, in µs: other processes may use the machine, too."""
    with server.client() as redis:
        for n in range(8):
            redis.xadd("probe", {"fill": "x" * LARGE}, id=f"{n + 1}-0")
        found: list[int] = []
        over = threading.Event()

        def probe() -> None:
            while not over.wait(0.1):
                redis.xrange("probe")

        thread = threading.Thread(target=probe)
        thread.start()
        try:
            yield found
        finally:
            over.set()
            thread.join()
        found += [us for us, command in commands(redis) if command.startswith("XRANGE probe")]


def peak_mb(pid: int | None) -> float:
    """The most memory that the process ever had."""
    status = Path(f"/proc/{pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def now_mb(server: EmbeddedServer) -> float:
    """The server's memory. `peak_mb` forgets what it had before."""
    Path(f"/proc/{server.pid}/clear_refs").write_text("5")
    return psutil.Process(server.pid).memory_info().rss / MB


@pytest.mark.parametrize(
    "count",
    [pytest.param(150, id="150"), pytest.param(5000, id="5000", marks=[pytest.mark.long, pytest.mark.timeout(1800)])],
)
def test_waiting_megabytes_delay_no_other_ticket(count: int, lane: LaneUnderTest) -> None:
    # Given waiting messages of a megabyte each
    redis = lane.redis
    push(redis, lane.keys.stream, count)
    lane.env |= {"COUNTER_LEASE": "60", "COUNTER_LEADER_LEASE": "10"}
    redis.slowlog_reset()
    before = now_mb(lane.server)
    with probing(lane.server) as probes:
        lane.worker("w1")
        master = lane.master("m1")
        # When they are handled, with a leader lease of ten seconds
        lane.wait_done(count, timeout_s=180)
    # Then all were handled in order, under the first leader
    assert lane.count("dead") == 0
    assert redis.get(lane.keys.term) == "1"
    for ticket in range(TICKETS):
        assert lane.log(f"T{ticket}") == list(range(len(range(ticket, count, TICKETS))))
    # And no command blocked the server for long, and the master's memory stayed small
    ours = [(us, text) for us, text in commands(redis) if text.startswith(("EVAL", "X")) and "probe" not in text]
    slow, late = [us for us, _ in ours], sum(us > 50_000 for us, _ in ours)
    print(f"probes {max(probes)} µs; ours that took 1 ms: {len(ours)}, {late} of them 50 ms, slowest {ours[:5]},")
    print(f"server {peak_mb(lane.server.pid) - before:.0f} MB")
    print(f"p99 {slow[len(slow) // 100]} µs, median {slow[len(slow) // 2]} µs; master {peak_mb(master.pid):.0f} MB")
    # Other processes use this machine, too: some of many commands were interrupted. What reads all in one command needs
    # the memory for it.
    assert ours[max(3, len(ours) // 200)][0] < TIMES_THE_PROBE * max(probes), (max(probes), ours[:5])
    assert peak_mb(lane.server.pid) - before < 80
    assert peak_mb(master.pid) < 300


def forgotten(lane: LaneUnderTest, master: MasterNode) -> None:
    del master
    lane.redis.xgroup_delconsumer(lane.keys.stream, lane.keys.group, "master")


def forgotten_without_a_leader(lane: LaneUnderTest, master: MasterNode) -> None:
    master.kill_main()
    master.wait()
    forgotten(lane, master)
    master.start()


@pytest.mark.parametrize("deed", [forgotten, pytest.param(forgotten_without_a_leader, marks=pytest.mark.long)])
def test_a_repair_of_manual_changes_does_not_read_all_messages_at_once(
    deed: Callable[[LaneUnderTest, MasterNode], None], lane: LaneUnderTest
) -> None:
    # Given a ticket with so many megabytes waiting that few of them are in memory
    count, redis = 150, lane.redis
    lane.env["COUNTER_LEASE"] = "60"
    master = lane.master("m1")
    lane.worker("w1")
    push(redis, lane.keys.stream, count, tickets=1, task="counter.held")
    wait_until(lambda: pending(lane) == count, description="all to be read", timeout_s=300)
    # When they are removed from the pending list by hand, and then handled
    before = now_mb(lane.server)
    deed(lane, master)
    wait_until(lambda: pending(lane) == count, description="all to be pending again", timeout_s=300)
    repaired = peak_mb(lane.server.pid) - before
    (lane.ledger / "gate").touch()
    lane.wait_done(count)
    # Then they were handled in order, and neither the server nor the master had many of them in memory at once. What
    # the server had there it also had to read and send, while nobody else got an answer.
    assert lane.log("T0") == list(range(count))
    handled = peak_mb(lane.server.pid) - before
    print(f"server {repaired:.0f} MB, then {handled:.0f} MB; master {peak_mb(master.pid):.0f} MB")
    # A survey of all in one command, 16 entries at a time, took 35 MB; all at once, 118.
    assert repaired < 20
    assert handled < 75
    assert peak_mb(master.pid) < 300


def pending(lane: LaneUnderTest) -> int:
    try:
        pending: Any = lane.redis.xpending(lane.keys.stream, lane.keys.group)
    except ResponseError:
        return -1
    return int(pending["pending"])


def test_replayed_messages_do_not_fill_the_memory(lane: LaneUnderTest) -> None:
    # Given dead letters of large messages, more than a master may hold in memory, of tickets with other messages
    redis, keys = lane.redis, lane.keys
    ids = push(redis, keys.stream, 300)
    redis.xgroup_create(keys.stream, keys.group, "0")
    redis.xreadgroup(keys.group, "somebody", {keys.stream: ">"}, count=1000, noack=True)
    redis.xgroup_delconsumer(keys.stream, keys.group, "somebody")
    letters: list[Any] = [redis.xadd(keys.dead, {"message_id": id_, "reason": "gave up"}) for id_ in ids]
    master = lane.master("m1")
    lane.wait_leader()
    # When all are replayed while no worker runs
    for start in range(0, 300, BATCH):
        order = Replay(letters[start : start + BATCH])
        answer = give(lane.server.client(), keys, order)
        assert (len(answer["replayed"]), answer["refused"]) == (BATCH, [])
    waited = peak_mb(master.pid)
    # Then they wait, and are later handled in order
    lane.worker("w1")
    lane.wait_done(300)
    lane.assert_logs(TICKETS, 10)
    print(f"master {waited:.0f} MB, then {peak_mb(master.pid):.0f} MB")
    assert max(waited, peak_mb(master.pid)) < 300
