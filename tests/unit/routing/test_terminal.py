"""The progress display of commands and jobs: live on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from bridge.routing import terminal
from bridge.routing.terminal import Part, ProgressDisplay


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(terminal, "time", clock)
    return clock


def test_without_a_terminal_a_line_is_printed_when_it_differs_and_its_time_has_come(clock: Clock) -> None:
    out = io.StringIO()
    display = ProgressDisplay(Console(file=out, width=20), every_s=10, first_s=10)
    for seconds, line in ((5, "too soon"), (5, "[one] line that is longer than twenty columns"), (5, "too soon again")):
        clock.now += seconds
        display.show(line)
    clock.now += 5
    display.show("two")
    clock.now += 60
    display.show("two")
    display.close()

    assert out.getvalue().splitlines() == ["[one] line that is longer than twenty columns", "two"]


@pytest.mark.parametrize("keep", [True, False])
def test_on_a_terminal_parts_are_lines_with_bars_that_stay_if_asked(*, keep: bool) -> None:
    out = io.StringIO()
    with ProgressDisplay(Console(file=out, width=80, force_terminal=True), keep=keep) as display:
        display.show("a plain line", [Part("pushed", "[3] of 4", 3, 4), Part("done", "1", 1, 4)])
    shown = out.getvalue()

    assert "a plain line" not in shown
    assert all(text in shown for text in ("pushed", "[3] of 4", "75%", "done", "25%"))
    assert shown.endswith("\x1b[2K") is not keep
