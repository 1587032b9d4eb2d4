"""The cases: what is run, which variants take turns, and what of it is shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks import backlog, dispatch, idle, throughput
from benchmarks.results import DISTURBANCE, Metrics


@dataclass(frozen=True)
class Column:
    """A column of a case's table: a metric, its heading, and how many decimals are worth showing."""

    metric: str
    heading: str
    decimals: int = 0


@dataclass(frozen=True)
class Case:
    """One table. ``run``: one run of one variant, at a scale. ``peer``: whom the first column is compared with."""

    title: str
    variants: dict[str, str]
    run: Callable[[str, float], Metrics]
    columns: tuple[Column, ...]
    peer: str | None = None


_THROUGHPUT = (
    Column("rate", "msg/s"),
    Column("misplaced", "out of order %", 1),
    Column("pool_us", "pool µs", 0),
    Column("worker_us", "worker µs", 0),
    Column("master_us", "master µs", 0),
    Column("server_us", "server µs", 0),
    Column(DISTURBANCE, "others' CPU %", 0),
)

CASES = {
    "tickets": Case(
        "No-op tasks over 1,000 tickets; 1 worker, 2 processes",
        throughput.PRICED, partial(throughput.run, "tickets"), _THROUGHPUT, "plain",
    ),
    "eight": Case(
        "8 hot tickets, tasks of 10 ms; 2 workers, 4 processes each; ideal 800 msg/s",
        throughput.PEERS, partial(throughput.run, "eight"),
        (_THROUGHPUT[0], Column("of_ideal", "% of ideal", 1), *_THROUGHPUT[1:]), "plain",
    ),
    "hot": Case(
        "One hot ticket, no-op tasks; 1 worker, 2 processes",
        throughput.PEERS, partial(throughput.run, "hot"), _THROUGHPUT, "plain",
    ),
    "state": Case(
        "Tasks that read the state of their ticket and write it back; 1,000 tickets, 1 worker, 2 processes",
        throughput.STATEFUL, partial(throughput.run, "state"), _THROUGHPUT, "plain",
    ),
    "dispatch": Case(
        "The master alone, 4 simulated consumers of 16 processes",
        dispatch.PEERS, dispatch.run,
        (
            Column("rate", "msg/s"),
            Column("producer_us", "producer µs"),
            Column("master_us", "master µs"),
            Column("server_us", "server µs"),
        ),
        "apply_async",
    ),
    "idle": Case(
        "Idle: CPU in % of a core, and ms from sending one message to the start of its task",
        idle.PEERS, lambda variant, _: idle.run(variant),
        (
            Column("latency_ms", "median ms", 2),
            Column("latency_p99_ms", "p99 ms", 2),
            Column("latency_max_ms", "max ms", 2),
            Column("leader_cpu", "leader %", 2),
            Column("standby_cpu", "standby %", 2),
            Column("worker_cpu", "worker %", 2),
            Column("server_cpu", "server %", 2),
        ),
    ),
    "backlog": Case(
        "A backlog behind one ticket that does not finish: the master's memory, and the rate of the others",
        backlog.PEERS, lambda _, scale: backlog.run(scale),
        (
            Column("waiting", "waiting"),
            Column("rss_empty_mib", "MiB without", 1),
            Column("rss_fifth_mib", "MiB at 1/5", 1),
            Column("rss_full_mib", "MiB at all", 1),
            Column("before", "others before, msg/s"),
            Column("after", "others after, msg/s"),
        ),
    ),
}  # fmt: skip
