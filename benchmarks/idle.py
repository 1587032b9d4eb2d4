"""What a stack costs that has nothing to do, and how long a message takes that comes to it then."""

from __future__ import annotations

import json
import random
import time
from contextlib import closing

from celery import Celery

from benchmarks.feed import push
from benchmarks.figures import percentile
from benchmarks.results import Metrics
from benchmarks.stack import KEYS, Stack

#: Seconds for which the CPU is measured.
IDLE_S = 10.0
#: Seconds after the start before that, for what is done once.
SETTLE_S = 4.0
#: Single messages whose way is timed, after a few that wake everybody up.
MESSAGES = 150
WARM_UP = 20
#: Longest pause between two of them, in seconds.
PAUSE_S = 0.12

PEERS = {"plain": "plain Celery, apply_async", "bridge": "the bridge"}


def run(variant: str) -> Metrics:
    """One run of one variant. CPU in percent of a core, latency in ms."""
    bridged = variant == "bridge"
    with Stack("bridged" if bridged else "plain") as stack:
        stack.start_workers(1, 2)
        roles = {"worker_cpu": stack.process("worker"), "server_cpu": stack.process("server")}
        if bridged:
            roles["leader_cpu"] = stack.start_master()
            # The one that came first leads: wait until it works.
            push(stack.server.url, "stamp", [("T0", {"t": 0, "n": 1})])
            stack.wait(lambda: stack.tally.done() == 1, "the first message", 20.0)
            roles["standby_cpu"] = stack.start_master()
        time.sleep(SETTLE_S)
        before = {name: sum(process.cpu_times()[:2]) for name, process in roles.items()}
        started = time.monotonic()
        time.sleep(IDLE_S)
        seconds = time.monotonic() - started
        stack.check()
        metrics = {
            name: 100.0 * (sum(process.cpu_times()[:2]) - before[name]) / seconds for name, process in roles.items()
        }
        latencies = _latencies(stack, bridged=bridged)
    metrics["latency_ms"] = percentile(latencies, 50)
    metrics["latency_p99_ms"] = percentile(latencies, 99)
    metrics["latency_max_ms"] = max(latencies)
    return metrics


def _latencies(stack: Stack, *, bridged: bool) -> list[float]:
    """Ms from before the message is sent to the first line of its task, for single messages at random intervals."""
    dice = random.Random(11)
    sent = {}
    with closing(Celery("producer", broker=stack.server.url)) as app:
        task = app.task(name="stamp", ignore_result=True)(_never)
        for number in range(1000, 1000 + WARM_UP + MESSAGES):
            time.sleep(dice.uniform(0.0, PAUSE_S))
            item = (f"T{number}", {"t": number, "n": number})
            sent[number] = time.monotonic_ns()
            if bridged:
                payload = json.dumps(item[1])
                stack.redis.xadd(KEYS.stream, {"ticket_id": item[0], "task": "stamp", "payload": payload})
            else:
                task.apply_async(item)
    stack.wait(lambda: sent.keys() <= stack.tally.starts().keys(), "the last message to start", 20.0)
    starts = stack.tally.starts()
    measured = list(sent)[WARM_UP:]
    return [(starts[number] - sent[number]) / 1e6 for number in measured]


def _never(ticket: str, payload: dict[str, int]) -> None:
    raise AssertionError(f"{ticket} {payload} was run by its producer")
