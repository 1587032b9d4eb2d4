"""Which columns of which table are shown, under which heading: the same on the page and on the terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bridge.routing.numbers import duration, rate, ratio, share, whole
from bridge.spark.reporting.text import moment

Row = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """A column: its heading, the value's key in a row, how it is shown, and what the heading's tooltip says."""

    title: str
    key: str
    shown: Callable[[Any], str] | None = None
    help: str = ""
    #: A number above 0 is bad news.
    bad: bool = False

    @property
    def is_text(self) -> bool:
        """Whether it holds text."""
        return self.shown is None


_OUTCOMES = (
    Column("done", "done", whole),
    Column("dead", "dead", whole, "ended in the dead letters", bad=True),
    Column("retries", "retries", whole, "executions after one that failed or was lost"),
    Column("failures", "failures", whole, "executions that raised"),
    Column("losses", "losses", whole, "executions that were cut off"),
)


def _times(measure: str, *names: str) -> tuple[Column, ...]:
    return tuple(Column(f"{measure} {name}", f"{measure}_{name}_ms", duration) for name in names)


TASKS = (
    Column("task", "task"),
    Column("messages", "messages", whole),
    Column("tickets", "tickets", whole),
    *_OUTCOMES,
    Column("throughput", "throughput_per_s", rate, "messages done, from the first start to the last end"),
    *_times("waiting", "p50", "p90", "p99", "max"),
    *_times("service", "p50", "p90", "p99", "max"),
)

HOT = (
    Column("ticket", "ticket_id"),
    Column("messages", "messages", whole),
    Column("of messages", "share_of_messages", share, "share of all messages"),
    Column("of waiting", "share_of_waiting", share, "share of the waiting time of all messages"),
    *_OUTCOMES,
    Column("throughput", "throughput_per_s", rate, "messages done, from the ticket's first start to its last end"),
    *_times("waiting", "p50", "p90", "p99", "max"),
    *_times("service", "p50", "p90", "p99", "max"),
)

SLOWEST = (
    Column("ticket", "ticket_id"),
    *_times("turnaround", "max", "p99", "p50"),
    Column("messages", "messages", whole),
    *_OUTCOMES,
    *_times("waiting", "p50", "p90", "p99", "max"),
    *_times("service", "p50", "p90", "p99", "max"),
)

CONSUMERS = (
    Column("worker", "consumer"),
    Column("executions", "executions", whole),
    Column("done", "done", whole),
    Column("failures", "failures", whole),
    Column("losses", "losses", whole),
    Column("tickets", "tickets", whole),
    Column("busy", "busy_ms", duration, "sum of the service times"),
    Column("of busy", "share_of_busy", share, "share of the busy time of all workers"),
    Column("running", "running", ratio, "at once, on average"),
    Column("peak", "peak", whole, "most at once"),
    Column("utilisation", "utilisation", share, "running over peak"),
    Column("throughput", "throughput_per_s", rate),
    *_times("service", "p50", "p99", "max"),
)

DEAD_LETTERS = (
    Column("reason", "reason"),
    Column("task", "task"),
    Column("letters", "letters", whole),
    Column("tickets", "tickets", whole),
    Column("first", "first_at", moment),
    Column("last", "last_at", moment),
    Column("newest error", "newest_error"),
)
