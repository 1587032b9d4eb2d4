"""The page of a report without Spark: it parses, refers to nothing outside, and no name breaks its markup."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bridge.routing.numbers import rate
from bridge.spark.reporting.charts import (
    NAME_PX,
    TICK_PX,
    Bar,
    Bucket,
    Mark,
    Shape,
    bars,
    histogram,
    linear,
    logarithmic,
    nice_step,
    over_time,
)
from bridge.spark.reporting.page import page
from bridge.spark.reporting.terminal import show
from bridge.spark.reporting.text import short, visible

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
VOID = {"meta", "br", "link", "img", "input", "hr"}
EVIL = [
    "<script>document.title='owned'</script>",
    "\"><img src=x onerror=document.title='owned'>",
    "'; document.title='owned'; '",
    "</title></style></script><svg onload=document.title='owned'>",
    "a\x00b\x1b[31m\u202egnp.exe",
    "{{ 7 * 7 }} {% raw %} {# %}",
    "&lt;b&gt; &amp; %00",
    "ünïcödé ✓ 票",
]


class Read(HTMLParser):
    """A page as a browser would take it apart: tags that balance, texts, tables by their ids."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self._tables: dict[str, list[list[tuple[str, str | None]]]] = {}
        self._table = ""
        self._cards: dict[str, str] = {}
        self._last: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == [], "every tag that was opened is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "table":
            self._table = given["id"] or ""
            self._tables[self._table] = []
        elif tag == "tr":
            self._tables[self._table].append([])
        elif tag in ("td", "th"):
            self._tables[self._table][-1].append(("", given.get("data-v")))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if "table" in self._open and self._open[-1] in ("td", "th", "bdi", "button"):
            row = self._tables[self._table][-1]
            row[-1] = (row[-1][0] + data, row[-1][1])
        if self._open and self._open[-1] in ("dt", "dd"):
            self._last.append(data)

    def table(self, name: str) -> list[dict[str, str]]:
        """The rows of a table: the values behind what is shown, by heading."""
        head, *rows = self._tables[name]
        return [{title: value or "" for (title, _), (_, value) in zip(head, row, strict=True)} for row in rows]

    def shown(self, name: str) -> list[list[str]]:
        """The rows of a table as a person sees them."""
        return [[text for text, _ in row] for row in self._tables[name][1:]]

    def card(self, name: str) -> str:
        """The number on a card."""
        return self._last[self._last.index(name) + 1]


START = datetime(2026, 3, 14, 9, 0, tzinfo=UTC)


def times(measure: str, ms: float) -> dict[str, float]:
    return {f"{measure}_{name}_ms": ms * factor for name, factor in (("p50", 1), ("p90", 2), ("p99", 3), ("max", 4))}


def group(number: int, **more: Any) -> dict[str, Any]:
    counts = dict.fromkeys(("done", "dead", "retries", "failures", "losses", "executions", "tickets"), number)
    return {
        **counts,
        "messages": 100 - number,
        "share_of_messages": 0.5 / (number + 1),
        "share_of_waiting": None if number == 1 else 0.25,
        "throughput_per_s": None if number == 2 else 12.5,
        **times("waiting", 10 + number),
        **times("service", 0.42),
        **times("turnaround", 4200),
        **more,
    }


def found(names: list[str], buckets: int = 30) -> dict[str, Any]:
    """What Spark would have returned, with ``names`` wherever a name from outside can be."""
    outcomes = {"dropped": 2, "refused": 3, "left_out": 4, "skipped": 1, "undone": 0, "unknown": 0}
    totals = group(7, messages=1234, consumers=len(names), imbalance=1.25, **outcomes)
    workers = [
        {**group(i, consumer=name), "busy_ms": 1e4 / (i + 1), "share_of_busy": 0.2, "running": 1.5, "peak": 2}
        | {"utilisation": 0.75}
        for i, name in enumerate(names)
    ]
    over_time = [
        {"bucket_start": START + timedelta(seconds=10 * i), "bucket_s": 10.0, "throughput_per_s": i / 10}
        | {"enqueued": 3 * i % 17, "done": i, "failures": i % 3, "losses": 0}
        | (times("waiting", i) if i % 4 else dict.fromkeys(times("waiting", 0)))
        for i in range(buckets)
    ]
    bars = [
        {"measure": measure, "from_ms": 10 ** (i / 5) / 1000, "to_ms": 10 ** ((i + 1) / 5) / 1000, "n": i + 1}
        for measure in ("waiting", "service", "turnaround")
        for i in range(3, 25)
    ]
    letters = [
        {"reason": name, "task": name, "letters": 3, "tickets": 1, "first_at": START, "last_at": START}
        | {"newest_error": name}
        for name in names
    ]
    return {
        "totals": {**totals, "service_sum_ms": 5e4, "first_enqueued_at": START, "last_written_at": START},
        "tasks": [group(i, task=name) for i, name in enumerate(names)],
        "hot_tickets": [group(i, ticket_id=name) for i, name in enumerate(names)],
        "slowest_tickets": [group(i, ticket_id=name) for i, name in enumerate(names)],
        "consumers": workers,
        "dead_letters": letters,
        "over_time": over_time,
        "distribution": bars,
        "rows": {"tickets": 5000, "tasks": len(names), "consumers": len(names), "dead_letters": len(names)},
        "bucket_us": 10_000_000,
    }


