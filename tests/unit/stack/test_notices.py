"""The HTTP consumer of the demo: where it can run, and the verdict about what it did."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from bridge.http import options
from bridge.stack.demo.ledger import Kind, Ledger, Record
from bridge.stack.demo.notices import NOTICES, judge_notices, why_not
from bridge.stack.demo.verdict import DemoVerdict, Findings

#: Of A the events 2, 3 and 7 are urgent, of B the first one.
URGENT_EVENTS = {"A": [2, 3, 7], "B": [1]}
RIGHT = [("A", 2), ("B", 1), ("A", 3), ("A", 7)]


def ledger(ran: Sequence[tuple[str, int]], subscription: str = NOTICES) -> Ledger:
    """One execution after the other."""
    made = Ledger()
    for n, (ticket, seq) in enumerate(ran):
        for kind in (Kind.START, Kind.DONE):
            made.records.append(Record(kind, ticket, seq, n, 1, len(made.records), 7, subscription))
    return made


def test_all_urgent_events_once_and_in_order_are_right() -> None:
    found = judge_notices(ledger(RIGHT), URGENT_EVENTS, 4, 0)
    assert (found.messages, found.done, found.dead, found.ok) == (4, 4, 0, True)
    assert DemoVerdict(9, 3, 9, 0, Findings(), 3, notices=found).ok
    # That an event is handled again is allowed.
    again = judge_notices(ledger([*RIGHT, RIGHT[-1]]), URGENT_EVENTS, 4, 0)
    assert (again.ok, again.findings.repeated) == (True, 1)
    assert judge_notices(Ledger(), {}, 0, 0).ok


@pytest.mark.parametrize(
    ("ran", "done", "dead", "fault"),
    [
        (RIGHT[:-1], 4, 0, "lost"),
        ([("A", 3), ("A", 2), ("B", 1), ("A", 7)], 4, 0, "reordered"),
        ([*RIGHT, ("A", 8)], 4, 0, "unexpected"),
        ([*RIGHT, ("A", -1)], 4, 0, "unexpected"),
        ([*RIGHT, ("C", 1)], 4, 0, "unexpected"),
        (RIGHT, 3, 0, None),
        (RIGHT, 4, 1, None),
    ],
    ids=["lost", "reordered", "not urgent", "follow-up", "other ticket", "not counted", "dead"],
)
def test_each_fault_makes_the_verdict_red(
    ran: Sequence[tuple[str, int]], done: int, dead: int, fault: str | None
) -> None:
    found = judge_notices(ledger(ran), URGENT_EVENTS, done, dead)
    assert not found.ok
    assert not DemoVerdict(9, 3, 9, 0, Findings(), 3, notices=found).ok
    if fault is None:
        assert found.findings.clean
    else:
        assert getattr(found.findings, fault) > 0


def test_what_workers_ran_is_not_its_work() -> None:
    assert judge_notices(ledger(RIGHT, "another"), URGENT_EVENTS, 4, 0).findings.lost == 4


class TestWhereItCanRun:
    def node(self, folder: Path, text: str) -> None:
        (folder / "node").write_text(f"#!/bin/sh\n{text}\n")
        (folder / "node").chmod(0o755)

    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """The only folder in which programs are looked for."""
        monkeypatch.setenv("PATH", str(tmp_path))
        return tmp_path

    def test_not_without_node(self, folder: Path) -> None:
        assert list(folder.iterdir()) == []
        assert why_not() == "there is no program `node`"

    def test_not_with_an_old_node(self, folder: Path) -> None:
        self.node(folder, "exit 1")
        assert why_not() == f"{folder}/node does not run, or is older than version 18"

    def test_not_without_the_extra(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node(folder, "exit 0")
        assert why_not() is None
        monkeypatch.setattr(options, "EXTRA", ("no_such_module",))
        assert why_not() == "the extra http is not installed (pip install 'ticket-bridge[http]')"
