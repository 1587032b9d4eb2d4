"""The goals of ``python -m benchmarks``: what the bridge must keep, whatever else changes."""

from __future__ import annotations

from benchmarks.goals.goal import Goal

GOALS = (
    Goal("no-op tasks, 1,000 tickets, bundles, against plain Celery", "tickets", "bundles", "rate", 5.0, peer="plain"),
    Goal("the same with bundles off", "tickets", "singles", "rate", 1.0, peer="plain"),
    Goal("the price of the history: bundles, against without it", "tickets", "bundles", "rate", 0.9, peer="bare"),
    Goal("the same with bundles off", "tickets", "singles", "rate", 0.9, peer="bare_singles"),
    Goal("history and an audit that follows live", "tickets", "audited", "rate", 0.9, peer="bare"),
    Goal("the master alone, bundles off, against apply_async", "dispatch", "singles", "rate", 8.0, peer="apply_async"),
    Goal("one hot ticket, bundles", "hot", "bundles", "rate", 5_000, unit="msg/s"),
    Goal("one hot ticket, bundles off", "hot", "singles", "rate", 600, unit="msg/s"),
    Goal("8 hot tickets, tasks of 10 ms, bundles", "eight", "bundles", "of_ideal", 90, unit="% of ideal"),
    Goal("idle: the leading master", "idle", "bridge", "leader_cpu", at_most=2, unit="% of a core"),
    Goal("idle: the standby", "idle", "bridge", "standby_cpu", at_most=2, unit="% of a core"),
    Goal("idle: the worker's main process", "idle", "bridge", "worker_cpu", at_most=2, unit="% of a core"),
    Goal("idle: from XADD to the start of the task, median", "idle", "bridge", "latency_ms", at_most=10, unit="ms"),
    Goal(
        "backlog behind one ticket: growth of the master's memory from one fifth of it to all of it",
        "backlog", "bundles", "growth_mib", at_most=16, unit="MiB",
    ),
    Goal(
        "backlog behind one ticket: rate of the others, against without it",
        "backlog", "bundles", "kept", 0.8, unit="times",
    ),
)  # fmt: skip
