"""What the project set out to reach, and whether it does."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.figures import Spread
from benchmarks.results import Results


@dataclass(frozen=True)
class Goal:
    """One figure and its bound. ``peer``: the figure is the ratio to this variant of the same case."""

    text: str
    case: str
    variant: str
    metric: str
    at_least: float | None = None
    at_most: float | None = None
    peer: str | None = None
    unit: str = ""

    def measured(self, results: Results) -> Spread | None:
        """The figure; None when this run did not measure it."""
        if self.peer is not None:
            return results.ratio(self.case, self.variant, self.peer, self.metric)
        return results.spread(self.case, self.variant, self.metric)

    def reached(self, results: Results) -> bool | None:
        """Whether the median keeps the bound; None when this run did not measure it."""
        found = self.measured(results)
        if found is None:
            return None
        if self.at_least is not None and found.median < self.at_least:
            return False
        return self.at_most is None or found.median <= self.at_most

    @property
    def bound(self) -> str:
        """The bound as a reader likes it."""
        unit = "times" if self.peer is not None else self.unit
        if self.at_least is not None:
            return f"≥ {self.at_least:,g} {unit}".rstrip()
        return f"≤ {self.at_most:,g} {unit}".rstrip()


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
