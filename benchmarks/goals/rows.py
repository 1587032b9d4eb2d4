"""The rows of "real work at the speed of no-ops": what is measured, against whom, and what it must reach."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks import failover, incidents, paced, scaling, throughput
from benchmarks.figures import percentile
from benchmarks.goals.goal import Goal
from benchmarks.results import Metrics

Run = Callable[[str, float], Metrics]


def cases(*, full: bool) -> dict[str, Run]:
    """Case -> one run of one of its variants, at a scale. ``full``: the largest sizes of the scaling rows."""
    return {
        **{case: partial(throughput.run, case) for case in throughput.LOADS},
        **{case: partial(scaling.run, case, full) for case in scaling.SIZES},
        "incidents": incidents.run,
        "beside": paced.beside_backlog,
        "mixed": paced.mixed,
        "failover": _failover,
    }


def _failover(_: str, scale: float) -> Metrics:
    figures = failover.Figures("worker", 6.0)
    failover.measure_workers(
        failover.FAULTS["worker"], figures, max(failover.DYING, int(KILLS * scale)), lambda _: None
    )
    return {f"p{at}_ms": 1000 * percentile(figures.times_s, at) for at in (50, 99)}


#: Kills of a worker in one round.
KILLS = 20

#: Name on the command line -> the row.
ROWS = {
    "keyed": Goal("keyed state, against plain Celery with HGETALL, HSET", "state", "keyed", "rate", 15, peer="plain"),
    "keyed-groupmq": Goal("keyed state, against GroupMQ doing the same", "state", "keyed", "rate", 1.5, peer="groupmq"),
    "state": Goal("its own HGETALL, and effects, against plain Celery", "state", "bundles", "rate", 6, peer="plain"),
    "noop": Goal("no-op, against plain Celery", "tickets", "bundles", "rate", 25, peer="plain"),
    "noop-groupmq": Goal("no-op, against GroupMQ", "tickets", "bundles", "rate", 1.8, peer="groupmq"),
    "hot": Goal("one hot ticket, against GroupMQ", "hot", "bundles", "rate", 3, peer="groupmq"),
    "events": Goal("task events on, share of off", "tickets", "events", "rate", 0.95, peer="bundles"),
    "heard": Goal("the same, and a client gets them", "tickets", "heard", "rate", 0.95, peer="bundles"),
    "eight": Goal("8 hot tickets, tasks of 10 ms", "eight", "bundles", "of_ideal", 97, unit="% of ideal"),
    "eight-long": Goal("8 hot tickets, tasks of 100 ms", "eight_long", "bundles", "of_ideal", 99, unit="% of ideal"),
    "queues": Goal("no-op, against a queue for each process", "tickets", "bundles", "rate", 15, peer="queues"),
    "incidents": Goal(
        "incident log, keyed, against plain Celery with a lock per ticket",
        "incidents", "keyed", "rate", 10, peer="lock",
    ),
    "far": Goal("no-op, 2 ms of round trip, against plain Celery", "far", "bundles", "rate", 30, peer="plain"),
    "latency-p50": Goal(
        "XADD to start, 200/s beside a backlog: median", "beside", "bundles", "p50_ms", at_most=3, unit="ms"
    ),
    "latency-p99": Goal(
        "the same: 99th percentile", "beside", "bundles", "p99_ms", at_most=15, unit="ms"
    ),
    "mixed": Goal(
        "1 % of tasks take 1 s: p99 of the no-ops, against bundles off", "mixed", "bundles", "p99_ms", at_most=2,
        peer="singles",
    ),
    "tickets": Goal(
        "cost of a message, many tickets against 1,000", "scale_tickets", "many", "cpu_us", at_most=1.15, peer="few"
    ),
    "waiting": Goal(
        "the same, many waiting against 10,000", "scale_waiting", "many", "cpu_us", at_most=1.15, peer="few"
    ),
    "workers": Goal("the same, many workers against one", "scale_workers", "many", "cpu_us", at_most=1.15, peer="few"),
    "failover": Goal(
        "failover after SIGKILL of a worker: 99th percentile", "failover", "bundles", "p99_ms", at_most=50, unit="ms"
    ),
}  # fmt: skip
