"""``python -m benchmarks.failover``: how long tickets stand still when a process dies. Nobody else publishes this.

Each figure is the time from the signal to the *next execution of a ticket* that the process had in flight, for each of
these tickets; for the leader, from the signal to the execution of a message that was pushed right after it. The
distribution over at least 100 kills each: median, p99, maximum.

Workers die a few at a time, under load, with others left that take their tickets; then as many are started again, and
measuring goes on when all are there and have calmed down: starting a process costs more than anything that is measured
here. The next one dies when the messages that were cut off are done. Else some would be cut off twice in a row, and go
out alone as suspects.

Percentiles are over tickets, some two for each kill. `benchmarks.failover_steps` shows where their time goes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import click
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.figures import percentile
from benchmarks.machine import describe
from benchmarks.report import show_machine
from benchmarks.stack import KEYS, ROOT, Stack
from benchmarks.starts import LEASE, STARTS, Start
from bridge.routing import records
from bridge.routing.errors import TicketBridgeError

#: Tickets that always have work.
TICKETS = 60
#: Messages of each that are kept ahead.
AHEAD = 40
#: Workers that stay, and those that die in one round.
STAYING = 2
DYING = 4
#: Seconds between two kills of one round.
APART_S = 0.3
#: A worker has started when its processes used less than this share of a core for so many seconds.
CALM_SHARE = 0.3
CALM_S = 0.2
#: Seconds after which a ticket that did not come back is an error.
PATIENCE_S = 60.0
WATCHER = "bridge.worker.guard.watcher"


def _alone(worker: psutil.Process) -> None:
    worker.send_signal(signal.SIGKILL)


def _with_watcher(worker: psutil.Process) -> None:
    """The watcher, the pool processes and the worker, in that order, at once: as a machine that is gone."""
    family = worker.children(recursive=True)
    family.sort(key=lambda process: WATCHER not in " ".join(process.cmdline()))
    for process in (*family, worker):
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)


def _term(worker: psutil.Process) -> None:
    worker.send_signal(signal.SIGTERM)


@dataclass(frozen=True)
class Fault:
    """What is done, and within how many seconds p99 shall be, for a lease."""

    title: str
    kill: Callable[[psutil.Process], None]
    goal_s: Callable[[float], float]
    #: Whether tickets that run at the time count: a worker that is asked to stop finishes them first.
    running: bool = True
    #: Whether the next worker dies only when the messages that were cut off are done. Else it dies `APART_S` later.
    recovers: bool = False
    #: Whether workers send Celery's heartbeats. Without them nobody tells the master when to look.
    heartbeats: bool = True


FAULTS = {
    "worker": Fault("SIGKILL of a worker", _alone, lambda _: 0.05, recovers=True),
    "machine": Fault("SIGKILL of worker, pool and watcher", _with_watcher, lambda lease: lease + 1),
    "machine, no heartbeats": Fault(
        "the same without Celery's heartbeats", _with_watcher, lambda lease: lease + 1, heartbeats=False
    ),
    "term": Fault("SIGTERM of a worker, its waiting tickets", _term, lambda _: 0.5, running=False),
    "leader": Fault("SIGKILL of the leader", _alone, lambda lease: lease + 1),
}


@dataclass
class Figures:
    """What was measured of one fault at one lease, in seconds."""

    fault: str
    lease: float
    kills: int = 0
    times_s: list[float] = field(default_factory=list)

    @property
    def goal_s(self) -> float:
        return FAULTS[self.fault].goal_s(self.lease)

    @property
    def reached(self) -> bool:
        return percentile(self.times_s, 99) <= self.goal_s


class Awaited(NamedTuple):
    """A ticket that a process had in flight when the signal was sent, at ``at`` (seconds, monotonic clock).

    ``fence``: that of its message in flight, if the ticket counts only when that had not begun; else 0.
    """

    ticket: str
    at: float
    fence: int


class Scene:
    """A stack under a load that never ends."""

    def __init__(self, stack: Stack, *, heartbeats: bool = True) -> None:
        self.stack = stack
        self._heartbeats = heartbeats
        self.workers: dict[str, psutil.Process] = {}
        self._pushed = 0
        self._born = 0

    def hire(self, count: int) -> None:
        """Starts workers and waits until all are registered."""
        for _ in range(count):
            self._born += 1
            name = f"w{self._born}@bench"
            arguments = ("-m", "celery", "-A", "benchmarks.apps.failing", "worker", "-n", name, "-c", "2")
            flags = ["-l", "WARNING", "-P", "prefork", "--without-mingle", "--without-gossip"]
            if not self._heartbeats:
                flags.append("--without-heartbeat")
            self.workers[name] = self.stack.start("worker", *arguments, *flags)
        # In flight, not only registered: it is part of the load.
        self.stack.wait(lambda: self._busy() >= set(self.workers), "the workers to have tickets", PATIENCE_S)
        self.stack.wait(self._calm, "the workers to have started", PATIENCE_S)

    def _busy(self) -> set[str]:
        self.feed()
        return {record.consumer for record in self.in_flight().values()}

    def _calm(self) -> bool:
        """Whether no worker uses much of the processor any more. Takes `CALM_S`."""
        families = [[worker, *worker.children(recursive=True)] for worker in self.workers.values()]
        before = [_cpu_s(family) for family in families]
        end = time.monotonic() + CALM_S
        while time.monotonic() < end:
            self.feed()
            time.sleep(0.01)
        return all(_cpu_s(family) - used < CALM_SHARE * CALM_S for family, used in zip(families, before, strict=True))

    def recover(self) -> None:
        """Waits until the messages that were cut off are done."""
        self.stack.wait(self._is_unharmed, "the messages that were cut off", PATIENCE_S, interval_s=0.005)

    def _is_unharmed(self) -> bool:
        self.feed()
        found: Any = self.stack.redis.hvals(KEYS.tickets)
        parsed = [records.parse(text) for text in found]
        return not any(record.losses or record.lost is not None for record in parsed)

    def in_flight(self) -> dict[str, records.Record]:
        """Ticket -> its record, of what is in flight now."""
        found: Any = self.stack.redis.hgetall(KEYS.tickets)
        parsed = {name.decode(): records.parse(text) for name, text in found.items()}
        return {name: record for name, record in parsed.items() if record.in_flight}

    def starts(self) -> dict[str, Start]:
        """Ticket -> its last execution."""
        found: Any = self.stack.redis.hgetall(STARTS)
        return {name.decode(): Start.decode(text) for name, text in found.items()}

    def feed(self) -> None:
        """Keeps every ticket in work."""
        counted = self.stack.redis.hget(KEYS.counts, "done")
        done = int(counted) if isinstance(counted, bytes) else 0
        missing = done + TICKETS * AHEAD - self._pushed
        if missing < TICKETS:
            return
        with self.stack.redis.pipeline(transaction=False) as pipe:
            for _ in range(missing):
                ticket = f"T{self._pushed % TICKETS}"
                pipe.xadd(KEYS.stream, {"ticket_id": ticket, "task": "benchmarks.apps.failing.hold", "payload": "0"})
                self._pushed += 1
            pipe.execute()

    def dismiss(self, name: str, kill: Callable[[psutil.Process], None]) -> tuple[float, dict[str, records.Record]]:
        """Sends the signal. Returns when it was sent, and what was in flight there just before."""
        worker = self.workers.pop(name)
        self.stack.release(worker)
        mine = {ticket: record for ticket, record in self.in_flight().items() if record.consumer == name}
        kill(worker)
        # After the signal: what the worker itself still started before it does not count.
        return time.monotonic(), mine


def _cpu_s(family: list[psutil.Process]) -> float:
    """Seconds of processor time that these processes used so far."""
    used = 0.0
    for process in family:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            used += times.user + times.system
    return used


def measure_workers(fault: Fault, figures: Figures, kills: int, progress: Callable[[str], None]) -> None:
    """Kills workers, a few at a time, until there were ``kills`` kills."""
    with Stack("failing") as stack:
        stack.environment_more[LEASE] = str(figures.lease)
        stack.start_master()
        scene = Scene(stack, heartbeats=fault.heartbeats)
        scene.hire(STAYING)
        while figures.kills < kills:
            scene.hire(DYING)
            awaited: dict[Awaited, float] = {}
            for name in list(scene.workers)[-DYING:]:
                at, mine = scene.dismiss(name, fault.kill)
                fences = {ticket: 0 if fault.running else record.fence for ticket, record in mine.items()}
                awaited |= {Awaited(ticket, at, fence): 0.0 for ticket, fence in fences.items()}
                figures.kills += 1
                _wait(scene, awaited, until_s=at + APART_S)
                if fault.recovers:
                    scene.recover()
            _wait(scene, awaited, until_s=time.monotonic() + PATIENCE_S)
            figures.times_s += awaited.values()
            progress(f"{figures.kills} of {kills} kills")


def _wait(scene: Scene, awaited: dict[Awaited, float], *, until_s: float) -> None:
    """Fills in when the tickets were executed next; returns when all were, or at ``until_s``."""
    while time.monotonic() < until_s and not all(awaited.values()):
        scene.feed()
        starts = scene.starts()
        for one in [one for one, took in awaited.items() if not took and one.ticket in starts]:
            start = starts[one.ticket]
            if start.at > one.at:
                awaited[one] = start.at - one.at
            elif start.fence >= one.fence > 0:
                # It ran. A task that began just before says so a little later, and one may take long: only the fence
                # tells. Its ticket's next message has no turn yet that it could be late for.
                del awaited[one]
        time.sleep(0.002)
    if not all(awaited.values()):
        late = [one.ticket for one, took in awaited.items() if not took and time.monotonic() - one.at > PATIENCE_S]
        if late:
            raise TicketBridgeError(f"tickets that never came back: {', '.join(sorted(late))}")


def measure_leader(figures: Figures, kills: int, progress: Callable[[str], None]) -> None:
    """Kills the leader again and again; a standby is always there."""
    with Stack("failing") as stack:
        stack.environment_more[LEASE] = str(figures.lease)
        masters = [stack.start_master() for _ in range(2)]
        scene = Scene(stack)
        scene.workers["w@bench"] = stack.start(
            *("worker", "-m", "celery", "-A", "benchmarks.apps.failing", "worker", "-n", "w@bench", "-c", "2"),
            *("-l", "WARNING", "--without-mingle", "--without-gossip"),
        )
        stack.wait(lambda: stack.redis.hlen(KEYS.consumers) == 1, "the worker", PATIENCE_S)
        while figures.kills < kills:
            stack.wait(lambda: stack.redis.exists(KEYS.leader) == 1, "a leader", PATIENCE_S)
            holder = stack.redis.get(KEYS.leader)
            assert isinstance(holder, bytes)
            leader = next(m for m in masters if f":{m.pid}:".encode() in holder)
            ticket = f"probe{figures.kills}"
            # A probe before: it leads, and has read the lane.
            _probe(scene, f"warm{figures.kills}")
            masters.remove(leader)
            stack.release(leader)
            at = time.monotonic()
            _alone(leader)
            figures.times_s.append(_probe(scene, ticket) - at)
            figures.kills += 1
            masters.append(stack.start_master())
            progress(f"{figures.kills} of {kills} kills")


def _probe(scene: Scene, ticket: str) -> float:
    fields: dict[Any, Any] = {"ticket_id": ticket, "task": "benchmarks.apps.failing.hold", "payload": "0"}
    scene.stack.redis.xadd(KEYS.stream, fields)
    found: list[float] = []

    def began() -> bool:
        at = scene.stack.redis.hget(STARTS, ticket)
        if isinstance(at, bytes):
            found.append(Start.decode(at).at)
        return bool(found)

    scene.stack.wait(began, f"message of {ticket}", PATIENCE_S, interval_s=0.002)
    return found[0]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--kills", type=click.IntRange(4), default=100, show_default=True, help="Of each kind, at each lease.")
@click.option("--lease", "leases", multiple=True, type=float, help="Seconds; may be repeated.  [default: 6 and 2]")
@click.option("--only", multiple=True, type=click.Choice(list(FAULTS)), help="This fault only; may be repeated.")
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path),
    help="Where the figures go.  [default: benchmarks/runs/failover-<time>.json]",
)  # fmt: skip
def main(kills: int, leases: tuple[float, ...], only: tuple[str, ...], json_file: Path | None) -> None:
    """Measures for how long tickets stand still when a worker, a machine or the leader dies."""
    console = Console(width=None if sys.stdout.isatty() else 150)
    stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    json_file = json_file or ROOT / "benchmarks" / "runs" / f"failover-{stamp}.json"
    machine = describe()
    show_machine(console, machine)
    measured: list[Figures] = []
    try:
        for lease in leases or (6.0, 2.0):
            for name in only or FAULTS:
                figures = Figures(name, lease)
                with console.status(f"{FAULTS[name].title}, lease {lease:g} s") as status:

                    def show(text: str, name: str = name, lease: float = lease, status: Any = status) -> None:
                        status.update(f"{FAULTS[name].title}, lease {lease:g} s: {text}")

                    if name == "leader":
                        measure_leader(figures, kills, show)
                    else:
                        measure_workers(FAULTS[name], figures, kills, show)
                measured.append(figures)
                _write(json_file, machine, measured)
    except TicketBridgeError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(error.exit_code)
    console.print(_table(measured))
    console.print(f"All times: {json_file}", soft_wrap=True)


def _table(measured: list[Figures]) -> Table:
    table = Table(
        title="From the signal to the next execution of each ticket", title_justify="left", title_style="bold"
    )
    for heading in ("fault", "lease s", "kills", "tickets", "p50 s", "p99 s", "max s", "goal p99 s", ""):
        table.add_column(heading, justify="left" if heading in ("fault", "") else "right", no_wrap=True)
    for one in measured:
        shown = [percentile(one.times_s, 50), percentile(one.times_s, 99), max(one.times_s), one.goal_s]
        verdict = "reached" if one.reached else "NOT reached"
        counts = (f"{one.lease:g}", str(one.kills), str(len(one.times_s)))
        table.add_row(FAULTS[one.fault].title, *counts, *(f"{value:.3f}" for value in shown), verdict)
    return table


def _write(json_file: Path, machine: dict[str, str], measured: list[Figures]) -> None:
    figures = [
        {"fault": one.fault, "lease_s": one.lease, "kills": one.kills, "goal_p99_s": one.goal_s, "times_s": one.times_s}
        for one in measured
    ]
    json_file.parent.mkdir(parents=True, exist_ok=True)
    json_file.write_text(json.dumps({"machine": machine, "figures": figures}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    main()
