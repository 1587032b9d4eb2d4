"""What runs with a mutation and without it: short, and without randomness as far as real processes allow.

Each scenario makes something happen to a lane and returns when it is over; what was wrong, the detectors say.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import psutil

from bridge.testing.nodes.process import ProcessNode
from bridge.testing.waiting import wait_until
from tests.calibration.holding import HoldingProxy
from tests.calibration.stage import KEPT_S, LEASE_S, Stage
from tests.chaos.checks import Freeze
from tests.chaos.ledger import now_ns
from tests.chaos.repartition import repartitioned_into
from tests.chaos.subscriptions import ONE, Subscription, split
from tests.chaos.versions import in_versions

#: Milliseconds that a task works, long enough for something to happen meanwhile.
LONG_MS = 3000.0
#: Milliseconds of a bundle that has several messages although each takes long on a busy machine.
LONG_BUNDLE_MS = 1000.0
#: How long messages are delayed, in ms, and how much earlier they may seem to start, in ns: two clocks drift.
DELAY_MS, EARLY_NS = 1500, 50_000_000
#: Seconds of a lease that outlasts such a task, although nobody has renewed it for a third of it when that begins.
SET_LEASE_S = 5.0
#: Threads of a master that leads only lanes that sleep, and seconds until all do: after five without work.
THREADS_ASLEEP, ASLEEP_WITHIN_S = 8, 60.0
#: Seconds until a master that came has its share: its leader lease, and some for a quiet moment of each lane.
SHARED_WITHIN_S = 40.0


def steady(stage: Stage) -> None:
    """Nothing happens but work: bundles, failures, effects that fail, a message that dies, an operator's order."""
    stage.bundle_ms = LONG_BUNDLE_MS
    stage.master("m1", wait=False)
    stage.worker("w1", slots=2, wait=False)
    stage.wait_led(1)
    for _ in range(12):
        for ticket in range(6):
            stage.push(f"T{ticket}", ms=4)
    stage.push("flaky", until=3)
    stage.push("dying", dies=True)
    for _ in range(3):
        stage.push("flaky", ms=4)
        stage.push("dying", ms=4)
    stage.wait_settled()
    for ticket in range(6):
        # By now it is known that these are short: they travel as runs in bundles.
        for n in range(8):
            stage.push(f"T{ticket}", ms=4, until=2 if n == 1 else 1)
    stage.wait_settled()
    _with_effects_that_fail(stage)
    stage.wait_settled()
    for do in ("park", "release"):
        _order(stage, do, "T0")
    stage.wait_for(lambda: list(stage.redis.scan_iter(match=stage.keys.held("*"))), "a worker to renew its lease")


def refusals(stage: Stage) -> None:
    """Tasks refuse their messages, with and without a charge; messages expire; tickets have priorities."""
    stage.master("m1", wait=False)
    stage.worker("w1", slots=2, wait=False)
    stage.wait_led(1)
    for ticket in range(4):
        stage.push(f"T{ticket}", ms=50)
        for how in ("nacks", "drop", "nacks"):
            stage.push(f"T{ticket}", ms=1, how=how)
        stage.push(f"T{ticket}", until=2, how="nack")
        stage.push(f"T{ticket}", dies=True, how="dead")
        stage.push(f"T{ticket}", dies=True, expires=1)
        for priority in (0, 3, 9, 1):
            stage.push(f"T{ticket}", ms=1, priority=priority)
    stage.wait_settled()


def delayed(stage: Stage) -> None:
    """Messages are due while older ones of their tickets wait, and newer ones come; one that is held is not due."""
    stage.master("m1", wait=False)
    stage.worker("w1", slots=4, wait=False)
    stage.wait_led(1)
    # By the ledger's clock they are due between the two: this process may stand still while it reads the clocks.
    not_before_ns = now_ns() + DELAY_MS * 1_000_000
    due = time.time_ns() // 1_000_000 + DELAY_MS
    due_ns = now_ns() + DELAY_MS * 1_000_000
    for ticket in ("D0", "D1"):
        stage.push(ticket, number=3, due=due)
        for number, ms in enumerate((700, 1200, 1)):
            stage.push(ticket, number=number, ms=ms)
    stage.push("alone", due=due)
    stage.push("held", due=due, hold=1)
    stage.push("held", ms=1)
    stage.wait_for(lambda: now_ns() > due_ns, "all to be due")
    for ticket in ("D0", "D1"):
        stage.push(ticket, number=4)
    stage.wait_settled()
    stage.messages.sort(key=lambda message: message.n)
    for execution in stage.ledger.executions():
        number = 3 if execution.ticket.startswith("D") else 0
        if execution.n == number and execution.start_ns < not_before_ns - EARLY_NS:
            stage.find("ledger", "early", f"{execution.ticket}: number {number} started before it was due")


