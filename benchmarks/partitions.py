"""One master on a whole stream against several masters on its partitions, with consumers that run nothing.

Server and masters are real, the consumers simulated. A machine with few cores cannot run several masters, the server
and the consumers at full speed. So there are two looks:

- **Processor time.** When a message costs the masters and the server what it costs with one partition, the rate grows
  with the cores until the server's one is full.
- **Growth** (``--part 0.2``). Each master runs only that part of the time, one after another, as on a core that is so
  much slower (`benchmarks.duty`). Then two cores are enough for four masters. Each leads partitions that it was named
  for (``bridge run --lanes``).

``python -m benchmarks.partitions --help``.
"""

from __future__ import annotations

import json
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from benchmarks.duty import duty
from benchmarks.feed import items
from benchmarks.stack import KEYS, Stack
from benchmarks.throughput import clocked
from bridge.link.connections import client
from bridge.routing.keys import LaneKeys
from bridge.routing.partitions import Layout, partition_of

#: Simulated consumers in each partition, and the pool processes of all of them together.
CONSUMERS = 4
SLOTS = 64
TICKETS = 1000
PIECE = 1000
#: Seconds in which masters come to their shares.
SHARING_S = 15.0


@dataclass(frozen=True)
class Figures:
    """What a run came to. Times in µs for each message."""

    partitions: int
    masters: int
    #: Partitions that each master led at the end, in descending order.
    led: tuple[int, ...]
    rate: float
    #: Processor time of all masters together, and of the server.
    master_us: float
    server_us: float
    #: Time within Lua scripts, by the server's own account.
    scripts_us: float
    #: Messages per second of all masters together, if each had a core of its own and nothing else were in the way.
    masters_rate: float


def run(partitions: int, masters: int, messages: int, part: float | None = None) -> Figures:
    """One run: all messages are in the stream before there is a consumer.

    ``part``: of the time in which a master runs; None: always, and the hash shares the partitions.
    """
    with Stack("bridged") as stack:
        stack.environment_more["BENCHMARK_CONF"] = json.dumps(
            # All messages fit into the window of one lane: what is spilled costs more.
            {"bridge_partitions": partitions, "bridge_window": 2 * messages}
        )
        layout = Layout(partitions)
        streams = layout.streams(KEYS.stream)
        lanes = [LaneKeys(stream, KEYS.group) for stream in streams]
        started = [
            stack.start_master(*(() if part is None else ("--lanes", _named(partitions, masters, number))))
            for number in range(masters)
        ]
        stack.wait(lambda: all(stack.redis.exists(keys.leader) for keys in lanes), "leaders", 30.0)
        if masters > 1 and part is None:
            # Masters hand lanes over when a new one has lived for a leader lease.
            time.sleep(SHARING_S)
        _push(stack.server.url, streams, messages)

        def done() -> int:
            with stack.redis.pipeline(transaction=False) as pipe:
                for keys in lanes:
                    pipe.hget(keys.counts, "done")
                return sum(int(number or 0) for number in pipe.execute())

        before = _scripts_us(stack)
        # From here on anything can be dispatched.
        slots = SLOTS // CONSUMERS // partitions
        stack.start("simulated", "-m", "benchmarks.simulated", stack.server.url, str(CONSUMERS), str(slots), *streams)
        with nullcontext() if part is None else duty(started, part):
            metrics = clocked(stack, done, messages)
        holders = [str(stack.redis.get(keys.leader)) for keys in lanes]
        led = sorted((holders.count(holder) for holder in set(holders)), reverse=True)
        return Figures(
            partitions=partitions,
            masters=masters,
            led=tuple(led),
            rate=metrics["rate"],
            master_us=metrics["master_us"],
            server_us=metrics["server_us"],
            scripts_us=(_scripts_us(stack) - before) / messages,
            masters_rate=len(led) * 1e6 / metrics["master_us"],
        )


def _named(partitions: int, masters: int, number: int) -> str:
    """The lanes of one of the masters, all of which get as many."""
    return ",".join(f"{KEYS.group}:p{partition}" for partition in range(number, partitions, masters))


def _push(url: str, streams: tuple[str, ...], messages: int) -> None:
    redis: Any = client(url, timeout_s=60)
    pipe = redis.pipeline(transaction=False)
    for n, (ticket, payload) in enumerate(items(messages, TICKETS), 1):
        fields = {"ticket_id": ticket, "task": "noop", "payload": json.dumps(payload)}
        pipe.xadd(streams[partition_of(ticket, len(streams))], fields)
        if n % PIECE == 0:
            pipe.execute()
    pipe.execute()
    redis.close()


def _scripts_us(stack: Stack) -> float:
    stats: Any = stack.redis.info("commandstats")
    return float(sum(stats.get(f"cmdstat_{name}", {}).get("usec", 0) for name in ("eval", "evalsha")))


def show(found: list[Figures]) -> Table:
    """The table of some runs."""
    table = Table(title="partitions and masters; times in µs a message")
    names = ("partitions", "masters", "led by each", "msg/s", "masters", "server", "scripts", "masters, a core each")
    for name in names:
        table.add_column(name, justify="right")
    for one in found:
        led = "+".join(map(str, one.led))
        numbers = (one.rate, one.master_us, one.server_us, one.scripts_us, one.masters_rate)
        table.add_row(str(one.partitions), str(one.masters), led, *(f"{number:,.0f}" for number in numbers))
    return table


@click.command()
@click.option("--messages", default=160_000, show_default=True)
@click.option("--rounds", default=1, show_default=True)
@click.option("--part", type=click.FloatRange(0.05, 0.25), help="Of the time in which each master runs.")
def main(messages: int, rounds: int, part: float | None) -> None:
    """Runs masters on partitions, in turn: 1 on 1, 1 on 4, and 4 on 4. With --part: 1, 2 and 4 on 4."""
    shapes = ((1, 1), (4, 1), (4, 4)) if part is None else ((4, 1), (4, 2), (4, 4))
    found = [run(*shape, messages, part) for _ in range(rounds) for shape in shapes]
    Console().print(show(found))


if __name__ == "__main__":
    main()
