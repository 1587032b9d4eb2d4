"""What 500,000 messages behind one ticket that does not finish do to the master and to the other tickets.

One pool process runs the stuck task from the start on, so that the others have the same one process left before and
after. The memory is read when a fifth of the backlog, and when all of it was read by the master.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psutil

from benchmarks.feed import Item, items, push
from benchmarks.results import Metrics
from benchmarks.stack import KEYS, Stack
from benchmarks.throughput import clocked, settled

BACKLOG = 500_000
#: Messages of the others, each time.
OTHERS = 30_000
TICKETS = 1000
#: Number of the ticket that is stuck.
STUCK = TICKETS
#: Seconds that the master may take to read the backlog.
READ_S = 300.0

PEERS = {"bundles": "the bridge"}

_MIB = 1024 * 1024


def run(scale: float) -> Metrics:
    """One run."""
    backlog = int(BACKLOG * scale)
    others = int(OTHERS * scale)
    numbers: dict[int, int] = {}
    with Stack("bridged") as stack:
        stack.start_workers(1, 2)
        leader = stack.start_master()
        push(stack.server.url, "stuck", stuck(1, 1))
        done = settled(stack)
        # What a run of the others needs in memory is there before the first reading.
        before = _others(stack, others, numbers)
        before = _others(stack, others, numbers)
        metrics = {"before": before, "rss_empty_mib": _rss_mib(leader)}
        push(stack.server.url, "stuck", stuck(2, backlog // 5))
        wait_until_read(stack)
        metrics["rss_fifth_mib"] = _rss_mib(leader)
        push(stack.server.url, "stuck", stuck(backlog // 5 + 2, backlog - backlog // 5))
        wait_until_read(stack)
        metrics["rss_full_mib"] = _rss_mib(leader)
        metrics["growth_mib"] = metrics["rss_full_mib"] - metrics["rss_fifth_mib"]
        metrics["after"] = _others(stack, others, numbers)
        metrics["kept"] = metrics["after"] / before
        metrics["rss_after_mib"] = _rss_mib(leader)
        metrics["waiting"] = pending(stack)
        if done() != 3 * others:
            raise AssertionError(f"{done()} messages are done; only {3 * others} can be")
    return metrics


def _others(stack: Stack, count: int, numbers: dict[int, int]) -> float:
    done = settled(stack)
    before = done()
    messages = list(items(count, TICKETS, numbered_from=numbers))
    push(stack.server.url, "noop", messages)
    return clocked(stack, done, count, before=before)["rate"]


def stuck(first: int, count: int) -> Iterator[Item]:
    """Messages of the stuck ticket, from number ``first`` on."""
    for number in range(first, first + count):
        yield "STUCK", {"t": STUCK, "n": number}


def wait_until_read(stack: Stack) -> None:
    """Until the master has read everything that is there."""
    stack.wait(lambda: pending(stack) == _added(stack) - _settled(stack), "the backlog to be read", READ_S)


def _added(stack: Stack) -> int:
    # What is done leaves the stream.
    info: dict[str, Any] = stack.redis.xinfo_stream(KEYS.stream)
    return int(info["entries-added"])


def _settled(stack: Stack) -> int:
    return settled(stack)()


def pending(stack: Stack) -> int:
    """Entries that the group has read, and that are not done."""
    summary: dict[str, Any] = stack.redis.xpending(KEYS.stream, KEYS.group)
    return int(summary["pending"])


def _rss_mib(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / _MIB
