"""The report of an archive with a real Spark: every number against a second computation in plain Python."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from math import log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from bridge.routing.errors import InputError
from bridge.routing.ids import id_key
from bridge.spark.archiving.place import ArchivePlace
from bridge.spark.archiving.reading import Range, read_table
from bridge.spark.read.options import DEAD, HISTORY, MESSAGES
from bridge.spark.report import Asked, main, report
from bridge.testing.nodes.process import ROOT
from tests.integration.spark import report_reference as reference
from tests.integration.spark.archives import START_MS, Archive, Line, Row, history, letter, random_archive
from tests.integration.spark.spark_jobs import refused, submit
from tests.integration.spark.spark_session import DEALT_OUT, session_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

SEED = int(os.environ.get("REPORT_SEED", "20"))
TOP = 5


@pytest.fixture(scope="module")
def session() -> SparkSession:
    return session_of(conf=DEALT_OUT)


@pytest.fixture(scope="module")
def archive() -> Archive:
    print(f"REPORT_SEED={SEED}")
    return random_archive(SEED)


@pytest.fixture(scope="module")
def reported(session: SparkSession, archive: Archive, tmp_path_factory: pytest.TempPathFactory) -> Reported:
    # Names that a reader of Spark takes for patterns, unless it is told better
    folder = tmp_path_factory.mktemp("report")
    found = report(session, Asked(str(archive.write(folder / "archive[1]")), folder / "out[1]", Range(), TOP))
    return Reported(folder / "out[1]", found)


class Reported:
    """A report that was made: what it showed, and its tables as any Parquet tool reads them."""

    def __init__(self, out: Path, found: dict[str, Any]) -> None:
        self.out = out
        self.found = found

    def table(self, name: str) -> list[Row]:
        rows: list[Row] = pq.read_table(self.out / "tables" / name).to_pylist()
        return rows

    @property
    def page(self) -> str:
        return (self.out / "report.html").read_text()


def same(found: Row, expected: Row) -> None:
    """Counts and times are equal; what was divided is equal but for rounding."""
    for name, value in expected.items():
        assert found[name] == (pytest.approx(value, rel=1e-12) if isinstance(value, float) else value), name


def test_the_totals_equal_a_second_computation(archive: Archive, reported: Reported) -> None:
    found = reference.lives(archive)
    outcomes = [life.outcome for life in found]
    expected = reference.summary(found, found)
    del expected["share_of_messages"], expected["share_of_waiting"]
    (row,) = reported.table("totals")
    same(row, expected)
    same(row, {kind: outcomes.count(kind) for kind in ("dropped", "refused", "left_out", "skipped", "unknown")})
    assert row["dropped"] > 0
    assert (row["left_out"], row["skipped"]) == (3, 1)
    same(row, {"stale": sum(life.how_many("stale") for life in found), "letters": len(archive.dead)})
    # What a random archive must hold for the comparison to mean anything
    assert min(outcomes.count(kind) for kind in ("done", "dead", "refused", "undone", "unknown")) > 0
    assert min(row[name] for name in ("retries", "failures", "losses", "returns", "replays", "stale")) > 0


@pytest.mark.parametrize(("table", "key", "attribute"), [("tickets", "ticket_id", "ticket"), ("tasks", "task", "task")])
def test_every_ticket_and_task_equals_a_second_computation(
    archive: Archive, reported: Reported, table: str, key: str, attribute: str
) -> None:
    expected = reference.by(reference.lives(archive), attribute)
    found = {row[key]: row for row in reported.table(table)}
    assert found.keys() == expected.keys()
    for name, row in found.items():
        same(row, expected[name])


def test_every_worker_equals_a_second_computation(archive: Archive, reported: Reported) -> None:
    expected = reference.workers(reference.lives(archive))
    found = {row["consumer"]: row for row in reported.table("consumers")}
    assert found.keys() == expected.keys()
    for name, row in found.items():
        same(row, expected[name])
    busy = [row["busy_ms"] for row in expected.values()]
    assert reported.found["totals"]["imbalance"] == pytest.approx(max(busy) / (sum(busy) / len(busy)))


def test_the_buckets_of_time_equal_a_second_computation(archive: Archive, reported: Reported) -> None:
    bucket = reported.found["bucket_us"]
    expected = reference.in_buckets(reference.lives(archive), bucket)
    found = {reference.us(row["bucket_start"]) // bucket: row for row in reported.table("over_time")}
    assert found.keys() == expected.keys()
    assert 10 < len(found) <= 121
    for name, row in found.items():
        same(row, expected[name])


def test_the_distributions_hold_every_value_once(archive: Archive, reported: Reported) -> None:
    found = reference.lives(archive)
    expected = {
        "waiting": reference.bins(life.waiting for life in found if life.waiting is not None),
        "service": reference.bins(map(reference.served, reference.timed(found))),
        "turnaround": reference.bins(life.turnaround for life in found if life.turnaround is not None),
    }
    for measure, bars in expected.items():
        rows = [row for row in reported.table("distribution") if row["measure"] == measure]
        assert {round(5 * log10(row["from_ms"] * 1000)): row["n"] for row in rows} == bars
        assert all(row["to_ms"] == pytest.approx(row["from_ms"] * 10**0.2) for row in rows)


def test_dead_letters_are_counted_by_reason_and_task(archive: Archive, reported: Reported) -> None:
    expected: dict[tuple[str, str | None], list[Row]] = {}
    for one in archive.dead:
        expected.setdefault((one["reason"], one["task"]), []).append(one)
    found = {(row["reason"], row["task"]): row for row in reported.table("dead_letters")}
    assert found.keys() == expected.keys()
    for name, letters in expected.items():
        newest = max(letters, key=lambda one: id_key(one["letter_id"]))
        tickets = {one["ticket_id"] for one in letters if one["ticket_id"] is not None}
        times = [one["at"] for one in letters]
        same(
            found[name],
            {
                "letters": len(letters),
                "tickets": len(tickets),
                "first_at": min(times),
                "last_at": max(times),
                "newest_error": newest["error"],
            },
        )


def test_the_shown_rows_are_the_first_of_the_tables(reported: Reported) -> None:
    tickets = reported.table("tickets")
    slowest = sorted(
        (row for row in tickets if row["turnaround_max_ms"] is not None),
        key=lambda row: (-row["turnaround_max_ms"], row["ticket_id"]),
    )
    hottest = sorted(tickets, key=lambda row: (-row["messages"], -(row["waiting_sum_ms"] or 0), row["ticket_id"]))
    assert names(reported.found["slowest_tickets"]) == names(slowest[:TOP])
    assert names(reported.found["hot_tickets"]) == names(hottest[:TOP])
    assert reported.found["rows"]["tickets"] == len(tickets)


def names(rows: Sequence[Row]) -> list[str]:
    return [row["ticket_id"] for row in rows]


def test_the_page_shows_the_numbers_of_the_tables(reported: Reported) -> None:
    from tests.unit.spark.test_spark_report_page import Read

    read = Read(reported.page)
    (totals,) = reported.table("totals")
    assert read.card("Messages") == f"{totals['messages']:,}"
    by_ticket = {row["ticket_id"]: row for row in reported.table("tickets")}
    shown = read.table("hot_tickets")
    assert len(shown) == TOP
    for row, expected in zip(shown, reported.found["hot_tickets"], strict=True):
        whole = by_ticket[expected["ticket_id"]]
        assert float(row["messages"]) == whole["messages"]
        assert float(row["waiting p99"]) == whole["waiting_p99_ms"]


#: Executions of one consumer. A century each is together more microseconds than 64 bits count.
CENTURY_MS = 3_155_760_000_000.0
CENTURIES = [
    Line(START_MS * 1000 + n, f"{START_MS}-{n}", "T", "t", "done", "w", 1, 1, START_MS * 1000, CENTURY_MS)
    for n in range(3000)
]


def test_times_are_added_up_however_long_they_are(session: SparkSession, tmp_path: Path) -> None:
    """A consumer may say of each execution that it took a century."""
    from bridge.spark.reporting import tables
    from bridge.spark.reporting.deliveries import deliveries, due_times, messages

    share = tables.Whole(1, 1.0, 1.0)
    folder = str(Archive(history(CENTURIES)).write(tmp_path / "archive"))
    rows = deliveries(read_table(session, folder, HISTORY), Range()).persist()
    each = messages(rows, due_times(read_table(session, folder, MESSAGES)))
    facts = tables.Facts(rows, each, tables.letters(read_table(session, folder, DEAD), Range()))
    # The tables that add them up: what all took, what a ticket's took, and what a consumer was busy
    found = [tables.totals(facts), tables.per(facts, "ticket_id", share), tables.consumers(facts, share)]
    [whole, ticket, consumer] = [row for table in found for row in table.collect()]
    rows.unpersist()
    assert [whole["service_sum_ms"], ticket["service_sum_ms"], consumer["busy_ms"]] == [
        pytest.approx(len(CENTURIES) * CENTURY_MS)
    ] * 3
    assert consumer["service_max_ms"] == CENTURY_MS


@pytest.mark.long
def test_a_report_has_times_that_are_longer_than_64_bits(session: SparkSession, tmp_path: Path) -> None:
    report(session, Asked(str(Archive(history(CENTURIES)).write(tmp_path / "archive")), tmp_path / "out", Range(), TOP))
    [consumer] = Reported(tmp_path / "out", {}).table("consumers")
    assert consumer["busy_ms"] == pytest.approx(len(CENTURIES) * CENTURY_MS)


def test_a_failed_report_leaves_the_earlier_one(
    session: SparkSession, archive: Archive, reported: Reported, tmp_path: Path
) -> None:
    def files() -> dict[str, int]:
        return {str(file): file.stat().st_mtime_ns for file in reported.out.rglob("*")}

    def ends(name: str, _rows: int) -> None:
        if name == "tasks":
            raise KeyboardInterrupt

    before, folder = files(), str(archive.write(tmp_path / "archive"))
    # Nothing is of this range, which only the first table says
    with pytest.raises(InputError, match="nothing of this range"):
        report(session, Asked(folder, reported.out, Range.of("5", "6"), TOP))
    # And one that is ended in the middle
    with pytest.raises(KeyboardInterrupt):
        report(session, Asked(folder, reported.out, Range(), TOP), ends)
    after = files()
    assert after.pop(str(reported.out / "tables")) >= before.pop(str(reported.out / "tables"))
    assert after == before


@pytest.mark.long
def test_a_range_takes_whole_messages_by_the_time_when_they_were_enqueued(
    session: SparkSession, tmp_path: Path
) -> None:
    # Given messages on either side of a bound, one of which ends long after it, and ids that text would sort wrongly
    from bridge.spark.reporting.results import results

    at = START_MS * 1000
    ids = [f"{START_MS - 1}-0", f"{START_MS}-2", f"{START_MS}-10", f"{START_MS + 5}-0"]
    # (a worker of one process: each execution begins at the very moment when the one before ends)
    day = 86_400_000_000
    lines = [Line(at + day + i, id_, "T", "t", "done", "w", 1, 5 + i, at + 1500 * i, 1.5) for i, id_ in enumerate(ids)]
    archive = Archive(history(lines), [letter(at, id_, "r") for id_ in ids])
    folder = str(archive.write(tmp_path / "archive"))
    start = datetime.fromtimestamp(START_MS / 1000, UTC).isoformat()
    end = datetime.fromtimestamp((START_MS + 5) / 1000, UTC).isoformat()
    # When the report is of a range of times
    found = results(session, folder, Range.of(start, end), TOP, tmp_path / "tables")
    # Then it has all of a message that is in, and nothing of one that is not
    assert (found["totals"]["messages"], found["totals"]["done"], found["totals"]["letters"]) == (2, 2, 2)
    (worker,) = found["consumers"]
    assert (worker["peak"], worker["running"], worker["utilisation"]) == (1, 1.0, 1.0)
    # And so has a range of ids, with its end
    rows = read_table(session, folder, HISTORY)
    within = Range.of(f"{START_MS}-2", f"{START_MS}-10")
    assert {row.message_id for row in rows.filter(within.holds(rows.message_id)).collect()} == set(ids[1:3])
    with pytest.raises(InputError, match="nothing of this range"):
        results(session, folder, Range.of("5", "6"), TOP, tmp_path / "tables")
    with pytest.raises(InputError, match="is empty: when tasks have run"):
        results(session, str(tmp_path / "nothing"), Range(), TOP, tmp_path / "tables")


@pytest.mark.long
def test_the_job_that_is_submitted_makes_the_whole_report_and_says_so_in_json_lines(
    archive: Archive, tmp_path: Path
) -> None:
    small = Archive(archive.history[:150])  # and no dead letters: the folder is not even there
    out = tmp_path / "out"
    # A zone that is not UTC: what is shown must not depend on where the job runs.
    env = {"TZ": "America/New_York"}
    said = submit("report", small.write(tmp_path / "archive"), "--out", out, cwd=tmp_path, env=env)
    assert (said[0]["event"], said[-1]["event"]) == ("started", "done")
    messages = len({row["message_id"] for row in small.history})
    assert said[-1]["messages"] == messages
    assert {event["name"] for event in said[1:-1]} == {path.name for path in (out / "tables").iterdir()}
    page = (out / "report.html").read_text()
    assert f">{messages:,}<" in page
    assert "last outcome 2026-03-14 09:2" in page, "times are UTC wherever the job runs"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nowhere", "--out", "{out}"], 1, "there is no archive at nowhere"),
        (["docs", "--out", "{out}"], 1, "docs is not an archive"),
        (["{kept}", "--out", "{out}", "--group", "mail"], 1, "is the archive of stream 'orders', group 'billing'"),
        (["{kept}", "--out", "{out}", "--stream", "other"], 1, "is the archive of stream 'orders', group 'billing'"),
        (["{bare}", "--out", "{out}", "--group", "mail"], 1, "does not say which stream and group it is of"),
        ([".", "--out", "/proc/report"], 1, "is not an archive"),
        ([".", "--out", "{out}", "--from", "yesterday"], 2, "--from must be a time"),
        ([".", "--out", "{out}", "--from", "20260314"], 2, "--from 20260314 could be a date or a message id"),
        ([".", "--out", "{out}", "--to", "2026"], 2, "--to 2026 could be a date or a message id"),
        ([".", "--out", "{out}", "--from", "2026-01-02", "--to", "2026-01-02"], 2, "is not before --to"),
    ],
    ids=["nowhere", "other", "group", "stream", "copy", "proc", "time", "date", "year", "empty"],
)
def test_wrong_usage_is_one_line_before_java_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, said: str
) -> None:
    monkeypatch.chdir(ROOT)
    kept, bare = tmp_path / "kept", tmp_path / "bare"
    for folder in (kept, bare):
        (folder / "history").mkdir(parents=True)
    ArchivePlace(str(kept)).claim("orders", "billing", [], database=0)
    done = refused(main, [word.format(out=tmp_path / "out", kept=kept, bare=bare) for word in arguments], monkeypatch)
    assert (done.exit_code, said in done.stderr) == (code, True), done.stderr
