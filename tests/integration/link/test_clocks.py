"""Clocks that are set while the lane works: no worker counts as dead by one clock alone (I5a)."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Iterator
from operator import eq
from pathlib import Path
from typing import Any

import pytest

from bridge.routing.message_options import EXPIRED
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.nodes.yard import ProcessYard
from bridge.testing.waiting import wait_until
from tests.integration.lanes import LaneUnderTest
from tests.nodes.clocks import SettableClock

LEASE_S = 4.0
HOUR_S = 3600.0


@pytest.fixture
def clock(tmp_path: Path) -> SettableClock:
    """The server's clock."""
    return SettableClock(tmp_path, "server")


@pytest.fixture
def server(clock: SettableClock, valkey_binary: Path, tmp_path: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(binary=clock.program(valkey_binary), data_dir=tmp_path / "server", append_only=False) as made:
        yield made


@pytest.fixture
def nodes(server: EmbeddedServer, tmp_path: Path) -> Iterator[NodeYard]:
    yard = ProcessYard(tmp_path, server.url)
    yield yard
    yard.close()


@pytest.fixture
def lane(nodes: NodeYard, server: EmbeddedServer, tmp_path: Path) -> LaneUnderTest:
    return LaneUnderTest(nodes, server, tmp_path, COUNTER_LEASE=str(LEASE_S), COUNTER_LEADER_LEASE="2")


@pytest.fixture
def others(tmp_path: Path) -> dict[str, SettableClock]:
    """The clocks of the masters and of the workers."""
    return {name: SettableClock(tmp_path, name) for name in ("m1", "m2", "w1", "w2")}


def running(lane: LaneUnderTest) -> set[int]:
    """The processes in which an execution has begun and not ended, by the ledger of the tasks."""
    found = set()
    for path in lane.ledger.glob("*.jsonl"):
        kinds = [json.loads(line)[0] for line in path.read_text().splitlines() if line.endswith("]")]
        if kinds.count("start") > kinds.count("end"):
            found.add(int(path.stem))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("takes_over", "undone"),
    [(False, False), (True, False), (False, True)],
    ids=["leader", "standby", "undone-at-once"],
)
def test_no_ticket_moves_while_its_worker_runs_it_although_the_servers_clock_ended_all_leases(
    lane: LaneUnderTest, clock: SettableClock, takes_over: bool, undone: bool
) -> None:
    """One worker's main process is frozen, so it cannot learn that its lease was ended, and its pool works on. Another
    worker, half of it idle, has a new lease at once, and would get all tickets.
    """
    leader = lane.master("m1")
    if takes_over:
        # Otherwise the second one may be the first to lead.
        leader.wait_for_log("leading, term", timeout=30)
        standby = lane.master("m2")
        standby.wait_for_log("standing by: ", timeout=30)
    first = lane.worker("w1", "--concurrency=4", wait=False)
    second = lane.worker("w2", "--concurrency=4", wait=False)
    for worker in (first, second):
        worker.wait_ready()
    lane.wait_known(leader, first, second)
    lane.push_many(4, 1)
    lane.wait_done(4)
    # Wait for one lease: a new master ends no lease in that time, which is not what this test is about.
    old = time.monotonic() + LEASE_S + 1
    wait_until(lambda: time.monotonic() > old, description="the masters to be older than a lease")
    lane.push_many(4, 2, ms=2200, first=1)
    wait_until(lambda: len(running(lane)) == 4, description="all processes of both workers to run a ticket")
    assert running(lane) & {process.pid for process in first.children()}
    first.send(signal.SIGSTOP)
    try:
        ends: Any = [lane.keys.leader, *lane.redis.scan_iter(match=lane.keys.lease("*"))]
        held: Any = lane.redis.mget(ends)
        clock.set(HOUR_S)
        if undone:
            # Reading an expired key deletes it. The master may have the next term by then.
            wait_until(
                lambda: not any(map(eq, held, lane.redis.mget(ends))),
                description="all leases to be over",
                interval_s=0.0,
            )
            clock.set(0)
        if takes_over:
            leader.kill_main()
        # The messages that both workers ran are run again.
        lane.wait_done(4 + 4, timeout_s=180)
    finally:
        first.send(signal.SIGCONT)
    lane.wait_done(4 + 8, timeout_s=180)
    lane.assert_no_overlap()
    lane.assert_logs(4, 3)
    lane.assert_at_rest()
    assert lane.count("dead") == 0


