"""The rows of "real work at the speed of no-ops": what is measured, against whom, and what it must reach."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks import throughput
from benchmarks.goals.goal import Goal
from benchmarks.results import Metrics

#: Case -> one run of one of its variants, at a scale.
CASES: dict[str, Callable[[str, float], Metrics]] = {case: partial(throughput.run, case) for case in throughput.LOADS}

#: Name on the command line -> the row.
ROWS = {
    "keyed": Goal("keyed state, against plain Celery with HGETALL, HSET", "state", "keyed", "rate", 15, peer="plain"),
    "keyed-groupmq": Goal("keyed state, against GroupMQ doing the same", "state", "keyed", "rate", 1.5, peer="groupmq"),
    "state": Goal("its own HGETALL, and effects, against plain Celery", "state", "bundles", "rate", 6, peer="plain"),
    "noop": Goal("no-op, against plain Celery", "tickets", "bundles", "rate", 25, peer="plain"),
    "noop-groupmq": Goal("no-op, against GroupMQ", "tickets", "bundles", "rate", 1.8, peer="groupmq"),
    "hot": Goal("one hot ticket, against GroupMQ", "hot", "bundles", "rate", 3, peer="groupmq"),
    "events": Goal("task events on, share of off", "tickets", "events", "rate", 0.95, peer="bundles"),
    "eight": Goal("8 hot tickets, tasks of 10 ms", "eight", "bundles", "of_ideal", 97, unit="% of ideal"),
    "eight-long": Goal("8 hot tickets, tasks of 100 ms", "eight_long", "bundles", "of_ideal", 99, unit="% of ideal"),
    "queues": Goal("no-op, against a queue for each process", "tickets", "bundles", "rate", 15, peer="queues"),
}
