"""The generated incident log: equal for one seed, of the promised size, and as irregular as a real one."""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from bridge.routing.errors import ConfigurationError
from bridge.spark.generate import COLUMNS, incident_log, main, write_log
from tests.commands import runner

EVENTS, TICKETS = 4000, 700

Row = dict[str, str]


@pytest.fixture(scope="module")
def log() -> list[Row]:
    return incident_log(EVENTS, TICKETS, seed=7)


def by_ticket(rows: list[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["ticket_id"]].append(row)
    return found


def test_it_has_exactly_the_events_and_tickets_asked_for(log: list[Row]) -> None:
    assert len(log) == EVENTS
    assert len(by_ticket(log)) == TICKETS


def test_every_row_has_every_column(log: list[Row]) -> None:
    assert all(set(row) == set(COLUMNS) and all(row.values()) for row in log)


def test_it_is_sorted_by_time_and_keeps_each_tickets_sequence(log: list[Row]) -> None:
    places = [(row["timestamp"], int(row["src_row"])) for row in log]
    assert places == sorted(places)
    assert all([int(row["seq"]) for row in rows] == list(range(1, len(rows) + 1)) for rows in by_ticket(log).values())


def test_it_has_what_makes_a_log_hard(log: list[Row]) -> None:
    sizes = sorted(len(rows) for rows in by_ticket(log).values())
    neighbours = [pair for rows in by_ticket(log).values() for pair in pairwise(rows)]
    # Then events are skewed over the tickets
    assert sizes[-1] > 10 * sizes[len(sizes) // 2]
    # And neighbouring events tie in time
    assert sum(a["timestamp"] == b["timestamp"] for a, b in neighbours) > len(neighbours) / 20
    # And there are reassignments and reopenings
    assert any(a["assignment_group"] != b["assignment_group"] for a, b in neighbours)
    assert any(a["activity"] == "Resolved" and b["activity"] == "Active" for a, b in neighbours)
    assert any(row["activity"].startswith("Awaiting") for row in log)


def test_counters_of_a_row_agree_with_the_rows_before_it(log: list[Row]) -> None:
    for rows in by_ticket(log).values():
        moves = [a["assignment_group"] != b["assignment_group"] for a, b in pairwise(rows)]
        assert int(rows[-1]["reassignment_count"]) >= sum(moves)
        assert {row["opened_at"] for row in rows} == {rows[0]["opened_at"]}
        assert all(row["active"] == ("false" if row["activity"] == "Closed" else "true") for row in rows)


def test_one_seed_gives_the_same_bytes_and_another_does_not(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_log(incident_log(300, 50, seed), tmp_path / f"{name}.csv.gz")
    first, second, third = ((tmp_path / f"{name}.csv.gz").read_bytes() for name in "abc")
    assert first == second != third
    # The header's time of writing, which differs from second to second, is left out.
    assert first[4:8] == b"\0\0\0\0"


def test_the_file_reads_back_as_the_rows(tmp_path: Path) -> None:
    rows = incident_log(300, 50, seed=3)
    write_log(rows, tmp_path / "log.csv.gz")
    with gzip.open(tmp_path / "log.csv.gz", "rt", newline="") as file:
        assert list(csv.DictReader(file)) == rows


@pytest.mark.parametrize("tickets", [0, 11])
def test_a_ticket_without_events_is_refused(tickets: int) -> None:
    with pytest.raises(ConfigurationError, match="every ticket needs an event"):
        incident_log(10, tickets, seed=1)


@pytest.mark.parametrize(("events", "tickets"), [(1, 1), (5, 5), (2, 1), (500, 1)])
def test_the_smallest_logs_work(events: int, tickets: int) -> None:
    assert len(incident_log(events, tickets, seed=1)) == events


def test_an_unwritable_place_is_one_line_and_exit_1(tmp_path: Path) -> None:
    result = runner().invoke(main, [str(tmp_path / "none" / "log.csv")])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: cannot write ")
    assert result.stderr.count("\n") == 1
