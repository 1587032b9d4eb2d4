"""Delayed messages: their memory, how late they are, and what a flood of them costs others.

First many messages are delayed for an hour. With all of them there, others are due at an even rate. Then many are due
at one instant, while a few messages that are not delayed come. How late a message was moved is the server's account;
how late it started, the worker's. ``python -m benchmarks.delayed --help``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

import click

from benchmarks.feed import PIECE
from benchmarks.stack import KEYS, Stack
from benchmarks.throughput import settled
from bridge.link.connections import client
from bridge.routing.history import Delivery, What, read_entry
from bridge.routing.return_codes import text_of

HOUR_MS = 3_600_000
PAYLOAD = json.dumps({"t": 1, "n": 1})
#: Tickets of the messages that are due, and of those that come during the flood.
TICKETS, OTHERS = 1000, 10
#: Seconds until the first one is due.
LEAD_S = 5.0


def push(stack: Stack, messages: Iterable[tuple[str, int]]) -> None:
    """Adds messages of (ticket, due time in ms)."""
    connection: Any = client(stack.server.url, timeout_s=60).connection_pool.make_connection()
    connection.connect()
    piece: list[tuple[Any, ...]] = []

    def send() -> None:
        connection.send_packed_command(connection.pack_commands(piece), check_health=False)
        for _ in piece:
            connection.read_response()
        piece.clear()

    for ticket, due_ms in messages:
        due = ("due", due_ms) if due_ms else ()
        piece.append(("XADD", KEYS.stream, "*", "ticket_id", ticket, "task", "noop", "payload", PAYLOAD, *due))
        if len(piece) == PIECE:
            send()
    if piece:
        send()
    connection.disconnect()


def rows_after(stack: Stack, last: str) -> tuple[list[Delivery], str]:
    """The rows of the history after an entry, and the last entry."""
    found: list[Delivery] = []
    while True:
        page: Any = stack.redis.xrange(KEYS.history, f"({last}", count=1000)
        if not page:
            return found, last
        for id_, fields in page:
            found += read_entry(id_, fields[b"d"])
            last = text_of(id_)


def shares(values: list[float]) -> str:
    """The median and the 99th of a hundred."""
    ordered = sorted(values)
    return f"p50 {ordered[len(ordered) // 2]:,.1f} ms, p99 {ordered[len(ordered) * 99 // 100]:,.1f} ms"


def lateness(rows: list[Delivery], due_ms: dict[str, int]) -> tuple[list[float], list[float]]:
    """How late messages were moved, and how late they started, in ms."""
    moved = [row.written_ms - due_ms[row.message_id] for row in rows if row.what is What.DUE]
    started = [
        row.started_us / 1000 - due_ms[row.message_id]
        for row in rows
        if row.what is What.DONE and row.message_id in due_ms
    ]
    return [float(ms) for ms in moved], started


def of_due(rows: list[Delivery]) -> dict[str, int]:
    """Message -> when it was due, in ms."""
    return {row.message_id: row.dispatched_ms for row in rows if row.what is What.DUE}


def server_ms(stack: Stack) -> int:
    """The server's time."""
    found: Any = stack.redis.time()
    return int(found[0]) * 1000 + int(found[1]) // 1000


def memory(stack: Stack) -> int:
    """Bytes that the server uses."""
    info: Any = stack.redis.info("memory")
    return int(info["used_memory"])


@click.command()
@click.option("--waiting", default=1_000_000, show_default=True, help="Messages that are delayed all the time.")
@click.option("--rate", default=2000, show_default=True, help="Messages due in a second.")
@click.option("--seconds", default=20, show_default=True)
@click.option("--flood", default=100_000, show_default=True, help="Messages due at one instant.")
def main(waiting: int, rate: int, seconds: int, flood: int) -> None:
    """One run of all three."""
    with Stack("bridged") as stack:
        master = stack.start_master()
        stack.wait(lambda: bool(stack.redis.exists(KEYS.stream)), "the group", 60.0)
        before, rss = memory(stack), master.memory_info().rss
        began = time.monotonic()
        base = server_ms(stack) + HOUR_MS
        push(stack, ((f"W{n % 100_000}", base + n) for n in range(waiting)))
        stack.wait(lambda: stack.redis.zcard(KEYS.delayed) == waiting, "all to be delayed", 600.0)
        took = time.monotonic() - began
        each = (memory(stack) - before) / max(1, waiting)
        print(
            f"{waiting:,} delayed in {took:.0f} s: {each:.0f} bytes each on the server, {len(PAYLOAD)} of them are the "
            f"payload; the master has {(master.memory_info().rss - rss) / 1e6:+.0f} MB"
        )
        stack.start_workers(1, 2)
        _, last = rows_after(stack, "0-0")
        done = settled(stack)
        idle = cpu(master)
        first = server_ms(stack) + int(LEAD_S * 1000)
        count = rate * seconds
        push(stack, ((f"T{n % TICKETS}", first + n * 1000 // rate) for n in range(count)))
        stack.wait(lambda: done() >= count, "all to be done", 60.0 + seconds * 3)
        rows, last = rows_after(stack, last)
        moved, started = lateness(rows, of_due(rows))
        print(f"{rate:,} due a second for {seconds} s: moved {shares(moved)} late; started {shares(started)} late")
        print(f"  processor time of the master: {(cpu(master) - idle) / count * 1e6:.0f} us a message")
        if flood:
            flooded(stack, flood, last)


def cpu(process: Any) -> float:
    """Seconds of processor time."""
    times = process.cpu_times()
    return float(times.user + times.system)


def flooded(stack: Stack, flood: int, last: str) -> None:
    """Many are due at one instant, while others come, ten in a second, before it and during it."""
    done = settled(stack)
    before = done()
    instant = server_ms(stack) + 10_000 + flood // 10
    push(stack, ((f"F{n % TICKETS}", instant) for n in range(flood)))
    others = 0
    while done() < before + flood + others:
        push(stack, [(f"O{others % OTHERS}", 0)])
        others += 1
        time.sleep(0.1)
    rows, _ = rows_after(stack, last)
    due = of_due(rows)
    ends = [row.started_us / 1000 for row in rows if row.what is What.DONE and row.message_id in due]
    waited: dict[bool, list[float]] = {False: [], True: []}
    for row in rows:
        if row.what is What.DONE and row.ticket.startswith("O"):
            added = int(row.message_id.partition("-")[0])
            if added < max(ends):
                waited[added >= instant].append(row.started_us / 1000 - added)
    print(f"{flood:,} due at one instant: drained in {(max(ends) - instant) / 1000:.1f} s", end="")
    print(f", {flood / max(0.001, (max(ends) - instant) / 1000):,.0f} a second")
    for during, said in ((False, "before"), (True, "meanwhile")):
        if waited[during]:
            print(f"  messages of other tickets {said}: started {shares(waited[during])} after they were added")


if __name__ == "__main__":
    main()
