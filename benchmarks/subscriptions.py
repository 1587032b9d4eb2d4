"""Several subscriptions on one stream: what one costs the others, and how much memory a message takes.

``python -m benchmarks.subscriptions throughput|memory|isolation [--rounds N]``. Server and master are real. Consumers
are simulated (`benchmarks.lane_consumers`): their tasks take a time and no processor, so neither the processor nor the
server is the limit. Each run has processes of its own. On a machine that does other work, let it go first, as root:
``chrt -r 5 python -m benchmarks.subscriptions isolation``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from benchmarks.feed import PIECE
from benchmarks.figures import percentile, spread
from benchmarks.stack import KEYS, Stack
from benchmarks.throughput import busy
from bridge.link.connections import client
from bridge.operate.orders import give
from bridge.protocol.orders import Park
from bridge.routing.keys import LaneKeys

#: Throughput: messages, tickets, slots of each consumer, ms of a task. So a subscription ends 800 messages a second.
MESSAGES, TICKETS, SLOTS, SERVICE_MS = 4000, 200, 16, 20.0
WARM_UP = 0.1
#: Memory: messages, and bytes of a payload.
KEPT, PAYLOAD = 2000, 1000
COUNTS = (1, 2, 8)
#: Isolation: messages a second for so many seconds, over so many tickets.
RATE, SECONDS, CALM = 150, 6.0, 50
#: Messages that only the flooded subscription wants, and how many its consumer ends in a second.
FLOOD, FLOOD_SLOTS, FLOOD_MS = 40_000, 4, 10.0
STATES = ("slow", "parked", "dead", "flooded")
START_S = 30.0


def keys_of(name: str) -> LaneKeys:
    """The keys of a subscription's lane."""
    return LaneKeys(KEYS.stream, name)


def stack_of(names: Iterable[str], **options: Any) -> Stack:
    """A stack whose app has these subscriptions. ``options``: further options of each, by name."""
    stack = Stack("bridged")
    conf = {"bridge_subscriptions": {name: {"task": "noop", **options.get(name, {})} for name in names}}
    stack.environment_more["BENCHMARK_CONF"] = json.dumps(conf)
    return stack


def done(stack: Stack, name: str) -> int:
    """How many messages the subscription has done."""
    return int(stack.redis.hget(keys_of(name).counts, "done") or 0)


def consumer(stack: Stack, name: str, slots: int, service_ms: float) -> Path:
    """Starts the consumer of a subscription. Returns its ledger."""
    ledger = stack.folder / f"{name}.begun"
    stack.start(
        f"consumer of {name}",
        "-m",
        "benchmarks.lane_consumers",
        stack.server.url,
        name,
        *map(str, (slots, service_ms, ledger)),
    )
    stack.wait(lambda: stack.redis.hlen(keys_of(name).consumers) == 1, f"the consumer of {name}", START_S)
    return ledger


def add(stack: Stack, count: int, tickets: int, kind: str, payload: str = "{}") -> None:
    """Adds messages, as fast as one connection takes them."""
    for first in range(0, count, PIECE):
        with stack.redis.pipeline(transaction=False) as pipe:
            for n in range(first, min(count, first + PIECE)):
                pipe.xadd(KEYS.stream, {"ticket_id": f"{kind}{n % tickets}", "kind": kind, "payload": payload})
            pipe.execute()


# -- throughput --------------------------------------------------------------------------------------------------------


def throughput(names: tuple[str, ...]) -> dict[str, float]:
    """Messages a second of each subscription, with all messages there from the start, and the load of the machine."""
    with stack_of(names) as stack:
        for name in names:
            consumer(stack, name, SLOTS, SERVICE_MS)
        add(stack, MESSAGES, TICKETS, "T")
        stack.start_master()
        began: dict[str, tuple[float, int]] = {}
        rates: dict[str, float] = {}
        used: dict[str, float] = {}
        started = others = 0.0

        def look() -> bool:
            nonlocal used, started, others
            for name in names:
                count, now = done(stack, name), time.monotonic()
                if name not in began and count >= MESSAGES * WARM_UP:
                    began[name] = (now, count)
                    if not started:
                        used, started, others = stack.cpu(), now, busy()
                if name in began and name not in rates and count >= MESSAGES:
                    rates[name] = (count - began[name][1]) / (now - began[name][0])
            return len(rates) == len(names)

        stack.wait(look, "all to be done", 120.0, interval_s=0.005)
        seconds = time.monotonic() - started
        others = busy() - others
        for role, cpu in stack.cpu().items():
            own = cpu - used.get(role, 0.0)
            others -= own
            if role in ("server", "master"):
                rates[role] = 100 * own / seconds
        return {**rates, "others": 100 * others / seconds}