def _with_effects_that_fail(stage: Stage) -> None:
    """In the middle of a run: behind its first one that fails, a ticket's messages wait together."""
    for ticket in range(2):
        # The others come while it works. One that comes later would be in no bundle with them.
        stage.push(f"T{ticket}", ms=500)
    for n in range(10):
        for ticket in range(2):
            stage.push(f"T{ticket}", ms=1, until=2 if n % 2 else 1, how="effect")


def _order(stage: Stage, do: str, ticket: str) -> None:
    """Nobody takes the answer: it must end by itself."""
    name = f"order-{do}"
    order: dict[Any, Any] = {"i": name, "order": json.dumps({"do": do, "ticket": ticket})}
    stage.redis.xadd(stage.keys.outcomes, order)
    stage.wait_for(lambda: stage.redis.exists(stage.keys.reply(name)), f"the answer to {do}")


def long_tasks(stage: Stage) -> None:
    """Two workers, and tasks that go on while the leader looks at the leases."""
    stage.master("m1", wait=False)
    for name in ("w1", "w2"):
        stage.worker(name, slots=2, lease_s=KEPT_S, wait=False)
    stage.wait_led(2)
    stage.push("T", ms=LONG_MS)
    stage.push("T")
    stage.wait_settled()


def frozen_main(stage: Stage) -> None:
    """The main process of a worker is frozen past its lease, its pool process is not, and works on."""
    stage.master("m1", wait=False)
    workers = {name: stage.worker(name, wait=False) for name in ("w1", "w2")}
    stage.wait_led(2)
    stage.push("T", ms=LONG_MS)
    stage.push("T")
    stage.wait_for(lambda: stage.executions("T"), "the task to start")
    frozen = workers[stage.executions("T")[0].consumer.partition("@")[0]]
    with _Frozen(stage, frozen, whole=False):
        stage.wait_for(lambda: len(stage.executions("T")) > 1, "the task to start elsewhere")
        # For as long as the first one would work on, were it not stopped.
        time.sleep(1.0)
    stage.wait_settled()


def clock_set(stage: Stage) -> None:
    """The server's clock is set forward by an hour while the main process of a worker stands still: it cannot learn
    that its lease was ended by that, and its pool process works on. The other worker comes back under a new lease.
    """
    assert stage.clock is not None
    stage.master("m1", lease_s=SET_LEASE_S, wait=False)
    workers = {name: stage.worker(name, slots=2, lease_s=SET_LEASE_S, wait=False) for name in ("w1", "w2")}
    stage.wait_led(2)
    # One message: the ledger compares the times of messages with the server's.
    stage.push("T", ms=LONG_MS)
    stage.wait_for(lambda: stage.executions("T"), "the task to start")
    frozen = workers[stage.executions("T")[0].consumer.partition("@")[0]]
    with _Frozen(stage, frozen, whole=False):
        stage.clock.set(3600.0)
        stage.wait_settled()


def frozen_solo(stage: Stage) -> None:
    """A worker that nobody can stop is frozen in a task, past its lease; the ticket is over when it goes on."""
    stage.master("m1", wait=False)
    frozen = stage.worker("w1", pool="solo")
    stage.wait_led(1)
    stage.push("T", ms=LONG_MS)
    stage.wait_for(lambda: stage.executions("T"), "the task to start")
    with _Frozen(stage, frozen, whole=True):
        stage.worker("w2")
        stage.wait_settled()
        calls = stage.calls("apply")
    wait_until(lambda: stage.calls("apply") > calls, description="the task that was frozen to hand in its effects")


