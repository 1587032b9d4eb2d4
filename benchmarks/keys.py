"""``python -m benchmarks.keys``: how the time for 10,000 messages falls with the number of tickets that share them.

After the table in the README of Confluent's parallel consumer: tasks of 0 to 5 ms by chance, one partition, 1 to 10,000
keys, 16 threads. Here they are 16 pool processes, tickets are the keys, and messages are pushed while the clock runs.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks.feed import enqueue, items, push, reveal
from benchmarks.figures import spread
from benchmarks.machine import describe
from benchmarks.report import show_machine
from benchmarks.results import Metrics, Results
from benchmarks.stack import ROOT, Stack
from benchmarks.throughput import HIDDEN_DB, settled
from bridge.routing.errors import TicketBridgeError

#: Keys -> seconds in that README, on a machine that it does not name.
CONFLUENT = {
    1: 26.743, 2: 13.576, 5: 5.916, 10: 3.310, 20: 2.242, 50: 2.204, 100: 2.178, 1_000: 2.056, 10_000: 2.128
}  # fmt: skip
#: The same without any order.
CONFLUENT_UNORDERED = 2.829
SLOTS = 16
TASK = "up_to_5_ms"
#: Seconds that a task takes on average.
MEAN_S = 0.0025
#: Seconds that a run may take.
PATIENCE_S = 300.0


def ideal(messages: int, keys: int) -> float:
    """Seconds if nothing but the tasks took time."""
    return messages * MEAN_S / min(keys, SLOTS)


def run(keys: int, messages: int) -> Metrics:
    """The bridge; 0 keys: plain Celery, no order."""
    with Stack("bridged" if keys else "plain") as stack:
        stack.start_workers(1, SLOTS)
        if keys:
            stack.start_master()
            # It leads, and the worker is registered.
            push(stack.server.url, TASK, [("WARM", {"t": keys, "n": 1})])
            stack.wait(lambda: settled(stack)() == 1, "the first message", PATIENCE_S)
            started = time.monotonic()
            push(stack.server.url, TASK, items(messages, keys))
            stack.wait(lambda: settled(stack)() == messages + 1, "the last message", PATIENCE_S, interval_s=0.005)
        else:
            enqueue(stack.server.url.removesuffix("/0") + f"/{HIDDEN_DB}", TASK, items(messages, messages))
            started = time.monotonic()
            reveal(stack.server.url, HIDDEN_DB)
            stack.wait(lambda: stack.tally.done() == messages, "the last message", PATIENCE_S, interval_s=0.005)
        seconds = time.monotonic() - started
        misplaced = stack.tally.misplaced()
        if keys and misplaced:
            raise AssertionError(f"{keys} keys: {misplaced} messages were out of order")
    return {"seconds": seconds}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rounds", type=click.IntRange(1, 100), default=3, show_default=True, help="The medians are shown.")
@click.option("--messages", type=click.IntRange(100), default=10_000, show_default=True)
@click.option("--keys", "chosen", multiple=True, type=click.IntRange(1), help="May be repeated.  [default: as there]")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Where the figures go.")
def main(rounds: int, messages: int, chosen: tuple[int, ...], json_file: Path | None) -> None:
    """Prints the table: the bridge for each number of keys, and plain Celery without order."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    machine, results = describe(), Results()
    show_machine(console, machine)
    numbers = list(chosen or CONFLUENT)
    try:
        for turn in range(1, rounds + 1):
            for keys in (*numbers, 0):
                with console.status(f"round {turn} of {rounds}: {keys} keys"):
                    results.add("keys", str(keys), run(keys, messages))
    except TicketBridgeError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(error.exit_code)
    table = Table(title=f"Seconds for {messages:,} messages of 0 to 5 ms, {SLOTS} at once", title_justify="left")
    for heading in ("keys", "the bridge", "min … max", "ideal", "Confluent's README (10,000, its machine)"):
        table.add_column(heading, justify="right")
    for keys in (*numbers, 0):
        found = spread(results.of("keys", str(keys), "seconds"))
        there = CONFLUENT.get(keys) if keys else CONFLUENT_UNORDERED
        table.add_row(
            f"{keys:,}" if keys else "plain Celery, no order",
            *(f"{found.median:.2f}", f"{found.low:.2f} … {found.high:.2f}", f"{ideal(messages, keys or messages):.2f}"),
            f"{there:.2f}" if there else "",
        )
    console.print(table)
    json_file = json_file or ROOT / "benchmarks" / "runs" / f"keys-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    json_file.parent.mkdir(parents=True, exist_ok=True)
    whole = {"machine": machine, "messages": messages, "results": results.values}
    json_file.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
    console.print(f"Figures of all rounds: {json_file}", soft_wrap=True)


if __name__ == "__main__":
    main()