def show_throughput(rounds: int) -> None:
    """Each of two subscriptions against the same one alone."""
    shares: dict[str, list[float]] = {"a": [], "b": []}
    for number in range(1, rounds + 1):
        alone, both = throughput(("a",)), throughput(("a", "b"))
        for name, seen in shares.items():
            seen.append(both[name] / alone["a"])
        click.echo(
            f"round {number}: alone {alone['a']:.0f}/s; both {both['a']:.0f}/s and {both['b']:.0f}/s; "
            f"server {both['server']:.0f} %, master {both['master']:.0f} % of a core; others {both['others']:.0f} %"
        )
    for name, seen in shares.items():
        found = spread(seen)
        click.echo(
            f"{name} beside the other: {found.median:.1%} of its rate alone ({found.low:.1%} to {found.high:.1%}, "
            f"{found.rounds} rounds)"
        )


# -- memory ------------------------------------------------------------------------------------------------------------


def stream_bytes(stack: Stack, streams: Iterable[str] = (KEYS.stream,)) -> int:
    """Bytes of these streams in the server's memory."""
    return sum(int(stack.redis.execute_command("MEMORY", "USAGE", stream, "SAMPLES", 0) or 0) for stream in streams)


def memory(count: int) -> dict[str, float]:
    """Bytes of the stream for each message: unread, read by all, and when all are done; and of a copy for each."""
    names = tuple(f"s{i}" for i in range(count))
    payload = json.dumps({"text": "x" * PAYLOAD})
    with stack_of(names) as stack:
        for name in names:
            stack.redis.xgroup_create(KEYS.stream, name, "0", mkstream=True)
        add(stack, KEPT, TICKETS, "T", payload)
        unread = stream_bytes(stack)
        copies = [f"copy{i}" for i in range(count)]
        for copy in copies:
            stack.redis.copy(KEYS.stream, copy)
        copied = stream_bytes(stack, copies)
        stack.redis.delete(*copies)
        stack.start_master()
        stack.wait(lambda: all(_read(stack, name) == KEPT for name in names), "all to be read", START_S)
        read = stream_bytes(stack)
        for name in names:
            consumer(stack, name, 64, 0.1)
        stack.wait(lambda: all(done(stack, name) == KEPT for name in names), "all to be done", 60.0)
        stack.wait(lambda: stack.redis.xlen(KEYS.stream) == 0, "the stream to be empty", 60.0)
        return {
            "unread": unread / KEPT,
            "read by all": read / KEPT,
            "a copy for each": copied / KEPT,
            "all done, whole stream": float(stream_bytes(stack)),
        }


def _read(stack: Stack, name: str) -> int:
    return int(stack.redis.xpending(KEYS.stream, name)["pending"])


def show_memory(rounds: int) -> None:
    """Bytes do not depend on the weather: one round says all."""
    del rounds
    for count in COUNTS:
        found = memory(count)
        shown = "; ".join(f"{what} {value:,.0f}" for what, value in found.items())
        click.echo(f"{count} subscriptions, bytes a message ({PAYLOAD} of payload): {shown}")


# -- isolation ---------------------------------------------------------------------------------------------------------


