"""The numbers of a report computed a second time, message by message in plain Python, without Spark."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from bridge.routing.ids import id_key
from tests.integration.spark.archives import EPOCH, Archive, Row

Expected = dict[str, Any]
PERCENTS = (("p50", 50), ("p90", 90), ("p99", 99))

#: What the last row of a message says, and its outcome.
OUTCOMES = {
    "done": "done",
    "dropped": "dropped",
    "dead": "dead",
    "refused": "refused",
    "left out": "left_out",
    "skipped": "skipped",
}


def us(time: datetime) -> int:
    """A time in Unix microseconds."""
    passed = time.astimezone(UTC) - EPOCH
    return (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds


def nearest_rank(values: Sequence[int], percent: int) -> int:
    """The smallest value that at least ``percent`` of all do not exceed."""
    return sorted(values)[max(0, math.ceil(percent * len(values) / 100) - 1)]


def spread(measure: str, values: Sequence[int]) -> Expected:
    """Percentiles and maximum, in ms."""
    percentiles = {f"{measure}_{name}_ms": nearest_rank(values, p) / 1000 if values else None for name, p in PERCENTS}
    return {**percentiles, f"{measure}_max_ms": max(values) / 1000 if values else None}


def began(row: Row) -> bool:
    """Whether the delivery is an execution."""
    return row["what"] in ("done", "dropped", "failed", "nacked", "lost") or (
        row["what"] == "dead" and row["fence"] > 0
    )


class Life:
    """What became of one message."""

    def __init__(self, id_: str, rows: list[Row], due: int | None = None) -> None:
        self.id = id_
        self.rows = sorted(rows, key=lambda row: (id_key(row["history_id"]), row["row"]))
        self.ticket = next((row["ticket_id"] for row in self.rows if row["ticket_id"]), None)
        self.task = next((row["task"] for row in self.rows if row["task"]), None)
        last = [row["what"] for row in self.rows if row["what"] != "stale"]
        self.outcome = "unknown" if not last else OUTCOMES.get(last[-1], "undone")
        self.executions = [row for row in self.rows if began(row)]
        self.retries = 0
        failed_before = False
        for row in self.rows:
            if began(row):
                self.retries += failed_before
            if row["what"] in ("failed", "nacked", "lost"):
                failed_before = True
            elif row["what"] in ("replayed", "dead", "done", "dropped"):
                failed_before = False
        ms = id_key(id_)[0]
        self.enqueued = ms * 1000 if ms >= 10**12 else None
        starts = [us(row["started_at"]) for row in self.executions if row["started_at"]]
        self.first_start = min(starts) if starts else None
        self.waiting = None
        if self.enqueued is not None and self.first_start is not None:
            self.waiting = max(0, self.first_start - max(self.enqueued, due or 0))
        self.turnaround = None
        if self.outcome == "done" and self.enqueued is not None:
            end = max(ended(row) for row in self.rows if row["what"] == "done")
            self.turnaround = max(0, end - max(self.enqueued, due or 0))
        self.delayed = self.enqueued is not None and (due or 0) > self.enqueued

    def how_many(self, *what: str) -> int:
        """Rows of a kind."""
        return sum(row["what"] in what for row in self.rows)

    @property
    def failures(self) -> int:
        """Executions that raised or ended in the dead letters."""
        return sum(row["what"] in ("failed", "dead") for row in self.executions)


def served(row: Row) -> int:
    """How long an execution ran, in microseconds."""
    us_of_row: int = round(row["service_ms"] * 1000)
    return us_of_row


def ended(row: Row) -> int:
    """When an execution ended."""
    return us(row["started_at"]) + served(row)


def lives(archive: Archive) -> list[Life]:
    """One for each message of the history."""
    rows: dict[str, list[Row]] = defaultdict(list)
    for row in archive.history:
        rows[row["message_id"]].append(row)
    due = {row["message_id"]: int(row["fields"]["due"]) * 1000 for row in archive.messages}
    return [Life(id_, own, due.get(id_)) for id_, own in rows.items()]


def timed(found: Iterable[Life]) -> list[Row]:
    """Executions whose times are known."""
    return [row for life in found for row in life.executions if row["started_at"]]


def service(rows: Sequence[Row], done: int) -> Expected:
    """Service times of executions, and the throughput over their span."""
    span = max(map(ended, rows)) - min(us(row["started_at"]) for row in rows) if rows else None
    values = [served(row) for row in rows]
    return {
        **spread("service", values),
        "service_sum_ms": sum(values) / 1000 if rows else None,
        "span_us": span,
        "throughput_per_s": done * 1e6 / span if span else None,
    }


def summary(found: Sequence[Life], everything: Sequence[Life]) -> Expected:
    """What a ticket's or task's row must say."""
    waits = [life.waiting for life in found if life.waiting is not None]
    waited = sum(life.waiting or 0 for life in everything)
    outcomes = [life.outcome for life in found]
    return {
        "messages": len(found),
        "delayed": sum(life.delayed for life in found),
        **{kind: outcomes.count(kind) for kind in ("done", "dead", "undone")},
        "executions": sum(len(life.executions) for life in found),
        "retries": sum(life.retries for life in found),
        "failures": sum(life.failures for life in found),
        "losses": sum(life.how_many("lost") for life in found),
        "returns": sum(life.how_many("returned") for life in found),
        "replays": sum(life.how_many("replayed") for life in found),
        **spread("waiting", waits),
        "waiting_sum_ms": sum(waits) / 1000 if waits else None,
        **spread("turnaround", [life.turnaround for life in found if life.turnaround is not None]),
        **service(timed(found), outcomes.count("done")),
        "share_of_messages": len(found) / len(everything),
        "share_of_waiting": sum(waits) / waited,
    }


def by(found: Sequence[Life], key: str) -> dict[str, Expected]:
    """``summary`` for each ticket or task."""
    groups: dict[str, list[Life]] = defaultdict(list)
    for life in found:
        if getattr(life, key) is not None:
            groups[getattr(life, key)].append(life)
    return {name: summary(own, found) for name, own in groups.items()}


def workers(found: Sequence[Life]) -> dict[str, Expected]:
    """What each consumer's row must say."""
    groups: dict[str, list[tuple[Life, Row]]] = defaultdict(list)
    for life in found:
        for row in life.executions:
            groups[row["consumer"]].append((life, row))
    busy = sum(served(row) for row in timed(found))
    rows_by_consumer = {}
    for name, pairs in groups.items():
        rows = [row for _, row in pairs if row["started_at"]]
        what = [row["what"] for _, row in pairs]
        spans = [(us(row["started_at"]), ended(row)) for row in rows if ended(row) > us(row["started_at"])]
        peak = max((sum(begin <= start < end for begin, end in spans) for start, _ in spans), default=None)
        own = sum(map(served, rows))
        of_rows = service(rows, what.count("done"))
        span = of_rows["span_us"]
        of_rows.pop("service_sum_ms")
        rows_by_consumer[name] = {
            "executions": len(pairs),
            "done": what.count("done"),
            "failures": what.count("failed") + what.count("dead"),
            "losses": what.count("lost"),
            "tickets": len({life.ticket for life, _ in pairs}),
            **of_rows,
            "peak": peak,
            "running": own / span if span else None,
            "utilisation": own / span / peak if span and peak else None,
            "busy_ms": own / 1000,
            "share_of_busy": own / busy,
        }
    return rows_by_consumer


