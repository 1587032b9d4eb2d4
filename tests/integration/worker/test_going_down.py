"""Every way to stop, shrink, replace or interrupt a worker that Celery documents, on every pool, alone and in bundles.

A *cell* is one worker and one way. The cells of a *stage* share one lane. In each cell, a message waits at a gate when
the way is applied. Then another worker starts, and the gate is opened. The result is the same for every cell: no
message is lost, dead or charged, the order is kept, and the worker has ended if it should. (Revoked messages die:
`test_revoked.py`. Charges for a time limit: `test_failures.py`, `test_retry_notices.py`.)
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from celery import Celery

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard, WorkerNode
from bridge.testing.waiting import wait_until
from tests.integration.lanes import LaneUnderTest

#: Messages of a ticket, and the number of the one that waits at the gate.
EACH, AT_GATE = 5, 2
#: Tickets for each slot. A ticket that one worker holds is not available to another.
TICKETS_PER_SLOT = 8

Strike = Callable[["Stage", WorkerNode], None]


@dataclass(frozen=True, eq=False)
class Cell:
    """``ends``: whether the worker ends (None: either). ``early``: before the message at the gate is done."""

    name: str
    strike: Strike
    pool: str = "prefork"
    slots: int = 1
    arguments: tuple[str, ...] = ()
    conf: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    ends: bool | None = False
    early: bool = False

    @property
    def title(self) -> str:
        return f"{self.pool}-{self.name}"


class Stage:
    """Several cells in one lane."""

    def __init__(self, lane: LaneUnderTest, cells: list[Cell], task: str) -> None:
        self.lane = lane
        self.task = task
        self.control = Celery(broker=lane.server.url).control
        self.master = lane.master("m1")
        self.workers = {cell: self._start(cell) for cell in cells}
        for worker in self.workers.values():
            worker.wait_ready(timeout_s=300)
        lane.wait_consumers(len(cells))
        lane.wait_known(self.master, *self.workers.values())
        self.tickets = TICKETS_PER_SLOT * sum(cell.slots for cell in cells)

    def _start(self, cell: Cell) -> WorkerNode:
        arguments = cell.arguments
        if not any("autoscale" in argument for argument in arguments):
            arguments = (f"--concurrency={cell.slots}", *arguments)
        return self.lane.worker(
            cell.title, f"--pool={cell.pool}", *arguments, wait=False, COUNTER_CONF=json.dumps(cell.conf), **cell.env
        )

    def bring_to_the_gate(self) -> None:
        """Pushes messages until one waits at the gate in every worker."""
        lane = self.lane
        warm = 20 * len(self.workers)
        for n in range(warm):
            lane.push(f"warm{n}", {"n": 0}, self.task)
        lane.wait_done(warm)
        with lane.redis.pipeline(transaction=True) as pipe:
            for n in range(EACH):
                for ticket in range(self.tickets):
                    payload = {"n": n} | ({"gate": "gate"} if n == AT_GATE else {})
                    text = json.dumps(payload)
                    pipe.xadd(lane.keys.stream, {"ticket_id": f"T{ticket}", "payload": text, "task": self.task})
            pipe.execute()
        self.messages = warm + EACH * self.tickets
        for cell, worker in self.workers.items():
            wait_until(
                lambda worker=worker: self.held(worker),  # type: ignore[misc]
                description=f"a message of {cell.title} to stand at the gate",
                timeout_s=90,
            )

    def held(self, worker: WorkerNode) -> list[Path]:
        """The files of messages that wait, or waited, at the gate in a worker."""
        pids = {str(worker.pid), *(str(child.pid) for child in worker.children())}
        return [path for path in self.lane.ledger.glob("held-*") if path.stem.rpartition("-")[2] in pids]

    def strike(self) -> None:
        for cell, worker in self.workers.items():
            cell.strike(self, worker)

    def finish(self) -> None:
        """Starts another worker and opens the gate. Then everything must be as if nothing had happened."""
        lane = self.lane
        for cell, worker in self.workers.items():
            if cell.early:
                wait_until(lambda w=worker: not w.running, description=f"{cell.title} to end", timeout_s=90)  # type: ignore[misc]
        lane.worker("haven", "--concurrency=2")
        (lane.ledger / "gate").touch()
        lane.wait_done(self.messages, timeout_s=180)
        assert lane.dead_letters() == []
        assert lane.count("failed") == 0
        lane.assert_logs(self.tickets, EACH)
        lane.assert_no_overlap()
        lane.assert_at_rest()
        for cell, worker in self.workers.items():
            if cell.ends:
                wait_until(lambda w=worker: not w.running, description=f"{cell.title} to end", timeout_s=90)  # type: ignore[misc]
            elif cell.ends is False:
                assert worker.running, cell.title


#: What Celery logs for a signal. After that, the next signal counts as a further one.
HEARD = ("shutdown (MainProcess)", "will terminate all running tasks!")

# -- the ways ----------------------------------------------------------------------------------------------------------


def sending(*numbers: signal.Signals) -> Strike:
    """Sends one signal after another, each when Celery has logged the one before."""

    def strike(_: Stage, worker: WorkerNode) -> None:
        for i, number in enumerate(numbers):
            if not worker.running:
                return
            with suppress(AssertionError):
                worker.send(number)
            if i + 1 < len(numbers):
                with suppress(AssertionError):
                    wait_until(
                        lambda: not worker.running or any(text in worker.logs() for text in HEARD),
                        description="the signal to be heard",
                    )

    return strike


def asking(command: str, **arguments: Any) -> Strike:
    def strike(stage: Stage, worker: WorkerNode) -> None:
        stage.control.broadcast(command, arguments=arguments, destination=[worker.hostname()])

    return strike


def nothing(_: Stage, __: WorkerNode) -> None:
    """Does nothing: the way is in the worker's options."""


