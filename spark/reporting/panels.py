"""The panels of the page that hold charts, each from the rows of one table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC

from spark.reporting.cells import Row
from spark.reporting.charts import Bar, Bucket, Mark, bars, histogram, linear, logarithmic
from spark.reporting.charts import over_time as chart_over_time
from spark.reporting.numbers import NONE, count, duration, moment, rate, ratio, share, short, visible

_NAME_CHARS = 26
#: Bars of a chart; the table below it has more rows.
_MOST_BARS = 12


def over_time(rows: Sequence[Row], bucket_us: int) -> str:
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
        told = f"{when}\ndone {count(row['done'])} ({rate(done)}), enqueued {count(row['enqueued'])}"
        told += f", failures {count(row['failures'])}, losses {count(row['losses'])}"
        counts.append(Bucket(at.timestamp(), marks, told))
        p50, p90, p99 = (row[f"waiting_{name}_ms"] for name in ("p50", "p90", "p99"))
        bands = []
        if p50 is not None:
            seen += [p50, p99]
            if p90 > p50:
                bands.append(Mark(p50, p90, "blue"))
            if p99 > p90:
                bands.append(Mark(p90, p99, "pale"))
            bands.append(Mark(p50, p50, "teal"))
        told = f"{when}\nwaiting p50 {duration(p50)}, p90 {duration(p90)}, p99 {duration(p99)}"
        waits.append(Bucket(at.timestamp(), bands, told))
    highest = max((mark.high for bucket in counts for mark in bucket.marks), default=1.0)
    first = _panel(
        "Throughput",
        chart_over_time(counts, bucket_s, linear(highest, rate), "throughput over time"),
        f"per second, in buckets of {length}",
        ("blue", "done"),
        ("red", "failed or lost"),
        ("orange", "enqueued"),
    )
    if not seen:
        return first
    second = _panel(
        "Waiting",
        chart_over_time(waits, bucket_s, logarithmic(min(seen), max(seen)), "waiting over time"),
        "of messages first started then, logarithmic",
        ("teal", "p50"),
        ("blue", "to p90"),
        ("pale", "to p99"),
    )
    return f'<div class="pair">{first}{second}</div>'


def distributions(rows: Sequence[Row], totals: Row) -> str:
    """How often a time was how long; the three on one axis, so that they compare."""
    if not rows:
        return '<div class="panel"><p>Nothing was executed.</p></div>'
    between = (min(row["from_ms"] for row in rows), max(row["to_ms"] for row in rows))
    panels = []
    for name in ("waiting", "service", "turnaround"):
        own = [(row["from_ms"], row["to_ms"], row["n"]) for row in rows if row["measure"] == name]
        if own:
            marks = [(mark, totals[f"{name}_{mark}_ms"]) for mark in ("p50", "p90", "p99")]
            told = ", ".join(f"{mark} {duration(ms)}" for mark, ms in [*marks, ("max", totals[f"{name}_max_ms"])])
            chart = histogram(own, between, marks, f"distribution of {name}")
            what = "executions" if name == "service" else "messages"
            panels.append(_panel(name.capitalize(), chart, f"{told}. How many {what}, logarithmic times."))
    return f'<div class="triple">{"".join(panels)}</div>'


def retries(tasks: Sequence[Row]) -> str:
    """Failures and losses by task."""
    troubled = [row for row in tasks if row["failures"] + row["losses"]]
    if not troubled:
        return ""
    troubled.sort(key=lambda row: -(row["failures"] + row["losses"]))
    rows = [
        Bar(
            _short(row["task"]),
            count(row["failures"] + row["losses"]),
            ((row["failures"], "red"), (row["losses"], "orange")),
            f"{visible(row['task'])}\n{count(row['failures'])} failures and {count(row['losses'])} losses in "
            f"{count(row['executions'])} executions, {count(row['retries'])} retries",
        )
        for row in troubled[:_MOST_BARS]
    ]
    chart = bars(rows, "failures and losses by task")
    return _panel("Failures and losses", chart, "executions by task", ("red", "failures"), ("orange", "losses"))


def hot(tickets: Sequence[Row]) -> str:
    """Shares of the messages and of the waiting."""
    shown = tickets[:_MOST_BARS]
    if not shown:
        return ""
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
                f"{visible(row['ticket_id'])}\n{count(row['messages'])} messages, {share(row['share_of_messages'])} of "
                f"all; {share(row['share_of_waiting'])} of the waiting",
            )
            for row in shown
        ]
        together = sum(row[key] or 0.0 for row in shown)
        panels.append(_panel(title, bars(rows, title), f"these {len(shown)} together {share(together)}"))
    return f'<div class="pair">{"".join(panels)}</div>'


def balance(consumers: Sequence[Row], totals: Row) -> str:
    """Busy time by worker."""
    shown = consumers[:_MOST_BARS]
    if not shown:
        return ""
    rows = [
        Bar(
            _short(row["consumer"]),
            duration(row["busy_ms"]),
            ((row["busy_ms"], "blue"),),
            f"{visible(row['consumer'])}\nbusy {duration(row['busy_ms'])}, {share(row['share_of_busy'])} of all; "
            f"{count(row['executions'])} executions, at most {count(row['peak'])} at once",
        )
        for row in shown
    ]
    mean = (totals["service_sum_ms"] or 0.0) / totals["consumers"]
    chart = bars(rows, "busy time by worker", line=(mean, f"mean {duration(mean)}"))
    return _panel("Busy time", chart, f"imbalance {ratio(totals['imbalance'])}: the busiest over the mean")


def reasons(letters: Sequence[Row]) -> str:
    """Dead letters by reason, of all tasks together."""
    counted: dict[str, dict[str, int]] = {}
    for row in letters:
        tasks = counted.setdefault(row["reason"] or NONE, {})
        tasks[row["task"] or NONE] = row["letters"]
    rows = [
        Bar(
            _short(reason),
            count(sum(tasks.values())),
            ((sum(tasks.values()), "red"),),
            "\n".join([visible(reason), *(f"{visible(task)}: {count(number)}" for task, number in tasks.items())]),
        )
        for reason, tasks in sorted(counted.items(), key=lambda pair: -sum(pair[1].values()))[:_MOST_BARS]
    ]
    return _panel("Reasons", bars(rows, "dead letters by reason"), "letters by reason, of the rows below")


def _short(name: str) -> str:
    return short(visible(name), _NAME_CHARS)


def _panel(title: str, chart: str, told: str, *keys: tuple[str, str]) -> str:
    legend = "".join(f'<span class="key {look}"></span>{name}' for look, name in keys)
    between = " · " if keys else ""
    return f'<div class="panel"><h3>{title}</h3><p>{legend}{between}{told}</p>{chart}</div>'
