"""The benchmark's statistics, goals, counting and tables; what it measures is not tested here."""

from __future__ import annotations

import json
import os
from io import StringIO
from pathlib import Path

import orjson
import pytest
from rich.console import Console

from benchmarks import __main__ as command
from benchmarks.cases import CASES, Case, Column
from benchmarks.feed import items
from benchmarks.figures import Spread, percentile, ratios, spread
from benchmarks.goals import __main__ as goals_command
from benchmarks.goals.__main__ import wanted
from benchmarks.goals.goal import Goal
from benchmarks.goals.house import GOALS
from benchmarks.goals.rows import ROWS, cases
from benchmarks.peers.node import NotInstalled
from benchmarks.report import ratio_text, show_case, show_disturbance, show_goals, significant
from benchmarks.results import DISTURBANCE, Metrics, Results
from benchmarks.simulated import entries
from benchmarks.stack import BenchmarkFailed
from benchmarks.tally import Reading, Tally
from bridge.protocol.names import BUNDLE_TASK, HEADER_BASE, HEADER_RUNS
from bridge.protocol.outcomes import decode
from tests.commands import runner


def results(**variants: list[float]) -> Results:
    """Rates of a case named ``case``."""
    found = Results()
    for variant, values in variants.items():
        for value in values:
            found.add("case", variant, {"rate": value})
    return found


# -- statistics --------------------------------------------------------------------------------------------------------


def test_the_median_of_few_rounds_is_their_middle() -> None:
    assert spread([30.0, 10.0, 20.0]) == Spread(20.0, 10.0, 30.0, 3)
    assert spread([10.0, 20.0]).median == 15.0
    assert spread([7.0]) == Spread(7.0, 7.0, 7.0, 1)


def test_no_round_has_no_median() -> None:
    with pytest.raises(ValueError, match="no round"):
        spread([])


def test_percentiles_interpolate_between_neighbours() -> None:
    values = [float(n) for n in range(101)]
    assert percentile(values, 99) == 99.0
    assert percentile(reversed(values), 0) == 0.0
    assert percentile(values, 100) == 100.0
    assert percentile([0.0, 1.0], 25) == 0.25
    with pytest.raises(ValueError, match="percentage"):
        percentile(values, 101)
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_a_ratio_compares_values_of_the_same_round() -> None:
    # The machine was half as fast in the second round, and each round's ratio is still 5.
    assert ratios([5000.0, 2500.0], [1000.0, 500.0]) == [5.0, 5.0]
    assert ratios([5000.0, 2500.0], [1000.0]) == [5.0]
    assert ratios([5000.0], [0.0]) == []


# -- results and goals -------------------------------------------------------------------------------------------------


def test_missing_measurements_are_none() -> None:
    found = results(plain=[1.0])
    assert found.spread("case", "plain", "latency") is None
    assert found.ratio("case", "bridge", "plain", "rate") is None


@pytest.mark.parametrize(("rate", "reached"), [(4999.0, False), (5000.0, True), (6000.0, True)])
def test_a_goal_from_below_is_reached_at_its_bound(rate: float, reached: bool) -> None:
    goal = Goal("fast", "case", "bridge", "rate", at_least=5000)
    assert goal.reached(results(bridge=[rate])) is reached


@pytest.mark.parametrize(("rate", "reached"), [(2.1, False), (2.0, True), (0.0, True)])
def test_a_goal_from_above_is_reached_at_its_bound(rate: float, reached: bool) -> None:
    goal = Goal("idle", "case", "bridge", "rate", at_most=2)
    assert goal.reached(results(bridge=[rate])) is reached


def test_a_goal_is_judged_by_the_median_of_its_rounds() -> None:
    goal = Goal("fast", "case", "bridge", "rate", at_least=100)
    assert goal.reached(results(bridge=[1.0, 101.0, 102.0])) is True
    assert goal.reached(results(bridge=[99.0, 98.0, 1000.0])) is False


def test_a_goal_against_a_peer_is_judged_by_the_ratios_of_the_rounds() -> None:
    goal = Goal("faster", "case", "bridge", "rate", at_least=5, peer="plain")
    found = results(bridge=[50.0, 600.0, 5.0], plain=[10.0, 100.0, 2.0])
    measured = goal.measured(found)
    assert measured is not None
    assert measured.median == 5.0
    assert goal.reached(found) is True
    assert goal.bound == "≥ 5 times"


def test_a_goal_that_was_not_measured_is_neither_reached_nor_missed() -> None:
    assert Goal("fast", "case", "bridge", "rate", at_least=1).reached(Results()) is None


def test_every_goal_names_what_a_case_measures() -> None:
    for goal in GOALS:
        case = CASES[goal.case]
        assert goal.variant in case.variants
        assert goal.peer is None or goal.peer in case.variants
        assert (goal.at_least is None) != (goal.at_most is None)