class Calm:
    """A subscription whose latency is measured, alone on its server or beside one in a state."""

    def __init__(self, stack: Stack, state: str = "") -> None:
        self.stack = stack
        self.state = state
        self._ledger = consumer(stack, "calm", SLOTS, 1.0)
        self._sent: dict[str, int] = {}
        if state in ("slow", "parked"):
            consumer(stack, "other", 4, 500.0)
        elif state == "flooded":
            consumer(stack, "other", FLOOD_SLOTS, FLOOD_MS)
        stack.start_master()
        add(stack, CALM, CALM, "T")
        stack.wait(lambda: done(stack, "calm") == CALM, "the first messages", START_S)
        if state == "parked":
            asking = client(stack.server.url, timeout_s=30)
            for ticket in range(CALM):
                give(asking, keys_of("other"), Park(f"T{ticket}", "benchmark"))
        elif state == "flooded":
            add(stack, FLOOD, 5000, "F")
            stack.wait(self._passed_by, "the flood to pass by", 60.0)

    @staticmethod
    def stack_for(state: str = "") -> Stack:
        """The stack that it is to be measured on."""
        return stack_of(("calm", "other") if state else ("calm",), calm={"filter": {"kind": ["T"]}})

    def _passed_by(self) -> bool:
        return int(self.stack.redis.hget(keys_of("calm").counts, "left_out") or 0) == FLOOD

    def send(self, n: int) -> None:
        """Adds a message."""
        at = time.monotonic_ns()
        id_: Any = self.stack.redis.xadd(KEYS.stream, {"ticket_id": f"T{n % CALM}", "kind": "T", "payload": "{}"})
        self._sent[id_.decode()] = at

    def latencies(self) -> list[float]:
        """Ms from before a message was sent to the start of its task."""
        stack = self.stack
        stack.wait(lambda: done(stack, "calm") == CALM + len(self._sent), "the last message", START_S)
        if self.state:
            # The other subscription was in its state until the end, or nothing was measured.
            undone = CALM + len(self._sent) + (FLOOD if self.state == "flooded" else 0) - done(stack, "other")
            assert undone > RATE, f"the {self.state} subscription has caught up"
        began: dict[str, int] = {}

        def told() -> bool:
            lines = self._ledger.read_text().splitlines()
            began.update((id_, int(at)) for id_, at in (line.split() for line in lines if line.count(" ") == 1))
            return self._sent.keys() <= began.keys()

        stack.wait(told, "the ledger", START_S)
        return [(began[id_] - at) / 1e6 for id_, at in self._sent.items()]


def beside(state: str) -> tuple[list[float], list[float]]:
    """Latencies alone, and beside a subscription in this state. Both run at the same time, each on a server of its own,
    and get their messages in turn: so whatever else the machine does meets both.
    """
    with Calm.stack_for() as one, Calm.stack_for(state) as two:
        alone, accompanied = Calm(one), Calm(two, state)
        started = time.monotonic()
        for n in range(int(RATE * SECONDS)):
            for half, calm in enumerate((alone, accompanied)):
                time.sleep(max(0.0, started + (n + half / 2) / RATE - time.monotonic()))
                calm.send(n)
        return alone.latencies(), accompanied.latencies()


def show_isolation(rounds: int) -> None:
    """p50 and p99 of one subscription beside another one in each state, against the same one alone."""
    ratios: dict[str, list[float]] = {state: [] for state in STATES}
    for number in range(1, rounds + 1):
        shown = []
        for state in STATES:
            alone, accompanied = beside(state)
            ratios[state].append(percentile(accompanied, 99) / percentile(alone, 99))
            figures = [f"{percentile(found, 50):.2f}/{percentile(found, 99):.2f}" for found in (alone, accompanied)]
            shown.append(f"{state} {figures[1]} (alone {figures[0]})")
        click.echo(f"round {number}, ms p50/p99: {'; '.join(shown)}")
    for state, values in ratios.items():
        seen = spread(values)
        click.echo(f"p99 beside a {state} one: {seen.median:.2f} times that alone ({seen.low:.2f} to {seen.high:.2f})")


SHOWS = {"throughput": show_throughput, "memory": show_memory, "isolation": show_isolation}


@click.command()
@click.argument("what", type=click.Choice([*SHOWS]))
@click.option("--rounds", default=5, show_default=True)
def main(what: str, rounds: int) -> None:
    """Measures one of these and prints each round and the medians."""
    SHOWS[what](rounds)


if __name__ == "__main__":
    main()
