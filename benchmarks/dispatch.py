"""The master alone, with consumers that run nothing, against ``apply_async`` from one process.

Both put a message for each task where a worker would take it; the master also reads it from the stream, records it,
reads its outcome and acknowledges it. The honest comparison is the one without bundles, one Celery message for each
message of the stream, as ``apply_async`` makes them. Both share the machine with what they need: ``apply_async`` with
the server, the master with the server and the simulated consumers.
"""

from __future__ import annotations

import time

from benchmarks.feed import enqueue, items, push
from benchmarks.results import Metrics
from benchmarks.stack import KEYS, Stack
from benchmarks.throughput import clocked, settled

TICKETS = 1000
#: Simulated consumers and their pool processes: a cluster that is never the bottleneck.
CONSUMERS = 4
SLOTS = 16
MESSAGES = {"apply_async": 12_000, "singles": 80_000, "bundles": 160_000}

#: What the variants are.
PEERS = {
    "apply_async": "apply_async, one process",
    "singles": "the master, bundles off",
    "bundles": "the master, bundles",
}


def run(variant: str, scale: float) -> Metrics:
    """One run of one variant."""
    count = int(MESSAGES[variant] * scale)
    with Stack("bridged", bundle_ms=10.0 if variant == "bundles" else 0.0) as stack:
        if variant == "apply_async":
            enqueue(stack.server.url, "noop", items(100, TICKETS))
            started, used = time.monotonic(), time.process_time()
            enqueue(stack.server.url, "noop", items(count, TICKETS))
            seconds = time.monotonic() - started
            own = 1e6 * (time.process_time() - used) / count
            return {"rate": count / seconds, "seconds": seconds, "producer_us": own}
        push(stack.server.url, "noop", items(count, TICKETS))
        stack.start("simulated", "-m", "benchmarks.simulated", stack.server.url, str(CONSUMERS), str(SLOTS))
        stack.wait(lambda: stack.redis.hlen(KEYS.consumers) == CONSUMERS, "the simulated consumers", 10.0)
        stack.start_master()
        return clocked(stack, settled(stack), count)
