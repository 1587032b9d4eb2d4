"""``python -m benchmarks.failover_steps``: where the time of a failover goes, step by step, over many kills.

The main process of a worker gets SIGKILL. Each ticket that it had in flight passes these steps:

- *exit*: until the kernel has ended the main process and all pool processes.
- *notice*: until the watcher's death notice is in the outcome stream.
- *move*: until the leader's script has taken the ticket back.
- *room*: until the leader's script has dispatched it to another worker. Where all processes of the others are busy, it
  waits for the first one that is done.
- *start*: until its task begins there.

The product is not changed for it. The kernel tells when processes ended (pidfd); the server tells when the
notice ended the lease; the id of the history's row is the server's clock in ms, and a fence is it in microseconds.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple

import click
import orjson
import psutil
from redis import Redis
from redis.exceptions import RedisError
from rich.console import Console
from rich.table import Table

from benchmarks.failover import DYING, FAULTS, PATIENCE_S, STAYING, WATCHER, Fault, Scene
from benchmarks.figures import percentile
from benchmarks.machine import describe
from benchmarks.report import show_machine
from benchmarks.stack import KEYS, Stack
from benchmarks.starts import LEASE
from bridge.routing.errors import TicketBridgeError
from bridge.routing.history import What, rows_in

STEPS = ("exit", "notice", "move", "room", "start", "all")
#: How a row of the history says that a delivery ended with its worker.
ENDED = (What.LOST.value, What.RETURNED.value)


class Log:
    """When the lane's keys changed, by the machine's monotonic clock in seconds. Two threads of its own read them."""

    def __init__(self, redis: Redis) -> None:
        #: The server's clock less the monotonic one: it is the same machine.
        self.ahead = time.time() - time.monotonic()
        #: Key of a lease -> when the death notice ended it.
        self.notices: dict[str, float] = {}
        #: Fence of a delivery that was taken back -> when.
        self.moved: dict[int, float] = {}
        self._redis = redis
        # The outcome stream is trimmed at once, so a reader of it would miss notices.
        redis.config_set("notify-keyspace-events", "Kg")
        self._events = redis.pubsub()
        self._events.psubscribe("__keyspace@*__:" + KEYS.lease("*"))
        for read in (self._read_leases, self._read_history):
            threading.Thread(target=read, name="failover-steps", daemon=True).start()

    def _read_leases(self) -> None:
        # Until the stack ends.
        with suppress(RedisError, OSError, ValueError):
            for event in self._events.listen():
                if event["data"] == b"del":
                    self.notices[event["channel"].decode().partition(":")[2]] = time.monotonic()

    def _read_history(self) -> None:
        last: Any = "0-0"
        with suppress(RedisError, OSError, ValueError):
            while True:
                found: Any = self._redis.xread({KEYS.history: last}, block=1000)
                for id_, fields in found[0][1] if found else ():
                    last = id_
                    flat = [part for pair in fields.items() for part in pair]
                    for row in orjson.loads(rows_in(flat) or b"[]"):
                        if row[9] in ENDED:
                            self.moved[row[5]] = int(id_.split(b"-")[0]) / 1000 - self.ahead


class Exits:
    """When the processes of a worker have ended, as the kernel says. A thread of its own waits for it."""

    def __init__(self, worker: psutil.Process) -> None:
        family = [worker, *worker.children(recursive=True)]
        family = [one for one in family if WATCHER not in " ".join(one.cmdline())]
        self._held = [os.pidfd_open(one.pid) for one in family]
        self.at = 0.0
        self._thread = threading.Thread(target=self._wait, name="failover-exits")
        self._thread.start()

    def _wait(self) -> None:
        open_ = set(self._held)
        poll = select.poll()
        for fd in open_:
            poll.register(fd, select.POLLIN)
        while open_:
            for fd, _ in poll.poll():
                poll.unregister(fd)
                open_.discard(fd)
                os.close(fd)
        self.at = time.monotonic()

    def join(self) -> float:
        """When the last of them had ended (monotonic seconds)."""
        self._thread.join()
        return self.at


class Line(NamedTuple):
    """The time line of one ticket: seconds for each of `STEPS`."""

    steps: tuple[float, ...]
    #: Workers that were left.
    left: int


def measure(kills: int, lease: float, fault: Fault, others: int) -> list[Line]:
    """Kills workers, and returns the time line of each ticket that was in flight there."""
    lines: list[Line] = []
    with Stack("failing") as stack:
        stack.environment_more[LEASE] = str(lease)
        stack.start_master()
        scene = Scene(stack)
        log = Log(stack.redis)
        scene.hire(STAYING + others)
        done = 0
        while done < kills:
            scene.hire(DYING)
            for name in list(scene.workers)[-DYING:]:
                lines += _one(scene, log, name, fault)
                scene.recover()
                done += 1
    return lines


def _one(scene: Scene, log: Log, name: str, fault: Fault) -> Iterable[Line]:
    exits = Exits(scene.workers[name])
    at, mine = scene.dismiss(name, fault.kill)
    deadline = at + PATIENCE_S
    after: dict[str, Any] = {}
    while len(after) < len(mine):
        if time.monotonic() > deadline:
            raise TicketBridgeError(f"tickets of {name} that never came back")
        scene.feed()
        starts = scene.starts()
        for ticket in mine:
            start = starts.get(ticket)
            if ticket not in after and start is not None and start.at > at:
                after[ticket] = start
        time.sleep(0.002)
    ended = exits.join()
    for ticket, start in after.items():
        record = mine[ticket]
        lease = KEYS.lease(record.incarnation)
        while lease not in log.notices and time.monotonic() < deadline:
            time.sleep(0.002)
        if record.fence not in log.moved:
            # It was done before the kill, or its next message had begun: it waited for nothing.
            continue
        marks = (at, ended, log.notices[lease], log.moved[record.fence], start.fence / 1e6 - log.ahead, start.at)
        steps = tuple(later - earlier for earlier, later in pairwise(marks))
        yield Line((*steps, start.at - at), len(scene.workers))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--kills", type=click.IntRange(DYING), default=100, show_default=True)
@click.option("--lease", type=float, default=6.0, show_default=True, help="Seconds.")
@click.option("--others", type=click.IntRange(0), default=0, show_default=True, help="More workers that stay.")
def main(kills: int, lease: float, others: int) -> None:
    """Shows where the time of a failover goes: from SIGKILL of a worker to the next start of each of its tickets."""
    console = Console(width=None if sys.stdout.isatty() else 150)
    show_machine(console, describe())
    try:
        with console.status("killing workers"):
            lines = measure(kills, lease, FAULTS["worker"], others)
    except TicketBridgeError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(error.exit_code)
    table = Table(title=f"{kills} kills, {len(lines)} tickets: ms from the signal to the next start of each ticket")
    table.title_justify = "left"
    table.add_column("tickets")
    for step in STEPS:
        table.add_column(step, justify="right")
    lines.sort(key=lambda line: line.steps[-1])
    slowest = lines[-max(1, len(lines) // 20) :]
    for title, at in (("median", 50), ("p90", 90), ("p99", 99), ("maximum", 100)):
        table.add_row(title, *(f"{1000 * percentile([line.steps[i] for line in lines], at):.1f}" for i in range(6)))
    table.add_row("mean", *_means(lines))
    table.add_row(f"mean of the slowest {len(slowest)}", *_means(slowest))
    for left in sorted({line.left for line in lines}, reverse=True):
        table.add_row(f"mean, {left} workers left", *_means([line for line in lines if line.left == left]))
    console.print(table)


def _means(lines: list[Line]) -> list[str]:
    return [f"{1000 * sum(line.steps[i] for line in lines) / len(lines):.1f}" for i in range(len(STEPS))]


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    main()