def frozen_solo_fails(stage: Stage) -> None:
    """The same, but its task fails when it goes on, while the ticket's next execution works elsewhere."""
    stage.master("m1", wait=False)
    workers = {name: stage.worker(name, pool="solo", wait=False) for name in ("w1", "w2")}
    stage.wait_led(2)
    stage.push("T", ms=2 * LEASE_S * 1000, until=2)
    stage.wait_for(lambda: stage.executions("T"), "the task to start")
    frozen = workers[stage.executions("T")[0].consumer.partition("@")[0]]
    with _Frozen(stage, frozen, whole=True):
        stage.wait_for(lambda: len(stage.executions("T")) > 1, "the task to start elsewhere")
        # Until its own work is over by the clock: it fails as soon as it goes on.
        first = stage.executions("T")[0]
        wait_until(
            lambda: now_ns() > first.start_ns + 2 * LEASE_S * 1e9, description="the work to be over by the clock"
        )
    stage.wait_settled()


def late_dispatch(stage: Stage) -> None:
    """A leader is killed, and its last dispatch arrives when the next leader has done all that it says."""
    _killed_with(stage, stage.sha("advance") + b".*stuck", lambda: stage.push("stuck"))


def killed_between_attempts(stage: Stage) -> None:
    """A leader is killed when a message has failed twice, before its third attempt is dispatched."""
    _killed_with(
        stage,
        # The record of its third attempt, which names a worker, unlike that of its backoff.
        stage.sha("advance") + rb'.*"w1@[^"]*","[0-9a-f]{32}",3,\[',
        lambda: stage.push("stuck", until=3),
    )


def _killed_with(stage: Stage, pattern: bytes, push: Callable[[], object]) -> None:
    with HoldingProxy(stage.server.port) as proxy:
        leader = stage.master("m1", url=proxy.url, wait=False)
        stage.worker("w1", lease_s=KEPT_S, wait=False)
        stage.wait_led(1)
        stage.push("before")
        stage.wait_settled()
        proxy.hold(pattern)
        push()
        for _ in range(3):
            stage.push("stuck")
        proxy.wait_held()
        leader.kill_main()
        stage.master("m2", wait=False)
        stage.wait_settled()
        proxy.release()
        stage.push("after")
        stage.wait_settled()


def doubled(stage: Stage) -> None:
    """A Celery message comes twice, as from a server that lost its last second."""
    stage.master("m1", wait=False)
    worker = stage.worker("w1", slots=2, lease_s=KEPT_S, wait=False)
    stage.wait_led(1)
    stage.push("before")
    stage.wait_settled()
    queue = stage.keys.queue(worker.hostname())
    # For a moment only: its lease goes on.
    worker.pause()
    try:
        # The server still hands it the first one: it waits for that.
        for ticket in ("first", "T"):
            stage.push(ticket, ms=200)
        wait_until(lambda: stage.redis.llen(queue), description="the message to be in the queue")
        text: Any = stage.redis.lindex(queue, 0)
        stage.redis.linsert(queue, "AFTER", text, text)
    finally:
        worker.resume()
    stage.push("T")
    stage.wait_settled()


def parked(stage: Stage) -> None:
    """A ticket is parked, and then its leader is killed: it stands still until it is released."""
    leader = stage.master("m1", wait=False)
    stage.worker("w1", lease_s=KEPT_S, wait=False)
    stage.wait_led(1)
    _order(stage, "park", "T")
    stage.push("T")
    stage.push("before")
    stage.wait_for(lambda: stage.executions("before"), "another ticket to go on")
    leader.kill_main()
    stage.master("m2", wait=False)
    stage.push("after")
    stage.wait_for(lambda: stage.executions("after"), "another ticket to go on")
    if stage.executions("T"):
        stage.find("scenario", "a parked ticket ran", "after its leader was killed")
        return
    _order(stage, "release", "T")
    stage.wait_settled()


def late_read(stage: Stage) -> None:
    """A leader is killed, and its last read arrives when there is something new to read, before the next one's."""
    with HoldingProxy(stage.server.port) as proxy:
        old = _held_read(stage, proxy)
        old.kill_main()
        new = stage.master("m2", leader_lease_s=KEPT_S, wait=False)
        stage.wait_settled()
        _release_before(stage, proxy, new)


def late_read_of_its_own(stage: Stage) -> None:
    """The same, but the leader lives: it lost its connection, and read the lane again."""
    with HoldingProxy(stage.server.port) as proxy:
        leader = _held_read(stage, proxy, leader_lease_s=KEPT_S)
        proxy.cut()
        stage.wait_settled()
        _release_before(stage, proxy, leader)