def made(names: list[str] | None = None, archive: str = "/data/archive", start: str | None = None) -> str:
    return page(found(names or ["T-1", "T-2", "T-3"]), archive=archive, start=start, end=None, top=20)


def test_the_page_parses_and_refers_to_nothing_outside_itself() -> None:
    text = made()
    read = Read(text)
    for tag, given in read.tags:
        assert not given.keys() & {"src", "href", "xlink:href", "action", "data", "srcset", "style"}, tag
        assert tag not in ("link", "img", "iframe", "object", "base", "image", "use"), tag
    assert not re.search(r"(?i)(https?:)?//[a-z]|url\(|@import", re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))


def test_the_policy_lets_only_the_page_s_own_style_and_script_do_anything() -> None:
    text = made(EVIL)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, flags=re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy[1]
    assert policy[1].startswith("default-src 'none'")


def test_a_name_that_holds_anything_is_text_and_nothing_else() -> None:
    plain, evil = (
        Read(made([f"T-{i}" for i in range(len(EVIL))], archive="x")),
        Read(made(EVIL, archive=EVIL[0], start=EVIL[1])),
    )
    # The same elements with the same attributes: no name has made one
    assert [(tag, sorted(given)) for tag, given in evil.tags] == [(tag, sorted(given)) for tag, given in plain.tags]
    for name in ("tasks", "hot_tickets", "slowest_tickets", "consumers", "dead_letters"):
        assert [row[0] for row in evil.shown(name)] == [visible(text) for text in EVIL]
    # And nothing that cannot be seen is in it as it came
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]", "".join(evil.texts))


def test_tables_hold_the_numbers_and_show_them_readably() -> None:
    read = Read(made())
    first = read.table("hot_tickets")[0]
    assert (float(first["messages"]), float(first["waiting p90"]), float(first["service p50"])) == (100, 20, 0.42)
    assert read.shown("hot_tickets")[0][:4] == ["T-1", "100", "50.0 %", "25.0 %"]
    assert read.card("Messages") == "1,234"
    # What has no number shows a dash, and sorts as nothing
    assert read.table("hot_tickets")[1]["of waiting"] == ""
    assert read.shown("hot_tickets")[1][3] == "–"  # noqa: RUF001 - the dash that is shown
    assert "The first 3 of 5,000." in "".join(read.texts)


def test_the_page_defines_its_terms() -> None:
    text = "".join(Read(made()).texts)
    for word in ("waiting", "retries", "messages", "dead", "utilisation"):
        assert text.count(word) > 1
    assert "Counted once" in text


def test_the_terminal_shows_the_same_rows_and_obeys_no_name(capsys: pytest.CaptureFixture[str]) -> None:
    show(found([*EVIL, "[bold]T[/bold] :smile:"]))
    out = capsys.readouterr().out
    for text in (*EVIL, "[bold]T[/bold] :smile:"):
        assert short(visible(text), 40) in out
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]", out)
    (line,) = (line for line in out.splitlines() if line.startswith("turnaround  "))
    assert re.split(r"  +", line.strip())[-4:] == ["4.20 s", "8.40 s", "12.6 s", "16.8 s"]


@pytest.mark.parametrize("buckets", [1, 2, 119])
def test_a_report_of_any_length_can_be_drawn(buckets: int) -> None:
    Read(page(found(["T"], buckets), archive="a", start=None, end=None, top=20))


def test_the_page_names_the_lane_and_what_it_left_out() -> None:
    lane = ("orders", "<billing>")
    read = Read(page(found(["T"]), archive="a", lane=lane, start=None, end=None, top=20))
    assert any("stream orders, group <billing> ·" in text for text in read.texts)
    assert read.card("Left out") == "5"


def test_a_report_without_executions_says_so() -> None:
    empty = found(["T"], 1)
    none = dict.fromkeys(times("waiting", 0) | times("service", 0) | times("turnaround", 0))
    empty["totals"] |= {**none, "imbalance": None, "throughput_per_s": None, "service_sum_ms": None}
    for name in ("tasks", "hot_tickets", "slowest_tickets", "consumers", "dead_letters", "distribution"):
        empty[name] = []
    empty["over_time"][0] |= dict.fromkeys(times("waiting", 0))
    read = Read(page(empty, archive="a", start=None, end=None, top=20))
    assert {"Nothing was executed.", "There is none."} <= set(read.texts)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (visible("a\x00\u202eb\U000e0001"), "a\\x00\\u202eb\\U000e0001"),
        (short("abcdef", 4), "abc…"),
    ],
)
def test_names_from_outside_are_shown_safely_and_cut(shown: str, expected: str) -> None:
    assert shown == expected