def cancel_and_add(stage: Stage, worker: WorkerNode) -> None:
    queue = stage.lane.keys.queue(worker.hostname())
    for command in ("cancel_consumer", "add_consumer"):
        stage.control.broadcast(command, arguments={"queue": queue}, destination=[worker.hostname()])


def shrink_after_growing(stage: Stage, worker: WorkerNode) -> None:
    for command, n in (("pool_grow", 3), ("pool_shrink", 3), ("pool_shrink", 1)):
        stage.control.broadcast(command, arguments={"n": n}, destination=[worker.hostname()])


def cut(stage: Stage, worker: WorkerNode) -> None:
    """Cuts every connection that the main process has."""
    ports = {link.laddr.port for link in psutil.Process(worker.pid).net_connections() if link.laddr}
    clients: Any = stage.lane.redis.client_list()
    for client in clients:
        if int(client["addr"].rpartition(":")[2]) in ports:
            with suppress(Exception):
                stage.lane.redis.client_kill_filter(_id=client["id"])
    if worker.name().startswith(("prefork", "threads")):
        # Other pools read nothing while all their slots are busy.
        worker.wait_for_log("Connection to broker lost", timeout=30)


TERM, INT, QUIT, HUP = signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP
REMAPPED = {"REMAP_SIGTERM": "SIGQUIT"}


def ends(pool: str) -> list[Cell]:
    """The ways in which a worker ends. Threads, and a solo pool's only thread, end when their task does.

    With gevent, Celery's cold shutdown waits in a signal handler, in any greenlet. Sometimes it hangs there with all
    others, and the lease decides.
    """
    early = pool == "prefork"
    warm = ("term", "int", "term-twice", "shutdown", "hup")

    def cell(name: str, strike: Strike, **more: Any) -> Cell:
        return Cell(name, strike, pool, ends=True if pool != "gevent" or name in warm else None, **more)

    return [
        cell("term", sending(TERM)),
        cell("int", sending(INT)),
        cell("quit", sending(QUIT), early=early),
        cell("term-twice", sending(TERM, TERM)),
        cell("int-twice", sending(INT, INT), early=early),
        cell("quit-twice", sending(QUIT, QUIT), early=early),
        cell("quit-thrice", sending(QUIT, QUIT, QUIT), early=early),
        cell("term-quit", sending(TERM, QUIT), early=early),
        cell("remapped", sending(TERM), env=REMAPPED, early=early),
        cell("remapped-twice", sending(TERM, TERM), env=REMAPPED, early=early),
        cell("soft", sending(QUIT), conf={"worker_soft_shutdown_timeout": 1}, early=early),
        cell("soft-twice", sending(QUIT, QUIT), conf={"worker_soft_shutdown_timeout": 5}, early=early),
        cell("shutdown", asking("shutdown")),
        # Celery runs its command line again. It cannot when that was `python -m celery`, so it ends here.
        cell("hup", sending(HUP)),
    ]