@pytest.mark.slow
@pytest.mark.parametrize("dies", ["worker", "leader"])
def test_a_dead_consumer_is_noticed_after_a_lease_although_the_servers_clock_was_set_back(
    lane: LaneUnderTest, clock: SettableClock, dies: str
) -> None:
    """Its lease key would hold for another hour."""
    leader = lane.master("m1")
    first = lane.worker("w1")
    lane.wait_known(leader, first)
    if dies == "leader":
        standby = lane.master("m2")
        standby.wait_for_log("standing by: ", timeout=30)
    lane.push_many(2, 2, gate="dead")
    lane.push_many(2, 2, first=2)
    wait_until(lambda: len(lane.held()) == 2, description="both tickets to run")
    clock.set(-HOUR_S)
    if dies == "leader":
        leader.kill_main()
    else:
        # No watcher is left that could write a notice.
        first.vanish()
        lane.worker("w2")
    lane.open("dead")
    lane.wait_done(8, timeout_s=90)
    lane.assert_logs(2, 4)
    lane.assert_no_overlap()
    lane.assert_at_rest()


@pytest.mark.slow
@pytest.mark.parametrize("is_led", [False, True], ids=["no-master", "master"])
def test_a_worker_comes_back_after_an_outage_in_which_the_servers_clock_was_set_back(
    lane: LaneUnderTest, clock: SettableClock, is_led: bool
) -> None:
    """As by a failover to a replica whose clock is behind. The worker's own old lease would hold for another hour."""
    leader = lane.master("m1")
    worker = lane.worker("w1")
    lane.wait_known(leader, worker)
    if not is_led:
        leader.kill_main()
    # A server that was only frozen would still get the renewals that were sent meanwhile.
    lane.redis.save()
    lane.server.kill()
    clock.set(-HOUR_S)
    worker.wait_for_log(f"the lease of {worker.hostname()} ended", timeout=60)
    lane.server.start()
    wait_until(lambda: worker.logs().count("registered as") == 2, description="it to be registered", timeout_s=60)
    assert worker.running
    if not is_led:
        lane.master("m2")
    lane.push_many(2, 1)
    lane.wait_done(2, timeout_s=90)


@pytest.mark.slow
def test_a_message_that_ended_before_its_own_id_by_the_clock_does_not_run_again(
    lane: LaneUnderTest, clock: SettableClock
) -> None:
    """Pushed while the server's clock was ahead, done when it had been set back: its end is older than its entry."""
    first = lane.master("m1")
    lane.push("T0", {"n": 0})
    worker = lane.worker("w1")
    lane.wait_done(1)
    worker.terminate()
    clock.set(60.0)
    for n in (1, 2, 3):
        lane.push("T0", {"n": n})
    clock.set(0.0)
    lane.worker("w2")
    lane.wait_done(4)
    lane.assert_at_rest()
    clock.set(HOUR_S)
    first.kill_main()
    second = lane.master("m2")
    second.wait_for_log("read the lane: ", timeout=30)
    lane.push("T0", {"n": 4})
    lane.wait_done(5, timeout_s=90)
    assert lane.log("T0") == [0, 1, 2, 3, 4]
    assert "acknowledged by hand" not in second.logs()
    lane.assert_at_rest()


#: Seconds by which a clock is set: less than a noticeable step, about a lease, and far more.
STEPS_S = (0.02, 0.3, 1.5, LEASE_S, 60.0, HOUR_S, 400 * 24 * HOUR_S)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "steps"), [(1, 6), *(pytest.param(seed, 25, marks=pytest.mark.long) for seed in range(2, 12))]
)
def test_the_lane_works_on_and_charges_no_message_whichever_clock_is_set(
    lane: LaneUnderTest, clock: SettableClock, others: dict[str, SettableClock], seed: int, steps: int
) -> None:
    """Also while a main process is frozen for less than its lease, and while the leader changes."""
    print(f"seed {seed}")
    chosen = random.Random(seed)
    masters = {name: lane.master(name, wait=False, **others[name].env) for name in ("m1", "m2")}
    workers = [lane.worker(name, wait=False, **others[name].env) for name in ("w1", "w2")]
    for node in (*masters.values(), *workers):
        node.wait_ready()
    lane.wait_consumers(2)
    pushed = 0
    for _ in range(steps):
        lane.push_many(8, 2, ms=chosen.choice((5, 200, 900)), first=2 * pushed)
        pushed += 1
        still = chosen.choice((*workers, *masters.values(), None, None))
        if still is not None:
            still.send(signal.SIGSTOP)
        name = chosen.choice(("server", "server", *others))
        step_s = chosen.choice(STEPS_S) * chosen.choice((1, 1, -1))
        target = clock if name == "server" else others[name]
        # Not to before 1970.
        target.set(max(-20 * 365 * 24 * HOUR_S, target.ahead_s + step_s))
        print(f"{name} is set by {step_s:g} s, while {still.name() if still else 'nobody'} stands still")
        done = lane.count("done")
        wait_briefly = time.monotonic() + chosen.uniform(0.3, 0.6 * LEASE_S)
        wait_until(lambda until=wait_briefly: time.monotonic() > until, description="some time to go by")  # type: ignore[misc]
        if still is not None:
            still.send(signal.SIGCONT)
        if chosen.random() < 0.5:
            wait_until(lambda done=done: lane.count("done") > done, description="work to go on", timeout_s=90)  # type: ignore[misc]
    lane.wait_done(8 * 2 * pushed, timeout_s=180)
    lane.assert_no_overlap()
    lane.assert_logs(8, 2 * pushed)
    lane.assert_at_rest()
    assert lane.count("dead") == 0
    assert set(attempts(lane)) == {1}, "nobody is to blame for a clock"