def in_buckets(found: Sequence[Life], bucket: int) -> dict[int, Expected]:
    """What each bucket of ``bucket`` microseconds must say, by its number."""
    counts: dict[int, Expected] = defaultdict(lambda: dict.fromkeys(("enqueued", "done", "failures", "losses"), 0))
    waits: dict[int, list[int]] = defaultdict(list)
    for life in found:
        if life.enqueued is not None:
            counts[life.enqueued // bucket]["enqueued"] += 1
        if life.first_start is not None:
            _ = counts[life.first_start // bucket]
            if life.waiting is not None:
                waits[life.first_start // bucket].append(life.waiting)
        for row in life.rows:
            at = us(row["written_at"]) // bucket
            name = {"done": "done", "failed": "failures", "dead": "failures", "lost": "losses"}.get(row["what"])
            if name and (row["what"] != "dead" or began(row)):
                counts[at][name] += 1
    return {
        at: {**counted, **spread("waiting", waits[at]), "throughput_per_s": counted["done"] * 1e6 / bucket}
        for at, counted in counts.items()
    }


def bins(values: Iterable[int]) -> dict[int, int]:
    """How many values are in each bar of a distribution, by the bar's number."""
    counted: dict[int, int] = defaultdict(int)
    for value in values:
        counted[math.floor(math.log10(max(1, value)) * 5)] += 1
    return dict(counted)