def test_scales_are_round_and_hold_what_they_must() -> None:
    assert [nice_step(span, 4) for span in (1, 7, 39, 4000)] == [0.5, 2, 10, 1000]
    scale = linear(39, str)
    assert [value for value, _ in scale.ticks] == [0, 10, 20, 30, 40]
    assert scale.place(0) > scale.place(40)
    times_of = logarithmic(0.5, 4200)
    assert [text for _, text in times_of.ticks] == ["100 µs", "1 ms", "10 ms", "100 ms", "1 s", "10 s"]


@pytest.fixture(scope="module")
def browser() -> str:
    for name in BROWSERS:
        if shutil.which(name):
            return name
    pytest.skip(f"no browser to look at the page with: none of {', '.join(BROWSERS)} is installed")


@pytest.mark.browser
@pytest.mark.slow
def test_in_a_real_browser_nothing_runs_but_the_page_s_own_script(browser: str, tmp_path: Path) -> None:
    # Given a page full of names that would run if they could, and a click on a heading, put in with its own digest
    text = made(EVIL)
    click = "document.querySelectorAll('#hot_tickets thead button')[1].click();"
    digest = base64.b64encode(hashlib.sha256(click.encode()).digest()).decode()
    text = text.replace("script-src '", f"script-src 'sha256-{digest}' '", 1)
    text = text.replace("</body>", f"<script>{click}</script></body>")
    (tmp_path / "report.html").write_text(text)
    # When a browser shows it
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    command = [browser, *FLAGS, profile, "--dump-dom", (tmp_path / "report.html").as_uri()]
    seen = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    # Then nothing of them ran, and the table is sorted by the column that was clicked, the largest first
    assert "<title>Ticket Bridge report" in seen
    assert 'aria-sort="descending"' in seen
    rows = Read(seen.partition("<!DOCTYPE html>")[2]).table("hot_tickets")
    values = [float(row["messages"]) for row in rows]
    assert values == sorted(values, reverse=True)


#: Width of a digit in DejaVu Sans and Verdana, as a share of the font's size: the widest of the usual fonts.
WIDE = 0.64
STEPS_S = (0.001, 0.5, 1.0, 30.0, 3600.0, 86_400.0)


def charts() -> list[Shape]:
    """Charts with the longest texts that they can have."""
    drawn = []
    for step_s in STEPS_S:
        buckets = [Bucket(START.timestamp() + i * step_s, [Mark(0, 1, "blue")], "") for i in range(60)]
        drawn.append(over_time(buckets, step_s, linear(29_400, rate), ""))
        drawn.append(over_time(buckets, step_s, logarithmic(0.1, 100_000), ""))
    bins = [(10 ** (i / 5), 10 ** ((i + 1) / 5), 1_234_567 * (i + 1)) for i in range(-5, 25)]
    drawn.append(histogram(bins, (0.1, 1e5), [("p50", 2.0), ("p90", 5e4), ("p99", 1e5)], ""))
    rows = [Bar("0" * 26, "1 min 40 s", ((1.0, "blue"),), ""), Bar("a", "1", ((0.1, "red"),), "")]
    drawn.append(bars(rows, "", line=(1.0, "mean 1 min 40 s")))
    return drawn


def texts(shape: Shape) -> list[Shape]:
    own = [shape] if shape.tag == "text" else []
    return own + [text for child in shape.children for text in texts(child)]


def extent(text: Shape) -> tuple[float, float]:
    """From where to where a text goes in a wide font."""
    classes, x = text.attributes["class"].split(), float(text.attributes["x"])
    wide = len(text.text) * WIDE * (NAME_PX if {"name", "told"} & set(classes) else TICK_PX)
    start = x - wide if "end" in classes else x - wide / 2 if "mid" in classes else x
    return start, start + wide


def test_no_text_leaves_its_chart_or_touches_another_in_a_wide_font() -> None:
    for chart in charts():
        width = float(chart.attributes["viewBox"].split()[2])
        shown = texts(chart)
        assert len(shown) > 4
        lines: dict[str, list[tuple[float, float]]] = {}
        for text in shown:
            start, end = extent(text)
            assert start >= 0, text
            assert end <= width, text
            if text.attributes["class"] == "tick mid":
                lines.setdefault(text.attributes["y"], []).append((start, end))
        for line in lines.values():
            assert all(end < start for (_, end), (start, _) in pairwise(line))


def test_texts_are_as_large_as_the_charts_reckon() -> None:
    style = (Path(__file__).parents[3] / "spark" / "reporting" / "look" / "report.css").read_text()
    assert f"svg text {{ font-size: {TICK_PX}px;" in style
    assert f"svg text.name, svg text.value {{ font-size: {NAME_PX}px; }}" in style