def test_every_row_names_a_case_and_has_one_bound() -> None:
    for row in ROWS.values():
        assert row.case in cases(full=False)
        assert (row.at_least is None) != (row.at_most is None)


def test_a_variant_that_several_rows_need_runs_once() -> None:
    rows = {
        "a": Goal("a", "case", "bridge", "rate", at_least=1, peer="plain"),
        "b": Goal("b", "case", "bridge", "rate", at_least=1, peer="node"),
    }
    assert wanted(rows) == {"case": ["plain", "bridge", "node"]}


def test_a_row_without_its_peer_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(variant: str, scale: float) -> Metrics:
        del scale
        if variant == "node":
            raise NotInstalled("no node here")
        return {"rate": 30.0 if variant == "bridge" else 10.0}

    rows = {
        "there": Goal("there", "case", "bridge", "rate", at_least=3, peer="plain"),
        "missed": Goal("missed", "case", "bridge", "rate", at_least=3.5, peer="plain"),
        "left": Goal("left", "case", "bridge", "rate", at_least=1, peer="node"),
    }
    monkeypatch.setattr(goals_command, "ROWS", rows)
    monkeypatch.setattr(goals_command, "cases", lambda **_: {"case": run})
    monkeypatch.setattr(goals_command, "describe", dict)
    target = tmp_path / "figures.json"
    done = runner().invoke(goals_command.main, ["--rounds", "2", "--json", str(target)])
    assert done.exit_code == 0, done.output
    said = {name: next(line for line in done.output.splitlines() if line.startswith(f"│ {name}")) for name in rows}
    assert "3.00 (3.00 … 3.00)" in said["there"]
    assert [" reached" in said[name] for name in rows] == [True, True, False]
    assert "NOT reached" in said["missed"]
    assert "no node here" in said["left"]
    written = json.loads(target.read_text())
    assert {name: row["reached"] for name, row in written["rows"].items()} == {"there": True, "missed": False}


def test_a_row_that_breaks_is_named_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(variant: str, scale: float) -> Metrics:
        if variant == "plain":
            raise BenchmarkFailed(f"nothing moved at {scale}")
        return {"rate": 30.0}

    rows = {
        "broken": Goal("broken", "case", "bridge", "rate", at_least=3, peer="plain"),
        "whole": Goal("whole", "case", "bridge", "rate", at_least=3),
    }
    monkeypatch.setattr(goals_command, "ROWS", rows)
    monkeypatch.setattr(goals_command, "cases", lambda **_: {"case": run})
    monkeypatch.setattr(goals_command, "describe", dict)
    done = runner().invoke(goals_command.main, ["--rounds", "2", "--json", str(tmp_path / "figures.json")])
    assert done.exit_code == 1
    assert "nothing moved at 1.0" in done.output
    assert any("whole" in line and " reached" in line for line in done.output.splitlines())


# -- counting ----------------------------------------------------------------------------------------------------------


def test_counts_of_all_processes_add_up(tmp_path: Path) -> None:
    tally = Tally(tmp_path)
    tally.count(1, 1)
    child = os.fork()
    if child == 0:
        tally.count(1, 2)
        tally.count(2, 1)
        os._exit(0)
    os.waitpid(child, 0)
    tally.count(1, 3)
    reading = Reading(tmp_path)
    assert reading.done() == 4
    assert reading.misplaced() == 0


def test_a_message_that_overtakes_another_is_detected(tmp_path: Path) -> None:
    tally = Tally(tmp_path)
    for number in (1, 3, 2, 4):
        tally.count(5, number)
    assert Reading(tmp_path).misplaced() == 3


def test_starts_are_read_back(tmp_path: Path) -> None:
    tally = Tally(tmp_path)
    tally.started(7, 1_000)
    tally.started(8, 2_000)
    assert Reading(tmp_path).starts() == {7: 1_000, 8: 2_000}


def test_messages_are_the_same_each_time_and_numbered_without_a_gap() -> None:
    first = list(items(500, 10))
    assert first == list(items(500, 10))
    numbers: dict[str, list[int]] = {}
    for ticket, payload in first:
        assert ticket == f"T{payload['t']}"
        numbers.setdefault(ticket, []).append(payload["n"])
    assert len(numbers) == 10
    # Equally many of each ticket, so that no run ends with one long ticket.
    assert all(of_ticket == list(range(1, 51)) for of_ticket in numbers.values())


# -- simulated consumers -----------------------------------------------------------------------------------------------


def test_a_message_alone_is_answered_by_an_entry_of_its_own() -> None:
    headers = {"id": "1-0", "task": "noop", HEADER_BASE: 100, HEADER_RUNS: [["T", 3, 1, 1, 0]]}
    [entry] = entries(orjson.dumps({"headers": headers, "body": "[]"}))
    [outcome] = decode(entry)
    assert (outcome.message_id, outcome.fence) == ("1-0", 103)


