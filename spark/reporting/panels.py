"""The panels of the page that hold charts, each from the rows of one table. The template writes them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC

from bridge.routing.numbers import NONE, duration, rate, ratio, share, whole
from bridge.spark.reporting.charts import Bar, Bucket, Mark, Shape, bars, histogram, linear, logarithmic
from bridge.spark.reporting.charts import over_time as chart_over_time
from bridge.spark.reporting.table_columns import Row
from bridge.spark.reporting.text import moment, short, visible

_NAME_CHARS = 26
#: Bars of a chart; the table below it has more rows.
_MOST_BARS = 12


@dataclass(frozen=True)
class Panel:
    """A chart with its title, a note, and its legend: class of the style sheet and name."""

    title: str
    chart: Shape
    note: str
    keys: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Panels:
    """Panels side by side."""

    panels: Sequence[Panel]
    #: Class of the style sheet; empty: each panel is as wide as the page.
    look: str = ""


def over_time(rows: Sequence[Row], bucket_us: int) -> Panels:
    """Throughput and waiting, bucket by bucket."""
    bucket_s = bucket_us / 1e6
    length = duration(bucket_us / 1000)
    counts, waits, seen = [], [], []
    for row in rows:
        at = row["bucket_start"].astimezone(UTC)
        when = f"{moment(at)} + {length}"
        done, failed = row["done"] / bucket_s, (row["failures"] + row["losses"]) / bucket_s
        marks = []
        if failed:
            marks.append(Mark(done, done + failed, "red"))
        if done:
            marks.append(Mark(0, done, "blue"))
        if row["enqueued"]:
            come = row["enqueued"] / bucket_s
            marks.append(Mark(come, come, "orange"))
        tip = f"{when}\ndone {whole(row['done'])} ({rate(done)}), enqueued {whole(row['enqueued'])}"
        tip += f", failures {whole(row['failures'])}, losses {whole(row['losses'])}"
        counts.append(Bucket(at.timestamp(), marks, tip))
        p50, p90, p99 = (row[f"waiting_{name}_ms"] for name in ("p50", "p90", "p99"))
        bands = []
        if p50 is not None:
            seen += [p50, p99]
            if p90 > p50:
                bands.append(Mark(p50, p90, "blue"))
            if p99 > p90:
                bands.append(Mark(p90, p99, "pale"))
            bands.append(Mark(p50, p50, "teal"))
        tip = f"{when}\nwaiting p50 {duration(p50)}, p90 {duration(p90)}, p99 {duration(p99)}"
        waits.append(Bucket(at.timestamp(), bands, tip))
    highest = max((mark.high for bucket in counts for mark in bucket.marks), default=1.0)
    first = Panel(
        "Throughput",
        chart_over_time(counts, bucket_s, linear(highest, rate), "throughput over time"),
        f"per second, in buckets of {length}",
        (("blue", "done"), ("red", "failed or lost"), ("orange", "enqueued")),
    )
    if not seen:
        return Panels([first])
    second = Panel(
        "Waiting",
        chart_over_time(waits, bucket_s, logarithmic(min(seen), max(seen)), "waiting over time"),
        "of messages first started then, logarithmic",
        (("teal", "p50"), ("blue", "to p90"), ("pale", "to p99")),
    )
    return Panels([first, second], "pair")


def distributions(rows: Sequence[Row], totals: Row) -> Panels:
    """The distributions of the three times, on one axis so that they can be compared."""
    if not rows:
        return Panels([])
    between = (min(row["from_ms"] for row in rows), max(row["to_ms"] for row in rows))
    panels = []
    for name in ("waiting", "service", "turnaround"):
        own = [(row["from_ms"], row["to_ms"], row["n"]) for row in rows if row["measure"] == name]
        if own:
            marks = [(mark, totals[f"{name}_{mark}_ms"]) for mark in ("p50", "p90", "p99")]
            note = ", ".join(f"{mark} {duration(ms)}" for mark, ms in [*marks, ("max", totals[f"{name}_max_ms"])])
            chart = histogram(own, between, marks, f"distribution of {name}")
            what = "executions" if name == "service" else "messages"
            panels.append(Panel(name.capitalize(), chart, f"{note}. How many {what}, logarithmic times."))
    return Panels(panels, "triple")


def retries(tasks: Sequence[Row]) -> Panels:
    """Failures and losses by task."""
    troubled = [row for row in tasks if row["failures"] + row["losses"]]
    if not troubled:
        return Panels([])
    troubled.sort(key=lambda row: -(row["failures"] + row["losses"]))
    rows = [
        Bar(
            _short(row["task"]),
            whole(row["failures"] + row["losses"]),
            ((row["failures"], "red"), (row["losses"], "orange")),
            f"{visible(row['task'])}\n{whole(row['failures'])} failures and {whole(row['losses'])} losses in "
            f"{whole(row['executions'])} executions, {whole(row['retries'])} retries",
        )
        for row in troubled[:_MOST_BARS]
    ]
    chart = bars(rows, "failures and losses by task")
    keys = (("red", "failures"), ("orange", "losses"))
    return Panels([Panel("Failures and losses", chart, "executions by task", keys)])


def hot(tickets: Sequence[Row]) -> Panels:
    """Shares of the messages and of the waiting."""
    shown = tickets[:_MOST_BARS]
    if not shown:
        return Panels([])
    panels = []
    for key, title, look in (
        ("share_of_messages", "Share of the messages", "blue"),
        ("share_of_waiting", "Share of the waiting", "teal"),
    ):
        rows = [
            Bar(
                _short(row["ticket_id"]),
                share(row[key]),
                ((row[key] or 0.0, look),),
                f"{visible(row['ticket_id'])}\n{whole(row['messages'])} messages, {share(row['share_of_messages'])} of "
                f"all; {share(row['share_of_waiting'])} of the waiting",
            )
            for row in shown
        ]
        together = sum(row[key] or 0.0 for row in shown)
        panels.append(Panel(title, bars(rows, title), f"these {len(shown)} together {share(together)}"))
    return Panels(panels, "pair")


def balance(consumers: Sequence[Row], totals: Row) -> Panels:
    """Busy time by worker."""
    shown = consumers[:_MOST_BARS]
    if not shown:
        return Panels([])
    rows = [
        Bar(
            _short(row["consumer"]),
            duration(row["busy_ms"]),
            ((row["busy_ms"], "blue"),),
            f"{visible(row['consumer'])}\nbusy {duration(row['busy_ms'])}, {share(row['share_of_busy'])} of all; "
            f"{whole(row['executions'])} executions, at most {whole(row['peak'])} at once",
        )
        for row in shown
    ]
    mean = (totals["service_sum_ms"] or 0.0) / totals["consumers"]
    chart = bars(rows, "busy time by worker", line=(mean, f"mean {duration(mean)}"))
    note = f"imbalance {ratio(totals['imbalance'])}: the busiest over the mean"
    return Panels([Panel("Busy time", chart, note)])


def reasons(letters: Sequence[Row]) -> Panels:
    """Dead letters by reason, of all tasks together."""
    counted: dict[str, dict[str, int]] = {}
    for row in letters:
        tasks = counted.setdefault(row["reason"] or NONE, {})
        tasks[row["task"] or NONE] = row["letters"]
    rows = [
        Bar(
            _short(reason),
            whole(sum(tasks.values())),
            ((sum(tasks.values()), "red"),),
            "\n".join([visible(reason), *(f"{visible(task)}: {whole(number)}" for task, number in tasks.items())]),
        )
        for reason, tasks in sorted(counted.items(), key=lambda pair: -sum(pair[1].values()))[:_MOST_BARS]
    ]
    if not rows:
        return Panels([])
    chart = bars(rows, "dead letters by reason")
    return Panels([Panel("Reasons", chart, "letters by reason, of the rows below")])


def _short(name: str) -> str:
    return short(visible(name), _NAME_CHARS)
