"""The parts of a stack, each alone: requests to stop, child processes, counts and their display."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from bridge.cli.commands.stack import run_directory
from bridge.routing.errors import ServerStartFailed
from bridge.stack.child import Child, end_all
from bridge.stack.demo.progress import Counts, ProgressView
from bridge.stack.demo.verdict import DemoVerdict, Findings, NoticesVerdict, Reroute, TrailVerdict
from bridge.stack.demo.verdict_table import verdict_table
from bridge.stack.stopping import Stopped, StopRequest
from bridge.testing.waiting import wait_until


@pytest.fixture
def stop() -> Iterator[StopRequest]:
    with StopRequest() as request:
        yield request


def python(code: str, folder: Path, name: str = "child") -> Child:
    return Child(name, [sys.executable, "-c", code], log_file=folder / f"{name}.log")


def ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class TestStopRequest:
    def test_a_wait_ends_when_its_predicate_holds(self, stop: StopRequest) -> None:
        assert stop.wait(lambda: True, timeout_s=0)

    def test_a_wait_ends_with_its_time(self, stop: StopRequest) -> None:
        assert not stop.wait(lambda: False, timeout_s=0)

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_a_signal_ends_a_wait(self, stop: StopRequest, number: signal.Signals) -> None:
        os.kill(os.getpid(), number)
        with pytest.raises(Stopped):
            stop.wait(lambda: False)
        assert not stop.hurry

    def test_a_second_signal_is_a_request_to_hurry(self, stop: StopRequest) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.hurry

    def test_the_first_signal_is_noted_and_the_second_goes_to_the_earlier_handler(self) -> None:
        before: list[int] = []
        old = signal.signal(signal.SIGINT, lambda number, _frame: before.append(number))
        try:
            with StopRequest(once=True) as request:
                os.kill(os.getpid(), signal.SIGINT)
                assert (request.requested, before) == (True, [])
                os.kill(os.getpid(), signal.SIGINT)
                assert (request.hurry, before) == (False, [signal.SIGINT])
        finally:
            signal.signal(signal.SIGINT, old)

    def test_afterwards_signals_go_where_they_went_before(self) -> None:
        before = signal.getsignal(signal.SIGTERM)
        with StopRequest():
            assert signal.getsignal(signal.SIGTERM) != before
        assert signal.getsignal(signal.SIGTERM) == before


class TestChild:
    def test_its_output_is_in_its_log(self, tmp_path: Path, stop: StopRequest) -> None:
        child = python("print('hello'); raise SystemExit(3)", tmp_path)
        child.start()
        assert stop.wait(lambda: child.finished() is not None, timeout_s=10)
        assert child.exit_code == 3
        assert child.log_tail() == "  hello"
        child.reap()

    def test_nobody_else_gets_its_number_before_its_group_was_killed(self, tmp_path: Path, stop: StopRequest) -> None:
        child = python("import subprocess; print(subprocess.Popen(['sleep', '600']).pid)", tmp_path)
        child.start()
        # Looked at in all ways
        assert stop.wait(lambda: child.finished() is not None, timeout_s=10)
        assert not child.running
        child.send(signal.SIGTERM)
        left = int(child.log_tail())
        assert psutil.pid_exists(child.pid)
        assert not ended(left)
        child.reap()
        assert child.exit_code == 0
        assert not psutil.pid_exists(child.pid)
        wait_until(lambda: ended(left), description="the process that it left to end")

    def test_its_lines_are_handed_on(self, tmp_path: Path, stop: StopRequest) -> None:
        lines: list[str] = []
        code = "import sys; print('one'); print('two'); print('an error', file=sys.stderr)"
        child = Child("child", [sys.executable, "-c", code], log_file=tmp_path / "child.log", on_line=lines.append)
        child.start()
        assert stop.wait(lambda: child.finished() is not None, timeout_s=10)
        assert lines == ["one", "two"]
        assert child.log_tail() == "  an error"
        child.reap()

    def test_a_program_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        child = Child("child", ["/no/such/program"], log_file=tmp_path / "child.log")
        with pytest.raises(ServerStartFailed, match="cannot start child"):
            child.start()
        child.reap()

    def test_a_polite_one_ends_politely(self, tmp_path: Path, stop: StopRequest) -> None:
        polite = (
            "import signal, sys; signal.signal(15, lambda *_: sys.exit(0)); print('up', flush=True); signal.pause()"
        )
        child = python(polite, tmp_path)
        child.start()
        wait_until(lambda: "up" in child.log_tail(), description="the child to be up")
        end_all([child], stop)
        assert child.exit_code == 0

    def test_a_stubborn_one_ends_too(self, tmp_path: Path, stop: StopRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("bridge.stack.child.ESCALATION", ((signal.SIGTERM, 0.2), (signal.SIGQUIT, 0.2)))
        stubborn = (
            "import signal\n"
            "for number in (15, 3): signal.signal(number, signal.SIG_IGN)\n"
            "print('up', flush=True)\n"
            "while True: signal.pause()"
        )
        child = python(stubborn, tmp_path)
        child.start()
        wait_until(lambda: "up" in child.log_tail(), description="the child to be up")
        end_all([child], stop)
        assert child.exit_code == -signal.SIGKILL

    def test_a_stop_requested_twice_waits_for_no_process(self, tmp_path: Path, stop: StopRequest) -> None:
        child = python("import signal\nwhile True: signal.signal(15, signal.SIG_IGN); signal.pause()", tmp_path)
        child.start()
        stop.count = 2
        end_all([child], stop)
        assert not child.running


class TestProgress:
    def counts(self, done: int) -> Counts:
        return Counts(pushed=100, done=done, dead=1, left_out=0, in_flight={"w1": 5, "w2": 4}, retrying=0, leader="m")

    def test_messages_neither_settled_nor_in_flight_are_waiting(self) -> None:
        counts = self.counts(30)
        assert (counts.settled, counts.dispatched, counts.waiting) == (31, 9, 60)
        filtered = replace(counts, left_out=50)
        assert (filtered.settled, filtered.waiting) == (81, 10)

    def test_without_a_terminal_it_is_plain_lines(self) -> None:
        out = io.StringIO()
        with ProgressView(Console(file=out, width=200), 100, 7) as view:
            view.show(self.counts(30), notices=replace(self.counts(5), left_out=60))
        assert out.getvalue() == "pushed 100, done 31 of 100, waiting 60, in flight 9, 0/s, by Node 5\n"

    def test_on_a_terminal_it_is_bars(self) -> None:
        out = io.StringIO()
        with ProgressView(Console(file=out, width=200, force_terminal=True), 100) as view:
            view.show(self.counts(30))
        assert "waiting 60, in flight 9" in out.getvalue()


class TestVerdictTable:
    def shown(self, verdict: DemoVerdict) -> str:
        out = io.StringIO()
        Console(file=out, width=200, force_terminal=True, color_system="standard", no_color=False).print(
            verdict_table(verdict)
        )
        return out.getvalue()

    def verdict(self, lost: int = 0, reroute: Reroute | None = None) -> DemoVerdict:
        findings = Findings(lost=lost, seconds=2.0)
        return DemoVerdict(10, 3, 10, 0, findings, 3, reroute=reroute, killed="w2", lease_s=6.0)

    def test_a_number_that_must_not_be_is_red(self) -> None:
        assert re.search(r"lost.*\x1b\[1;31m *7", self.shown(self.verdict(lost=7)))
        assert "\x1b[1;31m" not in self.shown(self.verdict())

    def test_the_time_to_reroute_is_shown_with_its_bound(self) -> None:
        shown = self.shown(self.verdict(reroute=Reroute(4, 1.25, 1.5)))
        assert "1.25 s" in shown
        assert "median of 4 tickets of w2, at most 1.50 s; bounded by the lease (6 s)" in shown

    def test_a_worker_that_had_nothing_leaves_nothing_to_measure(self) -> None:
        assert "no ticket was in flight on w2" in self.shown(self.verdict())

    def test_the_audit_trail_has_a_row_of_its_own(self) -> None:
        good = replace(self.verdict(), trail=TrailVerdict(10, 0, Findings(), 3))
        assert re.search(
            r"audit trails.* 3 .*of 3 complete, a second subscription: 10 messages, 0 lost", self.shown(good)
        )
        assert "\x1b[1;31m" not in self.shown(good)
        bad = replace(good, trail=TrailVerdict(10, 0, Findings(lost=7), 2))
        assert re.search(r"\x1b\[1;31m.*2.*7 lost", self.shown(bad))
        assert "audit trail" not in self.shown(self.verdict())
        assert (good.as_dict()["trail"]["ok"], bad.as_dict()["trail"]["lost"]) == (True, 7)

    def test_the_http_consumer_has_a_row_of_its_own(self) -> None:
        good = replace(self.verdict(), notices=NoticesVerdict(1130, 1130, 0, Findings()))
        assert re.search(
            r"handled by Node.* 1,130 .*of 1,130 urgent events, over HTTP: 0 lost, 0 reordered", self.shown(good)
        )
        assert "\x1b[1;31m" not in self.shown(good)
        bad = replace(good, notices=NoticesVerdict(1130, 1123, 0, Findings(lost=7)))
        assert re.search(r"\x1b\[1;31m.*1,123.*7 lost", self.shown(bad))
        assert "Node" not in self.shown(self.verdict())
        assert (good.as_dict()["notices"]["ok"], bad.as_dict()["notices"]["lost"]) == (True, 7)

    def test_as_data_it_is_flat(self) -> None:
        shown = self.verdict(lost=1).as_dict()
        assert shown["ok"] is False
        assert shown["lost"] == 1
        assert shown["throughput_per_s"] == 5.0


def test_every_run_gets_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folders = {run_directory("demo") for _ in range(3)}
    assert len(folders) == 3
    assert all(folder.is_dir() and folder.parent == tmp_path / "run" for folder in folders)
