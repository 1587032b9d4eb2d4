"""How long messages wait that come at a steady rate: beside a backlog of others, or with slow ones among them."""

from __future__ import annotations

import json
import random
import time

from benchmarks.feed import items, push
from benchmarks.figures import percentile
from benchmarks.results import Metrics
from benchmarks.stack import KEYS, Stack

#: Messages that come a second, and for how many seconds.
RATE = 200.0
SECONDS = 10.0
#: Of these, before the clock counts.
WARM_UP_S = 2.0
#: Tickets with a backlog of tasks of 10 ms, and pool processes: half of them are free at any time.
BEHIND = 8
SLOTS = 16
#: Messages behind each of these tickets a second: more than one process can do.
AHEAD = 110
#: Share of the messages that take 1 s, the rate of all, and the processes: a third of them is free at any time.
SLOW = 0.01
MIXED_RATE = 200.0
MIXED_SLOTS = 8
#: Seconds that the last message may take.
PATIENCE_S = 60.0


def beside_backlog(_: str, scale: float) -> Metrics:
    """From XADD to the start of the task, beside tickets that all have a backlog."""
    seconds = SECONDS * scale
    with Stack("bridged") as stack:
        stack.start_workers(1, SLOTS)
        stack.start_master()
        backlog = int(BEHIND * AHEAD * (seconds + WARM_UP_S + 2))
        push(stack.server.url, "nap", items(backlog, BEHIND))
        stack.wait(lambda: stack.tally.done() > SLOTS, "the backlog to be worked on", PATIENCE_S)
        waits = _waits(stack, "stamp", RATE, seconds + WARM_UP_S, slow=0.0)
    return _figures(waits)


def mixed(variant: str, scale: float) -> Metrics:
    """The no-ops' time among slow ones of the same task, with bundles and without."""
    with Stack("bridged", bundle_ms=10.0 if variant == "bundles" else 0.0) as stack:
        stack.start_workers(1, MIXED_SLOTS)
        stack.start_master()
        # It leads, and has a worker.
        push(stack.server.url, "noop", [("WARM", {"t": 0, "n": 1})])
        stack.wait(lambda: stack.tally.done() == 1, "the first message", PATIENCE_S)
        waits = _waits(stack, "sometimes_slow", MIXED_RATE, 2 * SECONDS * scale + WARM_UP_S, slow=SLOW)
    return _figures(waits)


def _figures(waits: list[float]) -> Metrics:
    return {"p50_ms": percentile(waits, 50), "p99_ms": percentile(waits, 99), "max_ms": max(waits)}


def _waits(stack: Stack, task: str, rate: float, seconds: float, *, slow: float) -> list[float]:
    """Ms from XADD to start, of those that are not slow; each message has a ticket of its own."""
    dice = random.Random(17)
    sent: dict[int, int] = {}
    counted = []
    began = time.monotonic()
    for number in range(int(rate * seconds)):
        due = began + number / rate
        if (wait_s := due - time.monotonic()) > 0:
            time.sleep(wait_s)
        ticket = 1000 + number
        payload = {"t": ticket, "n": ticket}
        if dice.random() < slow:
            payload["slow"] = 1
        elif number >= rate * WARM_UP_S:
            counted.append(ticket)
        sent[ticket] = time.monotonic_ns()
        stack.redis.xadd(KEYS.stream, {"ticket_id": f"P{ticket}", "task": task, "payload": json.dumps(payload)})
    stack.wait(lambda: sent.keys() <= stack.tally.starts().keys(), "the last message to start", PATIENCE_S, 0.1)
    starts = stack.tally.starts()
    return [(starts[number] - sent[number]) / 1e6 for number in counted]
