"""The page of a report: one HTML file that needs no network, no other file and no script to be read.

Names come from outside and may hold anything. The template escapes every text, characters that cannot be seen are
written out, and the page's own content security policy lets nothing run or load but the style and the script that are
in it, by their digests.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from bridge.routing.numbers import NONE, duration, rate, ratio, share, whole
from bridge.spark.reporting import panels
from bridge.spark.reporting.definitions import DEFINITIONS
from bridge.spark.reporting.table_columns import CONSUMERS, DEAD_LETTERS, HOT, SLOWEST, TASKS, Column, Row
from bridge.spark.reporting.text import moment, visible

_LOOK = Path(__file__).parent / "look"


@dataclass(frozen=True)
class Table:
    """A table of the page."""

    #: Its id in the page.
    name: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    #: How many rows the whole table has.
    all_rows: int
    #: Whether it has more rows than are shown.
    left_out: bool


def page(
    found: dict[str, Any],
    *,
    archive: str,
    lane: tuple[str, str] | None = None,
    start: str | None,
    end: str | None,
    top: int,
) -> str:
    """The page that shows ``found``, as ``bridge.spark.reporting.results.results`` returns it. ``lane``: the stream and
    the group, if they are known.
    """

    def table(name: str, columns: Sequence[Column], of: str) -> Table:
        rows, all_rows = found[name], found["rows"][of]
        return Table(name, columns, rows, all_rows, left_out=all_rows > min(len(rows), top))

    totals = found["totals"]
    style, script = _asset("report.css"), _asset("report.js")
    return _template().render(
        archive=archive,
        lane=lane,
        start=start,
        end=end,
        made=datetime.now(UTC),
        nothing=NONE,
        totals=totals,
        cards=_cards(totals),
        over_time=panels.over_time(found["over_time"], found["bucket_us"]),
        distributions=panels.distributions(found["distribution"], totals),
        retries=panels.retries(found["tasks"]),
        hot=panels.hot(found["hot_tickets"]),
        balance=panels.balance(found["consumers"], totals),
        reasons=panels.reasons(found["dead_letters"]),
        tasks=table("tasks", TASKS, "tasks"),
        hot_tickets=table("hot_tickets", HOT, "tickets"),
        slowest_tickets=table("slowest_tickets", SLOWEST, "tickets"),
        consumers=table("consumers", CONSUMERS, "consumers"),
        dead_letters=table("dead_letters", DEAD_LETTERS, "dead_letters"),
        definitions=DEFINITIONS,
        style=style,
        style_hash=_digest(style),
        script=script,
        script_hash=_digest(script),
    )


def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(_LOOK), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(visible=visible, moment=moment, count=whole, number=_number)
    return environment.get_template("report.html")


def _cards(totals: Row) -> list[tuple[str, str, str, str]]:
    """The numbers at the head of the page: name, number, what is said below it, and class of the style sheet."""
    bad = totals["dead"] + totals["refused"]
    undone = totals["undone"] + totals["unknown"]
    not_handled = totals["left_out"] + totals["skipped"]
    return [
        ("Messages", whole(totals["messages"]), f"{whole(totals['tickets'])} tickets", ""),
        ("Done", whole(totals["done"]), f"{share(totals['done'] / totals['messages'])} of all", ""),
        ("Dead", whole(bad), f"{whole(totals['refused'])} of them refused", "bad" if bad else ""),
        ("Undone", whole(undone), f"{whole(totals['unknown'])} of them unknown", ""),
        *([("Dropped", whole(totals["dropped"]), "by their tasks", "")] if totals["dropped"] else []),
        *([("Left out", whole(not_handled), f"{whole(totals['skipped'])} of them skipped", "")] if not_handled else []),
        ("Throughput", rate(totals["throughput_per_s"]), f"{whole(totals['consumers'])} workers", ""),
        (
            "Retries",
            whole(totals["retries"]),
            f"{whole(totals['failures'])} failures, {whole(totals['losses'])} losses",
            "",
        ),
        *(
            (
                f"{name.capitalize()}, p50",
                duration(totals[f"{name}_p50_ms"]),
                f"p99 {duration(totals[f'{name}_p99_ms'])}, max {duration(totals[f'{name}_max_ms'])}",
                "",
            )
            for name in ("waiting", "service", "turnaround")
        ),
        ("Imbalance", ratio(totals["imbalance"]), "busiest worker over the mean", ""),
    ]


def _number(value: Any) -> str:
    """The number behind a cell, by which its column is sorted; empty where there is none."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC).timestamp():.6f}"
    return repr(value)


def _asset(name: str) -> str:
    return (_LOOK / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """The name of an inline text in a content security policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
