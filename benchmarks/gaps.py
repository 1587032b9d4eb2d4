"""``python -m benchmarks.gaps``: where the time of a hot ticket goes that its tasks do not use.

Runs the case of eight hot tickets (``eight``, ``eight_long``) and reads the history: it says when each task began and
for how long it ran, and a fence is the server's clock in microseconds when a run was dispatched. So the time of a
ticket, from its first start to its last end, has these shares:

- *work*: what the tasks should take. *longer*: what they took beside that (a sleep that ends late, a busy processor).
- *next*: between two messages of one run, in the pool process: the outcome is written, and the next message begins.
- *settle*: from the end of a run to the dispatch of the next one: outcome, leader, script.
- *hand over*: from the dispatch to the start: queue, main process of the worker, pool process.
"""

from __future__ import annotations

import os
import sys
from itertools import pairwise
from statistics import median
from typing import Any

import click
import orjson
from rich.console import Console
from rich.table import Table

from benchmarks.feed import items, push
from benchmarks.machine import describe
from benchmarks.report import show_machine
from benchmarks.stack import KEYS, Stack
from benchmarks.throughput import LOADS, clocked, settled
from bridge.routing.history import What, rows_in

#: Case -> ms that a task should take.
WORK_MS = {"eight": 10.0, "eight_long": 100.0}
SHARES = ("work", "longer", "next", "settle", "hand over")
#: Rows of the history that one read takes.
PAGE = 1000


def deliveries(stack: Stack) -> dict[str, list[tuple[int, int, float]]]:
    """Ticket -> (fence, start in Unix us, ms that it ran) of its messages, in order."""
    found: dict[str, list[tuple[int, int, float]]] = {}
    last = "-"
    while True:
        entries: Any = stack.redis.xrange(KEYS.history, last, count=PAGE)
        if not entries:
            return found
        for id_, fields in entries:
            last = f"({id_.decode()}"
            for row in orjson.loads(rows_in([part for pair in fields.items() for part in pair]) or b"[]"):
                if row[9] == What.DONE.value:
                    found.setdefault(row[1], []).append((row[5], row[7], row[8]))


def measure(case: str, scale: float, bundle_ms: float) -> tuple[float, list[float], list[float]]:
    """Rate in % of the ideal, seconds of all tickets for each of `SHARES`, and the lengths of the runs."""
    load = LOADS[case]
    with Stack("bridged", bundle_ms=bundle_ms) as stack:
        stack.start_workers(load.workers, load.concurrency)
        count = max(80, int(load.messages["bundles"] * scale))
        push(stack.server.url, load.task, items(count, load.tickets))
        stack.start_master()
        rate = clocked(stack, settled(stack), count)["rate"]
        shares = [0.0] * len(SHARES)
        lengths = []
        for rows in deliveries(stack).values():
            length = 1
            # The first tenth warms up: the tasks are not measured yet.
            for (fence, start, ran), (next_fence, next_start, _) in pairwise(rows[len(rows) // 10 :]):
                shares[0] += WORK_MS[case] / 1000
                shares[1] += (ran - WORK_MS[case]) / 1000
                end = start / 1e6 + ran / 1000
                if next_fence == fence + 1:
                    shares[2] += next_start / 1e6 - end
                    length += 1
                else:
                    shares[3] += next_fence / 1e6 - end
                    shares[4] += (next_start - next_fence) / 1e6
                    lengths.append(float(length))
                    length = 1
    return 100 * rate / load.ideal, shares, lengths


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--case", type=click.Choice(list(WORK_MS)), default="eight", show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--scale", type=float, default=1.0, show_default=True, help="Times the messages.")
@click.option("--bundle-ms", type=float, default=10.0, show_default=True, help="`bridge_bundle_ms`.")
def main(case: str, rounds: int, scale: float, bundle_ms: float) -> None:
    """Shows where the time of eight hot tickets goes that their tasks do not use."""
    console = Console(width=None if sys.stdout.isatty() else 150)
    show_machine(console, describe())
    table = Table(title="Shares of the tickets' time in %; ms of each gap", title_justify="left")
    for heading in ("% of ideal", "run", *SHARES, "next ms", "settle ms", "hand over ms"):
        table.add_column(heading, justify="right")
    for _ in range(rounds):
        rate, shares, lengths = measure(case, scale, bundle_ms)
        total = sum(shares)
        runs = len(lengths)
        messages = max(1.0, sum(lengths) - runs)
        table.add_row(
            f"{rate:.1f}",
            f"{median(lengths):g}",
            *(f"{100 * share / total:.1f}" for share in shares),
            f"{1000 * shares[2] / messages:.2f}",
            *(f"{1000 * share / runs:.2f}" for share in shares[3:]),
        )
    console.print(table)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    main()