def _held_read(stage: Stage, proxy: HoldingProxy, *, leader_lease_s: float = LEASE_S) -> ProcessNode:
    leader = stage.master("m1", url=proxy.url, leader_lease_s=leader_lease_s, wait=False)
    stage.worker("w1", lease_s=KEPT_S, wait=False)
    stage.wait_led(1)
    stage.push("before")
    stage.wait_settled()
    proxy.hold(stage.sha("read"))
    stage.push("other")
    proxy.wait_held()
    return leader


def _release_before(stage: Stage, proxy: HoldingProxy, leader: ProcessNode) -> None:
    """The held read takes a message before ``leader`` can; the next one of its ticket is there for that one."""
    # Frozen for a moment only: it goes on leading.
    leader.pause()
    try:
        stage.push("T")
        proxy.release()
        # Before it goes on, or it might look for what went astray first.
        stage.push("T")
    finally:
        leader.resume()
    stage.wait_settled()


def two_masters(stage: Stage) -> None:
    """Two masters, of which one leads, and a worker with work."""
    for name in ("m1", "m2"):
        stage.master(name)
    stage.worker("w1", slots=2, lease_s=KEPT_S, wait=False)
    stage.wait_led(1)
    for _ in range(20):
        for ticket in range(6):
            stage.push(f"T{ticket}", ms=20)
    stage.wait_settled()


def two_subscriptions(stage: Stage) -> None:
    """A subscription with a filter is behind: its worker comes when the other one is done with everything, the leaders
    have looked for entries that may leave, and their master was killed.
    """
    plain, picky = stage.subscriptions
    leader = stage.master("m1", wait=False)
    stage.wait_led(0)
    for n in range(6):
        for ticket in range(4):
            stage.push(f"T{ticket}", kind="ab"[n % 2])
    stage.wait_for(
        lambda: int(str(stage.redis.hget(picky.keys.counts, "left_out") or 0)) >= len(stage.messages) / 2,
        "one to leave out what it does not want",
    )
    # The entries are still there.
    stage.audit()
    stage.worker("w1", serve="plain", lease_s=KEPT_S)
    stage.wait_for(
        lambda: int(str(stage.redis.hget(plain.keys.counts, "done") or 0)) == len(stage.messages), "one to be done"
    )
    looked = stage.calls("done")
    # Two looks of each of the two leaders.
    stage.wait_for(lambda: stage.calls("done") >= looked + 4, "looks for entries that are done")
    # The next leader knows only what is on the server.
    leader.kill_main()
    stage.master("m2", wait=False)
    stage.worker("w2", serve="picky", lease_s=KEPT_S, wait=False)
    stage.wait_settled()
    stage.wait_for(lambda: not stage.redis.xlen(plain.keys.stream), "all entries to leave")


def two_versions(stage: Stage) -> None:
    """Both versions of a stream have messages of each ticket; of some an older one fails, or comes while a newer one
    runs.
    """
    stage.master("m1", wait=False)
    stage.worker("w1", slots=2, lease_s=KEPT_S, wait=False)
    stage.wait_led(1)
    for n in range(4):
        for ticket in range(4):
            stage.push(f"T{ticket}", version="v1", ms=4, until=2 if n == ticket else 1)
            stage.push(f"T{ticket}", version="v2", ms=4)
    stage.wait_settled()
    stage.push("T", version="v2", ms=1000)
    stage.wait_for(lambda: stage.executions("T"), "the newer message to start")
    for version in ("v2", "v1"):
        stage.push("T", version=version)
    stage.wait_settled()


def shared_lanes(stage: Stage) -> None:
    """A second master comes while all lanes have work. The first one hands it those that it owns."""
    stage.master("m1", wait=False)
    stage.worker("w1", slots=2, lease_s=KEPT_S, wait=False)
    stage.wait_led(1)
    stage.master("m2", wait=False)
    leaders = [keys.leader for keys in stage.lanes]

    def shared() -> bool:
        if len(stage.messages) - stage.settled() < 30:
            for ticket in range(6):
                stage.push(f"T{ticket}", ms=4)
        holders = {str(token).partition(" ")[2] for token in stage.redis.mget(leaders)}
        return len(holders) == 2

    stage.wait_for(shared, "both masters to lead", timeout_s=SHARED_WITHIN_S)
    stage.wait_settled()


