"""The options of a push and its output, without Java and without a server."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bridge.routing.errors import ConfigurationError, InputError
from bridge.routing.stop_signal import StopSignal
from bridge.spark.job.eventlog import check_readable
from bridge.spark.job.progress import Display
from bridge.spark.job.session import parse_conf
from bridge.spark.push import main, plan_of
from bridge.spark.pushing.plan import PushPlan
from tests.commands import runner

SECRET = "hunter2"
FOLLOW = ("--follow", "--format", "csv", "--checkpoint", "c")


def plan(*arguments: str) -> PushPlan:
    return plan_of(main.make_context("push", list(arguments)).params)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["log.csv", "--again", "--run-id", "x"], "--again makes a new name, and --run-id gives one"),
        (["log.csv", "--run-id", "x", "--idempotence", "ticket"], "runId has no meaning with idempotence=ticket"),
        (["log.csv", "--high-water", "0"], "option highWater must be a whole number of at least 1"),
        (["log.csv", "--max-wait", "soon"], "option maxWait must be a whole number"),
        (["log.csv", "--idempotence", "maybe"], "option idempotence must be watermark, ticket or none"),
        (["log.csv", "--checkpoint", "c"], "--checkpoint goes with --follow"),
        (["log.csv", "--available-now"], "--available-now goes with --follow"),
        (["folder", "--follow", "--format", "csv"], "--follow needs --checkpoint"),
        (["folder", "--follow", "--checkpoint", "c"], "--follow needs --format csv|json|parquet"),
        (["folder", *FOLLOW, "--again"], "--again does not go with --follow: its checkpoint names the push"),
        (["t", "--follow", "--format", "table", "--checkpoint", "c"], "--follow is for folders"),
        (["log.csv", "--conf", f"key{SECRET}"], "--conf must be key=value"),
        (["log.csv", "--map", "amount"], "--map must be member=column"),
        (["log.csv", "--url", f"http://:{SECRET}@h"], "--url must start with"),
        (["log"], "cannot tell the format of log from its name"),
    ],
)
def test_impossible_options_are_one_line_before_anything_is_read(arguments: list[str], said: str) -> None:
    done = runner().invoke(main, arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    if "--conf" not in arguments:
        assert SECRET not in done.stderr


def test_secrets_are_in_no_text_of_a_plan() -> None:
    made = plan("log.csv", "--url", f"redis://u:{SECRET}@h/0", "--conf", f"spark.hadoop.fs.s3a.secret.key={SECRET}")
    assert SECRET in made.url
    assert SECRET in made.conf["spark.hadoop.fs.s3a.secret.key"]
    assert SECRET not in repr(made)


def test_a_value_of_the_configuration_may_have_equals_signs() -> None:
    assert parse_conf(["a.b=c=d", "e="]) == {"a.b": "c=d", "e": ""}
    with pytest.raises(ConfigurationError):
        parse_conf(["=value"])


def test_only_what_the_user_says_reaches_the_data_source() -> None:
    made = plan("log.csv", "--chunk-size", "7", "--high-water", "9")
    assert made.writer == {"chunkSize": "7", "highWater": "9"}
    assert made.once
    assert not plan("log.csv", "--idempotence", "None").once


class Terminal:
    """Standard output that says it is a terminal."""

    def __init__(self, written: Callable[[str], object]) -> None:
        self.write = written

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        pass


def test_on_a_terminal_there_is_one_line_that_is_written_over_and_never_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(sys, "stdout", Terminal(written.append))
    monkeypatch.setenv("COLUMNS", "42")
    display = Display("text")
    display.rows(1200, 600.4)
    display.waiting(1200, "the stream holds 20,000 entries, as many as highWater allows", 12.0)
    display.close()
    lines = [line for line in re.split(r"[\r\n]+", re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", "".join(written))) if line]
    assert lines[0].startswith("1,200 messages, 600/s")
    assert lines[1].startswith("1,200 messages, waiting for 12.0 s: the")
    assert all(len(line) <= 42 for line in lines)
    # The last thing written is that the line goes away.
    assert written[-1].endswith("\x1b[1A\x1b[2K")


def test_without_a_terminal_a_reason_to_wait_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display("text")
    for seconds in (1.0, 2.0, 3.0):
        display.waiting(0, "the stream is full", seconds)
    display.rows(5, 10.0)
    display.waiting(5, "the stream is full", 1.0)
    assert capsys.readouterr().out.splitlines() == [
        "waiting: the stream is full",
        "5 messages, 10.0/s",
        "waiting: the stream is full",
    ]


def test_one_message_is_not_called_messages(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display("text")
    display.rows(1, 10.0)
    display.epoch(0, 1, 2.0)
    assert capsys.readouterr().out.splitlines() == ["1 message, 10.0/s", "epoch 0: 1 message in 2.00 s"]


def test_progress_is_json_lines_or_nothing_as_asked(capsys: pytest.CaptureFixture[str]) -> None:
    for progress in ("json", "none"):
        display = Display(progress)
        display.rows(5, 10.04)
        display.waiting(5, "full", 1.26)
        display.epoch(3, 5, 0.5)
        display.close()
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert said == [
        {"event": "pushed", "rows": 5, "rows_per_s": 10.0},
        {"event": "waiting", "reason": "full", "seconds": 1.3},
        {"event": "epoch", "epoch": 3, "rows": 5, "seconds": 0.5},
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_noted_and_what_was_before_comes_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopSignal() as stop:
        assert not stop.count
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
        assert (stop.number, stop.count) == (number, 2)
    assert signal.getsignal(number) is before


def test_a_missing_file_is_reported_before_java_starts(tmp_path: Path) -> None:
    done = runner().invoke(main, [str(tmp_path / "no.csv")])
    assert (done.exit_code, done.stderr) == (1, f"error: there is no file {tmp_path / 'no.csv'}\n")


@pytest.mark.parametrize("place", [".", "day=1"])
def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path, place: str) -> None:
    # A reader of a pipe waits until something writes into it
    pipe = tmp_path / place / "log.csv"
    pipe.parent.mkdir(exist_ok=True)
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        with pytest.raises(InputError, match=re.escape(f"{pipe} is a pipe or a device: write what it gives to a file")):
            check_readable(str(path))
    with pytest.raises(InputError, match="/dev/null is a pipe or a device"):
        check_readable("/dev/null")


def test_a_file_with_a_colon_in_its_name_is_refused_and_a_folder_is_not(tmp_path: Path) -> None:
    odd = tmp_path / "at=10:00" / "2026-11-28T10:00:00.csv"
    odd.parent.mkdir()
    for path in (odd, odd.parent / "log.csv"):
        path.touch()
    for given in (odd, tmp_path):
        with pytest.raises(InputError, match=re.escape(f"Spark cannot use a name with a colon: rename {odd}")):
            check_readable(str(given))
    odd.unlink()
    check_readable(str(tmp_path))
