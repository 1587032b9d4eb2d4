"""The page of a report: one HTML file that needs no network, no other file and no script to be read.

Names come from outside and may hold anything: each text goes through ``escaped``, what cannot be seen is written out,
and the page's own content security policy lets nothing run or load but the style and the script that are in it, by
their digests.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from string import Template
from typing import Any

from spark.reporting import panels as report_panels
from spark.reporting.cells import Row, table
from spark.reporting.charts import escaped
from spark.reporting.numbers import count, duration, moment, rate, ratio, share, visible
from spark.reporting.table_columns import CONSUMERS, DEAD_LETTERS, HOT, SLOWEST, TASKS
from spark.reporting.words import DEFINITIONS

_LOOK = Path(__file__).parent / "look"


def page(found: dict[str, Any], *, archive: str, start: str | None, end: str | None, top: int) -> str:
    """The page that shows ``found``, as ``spark.reporting.results.results`` returns it."""
    totals = found["totals"]
    content = "\n".join(
        [
            _header(totals, archive, start, end),
            _cards(totals),
            _section("Over time", report_panels.over_time(found["over_time"], found["bucket_us"])),
            _section("How long it took", report_panels.distributions(found["distribution"], totals)),
            _section("Tasks", report_panels.retries(found["tasks"]), _table(found, "tasks", TASKS, "tasks", top)),
            _section(
                "Hot tickets",
                report_panels.hot(found["hot_tickets"]),
                _table(found, "hot_tickets", HOT, "tickets", top),
                lead="The tickets with the most messages. Where a few tickets have most of the waiting, more "
                "workers help little: the messages of a ticket go one after another.",
            ),
            _section(
                "Slowest tickets",
                _table(found, "slowest_tickets", SLOWEST, "tickets", top),
                lead="The tickets with the longest turnaround of a single message.",
            ),
            _section(
                "Workers",
                report_panels.balance(found["consumers"], totals),
                _table(found, "consumers", CONSUMERS, "consumers", top),
            ),
            _section("Dead letters", _dead(found, top)),
            _section("What the words mean", _definitions()),
            "<footer>Times are UTC. The whole tables are beside this page, as Parquet in <code>tables/</code>. "
            f"Made {moment(datetime.now(UTC))}.</footer>",
        ]
    )
    style, script = _asset("report.css"), _asset("report.js")
    return Template(_asset("report.html")).substitute(
        title=f"Ticket Bridge report: {escaped(visible(archive))}",
        style=style,
        style_hash=_digest(style),
        script=script,
        script_hash=_digest(script),
        content=content,
    )


def _header(totals: Row, archive: str, start: str | None, end: str | None) -> str:
    asked = ""
    if start or end:
        asked = f" Asked for: messages {_bound('from', start)}{_bound(' to', end)}."
    return (
        f"<header><h1>Ticket Bridge report</h1><p>{escaped(visible(archive))} · messages enqueued from "
        f"{moment(totals['first_enqueued_at'])} on, last outcome {moment(totals['last_written_at'])} UTC."
        f"{escaped(asked)}</p></header>"
    )


def _bound(word: str, text: str | None) -> str:
    return f"{word} {visible(text)}" if text else ""


def _cards(totals: Row) -> str:
    open_ = totals["undone"] + totals["unknown"]
    cards = [
        ("Messages", count(totals["messages"]), f"{count(totals['tickets'])} tickets", ""),
        ("Done", count(totals["done"]), f"{share(totals['done'] / totals['messages'])} of all", ""),
        (
            "Dead",
            count(totals["dead"] + totals["refused"]),
            f"{count(totals['refused'])} of them refused",
            "bad" if totals["dead"] + totals["refused"] else "",
        ),
        ("Undone", count(open_), f"{count(totals['unknown'])} of them unknown", ""),
        ("Throughput", rate(totals["throughput_per_s"]), f"{count(totals['consumers'])} workers", ""),
        (
            "Retries",
            count(totals["retries"]),
            f"{count(totals['failures'])} failures, {count(totals['losses'])} losses",
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
    return (
        '<dl class="cards">'
        + "".join(
            f'<div class="{look}"><dt>{name}</dt><dd class="big">{told}</dd><dd class="more">{more}</dd></div>'
            for name, told, more, look in cards
        )
        + "</dl>"
    )


def _section(title: str, *parts: str, lead: str = "") -> str:
    said = f'<p class="lead">{lead}</p>' if lead else ""
    return f"<section><h2>{title}</h2>{said}{''.join(parts)}</section>"


def _table(found: dict[str, Any], name: str, columns: Sequence[Any], of: str, top: int) -> str:
    rows, all_rows = found[name], found["rows"][of]
    more = f"<p>The first {count(len(rows))} of {count(all_rows)}.</p>" if all_rows > min(len(rows), top) else ""
    return f'<div class="panel">{more}{table(name, columns, rows)}</div>' if rows else ""


def _dead(found: dict[str, Any], top: int) -> str:
    if not found["dead_letters"]:
        return '<div class="panel"><p>There is none.</p></div>'
    return report_panels.reasons(found["dead_letters"]) + _table(
        found, "dead_letters", DEAD_LETTERS, "dead_letters", top
    )


def _definitions() -> str:
    said = "".join(f"<dt>{escaped(word)}</dt><dd>{escaped(meaning)}</dd>" for word, meaning in DEFINITIONS)
    return f'<dl class="words">{said}</dl>'


def _asset(name: str) -> str:
    return (_LOOK / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """What a content security policy calls an inline text by."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