@pytest.mark.slow
@pytest.mark.parametrize(
    "ahead_s", [pytest.param(HOUR_S, id="ahead"), pytest.param(-HOUR_S, id="behind", marks=pytest.mark.long)]
)
def test_a_message_expires_by_the_servers_clock_whatever_time_its_worker_has(
    lane: LaneUnderTest, others: dict[str, SettableClock], ahead_s: float
) -> None:
    others["w1"].set(ahead_s)
    lane.master("m1")
    lane.worker("w1", "--concurrency=1", wait=True, **others["w1"].env)
    lane.wait_consumers(1)

    def push(ticket: str, n: int, ms: int = 0, **options: int) -> str:
        fields: dict[Any, Any] = {"ticket_id": ticket, "payload": json.dumps({"n": n, "ms": ms}), **options}
        return str(lane.redis.xadd(lane.keys.stream, fields))

    # It takes the only process. The next one was sent to the worker before it expires, and its turn comes later.
    push("busy", 1, ms=2500)
    wait_until(lambda: lane.executions() == 1, description="the first task to begin")
    now_ms = int(time.time() * 1000)
    late = push("late", 1, expires=now_ms + 1000)
    push("in-time", 1, expires=now_ms + 1_800_000)
    lane.push("by-task", {"n": 1}, "counter.expires")
    lane.wait_done(4)
    [letter] = lane.dead_letters()
    assert (letter["message_id"], letter["reason"], letter["attempts"]) == (late, EXPIRED, "0")
    assert [lane.log(ticket) for ticket in ("busy", "late", "in-time", "by-task")] == [[1], [], [1], [1]]
    lane.assert_at_rest()


@pytest.mark.slow
@pytest.mark.parametrize(
    "ahead_s", [pytest.param(-HOUR_S, id="behind"), pytest.param(HOUR_S, id="ahead", marks=pytest.mark.long)]
)
def test_a_clock_that_is_put_right_under_a_master_decides_what_is_due_and_how_long_a_backoff_lasts(
    lane: LaneUnderTest, clock: SettableClock, ahead_s: float
) -> None:
    """As after the start of a machine, whose clock a time service sets a moment later."""
    clock.set(ahead_s)
    first = lane.master("m1")
    lane.worker("w1", "--concurrency=1", wait=True)
    lane.wait_consumers(1)
    lane.push("A", {"n": 1})
    lane.wait_done(1)
    clock.set(0)
    first.wait_for_log("the server's clock was set", timeout=30)
    settled = time.monotonic() + LEASE_S
    # It asks for a retry before the clock is settled, and comes again after that.
    lane.push("again", {"n": 1, "countdown": LEASE_S + 4}, "counter.asks_again")
    wait_until(lambda: time.monotonic() > settled, description="the clock to be settled for the master")
    now_ms = int(time.time() * 1000)
    pushed: dict[str, dict[str, int]] = {"in-time": {"expires": now_ms + 60_000}}
    if ahead_s < 0:
        # With ids that are ahead of the clock nothing is delayed.
        pushed["held"] = {"due": now_ms + 500, "hold": 1}
    for ticket, options in pushed.items():
        fields: dict[Any, Any] = {"ticket_id": ticket, "payload": json.dumps({"n": 1}), **options}
        lane.redis.xadd(lane.keys.stream, fields)
    wait_until(lambda: all(lane.log(ticket) == [1] for ticket in pushed), description="what is due", timeout_s=30)
    # The next leader, which never knew another time, goes on with the backoff.
    first.kill_main()
    lane.master("m2")
    lane.wait_done(2 + len(pushed), timeout_s=60)
    assert lane.count("dead") == 0
    lane.assert_at_rest()


def attempts(lane: LaneUnderTest) -> list[int]:
    """The attempts of all executions, by the ledger of the tasks."""
    return [json.loads(line)[4] for path in lane.ledger.glob("*.jsonl") for line in path.read_text().splitlines()]
