"""Delayed messages: their memory, how late they are, and what a flood of them costs others.

First many messages are delayed for an hour. With all of them there, others are due at an even rate. Then many are due
at one instant, while a few messages that are not delayed come. How late a message was moved is the server's account;
how late it started, the worker's. ``python -m benchmarks.delayed --help``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
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
#: Tickets of the messages that are due. Each of those that come meanwhile has a ticket of its own.
TICKETS = 1000
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
    return f"p50 {ordered[len(ordered) // 2]:,.1f} ms, p99 {p99(ordered):,.1f} ms"


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
@click.option("--others", default=50, show_default=True, help="Messages in a second that come during the flood.")
@click.option("--only", type=click.Choice(["waiting", "flood"]), help="One of the two parts.")
def main(waiting: int, rate: int, seconds: int, flood: int, others: int, only: str | None) -> None:
    """One run of all three."""
    if only != "flood":
        many(waiting, rate, seconds)
    if only != "waiting" and flood:
        flooded(flood, others, seconds)


def many(waiting: int, rate: int, seconds: int) -> None:
    """Many wait, and some of them become due at an even rate."""
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


def cpu(process: Any) -> float:
    """Seconds of processor time."""
    times = process.cpu_times()
    return float(times.user + times.system)


def flooded(flood: int, rate: int, seconds: float) -> None:
    """What a flood costs: the rate at which it drains, beside that of the same messages when none is delayed; and how
    long other messages wait meanwhile, beside what they wait at an even load of the same rate, and at no load.

    All of them wait for the same workers. So the fair comparison is with a lane that is as busy by messages that were
    never delayed. A lane without any load answers sooner, since no message is ahead in any worker.
    """
    full = undelayed_rate(flood)
    with Stack("bridged") as stack:
        stack.start_master()
        stack.start_workers(1, 2)
        stack.wait(lambda: bool(stack.redis.exists(KEYS.stream)), "the group", 60.0)
        done = settled(stack)
        warm_up = 2000
        push(stack, ((f"W{n % TICKETS}", 0) for n in range(warm_up)))
        stack.wait(lambda: done() >= warm_up, "the first messages", 60.0)
        _, last = rows_after(stack, "0-0")

        others, last = waits_of_others(stack, last, rate, until(seconds))
        idle = others
        print(f"idle: other messages started {shares(idle)} after they were added")

        before = done()
        instant = server_ms(stack) + 5000 + flood // 10
        push(stack, ((f"F{n % TICKETS}", instant) for n in range(flood)))
        stack.wait(lambda: server_ms(stack) >= instant - 200, "the instant", 600.0)
        sent = Others(stack, rate)
        # After the wait and before the push: the one pushed last could never be done right after it was pushed.
        while True:
            sent.wait()
            if done() >= before + flood + sent.count:
                break
            sent.push()
        rows, last = rows_after(stack, last)
        due = of_due(rows)
        end = max(row.started_us / 1000 for row in rows if row.what is What.DONE and row.message_id in due)
        drained = flood / max(0.001, (end - instant) / 1000)
        during = waits(rows, lambda added: instant <= added < end)
        in_leader = waits(rows, lambda added: instant <= added < end, lambda row: row.dispatched_ms)
        print(f"{flood:,} due at one instant: drained at {drained:,.0f} a second, {drained / full:.2f} of the rate of")
        print(f"  the same messages undelayed ({full:,.0f}); others started {shares(during)} after they were added,")
        print(f"  and were dispatched {shares(in_leader)} after that")

        even = even_load(stack, last, min(drained, full), flood, rate)
        print(f"an even load of {EVEN:.0%} of that rate, undelayed: others started {shares(even)} after that")
        print(f"  p99 during the flood: {p99(during) / p99(even):.2f} of that, {p99(during) / p99(idle):.1f} of idle")


#: The even load: so much of the rate of the flood. At the whole rate the backlog would grow without a bound.
EVEN = 0.9


def undelayed_rate(count: int) -> float:
    """Messages a second when as many messages that are not delayed wait for the first worker."""
    with Stack("bridged") as stack:
        stack.start_master()
        stack.wait(lambda: bool(stack.redis.exists(KEYS.stream)), "the group", 60.0)
        push(stack, ((f"F{n % TICKETS}", 0) for n in range(count)))
        stack.start_workers(1, 2)
        done = settled(stack)
        stack.wait(lambda: done() >= count, "all to be done", 600.0)
        rows, _ = rows_after(stack, "0-0")
        starts = sorted(row.started_us for row in rows if row.what is What.DONE)
        return count * 1e6 / max(1, starts[-1] - starts[0])


class Others:
    """Messages of other tickets, each pushed when its time has come, ``rate`` in a second."""

    def __init__(self, stack: Stack, rate: int) -> None:
        self._stack = stack
        self._rate = rate
        self._began = time.monotonic()
        self.count = 0

    def some(self) -> None:
        """Waits for the time of the next one, and pushes it."""
        self.wait()
        self.push()

    def wait(self) -> None:
        """Waits for the time of the next one."""
        time.sleep(max(0.0, self._began + self.count / self._rate - time.monotonic()))

    def push(self) -> None:
        """Pushes one."""
        self._stack.redis.xadd(KEYS.stream, {"ticket_id": f"O{self.count}", "task": "noop", "payload": PAYLOAD})
        self.count += 1


def even_load(stack: Stack, last: str, rate: float, count: int, others_rate: int) -> list[float]:
    """How long other messages wait while ``count`` messages come one after the other, at ``EVEN`` of ``rate``."""
    done = settled(stack)
    before, began, pushed = done(), time.monotonic(), 0
    sent = Others(stack, others_rate)
    since = server_ms(stack)
    while pushed < count:
        wanted = min(count, int((time.monotonic() - began) * rate * EVEN) + 1)
        push(stack, ((f"E{n % TICKETS}", 0) for n in range(pushed, wanted)))
        pushed = wanted
        sent.some()
    end = server_ms(stack)
    stack.wait(lambda: done() >= before + count + sent.count, "all to be done", 600.0)
    rows, _ = rows_after(stack, last)
    return waits(rows, lambda added: since <= added < end)


def waits_of_others(stack: Stack, last: str, rate: int, goes_on: Callable[[], bool]) -> tuple[list[float], str]:
    """How long other messages wait while ``goes_on``, and the last entry of the history."""
    done = settled(stack)
    before = done()
    sent = Others(stack, rate)
    while goes_on():
        sent.some()
    stack.wait(lambda: done() >= before + sent.count, "the others to be done", 60.0)
    rows, last = rows_after(stack, last)
    return waits(rows, lambda _: True), last


def waits(
    rows: list[Delivery],
    counts: Callable[[float], bool],
    at_ms: Callable[[Delivery], float] = lambda row: row.started_us / 1000,
) -> list[float]:
    """How many ms after they were added other messages started. ``counts``: for those added at such a time."""
    found = []
    for row in rows:
        if row.what is What.DONE and row.ticket.startswith("O"):
            added = int(row.message_id.partition("-")[0])
            if counts(added):
                found.append(at_ms(row) - added)
    return found


def until(seconds: float) -> Callable[[], bool]:
    """Whether the time is not over."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() < end


def p99(values: list[float]) -> float:
    """The 99th of a hundred."""
    return sorted(values)[len(values) * 99 // 100]


if __name__ == "__main__":
    main()
