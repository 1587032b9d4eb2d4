"""What a backlog behind one ticket costs a new leader, and the others: ``python -m benchmarks.takeover``.

A leader has read everything, and dies: a message of a first ticket, the backlog of a stuck one, and a message of a last
one. The next leader meets them in this order.
"""

from __future__ import annotations

import time
from itertools import islice

import click

from benchmarks.backlog import pending, stuck
from benchmarks.feed import items, push
from benchmarks.stack import KEYS, Stack
from benchmarks.throughput import settled


def run(backlog: int) -> dict[str, float]:
    """Seconds from the start of the next leader's process to the messages of both, less what an empty lane takes."""
    with Stack("bridged") as stack:
        master = stack.start_master()
        stack.wait(lambda: bool(stack.redis.exists(KEYS.stream)), "the group", 60.0)
        others = items(2, 2)
        push(stack.server.url, "noop", islice(others, 1))
        push(stack.server.url, "stuck", stuck(1, backlog))
        push(stack.server.url, "noop", islice(others, 1))
        stack.wait(lambda: pending(stack) == backlog + 2, "the backlog to be read", 600.0)
        stack.release(master)
        master.kill()
        stack.redis.delete(KEYS.leader)
        stack.start_workers(1, 2)
        done = settled(stack)
        started = time.monotonic()
        master = stack.start_master()
        found = {}
        for count, name in ((1, "first"), (2, "last")):
            stack.wait(lambda: done() >= count, f"the {name} one", 600.0)  # noqa: B023
            found[name] = time.monotonic() - started
        found["rss_mb"] = master.memory_info().rss / 1e6
        return found


@click.command()
@click.option("--backlog", default=1_000_000, show_default=True)
def main(backlog: int) -> None:
    """Runs it with next to nothing, and with the backlog."""
    for count in (1, backlog):
        times = run(count)
        print(
            f"{count:>9,} pending: first {times['first']:.2f} s, last {times['last']:.2f} s, {times['rss_mb']:.0f} MB"
        )


if __name__ == "__main__":
    main()