def test_a_bundle_is_answered_round_by_round() -> None:
    headers = {"id": "bundle", "task": BUNDLE_TASK, HEADER_BASE: 100, HEADER_RUNS: []}
    body = json.dumps([["A", 0, 1, [["1-0", "noop", {}], ["3-0", "noop", {}]]], ["B", 2, 1, [["2-0", "noop", {}]]]])
    rounds = [decode(entry) for entry in entries(orjson.dumps({"headers": headers, "body": body}))]
    said = [[(outcome.message_id, outcome.fence) for outcome in of_round] for of_round in rounds]
    assert said == [[("1-0", 100), ("2-0", 102)], [("3-0", 101)]]


# -- what is shown -----------------------------------------------------------------------------------------------------


def test_figures_are_shown_with_three_digits() -> None:
    shown = [significant(value) for value in (12345.6, 12.345, 1.2345, 0.0)]
    assert shown == ["12,346", "12.3", "1.23", "0.00"]


def test_one_round_has_no_spread_to_show() -> None:
    assert ratio_text(Spread(2.0, 2.0, 2.0, 1)) == "2.00"
    assert ratio_text(Spread(2.0, 1.0, 3.0, 3)) == "2.00 (1.00 … 3.00)"


def test_tables_hold_what_was_measured() -> None:
    console = Console(width=150, record=True, file=StringIO())
    case = Case("A case", {"plain": "Plain", "bridge": "Bridge"}, _no_run, (Column("rate", "msg/s"),), "plain")
    found = results(plain=[1000.0, 1100.0, 900.0], bridge=[8000.0, 9000.0, 7000.0])
    goals = (
        Goal("fast", "case", "bridge", "rate", at_least=5, peer="plain"),
        Goal("faster", "case", "bridge", "rate", at_least=10_000, unit="msg/s"),
        Goal("elsewhere", "other", "bridge", "rate", at_least=1),
    )
    show_case(console, "case", case, found)
    show_goals(console, goals, found)
    text = console.export_text()
    assert "7,000 … 9,000" in text
    assert "8.00 (7.78 … 8.18)" in text
    assert [line.count("not reached") for line in text.splitlines() if "faster" in line] == [1]
    assert "not measured" in text


@pytest.mark.parametrize(("others", "warned"), [([5.0, 14.0], False), ([5.0, 90.0, 120.0], True)])
def test_a_busy_machine_is_named(others: list[float], warned: bool) -> None:
    console = Console(width=150, record=True, file=StringIO())
    found = Results()
    for value in others:
        found.add("case", "bridge", {DISTURBANCE: value})
    show_disturbance(console, found)
    assert ("Other processes used 90 %" in console.export_text()) is warned


def _no_run(variant: str, scale: float) -> Metrics:
    raise AssertionError(f"{variant} {scale} was run")


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_variants_take_turns_in_each_round(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    order: list[str] = []

    def run(variant: str, scale: float) -> Metrics:
        assert scale == 1.0
        order.append(variant)
        return {"rate": 1.0}

    case = Case("Title", {"a": "A", "b": "B"}, run, (Column("rate", "msg/s"),), "a")
    monkeypatch.setattr(command, "CASES", {"hot": case})
    monkeypatch.setattr(command, "describe", lambda: {"cpu": "a fast one"})
    target = tmp_path / "deep" / "figures.json"
    done = runner().invoke(command.main, ["--rounds", "2", "--json", str(target)])
    assert done.exit_code == 0, done.output
    assert order == ["a", "b", "a", "b"]
    written = json.loads(target.read_text())
    assert written["machine"] == {"cpu": "a fast one"}
    assert written["results"]["hot"]["b"]["rate"] == [1.0, 1.0]


def test_a_missed_goal_is_no_failure_and_a_broken_run_is_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def slow(variant: str, scale: float) -> Metrics:
        del variant, scale
        return {"rate": 1.0}

    def broken(variant: str, scale: float) -> Metrics:
        raise BenchmarkFailed(f"{variant} {scale} moved nothing")

    monkeypatch.setattr(command, "describe", dict)
    for run, code in ((slow, 0), (broken, 1)):
        case = Case("Title", {"bundles": "Bridge"}, run, (Column("rate", "msg/s"),))
        monkeypatch.setattr(command, "CASES", {"hot": case})
        done = runner().invoke(command.main, ["--quick", "--json", str(tmp_path / "figures.json")])
        assert done.exit_code == code, done.output
    assert "Error: bundles 0.4 moved nothing" in done.stderr


def test_an_unknown_case_is_wrong_usage() -> None:
    assert runner().invoke(command.main, ["--only", "nothing"]).exit_code == 2
