"""Any exception of a task, and anything it does to its process, is its message's failure. Worker and master live on."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.waiting import wait_until
from tests.integration.lanes import QUICK, LaneUnderTest

ODD = "tests.apps.odd"
#: Ends, and what their dead letter says.
ENDS = {
    "foreign": "OnlyHere: of nobody's module",
    "exits": "Exits('three')",
    "memory": "MemoryError: none left",
    "retry": "OnlyHere: of nobody's module",
    "reject": "Reject",
    "leaks": "",
    "sys.exit": "RaisedInPool",
    "interrupt": "RaisedInPool",
    "cancelled": "RaisedInPool",
    "greenlet": "RaisedInPool",
    "timeout": "RaisedInPool",
    "shutdown": "RaisedInPool",
    "base": "RaisedInPool",
}
#: The same in a pool within the worker's main process: what it unpickles there does what it says.
ENDS_WITHIN = ENDS | {"exits": "RaisedInPool: SystemExit(3)"}


@pytest.mark.parametrize("bundle_ms", ["10", pytest.param("0", marks=pytest.mark.long)])
def test_a_task_that_breaks_its_process_for_all_others_hurts_only_its_own_message(
    bundle_ms: str, nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    lane = LaneUnderTest(nodes, own_server, tmp_path, ODD_BUNDLE_MS=bundle_ms)
    worker = nodes.worker("w1", app=ODD, arguments=("--concurrency=1", *QUICK), env=lane.env)
    nodes.master("m1", app=ODD, env=lane.env, ready_text="standing by")
    lane.push("bad", {}, task="odd.breaks_the_clock")
    for n in range(10):
        for ticket in range(4):
            lane.push(f"T{ticket}", n, task="odd.ends_quietly")
    lane.wait_done(41)
    assert {letter["ticket_id"] for letter in lane.dead_letters()} <= {"bad"}
    assert lane.count("returned") <= 40
    assert "this pool process ends" in worker.logs()


@pytest.mark.slow
@pytest.mark.parametrize("bundle_ms", ["0", "10"], ids=["plain", "bundles"])
@pytest.mark.parametrize(
    "pool", ["prefork", *(pytest.param(pool, marks=pytest.mark.long) for pool in ("threads", "gevent", "solo"))]
)
def test_no_end_of_a_task_ends_a_worker_or_holds_up_another_ticket(
    pool: str, bundle_ms: str, nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    # A task that takes all descriptors of a process takes those of a whole worker, where its pool is no processes
    ends = [end for end in reversed(ENDS) if end != "leaks" or pool == "prefork"]
    if pool == "solo":
        # Its one thread is that of the worker: a task may stop it, as Celery's own handlers of signals do
        ends.remove("shutdown")
    expected = ENDS if pool == "prefork" else ENDS_WITHIN
    lane = LaneUnderTest(nodes, own_server, tmp_path, ODD_BUNDLE_MS=bundle_ms)
    worker = nodes.worker("w1", app=ODD, arguments=("--concurrency=1", f"--pool={pool}", *QUICK), env=lane.env)
    master = nodes.master("m1", app=ODD, env=lane.env, ready_text="standing by")
    # The one that leaks first, in a pool process that has no connection yet
    for task in ("odd.ends", "odd.ends_quietly"):
        for end in ends:
            lane.push(f"{task} {end}", end, task=task)
            lane.push(f"{task} {end}", "sound", task=task)
            lane.push("healthy", f"{task} {end}", task=task)

    lane.wait_done(6 * len(ends), timeout_s=180)

    assert worker.running
    assert master.running
    assert lane.redis.lrange("log:healthy", 0, -1) == [
        f"{task} {end}" for task in ("odd.ends", "odd.ends_quietly") for end in ends
    ]
    errors = {letter["ticket_id"]: letter["error"] for letter in lane.dead_letters()}
    # A process that had its connection before goes on without another descriptor
    dead = {ticket for ticket in errors if not ticket.endswith("leaks")}
    assert dead == {f"{task} {end}" for task in ("odd.ends", "odd.ends_quietly") for end in ends if end != "leaks"}
    for ticket, error in errors.items():
        assert expected[ticket.split(" ")[1]] in error
    lane.assert_at_rest()


@pytest.mark.slow
@pytest.mark.parametrize("bundle_ms", ["0", "10"], ids=["plain", "bundles"])
@pytest.mark.parametrize(
    "pool", ["threads", *(pytest.param(pool, marks=pytest.mark.long) for pool in ("gevent", "solo", "prefork"))]
)
def test_a_task_that_ends_its_process_is_charged_also_where_that_is_the_whole_worker(
    pool: str, bundle_ms: str, nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    lane = LaneUnderTest(nodes, own_server, tmp_path, ODD_BUNDLE_MS=bundle_ms)
    worker = nodes.worker("w1", app=ODD, arguments=("--concurrency=2", f"--pool={pool}", *QUICK), env=lane.env)
    master = nodes.master("m1", app=ODD, env=lane.env, ready_text="standing by")
    for n in range(5):
        lane.push("leaves", "leaves" if n == 0 else f"sound {n}", task="odd.ends")
        lane.push("healthy", f"{n}", task="odd.ends")
    lives = 1
    while not lane.dead_letters():
        wait_until(lambda: lane.dead_letters() or not worker.running, description="the worker to end, or a dead letter")
        if not worker.running:
            worker.start()
            lives += 1
    lane.wait_done(10, timeout_s=180)

    assert master.running
    # As many lives as attempts, and one more; and one for each end with another message beside it: whose was it?
    assert lives == 1 if pool == "prefork" else 3 <= lives <= 5
    [letter] = lane.dead_letters()
    assert (letter["ticket_id"], letter["reason"]) == ("leaves", "gave up after 2 attempts")
    assert lane.redis.lrange("log:healthy", 0, -1) == [f"{n}" for n in range(5)]
    assert lane.redis.lrange("log:leaves", 0, -1) == [f"sound {n}" for n in range(1, 5)]
    lane.assert_at_rest()


def test_a_body_that_celery_would_not_run_is_refused(
    nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    lane = LaneUnderTest(nodes, own_server, tmp_path)
    nodes.worker("w1", app=ODD, arguments=("--concurrency=1", *QUICK), wait=False)
    nodes.master("m1", app=ODD, ready_text="standing by")
    for task in ("odd.awaits", "odd.yields"):
        lane.push(task, None, task=task)
        lane.push(task, "sound", task="odd.ends")
    lane.wait_done(4)
    # Of two tickets, either may be over first.
    assert sorted(letter["task"] for letter in lane.dead_letters()) == ["odd.awaits", "odd.yields"]
    assert all("async or a generator" in letter["error"] for letter in lane.dead_letters())


@pytest.mark.slow
def test_an_entry_that_was_trimmed_and_is_given_back_under_a_new_leader_is_a_dead_letter(
    nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    lane = LaneUnderTest(nodes, own_server, tmp_path, COUNTER_BUNDLE_MS="0")
    worker = lane.worker("w1", "--concurrency=1", "--prefetch-multiplier=4")
    master = lane.master("m1")
    # Behind a long task, in the hands of the worker, and begun by no pool process
    lane.push("slow", {"n": 0, "gate": "gate"}, "counter.held")
    wait_until(lambda: lane.executions() == 1, description="the long task to begin")
    trimmed = lane.push("T", {"n": 0})
    lane.push("T", {"n": 1})
    wait_until(lambda: trimmed in str(lane.in_flight(worker.hostname())), description="the message to be in flight")
    lane.redis.xdel(lane.keys.stream, trimmed)
    master.terminate()
    lane.master("m2")
    worker.send(signal.SIGTERM)
    # The task before it ends only then, so the message never begins here.
    wait_until(lane.dead_letters, description="the message to be given back, and given up")
    (lane.ledger / "gate").touch()
    assert worker.wait() == 0
    lane.worker("w2", "--concurrency=1")

    lane.wait_done(3, timeout_s=90)

    [letter] = lane.dead_letters()
    assert (letter["message_id"], letter["reason"]) == (
        trimmed, "the entry was deleted from the stream before it was handled",
    )  # fmt: skip


def test_the_end_of_a_pool_process_is_noticed_without_celerys_timer(
    nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    # With a connection to the result backend a process takes longer to go than its sentinel. Celery alone notices most
    # of these ends at its timer, up to 5 s later, and here never.
    lane = LaneUnderTest(nodes, own_server, tmp_path, ODD_TRACK_STARTED="yes", ODD_NO_TIMER="yes")
    nodes.worker("w1", app=ODD, arguments=("--concurrency=1", *QUICK), env=lane.env)
    nodes.master("m1", app=ODD, env=lane.env, ready_text="standing by")
    lane.push("first", "sound", task="odd.ends")
    lane.wait_done(1)
    for n in range(4):
        lane.push(f"{n}", "leaves", task="odd.ends")
    # Eight processes end.
    lane.wait_done(5, timeout_s=60)
    assert len(lane.dead_letters()) == 4