def sleeping_lanes(stage: Stage) -> None:
    """All lanes of a master sleep, and then there are messages."""
    master = stage.master("m1", wait=False)
    stage.worker("w1", slots=2, lease_s=KEPT_S, wait=False)
    stage.wait_led(1)
    for ticket in range(3):
        stage.push(f"T{ticket}")
    stage.wait_settled()
    process = psutil.Process(master.pid)
    stage.wait_for(lambda: process.num_threads() <= THREADS_ASLEEP, "all lanes to sleep", timeout_s=ASLEEP_WITHIN_S)
    for ticket in range(3):
        stage.push(f"T{ticket}")
    stage.wait_settled()


def two_partitions(stage: Stage) -> None:
    """Messages from the product's own command, and from a foreign producer that goes by the hash of the ticket."""
    tickets = [f"T{n}" for n in range(8)]
    stage.push_by_command(tickets)
    for ticket in tickets:
        stage.push(ticket, ms=4)
    stage.master("m1", wait=False)
    stage.worker("w1", slots=2, lease_s=KEPT_S, wait=False)
    stage.wait_led(1, lanes=1)
    stage.wait_settled()


def repartitioned(stage: Stage) -> None:
    """Old partitions have messages of each ticket when the stream is split, and new ones get some at once."""
    stage.master("m1", wait=False)
    stage.worker("w1", slots=2, lease_s=KEPT_S, wait=False)
    stage.wait_led(1, lanes=1)
    tickets = [f"T{n}" for n in range(4)]
    for n in range(3):
        for ticket in tickets:
            # Until the new partitions are led for certain.
            stage.push(ticket, ms=1500, until=2 if n == 1 else 1)
    with stage.repartition(2):
        for _ in range(2):
            for ticket in tickets:
                stage.push(ticket, ms=4, generation=1)
        stage.wait_settled()


class _Frozen:
    """A node that stands still meanwhile: all of it, or its main process only."""

    def __init__(self, stage: Stage, node: ProcessNode, *, whole: bool) -> None:
        self._stage = stage
        assert node.pid is not None
        self._pids = [process.pid for process in node.survivors()] if whole else [node.pid]
        self._node = node

    def __enter__(self) -> None:
        self._from = now_ns()
        for pid in self._pids:
            _signal(pid, signal.SIGSTOP)

    def __exit__(self, *_: object) -> None:
        for pid in self._pids:
            _signal(pid, signal.SIGCONT)
        until = now_ns()
        self._stage.notes.freezes += [Freeze(pid, self._from, until) for pid in self._pids]


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


#: Those that set the server's clock: it has one that can be set.
SETS_THE_CLOCK = frozenset({"clock set"})

_MANY = tuple(Subscription(f"s{n}", fails=n == 0, label=f"s{n}/") for n in range(6))
#: Those whose app has several lanes.
SUBSCRIBED = {
    "two subscriptions": (
        Subscription("plain", label="plain/"),
        Subscription("picky", ("a",), fails=False, label="picky/"),
    ),
    # So many that it is unlikely that one master owns them all, and that they may sleep.
    "shared lanes": _MANY,
    "sleeping lanes": _MANY,
    "two partitions": split(ONE, 2),
    "two versions": in_versions(ONE, "both"),
    "repartitioned": repartitioned_into(ONE, 2),
}

SCENARIOS: dict[str, Callable[[Stage], None]] = {
    "steady": steady,
    "refusals": refusals,
    "delayed": delayed,
    "long tasks": long_tasks,
    "frozen main process": frozen_main,
    "clock set": clock_set,
    "frozen solo": frozen_solo,
    "frozen solo fails": frozen_solo_fails,
    "late dispatch": late_dispatch,
    "killed between attempts": killed_between_attempts,
    "late read": late_read,
    "late read of its own": late_read_of_its_own,
    "parked": parked,
    "doubled": doubled,
    "two masters": two_masters,
    "two subscriptions": two_subscriptions,
    "two versions": two_versions,
    "shared lanes": shared_lanes,
    "sleeping lanes": sleeping_lanes,
    "two partitions": two_partitions,
    "repartitioned": repartitioned,
}
