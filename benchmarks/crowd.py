"""One leader, hundreds of consumers, millions of messages: what that costs, and whether all of it is right.

Server and masters are real, the consumers simulated. On the way some consumers are lost in one moment, and the leading
master is killed. ``python -m benchmarks.crowd --help``; `tests/integration/leader/test_crowd.py` runs a small one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path

import click
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.feed import items, push
from benchmarks.stack import KEYS, BenchmarkFailed, Stack

#: Seconds without any progress after which a run has failed.
STALL_S = 120.0
#: Share of the messages before consumers are lost, and before the leader is killed.
LOSE_AT, KILL_AT = 0.3, 0.6


@dataclass(frozen=True)
class Shape:
    """``lost``: consumers that end in one moment. ``lease``: that of consumers and leaders, in seconds."""

    consumers: int = 200
    slots: int = 4
    tickets: int = 1_000_000
    messages: int = 5_000_000
    lost: int = 20
    lease: float = 6.0
    window: int = 50_000
    policy: str = "least_loaded"


@dataclass(frozen=True)
class Figures:
    """What a run came to. Processor times in µs for each message; memory in MB, the most that was seen."""

    seconds: float
    rate: float
    master_us: float
    server_us: float
    #: From the kill of the leader to the first message that the next one settled.
    takeover_s: float
    master_mb: float
    server_mb: float
    rerouted: int
    done: int
    dead: int
    suspects: int
    #: Messages by the ledger: that came too late, more than once, and not at all.
    reordered: int
    repeated: int
    missing: int


def run(shape: Shape) -> Figures:
    """Raises `BenchmarkFailed` when nothing moves any more."""
    with Stack("bridged") as stack:
        conf: dict[str, object] = {
            "bridge_lease": shape.lease,
            "bridge_leader_lease": shape.lease,
            "bridge_window": shape.window,
        }
        conf["bridge_policy"] = shape.policy
        stack.environment_more["BENCHMARK_CONF"] = json.dumps(conf)
        lose_at = int(LOSE_AT * shape.messages)
        every = items(shape.messages, shape.tickets)
        push(stack.server.url, "noop", islice(every, lose_at))
        ledger = stack.folder / "crowd.ledger"
        arguments = (
            shape.consumers,
            shape.slots,
            int(shape.lease * 1000),
            shape.lost,
            lose_at,
            ledger,
        )
        stack.start("crowd", "-m", "benchmarks.crowd_consumers", stack.server.url, *map(str, arguments))
        stack.wait(lambda: stack.redis.hlen(KEYS.consumers) == shape.consumers, "the crowd to register", 60.0)
        first, second = stack.start_master(), stack.start_master()
        watch = _Watch(stack, [first, second], stack.process("server"))
        started = time.monotonic()
        watch.until(lambda: watch.done() >= lose_at)
        # The lane is at rest, so that those that were lost have room: what comes now goes to them, too.
        push(stack.server.url, "noop", islice(every, 2 * shape.consumers))
        watch.until(lambda: stack.redis.hlen(KEYS.consumers) == shape.consumers - shape.lost)
        push(stack.server.url, "noop", every)
        watch.until(lambda: watch.done() >= KILL_AT * shape.messages)
        leading = _leading(stack, first, second)
        stack.release(leading)
        used = _cpu(leading)
        leading.kill()
        killed, before = time.monotonic(), watch.done()
        watch.masters.remove(leading)
        watch.until(lambda: watch.done() > before)
        takeover_s = time.monotonic() - killed
        watch.until(lambda: watch.done() + watch.counted("dead") >= shape.messages)
        seconds = time.monotonic() - started
        used += sum(map(_cpu, watch.masters))
        server = _cpu(watch.server)
        reordered, repeated, missing = _judge(ledger, shape.messages)
        per_message = 1e6 / shape.messages
        return Figures(
            *(seconds, shape.messages / seconds, used * per_message, server * per_message, takeover_s),
            *(watch.master_mb, watch.server_mb, watch.counted("rerouted"), watch.done(), watch.counted("dead")),
            *(watch.counted("suspect"), reordered, repeated, missing),
        )


class _Watch:
    """Waits, and sees how much memory is taken meanwhile."""

    def __init__(self, stack: Stack, masters: list[psutil.Process], server: psutil.Process) -> None:
        self._stack = stack
        self.masters = masters
        self.server = server
        self.master_mb = self.server_mb = 0.0

    def counted(self, name: str) -> int:
        return int(self._stack.redis.hget(KEYS.counts, name) or 0)

    def done(self) -> int:
        return self.counted("done")

    def until(self, condition: Callable[[], bool]) -> None:
        moved, seen = time.monotonic(), -1
        while not condition():
            self._stack.check()
            self.master_mb = max(self.master_mb, *(master.memory_info().rss / 1e6 for master in self.masters))
            self.server_mb = max(self.server_mb, self.server.memory_info().rss / 1e6)
            done = self.done()
            if done != seen:
                moved, seen = time.monotonic(), done
            elif time.monotonic() - moved > STALL_S:
                raise BenchmarkFailed(f"it stands still at {done} messages")
            time.sleep(0.05)


def _leading(stack: Stack, first: psutil.Process, second: psutil.Process) -> psutil.Process:
    holder = str(stack.redis.get(KEYS.leader))
    return first if f":{first.pid}:" in holder else second


def _cpu(process: psutil.Process) -> float:
    used = process.cpu_times()
    return float(used.user + used.system)


def _judge(ledger: Path, messages: int) -> tuple[int, int, int]:
    """(reordered, repeated, missing) messages."""
    newest: dict[str, tuple[int, int]] = {}
    done: set[str] = set()
    reordered = repeated = 0
    with ledger.open() as lines:
        for line in lines:
            ticket, _, id_ = line.rstrip("\n").rpartition(" ")
            ms, _, sequence = id_.partition("-")
            key = (int(ms), int(sequence))
            if id_ in done:
                repeated += 1
                continue
            done.add(id_)
            reordered += key < newest.get(ticket, (0, 0))
            newest[ticket] = max(key, newest.get(ticket, (0, 0)))
    return reordered, repeated, messages - len(done)


def show(shape: Shape, figures: Figures) -> Table:
    """The table of a run."""
    table = Table(title=f"{shape.consumers} consumers, {shape.tickets:,} tickets, {shape.messages:,} messages")
    table.add_column("")
    table.add_column("", justify="right")
    for field in fields(figures):
        value = getattr(figures, field.name)
        table.add_row(field.name.replace("_", " "), f"{value:,.1f}" if isinstance(value, float) else f"{value:,}")
    return table


@click.command()
@click.option("--consumers", default=200, show_default=True)
@click.option("--slots", default=4, show_default=True)
@click.option("--tickets", default=1_000_000, show_default=True)
@click.option("--messages", default=5_000_000, show_default=True)
@click.option("--lost", default=20, show_default=True, help="Consumers that are lost in one moment.")
@click.option("--window", default=50_000, show_default=True, help="bridge_window.")
def main(consumers: int, slots: int, tickets: int, messages: int, lost: int, window: int) -> None:
    """Runs one crowd and prints what it cost."""
    shape = Shape(consumers, slots, tickets, messages, lost, window=window)
    Console().print(show(shape, run(shape)))


if __name__ == "__main__":
    main()