def lives(pool: str) -> list[Cell]:
    """The ways after which a worker goes on."""

    def cell(name: str, strike: Strike, *arguments: str, **more: Any) -> Cell:
        return Cell(name, strike, pool, arguments=arguments, **more)

    cells = [cell("cancel-and-add", cancel_and_add)]
    if pool in ("prefork", "gevent"):
        cells += [cell("grow-and-shrink", shrink_after_growing), cell("autoscale", nothing, "--autoscale=3,1")]
    if pool == "prefork":
        cells += [
            cell("restart", asking("pool_restart"), conf={"worker_pool_restarts": True}),
            cell("max-tasks", nothing, "--max-tasks-per-child=2"),
            cell("max-memory", nothing, "--max-memory-per-child=1"),
        ]
    return cells


def losses(pool: str) -> list[Cell]:
    """A lost connection, with each way to acknowledge late."""
    cancels = "worker_cancel_long_running_tasks_on_connection_loss"
    return [
        Cell(f"late-{late:d}-cancel-{cancel:d}", cut, pool, conf={"task_acks_late": late, cancels: cancel})
        for late in (False, True)
        for cancel in (False, True)
    ]


#: Ways that go where another one goes: one more signal, or another one that Celery takes for the same.
SELDOM = ("int", "term-quit", "quit-thrice", "remapped-twice", "soft-twice")
POOLS = ("prefork", "threads", "gevent", "solo")
STAGES: dict[str, list[Cell]] = {
    **{f"ends-{pool}": ends(pool) for pool in POOLS},
    **{f"lives-{pool}": lives(pool) for pool in POOLS},
    **{f"losses-{pool}": losses(pool) for pool in POOLS},
    # What is tried each time: the ways of prefork that take another path each, and of the others the two most common
    "often": [
        *(cell for cell in ends("prefork") if cell.name not in SELDOM),
        *(cell for pool in POOLS[1:] for cell in ends(pool) if cell.name in ("term", "quit")),
    ],
    "few": [cell for cell in ends("prefork") if cell.name in ("term", "quit-twice", "soft")],
    "often-lives": [*lives("prefork"), losses("prefork")[3]],
}


@pytest.fixture
def lane(request: pytest.FixtureRequest, nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> LaneUnderTest:
    # One attempt: a charged message is dead. The lease outlasts the start of all processes on a busy machine. There, a
    # message may take 10 ms, the default of a bundle, and would be alone in it.
    bundle_ms = "100" if request.param == "bundles" else "0"
    return LaneUnderTest(
        nodes, own_server, tmp_path, COUNTER_BUNDLE_MS=bundle_ms, COUNTER_MAX_ATTEMPTS="1", COUNTER_LEASE="10"
    )


#: On every change: all of the often ones with bundles, and without them one end of each kind.
SHORT = {("bundles", "often"), ("bundles", "often-lives"), ("alone", "few")}


@pytest.mark.parametrize(
    ("lane", "name"),
    [
        pytest.param(way, name, id=f"{way}-{name}", marks=() if (way, name) in SHORT else pytest.mark.long)
        for way in ("bundles", "alone")
        for name in STAGES
    ],
    indirect=["lane"],
)
def test_nothing_is_lost_and_nothing_dies(lane: LaneUnderTest, name: str) -> None:
    in_bundles = lane.env["COUNTER_BUNDLE_MS"] != "0"
    # Where a worker counts its tasks, those of the others are in no bundle either.
    cells = [cell for cell in STAGES[name] if not (in_bundles and cell.name == "max-tasks")]
    stage = Stage(lane, cells, "counter.held_late" if "losses" in name else "counter.held")
    stage.bring_to_the_gate()
    if in_bundles:
        ways = [path.suffix for worker in stage.workers.values() for path in stage.held(worker)]
        assert ways.count(".bundle") >= len(stage.workers) // 4, ways
    stage.strike()
    stage.finish()
